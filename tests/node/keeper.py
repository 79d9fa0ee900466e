#!/usr/bin/env python3
"""keeper.py OWNER..: starts the node of this folder (see node.Folder) and keeps it as long as all
the processes with these numbers live; then ends it and takes away what it has left.

SIGTERM ends the node. SIGUSR1 says that the first owner, which has started it, may go. If this
process itself is killed, the kernel kills the node, and the next `up` or `down` cleans up.
"""

import fcntl
import os
import select
import signal
import subprocess
import sys

sys.dont_write_bytecode = True

import node

SPACES = ["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"]


def main():
    folder = node.Folder()
    alive = open(folder.alive(), "a")
    fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    signals = signal_descriptor()
    owners = [pid_descriptor(int(it)) for it in sys.argv[1:]]
    try:
        process = start(folder)
        keep(process, owners, signals)
        process.kill()  # and with it, by --kill-child, PID 1 and so all of the node
        process.wait()
    finally:
        # Those that are told to end the node wait for `alive`: it goes last.
        node.clean(folder)


def signal_descriptor():
    """A descriptor that the number of each signal can be read from."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write)
    for number in [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD]:
        signal.signal(number, lambda *_: None)
    return read


def pid_descriptor(pid):
    """A descriptor that becomes readable when that process ends; None when it has already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def keep(process, owners, signals):
    """Returns when the node is to end, or has."""
    while None not in owners and process.poll() is None:
        ready, _, _ = select.select([*owners, signals], [], [])
        # Also when it is not among the ready ones: SIGUSR1 comes right before the first owner ends,
        # and both may be there at once.
        received = pending(signals)
        if signal.SIGTERM in received or signal.SIGINT in received:
            return print("told to end", flush=True)
        if signal.SIGUSR1 in received:
            owners = owners[1:]
        if set(ready) & set(owners):
            return print("an owner is gone", flush=True)
    print("an owner is gone, or the node has ended by itself", flush=True)


def pending(signals):
    try:
        return os.read(signals, 100)
    except BlockingIOError:
        return b""


def start(folder):
    """Starts the node's PID 1 and gives it its network link. Returns the `unshare` around it."""
    state = folder.read()
    state["cgroups"] = [f"{it}/metal3-guard-{state['link']}" for it in own_cgroups()]
    state["keeper"] = os.getpid()
    folder.write(state)
    for path in state["cgroups"]:
        make_cgroup(path)

    def enter_cgroups():
        for path in state["cgroups"]:
            with open(f"{path}/cgroup.procs", "w") as file:
                file.write("0")  # whoever writes it

    # A cgroup namespace makes the cgroups that a process is in when it is made the roots: what
    # kubelet makes lies below the caller's own cgroup, and is accounted for there.
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", *SPACES, "--fork", "--kill-child=KILL",
         "--mount-proc", "--propagation", "private", sys.executable, node.HERE / "init.py", folder.state],
        preexec_fn=enter_cgroups,
    )  # fmt: skip
    state["init"] = node.wait(lambda: child_of(process), 20, "the first process of the node")
    link = ["ip", "link", "set", state["peer"], "netns", str(state["init"]), "name", "eth0"]
    node.wait(lambda: subprocess.run(link).returncode == 0, 5, "the link into the node")
    folder.write(state)
    return process


def child_of(process):
    """The number of the init process, once `unshare` has become it."""
    if process.poll() is not None:
        raise node.Failed("the namespaces of a node cannot be made: see keeper.log")
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        child = file.read().strip()
    if not child:
        return None
    with open(f"/proc/{child}/cmdline") as file:
        return int(child) if "/init.py\0" in file.read() else None


def own_cgroups():
    """The folders of this process's own cgroups, one in each hierarchy of cgroup v1."""
    mounts = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, after = (part.split() for part in line.split(" - "))
            if after[0] == "cgroup":
                mounts.append((before[3], before[4], after[2].split(",")))
    folders = []
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for root, mounted, options in mounts:
                if controllers and set(controllers.split(",")) <= set(options):
                    inner = os.path.relpath(path, root)
                    folders.append(os.path.normpath(os.path.join(mounted, inner)))
                    break
    return folders


def make_cgroup(path):
    os.makedirs(path, exist_ok=True)
    # A new cpuset is empty, and takes no process before it has cores and memory.
    for name in ["cpuset.cpus", "cpuset.mems"]:
        if os.path.exists(f"{path}/{name}"):
            with open(f"{path}/../{name}") as parent, open(f"{path}/{name}", "w") as own:
                own.write(parent.read())


if __name__ == "__main__":
    node.command(main)
