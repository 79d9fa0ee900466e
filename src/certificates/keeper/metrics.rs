//! What is counted about certificates that the guard makes itself.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::Counter, family::Family, gauge::ConstGauge},
    registry::Registry,
};

use crate::certificates::rotation::{Change, Why};

/// Handles to the metrics; clones share the values.
#[derive(Clone, Debug, Default)]
pub struct KeeperMetrics {
    changes: Family<[(&'static str, &'static str); 1], Counter>,
    failures: Counter,
    now: Arc<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// Seconds since 1970; 0 before the first look.
    ends: AtomicI64,
    trusted: AtomicBool,
}

const STEPS: [&str; 7] = ["introduce", "make", "publish", "renew", "restore", "settle", "switch"];

impl KeeperMetrics {
    /// Puts the metrics into a registry.
    pub fn register(&self, registry: &mut Registry) {
        for step in STEPS {
            drop(self.changes.get_or_create(&[("step", step)]));
        }
        registry.register(
            "certificate_changes",
            "Steps that this replica took to make, renew and rotate certificates",
            self.changes.clone(),
        );
        registry.register(
            "certificate_upkeep_failures",
            "Looks after the certificates that did not succeed",
            self.failures.clone(),
        );
        registry.register_collector(Box::new(self.clone()));
    }

    pub(super) fn changed(&self, change: Change) {
        self.step(words(change).0, 1);
    }

    pub(super) fn published(&self, configurations: u32) {
        self.step("publish", configurations);
    }

    pub(super) fn failed(&self) {
        self.failures.inc();
    }

    /// The end of the signing authority.
    pub(super) fn authority(&self, ends: Timestamp) {
        self.now.ends.store(ends.as_second(), Ordering::Relaxed);
    }

    /// Whether the webhooks trust what is served.
    pub(super) fn trusted(&self, trusted: bool) {
        self.now.trusted.store(trusted, Ordering::Relaxed);
    }

    fn step(&self, step: &'static str, times: u32) {
        self.changes.get_or_create(&[("step", step)]).inc_by(times.into());
    }
}

/// The step and the reason for it, for logs and metrics.
pub(super) const fn words(change: Change) -> (&'static str, &'static str) {
    let why = match change {
        Change::Renew(why) | Change::Introduce(why) => match why {
            Why::Age => "age",
            Why::Names => "names",
            Why::Asked => "asked",
        },
        Change::Make => "none was there",
        Change::Restore => "it was gone",
        Change::Switch | Change::Settle => "the time had come",
    };
    let step = match change {
        Change::Make => "make",
        Change::Restore => "restore",
        Change::Renew(_) => "renew",
        Change::Introduce(_) => "introduce",
        Change::Switch => "switch",
        Change::Settle => "settle",
    };
    (step, why)
}

impl Collector for KeeperMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let trusted = encoder.encode_descriptor(
            "certificate_trusted",
            "1 when the caBundle of every webhook verifies the certificate in use",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(i64::from(self.now.trusted.load(Ordering::Relaxed))).encode(trusted)?;
        let ends = self.now.ends.load(Ordering::Relaxed);
        if ends > 0 {
            let gauge = encoder.encode_descriptor(
                "certificate_authority_not_after_seconds",
                "When the authority that signs certificates ends, in seconds since 1970",
                None,
                MetricType::Gauge,
            )?;
            ConstGauge::new(ends).encode(gauge)?;
        }
        Ok(())
    }
}
