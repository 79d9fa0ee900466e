//! The curl lines that `serve --demo` prints: whole reviews, so that they work from anywhere.

use std::{fmt::Write as _, net::SocketAddr, path::Path};

use serde_json::{Value, json};

use crate::{
    admission::Hook,
    core::objects::{MOVE_ANNOTATION, TEMPLATE_FINALIZER},
};

/// Lines to paste into another shell, each with what it shows.
pub(super) fn lines(ca: &Path, address: SocketAddr) -> String {
    let mut text = String::from("\nThe guard protects a made-up state. Try, in another shell:\n");
    for Sample { about, hook, request } in samples() {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request,
        });
        // No name in the samples has a quote, so single quotes hold the JSON together. Writing to
        // a String cannot fail.
        let _ = write!(
            text,
            "\n# {about}\ncurl -sS --cacert '{}' -H 'Content-Type: application/json' \
             'https://{address}{}?timeout=5s' -d '{review}'\n",
            ca.display(),
            hook.path()
        );
    }
    text.push_str("\nCtrl-C stops it.\n");
    text
}

struct Sample {
    about: &'static str,
    hook: Hook,
    request: Value,
}

fn samples() -> [Sample; 5] {
    let none = json!({});
    let free = template("metal3", "old-workers", &none, &none);
    let used = template("metal3", "prod-workers", &none, &none);
    let moving = json!({"annotations": {MOVE_ANNOTATION: ""}});
    let moving = template("metal3", "prod-workers", &moving, &none);
    let deleted = json!({"deletionTimestamp": "2026-12-01T05:41:06Z"});
    let stuck = template("stuck", "batch-workers", &deleted, &none);
    let stale = template("stuck", "batch-workers", &deleted, &json!({"indexes": {"gone-7": 7}}));
    let late = json!({
        "deletionTimestamp": "2026-12-01T05:41:06Z",
        "finalizers": [TEMPLATE_FINALIZER, "example.com/late"],
    });
    let late = template("stuck", "batch-workers", &late, &none);
    [
        Sample {
            about: "a template in use may not be deleted: 403, with the machines that hold it",
            hook: Hook::Deletion,
            request: request("DELETE", "", &Value::Null, &used),
        },
        Sample {
            about: "a free one may",
            hook: Hook::Deletion,
            request: request("DELETE", "", &Value::Null, &free),
        },
        Sample {
            about: "clusterctl move may take any template away",
            hook: Hook::Deletion,
            request: request("DELETE", "", &Value::Null, &moving),
        },
        Sample {
            about: "nobody adds a finalizer to what is being deleted: 422",
            hook: Hook::MutateFinalizers,
            request: request("UPDATE", "", &late, &stuck),
        },
        Sample {
            about: "a stale index is pruned by a patch",
            hook: Hook::Indexes,
            request: request("UPDATE", "status", &stale, &stuck),
        },
    ]
}

/// A template with CAPM3's finalizer, unless `extra` metadata says otherwise.
fn template(namespace: &str, name: &str, extra: &Value, status: &Value) -> Value {
    let mut metadata =
        json!({"name": name, "namespace": namespace, "finalizers": [TEMPLATE_FINALIZER]});
    json_patch::merge(&mut metadata, extra);
    json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3DataTemplate",
        "metadata": metadata, "spec": {"clusterName": "prod"}, "status": status,
    })
}

fn request(operation: &str, subresource: &str, object: &Value, old: &Value) -> Value {
    let group = "infrastructure.cluster.x-k8s.io";
    json!({
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": group, "version": "v1beta1", "kind": "Metal3DataTemplate"},
        "resource": {"group": group, "version": "v1beta1", "resource": "metal3datatemplates"},
        "subResource": subresource, "operation": operation, "dryRun": false,
        "name": old.pointer("/metadata/name"), "namespace": old.pointer("/metadata/namespace"),
        "userInfo": {"username": "demo"}, "object": object, "oldObject": old,
    })
}
