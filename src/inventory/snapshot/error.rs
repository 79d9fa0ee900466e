//! Why a state could not be loaded, in words for the one who has to mend it.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Failures that the message names; the others are counted.
const SHOWN: usize = 10;
/// Longest message of a failure, in characters: it may quote a file that holds anything.
const MESSAGE_CHARS: usize = 300;

/// Why a state could not be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The path itself cannot be read.
    Path {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// There is no document to read: more likely the wrong path than a state without objects.
    Nothing {
        /// The path as given.
        path: PathBuf,
        /// Files that were read and held nothing.
        files: usize,
    },
    /// Files that cannot be used, in the order of their paths.
    Files {
        /// The path as given.
        path: PathBuf,
        /// Every failure; the message shows the first ten.
        failures: Vec<Failure>,
    },
}

/// What is wrong with one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The file.
    pub file: PathBuf,
    /// Line and column, from 1, when the fault has a place.
    pub place: Option<(u64, u64)>,
    /// What is wrong and what to do.
    pub message: String,
}

impl Failure {
    /// One line, fit for a terminal.
    pub(super) fn new(file: &Path, message: impl AsRef<str>) -> Self {
        let mut chars = message.as_ref().chars().map(|c| if c.is_control() { ' ' } else { c });
        let mut message: String = chars.by_ref().take(MESSAGE_CHARS).collect();
        if chars.next().is_some() {
            message.push_str("...");
        }
        Self { file: file.to_owned(), place: None, message }
    }

    pub(super) fn at(mut self, line: u64, column: u64) -> Self {
        self.place = Some((line, column));
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some((line, column)) = self.place {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path { path, error } => write!(
                f,
                "{}: {error}; a state is a directory of YAML or JSON files, or one such file",
                path.display()
            ),
            Self::Nothing { path, files: 0 } => write!(
                f,
                "{}: no *.yaml, *.yml or *.json file in there; is this the right directory?",
                path.display()
            ),
            Self::Nothing { path, files } => write!(
                f,
                "{}: no object in {files} file(s); is this the right directory? An empty list \
                 (`kind: List`, `items: []`) stands for a state without objects",
                path.display()
            ),
            Self::Files { path, failures } => {
                if let [only] = &**failures {
                    return only.fmt(f);
                }
                write!(f, "{}: {} faults:", path.display(), failures.len())?;
                for failure in failures.iter().take(SHOWN) {
                    write!(f, "\n  {failure}")?;
                }
                match failures.len().saturating_sub(SHOWN) {
                    0 => Ok(()),
                    more => write!(f, "\n  and {more} more"),
                }
            }
        }
    }
}

impl std::error::Error for LoadError {}
