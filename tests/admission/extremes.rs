//! Reviews that are right but extreme.

use std::sync::Arc;

use metal3_guard::{core::finalizers::Additions, inventory::snapshot::Snapshot};
use serde_json::{Value, json};

use crate::support::{
    DELETED, FINALIZER, Guard, UID, but, deletion, machine, review, template, yaml,
};

#[tokio::test]
async fn names_may_have_253_characters() {
    let long = |start: &str| format!("{start}{}", "n".repeat(253 - start.len()));
    let (name, namespace) = (long("template-"), "s".repeat(63));
    let machines: Vec<_> =
        (0..4).map(|n| machine(&namespace, &long(&format!("machine-{n}-")), &name)).collect();
    let guard = Guard::of_yaml(&yaml(&machines));
    let status =
        guard.ask("/validate/deletion", &deletion(&template(&namespace, &name))).await.denied();
    assert_eq!(status["details"]["name"], *name);
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 4);
    assert_eq!(causes[3]["message"], format!("Metal3Machine/{}", long("machine-3-")));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains(&format!("{namespace}/{name}")), "{message}");

    // A warning has no room for such a name, and must still come through.
    let new = machine(&namespace, "m", &long("gone-"));
    let response = guard
        .ask("/validate/references", &review("CREATE", "", &new, &Value::Null))
        .await
        .allowed();
    let warning = response["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("Metal3DataTemplate gone-nnn"), "{warning}");
    assert_eq!(warning.len(), 120);
}

#[tokio::test]
async fn keys_of_indexes_are_escaped() {
    let keys = ["a/b", "a~b", "~1", "~0", "~", "/", "", "a~1b/c~0", "ä \"\\"];
    for kept in keys {
        let mut indexes = serde_json::Map::new();
        for (number, key) in keys.into_iter().enumerate() {
            indexes.insert(key.to_owned(), number.into());
        }
        let claim = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3DataClaim",
            "metadata": {"name": kept, "namespace": "a"}, "spec": {"template": {"name": "t"}},
        });
        // The state takes no object without a name; then all entries are stale.
        let held = if kept.is_empty() { yaml(&[]) } else { yaml(&[claim]) };
        let mut new = but(template("a", "t"), &json!({"status": {"indexes": indexes}}));
        let old = template("a", "t");
        let guard = Guard::of_yaml(&held);
        let reply = guard.ask("/mutate/indexes", &review("UPDATE", "status", &new, &old)).await;
        json_patch::patch(&mut new, &reply.patch()).unwrap();
        let left = new["status"].get("indexes");
        let wanted = json!({kept: indexes[kept]});
        assert_eq!(left, (!kept.is_empty()).then_some(&wanted), "{kept:?} is held");
        // Its own output is final.
        guard.ask("/mutate/indexes", &review("UPDATE", "status", &new, &old)).await.allowed();
    }
}

#[tokio::test]
async fn ten_thousand_finalizers() {
    let many = |prefix: &str| -> Vec<String> {
        (0..10_000).map(|n| format!("{prefix}.example.com/finalizer-{n}")).collect()
    };
    let with = |finalizers: Vec<String>| {
        let metadata = json!({"deletionTimestamp": DELETED, "finalizers": finalizers});
        but(template("a", "t"), &json!({"metadata": metadata}))
    };
    let old = with(many("old"));
    let mut reordered = many("old");
    reordered.reverse();
    let kept = review("UPDATE", "", &with(reordered), &old);
    let both = review("UPDATE", "", &with([many("old"), many("new")].concat()), &old);
    let guard = Guard::of_yaml(&yaml(&[]));
    for path in ["/mutate/finalizers", "/validate/finalizers"] {
        guard.ask(path, &kept).await.allowed();
        let reply = guard.ask(path, &both).await;
        let status = reply.denied();
        assert_eq!(status["code"], 422);
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("new.example.com/finalizer-0"), "{message}");
        assert!(message.contains("9995 more"), "{message}");
        assert!(reply.body.len() < 4096, "an answer of {} bytes", reply.body.len());
    }

    let empty = Snapshot::from_yaml("empty", &yaml(&[])).unwrap();
    let guard = Guard::new(Arc::new(empty), Additions::Strip);
    let reply = guard.ask("/mutate/finalizers", &both).await;
    let mut stripped = both["request"]["object"].clone();
    json_patch::patch(&mut stripped, &reply.patch()).unwrap();
    assert_eq!(stripped, old, "exactly the added ones are gone");
    guard.ask("/mutate/finalizers", &review("UPDATE", "", &stripped, &old)).await.allowed();
    // A validating hook never strips.
    assert_eq!(guard.ask("/validate/finalizers", &both).await.denied()["code"], 422);
}

#[tokio::test]
async fn managed_fields_of_one_mib() {
    let fields: serde_json::Map<_, _> =
        (0..35_000).map(|n| (format!("f:example.com/annotation-{n:06}"), json!({}))).collect();
    let entry = |manager: &str, fields: Value| {
        json!({
            "manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "time": DELETED,
            "fieldsV1": {"f:metadata": fields},
        })
    };
    let annotations = entry("annotator", json!({"f:annotations": fields}));
    assert!(annotations.to_string().len() > 1 << 20);
    let added = entry("late-operator", json!({"f:finalizers": {"v:\"late.example.com/x\"": {}}}));

    let old = but(
        template("a", "t"),
        &json!({"metadata": {"deletionTimestamp": DELETED, "managedFields": [annotations]}}),
    );
    let new = but(
        old.clone(),
        &json!({"metadata": {
            "finalizers": [FINALIZER, "late.example.com/x"], "managedFields": [annotations, added],
        }}),
    );
    let guard = Guard::of_yaml(&yaml(&[machine("a", "m", "t")]));
    let status = guard.ask("/mutate/finalizers", &review("UPDATE", "", &new, &old)).await.denied();
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("late-operator"), "{message}");

    let live = but(old, &json!({"metadata": {"deletionTimestamp": null}}));
    let status = guard.ask("/validate/deletion", &deletion(&live)).await.denied();
    assert_eq!(status["code"], 403);
}

#[tokio::test]
async fn a_denial_names_at_most_100_holders_and_the_true_number() {
    let machines: Vec<_> = (0..1000).map(|n| machine("a", &format!("m-{n:04}"), "t")).collect();
    let guard = Guard::of_yaml(&yaml(&machines));
    let status = guard.ask("/validate/deletion", &deletion(&template("a", "t"))).await.denied();
    assert_eq!(status["details"]["causes"].as_array().unwrap().len(), 100);
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("1000 Metal3Machines"), "{message}");
    assert!(message.contains("Metal3Machine/m-0002 and 997 more"), "{message}");
}

#[tokio::test]
async fn v1beta1_is_answered_as_v1beta1() {
    let guard = Guard::of_yaml(&yaml(&[machine("a", "m", "t")]));
    for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
        let mut asked = deletion(&template("a", "t"));
        asked["apiVersion"] = version.into();
        let answer = guard.ask("/validate/deletion", &asked).await.document();
        assert_eq!(answer["apiVersion"], version);
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], UID);
        assert_eq!(answer["response"]["allowed"], false);
    }
    let mut asked = deletion(&template("a", "t"));
    asked["apiVersion"] = "admission.k8s.io/v2".into();
    let reply = guard.ask("/validate/deletion", &asked).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("admission.k8s.io/v2"), "{}", reply.text());
}
