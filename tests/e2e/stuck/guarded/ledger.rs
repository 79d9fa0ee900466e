//! What a guard has written in a namespace: by its own log and by that of the API server, which
//! must say the same.

use std::fs;

use serde_json::{Map, Value};

use crate::{
    e2e::repair,
    support::{ControlPlane, Guard, User, eventually},
};

/// What the guard did, in order of time, as `step Kind/name`. Nothing was refused or went wrong,
/// and the API server knows of nothing else.
pub(super) async fn done(plane: &ControlPlane, guard: &Guard, namespace: &str) -> Vec<String> {
    let mut writes = repair::writes(guard, namespace);
    writes.sort();
    let mut done = Vec::new();
    for (_, line) in &writes {
        match line.rsplit_once(' ') {
            Some((step, "done")) => done.push(step.to_owned()),
            // Someone else was first; nothing was written.
            Some((_, "conflict" | "gone")) => {}
            _ => panic!("{line}: {writes:#?}"),
        }
    }
    let mut told: Vec<_> = done.iter().map(|step| change(step)).collect();
    told.sort();
    eventually("the audit log to have what the guard's own log has", async || {
        (audited(plane, namespace).len() >= told.len()).then_some(())
    })
    .await;
    assert_eq!(audited(plane, namespace), told);
    done
}

/// The same, for where nothing but wake-ups may have come from the guard; how many there were.
pub(super) async fn only_woken(plane: &ControlPlane, guard: &Guard, namespace: &str) -> usize {
    let done = done(plane, guard, namespace).await;
    assert!(done.iter().all(|step| step.starts_with("wake ")), "{done:#?}");
    done.len()
}

/// What a step changes: `change Kind/name`.
fn change(step: &str) -> String {
    let (step, object) = step.split_once(' ').unwrap();
    let change = match step {
        "wake" => "annotation",
        "prune" => "status",
        "delete-orphan" | "delete-ip-claim" => "deletion",
        "free-orphan" | "release" | "free-ip-claim" | "free-lost" => "finalizers",
        other => panic!("a new step: {other}"),
    };
    format!("{change} {object}")
}

/// What the API server has stored for the guard's user, in the same words, sorted.
fn audited(plane: &ControlPlane, namespace: &str) -> Vec<String> {
    let log = fs::read_to_string(plane.audit_log()).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut stored: Vec<_> = events
        .filter(|it| it["user"]["username"] == User::Guard.name())
        .filter(|it| it["objectRef"]["namespace"] == namespace)
        .filter(|it| it["responseStatus"]["code"] == 200)
        .map(|it| {
            let object = &it["objectRef"];
            let kind = match object["resource"].as_str().unwrap() {
                "metal3datas" => "Metal3Data",
                "metal3datatemplates" => "Metal3DataTemplate",
                other => panic!("a write to {other}: {it}"),
            };
            format!("{} {kind}/{}", sent(&it), object["name"].as_str().unwrap())
        })
        .collect();
    stored.sort();
    stored
}

/// What one request of the guard changes.
fn sent(event: &Value) -> &'static str {
    if event["objectRef"]["subresource"] == "status" {
        return "status";
    }
    match event["verb"].as_str() {
        Some("delete") => return "deletion",
        Some("patch") => {}
        _ => panic!("{event}"),
    }
    let body = event["requestObject"].as_object().unwrap();
    let mut changes = body["metadata"].as_object().unwrap().clone();
    // Its precondition.
    for key in ["uid", "resourceVersion"] {
        assert!(changes.remove(key).is_some_and(|it| it.is_string()), "{event}");
    }
    let keys = |of: &Map<String, Value>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(body), ["metadata"], "{event}");
    match &keys(&changes)[..] {
        [key] if key == "finalizers" => "finalizers",
        [key] if key == "annotations" => {
            let annotations = changes["annotations"].as_object().unwrap();
            assert_eq!(keys(annotations), ["metal3-guard.io/woken-at"], "{event}");
            "annotation"
        }
        _ => panic!("{event}"),
    }
}
