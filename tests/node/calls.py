"""Load: calls that must get the right verdict from a guard, over and over, each tried once.

Each call is a dry run whose answer is known. There are three outcomes:

  ok           the verdict, and the words, of a guard
  unanswered   no guard was reached: the API server says so, or goes on without (policy Ignore)
  wrong        anything else

A scenario says whether calls may go unanswered in it. If not, each of them is a failed one.
"""

import collections
import http.client
import itertools
import threading
import time

import cluster

# Kept from ending by a finalizer that the guard knows nothing of.
HOLD = "node.test/hold"


class Call:
    def __init__(self, method, path, body, right, unanswered):
        self.method, self.path, self.body = method, path, body
        self.right, self.unanswered = right, unanswered

    def outcome(self, target, connection):
        try:
            status, answer = target.call(self.method, self.path, self.body, connection)
        except (OSError, http.client.HTTPException) as error:
            # The connection to the API server: with no scenario's leave, and not the guard's doing.
            connection.close()
            return "wrong", f"{self.method} {self.path}: {error!r}"
        message = answer.get("message", "")
        if self.right(status, message):
            return "ok", ""
        said = f"{self.method} {self.path}: {status} {message}"
        return ("unanswered" if self.unanswered(status, message) else "wrong"), said


def not_reached(status, message):
    return status == 500 and "failed calling webhook" in message


def prepare(target, namespace):
    """What the calls are about: a free template, one that a machine uses, one on its way out."""
    target.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        cluster.metal3("Metal3DataTemplate", namespace, "free", {"clusterName": "prod"}),
        cluster.metal3("Metal3DataTemplate", namespace, "held", {"clusterName": "prod"}),
        cluster.metal3("Metal3DataTemplate", namespace, "ending", {"clusterName": "prod"}, finalizers=[HOLD]),
        machine(namespace, "worker", "held"),
    )
    target.kubectl("delete", "metal3datatemplate", "ending", "-n", namespace, "--wait=false")


def machine(namespace, name, template):
    spec = {"dataTemplate": {"name": template}, "image": {"url": "http://node.test/image", "checksum": "00"}}
    return cluster.metal3("Metal3Machine", namespace, name, spec)


def make_many(target, namespace, template, count, workers=8):
    """Makes so many machines that use a template, through connections of their own."""
    failed = []

    def make(numbers):
        connection = target.connection()
        for number in numbers:
            body = machine(namespace, f"machine-{number}", template)
            status, answer = target.call("POST", cluster.path("metal3machines", namespace), body, connection)
            if status != 201:
                failed.append(f"machine {number}: {status} {answer.get('message')}")
                break
        connection.close()

    threads = [threading.Thread(target=make, args=[range(it, count, workers)]) for it in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cluster.expect(not failed, *failed)


def remove(target, namespace):
    patch = '{"metadata":{"finalizers":null}}'
    target.kubectl("patch", "metal3datatemplate", "ending", "-n", namespace, "--type=merge", "-p", patch)
    target.kubectl("delete", "namespace", namespace)


def all_calls(namespace):
    templates = "metal3datatemplates"
    claim = cluster.metal3("Metal3DataClaim", namespace, "late", {"template": {"name": "ending"}})
    return [
        # failurePolicy Fail
        Call("DELETE", cluster.path(templates, namespace, "free", dry=True), None,
             lambda status, _: status == 200, not_reached),
        Call("DELETE", cluster.path(templates, namespace, "held", dry=True), None,
             lambda status, message: status == 403 and "Metal3Machine/worker" in message, not_reached),
        # failurePolicy Ignore
        Call("POST", cluster.path("metal3dataclaims", namespace, dry=True), claim,
             lambda status, message: status == 403 and "ending" in message,
             lambda status, _: status == 201),
    ]  # fmt: skip


class Load:
    """Runs calls as long as its block does, `rate` a second: what is late is caught up on, as far as
    so many workers can."""

    def __init__(self, target, namespace, rate=60, workers=4):
        self.target, self.calls = target, all_calls(namespace)
        self.rate, self.workers, self.numbers = rate, workers, itertools.count()
        self.outcomes, self.said = collections.Counter(), collections.Counter()
        self.lock, self.over = threading.Lock(), threading.Event()

    def __enter__(self):
        self.start = time.monotonic()
        self.threads = [threading.Thread(target=self.work) for _ in range(self.workers)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def work(self):
        connection = self.target.connection()
        for number in self.numbers:
            if self.over.wait(self.start + number / self.rate - time.monotonic()):
                break
            outcome, said = self.calls[number % len(self.calls)].outcome(self.target, connection)
            with self.lock:
                self.outcomes[outcome] += 1
                if said:
                    self.said[f"{outcome}: {said}"] += 1
        connection.close()

    def made(self):
        return sum(self.outcomes.values())

    def failed(self, unanswered_are_fine):
        return self.outcomes["wrong"] + (0 if unanswered_are_fine else self.outcomes["unanswered"])

    def count(self, outcome):
        with self.lock:
            return self.outcomes[outcome]
