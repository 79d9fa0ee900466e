"""What the commands of this folder share: where a node is kept, whether it runs, how it goes.

A node is a tree of processes in namespaces of its own, as a container engine makes them for kind:

    keeper.py       outside; ends the node when it is told to, or when its owner is gone
      unshare
        init.py     PID 1 of the node; starts containerd, kubelet and the control plane

All that it keeps lies in one folder. On the machine itself there is, while it runs, one pair of
network links, and one cgroup below the caller's own in each hierarchy.
"""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
BUILD = HERE.parent / "controlplane" / "build.sh"

NAME = "node"  # of the Node object and the host name; each node is alone in its cluster
PAUSE = "node.test/pause:1"
SERVICES = "10.96.0.0/16"
SERVICES_API = "10.96.0.1"  # the first of them: the Service `kubernetes`
SERVICES_DNS = "10.96.0.10"
PODS = "10.244.0.0/24"
API_PORT = 6443
INSTEAD = ["or run the tests against a cluster that is there: KUBECONFIG=FILE make e2e-node"]
# TEST-NET-3: never routed anywhere. Each node has four addresses of it, so 64 fit.
SLOTS = 64


class Failed(Exception):
    """What went wrong and what to do about it, for a person. Further arguments are more lines."""


def command(function):
    """Runs a command's main function; what it cannot do is said in plain words."""
    try:
        sys.exit(function())
    except Failed as error:
        print("node: " + "\n  ".join(error.args), file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def say(text):
    print(f"node: {text}", file=sys.stderr, flush=True)


class Folder:
    """Where one node is kept: NODE_DIR, or `node` in Cargo's target folder."""

    def __init__(self):
        self.path = pathlib.Path(os.environ.get("NODE_DIR") or TARGET / "node").resolve()
        self.pki, self.conf = self.path / "pki", self.path / "conf"
        self.logs, self.images = self.path / "logs", self.path / "images"
        self.var, self.state = self.path / "var", self.path / "state.json"
        self.kubeconfig = self.conf / "admin.conf"

    def make(self):
        for folder in [self.path, self.pki, self.conf, self.logs, self.images]:
            folder.mkdir(parents=True, exist_ok=True)
        self.pki.chmod(0o700)
        for folder in ["lib", "log"]:
            (self.var / folder).mkdir(parents=True, exist_ok=True)

    def lock(self):
        """One command at a time may start or end this node. Held until the process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = open(self.path / "lock", "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command that works on {self.path}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        return lock

    def alive(self):
        """The keeper holds this as long as it lives, however it ends."""
        return self.path / "alive"

    def runs(self):
        try:
            with open(self.alive()) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False

    def read(self):
        """What is known of the node: link, addresses, cgroups, process numbers."""
        try:
            return json.loads(self.state.read_text())
        except FileNotFoundError:
            return {}

    def write(self, state):
        new = self.state.with_suffix(".new")
        new.write_text(json.dumps(state, indent=1))
        new.rename(self.state)


def end(folder):
    """Ends the node, if it runs, and takes away all but the logs. Good after any kind of crash."""
    state = folder.read()
    if folder.runs():
        os.kill(state["keeper"], signal.SIGTERM)
        wait(lambda: not folder.runs(), 60, "the end of the node")
    clean(folder)


def clean(folder):
    """Takes away what a node that runs no more has left."""
    state = folder.read()
    if "link" in state:  # goes with the node's network namespace, if it came that far
        subprocess.run(["ip", "link", "delete", state["link"]], stderr=subprocess.DEVNULL)
    # A process is in its cgroups until it is reaped, a moment after its end.
    left = lambda: [it for it in state.get("cgroups", []) if not remove_cgroup(it)]
    wait(lambda: not left(), 30, "the end of all processes in " + ", ".join(left()))
    for path in [folder.pki, folder.conf, folder.images, folder.var]:
        shutil.rmtree(path, ignore_errors=True)
    for path in [folder.state, folder.alive()]:
        path.unlink(missing_ok=True)


def remove_cgroup(path):
    """Only empty ones can be removed, the innermost first. True when nothing is left."""
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            pass
    return not os.path.exists(path)


def wait(until, seconds, what, pause=0.1):
    """Asks again and again until something true comes back, and gives that back."""
    end = time.monotonic() + seconds
    while True:
        found = until()
        if found:
            return found
        if time.monotonic() > end:
            raise Failed(f"waited {seconds} s in vain for {what}")
        time.sleep(pause)


def enter(folder, arguments):
    """The command line that runs `arguments` in the running node."""
    if not folder.runs() or "init" not in folder.read():
        raise Failed(f"no node runs in {folder.path}", "start one: tests/node/up")
    state = folder.read()
    spaces = ["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"]
    path = ":".join([*state["binaries"], state["path"]])
    return ["nsenter", "-t", str(state["init"]), *spaces, "--", "env", f"PATH={path}", *arguments]
