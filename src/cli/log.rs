//! The log on standard error, written by a thread of its own.
//!
//! A line costs the request that logs it a copy into memory, not a system call; the thread writes
//! what has come together.

use std::{fmt, io};

use jiff::Timestamp;
use tracing_subscriber::EnvFilter;

use super::{Failure, args::LogFormat};

mod line;
mod queue;

use line::{Clock, Fields};
pub(super) use queue::Flush;
use queue::{Bounds, Lines};

/// Logs to standard error from here on, until the result is dropped.
pub(super) fn start(format: LogFormat, filter: &str) -> Result<Flush, Failure> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::Usage(format!("--log-level {filter:?}: {error}; try error, warn, info or debug"))
    })?;
    let cannot =
        |error: &dyn fmt::Display| Failure::Unverified(format!("cannot start the log: {error}"));
    let lost = move |lines| lost(format, Timestamp::now(), lines);
    let (lines, flush) =
        Lines::new(io::stderr(), Bounds::default(), lost).map_err(|error| cannot(&error))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(lines)
        .with_timer(Clock)
        .with_ansi(false)
        .with_target(false);
    let started = match format {
        LogFormat::Text => log.fmt_fields(Fields).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map_err(|error| cannot(&error))?;
    Ok(flush)
}

/// The line that stands for lines that were lost, as the log itself would write it.
fn lost(format: LogFormat, now: Timestamp, lines: u64) -> String {
    const MESSAGE: &str = "log lines were lost: standard error is read too slowly";
    match format {
        LogFormat::Text => format!("{now:.6}  WARN {MESSAGE} lines={lines}\n"),
        LogFormat::Json => format!(
            "{{\"timestamp\":\"{now:.6}\",\"level\":\"WARN\",\"message\":\"{MESSAGE}\",\"lines\":{lines}}}\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lost_lines_are_reported_in_the_format_of_the_log() {
        let now = "2026-12-01T05:39:15Z".parse().unwrap();
        assert_eq!(
            lost(LogFormat::Text, now, 3),
            "2026-12-01T05:39:15.000000Z  WARN log lines were lost: standard error is read too \
             slowly lines=3\n"
        );
        let line = lost(LogFormat::Json, now, 3);
        assert!(line.ends_with("}\n"), "{line}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&line).unwrap(),
            json!({
                "timestamp": "2026-12-01T05:39:15.000000Z",
                "level": "WARN",
                "message": "log lines were lost: standard error is read too slowly",
                "lines": 3,
            })
        );
    }
}
