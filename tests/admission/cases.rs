//! Every case of `tests/data` against the state that it names.

use std::fs;

use serde_json::{Value, json};

use crate::{
    compare::problems,
    corpus::{self, Case},
    support::{Guards, Reply, decode},
};

#[tokio::test]
async fn every_review_of_the_corpus_gets_its_answer() {
    let mut guards = Guards::default();
    let mut failures = Vec::new();
    let mut asked = 0;
    for case in corpus::cases().unwrap() {
        let body = fs::read(corpus::data().join("reviews").join(&case.name).join("review.json"));
        let body = body.unwrap();
        for check in case.checks() {
            let path = path_of(check);
            let guard = guards.of(state_of(&case, check));
            let reply = guard.post(&path, body.clone()).await;
            let mut found = problems(check, Some(&case.review), &reply);
            if found.is_empty() && !check["patched"].is_null() {
                // A mutating hook may be called again with its own output: nothing is left then.
                let again = guard.ask(&path, &after(&case.review, &reply)).await;
                let nothing_left = json!({"path": check["path"], "allowed": true});
                found = problems(&nothing_left, Some(&case.review), &again);
            }
            asked += 1;
            failures.extend(found.iter().map(|it| format!("{}{path}: {it}", case.name)));
        }
    }
    assert!(asked > 100, "{asked} questions only");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test]
async fn every_malformed_body_gets_its_answer() {
    let mut guards = Guards::default();
    let folder = corpus::data().join("malformed");
    let checks = corpus::json(&folder.join("expect.json")).unwrap();
    let checks = checks.as_array().unwrap();
    assert_eq!(checks.len() + 1, corpus::entries(&folder).unwrap().len(), "a body without answer");
    let mut failures = Vec::new();
    for check in checks {
        let file = check["file"].as_str().unwrap();
        let body = fs::read(folder.join(file)).unwrap();
        let sent = serde_json::from_slice::<Value>(&body).ok();
        let reply = guards.of(check["state"].as_str().unwrap()).post(&path_of(check), body).await;
        let found = problems(check, sent.as_ref(), &reply);
        failures.extend(found.iter().map(|it| format!("{file}: {it}")));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The comparison itself: each change to a right answer must be noticed.
#[tokio::test]
async fn a_wrong_answer_is_noticed() {
    let mut guards = Guards::default();
    let cases = corpus::cases().unwrap();
    let case = |name: &str| cases.iter().find(|case| case.name == name).unwrap();
    let changes = [
        ("delete-in-use", "/kind", json!("Review")),
        ("delete-in-use", "/apiVersion", json!("admission.k8s.io/v1beta1")),
        ("delete-in-use", "/response/uid", json!("another")),
        ("delete-in-use", "/response/allowed", json!(true)),
        ("delete-in-use", "/response/status", json!(null)),
        ("delete-in-use", "/response/status/code", json!(422)),
        ("delete-in-use", "/response/status/code", json!("403")),
        ("delete-in-use", "/response/status/reason", json!("Invalid")),
        ("delete-in-use", "/response/status/message", json!("no")),
        ("delete-in-use", "/response/status/details/causes", json!([])),
        (
            "delete-in-use",
            "/response/status/details/causes/0/message",
            json!("Metal3Machine/cp-00"),
        ),
        ("delete-in-use", "/response/status/details/causes/1/field", json!("spec")),
        ("delete-in-use", "/response/patch", json!("W10=")),
        ("delete-in-use", "/response/patchType", json!("JSONPatch")),
        ("delete-in-use", "/response/warnings", json!(["line\nbreak"])),
        ("delete-in-use", "/response/warnings", json!(["x".repeat(121)])),
        ("delete-in-use", "/response/warnings", json!(["1", "2", "3", "4", "5", "6"])),
        ("delete-in-use", "/response/auditAnnotations", json!({"a/b": "c"})),
        ("delete-in-use", "/response/auditAnnotations", json!({"a": 1})),
        ("delete-in-use", "/response/auditAnnotations", json!({"x".repeat(64): "c"})),
        ("indexes-one-stale", "/response/patch", json!(null)),
        ("indexes-one-stale", "/response/patchType", json!(null)),
        ("indexes-one-stale", "/response/patch", json!([1, 2])),
        ("indexes-one-stale", "/response/patch", json!("W10=")),
        ("indexes-one-stale", "/response/patch", json!("not base64")),
    ];
    for (name, pointer, value) in changes {
        let case = case(name);
        let guard = guards.of(state_of(case, &case.expect));
        let reply = guard.ask(&path_of(&case.expect), &case.review).await;
        assert_eq!(problems(&case.expect, Some(&case.review), &reply), [""; 0]);
        let mut answer = reply.document();
        set(&mut answer, pointer, &value);
        let wrong = Reply { body: answer.to_string().into(), ..reply };
        let found = problems(&case.expect, Some(&case.review), &wrong);
        assert!(!found.is_empty(), "{name}: {pointer} = {value} went unnoticed");
    }
}

/// Sets a key, which need not be there yet.
fn set(document: &mut Value, pointer: &str, value: &Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match document.pointer_mut(parent).unwrap() {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value.clone(),
        object => object[key] = value.clone(),
    }
}

/// The review with the object as the answer's patch leaves it.
fn after(review: &Value, reply: &Reply) -> Value {
    let mut again = review.clone();
    let patch = decode(reply.response()["patch"].as_str().unwrap()).unwrap();
    json_patch::patch(&mut again["request"]["object"], &patch).unwrap();
    again
}

fn state_of<'a>(case: &'a Case, check: &'a Value) -> &'a str {
    check["state"].as_str().or_else(|| case.expect["state"].as_str()).unwrap()
}

fn path_of(check: &Value) -> String {
    format!("{}?timeout=5s", check["path"].as_str().unwrap())
}
