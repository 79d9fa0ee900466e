//! Random namespaces as JSON, the way the API server would hold them.

use std::collections::BTreeMap;

use metal3_guard::core::{
    contents::Contents,
    objects::{CLAIM_FINALIZER, DATA_FINALIZER, Kind, Object, TEMPLATE_FINALIZER},
    review::{Operation, Review},
};
use proptest::{collection::vec, option, prelude::*, sample::select, test_runner::Config};
use serde_json::{Value, json};

pub(crate) const NS: &str = "prod";
pub(crate) const TEMPLATE: &str = "workers";
pub(crate) const DELETED: &str = "2026-01-01T00:00:00Z";
pub(crate) const FOREIGN: &str = "a.io/x";
pub(crate) const IPAM: &str = "ipclaim.ipam.metal3.io";
pub(crate) const MOVE: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";
pub(crate) const PAUSED: &str = "cluster.x-k8s.io/paused";

/// All objects of a namespace, by kind and name.
pub(crate) type World = BTreeMap<(Kind, String), Value>;

pub(crate) fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

pub(crate) fn contents(world: &World) -> Contents {
    let mut contents = Contents::default();
    for value in world.values() {
        let handed_back = contents.insert(Object::from_json(&value.to_string()).unwrap());
        assert_eq!(handed_back, None);
    }
    contents
}

pub(crate) fn review<'a>(
    operation: Operation,
    kind: Kind,
    object: Option<&'a str>,
    old_object: Option<&'a str>,
) -> Review<'a> {
    Review {
        operation,
        group: kind.group(),
        resource: kind.resource(),
        kind: kind.name(),
        namespace: NS,
        object,
        old_object,
        ..Review::default()
    }
}

/// Whether an object has a deletionTimestamp, told from its JSON alone.
pub(crate) fn terminating(value: &Value) -> bool {
    value["metadata"]["deletionTimestamp"].as_str().is_some_and(|time| !time.is_empty())
}

pub(crate) fn has_finalizer(value: &Value, finalizer: &str) -> bool {
    let list = value["metadata"]["finalizers"].as_array();
    list.is_some_and(|list| list.iter().any(|it| it == finalizer))
}

/// Whether a reference points to the template, told from its JSON alone.
pub(crate) fn points_here(reference: &Value) -> bool {
    let text = |key: &str| reference[key].as_str().filter(|text| !text.is_empty());
    text("name") == Some(TEMPLATE)
        && text("namespace").is_none_or(|namespace| namespace == NS)
        && text("kind").is_none_or(|kind| kind == "Metal3DataTemplate")
}

/// The reference of an object to a template, by its kind.
pub(crate) fn reference(kind: Kind, value: &Value) -> &Value {
    match kind {
        Kind::Machine => &value["spec"]["dataTemplate"],
        Kind::Claim | Kind::Data => &value["spec"]["template"],
        Kind::MachineTemplate => &value["spec"]["template"]["spec"]["dataTemplate"],
        _ => &Value::Null,
    }
}

pub(crate) fn version() -> impl Strategy<Value = &'static str> {
    select(vec!["v1beta1", "v1beta2"])
}

/// A reference that often points to the template, and else in one of the ways that do not count.
fn any_reference() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => Just(json!({"name": TEMPLATE})),
        2 => Just(json!({"name": TEMPLATE, "namespace": NS, "kind": "Metal3DataTemplate"})),
        1 => Just(json!({"name": TEMPLATE, "namespace": "", "kind": ""})),
        1 => Just(json!({"name": TEMPLATE, "namespace": "elsewhere"})),
        1 => Just(json!({"name": TEMPLATE, "kind": "Secret"})),
        1 => Just(json!({"name": "masters"})),
        1 => select(vec![json!({}), json!(null), json!("workers"), json!({"name": 5})]),
    ]
}

/// `metadata`; a terminating object without finalizers cannot be, so it always has one.
fn metadata(
    kind: Kind,
    name: &'static str,
    finalizers: &'static [&'static str],
) -> impl Strategy<Value = Value> {
    let finalizers = vec(select(finalizers), 0..3);
    (any::<bool>(), finalizers, 0..20_u8).prop_map(move |(dying, mut finalizers, mark)| {
        if dying && finalizers.is_empty() {
            finalizers.push(FOREIGN);
        }
        let mut meta = json!({
            "name": name, "namespace": NS, "uid": format!("{kind}-{name}"), "resourceVersion": "1",
            "creationTimestamp": "2025-12-31T00:00:00Z", "finalizers": finalizers,
            "labels": {"cluster.x-k8s.io/cluster-name": "c"}, "unknown": [1, {"a": null}],
        });
        if dying {
            meta["deletionTimestamp"] = DELETED.into();
        }
        match mark {
            0 => meta["annotations"] = json!({MOVE: ""}),
            1 => meta["annotations"] = json!({PAUSED: "true"}),
            _ => {}
        }
        meta
    })
}

fn object(kind: Kind, version: &str, metadata: impl Into<Value>) -> Value {
    let metadata = metadata.into();
    json!({"apiVersion": format!("{}/{version}", kind.group()), "kind": kind.name(),
           "metadata": metadata})
}

const CLAIMS: [&str; 4] = ["w-0", "w-1", "w-2", "gone"];

pub(crate) fn a_template() -> impl Strategy<Value = Value> {
    let meta =
        metadata(Kind::Template, TEMPLATE, &[TEMPLATE_FINALIZER, TEMPLATE_FINALIZER, FOREIGN]);
    let indexes = vec((select(CLAIMS.to_vec()), 0..6_i64), 0..4);
    (version(), meta, indexes).prop_map(|(version, meta, indexes)| {
        let mut value = object(Kind::Template, version, meta);
        let shape: Value = if version == "v1beta1" {
            indexes.iter().map(|(name, index)| ((*name).to_owned(), json!(index))).collect()
        } else {
            indexes.iter().map(|(name, index)| json!({"name": name, "index": index})).collect()
        };
        if !indexes.is_empty() {
            value["status"] = json!({"indexes": shape, "lastUpdated": DELETED});
        }
        value
    })
}

fn a_referrer(kind: Kind, name: &'static str) -> impl Strategy<Value = Value> {
    let meta = metadata(kind, name, &[CLAIM_FINALIZER, FOREIGN]);
    (version(), meta, any_reference()).prop_map(move |(version, meta, reference)| {
        let mut value = object(kind, version, meta);
        match kind {
            Kind::Machine => value["spec"]["dataTemplate"] = reference,
            Kind::Claim => value["spec"]["template"] = reference,
            _ => value["spec"]["template"]["spec"]["dataTemplate"] = reference,
        }
        value
    })
}

fn a_data(name: &'static str) -> impl Strategy<Value = Value> {
    let meta =
        metadata(Kind::Data, name, &[CLAIM_FINALIZER, DATA_FINALIZER, DATA_FINALIZER, FOREIGN]);
    let claim = prop_oneof![
        4 => select(CLAIMS.to_vec()).prop_map(|name| json!({"name": name})),
        1 => select(vec![json!({"name": "w-0", "namespace": "elsewhere"}), json!({})]),
    ];
    (version(), meta, any_reference(), claim, option::of(0..6_i64)).prop_map(
        |(version, meta, template, claim, index)| {
            let mut value = object(Kind::Data, version, meta);
            value["spec"] = json!({"template": template, "claim": claim, "index": index});
            value
        },
    )
}

/// An IP claim as its own controller leaves it; it is owned by one of the Metal3Data.
fn an_ip_claim(kind: Kind, name: &'static str) -> impl Strategy<Value = Value> {
    let owner = select(vec!["workers-0", "workers-1", "workers-2"]);
    (any::<bool>(), owner).prop_map(move |(dying, owner)| {
        let mut value = object(
            kind,
            "v1beta1",
            json!({"name": name, "namespace": NS, "uid": format!("{kind}-{name}"),
                "resourceVersion": "1", "finalizers": [IPAM], "ownerReferences": [
                    {"kind": "Metal3Data", "name": owner, "uid": format!("Metal3Data-{owner}")}]}),
        );
        if dying {
            value["metadata"]["deletionTimestamp"] = DELETED.into();
        }
        value
    })
}

/// A namespace with at most one template of the name, and what may hold it.
pub(crate) fn a_world() -> impl Strategy<Value = World> {
    type Part = BoxedStrategy<Option<Value>>;
    fn maybe(kind: Kind, name: &'static str) -> Part {
        option::weighted(0.4, a_referrer(kind, name)).boxed()
    }
    fn maybe_data(name: &'static str) -> Part {
        option::weighted(0.6, a_data(name)).boxed()
    }
    let cluster = any::<u8>().prop_map(|dice| {
        let meta = json!({"name": "c", "namespace": NS, "uid": "c", "resourceVersion": "1"});
        let mut value = object(Kind::Cluster, "v1beta1", meta);
        value["spec"]["paused"] = (dice < 20).into();
        value
    });
    let parts: Vec<Part> = vec![
        option::weighted(0.7, a_template()).boxed(),
        option::weighted(0.3, a_referrer(Kind::Machine, "w-0")).boxed(),
        option::weighted(0.2, a_referrer(Kind::Machine, "w-9")).boxed(),
        maybe(Kind::Claim, "w-0"),
        maybe(Kind::Claim, "w-1"),
        maybe(Kind::Claim, "w-2"),
        maybe_data("workers-0"),
        maybe_data("workers-1"),
        maybe_data("workers-2"),
        maybe(Kind::MachineTemplate, "md"),
        option::of(an_ip_claim(Kind::IpClaim, "ip-a")).boxed(),
        option::of(an_ip_claim(Kind::IpAddressClaim, "ip-b")).boxed(),
        option::of(cluster).boxed(),
    ];
    parts.prop_map(|parts| {
        let mut world = World::new();
        for value in parts.into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let kind = Kind::of(&text(&value["apiVersion"]), &text(&value["kind"])).unwrap();
            world.insert((kind, text(&value["metadata"]["name"])), value);
        }
        world
    })
}
