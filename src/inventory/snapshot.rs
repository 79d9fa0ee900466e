//! A directory of YAML and JSON as the inventory: the embedded default, needs no cluster.
//!
//! The state is what the files say, whole or not at all: a verdict that rests on half a dump would
//! call a template free that is not. So a file that cannot be read fails the load, and a reload
//! that fails leaves the old state in place.

use std::{
    collections::BTreeMap,
    fmt,
    future::ready,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use tokio::time::Instant;

use super::{
    Answering, Inventory, Need,
    index::{Index, identity},
};
use crate::core::{
    contents::Contents,
    indexes::{self, Occupancy},
    objects::{Kind, Object, Usage},
    references::{self, Target},
    verdict::Answer,
};

mod error;
mod files;
mod merge;
mod parse;
mod strict;

pub use error::{Failure, LoadError};

/// Most kinds that [`Loaded::skipped`] names; the objects of further kinds are only counted.
pub const MAX_SKIPPED_KINDS: usize = 64;

/// The state of a directory, a file or a list of objects, answered from memory.
pub struct Snapshot {
    /// `None` for a state that came from no file.
    path: Option<PathBuf>,
    state: ArcSwap<State>,
}

#[derive(Default)]
struct State {
    index: Index,
    loaded: Loaded,
}

/// What a load found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Files that were read.
    pub files: usize,
    /// Objects of the kinds that rules read, each counted once.
    pub objects: BTreeMap<Kind, usize>,
    /// Objects of other kinds, by `kind.group`; at most [`MAX_SKIPPED_KINDS`] names.
    pub skipped: BTreeMap<Box<str>, usize>,
    /// Objects of still other kinds.
    pub skipped_more: usize,
}

impl Snapshot {
    /// Reads every `*.yaml`, `*.yml` and `*.json` file under `path`, or the one file that `path`
    /// is. Blocks for as long as reading takes: JSON is read about ten times as fast as YAML.
    ///
    /// Hidden files and directories are left out, symbolic links are followed. A file may hold
    /// several documents, `kind: List` and typed lists. Where an object lies says nothing: its
    /// namespace is `metadata.namespace`, which every object of a kind that rules read must have
    /// (a dump always has it, and to guess `default` could hide a holder from its template). A file
    /// of one object that was cut off between two fields cannot be told from a whole one.
    ///
    /// # Errors
    /// [`LoadError`]: nothing there, or files that cannot be read, do not parse, hold an object
    /// without name or namespace, or differ about an object.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let state = State::load(path)?;
        Ok(Self { path: Some(path.to_owned()), state: ArcSwap::from_pointee(state) })
    }

    /// Loads again from the same path. The new state counts from the moment this returns; until
    /// then, and when it fails, the old one does. A state that came from no file stays as it is.
    ///
    /// # Errors
    /// As for [`Snapshot::load`].
    pub fn reload(&self) -> Result<Loaded, LoadError> {
        if let Some(path) = &self.path {
            self.state.store(Arc::new(State::load(path)?));
        }
        Ok(self.loaded())
    }

    /// A state from objects in memory. Lists are taken apart, kinds that no rule reads are counted
    /// as skipped, and of two objects with the same identity the last one stays.
    pub fn from_objects(objects: impl IntoIterator<Item = Object>) -> Self {
        let mut state = State::default();
        for object in objects {
            state.add(object);
        }
        Self { path: None, state: ArcSwap::from_pointee(state) }
    }

    /// A state from YAML in memory, held to the same rules as a file; errors call it `name`.
    ///
    /// # Errors
    /// As for [`Snapshot::load`].
    pub fn from_yaml(name: &str, text: &str) -> Result<Self, LoadError> {
        let path = Path::new(name);
        let state = merge::merge(path, vec![(path.to_owned(), parse::yaml(path, text))])?;
        Ok(Self { path: None, state: ArcSwap::from_pointee(state) })
    }

    /// What the current state was made from.
    pub fn loaded(&self) -> Loaded {
        self.state.load().loaded.clone()
    }

    /// The path that [`Snapshot::reload`] reads.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl State {
    fn load(path: &Path) -> Result<Self, LoadError> {
        let files = files::find(path)?;
        merge::merge(path, parse::files(&files))
    }

    fn add(&mut self, object: Object) {
        match object {
            Object::List(items) => items.into_iter().for_each(|item| self.add(item)),
            Object::Other(other) => self.loaded.skip(&other.api_version, &other.kind),
            known => {
                if let Some((kind, _)) = identity(&known) {
                    *self.loaded.objects.entry(kind).or_default() += 1;
                }
                self.index.apply(known);
            }
        }
    }
}

impl Loaded {
    /// All objects of the kinds that rules read.
    pub fn total(&self) -> usize {
        self.objects.values().sum()
    }

    /// All objects of other kinds.
    pub fn total_skipped(&self) -> usize {
        self.skipped.values().sum::<usize>() + self.skipped_more
    }

    fn skip(&mut self, api_version: &str, kind: &str) {
        let name = match (kind, api_version.split_once('/')) {
            ("", _) => "(no kind)".to_owned(),
            (kind, Some((group, _))) => format!("{kind}.{group}"),
            (kind, None) => kind.to_owned(),
        };
        // From a file that may hold anything, on its way to a terminal.
        let name: String = name.chars().filter(|c| !c.is_control()).take(120).collect();
        if let Some(count) = self.skipped.get_mut(&*name) {
            *count += 1;
        } else if self.skipped.len() < MAX_SKIPPED_KINDS {
            self.skipped.insert(name.into(), 1);
        } else {
            self.skipped_more += 1;
        }
    }
}

impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} objects from {} files", self.total(), self.files)?;
        let mut lead = " (";
        for (kind, count) in &self.objects {
            write!(f, "{lead}{count} {kind}")?;
            lead = ", ";
        }
        f.write_str(if self.objects.is_empty() { "" } else { ")" })?;
        match self.total_skipped() {
            0 => Ok(()),
            skipped => write!(f, ", {skipped} objects of other kinds skipped"),
        }
    }
}

/// Every answer is verified: there is nothing newer than the files as they were read.
impl Inventory for Snapshot {
    fn usage<'a>(&'a self, need: Need<'a>, _deadline: Instant) -> Answering<'a, Arc<Usage>> {
        verified(self.state.load().index.usage(need.namespace(), need.template()))
    }

    fn occupancy<'a>(
        &'a self,
        question: &'a indexes::Question,
        _deadline: Instant,
    ) -> Answering<'a, Occupancy> {
        verified(self.state.load().index.occupancy(question))
    }

    fn target<'a>(
        &'a self,
        question: &'a references::Question,
        _deadline: Instant,
    ) -> Answering<'a, Target> {
        verified(self.state.load().index.target(question))
    }

    fn contents<'a>(
        &'a self,
        namespace: &'a str,
        _deadline: Instant,
    ) -> Answering<'a, Arc<Contents>> {
        verified(self.state.load().index.contents(namespace))
    }

    fn namespaces(&self, _deadline: Instant) -> Answering<'_, Vec<Box<str>>> {
        verified(self.state.load().index.namespaces().cloned().collect())
    }
}

fn verified<'a, F: Send + 'a>(facts: F) -> Answering<'a, F> {
    Box::pin(ready(Answer::Verified(facts)))
}

/// Counts, not contents: a state may hold 100 000 objects.
impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("path", &self.path)
            .field("loaded", &self.state.load().loaded)
            .finish_non_exhaustive()
    }
}
