"""A headless chromium, by the few words of the WebDriver protocol that are needed."""

import base64
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import time

# Nothing but the page is to be looked at, and the browser is to look for nothing by itself.
QUIET = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --force-device-scale-factor=1"""


class Browser:
    """One window. Used in a `with` block, after which nothing of it is left."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="metal3-guard-browser.")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        line = ["chromedriver", f"--port={self.port}", "--log-level=SEVERE"]
        self.driver = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.session = None
        try:
            self.wait()
            options = {"args": [*QUIET.split(), f"--user-data-dir={self.folder}"]}
            wanted = {"browserName": "chrome", "goog:chromeOptions": options}
            wanted["goog:loggingPrefs"] = {"browser": "ALL", "performance": "ALL"}
            made = self.send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self.session = f"/session/{made['sessionId']}"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            if self.session:
                self.send("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self):
        for _ in range(200):
            try:
                if self.send("GET", "/status")["ready"]:
                    return
            except OSError:
                time.sleep(0.1)
        raise OSError("chromedriver does not answer")

    def send(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        value = json.loads(answer.read())["value"]
        connection.close()
        if answer.status != 200:
            raise OSError(f"{method} {path}: {value['error']}: {value['message']}")
        return value

    def open(self, url, width):
        self.send("POST", f"{self.session}/window/rect", {"width": width, "height": 900})
        self.log("browser"), self.log("performance")  # what was before
        self.send("POST", f"{self.session}/url", {"url": url})

    def run(self, script):
        """What a script, run in the page, returns."""
        return self.send("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def log(self, kind):
        return self.send("POST", f"{self.session}/se/log", {"type": kind})

    def picture(self, most):
        """The page as PNG, from its top to so many pixels at most."""
        size = self.run("const it = document.documentElement; return [innerWidth, it.scrollHeight]")
        size[1] = min(size[1], most)
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        command = lambda name, given: self.send(
            "POST", f"{self.session}/goog/cdp/execute", {"cmd": name, "params": given}
        )
        command("Emulation.setDeviceMetricsOverride", metrics)
        taken = command("Page.captureScreenshot", {})
        command("Emulation.clearDeviceMetricsOverride", {})
        return base64.b64decode(taken["data"])

    def printed(self):
        """The page on paper, as PDF."""
        return base64.b64decode(self.send("POST", f"{self.session}/print", {"page": {"width": 21, "height": 29.7}}))
