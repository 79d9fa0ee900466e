//! What is counted about repair. All label values come from the code.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, counter::Counter, family::Family, gauge::ConstGauge},
    registry::Registry,
};
use tokio::time::Instant;

use crate::core::{objects::Kind, plan::Action};

/// The kinds that get stuck.
const KINDS: [Kind; 2] = [Kind::Template, Kind::Data];

/// Handles to the controller's metrics; clones share the values.
#[derive(Clone, Debug, Default)]
pub struct RepairMetrics {
    steps: Family<Taken, Counter>,
    waiting: Arc<Mutex<BTreeMap<Box<str>, Vec<Waiting>>>>,
}

/// A terminating object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) kind: Kind,
    pub(super) deleted: Option<Timestamp>,
    /// From when on it counts as stuck, if nothing moves until then.
    pub(super) stuck_from: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Taken {
    step: &'static str,
    result: &'static str,
}

impl RepairMetrics {
    /// Puts the metrics into a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "repair_steps",
            "Steps of repair by kind and result (done, conflict, gone, refused, failed, observed)",
            self.steps.clone(),
        );
        registry.register_collector(Box::new(self.clone()));
    }

    pub(super) fn step(&self, action: Action, result: &'static str) {
        self.steps.get_or_create(&Taken { step: action.word(), result }).inc();
    }

    /// Replaces what is known of a namespace.
    pub(super) fn waiting(&self, namespace: &str, objects: Vec<Waiting>) {
        let mut waiting = self.waiting.lock();
        if objects.is_empty() {
            waiting.remove(namespace);
        } else {
            waiting.insert(namespace.into(), objects);
        }
    }

    /// How many objects of a kind are stuck, and for how long the oldest has been terminating.
    fn stuck(&self, kind: Kind, now: Instant, clock: Timestamp) -> (i64, f64) {
        let waiting = self.waiting.lock();
        let stuck = waiting.values().flatten().filter(|it| it.kind == kind && it.stuck_from <= now);
        stuck.fold((0, 0.0), |(count, oldest), it| {
            let age = it.deleted.map(|at| Duration::try_from(clock.duration_since(at)));
            let age = age.and_then(Result::ok).unwrap_or_default();
            (count + 1, age.as_secs_f64().max(oldest))
        })
    }
}

impl Collector for RepairMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (now, clock) = (Instant::now(), Timestamp::now());
        let stuck = KINDS.map(|kind| (kind, self.stuck(kind, now, clock)));
        let mut count = encoder.encode_descriptor(
            "stuck_objects",
            "Terminating objects for which nothing has moved for longer than the grace period",
            None,
            MetricType::Gauge,
        )?;
        for (kind, (objects, _)) in stuck {
            let labels = [("kind", kind.name())];
            ConstGauge::new(objects).encode(count.encode_family(&labels)?)?;
        }
        let mut age = encoder.encode_descriptor(
            "stuck_oldest_seconds",
            "For how long the oldest stuck object has been terminating; 0 when there is none",
            None,
            MetricType::Gauge,
        )?;
        for (kind, (_, oldest)) in stuck {
            let labels = [("kind", kind.name())];
            ConstGauge::new(oldest).encode(age.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stuck_is_what_has_not_moved_for_the_grace_period() {
        let metrics = RepairMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let deleted = Timestamp::now().checked_sub(jiff::SignedDuration::from_mins(20)).ok();
        let stuck_from = Instant::now() + Duration::from_mins(1);
        let object = |kind| Waiting { kind, deleted, stuck_from };
        metrics.waiting("a", vec![object(Kind::Data), object(Kind::Template)]);
        metrics.waiting("b", vec![object(Kind::Data)]);
        metrics.step(Action::Wake, "done");

        let count = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        assert!(count().contains("stuck_objects{kind=\"Metal3Data\"} 0"), "{}", count());
        tokio::time::advance(Duration::from_mins(1)).await;
        let text = count();
        assert!(text.contains("stuck_objects{kind=\"Metal3Data\"} 2"), "{text}");
        assert!(text.contains("stuck_objects{kind=\"Metal3DataTemplate\"} 1"), "{text}");
        assert!(text.contains("stuck_oldest_seconds{kind=\"Metal3Data\"} 12"), "{text}");
        assert!(text.contains("repair_steps_total{step=\"wake\",result=\"done\"} 1"), "{text}");
        metrics.waiting("a", vec![]);
        assert!(count().contains("stuck_objects{kind=\"Metal3Data\"} 1"));
    }
}
