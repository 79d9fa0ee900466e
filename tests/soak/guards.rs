//! Two guards behind one address, as replicas are, killed and restarted at random.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep},
};

use crate::{
    random::Random,
    support::{ControlPlane, Forwarder, Guard, User, eventually, guard},
};

/// Quick enough for a test, and in the order that the defaults have too.
const TIMING: [&str; 8] =
    ["--controller", "act", "--wake-after", "1s", "--grace", "4s", "--release-after", "3s"];

/// Between two ends of guards, in milliseconds: one lives for long enough to get to any step.
const PAUSE: (usize, usize) = (6000, 14_000);

/// How long a guard may take to end after a signal: to drain, and to finish what it writes. One
/// that still answers calls then is killed.
const GENTLY: Duration = Duration::from_secs(40);

/// The guards of a control plane.
pub(crate) struct Guards {
    plane: Arc<ControlPlane>,
    forwarder: Forwarder,
    ended: Mutex<Vec<Ended>>,
    kill: Notify,
    stop: Notify,
}

/// The end of a guard. What it was about to write then may have been written without a word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// It still lived then.
    pub(crate) lived: Timestamp,
    /// It lived no more.
    pub(crate) gone: Timestamp,
    /// By a signal that it may answer in its time: it finishes what it writes.
    pub(crate) gently: bool,
}

impl Guards {
    /// None yet.
    pub(crate) async fn of(plane: &Arc<ControlPlane>) -> Result<Self> {
        Ok(Self {
            plane: Arc::clone(plane),
            forwarder: Forwarder::start().await?,
            ended: Mutex::default(),
            kill: Notify::new(),
            stop: Notify::new(),
        })
    }

    /// Starts both, registers the hooks and says so; then goes on killing and restarting until
    /// [`Self::stop`].
    pub(crate) async fn run(self: Arc<Self>, seed: u64, started: oneshot::Sender<()>) {
        let mut random = Random::new(seed ^ 0x6775_6172_6473);
        let mut guards = [self.guard().await, self.guard().await];
        let manifests = guards[0].manifests().unwrap();
        let manifests = manifests.replace(&guards[0].address, &self.forwarder.address);
        guard::apply(&self.plane, &manifests).await.unwrap();
        self.plane.bind(User::Guard, "metal3-guard").await;
        self.plane.bind(User::Guard, "metal3-guard-repair").await;
        eventually("both guards to get calls", async || {
            (self.forwarder.ready() == 2).then_some(())
        })
        .await;
        started.send(()).ok();
        loop {
            tokio::select! {
                () = sleep(random.pause(PAUSE.0, PAUSE.1)) => {}
                () = self.kill.notified() => {}
                () = self.stop.notified() => break,
            }
            let first = random.below(2);
            // Rarely both: then hooks that may be passed over are.
            let both = random.chance(20);
            self.end(&mut guards[first], random.chance(50)).await;
            if both {
                self.end(&mut guards[1 - first], false).await;
            }
            sleep(random.pause(0, 2000)).await;
            guards[first] = self.guard().await;
            if both {
                guards[1 - first] = self.guard().await;
            }
        }
        for mut guard in guards {
            self.end(&mut guard, true).await;
        }
    }

    /// Ends a guard soon.
    pub(crate) fn kill_one(&self) {
        self.kill.notify_one();
    }

    /// Ends all, and [`Self::run`] with them.
    pub(crate) fn stop(&self) {
        self.stop.notify_one();
    }

    /// The ends of guards so far.
    pub(crate) fn ended(&self) -> Vec<Ended> {
        self.ended.lock().clone()
    }

    async fn guard(&self) -> Guard {
        let kubeconfig = self.plane.kubeconfig(User::Guard);
        let guard = Guard::start(&self.plane, &kubeconfig, "127.0.0.1:0", &TIMING).await.unwrap();
        self.forwarder.add(&guard);
        guard
    }

    /// By a signal, or at once.
    async fn end(&self, guard: &mut Guard, mut gently: bool) {
        let mut lived = Timestamp::now();
        if gently {
            guard.signal("TERM").unwrap();
            let patience = Instant::now() + GENTLY;
            while !guard.has_ended() && Instant::now() < patience {
                lived = Timestamp::now();
                sleep(Duration::from_millis(50)).await;
            }
            gently = guard.has_ended();
        }
        guard.kill();
        self.ended.lock().push(Ended { lived, gone: Timestamp::now(), gently });
    }
}
