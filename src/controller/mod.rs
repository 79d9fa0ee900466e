//! Carries out the plans of rule 4.5, so that nothing stays stuck.
//!
//! The index only says where to look. Every step comes from a complete live list of the namespace,
//! and a step that cannot be undone from two such lists, one after the other, that agree. Each
//! write names the uid and resourceVersion that it was planned from, so there is no leader: of two
//! replicas the second one gets a conflict.

use std::{
    collections::BTreeSet, future::pending, panic::AssertUnwindSafe, sync::Arc, time::Duration,
};

use futures_util::FutureExt as _;
use jiff::SignedDuration;
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    core::{
        objects::{Kind, Meta, Usage},
        plan::{Scope, Situation, Timing, plan},
        progress::fingerprint,
    },
    inventory::cluster::Cluster,
};

mod events;
mod hands;
mod look;
mod memory;
mod metrics;
mod pace;
mod visit;

pub use self::{
    events::{About, Events, Tone},
    hands::{FIELD_MANAGER, Hands, NotWritten, Written},
    look::{Look, confirmed, needs_second_look},
    metrics::RepairMetrics,
    pace::Pace,
};
use self::{
    memory::{Memory, jitter},
    metrics::Waiting,
};

/// Namespaces that are looked at side by side.
const LOOKS: usize = 4;

/// Between two takes of changes: one look at the index serves all events of a moment.
const SETTLE: Duration = Duration::from_millis(250);

/// Between a change and a look for it, at least.
const BREATH: Duration = Duration::from_secs(1);

/// Whether the controller writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It says what it would do, in the log, in Events and in metrics.
    Observe,
    /// It does it.
    Act,
}

/// The controller of one guard.
#[derive(Debug)]
pub struct Controller {
    cluster: Arc<Cluster>,
    mode: Mode,
    timing: Timing,
    hands: Arc<Hands>,
    events: Events,
    metrics: RepairMetrics,
    memory: Mutex<Memory>,
    /// The kinds that were last said not to be served.
    unserved: Mutex<BTreeSet<Kind>>,
}

impl Controller {
    /// A controller that has seen nothing yet.
    pub fn new(cluster: Arc<Cluster>, mode: Mode, timing: Timing, metrics: RepairMetrics) -> Self {
        Self {
            hands: Arc::new(Hands::new(Arc::clone(&cluster), Pace::default(), "controller")),
            events: Events::new(Arc::clone(&cluster)),
            cluster,
            mode,
            timing,
            metrics,
            memory: Mutex::default(),
            unserved: Mutex::default(),
        }
    }

    /// What carries out the steps; let it rest before the program ends.
    pub fn hands(&self) -> Arc<Hands> {
        Arc::clone(&self.hands)
    }

    /// Runs for ever. May be dropped at any time: a write is done or not, and nothing else counts.
    pub async fn run(self) {
        tracing::info!(mode = ?self.mode, timing = ?self.timing, "controller started");
        let controller = Arc::new(self);
        let mut looks = JoinSet::new();
        loop {
            let room = LOOKS - looks.len();
            let next = controller.memory.lock().next_look().filter(|_| room > 0);
            let look = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = controller.cluster.changes().noted() => {
                    sleep(SETTLE).await;
                    for namespace in controller.cluster.changes().take() {
                        controller.note(&namespace);
                    }
                }
                Some(_) = looks.join_next() => {}
                () = look => {
                    let due = controller.memory.lock().take_due(Instant::now(), room);
                    for namespace in due {
                        looks.spawn(Arc::clone(&controller).visit_or_back_off(namespace));
                    }
                }
            }
        }
    }

    /// A visit whose bug costs its namespace a pause, and nothing else.
    async fn visit_or_back_off(self: Arc<Self>, namespace: Box<str>) {
        if AssertUnwindSafe(self.visit(&namespace)).catch_unwind().await.is_err() {
            tracing::error!(namespace, "a look ended in a panic; this is a bug");
            self.memory.lock().space(&namespace).failed(Instant::now());
        }
    }

    /// Looks at the index after a change: is there anything to look at, and when?
    fn note(&self, namespace: &str) {
        let now = Instant::now();
        let index = self.cluster.index();
        // Dropped before the index is let go: a second owner would make the watches copy it.
        let contents = index.contents(namespace);
        let concerns = index.concerns(namespace);
        let mut memory = self.memory.lock();
        let mut waiting = Vec::new();
        if concerns.is_empty() {
            memory.forget(namespace);
        } else {
            let space = memory.space(namespace);
            space.keep_only(|name| concerns.iter().any(|(concerned, _)| **concerned == *name));
            for (template, usage) in &concerns {
                let since = space.seen(template, fingerprint(&contents, template, usage), now);
                let meta = contents.templates.get(template).map(|it| &it.meta);
                waiting.extend(self.waiting(meta, usage, since));
                if since < now {
                    continue;
                }
                let clock = jiff::Timestamp::now();
                let proposed = plan(&Situation {
                    contents: &contents,
                    template,
                    now: clock,
                    unchanged_since: Some(clock),
                    timing: self.timing,
                    scope: Scope::Controller,
                });
                let step = proposed.steps.iter().map(|step| step.due.duration_since(clock)).min();
                let look = || proposed.next_look.map(|at| at.duration_since(clock));
                let pause = step.or_else(look);
                if let Some(pause) = pause {
                    space.look_by(now + unsigned(pause).max(BREATH) + jitter(BREATH));
                }
            }
        }
        drop(memory);
        self.metrics.waiting(namespace, waiting);
    }

    /// The terminating objects of a template, for the metrics.
    fn waiting(&self, template: Option<&Meta>, usage: &Usage, since: Instant) -> Vec<Waiting> {
        let template = template.map(|meta| (Kind::Template, meta));
        let data = usage.data.values().map(|it| (Kind::Data, &it.meta));
        let all = template.into_iter().chain(data);
        let stuck_from = since + unsigned(self.timing.grace);
        all.filter_map(|(kind, meta)| {
            meta.deletion.map(|deletion| Waiting { kind, deleted: deletion.at, stuck_from })
        })
        .collect()
    }
}

/// A pause as the runtime takes it; none for one that is over.
fn unsigned(pause: SignedDuration) -> Duration {
    Duration::try_from(pause).unwrap_or_default()
}
