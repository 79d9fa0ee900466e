//! The HTTPS server as its clients see it: real TLS over loopback, short deadlines.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail like tests"
)]

mod admin;
mod bodies;
mod connections;
mod drain;
mod reload;
mod support;
mod tls;
