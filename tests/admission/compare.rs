//! Does a reply say what a case expects, in the form that an API server takes? The keys of an
//! expectation are explained in `tests/data/README.md`.

use serde_json::Value;

use crate::support::{Reply, decode};

/// What the API server shows of an answer that is not a review.
const MAX_TEXT: usize = 2048;
const MAX_WARNINGS: usize = 5;
const MAX_WARNING: usize = 120;

/// Every difference as one line; none is a pass. `sent` is the review, where it can be parsed.
pub(crate) fn problems(expect: &Value, sent: Option<&Value>, reply: &Reply) -> Vec<String> {
    let mut found = Findings::default();
    let http = expect["http"].as_u64().unwrap_or(200);
    found.same("http", &http, &u64::from(reply.status.as_u16()));
    if !found.0.is_empty() {
        return found.0;
    }
    if http != 200 {
        found.check("content type", reply.content_type().starts_with("text/plain"));
        found.check("length of the text", (1..=MAX_TEXT).contains(&reply.body.len()));
        return found.0;
    }
    let Some(sent) = sent else {
        return vec!["a body that cannot be parsed was answered with 200".into()];
    };
    let Ok(answer) = serde_json::from_slice::<Value>(&reply.body) else {
        return vec![format!("the answer is no JSON: {}", reply.text())];
    };
    let path = expect["path"].as_str().unwrap_or_default();
    form(&mut found, path, sent, reply, &answer);
    verdict(&mut found, expect, &answer["response"]);
    patch(&mut found, expect, sent, &answer["response"]);
    found.0
}

#[derive(Default)]
struct Findings(Vec<String>);

impl Findings {
    fn check(&mut self, what: &str, holds: bool) {
        if !holds {
            self.0.push(format!("{what} is wrong"));
        }
    }

    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, want: &T, got: &T) {
        if want != got {
            self.0.push(format!("{what}: expected {want:?}, got {got:?}"));
        }
    }

    /// Each of the wanted texts is part of one of the texts.
    fn contain(&mut self, what: &str, wanted: &Value, texts: &[String]) {
        for want in texts_of(wanted) {
            if !texts.iter().any(|text| text.contains(&want)) {
                self.0.push(format!("{what}: expected {want:?} in {texts:?}"));
            }
        }
    }
}

/// What holds for every answer, whatever the case.
fn form(found: &mut Findings, path: &str, sent: &Value, reply: &Reply, answer: &Value) {
    let response = &answer["response"];
    found.check("content type", reply.content_type() == "application/json");
    found.same("kind", &sent["kind"], &answer["kind"]);
    found.same("apiVersion", &sent["apiVersion"], &answer["apiVersion"]);
    found.same("uid", &sent["request"]["uid"], &response["uid"]);
    found.check("allowed", response["allowed"].is_boolean());
    found.check("denial", response["allowed"] == Value::Bool(response["status"].is_null()));
    if response["allowed"] == false {
        let status = &response["status"];
        found.check("code", matches!(status["code"].as_u64(), Some(403 | 422 | 500 | 503)));
        for key in ["message", "reason"] {
            found.check(key, status[key].as_str().is_some_and(|text| !text.is_empty()));
        }
        found.same("status", &Value::from("Failure"), &status["status"]);
        let causes = status["details"]["causes"].as_array().map_or(0, Vec::len);
        found.check("number of causes", causes <= 100);
    }
    let warnings = texts_of(&response["warnings"]);
    found.check("number of warnings", warnings.len() <= MAX_WARNINGS);
    for warning in &warnings {
        let length = (1..=MAX_WARNING).contains(&warning.chars().count());
        found.check(
            &format!("warning {warning:?}"),
            length && !warning.chars().any(char::is_control),
        );
    }
    for (key, value) in response["auditAnnotations"].as_object().into_iter().flatten() {
        found.check(&format!("audit key {key:?}"), is_audit_key(key) && value.is_string());
    }
    let patched = !response["patch"].is_null();
    found.check("patchType", patched == (response["patchType"] == "JSONPatch"));
    found.check(
        "a patch here",
        !patched || (response["patch"].is_string() && path.starts_with("/mutate/")),
    );
    found.check("a patch in a denial", !patched || response["allowed"] == true);
}

/// The name part of a qualified name: the API server puts `WEBHOOK/` in front and drops an
/// annotation whose key is no qualified name then.
fn is_audit_key(key: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    key.len() <= 63
        && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && ends(key.chars().next())
        && ends(key.chars().next_back())
}

fn verdict(found: &mut Findings, expect: &Value, response: &Value) {
    let status = &response["status"];
    if !expect["allowed"].is_null() {
        found.same("allowed", &expect["allowed"], &response["allowed"]);
    }
    for key in ["code", "reason"] {
        if !expect[key].is_null() {
            found.same(key, &expect[key], &status[key]);
        }
    }
    found.contain("message", &expect["message_has"], &texts_of(&status["message"]));
    let none = Vec::new();
    let causes = status["details"]["causes"].as_array().unwrap_or(&none);
    let wanted = expect["causes"].as_array().unwrap_or(&none);
    for want in wanted {
        found.check(&format!("a cause like {want}"), causes.iter().any(|it| matches(want, it)));
    }
    let warnings = texts_of(&response["warnings"]);
    for (key, number) in [("causes_count", causes.len()), ("warnings_count", warnings.len())] {
        if let Some(want) = expect[key].as_u64() {
            found.same(key, &want, &(number as u64));
        }
    }
    found.contain("warnings", &expect["warnings_have"], &warnings);
    let audit = response["auditAnnotations"].as_object().into_iter().flatten();
    let audit: Vec<_> =
        audit.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    found.contain("audit annotations", &expect["audit_has"], &audit);
}

fn matches(want: &Value, cause: &Value) -> bool {
    let text = cause["message"].as_str().unwrap_or_default();
    let Some(name) = want["message_has"].as_str() else { return false };
    let said = if want["reason"] == "InUse" {
        // `Metal3Machine/a` is not about `Metal3Machine/a-1`.
        text.strip_prefix(name).is_some_and(|rest| {
            !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.')
        })
    } else {
        text.contains(name)
    };
    said && want["field"] == cause["field"] && want["reason"] == cause["reason"]
}

fn patch(found: &mut Findings, expect: &Value, sent: &Value, response: &Value) {
    let Some(encoded) = response["patch"].as_str() else {
        found.check("no patch", expect["patched"].is_null());
        return;
    };
    if expect["patched"].is_null() && expect["any_patch"] != true {
        found.0.push(format!("patch: expected none, got {encoded}"));
        return;
    }
    let patch = match decode(encoded) {
        Ok(patch) => patch,
        Err(error) => return found.0.push(format!("patch: {error}")),
    };
    found.check("empty patch", !patch.0.is_empty());
    let mut object = sent["request"]["object"].clone();
    if let Err(error) = json_patch::patch(&mut object, &patch) {
        return found.0.push(format!("patch: {error}"));
    }
    // Nothing else may change: with the patched part put back, it is the object as it was.
    let place = if expect["path"] == "/mutate/indexes" {
        "/status/indexes"
    } else {
        "/metadata/finalizers"
    };
    if let Some(pointer) = expect["patched"]["pointer"].as_str() {
        let got = object.pointer(pointer).cloned().unwrap_or_default();
        found.same(&format!("patched {pointer}"), &expect["patched"]["value"], &got);
    }
    let before = without(sent["request"]["object"].clone(), place);
    found.check("the rest of the object", before == without(object, place));
}

/// The object without one part.
fn without(mut object: Value, pointer: &str) -> Value {
    if let Some((parent, key)) = pointer.rsplit_once('/')
        && let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut)
    {
        parent.remove(key);
    }
    object
}

/// One text or a list of them.
fn texts_of(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}
