"""What the page is made of: the states of tests/data, and two that are made to be hard on it."""

import json
import os
import pathlib
import subprocess

from driver import CannotTry

TESTS = pathlib.Path(__file__).resolve().parent.parent
RECORDED = sorted((TESTS / "data" / "states").iterdir())
GROUP = "infrastructure.cluster.x-k8s.io"
CLAIM, DATA, TEMPLATE = (f"{it}.{GROUP}" for it in ("metal3dataclaim", "metal3data", "metal3datatemplate"))
MARKUP = '"><img src=http://198.51.100.1/x onerror=alert(1)></svg><script>alert(2)</script>&amp;\'--><!--'


def all_states(scratch):
    """The name of each state, and the arguments that choose it."""
    found = {"demo": ["--demo"]}
    found |= {it.name: ["--state", str(it)] for it in RECORDED}
    for name, objects in {"hostile": hostile(), "many": many()}.items():
        folder = pathlib.Path(scratch, name)
        folder.mkdir()
        for number, it in enumerate(objects):
            (folder / f"{number:03}.json").write_text(json.dumps(it))
        found[name] = ["--state", str(folder)]
    return found


def diagnose(binary, arguments, form):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("METAL3_GUARD_")}
    command = [binary, "diagnose", "-A", *arguments, "-o", form]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotTry(f"{' '.join(command)}: {error}") from error
    if done.returncode not in (0, 1):
        raise CannotTry(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr.decode(errors='replace')}")
    return done.stdout.decode()


def hostile():
    """Names as long as they may be, and names that no API server would take."""
    longest = {
        "wide": "w" * 253,
        "parts": ".".join(["m" * 63] * 3 + ["m" * 61]),
        "dashes": ("a-" * 127)[:252] + "a",
    }
    for number, name in enumerate(longest.values()):
        at = f"2026-01-0{number + 1}T00:00:00Z"
        yield template("long", name, deleted=at, finalizers=[TEMPLATE, f"{'k' * 63}.example.com/{'f' * 63}"])
        yield data("long", f"{name[:250]}-{number}", name, name, deleted=at)
        yield machine("long", name, name)
    strange = {
        "markup": MARKUP,
        "turned": "a\u202egnp.b\u2066c",
        "scripts": "\u8a9e" * 60 + " \U0001f600",
        "words": "two  words\tand\na line",
        "shell": "$(touch /tmp/x); `id`",
    }
    for number, name in enumerate(strange.values()):
        at = f"2025-0{number + 1}-02T03:04:05Z"
        notes = {"metal3-guard.io/woken-at": MARKUP, name: MARKUP, "metal3-guard.io/release": MARKUP}
        indexes = {MARKUP: 3, name: number}
        yield template("strange", name, deleted=at, finalizers=[TEMPLATE, MARKUP], annotations=notes, indexes=indexes)
        yield data("strange", f"{name}-0", name, f"{name}-claim", deleted=at)
        yield machine("strange", f"{name}-machine", name)


def many():
    """A template that 65 machines use, some of them on their way out, and one that waits for a claim."""
    yield template("many", "fleet", deleted="2026-02-01T00:00:00Z", finalizers=[TEMPLATE])
    for number in range(65):
        gone = f"2026-02-{number + 1:02}T00:00:00Z" if number < 20 else None
        yield machine("many", f"fleet-{number:02}", "fleet", deleted=gone)
        yield claim("many", f"fleet-{number:02}", "fleet")
    yield template("many", "idle")


def template(namespace, name, deleted=None, finalizers=(TEMPLATE,), annotations=None, indexes=None):
    spec = {"clusterName": "prod"}
    made = an_object("Metal3DataTemplate", namespace, name, spec, deleted, list(finalizers))
    made["metadata"] |= {"annotations": annotations} if annotations else {}
    return {**made, "status": {"indexes": indexes}} if indexes else made


def machine(namespace, name, of, deleted=None):
    spec = {"dataTemplate": {"name": of}, "image": {"url": "x", "checksum": "x"}}
    return an_object("Metal3Machine", namespace, name, spec, deleted, [f"metal3machine.{GROUP}"])


def claim(namespace, name, of, deleted=None):
    return an_object("Metal3DataClaim", namespace, name, {"template": {"name": of}}, deleted, [CLAIM])


def data(namespace, name, of, claimed, deleted=None):
    spec = {"index": 0, "template": {"name": of}, "claim": {"name": claimed}}
    return an_object("Metal3Data", namespace, name, spec, deleted, [DATA])


def an_object(kind, namespace, name, spec, deleted, finalizers):
    metadata = {"name": name, "namespace": namespace, "resourceVersion": "1", "finalizers": finalizers}
    metadata |= {"uid": f"{kind}-{name}"[:200], "creationTimestamp": "2025-01-01T00:00:00Z"}
    metadata |= {"deletionTimestamp": deleted} if deleted else {}
    return {"apiVersion": f"{GROUP}/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}
