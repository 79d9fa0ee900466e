//! The guards' own record beside that of the API server: each write has its line.

use std::{collections::BTreeMap, fs, path::Path};

use jiff::SignedDuration;
use serde_json::Value;

use crate::{
    audit::{Audit, Event},
    guards::Ended,
    rules::{self, Kind, Violation},
};

/// A guard that is killed has at most this many writes under way: it looks at so many namespaces
/// side by side, and takes one step after the other in each.
const UNDER_WAY: usize = 4;

/// How long a request may be on its way to a busy API server, and its answer on the way to the guard
/// and into its log.
const ON_ITS_WAY: SignedDuration = SignedDuration::from_secs(2);

/// What a line is about: namespace, kind, name, uid, resourceVersion, and what was done.
type Key = (String, String, String, String, String, Kind);

/// One line of a guard.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    key: Key,
    result: String,
}

/// The lines in the logs of all guards, those that were killed too.
pub(crate) fn read(logs: &Path) -> std::io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(logs)? {
        let path = entry?.path();
        let is_guard =
            path.file_name().is_some_and(|it| it.to_string_lossy().starts_with("guard-"));
        if is_guard {
            // The last line of one that was killed may be torn.
            let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
            let parsed = text.lines().filter_map(|it| serde_json::from_str(it).ok());
            lines.extend(parsed.filter_map(|it| Line::parse(&it)));
        }
    }
    Ok(lines)
}

/// Checks that each of the guard's writes has exactly one line, and each line its write.
pub(crate) fn check(audit: &Audit, lines: &[Line], ended: &[Ended]) -> Vec<Violation> {
    let mut both: BTreeMap<&Key, (Vec<&Event>, Vec<&Line>)> = BTreeMap::new();
    let keys: Vec<_> = audit
        .events
        .iter()
        .filter(|event| event.user == "guard")
        .filter_map(|event| Some((key(event)?, event)))
        .collect();
    for (key, event) in &keys {
        both.entry(key).or_default().0.push(event);
    }
    for line in lines {
        both.entry(&line.key).or_default().1.push(line);
    }
    let mut found = Vec::new();
    let killed: Vec<_> = ended.iter().filter(|it| !it.gently).collect();
    let mut silent = vec![0; killed.len()];
    for (key, (mut events, mut lines)) in both {
        // Each line takes its write with it.
        lines.retain(|line| {
            let its = events.iter().position(|event| fits(event, &line.result));
            its.map(|at| events.remove(at)).is_none()
        });
        // What the guard has heard nothing of may have been done or not.
        lines.retain(|line| {
            let unheard = line.result == "failed";
            if unheard && !events.is_empty() {
                events.remove(0);
            }
            !unheard
        });
        // A guard that was killed says nothing of what it had just sent.
        events.retain(|event| {
            let of = killed.iter().position(|it| {
                event.received <= it.gone + ON_ITS_WAY && event.done + ON_ITS_WAY >= it.lived
            });
            if let Some(of) = of {
                silent[of] += 1;
            }
            of.is_none()
        });
        let mut wrong = |what: String| {
            found.push(Violation { namespace: key.0.clone(), what });
        };
        for event in events {
            wrong(format!(
                "a write without a line (audit.log line {}, answered {}): {key:?}",
                event.line, event.code
            ));
        }
        for line in lines {
            wrong(format!("a line without a write: {key:?} {}", line.result));
        }
    }
    for (silent, ended) in silent.into_iter().zip(killed).filter(|(it, _)| *it > UNDER_WAY) {
        found.push(Violation {
            namespace: String::new(),
            what: format!("{silent} writes without a line when a guard ended at {}", ended.gone),
        });
    }
    found
}

/// How many lines there are of each step and result.
pub(crate) fn count(lines: &[Line]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines {
        *counts.entry(format!("{:?} {}", line.key.5, line.result)).or_default() += 1;
    }
    counts
}

impl Line {
    /// A line as it is in the log; `None` for one that is about no write.
    pub(crate) fn parse(line: &Value) -> Option<Self> {
        if line["message"] != "write" {
            return None;
        }
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let kind = match line["step"].as_str()? {
            "wake" => Kind::Wake,
            "prune" => Kind::Prune,
            "delete-orphan" => Kind::Delete,
            _ => Kind::Strip,
        };
        let resource = format!("{}s", text("kind").to_lowercase());
        let [namespace, name, uid, version] =
            ["namespace", "name", "uid", "resource_version"].map(text);
        let key = (namespace, resource, name, uid, version, kind);
        Some(Self { key, result: text("result") })
    }
}

fn key(event: &Event) -> Option<Key> {
    let (kind, uid, version) = rules::read(event)?;
    let Event { namespace, resource, name, .. } = event;
    Some((namespace.clone(), resource.clone(), name.clone(), uid, version, kind))
}

/// Whether an answer of the API server is what a line says.
fn fits(event: &Event, result: &str) -> bool {
    match event.code {
        200..=299 => result == "done",
        409 => result == "conflict",
        404 => result == "gone",
        // About the uid, or about anything else.
        422 => ["conflict", "refused"].contains(&result),
        400..=499 => result == "refused",
        _ => result == "failed",
    }
}
