//! The webhooks as an API server sees them: bytes into the router, bytes out, no network.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail like tests"
)]

mod cases;
mod compare;
#[expect(dead_code, reason = "another test reads the parts about schemas")]
#[path = "../corpus/mod.rs"]
mod corpus;
mod extremes;
mod http;
mod inventories;
mod log;
mod observed;
mod support;
