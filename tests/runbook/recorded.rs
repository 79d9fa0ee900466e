//! Recorded states, brought into a real API server.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use crate::{
    root,
    support::{ControlPlane, User},
};

/// Makes the objects of some namespaces of a state as they were when it was recorded. Owners have
/// other uids there, so that nobody owns anything; what was terminating is deleted again.
pub(crate) async fn load(plane: &ControlPlane, state: &str, namespaces: &[&str]) {
    let wanted = |object: &Value| {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        namespaces.contains(&namespace)
    };
    let objects: Vec<_> = read(state).into_iter().filter(wanted).collect();
    let found: BTreeSet<_> =
        objects.iter().map(|it| it["metadata"]["namespace"].clone().to_string()).collect();
    assert_eq!(found.len(), namespaces.len(), "{found:?}");
    for namespace in namespaces {
        plane.kubectl(User::Admin, &["create", "namespace", namespace]).await.ok();
    }
    for object in &objects {
        let text = bare(object).to_string();
        plane.kubectl_with(User::Admin, &["create", "-f", "-"], &text).await.ok();
        let (kind, name) = (of(object, "/kind"), of(object, "/metadata/name"));
        let namespace = of(object, "/metadata/namespace");
        if let Some(status) = object.get("status") {
            let status = json!({"status": status}).to_string();
            let args = ["patch", kind, name, "-n", namespace, "--subresource=status"];
            let args = [&args[..], &["--type=merge", "-p", &status]].concat();
            plane.kubectl(User::Admin, &args).await.ok();
        }
    }
    for object in objects.iter().filter(|it| it["metadata"]["deletionTimestamp"].is_string()) {
        let (kind, name) = (of(object, "/kind"), of(object, "/metadata/name"));
        let namespace = of(object, "/metadata/namespace");
        let delete = ["delete", kind, name, "-n", namespace, "--wait=false"];
        plane.kubectl(User::Admin, &delete).await.ok();
    }
}

/// The objects in the files of a state, lists taken apart.
fn read(state: &str) -> Vec<Value> {
    let mut objects = Vec::new();
    for entry in fs::read_dir(root().join("tests/data/states").join(state)).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        for document in documents {
            match document["items"].as_array() {
                Some(items) => objects.extend(items.iter().cloned()),
                None => objects.push(document),
            }
        }
    }
    objects
}

/// Without what only an API server can write.
fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().remove("status");
    let metadata = object["metadata"].as_object_mut().unwrap();
    for key in [
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "uid",
    ] {
        metadata.remove(key);
    }
    object
}

fn of<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
