//! What operators are told: the alerts, the dashboard, and what docs/runbook.md says to do.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail like tests"
)]

mod alerts;
mod document;
mod metrics;
mod pages;
mod recorded;
#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
