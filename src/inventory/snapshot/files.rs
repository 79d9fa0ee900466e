//! Which files make up a state.

use std::{
    collections::BTreeSet,
    fs::{self, FileType},
    io,
    path::{Path, PathBuf},
};

use super::error::{Failure, LoadError};

/// Directories below the root; a must-gather needs five.
const MAX_DEPTH: usize = 32;

/// The files to read, sorted, or why one of them cannot be: all `*.yaml`, `*.yml` and `*.json` files under `root`, or `root` itself if it is no directory.
///
/// # Errors
/// `root` cannot be read. Trouble further down is part of the answer.
pub(super) fn find(root: &Path) -> Result<Vec<Result<PathBuf, Failure>>, LoadError> {
    let unreadable = |error| LoadError::Path { path: root.to_owned(), error };
    if !fs::metadata(root).map_err(unreadable)?.is_dir() {
        // Not by its ending: what the user names is meant, a pipe too.
        return Ok(vec![Ok(root.to_owned())]);
    }
    let mut walk = Walk::default();
    walk.directory(root, 0).map_err(unreadable)?;
    Ok(walk.found)
}

/// Whether a file is read as JSON; everything else is read as YAML.
pub(super) fn is_json(path: &Path) -> bool {
    has_ending(path, &["json"])
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|have| endings.iter().any(|it| have.eq_ignore_ascii_case(it)))
}

#[derive(Default)]
struct Walk {
    found: Vec<Result<PathBuf, Failure>>,
    /// Real paths of the directories that were entered: links must not lead into one twice.
    entered: BTreeSet<PathBuf>,
}

impl Walk {
    fn directory(&mut self, directory: &Path, depth: usize) -> io::Result<()> {
        let real = fs::canonicalize(directory)?;
        if !self.entered.insert(real.clone()) {
            return Ok(());
        }
        if depth > MAX_DEPTH {
            return Err(io::Error::other(format!("more than {MAX_DEPTH} directories deep")));
        }
        let mut entries = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                entries.push((entry.path(), entry.file_type()?));
            }
        }
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (path, file_type) in entries {
            if let Err(error) = self.entry(&path, file_type, &real, depth) {
                self.found.push(Err(Failure::new(&path, error.to_string())));
            }
        }
        Ok(())
    }

    /// One entry of the directory whose real path is `parent`.
    fn entry(
        &mut self,
        path: &Path,
        file_type: FileType,
        parent: &Path,
        depth: usize,
    ) -> io::Result<()> {
        let wanted = has_ending(path, &["yaml", "yml", "json"]);
        let linked = file_type.is_symlink();
        let file_type = match linked.then(|| fs::metadata(path)) {
            None => file_type,
            Some(Ok(target)) => target.file_type(),
            // What it led to may have been a directory of the state, unless its name says a file
            // that nobody would have read.
            Some(Err(error)) if wanted || path.extension().is_none() => return Err(error),
            Some(Err(_)) => return Ok(()),
        };
        if file_type.is_dir() {
            // A link up the tree leads out of the state, and back to here.
            let upwards = linked && parent.starts_with(fs::canonicalize(path)?);
            return if upwards { Ok(()) } else { self.directory(path, depth + 1) };
        }
        if wanted {
            // Reading a pipe or a device could wait for ever.
            let usable = file_type.is_file();
            let path = path.to_owned();
            self.found.push(if usable {
                Ok(path)
            } else {
                Err(Failure::new(&path, "not a regular file; remove it or give it another ending"))
            });
        }
        Ok(())
    }
}
