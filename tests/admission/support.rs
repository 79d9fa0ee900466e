//! A guard in memory, and objects to ask it about.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, Method, Request, StatusCode, header},
};
use http_body_util::BodyExt as _;
use metal3_guard::{
    admission::{Admission, Paths, Patience, ReviewMetrics},
    core::finalizers::Additions,
    inventory::{Inventory, snapshot::Snapshot},
    server::{Budget, Handler as _},
};
use serde_json::{Value, json};

use crate::{corpus, log};

/// The paths over one inventory.
pub(crate) struct Guard {
    paths: Paths,
    pub(crate) metrics: ReviewMetrics,
}

impl Guard {
    pub(crate) fn new(inventory: Arc<dyn Inventory>, additions: Additions) -> Self {
        log::install();
        let metrics = ReviewMetrics::new();
        let admission = Admission {
            inventory,
            additions,
            patience: Patience::default(),
            metrics: metrics.clone(),
        };
        Self { paths: Paths::new(admission, Budget::default()), metrics }
    }

    pub(crate) fn with(inventory: impl Inventory + 'static) -> Self {
        Self::new(Arc::new(inventory), Additions::Deny)
    }

    /// Over a state of the corpus.
    pub(crate) fn of_state(name: &str) -> Self {
        let path = corpus::data().join("states").join(name);
        Self::with(Snapshot::load(&path).unwrap())
    }

    /// Over these objects, as YAML.
    pub(crate) fn of_yaml(yaml: &str) -> Self {
        Self::with(Snapshot::from_yaml("state.yaml", yaml).unwrap())
    }

    pub(crate) async fn send(&self, method: Method, uri: &str, body: impl Into<Body>) -> Reply {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.into())
            .unwrap();
        let response = self.paths.handle(request).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn post(&self, uri: &str, body: impl Into<Body>) -> Reply {
        self.send(Method::POST, uri, body).await
    }

    pub(crate) async fn ask(&self, uri: &str, review: &Value) -> Reply {
        self.post(uri, review.to_string()).await
    }
}

/// One guard for each state, made when first asked for.
#[derive(Default)]
pub(crate) struct Guards(BTreeMap<String, Guard>);

impl Guards {
    pub(crate) fn of(&mut self, state: &str) -> &Guard {
        self.0.entry(state.to_owned()).or_insert_with(|| Guard::of_state(state))
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn content_type(&self) -> &str {
        self.headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap())
    }

    /// The `AdmissionReview` of a 200.
    pub(crate) fn document(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The `response` of a 200.
    pub(crate) fn response(&self) -> Value {
        self.document()["response"].take()
    }

    /// The `response` of an allowing 200 without a patch.
    pub(crate) fn allowed(&self) -> Value {
        let response = self.response();
        assert_eq!(response["allowed"], true, "{response}");
        assert_eq!((&response["patch"], &response["patchType"]), (&Value::Null, &Value::Null));
        response
    }

    /// The `response.status` of a denial.
    pub(crate) fn denied(&self) -> Value {
        let response = self.response();
        assert_eq!(response["allowed"], false, "{response}");
        response["status"].clone()
    }

    /// The decoded patch.
    pub(crate) fn patch(&self) -> json_patch::Patch {
        let response = self.response();
        assert_eq!(response["patchType"], "JSONPatch", "{response}");
        decode(response["patch"].as_str().unwrap()).unwrap()
    }
}

/// A patch as it is sent: base64 of a JSON Patch.
pub(crate) fn decode(text: &str) -> Result<json_patch::Patch, String> {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let bytes = BASE64_STANDARD.decode(text).map_err(|error| error.to_string())?;
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

/// CAPM3's finalizer on a template.
pub(crate) const FINALIZER: &str = "metal3datatemplate.infrastructure.cluster.x-k8s.io";
/// When the terminating objects here were deleted.
pub(crate) const DELETED: &str = "2026-12-01T05:41:06Z";
/// The uid of every review made here.
pub(crate) const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

/// A v1beta1 template with CAPM3's finalizer.
pub(crate) fn template(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
        "kind": "Metal3DataTemplate",
        "metadata": {
            "name": name, "namespace": namespace, "finalizers": [FINALIZER],
            "uid": "4be5b0cb-d8b3-40eb-8218-fba46fbbf82c", "resourceVersion": "4219",
        },
        "spec": {"clusterName": "prod"},
    })
}

/// The same object with parts added or, where they are null, taken out.
pub(crate) fn but(mut object: Value, changes: &Value) -> Value {
    json_patch::merge(&mut object, changes);
    object
}

/// A machine that uses a template of its namespace.
pub(crate) fn machine(namespace: &str, name: &str, template: &str) -> Value {
    json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
        "kind": "Metal3Machine",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"dataTemplate": {"name": template}},
    })
}

/// A review of `object` (null for a deletion) and `old` (null for a creation).
pub(crate) fn review(operation: &str, subresource: &str, object: &Value, old: &Value) -> Value {
    let body = if object.is_null() { old } else { object };
    let (group, version) = body["apiVersion"].as_str().unwrap().split_once('/').unwrap();
    let kind = body["kind"].as_str().unwrap();
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": UID,
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": {
                "group": group, "version": version,
                "resource": format!("{}s", kind.to_ascii_lowercase()),
            },
            "subResource": subresource,
            "name": body["metadata"]["name"],
            "namespace": body["metadata"]["namespace"],
            "operation": operation,
            "userInfo": {"username": "kubernetes-admin"},
            "object": object,
            "oldObject": old,
            "dryRun": false,
        },
    })
}

/// A review of a template's deletion.
pub(crate) fn deletion(template: &Value) -> Value {
    review("DELETE", "", &Value::Null, template)
}

/// A list of objects as YAML.
pub(crate) fn yaml(objects: &[Value]) -> String {
    // JSON is YAML.
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}
