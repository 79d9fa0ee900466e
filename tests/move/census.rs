//! All that clusterctl can see in a namespace, in a form that survives a move.

use std::collections::BTreeMap;

use http::Request;
use kube::Client;
use serde_json::{Value, json};

/// Objects by `Kind/name`.
pub(crate) type Census = BTreeMap<String, Value>;

pub(crate) const NOTHING: Census = Census::new();

/// The objects of all kinds that carry clusterctl's label, as they are.
pub(crate) async fn take(client: &Client, namespace: &str) -> Census {
    let mut census = Census::new();
    let labelled = "labelSelector=clusterctl.cluster.x-k8s.io";
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for crd in list(client, &format!("{crds}?{labelled}")).await {
        let spec = &crd["spec"];
        if spec["scope"] != "Namespaced" {
            continue;
        }
        let versions = spec["versions"].as_array().unwrap();
        let stored = versions.iter().find(|version| version["storage"] == true).unwrap();
        let (group, version) = (text(&spec["group"]), text(&stored["name"]));
        let resource = text(&spec["names"]["plural"]);
        let url = format!("/apis/{group}/{version}/namespaces/{namespace}/{resource}");
        for mut object in list(client, &url).await {
            object["kind"] = spec["names"]["kind"].clone();
            object["apiVersion"] = json!(format!("{group}/{version}"));
            census.insert(key(&object["kind"], &object["metadata"]["name"]), object);
        }
    }
    census
}

/// What must be the same on the other side: all but the status and what an API server gives. Panics
/// when an owner's uid is not that of the owner it names.
pub(crate) fn comparable(census: &Census) -> Census {
    let uids: BTreeMap<&str, &str> =
        census.iter().map(|(key, it)| (text(&it["metadata"]["uid"]), &**key)).collect();
    let object = |name: &str, object: &Value| {
        let metadata = &object["metadata"];
        let mut owners = metadata["ownerReferences"].as_array().cloned().unwrap_or_default();
        for owner in &mut owners {
            let meant = uids.get(text(&owner["uid"]));
            assert_eq!(meant, Some(&&*key(&owner["kind"], &owner["name"])), "owner of {name}");
            owner["uid"] = Value::Null;
        }
        owners.sort_by_key(ToString::to_string);
        json!({
            "apiVersion": object["apiVersion"],
            "labels": metadata["labels"],
            "annotations": metadata["annotations"],
            "finalizers": metadata["finalizers"],
            "deletionTimestamp": metadata["deletionTimestamp"],
            "ownerReferences": owners,
            "spec": object["spec"],
        })
    };
    census.iter().map(|(key, it)| (key.clone(), object(key, it))).collect()
}

async fn list(client: &Client, url: &str) -> Vec<Value> {
    let request = Request::get(url).body(Vec::new()).unwrap();
    let mut list: Value =
        client.request(request).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    assert!(list["metadata"]["continue"].as_str().unwrap_or_default().is_empty(), "{url}: pages");
    match list["items"].take() {
        Value::Array(items) => items,
        other => panic!("{url}: no list but {other}"),
    }
}

fn key(kind: &Value, name: &Value) -> String {
    format!("{}/{}", text(kind), text(name))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
