//! The Helm chart: the objects that kustomize makes, and a life in a real API server, with Helm as
//! users call it. No node is needed: what pods do is not the chart's part.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail like tests"
)]

mod accepted;
mod helm;
mod life;
mod monitoring;
mod objects;
mod rendering;
#[path = "../support/mod.rs"]
mod support;
mod values;

/// The namespace of the shipped manifests.
const NAMESPACE: &str = "metal3-guard-system";

/// Where certificates come from.
const MODES: [&str; 3] = ["self-managed", "cert-manager", "secret"];
