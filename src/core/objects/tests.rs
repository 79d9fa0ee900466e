use serde_json::{Value, json};

use super::*;
use crate::core::testing::{
    DELETED, Make, VERSIONS, claim, cluster, data, machine, machine_template, make, template,
};

fn reference(object: &Make) -> Option<Reference> {
    match object.parse() {
        Object::Machine(it) => it.template,
        Object::Claim(it) => it.template,
        Object::Data(it) => it.template,
        Object::MachineTemplate(it) => it.template,
        other => panic!("{other:?}"),
    }
}

fn parse_data(object: &Make) -> Data {
    match object.parse() {
        Object::Data(data) => data,
        other => panic!("{other:?}"),
    }
}

fn parse_meta(metadata: Value) -> Meta {
    let object = claim("w-0").set(&["metadata"], metadata).parse();
    object.meta().unwrap().clone()
}

fn referrers(version: &'static str) -> [Make; 4] {
    [machine("w-0"), claim("w-0"), data("workers-0"), machine_template("md")]
        .map(|object| object.version(version))
}

#[test]
fn every_kind_in_both_versions() {
    for version in VERSIONS {
        for kind in Kind::ALL {
            let object = make(kind, "x").version(version).parse();
            let found = match &object {
                Object::Cluster(_) => Kind::Cluster,
                Object::Data(_) => Kind::Data,
                Object::Claim(_) => Kind::Claim,
                Object::IpClaim(it) => it.kind,
                Object::Template(_) => Kind::Template,
                Object::Machine(_) => Kind::Machine,
                Object::MachineTemplate(_) => Kind::MachineTemplate,
                Object::List(_) | Object::Other(_) => panic!("{object:?}"),
            };
            assert_eq!(found, kind);
            assert_eq!(&*object.meta().unwrap().name, "x");
            assert_eq!(Kind::of_resource(kind.group(), kind.resource()), Some(kind));
        }
    }
}

#[test]
fn kinds_of_other_groups_are_not_ours() {
    for (api_version, kind) in [
        ("example.io/v1", "Metal3DataTemplate"),
        ("v1", "Metal3DataTemplate"),
        ("", "Metal3DataTemplate"),
        ("infrastructure.cluster.x-k8s.io/v1beta1", "metal3datatemplate"),
        ("infrastructure.cluster.x-k8s.io/v1beta1", "Cluster"),
        ("infrastructure.cluster.x-k8s.io/v1beta1", ""),
    ] {
        let json = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}});
        let Object::Other(other) = Object::from_json(&json.to_string()).unwrap() else {
            panic!("{json}")
        };
        assert_eq!(
            (&*other.api_version, &*other.kind, &*other.meta.name),
            (api_version, kind, "x")
        );
    }
    let mapped = Kind::of_resource("example.io", "metal3datatemplates");
    assert_eq!(mapped, None);
    // An older or a newer version is the same kind.
    for version in ["v1alpha5", "v1"] {
        let kind = Kind::of(&format!("{METAL3_GROUP}/{version}"), "Metal3Data");
        assert_eq!(kind, Some(Kind::Data));
    }
}

#[test]
fn references_as_each_version_writes_them() {
    for version in VERSIONS {
        for object in referrers(version) {
            let found = reference(&object.uses("workers")).unwrap();
            assert_eq!((&*found.name, found.local("prod")), ("workers", Some("workers")));
        }
    }
}

#[test]
fn reference_shapes() {
    let found = |reference: &str, namespace: Option<&str>| {
        Some(Reference { name: reference.into(), namespace: namespace.map(Box::from) })
    };
    for (written, expected) in [
        (json!({"name": "t"}), found("t", None)),
        (json!({"name": "t", "namespace": ""}), found("t", None)),
        (json!({"name": "t", "namespace": null}), found("t", None)),
        (json!({"name": "t", "namespace": 7}), found("t", None)),
        (json!({"name": "t", "namespace": "n"}), found("t", Some("n"))),
        (json!({"name": "t", "kind": "Metal3DataTemplate"}), found("t", None)),
        // v1beta1 references may lack the kind; another kind is not a template.
        (json!({"name": "t", "kind": ""}), found("t", None)),
        (json!({"name": "t", "kind": null}), found("t", None)),
        (json!({"name": "t", "kind": "Metal3Data"}), None),
        (json!({"name": "t", "uid": "u", "fieldPath": "spec", "unknown": {}}), found("t", None)),
        (json!({"name": ""}), None),
        (json!({"name": null}), None),
        (json!({"name": ["t"]}), None),
        (json!({"namespace": "n"}), None),
        (json!({}), None),
        (json!(null), None),
        (json!("t"), None),
        (json!([{"name": "t"}]), None),
        (json!(5), None),
    ] {
        for version in VERSIONS {
            for object in referrers(version) {
                let object = object.refers(written.clone());
                assert_eq!(reference(&object), expected, "{}", object.text());
            }
        }
    }
    for object in referrers("v1beta2") {
        assert_eq!(reference(&object), None, "no spec at all");
        assert_eq!(reference(&object.set(&["spec"], "odd")), None);
    }
}

#[test]
fn a_reference_to_another_namespace_is_not_local() {
    let written = |namespace: Option<&str>| Reference {
        name: "t".into(),
        namespace: namespace.map(Box::from),
    };
    assert_eq!(written(None).local("n"), Some("t"));
    assert_eq!(written(Some("n")).local("n"), Some("t"));
    assert_eq!(written(Some("m")).local("n"), None);
}

#[test]
fn a_missing_index_is_0_in_v1beta1_and_none_in_v1beta2() {
    for (version, written, expected) in [
        ("v1beta1", None, Some(0)),
        ("v1beta1", Some(json!(0)), Some(0)),
        ("v1beta1", Some(json!(3)), Some(3)),
        ("v1beta1", Some(json!(null)), Some(0)),
        ("v1alpha5", None, Some(0)),
        ("v1beta2", None, None),
        ("v1beta2", Some(json!(null)), None),
        ("v1beta2", Some(json!(0)), Some(0)),
        ("v1beta2", Some(json!(3)), Some(3)),
        ("v1beta2", Some(json!("3")), None),
        ("v1beta2", Some(json!(3.5)), None),
        ("v1beta2", Some(json!(u64::MAX)), None),
    ] {
        let object = data("workers-0").version(version);
        let object = match &written {
            Some(index) => object.set(&["spec", "index"], index.clone()),
            None => object,
        };
        assert_eq!(parse_data(&object).index, expected, "{version} {written:?}");
    }
}

#[test]
fn the_claim_of_a_metal3data() {
    for version in VERSIONS {
        let found = parse_data(&data("workers-0").version(version).for_claim("w-0", 0));
        assert_eq!(&*found.claim.unwrap().name, "w-0");
        for missing in [json!({}), json!(null), json!("w-0")] {
            let object = data("workers-0").version(version).set(&["spec", "claim"], missing);
            assert_eq!(parse_data(&object).claim, None);
        }
    }
    let failed = data("workers-0").set(&["status", "errorMessage"], "pool exhausted");
    assert_eq!(parse_data(&failed).error.as_deref(), Some("pool exhausted"));
}

/// CAPM3 #3209: the map became a list.
#[test]
fn capm3_3209_both_shapes_of_indexes_mean_the_same() {
    for version in VERSIONS {
        let object = template("workers").version(version).indexes(&[("a", 0), ("b", 7)]).parse();
        let Object::Template(Template { indexes, .. }) = object else { panic!("a template") };
        let entries: Vec<_> =
            indexes.entries().iter().map(|entry| (&*entry.claim, entry.index)).collect();
        assert_eq!(entries, [("a", 0), ("b", 7)]);
    }
}

#[test]
fn null_means_missing_everywhere() {
    let meta = parse_meta(json!({
        "name": null, "namespace": null, "uid": null, "resourceVersion": null, "labels": null,
        "annotations": null, "creationTimestamp": null, "deletionTimestamp": null,
        "finalizers": null, "ownerReferences": null, "managedFields": null,
    }));
    assert_eq!(meta, Meta::default());
    let json = r#"{"apiVersion":null,"kind":null,"metadata":null,"spec":null,"status":null,
        "items":null}"#;
    assert_eq!(Object::from_json(json).unwrap(), Object::default());
}

#[test]
fn wrong_types_mean_missing_and_spoil_nothing_else() {
    let odd = [json!(1), json!(1.5), json!(true), json!([]), json!({}), json!([{"a": [1]}])];
    for odd in odd {
        for key in ["namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"]
        {
            let meta = parse_meta(json!({"name": "w-0", key: odd}));
            assert_eq!(meta, Meta { name: "w-0".into(), ..Meta::default() }, "{key} {odd}");
        }
    }
    for odd in [json!(1), json!("x"), json!(false)] {
        for key in ["labels", "annotations", "finalizers", "ownerReferences"] {
            let meta = parse_meta(json!({"name": "w-0", key: odd}));
            assert_eq!(meta, Meta { name: "w-0".into(), ..Meta::default() }, "{key} {odd}");
        }
    }
    let meta = parse_meta(json!({"finalizers": ["a", 5, null, "", "b", "a"]}));
    let kept: Box<[Box<str>]> = ["a", "b", "a"].map(Box::from).into();
    assert_eq!(meta.finalizers, kept, "in order, duplicates kept");
}

#[test]
fn timestamps() {
    let deletion = |written: Value| parse_meta(json!({"deletionTimestamp": written})).deletion;
    let read = deletion(json!(DELETED)).unwrap();
    assert_eq!(read.to_string(), DELETED);
    assert_eq!(deletion(json!("2026-01-01T01:00:00+01:00")), Some(read));
    // There, but not readable: the object is on its way out all the same.
    for unreadable in ["yesterday", "2026-13-01T00:00:00Z", "0", "-999999-01-01T00:00:00Z"] {
        let found = deletion(json!(unreadable));
        assert_eq!(found, Some(Deletion { at: None }), "{unreadable}");
        assert_eq!(found.unwrap().to_string(), "an unreadable time");
    }
    for missing in [json!(null), json!("")] {
        assert_eq!(deletion(missing), None);
    }
    assert_eq!(parse_meta(json!({"creationTimestamp": "soon"})).created, None);
    assert!(parse_meta(json!({"creationTimestamp": DELETED})).created.is_some());
}

#[test]
fn annotations_count_by_key_or_by_value() {
    for value in [json!(""), json!("true"), json!("false"), json!(null), json!(1)] {
        let meta = parse_meta(json!({"annotations": {MOVE_ANNOTATION: value}}));
        assert!((meta.moving, meta.paused) == (true, false), "{value}");
        let meta = parse_meta(json!({"annotations": {PAUSED_ANNOTATION: value}}));
        assert!((meta.moving, meta.paused) == (false, true), "{value}");
    }
    for (value, reason) in [
        (json!("INC-7"), Some("INC-7")),
        (json!("  INC-7 "), Some("INC-7")),
        (json!(""), Some("")),
        (json!(" \n"), Some("")),
        (json!(null), None),
        (json!(true), None),
    ] {
        let meta = parse_meta(json!({"annotations": {FORCE_ANNOTATION: value}}));
        assert_eq!(meta.force_reason(), reason, "{value}");
    }
    let meta = parse_meta(json!({"annotations": {WOKEN_ANNOTATION: DELETED}}));
    assert_eq!(meta.woken.unwrap().to_string(), DELETED);
    let meta = parse_meta(json!({"annotations": {WOKEN_ANNOTATION: "late"}}));
    assert_eq!(meta.woken, None);
    assert_eq!(parse_meta(json!({"annotations": {"other": "x"}})), Meta::default());
}

#[test]
fn the_cluster_of_an_object_and_its_pause() {
    let meta = parse_meta(json!({"labels": {CLUSTER_LABEL: "c"}}));
    assert_eq!(meta.cluster.as_deref(), Some("c"));
    let of = |object: Make| match object.parse() {
        Object::Template(template) => template.cluster().map(str::to_owned),
        other => panic!("{other:?}"),
    };
    let labelled = template("workers").label(CLUSTER_LABEL, "label");
    assert_eq!(of(labelled.clone()).as_deref(), Some("label"));
    assert_eq!(of(labelled.set(&["spec", "clusterName"], "spec")).as_deref(), Some("spec"));
    assert_eq!(of(template("workers")), None);

    let paused = |object: Make| match object.parse() {
        Object::Cluster(cluster) => cluster.is_paused(),
        other => panic!("{other:?}"),
    };
    assert!(paused(cluster("c").set(&["spec", "paused"], true)));
    assert!(paused(cluster("c").annotation(PAUSED_ANNOTATION, "")));
    for live in [json!(false), json!(null), json!("true"), json!(1)] {
        assert!(!paused(cluster("c").set(&["spec", "paused"], live)));
    }
}

#[test]
fn owners() {
    let meta = parse_meta(json!({"ownerReferences": [
        {"apiVersion": "x/v1", "kind": "Metal3Data", "name": "d", "uid": "u", "controller": true},
        {"kind": 5},
        "odd",
    ]}));
    let found: Vec<_> =
        meta.owners.iter().map(|owner| (&*owner.kind, &*owner.name, &*owner.uid)).collect();
    assert_eq!(found, [("Metal3Data", "d", "u"), ("", "", ""), ("", "", "")]);
}

#[test]
fn lists_of_every_kind_are_taken_apart() {
    let items =
        json!([template("workers").value(), machine("w-0").value(), 5, null, {"kind": "X"}]);
    for kind in ["List", "Metal3DataTemplateList", "SomethingList"] {
        let json = json!({"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": ""},
            "items": items});
        let list = Object::from_json(&json.to_string()).unwrap();
        assert_eq!(list.meta(), None);
        let Object::List(found) = list else { panic!("{json}") };
        let kinds: Vec<_> = found
            .iter()
            .map(|item| match item {
                Object::Template(it) => &*it.meta.name,
                Object::Machine(it) => &*it.meta.name,
                Object::Other(it) => &*it.kind,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(kinds, ["workers", "w-0", "", "", "X"]);
    }
    // A thing that is merely called so.
    let named = json!({"apiVersion": "x/v1", "kind": "AllowList", "metadata": {"name": "a"}});
    assert!(matches!(Object::from_json(&named.to_string()).unwrap(), Object::Other(_)));
    let nested =
        json!({"kind": "List", "items": [{"kind": "List", "items": [machine("m").value()]}]});
    let Object::List(outer) = Object::from_json(&nested.to_string()).unwrap() else {
        panic!("list")
    };
    assert!(matches!(outer.as_slice(), [Object::List(inner)] if inner.len() == 1));
}

#[test]
fn what_is_not_an_object_is_an_error() {
    let deep = "[".repeat(100_000);
    let deep_object = r#"{"items":["#.repeat(100_000);
    for text in ["", "null", "7", "\"x\"", "[]", "{", "{} {}", "{\"kind\":}", &deep, &deep_object] {
        assert!(Object::from_json(text).is_err(), "{}", &text[..text.len().min(20)]);
    }
    let error = Object::from_json("[]").unwrap_err().to_string();
    assert!(error.contains("expected a Kubernetes object"), "{error}");
    for twice in [r#"{"kind":"a","kind":"b"}"#, r#"{"metadata":{"name":"a","name":"b"}}"#] {
        assert!(Object::from_json(twice).unwrap_err().to_string().contains("duplicate field"));
    }
}

#[test]
fn unknown_fields_are_ignored_at_every_level() {
    let plain = data("workers-0").uses("workers").for_claim("w-0", 1);
    let decorated = plain
        .clone()
        .set(&["futureField"], json!({"a": [1, 2]}))
        .set(&["metadata", "managedFields"], json!([{"fieldsV1": {}}]))
        .set(&["spec", "futureField"], 1)
        .set(&["spec", "template", "futureField"], json!([]))
        .set(&["status", "futureField"], json!(null));
    assert_eq!(decorated.parse(), plain.parse());
}
