//! May these finalizers be added? (rule 4.2)
//!
//! The API server refuses new finalizers on a terminating object by itself, after mutating and
//! before validating admission, and without saying who wrote them. An object marked for
//! `clusterctl move` has no deletionTimestamp yet: there the guard is the only one to refuse, and
//! without it the object hangs on the source (Cluster API #11812).

use std::{borrow::Cow, collections::BTreeSet};

use json_patch::{Patch, PatchOperation, ReplaceOperation, jsonptr::PointerBuf};
use serde::Deserialize;

use super::{
    lenient::{Lenient, List, Map, Obj, Read, Text},
    objects::{Deletion, Meta, Object},
    review::{Operation, Parsed, Review},
    verdict::{Cause, Code, Denial, Ruling, Subject, Verdict, join_and},
};

/// What the mutating hook does with an addition that is not allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Additions {
    /// Refuse the write.
    #[default]
    Deny,
    /// Let the write go on without the added finalizers.
    Strip,
}

/// The rule for a validating hook: the two objects alone decide.
pub fn validate(review: &Review<'_>) -> Ruling {
    match examine(review) {
        Finding::Fine(rule) => Ruling::allow(rule),
        Finding::NotOurs => review.not_ours("finalizers.not_ours", "/validate/finalizers"),
        Finding::Refused(refused) => refused.deny(review),
    }
}

/// The rule for a mutating hook, the only one that sees additions to a terminating object.
pub fn mutate(review: &Review<'_>, additions: Additions) -> Ruling<Patch> {
    match examine(review) {
        Finding::Fine(rule) => Ruling::allow(rule),
        Finding::NotOurs => review.not_ours("finalizers.not_ours", "/mutate/finalizers"),
        Finding::Refused(refused) if additions == Additions::Strip => refused.strip(review),
        Finding::Refused(refused) => refused.deny(review).widen(),
    }
}

enum Finding<'a> {
    Fine(&'static str),
    NotOurs,
    Refused(Box<Refused<'a>>),
}

struct Refused<'a> {
    /// The object after the write.
    object: Cow<'a, Object>,
    /// The added finalizers, each once, in the order of the object.
    added: Vec<Box<str>>,
    why: Why,
    /// Nothing but what the kind's own controller or the server puts there: a write from a stale
    /// copy, not a violation. The garbage collector and CAPM3 do it in every foreground delete.
    stale_copy: bool,
}

#[derive(Clone, Copy)]
enum Why {
    Terminating(Deletion),
    Moving,
}

fn examine<'a>(review: &Review<'a>) -> Finding<'a> {
    if review.operation != Operation::Update {
        return Finding::NotOurs;
    }
    if !review.subresource.is_empty() {
        // The server drops metadata changes of a subresource write.
        return Finding::Fine("finalizers.subresource");
    }
    let (Parsed::Object(object), Parsed::Object(old)) = (review.parse_object(), review.parse_old())
    else {
        // Nothing to compare; the server judges what it cannot read by its own schema.
        return Finding::Fine("finalizers.no_object");
    };
    let (Some(new_meta), Some(old_meta)) = (object.meta(), old.meta()) else {
        return Finding::Fine("finalizers.no_object");
    };
    let added = added(old_meta, new_meta);
    if added.is_empty() {
        return Finding::Fine("finalizers.none_added");
    }
    let why = match old_meta.deletion {
        Some(deletion) => Why::Terminating(deletion),
        None if old_meta.moving => Why::Moving,
        None => return Finding::Fine("finalizers.live"),
    };
    let stale_copy = added.iter().all(|finalizer| is_own(finalizer, review.group));
    Finding::Refused(Box::new(Refused { object, added, why, stale_copy }))
}

/// set(new) - set(old), in the order of the new list.
fn added(old: &Meta, new: &Meta) -> Vec<Box<str>> {
    let mut seen: BTreeSet<&str> = old.finalizers.iter().map(|it| &**it).collect();
    new.finalizers.iter().filter(|finalizer| seen.insert(finalizer)).cloned().collect()
}

/// Finalizers that the API server itself manages (`metav1.FinalizerOrphanDependents` and
/// `FinalizerDeleteDependents`).
const BUILT_IN: [&str; 2] = ["foregroundDeletion", "orphan"];

/// Groups whose controllers put finalizers on each other's kinds, longest suffix first.
const SUBGROUPS: [&str; 6] = [
    "infrastructure.cluster.x-k8s.io",
    "controlplane.cluster.x-k8s.io",
    "bootstrap.cluster.x-k8s.io",
    "ipam.cluster.x-k8s.io",
    "ipam.metal3.io",
    "cluster.x-k8s.io",
];

/// Whether a finalizer is built in or comes from the controllers of the object's own group.
fn is_own(finalizer: &str, group: &str) -> bool {
    if BUILT_IN.contains(&finalizer) {
        return true;
    }
    let domain = finalizer.split('/').next().unwrap_or_default();
    let is_under = |group: &str| {
        domain.strip_suffix(group).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let owner = SUBGROUPS.into_iter().find(|group| is_under(group));
    match owner {
        Some(owner) => owner == group,
        None => !group.is_empty() && is_under(group),
    }
}

impl Refused<'_> {
    fn deny(&self, review: &Review<'_>) -> Ruling {
        let subject = self.subject(review);
        let names = self.names();
        let who = self.writer(review);
        let noun = if self.added.len() == 1 { "finalizer" } else { "finalizers" };
        let (state, harm, advice) = match self.why {
            Why::Terminating(deletion) => (
                format!("is being deleted since {deletion}"),
                "would keep it from going",
                "A controller must look at deletionTimestamp before it adds a finalizer",
            ),
            Why::Moving => (
                "is being moved away by clusterctl (annotation \
                 clusterctl.cluster.x-k8s.io/delete-for-move)"
                    .into(),
                "would leave it terminating here for ever",
                "If no move is running, remove that annotation first",
            ),
        };
        let added = format!("{noun} {names}, added by {who}, {harm}");
        let message = format!("{subject} {state}: {added}. {advice}");
        // For an Invalid status kubectl shows the causes and not the message.
        let causes = vec![Cause {
            reason: "FieldValueForbidden",
            message: format!("the object {state}: {added}. {advice}"),
            field: "metadata.finalizers",
        }];
        let denial = Denial { code: Code::Invalid, message, subject, causes, retry_after: None };
        Ruling::deny(self.rule(), denial).note("finalizers-refused", names)
    }

    fn strip(&self, review: &Review<'_>) -> Ruling<Patch> {
        let kept: Vec<_> = self
            .object
            .meta()
            .into_iter()
            .flat_map(|meta| meta.finalizers.iter())
            .filter(|finalizer| !self.added.contains(finalizer))
            .map(|finalizer| finalizer.as_ref().into())
            .collect();
        let patch = Patch(vec![PatchOperation::Replace(ReplaceOperation {
            path: PointerBuf::from_tokens(["metadata", "finalizers"]),
            value: serde_json::Value::Array(kept),
        })]);
        if !applies(review.object, &patch) {
            return self.deny(review).widen();
        }
        let names = self.names();
        let why = match self.why {
            Why::Terminating(_) => "it is being deleted",
            Why::Moving => "it is being moved away",
        };
        Ruling { verdict: Verdict::Patch(patch), ..Ruling::allow(self.strip_rule()) }
            .warn(format!("not added, {why}: {names}"))
            .note("finalizers-stripped", names)
    }

    const fn rule(&self) -> &'static str {
        match (self.stale_copy, self.why) {
            (true, Why::Terminating(_)) => "finalizers.stale_copy",
            (false, Why::Terminating(_)) => "finalizers.terminating",
            (_, Why::Moving) => "finalizers.moving",
        }
    }

    const fn strip_rule(&self) -> &'static str {
        match self.why {
            Why::Terminating(_) => "finalizers.stripped_terminating",
            Why::Moving => "finalizers.stripped_moving",
        }
    }

    fn names(&self) -> String {
        const NAMED: usize = 5;
        let mut names: Vec<String> =
            self.added.iter().take(NAMED).map(|it| it.chars().take(253).collect()).collect();
        if self.added.len() > NAMED {
            names.push(format!("{} more", self.added.len() - NAMED));
        }
        join_and(&names)
    }

    fn subject(&self, review: &Review<'_>) -> Subject {
        let mut subject = review.subject();
        if let Some(meta) = self.object.meta() {
            let (namespace, name) = review.or_named(&meta.namespace, &meta.name);
            (subject.namespace, subject.name) = (namespace.into(), name.into());
            subject.uid = meta.uid.as_ref().into();
        }
        subject
    }

    /// The field manager that owns the added finalizers, else the user. Read only for a refusal:
    /// managedFields can be a megabyte.
    fn writer(&self, review: &Review<'_>) -> String {
        let manager = review.object.and_then(|json| manager_of(json, &self.added));
        match (manager, review.user) {
            (Some(manager), "") => format!("field manager {manager}"),
            (Some(manager), user) => format!("field manager {manager} ({user})"),
            (None, "") => "an unnamed user".into(),
            (None, user) => user.into(),
        }
    }
}

/// Whether a patch can be applied to the object as it was received.
pub(super) fn applies(object: Option<&str>, patch: &Patch) -> bool {
    object
        .and_then(|json| serde_json::from_str(json).ok())
        .is_some_and(|mut value| json_patch::patch(&mut value, patch).is_ok())
}

/// The newest manager that owns one of `finalizers` in the object's managedFields.
fn manager_of(json: &str, finalizers: &[Box<str>]) -> Option<String> {
    let Managed { metadata: Read(Obj(metadata)) } = serde_json::from_str(json).ok()?;
    let owns = |entry: &ManagedEntry| {
        let fields = &entry.fields_v1.0.0.metadata.0.0.finalizers.0.0;
        finalizers
            .iter()
            .any(|finalizer| fields.contains_key(format!("v:\"{finalizer}\"").as_str()))
    };
    let mut best: Option<ManagedEntry> = None;
    for Obj(entry) in metadata.managed_fields.0.0 {
        let newer = best.as_ref().is_none_or(|best| best.time.0.0 <= entry.time.0.0);
        if owns(&entry) && newer {
            best = Some(entry);
        }
    }
    best.and_then(|entry| entry.manager.0.0).map(|manager| manager.chars().take(128).collect())
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Managed {
    metadata: Read<Obj<ManagedMeta>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ManagedMeta {
    managed_fields: Read<List<Obj<ManagedEntry>>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ManagedEntry {
    manager: Read<Text>,
    time: Read<Text>,
    fields_v1: Read<Obj<Fields>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    #[serde(rename = "f:metadata")]
    metadata: Read<Obj<MetadataFields>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MetadataFields {
    #[serde(rename = "f:finalizers")]
    finalizers: Read<Map<Nothing>>,
}

/// A value of which only the key counts.
#[derive(Debug, Default)]
struct Nothing;

impl Lenient<'_> for Nothing {}

#[cfg(test)]
mod tests;
