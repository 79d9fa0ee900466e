//! `clusterctl move` on the source cluster: what is marked must be able to go, and nothing may bring
//! it back (rules 4.1, 4.2 and 4.5; Cluster API #11812).

use std::{fs, path::Path};

use http::Method;
use serde_json::{Map, Value, json};

use super::{Crds, Space, TEMPLATE_FINALIZER, env, resource_of};
use crate::support::User;

/// The Cluster API finalizer on a Cluster.
pub(super) const CLUSTER_FINALIZER: &str = "cluster.cluster.x-k8s.io";
/// What clusterctl puts on an object that the target cluster already has.
pub(super) const MARK: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";

/// A Cluster with Cluster API's finalizer.
pub(super) fn cluster(space: &Space, name: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Cluster",
        "metadata": {
            "name": name, "namespace": space.ns(), "finalizers": [CLUSTER_FINALIZER],
        },
        "spec": {"controlPlaneEndpoint": {"host": "10.9.0.1", "port": 6443}},
    })
}

/// Marks an object as clusterctl does.
pub(super) async fn mark(space: &Space, resource: &str, name: &str) {
    let marked = json!({"metadata": {"annotations": {MARK: ""}}});
    space.patch(resource, name, "", marked).await.unwrap();
}

/// The eight requests of a move that the real clusterctl and the real CAPI manager made, sent again.
/// Number 7 is the manager, which puts its finalizer back on a Cluster that has lost it and is not
/// deleted yet. Let through, as it was when this was recorded, it makes number 8 leave a Cluster that
/// is terminating for ever, while clusterctl exits with 0.
#[tokio::test]
async fn a_recorded_move_leaves_nothing_behind() {
    let env = env().await;
    let mut space = env.space("recorded-move").await;
    let admin = space.client.clone();
    let capi = env.plane.client(User::Capi).await;
    let requests = recorded();
    assert_eq!(requests.len(), 8);

    let cluster = space.create(&placed(&space, &requests[0]["oldObject"])).await.unwrap();
    let mut template = placed(&space, &requests[1]["oldObject"]);
    template["metadata"]["ownerReferences"][0]["uid"] = cluster["metadata"]["uid"].clone();
    space.create(&template).await.unwrap();

    for (request, number) in requests.iter().zip(1..) {
        let resource = request["resource"]["resource"].as_str().unwrap();
        let name = request["name"].as_str().unwrap();
        let by_clusterctl = request["userInfo"]["username"] == "admin";
        space.client = if by_clusterctl { admin.clone() } else { capi.clone() };
        let manager = if by_clusterctl { "clusterctl" } else { "capi-manager-v1.9.4" };

        let now = space.get(resource, name).await.unwrap();
        let then = &request["oldObject"];
        assert_eq!(now["metadata"]["annotations"], then["metadata"]["annotations"], "{number}");
        assert_eq!(now["spec"], then["spec"], "{number}");
        if number < 8 {
            assert_eq!(now["metadata"]["finalizers"], then["metadata"]["finalizers"], "{number}");
        } else {
            assert_eq!(then["metadata"]["finalizers"], json!([CLUSTER_FINALIZER]));
            assert_eq!(now["metadata"]["finalizers"], json!(null), "it must have stayed away");
        }

        let url = format!("{}?fieldManager={manager}", space.url(resource, name, ""));
        let sent = if request["operation"] == "DELETE" {
            space.send(Method::DELETE, &space.url(resource, name, ""), None).await
        } else {
            let patch = difference(then, &request["object"]);
            space.send(Method::PATCH, &url, Some(("application/merge-patch+json", &patch))).await
        };
        if number != 7 {
            sent.unwrap_or_else(|refused| panic!("number {number}: {refused:?}"));
            continue;
        }
        let refused = sent.unwrap_err();
        assert_eq!((refused.code, &*refused.reason), (422, "Invalid"));
        for told in [CLUSTER_FINALIZER, "moved away by clusterctl", "capi-manager-v1.9.4 (capi)"] {
            assert!(refused.message.contains(told), "{told}: {}", refused.message);
        }
        // The manager tries again, and again.
        let patch = difference(then, &request["object"]);
        for _ in 0..3 {
            let again = Some(("application/merge-patch+json", &patch));
            assert_eq!(space.send(Method::PATCH, &url, again).await.unwrap_err().code, 422);
        }
    }
    space.gone("metal3datatemplates", "prod-1-workers").await;
    space.gone("clusters", "prod-1").await;
    let denied = denials(&env.guard.reviews(space.ns()));
    assert_eq!(denied, ["Cluster finalizers.moving"; 4]);
}

/// The order that upstream agreed on: mark, delete, strip. Nothing of it is refused, although the
/// template is in use by all that can use it: without rule 4.1's exception the deletion would be, and
/// without rule 4.5's the strip.
#[tokio::test]
async fn marked_deleted_and_stripped_in_the_newer_order() {
    let env = env().await;
    let space = env.space("newer-move").await;
    used_template(&space).await;
    space.create(&cluster(&space, "prod")).await.unwrap();

    for (resource, name, finalizer) in [
        ("metal3datatemplates", "workers", TEMPLATE_FINALIZER),
        ("clusters", "prod", CLUSTER_FINALIZER),
    ] {
        mark(&space, resource, name).await;
        space.delete(resource, name).await.unwrap();
        let held = space.get(resource, name).await.unwrap();
        assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held}");
        assert_eq!(held["metadata"]["finalizers"], json!([finalizer]));
        space.finish(resource, name).await;
        space.gone(resource, name).await;
    }
    assert_eq!(denials(&env.guard.reviews(space.ns())), [""; 0]);
    // Only what was marked went.
    assert!(space.get("metal3machines", "w-0").await.is_some());
    assert!(space.get("metal3dataclaims", "w-0").await.is_some());
    assert!(space.get("metal3datas", "workers-0").await.is_some());
}

/// The order of the clusterctl of today: mark, strip, delete. A template in use goes with its delete;
/// the same template without the mark stays.
#[tokio::test]
async fn a_marked_template_in_use_goes() {
    let env = env().await;
    let space = env.space("older-move").await;
    used_template(&space).await;
    assert_eq!(space.delete("metal3datatemplates", "workers").await.unwrap_err().code, 403);

    mark(&space, "metal3datatemplates", "workers").await;
    space.finish("metal3datatemplates", "workers").await;
    space.delete("metal3datatemplates", "workers").await.unwrap();
    assert!(space.get("metal3datatemplates", "workers").await.is_none());
    let denied = denials(&env.guard.reviews(space.ns()));
    assert_eq!(denied, ["Metal3DataTemplate deletion.in_use"]);
}

/// A template that a machine, a claim and a Metal3Data need.
async fn used_template(space: &Space) {
    for object in [
        space.template("workers"),
        space.machine("w-0", "workers"),
        space.claim("w-0", "workers"),
        space.data("workers", 0, "w-0"),
    ] {
        space.create(&object).await.unwrap();
    }
}

/// Kind and rule of each denial, in order.
fn denials(reviews: &[Value]) -> Vec<String> {
    let denied = reviews.iter().filter(|review| review["verdict"] == "deny");
    let text = |review: &Value, key: &str| review[key].as_str().unwrap().to_owned();
    denied.map(|review| format!("{} {}", text(review, "kind"), text(review, "rule"))).collect()
}

/// The requests of the recorded move, in order.
fn recorded() -> Vec<Value> {
    let reviews = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reviews");
    let mut cases: Vec<_> = fs::read_dir(reviews)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("recorded-move-"))
        .collect();
    // They are numbered.
    cases.sort();
    let read = |path: &std::path::PathBuf| -> Value {
        serde_json::from_slice(&fs::read(path.join("review.json")).unwrap()).unwrap()
    };
    cases.iter().map(|path| read(path)["request"].take()).collect()
}

/// A recorded object as it can be created in a test's namespace.
fn placed(space: &Space, recorded: &Value) -> Value {
    let metadata = &recorded["metadata"];
    let kept = ["name", "labels", "annotations", "finalizers", "ownerReferences"];
    let mut placed: Map<_, _> = kept
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), metadata.get(key)?.clone())))
        .collect();
    placed.insert("namespace".into(), json!(space.ns()));
    let version = if resource_of(recorded) == "clusters" {
        recorded["apiVersion"].clone()
    } else {
        json!(format!("infrastructure.cluster.x-k8s.io/{}", Crds::of_binary().version()))
    };
    json!({
        "apiVersion": version,
        "kind": recorded["kind"],
        "metadata": placed,
        "spec": recorded["spec"],
    })
}

/// What a client sent to make `new` of `old`: a merge patch of what clients write.
fn difference(old: &Value, new: &Value) -> Value {
    let part = |key: &str| merge_patch(&old["metadata"][key], &new["metadata"][key]);
    let patch = json!({
        "metadata": {"annotations": part("annotations"), "finalizers": part("finalizers")},
        "spec": merge_patch(&old["spec"], &new["spec"]),
    });
    let parts =
        [&patch["metadata"]["annotations"], &patch["metadata"]["finalizers"], &patch["spec"]];
    assert!(parts.iter().any(|part| **part != json!({})), "the request changes nothing");
    // An empty object changes nothing, but where there is none it would make one.
    without_empty(patch)
}

fn merge_patch(old: &Value, new: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (old, new) else {
        return if old == new { json!({}) } else { new.clone() };
    };
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    let mut patch: Map<_, _> = gone.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in after {
        if before.get(key) != Some(value) {
            patch.insert(key.clone(), merge_patch(before.get(key).unwrap_or(&Value::Null), value));
        }
    }
    Value::Object(patch)
}

fn without_empty(patch: Value) -> Value {
    let Value::Object(fields) = patch else { return patch };
    let fields = fields.into_iter().map(|(key, value)| (key, without_empty(value)));
    Value::Object(fields.filter(|(_, value)| *value != json!({})).collect())
}
