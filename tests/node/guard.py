"""The guard in a cluster, installed as the README says."""

import datetime
import json
import pathlib
import subprocess
import tempfile
import time

import calls
import node
from cluster import eventually, expect

NAMESPACE = "metal3-guard-system"
CHART = node.ROOT / "manifests" / "chart"
OVERLAY = node.ROOT / "manifests" / "overlays" / "self-managed"
NAMESPACE_FILE = node.ROOT / "manifests" / "base" / "account" / "namespace.yaml"
CRDS = [node.ROOT / "tests" / "data" / "crds" / f"{name}.yaml" for name in ("v1beta1", "others")]
CONFIGURATIONS = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
REPLICAS = 2
OBJECTS = "guarded"  # the namespace of what it guards


class Guard:
    def __init__(self, target, helm, image):
        self.target, self.helm_program, self.image = target, helm, image

    def helm(self, *arguments):
        kubeconfig = self.target.kubectl_line[1]
        line = [self.helm_program, *arguments, "-n", NAMESPACE, kubeconfig]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=300)
        if ran.returncode != 0:
            raise node.Failed(f"helm {' '.join(arguments)}: {ran.stderr.strip()}")
        return ran.stdout

    def settings(self, *more):
        repository, _, tag = self.image.rpartition(":")
        values = [f"image.repository={repository}", f"image.tag={tag}", *more]
        return [part for value in values for part in ("--set", value)]

    def installed(self):
        """Brings the guard up, if it is not there, and what the calls are about."""
        if not self.target.get("deployment", "metal3-guard", "-n", NAMESPACE):
            self.install()
        self.kinds()
        self.ready()
        if not self.target.get("metal3datatemplate", "ending", "-n", OBJECTS):
            calls.prepare(self.target, OBJECTS)
        return self

    def install(self):
        """Returns how many seconds it took until it was ready."""
        self.target.kubectl("apply", "-f", str(NAMESPACE_FILE))
        start = time.monotonic()
        self.helm("install", "metal3-guard", str(CHART), *self.settings())
        self.rolled_out()
        return time.monotonic() - start

    def install_kustomized(self):
        """Returns how many seconds it took until it was ready."""
        folder = OVERLAY.relative_to(node.ROOT)
        repository, _, tag = self.image.rpartition(":")
        with tempfile.TemporaryDirectory(dir=node.ROOT / "manifests" / "overlays") as own:
            # What `kustomize edit set image` does, in an overlay over the shipped one.
            image = {"name": "metal3-guard", "newName": repository, "newTag": tag}
            own = pathlib.Path(own)
            own.joinpath("kustomization.yaml").write_text(
                json.dumps({"resources": [f"../{folder.name}"], "images": [image]}))  # fmt: skip
            start = time.monotonic()
            self.target.kubectl("apply", "--server-side", "-k", str(own))
        self.rolled_out()
        return time.monotonic() - start

    def remove_kustomized(self):
        self.target.kubectl("delete", "--ignore-not-found", CONFIGURATIONS, "metal3-guard")
        self.target.kubectl("delete", "--ignore-not-found", "-k", str(OVERLAY))

    def upgrade(self, *settings):
        self.helm("upgrade", "metal3-guard", str(CHART), *self.settings(*settings))
        self.rolled_out()

    def kinds(self):
        """Installs the kinds of Metal3."""
        for crds in CRDS:
            self.target.kubectl("apply", "--server-side", "-f", str(crds))
        self.target.kubectl("wait", "--for=condition=Established", "--timeout=60s",
                            *(f"crd/{it}" for it in self.names_of_kinds()))  # fmt: skip

    def remove_kinds(self):
        """The kinds again, and what there is of them."""
        if self.target.get("namespace", OBJECTS):
            calls.remove(self.target, OBJECTS)
        for crds in CRDS:
            self.target.kubectl("delete", "--ignore-not-found", "-f", str(crds))

    @staticmethod
    def names_of_kinds():
        lines = [line for crds in CRDS for line in crds.read_text().splitlines()]
        return [line.split()[1] for line in lines if line.startswith("  name: ")]

    def rolled_out(self, seconds=180):
        status = ["rollout", "status", "deployment/metal3-guard", "-n", NAMESPACE]
        self.target.kubectl(*status, f"--timeout={seconds}s")

    def ready(self):
        """Rolled out, and what must be refused is, by each webhook that a call goes through."""
        self.rolled_out()
        if self.target.get("metal3datatemplate", "ending", "-n", OBJECTS):
            self.verdicts()

    def verdicts(self, seconds=60):
        """Waits until every call gets the right verdict."""

        def right():
            outcomes = [it.outcome(self.target, self.target.connection()) for it in calls.all_calls(OBJECTS)]
            wrong = [said for outcome, said in outcomes if outcome != "ok"]
            if wrong:
                raise node.Failed(*wrong)
            return True

        return eventually("the right verdicts", right, seconds)

    def pods(self):
        found = self.target.get("pods", "-n", NAMESPACE, "-lapp.kubernetes.io/name=metal3-guard")
        return [it for it in found["items"] if "deletionTimestamp" not in it["metadata"]]

    def ready_pods(self):
        return [it for it in self.pods() if is_ready(it)]

    def started(self):
        """Of each ready pod: its name, seconds from the start of its container to ready, bytes in use.
        None as long as the kubelet has not looked at one."""
        found = []
        for pod in self.ready_pods():
            name, node_name = pod["metadata"]["name"], pod["spec"]["nodeName"]
            begin = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
            end = next(it["lastTransitionTime"] for it in pod["status"]["conditions"] if it["type"] == "Ready")
            raw = self.target.kubectl("get", "--raw", f"/api/v1/nodes/{node_name}/proxy/stats/summary")
            used = [it.get("memory", {}) for it in json.loads(raw)["pods"] if it["podRef"]["name"] == name]
            # Not a figure from before it was ready.
            if not used or not used[0].get("workingSetBytes") or at(used[0]["time"]) <= at(end):
                return None
            found.append((name, (at(end) - at(begin)).total_seconds(), used[0]["workingSetBytes"]))
        return found or None

    def scale(self, replicas):
        self.target.kubectl("scale", "deployment/metal3-guard", "-n", NAMESPACE, f"--replicas={replicas}")

    def restart(self):
        self.target.kubectl("rollout", "restart", "deployment/metal3-guard", "-n", NAMESPACE)
        self.rolled_out()

    def nothing_left(self):
        """Fails if anything of it is left outside of its namespace, or its Secrets in it."""
        kinds = f"{CONFIGURATIONS},clusterroles,clusterrolebindings"
        left = self.target.kubectl("get", kinds, "-oname").split()
        left = [it for it in left if "metal3-guard" in it]
        own = "deployments,services,secrets,serviceaccounts,roles,rolebindings,poddisruptionbudgets"
        left += [it for it in self.target.kubectl("get", own, "-n", NAMESPACE, "-oname").split() if "metal3-guard" in it]
        expect(not left, f"left behind: {', '.join(left)}")
        return True

    def logs(self):
        select = ["logs", "-n", NAMESPACE, "-lapp.kubernetes.io/name=metal3-guard", "--tail=5", "--prefix"]
        return self.target.try_kubectl(*select).stdout


def is_ready(pod):
    conditions = pod["status"].get("conditions", [])
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)


def at(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
