//! Objects for tests, made from JSON text so that the parser is part of what is tested.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    contents::Contents,
    objects::{Kind, Object, TEMPLATE_FINALIZER, Usage},
    review::{Operation, Review},
    verdict::Ruling,
};

/// The namespace of everything that says nothing else.
pub(super) const NS: &str = "prod";
/// When what terminates was deleted.
pub(super) const DELETED: &str = "2026-01-01T00:00:00Z";
/// When everything was made.
pub(super) const CREATED: &str = "2025-12-31T00:00:00Z";
/// The two API versions that CAPM3 serves.
pub(super) const VERSIONS: [&str; 2] = ["v1beta1", "v1beta2"];

/// An object in the making.
#[derive(Clone, Debug)]
pub(super) struct Make {
    kind: Kind,
    version: &'static str,
    json: Value,
}

pub(super) fn make(kind: Kind, name: &str) -> Make {
    let json = json!({
        "kind": kind.name(),
        "metadata": {
            "name": name, "namespace": NS, "uid": format!("uid-{name}"), "resourceVersion": "7",
            "creationTimestamp": CREATED,
        },
    });
    Make { kind, version: "v1beta1", json }
}

/// A live template that CAPM3 has put its finalizer on.
pub(super) fn template(name: &str) -> Make {
    bare_template(name).finalizers(&[TEMPLATE_FINALIZER])
}

/// A template without any finalizer.
pub(super) fn bare_template(name: &str) -> Make {
    make(Kind::Template, name)
}

pub(super) fn machine(name: &str) -> Make {
    make(Kind::Machine, name)
}

pub(super) fn claim(name: &str) -> Make {
    make(Kind::Claim, name)
}

pub(super) fn data(name: &str) -> Make {
    make(Kind::Data, name)
}

pub(super) fn machine_template(name: &str) -> Make {
    make(Kind::MachineTemplate, name)
}

pub(super) fn cluster(name: &str) -> Make {
    make(Kind::Cluster, name)
}

impl Make {
    /// Call it before what depends on the version.
    pub(super) fn version(mut self, version: &'static str) -> Self {
        assert!(self.json.get("spec").is_none(), "the version comes first");
        self.version = version;
        self
    }

    /// Sets any field.
    pub(super) fn set(mut self, path: &[&str], value: impl Into<Value>) -> Self {
        let mut at = &mut self.json;
        for key in path {
            at = &mut at[*key];
        }
        *at = value.into();
        self
    }

    /// Names a template, as CAPM3 writes it in this version.
    pub(super) fn uses(self, template: &str) -> Self {
        let reference = if self.version == "v1beta1" {
            json!({"apiVersion": self.api_version(), "kind": Kind::Template.name(),
                   "name": template, "namespace": NS})
        } else {
            json!({"name": template})
        };
        self.refers(reference)
    }

    /// Names a template by any reference.
    pub(super) fn refers(self, reference: impl Into<Value>) -> Self {
        let path: &[&str] = match self.kind {
            Kind::Machine => &["spec", "dataTemplate"],
            Kind::Claim | Kind::Data => &["spec", "template"],
            Kind::MachineTemplate => &["spec", "template", "spec", "dataTemplate"],
            other => panic!("{other} names no template"),
        };
        self.set(path, reference)
    }

    /// The claim and the index of a Metal3Data. v1beta1 does not write index 0.
    pub(super) fn for_claim(self, claim: &str, index: i64) -> Self {
        let written = index != 0 || self.version == "v1beta2";
        let made = self.set(&["spec", "claim"], json!({"name": claim, "namespace": NS}));
        if written { made.set(&["spec", "index"], index) } else { made }
    }

    /// `status.indexes` in the shape of this version.
    pub(super) fn indexes(self, entries: &[(&str, i64)]) -> Self {
        let shape: Value = if self.version == "v1beta1" {
            entries.iter().map(|(claim, index)| ((*claim).to_owned(), json!(index))).collect()
        } else {
            entries.iter().map(|(claim, index)| json!({"index": index, "name": claim})).collect()
        };
        self.set(&["status", "indexes"], shape)
    }

    pub(super) fn finalizers(self, finalizers: &[&str]) -> Self {
        self.set(&["metadata", "finalizers"], json!(finalizers))
    }

    pub(super) fn annotation(self, key: &str, value: impl Into<Value>) -> Self {
        self.set(&["metadata", "annotations", key], value)
    }

    pub(super) fn label(self, key: &str, value: &str) -> Self {
        self.set(&["metadata", "labels", key], value)
    }

    pub(super) fn terminating(self) -> Self {
        self.deleted_at(DELETED)
    }

    pub(super) fn deleted_at(self, time: impl Into<Value>) -> Self {
        self.set(&["metadata", "deletionTimestamp"], time)
    }

    pub(super) fn text(&self) -> String {
        self.value().to_string()
    }

    pub(super) fn value(&self) -> Value {
        let mut json = self.json.clone();
        json["apiVersion"] = self.api_version().into();
        json
    }

    pub(super) fn parse(&self) -> Object {
        Object::from_json(&self.text()).unwrap()
    }

    fn api_version(&self) -> String {
        format!("{}/{}", self.kind.group(), self.version)
    }
}

pub(super) fn contents(objects: &[Make]) -> Contents {
    let mut contents = Contents::default();
    for object in objects {
        assert_eq!(contents.insert(object.parse()), None, "a kind that contents hold");
    }
    contents
}

/// What names the template `workers`.
pub(super) fn usage(objects: &[Make]) -> Arc<Usage> {
    Arc::new(contents(objects).usage("workers"))
}

/// A review of the main resource, as a collection deletion sends it: without a name.
pub(super) fn review<'a>(
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
        user: "someone",
        object,
        old_object,
        ..Review::default()
    }
}

/// The rule that decided, with the HTTP code of a denial.
pub(super) fn outcome<P>(ruling: &Ruling<P>) -> (&'static str, Option<u16>) {
    (ruling.rule, ruling.denial().map(|denial| denial.code.number()))
}
