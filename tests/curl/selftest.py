"""Proves that the comparison can fail: one right answer passes, every damaged one does not."""

import base64
import copy
import json

import compare

REVIEW = {
    "kind": "AdmissionReview",
    "apiVersion": "admission.k8s.io/v1",
    "request": {
        "uid": "5b0a3f0e-0b4b-4a53-9d4c-0e6f7d1a2b3c",
        "object": {"status": {"indexes": {"team/a": 0, "w-0": 1}, "lastUpdated": "x"}},
    },
}
DENIED = {
    "path": "/validate/deletion", "http": 200, "allowed": False, "code": 403, "reason": "Forbidden",
    "message_has": ["prod/workers", "Metal3Machine/w-0"], "causes_count": 1,
    "causes": [{"field": "spec.dataTemplate", "reason": "InUse", "message_has": "Metal3Machine/w-0"}],
    "warnings_have": ["later"], "audit_has": ["w-0"],
}
PATCHED = {
    "path": "/mutate/indexes", "http": 200, "allowed": True, "warnings_count": 0,
    "patched": {"pointer": "/status/indexes", "value": {"w-0": 1}},
}
REFUSED = {"path": "/validate/deletion", "http": 400}


def run():
    """Returns the failures as lines and the number of checks made."""
    failures, checks = [], 0

    def check(name, expect, good, status=200, kind="application/json", answer=None):
        nonlocal checks
        checks += 1
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        found = compare.problems(expect, REVIEW, status, kind, body)
        if good != (not found):
            failures.append(f"self-test {name}: expected {'no problem' if good else 'a problem'}, got {found!r}")

    check("denial", DENIED, True, answer=denial())
    check("patch", PATCHED, True, answer=patch(remove("/status/indexes/team~1a")))
    check("text", REFUSED, True, 400, "text/plain; charset=utf-8", b"no review in the body")
    for name, change in DAMAGE.items():
        broken = denial()
        change(broken)
        check(name, DENIED, False, answer=broken)
    for name, answer in {
        "no patch": patch(),
        "empty patch": patch([]),
        "wrong entry removed": patch(remove("/status/indexes/w-0")),
        "key not escaped": patch(remove("/status/indexes/team/a")),
        "all removed": patch(remove("/status/indexes")),
        "touches another field": patch(remove("/status/indexes/team~1a") + remove("/status/lastUpdated")),
        "missing path": patch(remove("/status/indexes/absent")),
        "failed test": patch([{"op": "test", "path": "/status/lastUpdated", "value": "y"}]),
        "patch as numbers": patch(remove("/status/indexes/team~1a"), numbers=True),
    }.items():
        check(name, PATCHED, False, answer=answer)
    unexpected = {key: value for key, value in PATCHED.items() if key != "patched"}
    check("unexpected patch", unexpected, False, answer=patch(remove("/status/indexes/team~1a")))
    check("wrong status", DENIED, False, 500, answer=denial())
    check("no JSON", DENIED, False, answer=b"oops")
    check("text too long", REFUSED, False, 400, "text/plain", b"x" * 3000)
    check("text as JSON", REFUSED, False, 400, "application/json", b"{}")
    return failures, checks


def denial():
    cause = {"field": "spec.dataTemplate", "reason": "InUse", "message": "Metal3Machine/w-0 uses it"}
    return copy.deepcopy({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "response": {
            "uid": REVIEW["request"]["uid"],
            "allowed": False,
            "status": {
                "code": 403, "reason": "Forbidden", "details": {"causes": [cause]},
                "message": "prod/workers is used by Metal3Machine/w-0",
            },
            "warnings": ["try later"],
            "auditAnnotations": {"holders": "w-0"},
        },
    })


def patch(operations=None, numbers=False):
    response = {"uid": REVIEW["request"]["uid"], "allowed": True}
    if operations is not None:
        raw = json.dumps(operations).encode()
        response["patch"] = list(raw) if numbers else base64.b64encode(raw).decode()
        response["patchType"] = "JSONPatch"
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response}


def remove(path):
    return [{"op": "remove", "path": path}]


def _set(*keys, to):
    def change(answer):
        for key in keys[:-1]:
            answer = answer[key]
        answer[keys[-1]] = to
    return change


DAMAGE = {
    "allowed": _set("response", "allowed", to=True),
    "allowed as text": _set("response", "allowed", to="false"),
    "uid": _set("response", "uid", to="other"),
    "version": _set("apiVersion", to="admission.k8s.io/v1beta1"),
    "kind": _set("kind", to="Status"),
    "code": _set("response", "status", "code", to=422),
    "reason": _set("response", "status", "reason", to="Invalid"),
    "message": _set("response", "status", "message", to="prod/workers is in use"),
    "cause field": _set("response", "status", "details", "causes", 0, "field", to="spec.template"),
    "cause name": _set("response", "status", "details", "causes", 0, "message", to="Metal3Machine/w-01 uses it"),
    "no causes": _set("response", "status", "details", to={}),
    "warning missing": _set("response", "warnings", to=[]),
    "warning with a line break": _set("response", "warnings", to=["try later\nor not"]),
    "warning too long": _set("response", "warnings", to=["later" * 40]),
    "too many warnings": _set("response", "warnings", to=[f"later {i}" for i in range(6)]),
    "audit value": _set("response", "auditAnnotations", to={"holders": "none"}),
    "audit key with a slash": _set("response", "auditAnnotations", to={"guard/holders": "w-0"}),
    "patch on a validating path": _set("response", "patch", to="W10="),
    "conflict": _set("response", "status", "code", to=409),
}
