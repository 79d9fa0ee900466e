//! Delete first, strip finalizers after (rule 4.6).
//!
//! A finalizer taken from a live object can come back between the strip and the delete, and the
//! object then hangs (Cluster API #11812). So a strip can only be made from a [`Terminating`]
//! object, and only an observed deletionTimestamp makes one:
//!
//! ```
//! use metal3_guard::core::{objects::{Data, Object}, teardown::Lifecycle};
//! let json = r#"{"apiVersion":"infrastructure.cluster.x-k8s.io/v1beta1","kind":"Metal3Data",
//!   "metadata":{"name":"w-0","deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["f"]}}"#;
//! let Ok(Object::Data(data)) = Object::from_json(json) else { panic!("a Metal3Data") };
//! let Lifecycle::Terminating(data) = Lifecycle::of(data) else { panic!("it is terminating") };
//! assert!(data.strip("f").is_some());
//! ```
//!
//! There is no such method on a live object:
//!
//! ```compile_fail,E0599
//! use metal3_guard::core::{objects::Data, teardown::Lifecycle};
//! let Lifecycle::Live(data) = Lifecycle::of(Data::default()) else { panic!("it is live") };
//! data.strip("f");
//! ```

use std::sync::Arc;

use json_patch::Patch;

use super::objects::{Claim, Data, IpClaim, Kind, Meta, Template};

/// An object that the guard may write to.
pub trait Guarded {
    /// Its kind.
    fn kind(&self) -> Kind;
    /// Its identity.
    fn meta(&self) -> &Meta;
}

macro_rules! guarded {
    ($($type:ty => $kind:expr),+) => {$(
        impl Guarded for $type {
            fn kind(&self) -> Kind {
                $kind
            }

            fn meta(&self) -> &Meta {
                &self.meta
            }
        }
    )+};
}
guarded!(Claim => Kind::Claim, Data => Kind::Data, Template => Kind::Template);

impl Guarded for IpClaim {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl<T: Guarded> Guarded for Arc<T> {
    fn kind(&self) -> Kind {
        self.as_ref().kind()
    }

    fn meta(&self) -> &Meta {
        self.as_ref().meta()
    }
}

/// An object as last seen: alive, or on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lifecycle<T> {
    /// It has no deletionTimestamp.
    Live(Live<T>),
    /// It has one.
    Terminating(Terminating<T>),
}

impl<T: Guarded> Lifecycle<T> {
    /// Sorts an object by its deletionTimestamp. What a delete call returns goes in here too.
    pub fn of(object: T) -> Self {
        if object.meta().terminating() {
            Self::Terminating(Terminating(object))
        } else {
            Self::Live(Live(object))
        }
    }
}

/// An object without a deletionTimestamp: it can be woken or deleted, never stripped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live<T>(T);

impl<T: Guarded> Live<T> {
    /// Deletes exactly this version of this object.
    pub fn delete(&self) -> Write {
        Write { target: Target::of(&self.0), change: Change::Delete }
    }
}

/// An object with a deletionTimestamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminating<T>(T);

impl<T: Guarded> Terminating<T> {
    /// Takes one finalizer off; `None` when it is not there.
    pub fn strip(&self, finalizer: &str) -> Option<Write> {
        let meta = self.0.meta();
        meta.has_finalizer(finalizer).then(|| Write {
            target: Target::of(&self.0),
            change: Change::Strip {
                finalizer: finalizer.into(),
                kept: meta
                    .finalizers
                    .iter()
                    .filter(|have| &***have != finalizer)
                    .cloned()
                    .collect(),
            },
        })
    }
}

/// Leaves a time on the object, so that its own controller looks at it again. Harmless, and the
/// only change that is ever made to an object that is not terminating.
pub fn wake(object: &impl Guarded) -> Write {
    Write { target: Target::of(object), change: Change::Wake }
}

/// Writes `patch` to the status of a template.
pub(super) fn prune(template: &Terminating<Arc<Template>>, patch: Patch) -> Write {
    Write { target: Target::of(&template.0), change: Change::PruneIndexes(patch) }
}

/// A write with its precondition: this uid at this resourceVersion, or a conflict.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    target: Target,
    change: Change,
}

impl Write {
    /// The object, as it must still be.
    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// What to change.
    pub const fn change(&self) -> &Change {
        &self.change
    }
}

/// The object of a write and the precondition on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The kind.
    pub kind: Kind,
    /// The namespace.
    pub namespace: Box<str>,
    /// The name.
    pub name: Box<str>,
    /// The uid as read.
    pub uid: Box<str>,
    /// The resourceVersion as read.
    pub resource_version: Box<str>,
}

impl Target {
    fn of(object: &impl Guarded) -> Self {
        let meta = object.meta();
        Self {
            kind: object.kind(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
        }
    }
}

/// What a write changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Sets the annotation `metal3-guard.io/woken-at` to the time of the write.
    Wake,
    /// Applies this patch on `/status`.
    PruneIndexes(Patch),
    /// Deletes the object.
    Delete,
    /// Takes `finalizer` off, leaving `kept`. Only a [`Terminating`] object yields this.
    Strip {
        /// The finalizer that goes.
        finalizer: Box<str>,
        /// The finalizers that stay.
        kept: Box<[Box<str>]>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::objects::Object;

    fn data(deletion: Option<&str>, finalizers: &[&str]) -> Data {
        let json = serde_json::json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3Data",
            "metadata": {"name": "w-0", "namespace": "prod", "uid": "u", "resourceVersion": "7",
                         "deletionTimestamp": deletion, "finalizers": finalizers},
        });
        match Object::from_json(&json.to_string()).unwrap() {
            Object::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_live_object_is_deleted_under_its_precondition() {
        let Lifecycle::Live(live) = Lifecycle::of(data(None, &["a"])) else { panic!("live") };
        let write = live.delete();
        assert_eq!(write.change(), &Change::Delete);
        assert_eq!((&*write.target().uid, &*write.target().resource_version), ("u", "7"));
    }

    #[test]
    fn a_strip_takes_exactly_one_finalizer() {
        let terminating = data(Some("2026-01-01T00:00:00Z"), &["a", "b", "a"]);
        let Lifecycle::Terminating(it) = Lifecycle::of(terminating) else { panic!("terminating") };
        assert_eq!(it.strip("c"), None);
        let write = it.strip("a").unwrap();
        let kept: Box<[Box<str>]> = Box::new(["b".into()]);
        assert_eq!(write.change(), &Change::Strip { finalizer: "a".into(), kept });
    }

    #[test]
    fn an_unreadable_deletion_time_is_still_a_deletion() {
        assert!(matches!(Lifecycle::of(data(Some("soon"), &[])), Lifecycle::Terminating(_)));
    }
}
