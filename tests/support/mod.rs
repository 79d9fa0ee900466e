//! What several test binaries share: a real control plane and the means to talk to it.
//!
//! ```ignore
//! mod support;
//! use support::{ControlPlane, User};
//!
//! #[tokio::test]
//! async fn a_template_goes_with_its_namespace() {
//!     let plane = ControlPlane::shared().await; // started once per test binary
//!     let namespace = plane.namespace("goes").await; // this test's own
//!     let client = plane.client(User::Guard).await; // one per test: it lives on its runtime
//!     plane.kubectl(User::Admin, &["get", "namespace", namespace.name()]).await.ok();
//! }
//! ```
//!
//! A test fails by panicking, not by returning an error: only a panic keeps the logs.
//! Tests that pause or restart a part start a control plane of their own with
//! [`ControlPlane::start`], since others in the same binary share the common one.
#![allow(dead_code, unused_imports, reason = "each test binary uses its own part of the harness")]

mod binaries;
mod capi;
pub(crate) mod capm3;
mod controlplane;
mod delay;
mod forwarder;
pub(crate) mod guard;
mod kubectl;
mod manager;
mod parts;
mod pki;
mod process;
mod proxy;
mod rundir;
mod upstream;
mod users;

use std::time::Duration;

pub(crate) use self::{
    binaries::built,
    capi::{Capi, Release},
    capm3::{Behaviour, Capm3},
    controlplane::{ControlPlane, Namespace},
    delay::Delay,
    forwarder::Forwarder,
    guard::{BINARY, Guard},
    kubectl::Ran,
    manager::Collector,
    parts::Audit,
    pki::Authority,
    process::Process,
    proxy::{Proxy, Reads, Verb},
    upstream::{Link, Upstream},
    users::User,
};

/// How long something that must happen soon may take before a test gives up on it. Far
/// more than it takes on a quiet machine: a busy one must not fail a test.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// Asks again and again until the answer is `Some`, and panics after [`PATIENCE`].
/// `what` ends the sentence "gave up waiting for ...".
#[expect(clippy::panic, reason = "what a test waits for in vain fails it")]
pub(crate) async fn eventually<T, F, Fut>(what: &str, mut ask: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .unwrap_or_else(|_| panic!("gave up waiting for {what} after {PATIENCE:?}"))
}
