#!/usr/bin/env python3
"""Sends every review of tests/data to a running guard with curl and compares the answers.

    tests/curl/run.py [--self-test] [--list] [TEXT ...]

TEXT limits the run to cases whose name contains one of the words. Needs Python 3 and curl.

Without GUARD_URL it makes certificates with the binary, starts one guard per state on loopback
and stops them at the end. Environment:
  GUARD_BIN    the binary; default: the newer of target/debug and target/release
  GUARD_URL    https://HOST:PORT of a guard that runs already
  GUARD_CA     the CA file for GUARD_URL; default: what curl trusts
  GUARD_STATE  the state that the guard behind GUARD_URL has; default v1beta1
Exit code: 0 all as expected, 1 something else, 2 it could not be tried.
"""

import argparse
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import compare
import selftest

TESTS = pathlib.Path(__file__).resolve().parent.parent
DATA = TESTS / "data"
START_SECONDS = 30


class CannotTry(Exception):
    """The run says nothing about the guard."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--self-test", action="store_true", help="only prove that the comparison can fail")
    parser.add_argument("--list", action="store_true", help="only print the cases")
    parser.add_argument("text", nargs="*", help="only cases whose name contains one of these")
    options = parser.parse_args()
    if options.self_test:
        failures, checks = selftest.run()
        return report(checks, failures)
    url = os.environ.get("GUARD_URL")
    checks = [c for c in load() if not options.text or any(t in c["name"] for t in options.text)]
    if url:
        state = os.environ.get("GUARD_STATE", "v1beta1")
        checks = [c for c in checks if c["state"] == state]
    if options.list:
        print("\n".join(f"{c['name']} {c['state']} {c['path']}: {c['about']}" for c in checks))
        return 0
    if not checks:
        raise CannotTry("no case matches")
    if url:
        return report(len(checks), ask_all(checks, lambda _: url.rstrip("/"), os.environ.get("GUARD_CA")))
    # A stop by the test runner must still stop the guards.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    with tempfile.TemporaryDirectory(prefix="metal3-guard-") as scratch:
        binary = find_binary()
        make_certificates(binary, scratch)
        guards = {}
        try:
            for state in sorted({c["state"] for c in checks}):
                guards[state] = Guard(binary, state, scratch)
            for guard in guards.values():
                guard.wait_ready()
            failures = ask_all(checks, lambda c: guards[c["state"]].url, f"{scratch}/ca.crt")
        finally:
            for guard in guards.values():
                guard.stop()
    return report(len(checks), failures)


def report(checks, failures):
    print("\n".join(failures + [f"{checks} cases, {len({f.split(': ', 1)[0] for f in failures})} failed"]))
    return 1 if failures else 0


def load():
    """One check for each path that a review is asked on, in the order of their names."""
    checks = []
    for folder in sorted((DATA / "reviews").iterdir()):
        case = json.loads((folder / "expect.json").read_text())
        for extra in [case, *case.get("more", [])]:
            check = {"state": case["state"], "about": case["about"], "http": 200, **extra}
            check["name"] = f"{folder.name}{check['path']}" + ("" if check["state"] == case["state"] else f"@{check['state']}")
            check["file"] = folder / "review.json"
            checks.append(check)
    for case in json.loads((DATA / "malformed" / "expect.json").read_text()):
        checks.append({**case, "name": f"malformed/{case['file']}", "file": DATA / "malformed" / case["file"]})
    return checks


def ask_all(checks, url_of, ca):
    failures = []
    for check in checks:
        body = check["file"].read_bytes()
        try:
            review = json.loads(body)
        except (ValueError, RecursionError):
            review = None
        found = ask_one(check, review, body, url_of(check) + check["path"], ca)
        failures += [f"{check['name']}: {line}" for line in found]
    return failures


def ask_one(check, review, body, url, ca):
    status, kind, answer = post(url, body, ca)
    found = compare.problems(check, review, status, kind, answer)
    if found or "patched" not in check:
        return found
    # The API server may call a mutating hook again with its own output: then there is nothing left.
    again = json.loads(body)
    again["request"]["object"] = compare.patched_object(review, json.loads(answer)["response"])
    status, kind, answer = post(url, json.dumps(again).encode(), ca)
    expect = {"path": check["path"], "http": 200, "allowed": True}
    return [f"fed back, {line}" for line in compare.problems(expect, again, status, kind, answer)]


def post(url, body, ca):
    """Returns status, content type and body. A failing curl is status 0 with its message as body."""
    command = ["curl", "--silent", "--show-error", "--max-time", "10", "--output", "-"]
    command += ["--write-out", "%{stderr}%{http_code} %{content_type}", "--data-binary", "@-"]
    command += ["--header", "Content-Type: application/json"]
    command += ["--cacert", ca] if ca else []
    done = subprocess.run([*command, f"{url}?timeout=5s"], input=body, capture_output=True, check=False)
    text = done.stderr.decode(errors="replace")
    if done.returncode != 0:
        return 0, "", f"curl: {text}".encode()
    status, _, kind = text.partition(" ")
    return int(status), kind, done.stdout


def find_binary():
    if given := os.environ.get("GUARD_BIN"):
        return given
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TESTS.parent / "target"))
    built = [p for p in (target / kind / "metal3-guard" for kind in ("debug", "release")) if p.exists()]
    if not built:
        raise CannotTry(f"no binary under {target}; run cargo build or set GUARD_BIN")
    return str(max(built, key=lambda path: path.stat().st_mtime))


def make_certificates(binary, scratch):
    command = [binary, "certs", "--out", scratch, "--dns", "localhost", "--ip", "127.0.0.1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotTry(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise CannotTry(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")


class Guard:
    """One `metal3-guard serve` on two free loopback ports."""

    def __init__(self, binary, state, scratch):
        self.state, self.log, self.lines, self.url = state, [], queue.Queue(), ""
        command = [binary, "serve", "--state", str(DATA / "states" / state), "--log", "json"]
        command += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        command += ["--tls-cert", f"{scratch}/tls.crt", "--tls-key", f"{scratch}/tls.key"]
        # Settings of the caller's shell must not change what is tested.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("METAL3_GUARD_")}
        self.child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, errors="replace", env=environment,
        )
        # The pipe is read to the end, or a full one would block the guard.
        threading.Thread(target=self._read, daemon=True).start()

    def wait_ready(self):
        deadline, found = time.monotonic() + START_SECONDS, {}
        while len(found) < 2:
            line = self._next_line(deadline)
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            entry = {**entry, **(entry.get("fields") or {})}
            if entry.get("message") == "listening":
                found[entry["what"]] = entry["address"]
        self.url = f"https://{found['webhooks']}"
        ready = ["curl", "--silent", "--output", os.devnull, "--max-time", "5"]
        ready += ["--write-out", "%{http_code}", f"http://{found['admin']}/readyz"]
        while subprocess.run(ready, capture_output=True, check=False).stdout != b"200":
            if time.monotonic() > deadline or self.child.poll() is not None:
                raise self._failure("does not become ready")
            time.sleep(0.1)

    def stop(self):
        """A test does not need the drain, so the guard gets little time for it."""
        self.child.terminate()
        try:
            self.child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def _read(self):
        for line in self.child.stderr:
            self.log = [*self.log, line][-20:]
            if '"listening"' in line:
                self.lines.put(line)
        self.lines.put(None)

    def _next_line(self, deadline):
        try:
            line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            line = None
        if line is None:
            raise self._failure("does not say where it listens")
        return line

    def _failure(self, what):
        code = self.child.poll()
        ended = "" if code is None else f" (ended with {code})"
        return CannotTry(f"the guard for state {self.state} {what}{ended}; its last lines:\n{''.join(self.log)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CannotTry as error:
        print(error, file=sys.stderr)
        sys.exit(2)
