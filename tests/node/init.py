#!/usr/bin/env python3
"""init.py STATE: PID 1 of the node. Makes its file systems, writes what its parts are configured
with, starts them, and starts again what ends: killing the API server restarts it.
"""

import json
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import time
import urllib.request

sys.dont_write_bytecode = True

import configs
import node

# What kubelet and kube-proxy want of settings that the whole machine shares. They write only what
# is not so, and are shown that it is so.
SHOWN = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main():
    folder = node.Folder()
    state = json.loads(pathlib.Path(sys.argv[1]).read_text())
    os.environ["PATH"] = ":".join([*state["binaries"], state["path"]])
    socket.sethostname(node.NAME)
    file_systems(folder)
    network(state)
    configs.write(folder, state)
    parts = [Part(folder, *it) for it in plan(folder, state)]
    while True:
        reap(parts)
        for part in parts:
            part.tend()
        time.sleep(0.1)


def file_systems(folder):
    """The default paths of all parts, without a trace on the machine."""
    mount("--make-rshared", "/")  # kubelet asks for it; the namespace keeps it inside
    mount("-t", "sysfs", "sysfs", "/sys")  # of the new network namespace
    mount("-t", "tmpfs", "-o", "mode=755", "cgroup", "/sys/fs/cgroup")
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        controllers = line.split(":", 2)[1]
        if controllers:
            path = pathlib.Path("/sys/fs/cgroup", controllers.removeprefix("name="))
            path.mkdir()
            options = f"none,{controllers}" if "=" in controllers else controllers
            mount("-t", "cgroup", "-o", options, "cgroup", path)
    mount("-t", "tmpfs", "-o", "mode=755", "run", "/run")
    for path in ["lib", "log"]:
        mount("--bind", folder.var / path, f"/var/{path}")
    for path in ["/run/lock", "/run/cni/net.d", "/var/log/pods"]:
        os.makedirs(path)
    for name, value in SHOWN.items():
        path = pathlib.Path("/proc/sys", name)
        if path.read_text().strip() != value:
            shown = pathlib.Path("/run/shown", name)
            shown.parent.mkdir(parents=True, exist_ok=True)
            shown.write_text(value + "\n")
            mount("--bind", shown, path)


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def network(state):
    """The link comes from outside. The default route leads nowhere; but without one, what is sent
    to the address of a Service is refused before a rule of kube-proxy could turn it elsewhere."""
    node.wait(lambda: os.path.exists("/sys/class/net/eth0"), 20, "eth0")
    for line in [
        "link set lo up",
        f"address add {state['address']}/30 dev eth0",
        "link set eth0 up",
        f"route add default via {state['outside']}",
    ]:
        subprocess.run(["ip", *line.split()], check=True)
    # In this namespace only: outside, nothing that pods send goes any further.
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")


def plan(folder, state):
    """Name, command line, and what has to be there first."""
    yield "etcd", configs.etcd(), lambda: True
    yield "containerd", ["containerd", "--config", folder.conf / "containerd.toml"], lambda: True
    yield "apiserver", configs.apiserver(folder, state), lambda: listens(configs.ETCD_PORT)
    for part in ["controller-manager", "scheduler"]:
        yield part, getattr(configs, part.replace("-", "_"))(folder), serves
    yield "kubelet", configs.kubelet(folder, state), once(lambda: serves() and imported(folder))
    yield "proxy", ["kube-proxy", "--config", folder.conf / "proxy.yaml"], serves


def once(ready):
    """Asked until it is true, and not again."""
    found = []

    def asked():
        if not found and ready():
            found.append(True)
        return bool(found)

    return asked


def listens(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def serves():
    """Whether the API server is ready."""
    unchecked = ssl._create_unverified_context()  # of this machine: who else should it be
    try:
        url = f"https://127.0.0.1:{node.API_PORT}/readyz"
        return urllib.request.urlopen(url, timeout=5, context=unchecked).status == 200
    except OSError:
        return False


def imported(folder):
    """Imports the images that are there before the first pod, that of `pause` above all: no
    registry is asked for it."""
    if not os.path.exists("/run/containerd/containerd.sock"):
        return False
    images = map(str, sorted(folder.images.glob("*.tar")))
    with open(folder.logs / "images.log", "a") as log:
        load = ["ctr", "-n", "k8s.io", "images", "import"]
        return all(subprocess.run([*load, it], stdout=log, stderr=log).returncode == 0 for it in images)


class Part:
    """A program that runs for as long as the node does."""

    def __init__(self, folder, name, arguments, ready):
        self.name, self.arguments, self.ready = name, list(map(str, arguments)), ready
        self.log = folder.logs / f"{name}.log"
        self.pid, self.started = None, 0.0

    def tend(self):
        """Starts it, if it does not run: a second after the last time at the earliest."""
        if self.pid or time.monotonic() - self.started < 1 or not self.ready():
            return
        self.started = time.monotonic()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        streams = [(os.POSIX_SPAWN_DUP2, log, stream) for stream in (1, 2)]
        self.pid = os.posix_spawnp(self.arguments[0], self.arguments, os.environ, file_actions=streams)
        os.close(log)
        print(f"{self.name}: started, {self.pid}", flush=True)


def reap(parts):
    """All that ends in the node and has no parent left is a child of this process."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        for part in parts:
            if part.pid == pid:
                part.pid = None
                print(f"{part.name}: ended, {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
