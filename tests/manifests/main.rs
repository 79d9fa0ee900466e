//! The shipped manifests: rendered from their sources, carried by the binary, and in step with what
//! the binary answers, needs and bears.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail like tests"
)]

mod account;
mod documents;
mod overlays;
mod rendering;
mod server;
mod webhooks;
