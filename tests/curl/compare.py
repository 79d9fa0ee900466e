"""Does an answer of the guard say what a case expects, in the form that a kube-apiserver accepts?

The entry point is `problems`. Nothing here does I/O. The protocol rules are those of
admission.k8s.io/v1: what the server would reject or silently drop is a problem in every answer,
whatever the case expects.
"""

import base64
import binascii
import copy
import json
import re

AUDIT_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
MAX_ERROR_TEXT = 2048  # what the server shows of a text answer
MAX_WARNINGS = 5
MAX_WARNING = 120


class PatchError(Exception):
    """A JSON Patch that does not apply."""


def problems(expect, review, status, content_type, body):
    """Every difference as one line "what: expected ..., got ...". An empty list is a pass.

    `review` is the parsed request or None where it cannot be parsed, `body` the answer in bytes.
    """
    if status != expect["http"]:
        return [f"http: expected {expect['http']}, got {status} {body[:200]!r}"]
    if expect["http"] != 200:
        return text_problems(content_type, body)
    try:
        answer = json.loads(body)
        response = answer["response"]
        response["uid"], response["allowed"]
    except (ValueError, KeyError, TypeError) as error:
        return [f"body: expected a review with a response, got {body[:200]!r} ({error!r})"]
    found = list(form_problems(expect["path"], review, content_type, answer))
    found += verdict_problems(expect, response)
    found += patch_problems(expect, review, response)
    return found


def patched_object(review, response):
    """The object of the request after the patch of the answer, or None without a patch."""
    if "patch" not in response:
        return None
    operations = json.loads(base64.b64decode(response["patch"], validate=True))
    return apply_patch(review["request"]["object"], operations)


def text_problems(content_type, body):
    found = []
    if not content_type.startswith("text/plain"):
        found.append(f"content type: expected text/plain, got {content_type!r}")
    if not 0 < len(body) <= MAX_ERROR_TEXT:
        found.append(f"text: expected 1 to {MAX_ERROR_TEXT} bytes, got {len(body)}")
    return found


def form_problems(path, review, content_type, answer):
    """What every answer must look like."""
    request, response = review["request"], answer["response"]
    if not content_type.startswith("application/json"):
        yield f"content type: expected application/json, got {content_type!r}"
    for key, want in (("kind", "AdmissionReview"), ("apiVersion", review.get("apiVersion"))):
        if want is not None and answer.get(key) != want:
            yield f"{key}: expected {want!r}, got {answer.get(key)!r}"
    if response["uid"] != request["uid"]:
        yield f"uid: expected {request['uid']!r}, got {response['uid']!r}"
    if not isinstance(response["allowed"], bool):
        yield f"allowed: expected a boolean, got {response['allowed']!r}"
    if response["allowed"] is False:
        denial = response.get("status") or {}
        if not isinstance(denial.get("code"), int) or denial["code"] < 400:
            yield f"denial: expected a code of 400 or more, got {denial.get('code')!r}"
        if denial.get("code") in (404, 409) or denial.get("reason") in ("NotFound", "Conflict"):
            yield f"denial: 404 and 409 mislead clients, got {denial.get('code')} {denial.get('reason')}"
        if not denial.get("message") or not denial.get("reason"):
            yield f"denial: expected a message and a reason, got {denial!r}"
    warnings = response.get("warnings") or []
    if len(warnings) > MAX_WARNINGS or len(set(warnings)) != len(warnings):
        yield f"warnings: expected at most {MAX_WARNINGS}, all different, got {warnings!r}"
    for warning in warnings:
        if not 0 < len(warning) <= MAX_WARNING or re.search(r"[\x00-\x1f\x7f-\x9f]", warning):
            yield f"warning: expected 1 to {MAX_WARNING} printable characters, got {warning!r}"
    for key, value in (response.get("auditAnnotations") or {}).items():
        if not AUDIT_KEY.fullmatch(key) or not isinstance(value, str):
            yield f"audit annotation: expected a plain key and a text, got {key!r}: {value!r}"
    if ("patch" in response) != ("patchType" in response):
        yield "patch: expected patch and patchType together or neither"
    if "patch" in response and (not path.startswith("/mutate/") or not response["allowed"]):
        yield "patch: only an allowing answer of a mutating path may carry one"


def verdict_problems(expect, response):
    """What the case says about the verdict. Keys that a case does not have are not compared."""
    found = []
    denial = response.get("status") or {}

    def same(what, want, got):
        if want != got:
            found.append(f"{what}: expected {want!r}, got {got!r}")

    def contains(what, want, texts):
        if not any(want in text for text in texts):
            found.append(f"{what}: expected {want!r} in {texts!r}")

    if "allowed" in expect and expect["allowed"] != response["allowed"]:
        said = denial.get("message") or response.get("warnings")
        return [f"allowed: expected {expect['allowed']}, got {response['allowed']} ({said!r})"]
    for key in ("code", "reason"):
        if key in expect:
            same(key, expect[key], denial.get(key))
    for want in expect.get("message_has", []):
        contains("message", want, [denial.get("message") or ""])
    causes = (denial.get("details") or {}).get("causes") or []
    if "causes_count" in expect:
        same("number of causes", expect["causes_count"], len(causes))
    for want in expect.get("causes", []):
        if not any(cause_matches(want, cause) for cause in causes):
            found.append(f"causes: expected one like {want!r}, got {causes!r}")
    warnings = response.get("warnings") or []
    if "warnings_count" in expect:
        same("number of warnings", expect["warnings_count"], len(warnings))
    for want in expect.get("warnings_have", []):
        contains("warnings", want, warnings)
    audit = [f"{key}={value}" for key, value in (response.get("auditAnnotations") or {}).items()]
    for want in expect.get("audit_has", []):
        contains("audit annotations", want, audit)
    return found


def cause_matches(want, cause):
    """A holder's cause begins with its kind and name; other causes name their subject anywhere."""
    message, name = cause.get("message") or "", want["message_has"]
    if (cause.get("field"), cause.get("reason")) != (want["field"], want["reason"]):
        return False
    if want["reason"] == "InUse":
        return re.match(rf"{re.escape(name)}(?![A-Za-z0-9-])", message) is not None
    return name in message


def patch_problems(expect, review, response):
    if "patch" not in response:
        return ["patch: expected one, got none"] if "patched" in expect else []
    if "patched" not in expect and not expect.get("any_patch"):
        return [f"patch: expected none, got {response['patch']!r}"]
    if response.get("patchType") != "JSONPatch":
        return [f"patchType: expected 'JSONPatch', got {response.get('patchType')!r}"]
    try:
        operations = json.loads(base64.b64decode(response["patch"], validate=True))
        after = apply_patch(review["request"]["object"], operations)
    except (binascii.Error, ValueError, TypeError, KeyError, PatchError) as error:
        return [f"patch: expected base64 of a JSON Patch that applies, got {response['patch']!r} ({error})"]
    found = []
    if not operations:
        found.append("patch: expected none instead of an empty one")
    elsewhere = [o["path"] for o in operations if not re.match(r"/status/indexes(/|$)", o["path"])]
    if expect["path"] == "/mutate/indexes" and elsewhere:
        found.append(f"patch: expected to touch /status/indexes only, got {elsewhere!r}")
    if "patched" in expect:
        want = expect["patched"]["value"]
        try:
            got = look_up(after, expect["patched"]["pointer"])
        except PatchError:
            got = None
        if got != want:
            found.append(f"patched {expect['patched']['pointer']}: expected {want!r}, got {got!r}")
    return found


def apply_patch(document, operations):
    """RFC 6902 with the operations that an admission patch may use here, as strict as the server."""
    document = copy.deepcopy(document)
    for operation in operations:
        kind, pointer = operation["op"], operation["path"]
        parent_pointer, _, last = pointer.rpartition("/")
        parent, key = look_up(document, parent_pointer), unescape(last)
        if kind == "test":
            if look_up(document, pointer) != operation["value"]:
                raise PatchError(f"test of {pointer} fails")
        elif kind == "add" and isinstance(parent, list):
            parent.insert(len(parent) if key == "-" else array_index(key, len(parent) + 1), operation["value"])
        elif kind == "add" and isinstance(parent, dict):
            parent[key] = operation["value"]
        elif kind in ("remove", "replace"):
            look_up(document, pointer)
            place = array_index(key, len(parent)) if isinstance(parent, list) else key
            if kind == "remove":
                del parent[place]
            else:
                parent[place] = operation["value"]
        else:
            raise PatchError(f"{kind} at {pointer} cannot be done")
    return document


def look_up(document, pointer):
    """RFC 6901."""
    for token in pointer.split("/")[1:]:
        key = unescape(token)
        if isinstance(document, dict) and key in document:
            document = document[key]
        elif isinstance(document, list):
            document = document[array_index(key, len(document))]
        else:
            raise PatchError(f"{pointer} does not exist")
    return document


def unescape(token):
    return token.replace("~1", "/").replace("~0", "~")


def array_index(token, length):
    if not re.fullmatch(r"0|[1-9][0-9]*", token) or int(token) >= length:
        raise PatchError(f"{token!r} is no index into {length} entries")
    return int(token)
