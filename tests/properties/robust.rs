//! No input makes a rule panic: bytes, any JSON, and JSON with the right names in the wrong places.

use std::sync::Arc;

use jiff::Timestamp;
use metal3_guard::core::{
    contents::Contents,
    deletion,
    finalizers::{self, Additions},
    indexes::{self, Occupancy},
    objects::{Kind, Object, Usage},
    plan::{Scope, Situation, Timing, plan},
    references::{self, Target},
    release,
    review::{Operation, Review},
    verdict::{Answer, Preflight, Unverified, Verdict},
};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Map, Value, json};

use crate::world::{cases, review};

const NAMES: [&str; 40] = [
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    "status",
    "items",
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "annotations",
    "labels",
    "ownerReferences",
    "managedFields",
    "manager",
    "time",
    "fieldsV1",
    "f:metadata",
    "f:finalizers",
    "v:\"a.io/x\"",
    "dataTemplate",
    "template",
    "claim",
    "index",
    "indexes",
    "clusterName",
    "paused",
    "errorMessage",
    "clusterctl.cluster.x-k8s.io/delete-for-move",
    "cluster.x-k8s.io/paused",
    "metal3-guard.io/force-delete",
    "metal3-guard.io/woken-at",
    "cluster.x-k8s.io/cluster-name",
    "",
    "~/",
    "0",
    "ä\u{0}",
];

const TEXTS: [&str; 14] = [
    "",
    "workers",
    "prod",
    "infrastructure.cluster.x-k8s.io/v1beta1",
    "infrastructure.cluster.x-k8s.io/v1beta2",
    "Metal3DataTemplate",
    "Metal3Data",
    "List",
    "a.io/x",
    "metal3datatemplate.infrastructure.cluster.x-k8s.io",
    "2026-01-01T00:00:00Z",
    "9999-12-30T22:00:00.999999999Z",
    "-009999-01-02T01:59:59Z",
    "\u{202e}\n",
];

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop_oneof![Just(0), Just(1), Just(i64::MIN), Just(i64::MAX), any::<i64>()]
            .prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        select(TEXTS.to_vec()).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(5, 48, 6, |inner| {
        let name = prop_oneof![
            8 => select(NAMES.to_vec()).prop_map(String::from),
            1 => ".{0,8}".prop_map(String::from),
        ];
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((name, inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// An object of a kind that rules read, with anything at all inside.
fn any_object() -> impl Strategy<Value = Value> {
    let kind = select(Kind::ALL.to_vec());
    let version = select(vec!["v1beta1", "v1beta2"]);
    let parts = (any_json(), any_json(), any_json(), any_json());
    let times = (select(TEXTS.to_vec()), select(TEXTS.to_vec()));
    (kind, version, parts, times, any::<u8>()).prop_map(
        |(kind, version, (metadata, spec, status, inner), (deleted, woken), dice)| {
            let mut value = json!({"apiVersion": format!("{}/{version}", kind.group()),
                "kind": kind.name(), "metadata": metadata, "spec": spec, "status": status});
            if dice & 1 == 0 {
                value["metadata"] = json!({"name": "workers", "namespace": "prod",
                    "deletionTimestamp": deleted, "finalizers": inner,
                    "annotations": {"metal3-guard.io/woken-at": woken}});
            }
            if dice & 2 == 0 {
                value["spec"] = json!({"dataTemplate": {"name": "workers"}, "claim": inner,
                    "template": {"name": "workers", "spec": {"dataTemplate": inner}}});
            }
            if dice & 4 == 0 {
                value["status"] = json!({"indexes": inner});
            }
            value
        },
    )
}

/// Text that may be anything: an object, any JSON, or not JSON at all.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => any_object().prop_map(|value| value.to_string()),
        3 => any_json().prop_map(|value| value.to_string()),
        1 => vec(any::<u8>(), 0..64).prop_map(|it| String::from_utf8_lossy(&it).into_owned()),
        1 => (any_object(), any::<prop::sample::Index>()).prop_map(|(value, at)| {
            let text = value.to_string();
            let cut: Vec<_> = text.chars().collect();
            cut[..at.index(cut.len())].iter().collect()
        }),
    ]
}

fn unverified<F>() -> Answer<F> {
    Answer::Unverified(Unverified { why: "no answer".into() })
}

/// Every rule, first to last step, with answers of all kinds.
fn run_all(review: &Review<'_>, contents: &Contents) {
    let usage: Arc<Usage> = Arc::new(contents.usage("workers"));
    if let Preflight::Ask(question) = deletion::preflight(review) {
        deletion::judge(&question, &Answer::Verified(Arc::clone(&usage)));
        assert!(deletion::judge(&question, &unverified::<Arc<Usage>>()).denial().is_some());
    }
    if let Preflight::Ask(question) = release::preflight(review) {
        release::judge(&question, &Answer::Verified(usage));
        assert!(release::judge(&question, &unverified::<Arc<Usage>>()).denial().is_none());
    }
    if let Preflight::Ask(question) = references::preflight(review) {
        let target = contents.target(&question.template, question.cluster.as_deref());
        references::judge(&question, &Answer::Verified(target));
        assert!(references::judge(&question, &unverified::<Target>()).denial().is_none());
    }
    if let Preflight::Ask(question) = indexes::preflight(review) {
        let occupancy = contents.occupancy(&question.indexes, &contents.usage(&question.name));
        for answer in [Answer::Verified(occupancy), Answer::Verified(Occupancy::default())] {
            assert_ne!(indexes::judge(review, &question, &answer).rule, "indexes.patch_failed");
        }
        let kept = indexes::judge(review, &question, &unverified());
        assert_eq!(kept.verdict, Verdict::Allow);
    }
    let refused = finalizers::validate(review).denial().is_some();
    let stripped = finalizers::mutate(review, Additions::Strip);
    assert_eq!(refused, stripped.verdict != Verdict::Allow);
    assert!(stripped.warnings.sent().iter().all(|it| !it.chars().any(char::is_control)));
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn no_review_makes_a_rule_panic(
        object in prop::option::of(any_text()),
        old in prop::option::of(any_text()),
        kind in select(Kind::ALL.to_vec()),
        operation in select(vec![
            Operation::Create, Operation::Update, Operation::Delete, Operation::Other,
        ]),
        subresource in select(vec!["", "", "status", "scale"]),
        others in vec(any_object(), 0..4),
    ) {
        let mut contents = Contents::default();
        for object in others {
            if let Ok(object) = Object::from_json(&object.to_string()) {
                contents.insert(object);
            }
        }
        for kind in [kind, Kind::Template] {
            let sent = Review {
                subresource, ..review(operation, kind, object.as_deref(), old.as_deref())
            };
            run_all(&sent, &contents);
        }
    }

    /// A snapshot's YAML and a review's JSON must mean the same object.
    #[test]
    fn yaml_reads_like_json(object in any_object()) {
        let text = object.to_string();
        let json = Object::from_json(&text).unwrap();
        match serde_saphyr::from_str::<Object>(&text) {
            Ok(yaml) => prop_assert_eq!(yaml, json),
            // YAML takes no unprintable characters.
            Err(error) => prop_assert!(
                text.chars().any(|c| !(' '..='~').contains(&c)), "{}: {}", error, text
            ),
        }
    }

    #[test]
    fn no_namespace_makes_a_plan_panic(
        objects in vec(any_object(), 0..6),
        now in select(vec![Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX]),
        since in prop::option::of(select(vec![Timestamp::MIN, Timestamp::MAX])),
        scope in select(vec![Scope::Controller, Scope::Person]),
    ) {
        let mut contents = Contents::default();
        for object in objects {
            if let Ok(object) = Object::from_json(&object.to_string()) {
                contents.insert(object);
            }
        }
        let names = contents.template_names();
        for template in names.iter().map(|name| &**name).chain(["workers", ""]) {
            let plan = plan(&Situation {
                contents: &contents, template, now, unchanged_since: since,
                timing: Timing::default(), scope,
            });
            prop_assert_eq!(plan.next_look.is_none(), plan.is_empty());
            for wait in &plan.waits {
                prop_assert!(!wait.to_string().is_empty());
            }
        }
    }
}

/// Scalars that JSON has not: none of them may spoil the object around it.
#[test]
fn yaml_scalars_read_as_text_or_as_missing() {
    for (field, scalar) in [
        ("deletionTimestamp", "2026-01-01T00:00:00Z"),
        ("generation", "99999999999999999999999999"),
        ("generation", "-99999999999999999999999999"),
        ("uid", "0x10"),
        ("uid", "-.nan"),
        ("uid", "~"),
        ("uid", "!!binary aGVsbG8="),
        ("resourceVersion", "18446744073709551616"),
        ("labels", "!custom {a: b}"),
        ("uid", "&anchor x"),
    ] {
        let yaml = format!(
            "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: Metal3Data\nmetadata:\n  \
             name: workers-0\n  {field}: {scalar}\nspec:\n  template: {{name: workers}}\n"
        );
        let object = match serde_saphyr::from_str::<Object>(&yaml) {
            Ok(Object::Data(data)) => data,
            other => panic!("{field}: {scalar}: {other:?}"),
        };
        assert_eq!(&*object.template.unwrap().name, "workers");
        assert_eq!(object.meta.terminating(), field == "deletionTimestamp", "{scalar}");
    }
}
