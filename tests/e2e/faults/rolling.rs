//! Guards are replaced one after the other, under load: no call fails.

use std::{
    io::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;

use super::{
    super::{Space, rules_off::indexes, wait_registered},
    Own, TEMPLATES, create_held, dry_delete,
};
use crate::support::{Forwarder, Guard, eventually};

const WORKERS: usize = 4;

#[tokio::test]
async fn a_rolling_restart_fails_no_call() {
    let own = Own::start().await;
    own.install_crds().await;
    let (mut first, mut second) = (own.guard().await, own.guard().await);
    let forwarder = Forwarder::start().await.unwrap();
    own.register(&first, &forwarder.address).await;
    for guard in [&first, &second] {
        guard.ready().await;
        forwarder.add(guard);
    }
    eventually("both guards to get calls", async || (forwarder.ready() == 2).then_some(())).await;
    let space = Arc::new(own.space("rolling").await);
    wait_registered(&space).await;

    let load = Load::start(&space).await;
    served(&first, &space).await;
    served(&second, &space).await;
    leaves(&mut first).await;
    let third = own.guard().await;
    third.ready().await;
    forwarder.add(&third);
    eventually("the successor to get calls", async || (forwarder.ready() == 2).then_some(())).await;
    leaves(&mut second).await;
    served(&third, &space).await;
    let (calls, failed) = load.stop().await;

    let shares = [&first, &second, &third].map(|guard| guard.reviews(space.ns()).len());
    let line = format!("rolling restart: {calls} calls, {} failed; {shares:?} each", failed.len());
    writeln!(std::io::stderr(), "{line}").ok();
    assert!(failed.is_empty(), "{} of {calls} failed: {failed:#?}", failed.len());
    assert_eq!(forwarder.lost(), 0, "connections that no guard took");
}

/// A guard that is told to leave does so by itself.
async fn leaves(guard: &mut Guard) {
    guard.signal("TERM").unwrap();
    eventually("the guard to drain and end", || {
        std::future::ready(guard.has_ended().then_some(()))
    })
    .await;
}

async fn served(guard: &Guard, space: &Space) {
    eventually("each guard to have its share", async || {
        (guard.reviews(space.ns()).len() >= 10).then_some(())
    })
    .await;
}

/// Calls without a pause to the hook that must not fail and to one that may: that one shows by a
/// stale entry that is stored after all.
struct Load {
    shared: Arc<Shared>,
    workers: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    enough: AtomicBool,
    calls: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl Load {
    async fn start(space: &Arc<Space>) -> Self {
        create_held(space, "held").await;
        let shared = Arc::new(Shared::default());
        let mut workers = JoinSet::new();
        for number in 0..WORKERS {
            // Its own, so that no write meets another.
            let name = format!("free-{number}");
            space.create(&space.template(&name)).await.unwrap();
            let (space, shared) = (Arc::clone(space), Arc::clone(&shared));
            workers.spawn(async move {
                while !shared.enough.load(Ordering::Relaxed) {
                    shared.calls(&space, &name).await;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
        }
        Self { shared, workers }
    }

    /// How many calls there were, and what went wrong.
    async fn stop(self) -> (usize, Vec<String>) {
        self.shared.enough.store(true, Ordering::Relaxed);
        self.workers.join_all().await;
        let failed = std::mem::take(&mut *self.shared.failed.lock().unwrap());
        (self.shared.calls.load(Ordering::Relaxed), failed)
    }
}

impl Shared {
    async fn calls(&self, space: &Space, free: &str) {
        let freed = dry_delete(space, free).await;
        self.count(freed.map(drop));
        self.count(match dry_delete(space, "held").await {
            Err(refused) if refused.contains("is in use by 1 Metal3Machine") => Ok(()),
            other => Err(format!("deletion of a held template: {other:?}")),
        });
        let stale = indexes(&[("gone", 1)]);
        self.count(match space.patch(TEMPLATES, free, "status", stale).await {
            Ok(stored) if stored["status"].get("indexes").is_none() => Ok(()),
            other => Err(format!("status write with a stale entry: {other:?}")),
        });
    }

    fn count(&self, outcome: Result<(), String>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Err(why) = outcome {
            self.failed.lock().unwrap().push(why);
        }
    }
}
