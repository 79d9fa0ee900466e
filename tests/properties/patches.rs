//! Patches change exactly what they must, and nothing when they are asked again.

use std::collections::BTreeSet;

use metal3_guard::core::{
    finalizers::{self, Additions},
    indexes,
    objects::{Kind, Object},
    review::{Operation, Review},
    verdict::{Answer, Preflight, Ruling, Verdict},
};
use proptest::{
    collection::{btree_map, btree_set, vec},
    prelude::*,
    sample::select,
};
use serde_json::{Value, json};

use crate::world::{DELETED, MOVE, NS, TEMPLATE, cases, contents, review, version};

const KEYS: [&str; 9] = ["", "a/b", "a~b", "~1", "/", "0", "-", "w-0", "ä \"\\"];

/// An index as it should be, or something that cannot be read as one.
fn index() -> impl Strategy<Value = Value> {
    prop_oneof![
        8 => (-1..6_i64).prop_map(Value::from),
        1 => select(vec![json!("1"), json!(null), json!(1.5), json!({}), json!([1]), json!(u64::MAX)]),
    ]
}

fn map_shape() -> impl Strategy<Value = Value> {
    btree_map(select(KEYS.to_vec()), index(), 0..8)
        .prop_map(|map| map.into_iter().map(|(key, index)| (key.to_owned(), index)).collect())
}

fn list_shape() -> impl Strategy<Value = Value> {
    let entry = prop_oneof![
        8 => (select(KEYS.to_vec()), index()).prop_map(|(k, i)| json!({"name": k, "index": i})),
        1 => (select(KEYS.to_vec()), index())
            .prop_map(|(k, i)| json!({"name": k, "index": i, "unknown": {"deep": [i]}})),
        1 => select(vec![json!("odd"), json!(null), json!({"index": 1}), json!({"name": "w-0"}),
                         json!({"name": 5, "index": 1}), json!([1]), json!({})]),
    ];
    vec(entry, 0..10).prop_map(Value::from)
}

#[derive(Clone, Debug)]
struct Truth {
    claims: BTreeSet<&'static str>,
    indexes: BTreeSet<i64>,
}

fn truth() -> impl Strategy<Value = Truth> {
    (btree_set(select(KEYS.to_vec()), 0..5), btree_set(0..6_i64, 0..4))
        .prop_map(|(claims, indexes)| Truth { claims, indexes })
}

impl Truth {
    /// Claims and Metal3Data as objects of the namespace.
    fn occupancy(&self, question: &indexes::Question) -> indexes::Occupancy {
        let mut world = crate::world::World::new();
        for name in &self.claims {
            let value = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
                "kind": "Metal3DataClaim", "metadata": {"name": name, "namespace": NS}});
            world.insert((Kind::Claim, (*name).to_owned()), value);
        }
        for index in &self.indexes {
            let name = format!("{TEMPLATE}-{index}");
            let value = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
                "kind": "Metal3Data", "metadata": {"name": name, "namespace": NS},
                "spec": {"index": index, "template": {"name": TEMPLATE}}});
            world.insert((Kind::Data, name), value);
        }
        let contents = contents(&world);
        contents.occupancy(&question.indexes, &contents.usage(&question.name))
    }

    fn is_stale(&self, name: &str, index: &Value) -> bool {
        index
            .as_i64()
            .is_some_and(|index| !self.claims.contains(name) && !self.indexes.contains(&index))
    }

    /// The status that should be stored, told from the JSON alone.
    fn pruned(&self, mut object: Value) -> Value {
        let Some(indexes) = object["status"].get_mut("indexes") else { return object };
        let before = indexes.clone();
        match indexes {
            Value::Object(map) => map.retain(|name, index| !self.is_stale(name, index)),
            Value::Array(list) => list.retain(|entry| {
                let name = entry.get("name").and_then(Value::as_str);
                !name.is_some_and(|name| self.is_stale(name, &entry["index"]))
            }),
            _ => {}
        }
        let emptied = *indexes != before && (*indexes == json!({}) || *indexes == json!([]));
        if emptied {
            object["status"].as_object_mut().unwrap().remove("indexes");
        }
        object
    }
}

fn prune(object: &Value, truth: &Truth) -> Ruling<json_patch::Patch> {
    let text = object.to_string();
    let sent = Review {
        subresource: "status",
        ..review(Operation::Update, Kind::Template, Some(&text), None)
    };
    match indexes::preflight(&sent) {
        Preflight::Decided(ruling) => ruling,
        Preflight::Ask(question) => {
            let occupancy = truth.occupancy(&question);
            indexes::judge(&sent, &question, &Answer::Verified(occupancy))
        }
    }
}

fn parsed_indexes(object: &Value) -> indexes::Indexes {
    match Object::from_json(&object.to_string()).unwrap() {
        Object::Template(template) => template.indexes,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(cases(384))]

    #[test]
    fn pruning_takes_exactly_the_stale_entries_and_once(
        version in version(),
        shape in prop_oneof![map_shape(), list_shape()],
        truth in truth(),
        unknown in index(),
    ) {
        let object = json!({
            "apiVersion": format!("infrastructure.cluster.x-k8s.io/{version}"),
            "kind": "Metal3DataTemplate",
            "metadata": {"name": TEMPLATE, "namespace": NS, "unknown": unknown},
            "spec": {"unknown": {"indexes": shape}},
            "status": {"indexes": shape, "lastUpdated": DELETED, "unknown": [unknown]},
        });
        let expected = truth.pruned(object.clone());
        let mut stored = object.clone();
        let ruling = prune(&object, &truth);
        if let Verdict::Patch(patch) = &ruling.verdict {
            prop_assert!(!patch.0.is_empty());
            json_patch::patch(&mut stored, patch).unwrap();
        }
        prop_assert_eq!(matches!(ruling.verdict, Verdict::Patch(_)), stored != object);
        prop_assert_eq!(&stored, &expected);
        prop_assert_eq!(prune(&stored, &truth).verdict, Verdict::Allow, "asked again");

        let before = parsed_indexes(&object);
        if let Verdict::Patch(_) = ruling.verdict {
            let occupied = truth.occupancy(&indexes::Question {
                namespace: NS.into(), name: TEMPLATE.into(), indexes: before.clone(),
            });
            prop_assert_eq!(before.without(&before.stale(&occupied)), parsed_indexes(&stored));
        }
    }

    #[test]
    fn stripped_finalizers_are_not_added_any_more(
        old in vec(select(vec!["a.io/x", "b.io/~/y", "c", "foregroundDeletion"]), 0..5),
        new in vec(select(vec!["a.io/x", "b.io/~/y", "c", "d.io/z", "orphan"]), 0..7),
        going in select(vec!["moved", "deleted", "live"]),
        unknown in index(),
    ) {
        let object = |finalizers: &[&str]| json!({
            "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": NS, "finalizers": finalizers,
                "unknown": unknown,
                "annotations": if going == "moved" { json!({MOVE: ""}) } else { json!({}) },
                "deletionTimestamp": if going == "deleted" { json!(DELETED) } else { json!(null) }},
            "spec": {"unknown": unknown},
        });
        let old_text = object(&old).to_string();
        let strip = |value: &Value| {
            let text = value.to_string();
            let sent = review(Operation::Update, Kind::Cluster, Some(&text), Some(&old_text));
            finalizers::mutate(&sent, Additions::Strip)
        };
        let mut stored = object(&new);
        let ruling = strip(&stored);
        if let Verdict::Patch(patch) = &ruling.verdict {
            json_patch::patch(&mut stored, patch).unwrap();
        }
        let kept: Vec<_> = new.iter().copied()
            .filter(|finalizer| going == "live" || old.contains(finalizer)).collect();
        prop_assert_eq!(&stored, &object(&kept));
        prop_assert_eq!(matches!(ruling.verdict, Verdict::Patch(_)), kept != new);
        let again = strip(&stored);
        prop_assert_eq!(again.verdict, Verdict::Allow);
        if going != "live" {
            prop_assert_eq!(again.rule, "finalizers.none_added");
        }
    }
}
