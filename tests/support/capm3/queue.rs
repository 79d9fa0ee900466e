//! What a controller has to look at, and when.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// When to look again without an event; `None`: never.
pub(super) type Again = Option<Duration>;

/// A work queue: one object at a time, each at most once, however many events there were.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct State {
    due: BTreeMap<String, Instant>,
    /// An object that a controller looks at right now.
    busy: bool,
    /// How often it has looked.
    looks: usize,
}

impl Queue {
    /// An event concerns this object.
    pub(super) fn wake(&self, name: &str) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let due = state.due.entry(name.to_owned()).or_insert(now);
        *due = now.min(*due);
        drop(state);
        self.woken.notify_one();
    }

    /// The next object whose time has come. The queue counts as busy until [`Self::done`].
    pub(super) async fn next(&self) -> String {
        loop {
            let woken = self.woken.notified();
            let first = {
                let mut state = self.state.lock();
                let first = state.due.iter().min_by_key(|(_, at)| **at);
                let first = first.map(|(name, at)| (name.clone(), *at));
                if let Some((name, _)) = first.as_ref().filter(|(_, at)| *at <= Instant::now()) {
                    state.due.remove(name);
                    state.busy = true;
                    return name.clone();
                }
                first
            };
            match first {
                None => woken.await,
                Some((_, at)) => tokio::select! {
                    () = woken => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    /// The controller has looked. An event that came meanwhile counts, too.
    pub(super) fn done(&self, name: &str, again: Again) {
        let mut state = self.state.lock();
        state.busy = false;
        state.looks += 1;
        if let Some(pause) = again {
            state.due.entry(name.to_owned()).or_insert_with(|| Instant::now() + pause);
        }
    }

    /// How often the controller has looked at something.
    pub(super) fn looks(&self) -> usize {
        self.state.lock().looks
    }

    /// Whether the controller has nothing to do now.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        !state.busy && state.due.values().all(|at| *at > Instant::now())
    }

    /// Whether nothing is planned either: only an event can make the controller move.
    pub(super) fn is_asleep(&self) -> bool {
        let state = self.state.lock();
        !state.busy && state.due.is_empty()
    }
}
