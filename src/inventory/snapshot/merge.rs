//! From the objects of all files to one state.

use std::path::{Path, PathBuf};

use super::{
    State,
    error::{Failure, LoadError},
    parse::Parsed,
};
use crate::{
    core::objects::{Kind, Object},
    inventory::index::identity,
};

/// An object of a kind that rules read, with the number of its file.
type Placed = (usize, Object);

/// One state from all files, or everything that is wrong with them.
pub(super) fn merge(root: &Path, parsed: Vec<Parsed>) -> Result<State, LoadError> {
    let mut state = State::default();
    let mut failures = Vec::new();
    let mut placed = Vec::new();
    let mut files = Vec::with_capacity(parsed.len());
    let mut documents = 0;
    for (at, (file, objects)) in parsed.into_iter().enumerate() {
        match objects {
            Ok(objects) => {
                documents += objects.len();
                let mut sorter =
                    Sorter { at, file: &file, state: &mut state, failures: &mut failures };
                for object in objects {
                    sorter.sort(object, &mut placed);
                }
            }
            Err(failure) => failures.push(failure),
        }
        files.push(file);
    }
    state.loaded.files = files.len();
    // Stable: of equal objects the first file comes first.
    placed.sort_by(|(_, one), (_, other)| key(one).cmp(&key(other)));
    placed.dedup_by(|later, first| {
        let same = key(&later.1).is_some() && key(&later.1) == key(&first.1);
        if same && later.1 != first.1 {
            failures.extend(conflict(&files, first, later));
        }
        same
    });
    if !failures.is_empty() {
        // Stable: within a file in the order in which they were found.
        failures.sort_by(|one, other| one.file.cmp(&other.file));
        return Err(LoadError::Files { path: root.to_owned(), failures });
    }
    if documents == 0 {
        return Err(LoadError::Nothing { path: root.to_owned(), files: files.len() });
    }
    for (_, object) in placed {
        state.add(object);
    }
    Ok(state)
}

/// Takes one file's objects apart.
struct Sorter<'a> {
    at: usize,
    file: &'a Path,
    state: &'a mut State,
    failures: &'a mut Vec<Failure>,
}

impl Sorter<'_> {
    fn sort(&mut self, object: Object, placed: &mut Vec<Placed>) {
        match object {
            Object::List(items) => {
                placed.reserve(items.len());
                for item in items {
                    self.sort(item, placed);
                }
            }
            // An unfinished dump of a list: `kind` comes after `items`.
            Object::Other(other) if other.kind.is_empty() && !other.api_version.is_empty() => {
                self.fail(format!(
                    "a document with `apiVersion: {}` and no `kind`; is the file cut off?",
                    other.api_version.escape_debug()
                ));
            }
            Object::Other(other) => self.state.loaded.skip(&other.api_version, &other.kind),
            known => match key(&known) {
                Some((kind, namespace, "")) => {
                    self.fail(format!(
                        "a {kind} without metadata.name (namespace {namespace:?}); name it, or \
                         dump it again with `kubectl get -o yaml`"
                    ));
                }
                Some((kind, "", name)) => {
                    self.fail(format!(
                        "{kind} {name:?} has no metadata.namespace; add the namespace that it is \
                         in"
                    ));
                }
                Some(_) | None => placed.push((self.at, known)),
            },
        }
    }

    fn fail(&mut self, message: String) {
        self.failures.push(Failure::new(self.file, message));
    }
}

fn key(object: &Object) -> Option<(Kind, &str, &str)> {
    identity(object).map(|(kind, meta)| (kind, &*meta.namespace, &*meta.name))
}

fn conflict(files: &[PathBuf], first: &Placed, later: &Placed) -> Option<Failure> {
    let (kind, namespace, name) = key(&later.1)?;
    let (one, other) = (files.get(first.0)?, files.get(later.0)?);
    let whereabouts = if one == other {
        "twice in this file".to_owned()
    } else {
        format!("here and in {}", one.display())
    };
    Some(Failure::new(
        other,
        format!(
            "{kind} {namespace}/{name} is {whereabouts}, with different content; keep the one that \
             is true"
        ),
    ))
}
