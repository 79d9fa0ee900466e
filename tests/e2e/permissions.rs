//! What the account of the guard may do, and what not. The shipped roles give it only this: it
//! reads what verdicts need, and writes what repair needs.

use std::collections::BTreeSet;

use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use super::{Crds, env};
use crate::support::User;

const METAL3: &str = "infrastructure.cluster.x-k8s.io";
const CAPI: &str = "cluster.x-k8s.io";

/// All that the guard must be able to do: (group, resource, verbs).
const NEEDED: &[(&str, &str, &[&str])] = &[
    (METAL3, "metal3dataclaims", &["get", "list", "watch"]),
    (METAL3, "metal3datas", &["get", "list", "watch", "patch", "delete"]),
    (METAL3, "metal3datatemplates", &["get", "list", "watch", "patch"]),
    (METAL3, "metal3datatemplates/status", &["patch"]),
    (METAL3, "metal3machines", &["get", "list", "watch"]),
    (METAL3, "metal3machinetemplates", &["get", "list", "watch"]),
    (CAPI, "clusters", &["get", "list"]),
    ("ipam.metal3.io", "ipclaims", &["list"]),
    ("ipam.cluster.x-k8s.io", "ipaddressclaims", &["list"]),
    ("", "events", &["create", "patch"]),
];

/// What every account may do: ask about itself.
const EVERYONE: &[(&str, &str, &[&str])] = &[
    ("authentication.k8s.io", "selfsubjectreviews", &["create"]),
    ("authorization.k8s.io", "selfsubjectaccessreviews", &["create"]),
    ("authorization.k8s.io", "selfsubjectrulesreviews", &["create"]),
];

/// Kinds that no verb that writes may reach, nor their subresources, but for those of [`NEEDED`].
const METAL3_KINDS: &[&str] = &[
    "metal3clusters",
    "metal3clustertemplates",
    "metal3dataclaims",
    "metal3datas",
    "metal3datatemplates",
    "metal3machines",
    "metal3machinetemplates",
    "metal3remediations",
    "metal3remediationtemplates",
];

/// Everything else that it tries: (group and version, resource, namespaced, verbs).
const DENIED: &[(&str, &str, bool, &[&str])] = &[
    ("v1", "secrets", true, &["get", "list", "watch", "create", "update", "patch", "delete"]),
    ("v1", "configmaps", true, &["get", "list", "create", "update", "patch", "delete"]),
    ("v1", "pods", true, &["get", "list", "create", "update", "patch", "delete"]),
    ("v1", "services", true, &["get", "list", "create"]),
    ("v1", "serviceaccounts", true, &["get", "list", "create"]),
    ("v1", "events", true, &["get", "list", "watch", "update", "delete"]),
    ("events.k8s.io/v1", "events", true, &["get", "list", "create", "patch"]),
    ("v1", "namespaces", false, &["get", "list", "create", "update", "patch", "delete"]),
    ("v1", "nodes", false, &["get", "list", "update", "patch", "delete"]),
    ("coordination.k8s.io/v1", "leases", true, &["get", "list", "create", "update", "delete"]),
    (
        "cluster.x-k8s.io/v1beta1",
        "clusters",
        true,
        &["watch", "create", "update", "patch", "delete"],
    ),
    ("cluster.x-k8s.io/v1beta1", "machines", true, &["get", "list", "delete"]),
    ("ipam.metal3.io/v1alpha1", "ipclaims", true, &["get", "watch", "create", "patch", "delete"]),
    ("metal3.io/v1alpha1", "baremetalhosts", true, &["get", "list", "patch"]),
    (
        "admissionregistration.k8s.io/v1",
        "validatingwebhookconfigurations",
        false,
        &["get", "list", "create", "update", "patch", "delete"],
    ),
    (
        "admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        false,
        &["get", "list", "create", "update", "patch", "delete"],
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "clusterroles",
        false,
        &["get", "list", "create", "update", "patch", "delete"],
    ),
    ("rbac.authorization.k8s.io/v1", "clusterrolebindings", false, &["get", "list", "create"]),
    ("rbac.authorization.k8s.io/v1", "roles", true, &["get", "list", "create"]),
    (
        "apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        false,
        &["get", "list", "create", "update", "patch", "delete"],
    ),
    ("authentication.k8s.io/v1", "tokenreviews", false, &["create"]),
    ("authorization.k8s.io/v1", "subjectaccessreviews", false, &["create"]),
    ("certificates.k8s.io/v1", "certificatesigningrequests", false, &["list", "create"]),
];

#[tokio::test]
async fn the_guard_can_do_what_it_needs() {
    let guard = Account::new().await;
    for (group, resource, verbs) in NEEDED {
        for verb in *verbs {
            let (kind, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let review = json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {
                    "group": group, "resource": kind, "subresource": subresource,
                    "verb": verb, "namespace": guard.ns,
                }},
            });
            let answer = guard.review("selfsubjectaccessreviews", &review).await;
            assert_eq!(answer["status"]["allowed"], true, "{verb} {resource}: {answer}");

            let version = match *group {
                METAL3 => Crds::of_binary().version(),
                "ipam.metal3.io" => "v1alpha1",
                _ => "v1beta1",
            };
            let group = if group.is_empty() { "v1".into() } else { format!("{group}/{version}") };
            let tried = guard.tries(&group, resource, true, verb).await;
            // None of that name, no such kind in this cluster, or an empty Event is no refusal.
            let code = tried.map_or_else(|refused| refused.0, |()| 200);
            assert!([200, 404, 400, 422].contains(&code), "{verb} {resource}: {code}");
        }
    }
}

#[tokio::test]
async fn the_guard_can_do_nothing_else() {
    let guard = Account::new().await;
    let spec = json!({"spec": {"namespace": guard.ns}});
    let rules = guard.review("selfsubjectrulesreviews", &spec).await;
    assert_eq!(rules["status"]["incomplete"], false, "{rules}");
    let mut may = BTreeSet::new();
    for rule in rules["status"]["resourceRules"].as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                may.extend(texts(&rule["verbs"]).map(|verb| (group, resource, verb)));
            }
        }
    }
    let mut needed = BTreeSet::new();
    for (group, resource, verbs) in NEEDED.iter().chain(EVERYONE) {
        needed.extend(verbs.iter().map(|verb| (*group, *resource, *verb)));
    }
    assert_eq!(may, needed);
    for rule in rules["status"]["nonResourceRules"].as_array().unwrap() {
        // Discovery, health and version: what everyone may read.
        assert_eq!(texts(&rule["verbs"]).collect::<Vec<_>>(), ["get"], "{rule}");
    }
}

#[tokio::test]
async fn the_guard_is_refused_what_it_does_not_need() {
    let guard = Account::new().await;
    let group = format!("{METAL3}/{}", Crds::of_binary().version());
    let mut tried = 0;
    let is_needed = |resource: &str, verb: &str| {
        NEEDED.iter().any(|(group, needed, verbs)| {
            (*group, *needed) == (METAL3, resource) && verbs.contains(&verb)
        })
    };
    for kind in METAL3_KINDS {
        let whole = ["create", "update", "patch", "delete", "deletecollection"];
        let whole = whole.map(|verb| ((*kind).to_owned(), verb));
        let parts = ["status", "finalizers", "scale"];
        let parts =
            parts.map(|part| ["update", "patch"].map(|verb| (format!("{kind}/{part}"), verb)));
        for (resource, verb) in whole.into_iter().chain(parts.into_iter().flatten()) {
            if !is_needed(&resource, verb) {
                guard.is_refused(&group, &resource, true, verb).await;
                tried += 1;
            }
        }
    }
    for (group, resource, namespaced, verbs) in DENIED {
        for verb in *verbs {
            guard.is_refused(group, resource, *namespaced, verb).await;
            tried += 1;
        }
    }
    assert!(tried > 180, "only {tried} were tried");
}

#[tokio::test]
async fn the_guard_cannot_act_as_somebody_else() {
    let guard = Account::new().await;
    let url = format!("/api/v1/namespaces/{}/secrets", guard.ns);
    for who in ["admin", "system:serviceaccount:kube-system:default"] {
        let request = Request::get(&url).header("Impersonate-User", who).body(Vec::new()).unwrap();
        let (code, message) = guard.send(request).await.unwrap_err();
        // The exact verb depends on the version of the API server.
        assert!(code == 403 && message.contains("cannot impersonate"), "{code} {message}");
    }
}

/// The guard's own account, with the namespace it tries things in.
struct Account {
    client: Client,
    ns: String,
}

impl Account {
    async fn new() -> Self {
        let env = env().await;
        let space = env.space("rights").await;
        Self { client: env.plane.client(User::Guard).await, ns: space.ns().to_owned() }
    }

    /// The API server refuses, and because of the rights.
    async fn is_refused(&self, group: &str, resource: &str, namespaced: bool, verb: &str) {
        let Err((code, message)) = self.tries(group, resource, namespaced, verb).await else {
            panic!("the guard may {verb} {resource} of {group}")
        };
        let because = format!("cannot {verb} resource \"{resource}\"");
        assert!(code == 403 && message.contains(&because), "{verb} {resource}: {code} {message}");
    }

    /// One real request. The error is the code and what was said.
    async fn tries(
        &self,
        group: &str,
        resource: &str,
        namespaced: bool,
        verb: &str,
    ) -> Result<(), (u16, String)> {
        let root = if group.contains('/') { "apis" } else { "api" };
        let space = if namespaced { format!("/namespaces/{}", self.ns) } else { String::new() };
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let named = matches!(verb, "get" | "update" | "patch" | "delete");
        let parts = [resource, if named { "none-of-this-name" } else { "" }, subresource];
        let path = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
        let query = if verb == "watch" { "?watch=true&timeoutSeconds=1" } else { "" };
        let url = format!("/{root}/{group}{space}/{path}{query}");
        let method = match verb {
            "get" | "list" | "watch" => Method::GET,
            "create" => Method::POST,
            "update" => Method::PUT,
            "patch" => Method::PATCH,
            "delete" | "deletecollection" => Method::DELETE,
            other => panic!("{other} is no verb"),
        };
        let content_type =
            if verb == "patch" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(url);
        let request = request.header("Content-Type", content_type);
        self.send(request.body(b"{}".to_vec()).unwrap()).await
    }

    async fn send(&self, request: Request<Vec<u8>>) -> Result<(), (u16, String)> {
        match self.client.request_text(request).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) => Err((status.code, status.message.clone())),
            Err(error) => panic!("{error}"),
        }
    }

    async fn review(&self, resource: &str, review: &Value) -> Value {
        let url = format!("/apis/authorization.k8s.io/v1/{resource}");
        let request = Request::post(url)
            .header("Content-Type", "application/json")
            .body(serde_json::to_vec(review).unwrap())
            .unwrap();
        self.client.request(request).await.unwrap()
    }
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap())
}
