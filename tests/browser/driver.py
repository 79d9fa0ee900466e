"""Chromium through chromedriver: the WebDriver protocol over loopback, and nothing else."""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

PACKAGES = {"chromium": "chromium", "chromedriver": "chromium-driver", "pdftotext": "poppler-utils"}
START_SECONDS = 60
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--force-device-scale-factor=1", "--hide-scrollbars",
    # A page that asks for something outside fails to, in a test of that too.
    "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip


class CannotTry(Exception):
    """The run says nothing about the page."""


def require_tools():
    missing = [tool for tool in PACKAGES if not shutil.which(tool)]
    if missing:
        packages = " ".join(PACKAGES[tool] for tool in missing)
        raise CannotTry(
            f"missing: {', '.join(missing)}. On Debian:\n"
            f"  apt-get update && apt-get install -y --no-install-recommends {packages}"
        )


@contextlib.contextmanager
def browser():
    """One browser with an empty profile; neither it nor its files are left behind."""
    with tempfile.TemporaryDirectory(prefix="metal3-guard-browser-", ignore_cleanup_errors=True) as scratch:
        # What the two have in common is their process group, so none of them can stay.
        child = subprocess.Popen(
            ["chromedriver", "--port=0"], stdin=subprocess.DEVNULL, stdout=open(f"{scratch}/out", "wb"),
            stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, "TMPDIR": scratch, "HOME": scratch},
        )  # fmt: skip
        try:
            found = Browser(port_of(child, pathlib.Path(scratch, "out")), f"{scratch}/profile")
            try:
                yield found
            finally:
                found.quit()
        finally:
            end(child)


def port_of(child, log):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        for line in log.read_text(errors="replace").splitlines():
            if "started successfully on port " in line:
                return int(line.rsplit(" ", 1)[1].rstrip("."))
        time.sleep(0.1)
    raise CannotTry(f"chromedriver does not start:\n{log.read_text(errors='replace')}")


def end(child):
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=5)


class Browser:
    def __init__(self, port, profile):
        self.port, self.session = port, ""
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{made['sessionId']}"
        self.version = made["capabilities"]["browserVersion"]

    def call(self, method, path, body=None):
        """The value of an answer. Its connection is new, so a stuck one harms one call only."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            content = json.dumps(body) if body is not None else None
            connection.request(method, self.session + path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            value = json.loads(answer.read())["value"]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CannotTry(f"chromedriver, {method} {path}: {error!r}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise CannotTry(f"chromedriver, {method} {path}: {value['error']}: {value['message']}")
        return value

    def open(self, url):
        self.logs()
        self.call("POST", "/url", {"url": url})

    def size(self, width, height, media=""):
        """Exactly this viewport: a window has a smallest width, a phone has not. No media: as it is."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.emulate("setDeviceMetricsOverride", screen)
        self.emulate("setEmulatedMedia", {"media": media})

    def emulate(self, command, parameters):
        self.call("POST", "/goog/cdp/execute", {"cmd": f"Emulation.{command}", "params": parameters})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def logs(self):
        """What the page said, and what was asked of the network, since the last call."""
        said = [it["message"] for it in self.call("POST", "/se/log", {"type": "browser"})]
        events = [json.loads(it["message"])["message"] for it in self.call("POST", "/se/log", {"type": "performance"})]
        asked = [
            it["params"]["request"]["url"] for it in events if it["method"] == "Network.requestWillBeSent"
        ]
        return said, asked

    def picture(self):
        return base64.b64decode(self.call("GET", "/screenshot"))

    def print(self):
        """A4, with what does not fit left as wide as it is."""
        page = {"page": {"width": 21.0, "height": 29.7}, "shrinkToFit": False, "background": False}
        return base64.b64decode(self.call("POST", "/print", page))

    def quit(self):
        with contextlib.suppress(CannotTry):
            self.call("DELETE", "")
