"""What is tried with a guard that runs in a cluster. Each function that `scenario` marks is one, run in
this order; what it says of itself is what must hold.

Under `load(...)` every call is counted. Where it says so, calls may go unanswered for a while, as
failurePolicy means it to be; nowhere may one get a wrong verdict.
"""

import contextlib
import subprocess
import time

import cluster
from calls import HOLD, Load, machine, make_many
from cluster import eventually, expect, metal3
from guard import CONFIGURATIONS, NAMESPACE, OBJECTS, REPLICAS
from node import Failed

SCENARIOS = []
TEMPLATES = "metal3datatemplates"
TEMPLATE_FINALIZER = "metal3datatemplate.infrastructure.cluster.x-k8s.io"
MERGE = "application/merge-patch+json"


def scenario(function):
    SCENARIOS.append(function)
    return function


class Run:
    """What the scenarios work with, and what they have counted."""

    def __init__(self, target, guard, restarts, on_node):
        self.target, self.guard, self.restarts, self.on_node = target, guard, restarts, on_node
        self.made = self.failed = self.unanswered = 0
        self.notes = []

    @contextlib.contextmanager
    def load(self, unanswered_are_fine=False, rate=60):
        load = Load(self.target, OBJECTS, rate, workers=max(4, rate // 10))
        try:
            with load:
                yield load
        finally:
            failed = load.failed(unanswered_are_fine)
            self.made += load.made()
            self.failed += failed
            self.unanswered += load.outcomes["unanswered"] if unanswered_are_fine else 0
        said = [f"{count} x {text}" for text, count in load.said.most_common(5)]
        expect(failed == 0, f"{failed} of {load.made()} calls failed", *said)
        expect(load.outcomes["ok"] > 0, "no call was answered at all")

    def kill(self, program):
        """Kills one process of that name on the node, at once."""
        if not self.on_node:
            raise NotHere("ON_NODE does not say how to run a command on a node of this cluster")
        subprocess.run([*self.on_node, "sh", "-c", f"kill -KILL $(pidof -s {program})"], check=True)

    def refused(self, method, where, body, words, kind="application/json"):
        """One call that the guard has to refuse, in these words."""
        status, answer = self.target.call(method, where, body, kind=kind)
        self.made += 1
        said = str(answer.get("message"))
        right = status in (403, 422) and all(word in said for word in words)
        self.failed += not right
        expect(right, f"{method} {where} was to be refused with {words}, but got {status}: {said}")


class NotHere(Exception):
    """Why a scenario cannot be run in this cluster."""


@scenario
def image(run):
    """The image starts where nothing but it is there, as the user that it names, in a pod that
    PodSecurity calls restricted."""
    space = "guard-image"
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    run.target.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": level}})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "once", "namespace": space},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "guard",
                    "image": run.guard.image,
                    "imagePullPolicy": "IfNotPresent",
                    "args": ["--version"],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }
    eventually("the account of the namespace", lambda: run.target.get("sa", "default", "-n", space))
    run.target.apply(pod)
    try:
        eventually("the pod to end", lambda: ended(run.target.get("pod", "once", "-n", space)))
        said = run.target.kubectl("logs", "once", "-n", space)
        expect(said.startswith("metal3-guard "), f"it printed {said!r}")
    finally:
        run.target.kubectl("delete", "namespace", space)


def ended(pod):
    phase = pod["status"].get("phase")
    if phase == "Failed":
        raise Failed(f"the pod failed: {pod['status']}")
    return phase == "Succeeded"


@scenario
def kinds_after_the_guard(run):
    """Installed before the kinds of Metal3 are, the guard gets ready, and guards them once they are."""
    if run.target.get("crd", "metal3datatemplates.infrastructure.cluster.x-k8s.io"):
        raise NotHere("the kinds are there already")
    seconds = run.guard.install()
    run.notes.append(f"from `helm install` to ready: {seconds:.1f} s")
    run.guard.installed()
    run.guard.verdicts()


@scenario
def rules(run):
    """Every rule answers through the Service."""
    run.guard.installed()
    space = "rules"
    run.target.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}},
        metal3("Metal3DataTemplate", space, "used", {"clusterName": "prod"}),
        machine(space, "worker", "used"),
        metal3("Metal3DataTemplate", space, "moved", {"clusterName": "prod"},
               annotations={"clusterctl.cluster.x-k8s.io/delete-for-move": ""}),
        metal3("Metal3DataTemplate", space, "ending", {"clusterName": "prod"},
               finalizers=[HOLD, TEMPLATE_FINALIZER]),
        metal3("Metal3Data", space, "ending-0",
               {"index": 0, "template": {"name": "ending"}, "claim": {"name": "worker"}},
               annotations={"cluster.x-k8s.io/paused": ""}),
    )  # fmt: skip
    template = lambda name, part="": cluster.path(TEMPLATES, space, name, part)
    status, answer = run.target.call("DELETE", template("ending"))
    expect(status == 200, f"the deletion of a template that no machine uses: {status} {answer}")

    run.refused("DELETE", template("used"), None, ["Metal3Machine/worker"])
    run.refused("POST", cluster.path("metal3machines", space), machine(space, "late", "ending"), ["ending"])
    added = {"metadata": {"finalizers": [HOLD, TEMPLATE_FINALIZER, "node.test/late"]}}
    run.refused("PATCH", template("ending"), added, ["node.test/late", "added by"], MERGE)
    run.refused("PATCH", template("moved"), added, ["node.test/late", "moved away"], MERGE)
    early = {"metadata": {"finalizers": [HOLD]}}
    run.refused("PATCH", template("ending"), early, ["Metal3Data/ending-0"], MERGE)

    stale = {"status": {"indexes": {"gone": 7}}}
    status, answer = run.target.call("PATCH", template("used", "status"), stale, kind=MERGE)
    run.made += 1
    pruned = status == 200 and not answer.get("status", {}).get("indexes")
    run.failed += not pruned
    expect(pruned, f"an index of no claim was to be left out, but got {status}: {answer}")

    # All of the collection: one that is refused does not keep the others.
    run.refused("DELETE", cluster.path(TEMPLATES, space), None, ["Metal3Machine/worker"])

    free(run, space)


def free(run, space):
    """Takes a namespace away, whatever still holds on to what is in it."""
    kinds = f"metal3machines,metal3datas,{TEMPLATES}"
    run.target.kubectl("delete", "metal3machines", "--all", "-n", space)
    run.target.kubectl("delete", "metal3datas", "--all", "-n", space)
    for name in run.target.kubectl("get", kinds, "-n", space, "-oname").split():
        none = '{"metadata":{"finalizers":null}}'
        run.target.kubectl("patch", name, "-n", space, "--type=merge", "-p", none)
    run.target.kubectl("delete", "namespace", space, "--timeout=120s")


@scenario
def many_machines(run):
    """With 10 000 machines a guard gets ready and answers as before; how long it takes, and its memory."""
    run.guard.installed()
    space, count = "many", 10_000
    run.target.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}},
        metal3("Metal3DataTemplate", space, "all", {"clusterName": "prod"}),
    )
    start = time.monotonic()
    make_many(run.target, space, "all", count)
    run.notes.append(f"{count} machines made in {time.monotonic() - start:.0f} s")
    start = time.monotonic()
    run.guard.restart()
    seconds = time.monotonic() - start
    run.notes.append(f"a rolling restart with {count} machines: {seconds:.1f} s for {REPLICAS} guards")
    run.guard.verdicts()
    run.refused("DELETE", cluster.path(TEMPLATES, space, "all"), None, [f"in use by {count} Metal3Machines"])
    for name, ready, memory in eventually("the kubelet's figures", run.guard.started):
        run.notes.append(f"{name}: ready {ready:.0f} s after its container started, {memory / 2**20:.1f} MiB in use")
    # The template is refused until the machines are gone, and goes then.
    run.target.kubectl("delete", "namespace", space, "--wait=false")
    start = time.monotonic()
    eventually("the namespace to be gone", lambda: not run.target.get("namespace", space), 300, pause=2)
    run.notes.append(f"its namespace gone after {time.monotonic() - start:.0f} s")


@scenario
def rolling_restarts(run):
    """No call fails while all pods are replaced, again and again."""
    run.guard.installed()
    with run.load():
        for _ in range(run.restarts):
            run.guard.restart()
    run.notes.append(f"{run.restarts} rolling restarts")


@scenario
def pod_killed(run):
    """After a guard is gone without a word, the other goes on; no verdict is ever wrong."""
    run.guard.installed()
    with run.load(unanswered_are_fine=True) as load:
        eventually("some calls", lambda: load.count("ok") > 50)
        for _ in range(3):
            run.kill("metal3-guard")
            eventually("a pod that is not ready", lambda: len(run.guard.ready_pods()) < REPLICAS, pause=0.1)
            eventually("all pods ready", lambda: len(run.guard.ready_pods()) == REPLICAS)
        before, good = load.count("unanswered"), load.count("ok")
        eventually("100 calls more", lambda: load.count("ok") > good + 100)
        expect(load.count("unanswered") == before, "calls go unanswered still")
    run.notes.append(f"unanswered around the ends of 3 guards that were killed: {load.outcomes['unanswered']}")


@scenario
def eviction(run):
    """A pod can be evicted and no call fails; the last one that is ready cannot be."""
    run.guard.installed()
    budget = ["pdb", "metal3-guard", "-n", NAMESPACE]
    spare = lambda: run.target.get(*budget)["status"].get("disruptionsAllowed") == REPLICAS - 1
    eventually("the budget to allow one", spare)
    with run.load():
        first, last = (it["metadata"]["name"] for it in run.guard.ready_pods())
        status, answer = evict(run, first)
        expect(status == 201, f"the eviction of one of two: {status} {answer}")
        status, answer = evict(run, last)
        expect(status == 429, f"the eviction of the other: {status} {answer}")
        run.guard.rolled_out()
        eventually("two ready pods", lambda: len(run.guard.ready_pods()) == REPLICAS)


def evict(run, pod):
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    return run.target.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", eviction)


@scenario
def rotation(run):
    """Three new CAs, one after the other, while 200 calls a second come: none fails."""
    run.guard.installed()
    # How long a new CA is only trusted, and an old one still is. Minutes, unless one has to watch.
    run.guard.upgrade("extraArgs={--certs-dwell=8s}")
    ask = ["annotate", "secret", "metal3-guard-tls", "-n", NAMESPACE, "--overwrite", "metal3-guard.io/rotate=ca"]
    seen, start = [bundles(run)], time.monotonic()
    with run.load(rate=200) as load:
        for _ in range(3):
            run.target.kubectl(*ask)
            eventually("nothing but another CA to be trusted", lambda: rotated(run, seen))
            seen.append(bundles(run))
    seconds = time.monotonic() - start
    run.notes.append(f"3 CA rotations in {seconds:.0f} s, {load.made() / seconds:.0f} calls a second")
    run.guard.upgrade()


def bundles(run):
    found = run.target.get(CONFIGURATIONS)["items"]
    return {cluster.decode(hook["clientConfig"].get("caBundle", "")) for it in found for hook in it["webhooks"]}


def rotated(run, seen):
    """Whether all webhooks trust one and the same CA, which none did before."""
    now = bundles(run)
    return len(now) == 1 and now not in seen and "".join(now).count("BEGIN CERTIFICATE") == 1


@scenario
def api_server_restarted(run):
    """When the API server comes back, so does the guard, with nobody's help."""
    run.guard.installed()
    before = {it["metadata"]["uid"] for it in run.guard.ready_pods()}
    started = api_started(run)
    run.kill("kube-apiserver")
    eventually("another API server", lambda: api_started(run) != started)
    run.guard.verdicts(30)
    eventually("all guards ready", lambda: len(run.guard.ready_pods()) == REPLICAS)
    after = {it["metadata"]["uid"]: it for it in run.guard.ready_pods()}
    expect(before == set(after), "the pods were replaced")
    again = [it["status"]["containerStatuses"][0]["restartCount"] for it in after.values()]
    expect(not any(again), f"containers were restarted: {again}")


def api_started(run):
    metrics = run.target.kubectl("get", "--raw", "/metrics").splitlines()
    return next(line for line in metrics if line.startswith("process_start_time_seconds "))


@scenario
def scaled_to_none(run):
    """Without a guard no template can be deleted, and all else goes on; with one, all is as before."""
    run.guard.installed()
    run.guard.scale(0)
    eventually("no pods", lambda: not run.guard.pods())
    delete = ("DELETE", cluster.path(TEMPLATES, OBJECTS, "free", dry=True))

    def closed():
        status, answer = run.target.call(*delete)
        return status == 500 and 'failed calling webhook "deletion.metal3-guard.io"' in answer["message"]

    eventually("deletions to be refused", closed, 30)
    claim = metal3("Metal3DataClaim", OBJECTS, "late", {"template": {"name": "ending"}})
    status, answer = run.target.call("POST", cluster.path("metal3dataclaims", OBJECTS, dry=True), claim)
    expect(status == 201, f"a claim while no guard is there: {status} {answer}")
    start = time.monotonic()
    run.guard.scale(REPLICAS)
    run.guard.verdicts()
    run.notes.append(f"from no guard to the right verdicts: {time.monotonic() - start:.1f} s")


@scenario
def upgraded(run):
    """An upgrade that replaces the pods, and the way back, fail no call; `helm test` is content."""
    run.guard.installed()
    with run.load():
        run.guard.upgrade("log.level=debug")
        run.guard.helm("rollback", "metal3-guard", "--wait")
        run.guard.rolled_out()
    run.guard.helm("test", "metal3-guard")


@scenario
def uninstalled(run):
    """`helm uninstall` leaves nothing, and from then on nobody asks for a guard."""
    run.guard.installed()
    run.guard.helm("uninstall", "metal3-guard")
    free_to_go(run)
    eventually("nothing to be left", run.guard.nothing_left)


@scenario
def namespace_deleted(run):
    """Its namespace can be deleted under it: that does not hang, nor does anything after it."""
    run.guard.installed()
    run.target.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")
    start = time.monotonic()
    eventually("the webhooks to be gone, too", lambda: free_to_go(run), 60)
    seconds = time.monotonic() - start
    run.notes.append(f"from the end of its namespace to the first deletion: {seconds:.1f} s")
    eventually("nothing to be left", run.guard.nothing_left)


@scenario
def kustomized(run):
    """The other way to install it, by kustomize: the same verdicts, and it can be removed again, also by
    deleting nothing but its namespace."""
    run.guard.kinds()
    for remove in (run.guard.remove_kustomized, lambda: run.target.kubectl("delete", "namespace", NAMESPACE)):
        seconds = run.guard.install_kustomized()
        run.notes.append(f"from `kubectl apply -k` to ready: {seconds:.1f} s")
        run.guard.installed()
        run.guard.verdicts()
        remove()
        eventually("deletions to go through", lambda: free_to_go(run), 60)
    # Idle roles are what is left of it in the second case.
    run.guard.remove_kustomized()
    eventually("nothing to be left", run.guard.nothing_left)


def free_to_go(run):
    status, answer = run.target.call("DELETE", cluster.path(TEMPLATES, OBJECTS, "free", dry=True))
    expect(status == 200, f"a deletion after: {status} {answer}")
    return True
