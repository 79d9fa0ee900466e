//! Calls without an end, of which none may fail.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{
    super::{Space, rules_off::indexes},
    TEMPLATES, create_held, dry_delete,
};

const WORKERS: usize = 4;
/// Calls of a fixed pace that may wait for their answers at the same time.
const OPEN: usize = 64;

/// Calls without a pause to the hook that must not fail and to one that may: that one shows by a
/// stale entry that is stored after all.
pub(in crate::e2e) struct Load {
    shared: Arc<Shared>,
    workers: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    enough: AtomicBool,
    calls: AtomicU32,
    failed: Mutex<Vec<String>>,
}

impl Load {
    /// As fast as a few callers get their answers.
    pub(in crate::e2e) async fn start(space: &Arc<Space>) -> Self {
        let shared = Shared::start(space).await;
        let mut workers = JoinSet::new();
        for number in 0..WORKERS {
            let (space, shared) = (Arc::clone(space), Arc::clone(&shared));
            workers.spawn(async move {
                while !shared.enough.load(Ordering::Relaxed) {
                    for call in 0..3 {
                        shared.call(&space, call, number).await;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
        }
        Self { shared, workers }
    }

    /// At a fixed pace, however long the answers take: what is late is caught up on.
    pub(in crate::e2e) async fn paced(space: &Arc<Space>, per_second: u32) -> Self {
        let shared = Shared::start(space).await;
        let mut workers = JoinSet::new();
        let (space, all) = (Arc::clone(space), Arc::clone(&shared));
        workers.spawn(async move {
            let mut due = interval(Duration::from_secs(1) / per_second);
            due.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let (mut open, mut number) = (JoinSet::new(), 0);
            while !all.enough.load(Ordering::Relaxed) {
                due.tick().await;
                if open.len() == OPEN {
                    open.join_next().await.unwrap().unwrap();
                }
                while let Some(ended) = open.try_join_next() {
                    ended.unwrap();
                }
                let (space, shared) = (Arc::clone(&space), Arc::clone(&all));
                open.spawn(async move { shared.call(&space, number, number / 3 % WORKERS).await });
                number += 1;
            }
            open.join_all().await;
        });
        Self { shared, workers }
    }

    /// How many calls there were, and what went wrong.
    pub(in crate::e2e) async fn stop(self) -> (u32, Vec<String>) {
        self.shared.enough.store(true, Ordering::Relaxed);
        self.workers.join_all().await;
        let failed = std::mem::take(&mut *self.shared.failed.lock().unwrap());
        (self.shared.calls.load(Ordering::Relaxed), failed)
    }
}

impl Shared {
    async fn start(space: &Space) -> Arc<Self> {
        create_held(space, "held").await;
        for number in 0..WORKERS {
            space.create(&space.template(&free(number))).await.unwrap();
        }
        Arc::default()
    }

    /// One of three calls, with one of the templates that are not held.
    async fn call(&self, space: &Space, call: usize, number: usize) {
        let free = &free(number);
        self.count(match call % 3 {
            0 => dry_delete(space, free).await.map(drop),
            1 => match dry_delete(space, "held").await {
                Err(refused) if refused.contains("is in use by 1 Metal3Machine") => Ok(()),
                other => Err(format!("deletion of a held template: {other:?}")),
            },
            _ => match space.patch(TEMPLATES, free, "status", indexes(&[("gone", 1)])).await {
                Ok(stored) if stored["status"].get("indexes").is_none() => Ok(()),
                other => Err(format!("status write with a stale entry: {other:?}")),
            },
        });
    }

    fn count(&self, outcome: Result<(), String>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Err(why) = outcome {
            self.failed.lock().unwrap().push(why);
        }
    }
}

/// Each worker has its own, so that no write meets another.
fn free(number: usize) -> String {
    format!("free-{number}")
}
