//! AdmissionReviews of a wanted size in the form an API server sends, and states to ask.
//!
//! The bodies hold what bodies of real clusters hold: managedFields, kubectl's last-applied
//! annotation with its escapes, a network layout, `status.indexes`. Larger ones hold more of it.

#![allow(dead_code, reason = "each bench uses its own part of this")]
#![expect(clippy::indexing_slicing, reason = "assigning to a key of a JSON object adds the key")]

use std::fmt::Write as _;

use metal3_guard::{admission::Hook, core::objects::Object, inventory::snapshot::Snapshot};
use serde_json::{Value, json};

/// The sizes that benches ask for, in bytes.
pub(crate) const SIZES: [(&str, usize); 3] =
    [("0.9KiB", 920), ("8KiB", 8 * 1024), ("1MiB", 1024 * 1024)];

/// The namespace of everything here.
pub(crate) const NAMESPACE: &str = "prod";
/// A template that nothing names.
pub(crate) const FREE: &str = "control-plane";
/// A terminating template that nothing names.
pub(crate) const TERMINATING: &str = "retired";

/// Machines that a template has numbered, at most: what a rack holds.
const MOST_INDEXES: usize = 64;

const API_VERSION: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const FINALIZER: &str = "metal3datatemplate.infrastructure.cluster.x-k8s.io";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A review for each rule that goes the whole way: it is not decided before the facts are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// A DELETE of a template that nothing names.
    Deletion,
    /// An UPDATE of a machine that brings a reference to a live template.
    References,
    /// An UPDATE that adds a finalizer to a live template.
    Finalizers,
    /// A write to `/status` whose indexes are all true.
    Indexes,
    /// An UPDATE that takes CAPM3's finalizer off a terminating template.
    Release,
}

impl Case {
    pub(crate) const ALL: [Self; 5] =
        [Self::Deletion, Self::References, Self::Finalizers, Self::Indexes, Self::Release];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Deletion => "deletion",
            Self::References => "references",
            Self::Finalizers => "finalizers",
            Self::Indexes => "indexes",
            Self::Release => "release",
        }
    }

    pub(crate) const fn hook(self) -> Hook {
        match self {
            Self::Deletion => Hook::Deletion,
            Self::References => Hook::References,
            Self::Finalizers => Hook::ValidateFinalizers,
            Self::Indexes => Hook::Indexes,
            Self::Release => Hook::Release,
        }
    }

    /// A review of exactly `size` bytes, or the smallest of its kind if that is larger.
    pub(crate) fn review(self, size: usize) -> String {
        let fits = |bulk: usize| self.with_bulk(Some(bulk), 0).len() <= size;
        if !fits(0) {
            let plain = self.with_bulk(None, 0).len();
            return self.with_bulk(None, size.saturating_sub(plain));
        }
        let mut bulk = 0;
        for step in (0..16).rev().map(|bit| 1 << bit) {
            if fits(bulk + step) {
                bulk += step;
            }
        }
        let length = self.with_bulk(Some(bulk), 0).len();
        self.with_bulk(Some(bulk), size - length)
    }

    /// `bulk`: how much of what makes bodies large; None: not even what every object has.
    fn with_bulk(self, bulk: Option<usize>, pad: usize) -> String {
        let object = |name| Shape { name, bulk, finalizers: &[FINALIZER], ..Shape::default() };
        let live = object(FREE);
        let going = Shape { terminating: true, ..object(TERMINATING) };
        match self {
            Self::Deletion => envelope(
                "DELETE",
                FREE,
                ["Metal3DataTemplate", "metal3datatemplates", ""],
                ["null", &live.template(pad)],
            ),
            Self::References => {
                let old = Shape { finalizers: &[], ..object("node-0") };
                let new = Shape { reference: Some(FREE), ..old };
                envelope(
                    "UPDATE",
                    "node-0",
                    ["Metal3Machine", "metal3machines", ""],
                    [&new.machine(pad), &old.machine(0)],
                )
            }
            Self::Finalizers => {
                let new = Shape { finalizers: &[FINALIZER, "backup.example.com/hold"], ..live };
                envelope(
                    "UPDATE",
                    FREE,
                    ["Metal3DataTemplate", "metal3datatemplates", ""],
                    [&new.template(pad), &live.template(0)],
                )
            }
            Self::Indexes => {
                let new = Shape { indexed: true, ..live };
                let names = ["Metal3DataTemplate", "metal3datatemplates", "status"];
                envelope("UPDATE", FREE, names, [&new.template(pad), &live.template(0)])
            }
            Self::Release => {
                let new = Shape { finalizers: &[], ..going };
                let names = ["Metal3DataTemplate", "metal3datatemplates", ""];
                envelope("UPDATE", TERMINATING, names, [&new.template(pad), &going.template(0)])
            }
        }
    }
}

/// The request around the objects, its fields in the order of `k8s.io/api/admission/v1`.
fn envelope(
    operation: &str,
    name: &str,
    [kind, resource, sub]: [&str; 3],
    [object, old]: [&str; 2],
) -> String {
    let version = r#""group":"infrastructure.cluster.x-k8s.io","version":"v1beta1""#;
    let kind = format!(r#"{{{version},"kind":"{kind}"}}"#);
    let resource = format!(r#"{{{version},"resource":"{resource}"}}"#);
    let [sub, request_sub] = ["subResource", "requestSubResource"].map(|field| match sub {
        "" => String::new(),
        sub => format!(r#""{field}":"{sub}","#),
    });
    let options = match operation {
        "DELETE" => r#""kind":"DeleteOptions","propagationPolicy":"Background""#,
        _ => r#""kind":"UpdateOptions""#,
    };
    [
        r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"#,
        r#""uid":"0fb84b99-c5ab-4529-b31c-fd70ccce6273","#,
        &format!(r#""kind":{kind},"resource":{resource},{sub}"#),
        &format!(r#""requestKind":{kind},"requestResource":{resource},{request_sub}"#),
        &format!(r#""name":"{name}","namespace":"{NAMESPACE}","operation":"{operation}","#),
        r#""userInfo":{"username":"kubernetes-admin","groups":["system:authenticated"]},"#,
        &format!(r#""object":{object},"oldObject":{old},"dryRun":false,"#),
        &format!(r#""options":{{"apiVersion":"meta.k8s.io/v1",{options}}}}}}}"#),
    ]
    .concat()
}

/// What an object is like.
#[derive(Clone, Copy, Default)]
struct Shape<'a> {
    name: &'a str,
    finalizers: &'a [&'a str],
    terminating: bool,
    indexed: bool,
    reference: Option<&'a str>,
    bulk: Option<usize>,
}

impl Shape<'_> {
    fn template(self, pad: usize) -> String {
        let bulk = self.bulk.unwrap_or_default();
        let networks: Vec<_> = (0..bulk).map(network).collect();
        let mut object = json!({
            "apiVersion": API_VERSION,
            "kind": "Metal3DataTemplate",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {"clusterName": NAMESPACE},
        });
        if self.bulk.is_some() {
            object["spec"]["networkData"] = json!({"networks": {"ipv4": networks}});
        }
        self.finish(object, pad)
    }

    fn machine(self, pad: usize) -> String {
        let mut object = json!({
            "apiVersion": API_VERSION,
            "kind": "Metal3Machine",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {"image": {"url": "http://images.example.com/node.raw", "format": "raw"}},
        });
        if let Some(name) = self.reference {
            object["spec"]["dataTemplate"] = json!({"name": name});
        }
        self.finish(object, pad)
    }

    /// Adds what the API server and the controllers add, which the last-applied text lacks.
    fn finish(self, mut object: Value, pad: usize) -> String {
        let applied = object.to_string() + "\n";
        let meta = &mut object["metadata"];
        meta["uid"] = "33803348-6158-429f-9f3f-4314920e01a4".into();
        meta["resourceVersion"] = "52090".into();
        meta["creationTimestamp"] = "2026-11-03T08:12:02Z".into();
        if !self.finalizers.is_empty() {
            meta["finalizers"] = json!(self.finalizers);
        }
        if self.terminating {
            meta["deletionTimestamp"] = "2026-11-20T14:30:05Z".into();
            meta["deletionGracePeriodSeconds"] = 0.into();
        }
        let Some(bulk) = self.bulk else {
            if pad > DESCRIPTION_COST {
                meta["annotations"] = json!({"description": "x".repeat(pad - DESCRIPTION_COST)});
            }
            return with_indexes(object, self.indexed.then_some(1));
        };
        let mut annotations = json!({LAST_APPLIED: applied, "description": "x".repeat(pad)});
        for port in 0..bulk {
            annotations[format!("network.example.com/port-{port}")] =
                format!("switch-{} slot {}", port % 48, port / 48).into();
        }
        meta["annotations"] = annotations;
        meta["labels"] = json!({"cluster.x-k8s.io/cluster-name": NAMESPACE});
        meta["ownerReferences"] = json!([{
            "apiVersion": "cluster.x-k8s.io/v1beta1", "controller": false, "kind": "Cluster",
            "name": NAMESPACE, "uid": "886d6467-dd59-4ae1-9c03-e75438a9be77",
        }]);
        meta["managedFields"] = managed_fields(bulk);
        with_indexes(object, (bulk > 0 || self.indexed).then_some(indexed(bulk)))
    }
}

/// What an annotation adds to an object without annotations: `"annotations":{"description":""},`.
const DESCRIPTION_COST: usize = 33;

fn with_indexes(mut object: Value, entries: Option<usize>) -> String {
    if let (Some(entries), Some("Metal3DataTemplate")) = (entries, object["kind"].as_str()) {
        let indexes: serde_json::Map<_, _> =
            (0..entries).map(|index| (claim_name(index), index.into())).collect();
        object["status"] = json!({"indexes": indexes, "lastUpdated": "2026-11-03T08:15:00Z"});
    }
    object.to_string()
}

/// How many entries `status.indexes` has.
fn indexed(bulk: usize) -> usize {
    (bulk / 4 + 1).min(MOST_INDEXES)
}

fn claim_name(index: usize) -> String {
    format!("{FREE}-{index}")
}

fn network(at: usize) -> Value {
    json!({
        "id": format!("net-{at}"),
        "link": "eno1",
        "ipAddressFromIPPool": format!("pool-{at}"),
        "routes": [{"network": "10.0.0.0", "prefix": 16, "gateway": {"fromIPPool": "pool-0"}}],
    })
}

fn managed_fields(bulk: usize) -> Value {
    let mut annotations = json!({".": {}});
    annotations[format!("f:{LAST_APPLIED}")] = json!({});
    for port in 0..bulk {
        annotations[format!("f:network.example.com/port-{port}")] = json!({});
    }
    let mut finalizers = json!({".": {}});
    finalizers[format!("v:\"{FINALIZER}\"")] = json!({});
    let mut indexes = json!({".": {}});
    for index in 0..indexed(bulk) {
        indexes[format!("f:{}", claim_name(index))] = json!({});
    }
    json!([
        {
            "apiVersion": API_VERSION, "fieldsType": "FieldsV1", "operation": "Update",
            "manager": "kubectl-client-side-apply", "time": "2026-11-03T08:12:02Z",
            "fieldsV1": {
                "f:metadata": {
                    "f:annotations": annotations,
                    "f:labels": {".": {}, "f:cluster.x-k8s.io/cluster-name": {}},
                },
                "f:spec": {
                    ".": {}, "f:clusterName": {},
                    "f:networkData": {".": {}, "f:networks": {".": {}, "f:ipv4": {}}},
                },
            },
        },
        {
            "apiVersion": API_VERSION, "fieldsType": "FieldsV1", "operation": "Update",
            "manager": "cluster-api-provider-metal3-manager", "time": "2026-11-03T08:12:10Z",
            "fieldsV1": {"f:metadata": {
                "f:finalizers": finalizers,
                "f:ownerReferences": {
                    ".": {}, "k:{\"uid\":\"886d6467-dd59-4ae1-9c03-e75438a9be77\"}": {},
                },
            }},
        },
        {
            "apiVersion": API_VERSION, "fieldsType": "FieldsV1", "operation": "Update",
            "manager": "cluster-api-provider-metal3-manager", "subresource": "status",
            "time": "2026-11-03T08:15:00Z",
            "fieldsV1": {"f:status": {".": {}, "f:indexes": indexes, "f:lastUpdated": {}}},
        },
    ])
}

/// The templates of [`Case`], and machines that name other templates, each with its claim and its
/// Metal3Data: 50 machines to a template.
pub(crate) fn objects(machines: usize) -> impl Iterator<Item = Value> {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": "9b1c7f0e-2f6d-4c59-8f0e-6a1d3c5b7e90",
                "resourceVersion": "52090",
                "creationTimestamp": "2026-11-03T08:12:02Z",
                "finalizers": [format!("{}.infrastructure.cluster.x-k8s.io", kind.to_lowercase())],
                "labels": {"cluster.x-k8s.io/cluster-name": NAMESPACE},
            },
            "spec": spec,
        })
    };
    let free = object("Metal3DataTemplate", FREE, json!({"clusterName": NAMESPACE}));
    let mut going = object("Metal3DataTemplate", TERMINATING, json!({"clusterName": NAMESPACE}));
    going["metadata"]["deletionTimestamp"] = "2026-11-20T14:30:05Z".into();
    // The claims that the indexes of `Case::Indexes` name, without making the template used.
    let claims = (0..MOST_INDEXES).map(move |index| {
        object("Metal3DataClaim", &claim_name(index), json!({"template": {"name": "other"}}))
    });
    let others = (0..machines).flat_map(move |at| {
        let reference = json!({"name": format!("workers-{}", at / 50)});
        let machine = format!("node-{at}");
        let data = json!({
            "index": at % 50, "template": reference, "claim": {"name": machine},
        });
        [
            object("Metal3Machine", &machine, json!({"dataTemplate": reference})),
            object("Metal3DataClaim", &machine, json!({"template": reference})),
            object("Metal3Data", &format!("data-{at}"), data),
        ]
    });
    [free, going].into_iter().chain(claims).chain(others)
}

/// These objects as an inventory.
pub(crate) fn snapshot(machines: usize) -> Snapshot {
    let parse = |value: Value| Object::from_json(&value.to_string()).unwrap_or_default();
    Snapshot::from_objects(objects(machines).map(parse))
}

/// These objects as the text of one file of a state directory.
pub(crate) fn state_file(machines: usize) -> String {
    let mut text = String::from(r#"{"apiVersion":"v1","kind":"List","items":["#);
    let mut lead = "";
    for object in objects(machines) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{lead}{object}");
        lead = ",\n";
    }
    text + "]}"
}
