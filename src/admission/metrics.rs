//! What is counted about reviews. All label values come from the code, none from a request.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::hook::Hook;

/// Handles to the review metrics; clones share the values.
#[derive(Clone, Debug)]
pub struct ReviewMetrics {
    reviews: Family<Judged, Counter>,
    seconds: Family<OnPath, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Judged {
    path: &'static str,
    verdict: &'static str,
    rule: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OnPath {
    path: &'static str,
}

impl ReviewMetrics {
    /// Metrics that are not yet in a registry.
    pub fn new() -> Self {
        Self {
            reviews: Family::default(),
            // 50 us to 1.6 s: from a look-up in memory to a slow live read.
            seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(5e-5, 2.0, 16))
            }),
        }
    }

    /// Puts the metrics into a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "reviews",
            "Reviews by path, verdict (allow, deny, patch or refused) and the rule that decided",
            self.reviews.clone(),
        );
        registry.register(
            "review_seconds",
            "Time from the whole body to the verdict",
            self.seconds.clone(),
        );
    }

    pub(super) fn judged(
        &self,
        hook: Hook,
        verdict: &'static str,
        rule: &'static str,
        took: Duration,
    ) {
        let path = hook.path();
        self.reviews.get_or_create(&Judged { path, verdict, rule }).inc();
        self.seconds.get_or_create(&OnPath { path }).observe(took.as_secs_f64());
    }

    pub(super) fn refused(&self, hook: Hook) {
        let judged = Judged { path: hook.path(), verdict: "refused", rule: "not_a_review" };
        self.reviews.get_or_create(&judged).inc();
    }
}

impl Default for ReviewMetrics {
    fn default() -> Self {
        Self::new()
    }
}
