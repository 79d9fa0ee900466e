//! The program as its users see it: arguments, text, JSON, exit codes, signals.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail like tests"
)]

mod commands;
mod demo;
mod doctor;
mod files;
mod graph;
mod guard;
mod readme;
mod review;
mod serve;
mod support;
mod usage;
