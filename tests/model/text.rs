//! Objects as the API server would write them, for the rules to read, and as a person would name
//! them.

use metal3_guard::core::{
    contents::Contents,
    objects::{
        CLAIM_FINALIZER, CLUSTER_LABEL, DATA_FINALIZER, Kind, MOVE_ANNOTATION, Object,
        TEMPLATE_FINALIZER, WOKEN_ANNOTATION,
    },
};
use serde_json::{Value, json};

use crate::world::{Finalizers, Id, Meta, N, Objects};

pub(crate) const NS: &str = "prod";
pub(crate) const TEMPLATE: &str = "workers";
/// When everything that terminates was deleted, and when nothing has changed since.
pub(crate) const DELETED: &str = "2026-01-01T00:00:00Z";
/// When what was woken was woken: at the first opportunity.
pub(crate) const WOKEN: &str = "2026-01-01T00:00:05Z";
/// The Cluster of everything here; there is an object only in the models of a move.
const CLUSTER: &str = "prod";

const NAMES: [(Finalizers, &str); 5] = [
    (Finalizers::TEMPLATE, TEMPLATE_FINALIZER),
    (Finalizers::CLAIM, CLAIM_FINALIZER),
    (Finalizers::DATA, DATA_FINALIZER),
    (Finalizers::MACHINE, "metal3machine.infrastructure.cluster.x-k8s.io"),
    (Finalizers::CLUSTER, "cluster.cluster.x-k8s.io"),
];

impl Finalizers {
    pub(crate) fn names(self) -> Vec<&'static str> {
        NAMES.iter().filter(|(it, _)| self.has(*it)).map(|(_, name)| *name).collect()
    }

    /// For a person: without the group that all of them end in.
    pub(crate) fn short(self) -> String {
        let names = self.names().into_iter();
        let short = names.map(|name| name.split('.').next().unwrap_or(name));
        short.collect::<Vec<_>>().join(" and ")
    }

    pub(crate) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        names.into_iter().fold(Self::NONE, |set, name| {
            let (known, _) = NAMES.iter().find(|(_, known)| *known == name).unwrap();
            set.with(*known)
        })
    }
}

impl Id {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Template => Kind::Template,
            Self::Machine(_) => Kind::Machine,
            Self::Claim(_) => Kind::Claim,
            Self::Data(_) => Kind::Data,
            Self::Cluster => Kind::Cluster,
        }
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Template => TEMPLATE.into(),
            Self::Machine(i) | Self::Claim(i) => format!("w-{i}"),
            Self::Data(i) => format!("{TEMPLATE}-{i}"),
            Self::Cluster => CLUSTER.into(),
        }
    }

    /// The object that a rule speaks of.
    pub(crate) fn named(kind: Kind, name: &str) -> Self {
        Self::all().find(|id| id.kind() == kind && id.name() == name).unwrap()
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
}

/// The JSON of an object that is there.
pub(crate) fn json(version: &str, id: Id, objects: &Objects) -> Value {
    let meta = objects.meta(id).unwrap();
    let mut value = json!({
        "apiVersion": format!("{}/{version}", id.kind().group()), "kind": id.kind().name(),
        "metadata": metadata(id, *meta),
    });
    let reference = |kind: Kind, name: &str| match version {
        "v1beta1" => json!({"apiVersion": format!("{}/v1beta1", kind.group()),
            "kind": kind.name(), "name": name, "namespace": NS}),
        _ => json!({"name": name}),
    };
    let template = reference(Kind::Template, TEMPLATE);
    match id {
        Id::Template => {
            let shape = indexes(version, objects.template.unwrap().indexes);
            if !shape.is_null() {
                value["status"] = json!({"indexes": shape});
            }
        }
        Id::Machine(_) => value["spec"] = json!({"dataTemplate": template}),
        Id::Claim(_) => value["spec"] = json!({"template": template}),
        Id::Data(i) => {
            let claim = Id::Claim(objects.data[i].unwrap().claim.into());
            let claim = reference(Kind::Claim, &claim.name());
            value["spec"] = json!({"template": template, "claim": claim});
            if i > 0 || version != "v1beta1" {
                value["spec"]["index"] = json!(i);
            }
        }
        Id::Cluster => value["spec"] = json!({"paused": true}),
    }
    value
}

fn metadata(id: Id, meta: Meta) -> Value {
    let mut value = json!({
        "name": id.name(), "namespace": NS, "uid": format!("uid-{id}"), "resourceVersion": "1",
        "finalizers": meta.finalizers.names(), "labels": {CLUSTER_LABEL: CLUSTER},
    });
    if meta.terminating {
        value["deletionTimestamp"] = DELETED.into();
    }
    if meta.moving {
        value["annotations"][MOVE_ANNOTATION] = "".into();
    }
    if meta.woken {
        value["annotations"][WOKEN_ANNOTATION] = WOKEN.into();
    }
    value
}

/// `status.indexes`: an object in v1beta1, else a list by index.
fn indexes(version: &str, indexes: [Option<u8>; N]) -> Value {
    let mut entries: Vec<_> = indexes
        .iter()
        .enumerate()
        .filter_map(|(claim, index)| index.map(|index| (index, Id::Claim(claim).name())))
        .collect();
    entries.sort();
    match version {
        _ if entries.is_empty() => Value::Null,
        "v1beta1" => entries.into_iter().map(|(index, name)| (name, json!(index))).collect(),
        _ => entries.iter().map(|(index, name)| json!({"index": index, "name": name})).collect(),
    }
}

/// `status.indexes` as the rules read them from a template.
pub(crate) fn read_indexes(template: &Value) -> [Option<u8>; N] {
    let Object::Template(template) = Object::from_json(&template.to_string()).unwrap() else {
        panic!("{template}")
    };
    let mut indexes = [None; N];
    for entry in template.indexes.entries() {
        let Id::Claim(claim) = Id::named(Kind::Claim, &entry.claim) else { unreachable!() };
        indexes[claim] = Some(u8::try_from(entry.index).unwrap());
    }
    indexes
}

/// The namespace as a complete list of it would show it.
pub(crate) fn contents(version: &str, objects: &Objects) -> Contents {
    let mut contents = Contents::default();
    for id in objects.ids() {
        let text = json(version, id, objects).to_string();
        assert_eq!(contents.insert(Object::from_json(&text).unwrap()), None);
    }
    contents
}

/// What is left, for a person.
pub(crate) fn describe(objects: &Objects) -> String {
    let each = objects.ids().map(|id| {
        let meta = objects.meta(id).unwrap();
        let state = if meta.terminating { "terminating" } else { "live" };
        let moving = if meta.moving { ", marked for the move" } else { "" };
        let held = match meta.finalizers {
            Finalizers::NONE => "no finalizer".into(),
            finalizers => format!("held by {}", finalizers.short()),
        };
        format!("{id} ({state}{moving}, {held})")
    });
    let each: Vec<_> = each.collect();
    if each.is_empty() { "nothing".into() } else { each.join(", ") }
}
