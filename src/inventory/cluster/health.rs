//! How near the index is to the cluster: for metrics, readiness and `doctor`.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{TypedMetric, counter::ConstCounter, gauge::ConstGauge},
};
use tokio::{sync::Notify, time::Instant};

use crate::core::objects::Kind;

/// The state of all watches. Clones share it.
#[derive(Clone, Debug)]
pub struct Health {
    kinds: Arc<[(Kind, Arc<KindHealth>)]>,
    changed: Arc<Notify>,
}

/// The state of one watch.
#[derive(Debug)]
pub(super) struct KindHealth {
    start: Instant,
    synced: AtomicBool,
    /// Milliseconds after `start` of the last event, bookmark or sync; 0 for never.
    heard: AtomicU64,
    failures: AtomicU64,
    changed: Arc<Notify>,
}

impl KindHealth {
    pub(super) fn heard(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.store(millis.max(1), Ordering::Relaxed);
    }

    pub(super) fn synced(&self) {
        self.heard();
        self.synced.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Seconds since the watch last heard from the API server.
    fn age(&self) -> f64 {
        let heard = std::time::Duration::from_millis(self.heard.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(heard).as_secs_f64()
    }
}

impl Health {
    pub(super) fn new(kinds: &[Kind]) -> Self {
        let changed = Arc::new(Notify::new());
        let health = |kind: &Kind| {
            let health = KindHealth {
                start: Instant::now(),
                synced: AtomicBool::new(false),
                heard: AtomicU64::new(0),
                failures: AtomicU64::new(0),
                changed: Arc::clone(&changed),
            };
            (*kind, Arc::new(health))
        };
        Self { kinds: kinds.iter().map(health).collect(), changed }
    }

    pub(super) fn of(&self, kind: Kind) -> Option<Arc<KindHealth>> {
        self.kinds.iter().find(|(known, _)| *known == kind).map(|(_, it)| Arc::clone(it))
    }

    /// Whether all of these kinds were listed completely once.
    pub fn all_synced(&self, kinds: &[Kind]) -> bool {
        let synced = |kind| self.of(kind).is_some_and(|it| it.is_synced());
        kinds.iter().copied().all(synced)
    }

    /// Returns when every watch was synced once.
    pub async fn wait_synced(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that no change in between is missed.
            changed.as_mut().enable();
            if self.kinds.iter().all(|(_, it)| it.is_synced()) {
                return;
            }
            changed.await;
        }
    }
}

impl Collector for Health {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.series(
            &mut encoder,
            "watch_age_seconds",
            "Time since a watch last heard from the API server (events and bookmarks)",
            |it| ConstGauge::new(it.age()),
        )?;
        self.series(&mut encoder, "watch_synced", "1 once a kind was listed completely", |it| {
            ConstGauge::new(i64::from(it.is_synced()))
        })?;
        self.series(
            &mut encoder,
            "watch_failures",
            "Interrupted or refused watches and lists",
            |it| ConstCounter::new(it.failures.load(Ordering::Relaxed)),
        )
    }
}

impl Health {
    /// One metric with a value for each watched kind.
    fn series<M: EncodeMetric + TypedMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&KindHealth) -> M,
    ) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(name, help, None, M::TYPE)?;
        for (kind, health) in self.kinds.iter() {
            let labels = [("kind", kind.name())];
            value(health).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
