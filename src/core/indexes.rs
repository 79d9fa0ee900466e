//! `status.indexes` of a template: which entries are stale, and the patch that drops them
//! (rule 4.3).
//!
//! CAPM3 rebuilds the field from the Metal3Data of the template, so an entry whose Metal3Data
//! exists is true even when its claim is gone. v1beta1 writes an object (claim -> index), v1beta2 a
//! list of `{index, name}` that may not be empty: the last entry takes the key with it.

use std::collections::BTreeSet;

use json_patch::{Patch, PatchOperation, RemoveOperation, jsonptr::PointerBuf};
use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess};

use super::{
    finalizers::applies,
    lenient::{AnyText, Int, Lenient, Map, Obj, Read},
    objects::{Kind, Object, Template},
    review::{Operation, Parsed, Review},
    verdict::{Answer, Preflight, Ruling},
};

/// `status.indexes`, both shapes in one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes {
    entries: Vec<Entry>,
    /// Entries that could not be read: kept, and counted so that the key stays.
    unreadable: usize,
    shape: Shape,
}

/// One entry: an index and the claim that it was given to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The claim's name; empty in what CAPM3 up to 1.12 writes for a Metal3Data without a claim.
    pub claim: Box<str>,
    /// The index.
    pub index: i64,
    /// Position in the list shape.
    at: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shape {
    #[default]
    Missing,
    Map,
    List,
}

impl Indexes {
    /// The readable entries: a list's in its order, an object's by claim.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entries that `occupied` does not confirm.
    pub fn stale(&self, occupied: &Occupancy) -> Vec<Entry> {
        self.entries.iter().filter(|entry| !occupied.confirms(entry)).cloned().collect()
    }

    /// The JSON patch that removes exactly `stale` from an object with these indexes; `None` when
    /// there is nothing to remove.
    pub fn removal(&self, stale: &[Entry]) -> Option<Patch> {
        if stale.is_empty() {
            return None;
        }
        let remove = |tokens: &[&str]| {
            PatchOperation::Remove(RemoveOperation {
                path: PointerBuf::from_tokens(tokens.iter().copied()),
            })
        };
        if stale.len() == self.entries.len() && self.unreadable == 0 {
            return Some(Patch(vec![remove(&["status", "indexes"])]));
        }
        // From the end of a list, so that earlier positions stay what they are.
        let operations = stale.iter().rev().map(|entry| match self.shape {
            Shape::List => remove(&["status", "indexes", &entry.at.to_string()]),
            Shape::Map | Shape::Missing => remove(&["status", "indexes", &entry.claim]),
        });
        Some(Patch(operations.collect()))
    }

    /// The entries without `stale`, as after [`Indexes::removal`].
    #[must_use]
    pub fn without(&self, stale: &[Entry]) -> Self {
        let stale: BTreeSet<&Entry> = stale.iter().collect();
        let mut kept = Self { entries: Vec::new(), ..self.clone() };
        let mut gone = 0;
        for entry in &self.entries {
            if stale.contains(entry) {
                gone += 1;
            } else {
                // Positions count what cannot be read too, so they move up by what went before.
                let at = if self.shape == Shape::List { entry.at - gone } else { 0 };
                kept.entries.push(Entry { at, ..entry.clone() });
            }
        }
        if kept.entries.is_empty() && kept.unreadable == 0 { Self::default() } else { kept }
    }
}

impl<'de> Lenient<'de> for Indexes {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        let mut indexes = Self { shape: Shape::Map, ..Self::default() };
        let Map(last) = Map::<Int>::from_map(map)?;
        for (claim, Int(index)) in last {
            match index {
                Some(index) => indexes.entries.push(Entry { claim, index, at: 0 }),
                None => indexes.unreadable += 1,
            }
        }
        // The API server sends keys in order, each once. Of equal keys the last one counts.
        if !indexes.entries.is_sorted_by(|one, next| one.claim < next.claim) {
            let mut seen = BTreeSet::new();
            indexes.entries.reverse();
            indexes.entries.retain(|entry| seen.insert(entry.claim.clone()));
            indexes.entries.reverse();
        }
        Ok(indexes)
    }

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut indexes = Self { shape: Shape::List, ..Self::default() };
        let mut at = 0;
        while let Some(Read(Obj(RawEntry { name, index }))) = list.next_element()? {
            match (name.0.0, index.0.0) {
                (Some(claim), Some(index)) => indexes.entries.push(Entry { claim, index, at }),
                _ => indexes.unreadable += 1,
            }
            at += 1;
        }
        Ok(indexes)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawEntry {
    name: Read<AnyText>,
    index: Read<Int>,
}

/// Which entries of a template are true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Names of the claims that exist in the namespace, of those asked for.
    pub claims: BTreeSet<Box<str>>,
    /// Indexes that a Metal3Data of the template occupies, of those asked for.
    pub indexes: BTreeSet<i64>,
}

impl Occupancy {
    /// An entry holds as long as its claim or its Metal3Data does.
    pub fn confirms(&self, entry: &Entry) -> bool {
        self.claims.contains(&entry.claim) || self.indexes.contains(&entry.index)
    }
}

/// Which of these entries are true?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The template's namespace.
    pub namespace: Box<str>,
    /// The template's name.
    pub name: Box<str>,
    /// What the writer wants to store.
    pub indexes: Indexes,
}

/// Decides what needs no facts: everything but a write to `/status` with indexes in it.
pub fn preflight(review: &Review<'_>) -> Preflight<Question, Patch> {
    let decided = |rule| Preflight::Decided(Ruling::allow(rule));
    if review.operation != Operation::Update || review.known_kind() != Some(Kind::Template) {
        return Preflight::Decided(review.not_ours("indexes.not_ours", "/mutate/indexes"));
    }
    if review.subresource != "status" {
        // On the main resource the server would drop the patch without a word.
        return decided("indexes.not_status");
    }
    let Parsed::Object(object) = review.parse_object() else {
        return decided("indexes.no_object");
    };
    let Object::Template(Template { meta, indexes, .. }) = &*object else {
        return decided("indexes.no_object");
    };
    let (namespace, name) = review.or_named(&meta.namespace, &meta.name);
    if indexes.entries.is_empty() || name.is_empty() {
        return decided("indexes.empty");
    }
    Preflight::Ask(Question {
        namespace: namespace.into(),
        name: name.into(),
        indexes: indexes.clone(),
    })
}

/// The patch that drops stale entries. Unknown means keep.
pub fn judge(
    review: &Review<'_>,
    question: &Question,
    answer: &Answer<Occupancy>,
) -> Ruling<Patch> {
    let occupancy = match answer {
        Answer::Verified(occupancy) => occupancy,
        Answer::Unverified(_) => return Ruling::allow("indexes.unverified"),
    };
    let stale = question.indexes.stale(occupancy);
    let Some(patch) = question.indexes.removal(&stale) else {
        return Ruling::allow("indexes.current");
    };
    if !applies(review.object, &patch) {
        return Ruling::allow("indexes.patch_failed")
            .warn("metal3-guard could not prune stale status.indexes; they were left as they are");
    }
    Ruling::patch("indexes.pruned", patch).note("indexes-pruned", stale.len().to_string())
}

#[cfg(test)]
mod tests;
