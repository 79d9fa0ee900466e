//! The keeper against an API server that has nothing.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use http::{Method, Response, StatusCode};
use jiff::SignedDuration;
use kube::client::Body;
use tokio::time::timeout;

use super::*;
use crate::server::{Metrics, Readiness};

#[tokio::test(start_paused = true)]
async fn a_secret_that_goes_while_the_server_leaves_stays_gone() {
    // It stops between two requests of one look, and what it had planned before is not done.
    for stops_at in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations", "secrets"]
    {
        assert_eq!(created(stops_at).await, 0, "{stops_at}");
    }
    assert!(created("no request").await > 0);
}

/// How many Secrets a keeper makes until the server leaves, which is when it asks for `stops_at`.
async fn created(stops_at: &'static str) -> u32 {
    let (phase, phases) = watch::channel(Phase::Serving);
    let created = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&created);
    let nothing = tower::service_fn(move |request: http::Request<Body>| {
        if request.uri().path().contains(stops_at) {
            phase.send_replace(Phase::Leaving);
        }
        if request.method() == Method::POST {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let body = Body::from(br#"{"kind":"Status","status":"Failure","code":404}"#.to_vec());
        let mut answer = Response::new(body);
        *answer.status_mut() = StatusCode::NOT_FOUND;
        std::future::ready(Ok::<_, tower::BoxError>(answer))
    });
    let (_wake, wakes) = watch::channel(0);
    let keeper = Keeper::new(
        Client::new(nothing, "default"),
        settings(),
        Handover::new(&Metrics::new()),
        Readiness::new().register("webhooks"),
        KeeperMetrics::default(),
    );
    timeout(Duration::from_mins(1), keeper.run(wakes, phases)).await.unwrap_err();
    created.load(Ordering::Relaxed)
}

fn settings() -> Settings {
    let name = |name: &str| ObjectName { namespace: "guard".into(), name: name.into() };
    Settings {
        secret: name("guard-tls"),
        service: name("guard"),
        mutating: "guard".into(),
        validating: "guard".into(),
        names: std::collections::BTreeSet::new(),
        lifetime: SignedDuration::from_hours(24),
        ca_lifetime: SignedDuration::from_hours(240),
        dwell: Duration::from_secs(2),
    }
}
