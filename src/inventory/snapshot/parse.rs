//! From files to objects, several files at a time.

use std::{
    fs::File,
    io::{self, Read},
    panic,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use serde_saphyr::{
    MessageFormatter, Options, UserMessageFormatter, options::NonFiniteFloatPolicy,
};

use super::{error::Failure, files::is_json, strict::Document};
use crate::core::objects::Object;

/// Largest file: it is held as text while it is parsed.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Threads that read and parse; the merge after them is one thread's work.
const MAX_THREADS: usize = 4;
/// Deepest nesting of lists and maps in YAML. CRDs, which lie in most dumps, reach about 60.
const MAX_DEPTH: usize = 192;
/// Enough for [`MAX_DEPTH`], in a build without optimisation as well.
const STACK_BYTES: usize = 32 << 20;
/// What aliases may add to the smallest file: nodes, and bytes of text. More to larger ones.
const REPLAYED: usize = 100_000;
const REPLAYED_BYTES: usize = 16 << 20;

/// A file's objects, or why there are none.
pub(super) type Parsed = (PathBuf, Result<Vec<Object>, Failure>);

/// Reads and parses all files; the answers are in the order of `found`.
pub(super) fn files(found: &[Result<PathBuf, Failure>]) -> Vec<Parsed> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            match found.get(at) {
                Some(Ok(path)) => done.push((at, (path.clone(), file(path)))),
                Some(Err(failure)) => {
                    done.push((at, (failure.file.clone(), Err(failure.clone()))));
                }
                None => return done,
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let mut parsed = thread::scope(|scope| {
        // A thread even for one file: the caller's stack may be small.
        let running: Vec<_> = (0..threads.min(found.len()))
            .filter_map(|_| {
                thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work).ok()
            })
            .collect();
        let mut parsed = Vec::with_capacity(found.len());
        for thread in running {
            parsed.extend(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        }
        // Only if no thread could be started.
        parsed.extend(work());
        parsed
    });
    parsed.sort_unstable_by_key(|(at, _)| *at);
    parsed.into_iter().map(|(_, parsed)| parsed).collect()
}

fn file(path: &Path) -> Result<Vec<Object>, Failure> {
    let text = read(path)?;
    if is_json(path) { json(path, &text) } else { yaml(path, &text) }
}

fn read(path: &Path) -> Result<String, Failure> {
    let bytes = File::open(path)
        .and_then(|file| {
            let mut bytes = Vec::new();
            let size = file.metadata().map_or(0, |it| it.len()).min(MAX_FILE_BYTES);
            bytes.reserve_exact(usize::try_from(size).unwrap_or(0) + 1);
            if file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)? as u64 > MAX_FILE_BYTES {
                return Err(io::Error::other(format!(
                    "larger than {MAX_FILE_BYTES} bytes; split it into several files"
                )));
            }
            Ok(bytes)
        })
        .map_err(|error| Failure::new(path, error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(error.as_bytes().get(..valid).unwrap_or_default());
        let line = before.rsplit('\n').next().unwrap_or_default();
        Failure::new(path, "not UTF-8 from here on; save the file as UTF-8")
            .at(before.split('\n').count() as u64, line.chars().count() as u64 + 1)
    })
}

/// The objects of all documents in a YAML text.
pub(super) fn yaml(path: &Path, text: &str) -> Result<Vec<Object>, Failure> {
    let documents: Vec<Document> =
        serde_saphyr::from_multiple_with_options(text, options(text.len())).map_err(|error| {
            let failure = Failure::new(path, UserMessageFormatter.format_message(&error));
            match error.location() {
                Some(place) if place.line() > 0 => failure.at(place.line(), place.column()),
                _ => failure,
            }
        })?;
    Ok(documents.into_iter().map(|Document(object)| object).collect())
}

/// The objects of all documents in a JSON text: one after another, as some tools write them.
pub(super) fn json(path: &Path, text: &str) -> Result<Vec<Object>, Failure> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    serde_json::Deserializer::from_str(text)
        .into_iter()
        .map(|document| document.map(|Document(object)| object))
        .collect::<Result<_, _>>()
        .map_err(|error| {
            let message = error.to_string();
            let place = format!(" at line {} column {}", error.line(), error.column());
            Failure::new(path, message.strip_suffix(&*place).unwrap_or(&message))
                .at(error.line() as u64, error.column().max(1) as u64)
        })
}

/// The crate's limits are for configuration files. Without aliases the size of the text bounds
/// everything that parsing allocates, so the limits follow it; aliases may about double that.
fn options(bytes: usize) -> Options {
    let nodes = bytes.saturating_add(1024);
    let replayed = (bytes / 4).saturating_add(REPLAYED);
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: nodes.saturating_add(replayed).saturating_mul(2),
            max_nodes: nodes.saturating_add(replayed),
            max_documents: nodes,
            max_aliases: nodes,
            max_anchors: nodes,
            max_recorded_anchor_events: replayed,
            max_recorded_anchor_bytes: bytes.saturating_add(REPLAYED_BYTES),
            max_total_scalar_bytes: bytes.saturating_mul(2).saturating_add(REPLAYED_BYTES),
            max_depth: MAX_DEPTH,
            // Dumpers write an alias for each repeated map; the limits above protect us.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: replayed,
        },
        // Keys are names: `null: 0` in `status.indexes` is a claim's.
        null_as_string: true,
        // In fields that nobody reads.
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        emit_comments: false,
        with_snippet: false,
    }
}
