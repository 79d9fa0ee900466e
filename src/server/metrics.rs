//! What the process tells Prometheus.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Every metric of the process starts with this.
pub const PREFIX: &str = "metal3_guard";

/// The registry while it is being filled, with the server's own metrics already in it.
///
/// Other modules add theirs through [`Metrics::registry`] before the server is bound; after that
/// the set is fixed.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    server: ServerMetrics,
}

impl Metrics {
    /// A registry with the server's metrics. Every label value starts at zero, so that a rate is
    /// right from the first event on.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let server = ServerMetrics::register(&mut registry);
        Self { registry, server }
    }

    /// Where other modules register; the prefix is added to every name.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    pub(super) const fn server(&self) -> &ServerMetrics {
        &self.server
    }

    pub(super) fn into_parts(self) -> (Registry, ServerMetrics) {
        (self.registry, self.server)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Handles to the server's own metrics; clones share the values.
#[derive(Clone, Debug)]
pub(super) struct ServerMetrics {
    pub(super) connections: Gauge,
    pub(super) connection_limit_reached: Counter,
    pub(super) handshakes_failed: Counted<HandshakeFailure>,
    pub(super) bodies_refused: Counted<BodyRefusal>,
    pub(super) certificate_reloads: Counted<Reload>,
    pub(super) handler_panics: Counter,
}

impl ServerMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            connections: Gauge::default(),
            connection_limit_reached: Counter::default(),
            handshakes_failed: Counted::new(),
            bodies_refused: Counted::new(),
            certificate_reloads: Counted::new(),
            handler_panics: Counter::default(),
        };
        registry.register(
            "connections_open",
            "HTTPS connections that are open, handshakes included",
            metrics.connections.clone(),
        );
        registry.register(
            "connection_limit_reached",
            "Times that accepting paused because the connection limit was reached",
            metrics.connection_limit_reached.clone(),
        );
        registry.register(
            "handshakes_failed",
            "TLS handshakes that did not finish",
            metrics.handshakes_failed.family.clone(),
        );
        registry.register(
            "bodies_refused",
            "Request bodies that were refused",
            metrics.bodies_refused.family.clone(),
        );
        registry.register(
            "certificate_reloads",
            "Attempts to use another certificate while running",
            metrics.certificate_reloads.family.clone(),
        );
        registry.register(
            "handler_panics",
            "Requests that ended in a panic and were answered with 500",
            metrics.handler_panics.clone(),
        );
        metrics
    }
}

/// A counter split by one label whose values are the variants of an enum, hence bounded.
#[derive(Clone, Debug)]
pub(super) struct Counted<L> {
    family: Family<[(&'static str, &'static str); 1], Counter>,
    label: std::marker::PhantomData<L>,
}

impl<L: Label> Counted<L> {
    pub(super) fn new() -> Self {
        let family = Family::default();
        for value in L::ALL {
            drop(family.get_or_create(&[(L::NAME, value.as_str())]));
        }
        Self { family, label: std::marker::PhantomData }
    }

    pub(super) fn count(&self, value: L) {
        self.family.get_or_create(&[(L::NAME, value.as_str())]).inc();
    }
}

/// The closed set of values of one label.
pub(super) trait Label: Copy + 'static {
    const NAME: &'static str;
    const ALL: &'static [Self];
    fn as_str(self) -> &'static str;
}

/// Why a TLS handshake did not finish.
#[derive(Clone, Copy, Debug)]
pub(super) enum HandshakeFailure {
    /// The peer left or the network failed: port checks look like this.
    Closed,
    /// The peer did not finish in time.
    Timeout,
    /// The peer spoke no TLS that we accept, or showed no certificate that we accept.
    Tls,
}

impl Label for HandshakeFailure {
    const NAME: &'static str = "reason";
    const ALL: &'static [Self] = &[Self::Closed, Self::Timeout, Self::Tls];

    fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
        }
    }
}

/// Why a body was refused; the label of [`Refusal`](super::Refusal).
#[derive(Clone, Copy, Debug)]
pub(super) enum BodyRefusal {
    Broken,
    Busy,
    Slow,
    TooLarge,
}

impl Label for BodyRefusal {
    const NAME: &'static str = "reason";
    const ALL: &'static [Self] = &[Self::Broken, Self::Busy, Self::Slow, Self::TooLarge];

    fn as_str(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Busy => "busy",
            Self::Slow => "slow",
            Self::TooLarge => "too_large",
        }
    }
}

/// How the change to another certificate went.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reload {
    Failure,
    Success,
}

impl Label for Reload {
    const NAME: &'static str = "result";
    const ALL: &'static [Self] = &[Self::Failure, Self::Success];

    fn as_str(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::Success => "success",
        }
    }
}
