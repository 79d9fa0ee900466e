//! The plain-HTTP port for probes and metrics, and what readiness is made of.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::runtime::Handle;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Within this a runtime takes up new work, on a busy machine too. Probes wait a little longer.
const TURN: Duration = Duration::from_secs(3);

/// Whether traffic should come here: when every gate is open and no shutdown has begun.
///
/// Whoever has a condition to meet registers it where the work starts, so none can be forgotten.
/// Clones are the same readiness.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    draining: AtomicBool,
    /// Name, and what is missing; an open gate misses nothing.
    gates: Mutex<Vec<(&'static str, Option<String>)>>,
}

impl Readiness {
    /// Ready, until a gate is registered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition, unmet at first.
    pub fn register(&self, name: &'static str) -> Gate {
        let mut gates = self.lock();
        gates.push((name, Some("starting".to_owned())));
        Gate { readiness: self.clone(), index: gates.len() - 1 }
    }

    /// Whether traffic should come here.
    pub fn is_ready(&self) -> bool {
        self.unmet().is_empty()
    }

    /// One line per unmet condition, in the order of registration.
    pub fn unmet(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.shared.draining.load(Ordering::Relaxed) {
            lines.push("draining: shutting down".to_owned());
        }
        lines.extend(
            self.lock()
                .iter()
                .filter_map(|(name, missing)| Some(format!("{name}: {}", missing.as_ref()?))),
        );
        lines
    }

    /// From here on never ready again.
    pub(super) fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(&'static str, Option<String>)>> {
        // A list of texts is valid whatever its last holder was doing.
        self.shared.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One condition of [`Readiness`]. It closes when it is dropped: a task that ended, by a panic
/// too, no longer vouches for anything. So keep it for as long as the condition matters.
#[derive(Debug)]
#[must_use = "a dropped gate is closed"]
pub struct Gate {
    readiness: Readiness,
    index: usize,
}

impl Gate {
    /// The condition is met.
    pub fn open(&self) {
        self.set(None);
    }

    /// The condition is not met, and why: a few words for whoever reads `/readyz`.
    pub fn close(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    fn set(&self, missing: Option<String>) {
        if let Some(gate) = self.readiness.lock().get_mut(self.index) {
            gate.1 = missing;
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.close("no longer running");
    }
}

/// `/livez`, `/readyz` and `/metrics`; everything else is 404, other methods are 405. `reviews` is
/// the runtime whose life is told.
pub(super) fn router(readiness: Readiness, reviews: Handle, registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/livez", get(livez).with_state(reviews.clone()))
        .route("/readyz", get(readyz).with_state((readiness, reviews)))
        .route("/metrics", get(metrics).with_state(registry))
        .fallback(|| async {
            let text = "not found; there are /livez, /readyz and /metrics\n";
            (StatusCode::NOT_FOUND, text)
        })
        .method_not_allowed_fallback(|| async {
            let allow = [(header::ALLOW, "GET, HEAD")];
            (StatusCode::METHOD_NOT_ALLOWED, allow, "only GET and HEAD\n")
        })
}

async fn livez(State(reviews): State<Handle>) -> Response {
    let Some(why) = held_up(&reviews).await else { return "ok\n".into_response() };
    // Whoever finds the process restarted finds this in its last log.
    tracing::error!(why, "not live");
    unavailable(&[why])
}

async fn readyz(State((readiness, reviews)): State<(Readiness, Handle)>) -> Response {
    let mut unmet = readiness.unmet();
    unmet.extend(held_up(&reviews).await.map(str::to_owned));
    if unmet.is_empty() { "ok\n".into_response() } else { unavailable(&unmet) }
}

/// Why a runtime does no work, if so: every request behind it waits, and nothing but a restart
/// would mend that.
async fn held_up(reviews: &Handle) -> Option<&'static str> {
    match tokio::time::timeout(TURN, reviews.spawn(async {})).await {
        Ok(Ok(())) => None,
        Ok(Err(_)) => Some("reviews: their thread has ended"),
        Err(_) => Some("reviews: their thread has taken up no work for 3 s"),
    }
}

fn unavailable(lines: &[impl AsRef<str>]) -> Response {
    let text: String = lines.iter().flat_map(|line| [line.as_ref(), "\n"]).collect();
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            (StatusCode::INTERNAL_SERVER_ERROR, "metrics cannot be written\n").into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_gate_is_open() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let first = readiness.register("certificates");
        let second = readiness.register("watches");
        assert_eq!(readiness.unmet(), ["certificates: starting", "watches: starting"]);
        first.open();
        assert_eq!(readiness.unmet(), ["watches: starting"]);
        second.open();
        assert!(readiness.is_ready());
        first.close("the certificate ended");
        assert_eq!(readiness.unmet(), ["certificates: the certificate ended"]);
    }

    #[test]
    fn a_dropped_gate_is_closed() {
        let readiness = Readiness::new();
        let gate = readiness.register("watches");
        gate.open();
        drop(gate);
        assert_eq!(readiness.unmet(), ["watches: no longer running"]);
    }

    #[test]
    fn draining_comes_first_and_stays() {
        let readiness = Readiness::new();
        let gate = readiness.register("watches");
        readiness.drain();
        gate.open();
        assert_eq!(readiness.unmet(), ["draining: shutting down"]);
    }
}
