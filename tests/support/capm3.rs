//! A stand-in for CAPM3's controllers of machines, templates and Metal3Data in one namespace: no
//! hosts, no secrets, and addresses that nobody hands out, but every finalizer, owner reference and
//! index in CAPM3's own order, and the holes that the real ones have.
//!
//! Like CAPM3 it acts on events. Each controller is a task with a queue of its own, which an event
//! or a requeue fills: what nothing wakes stays as it is, and two controllers can overtake one
//! another. They read from caches that may be behind, write what they have made of a copy, and a
//! test can hold them at a [`Point`] to bring about an order of events.

#![expect(clippy::indexing_slicing, reason = "a key that a JSON value lacks reads as null")]

use std::{io::Write as _, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::sleep};

use self::{
    api::{Api, RESOURCES},
    cache::Cache,
    controller::{Controller, Journal, Queues},
    holds::Holds,
};
pub(crate) use self::{
    controller::Role,
    holds::{Hold, Point},
};
use super::{ControlPlane, User, eventually};

mod api;
mod cache;
mod controller;
mod datas;
mod holds;
mod machines;
mod queue;
mod templates;

/// After an error that CAPM3 does not call transient.
const RETRY: Duration = Duration::from_millis(200);

/// All of its controllers.
pub(crate) const ALL: [Role; 3] = [Role::Machine, Role::Template, Role::Data];

/// Whose behaviour it is. What differs in the objects themselves follows the API version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// CAPM3 1.8.1, the release of the public report (#1994): what waits for other objects is not
    /// looked at again without an event, Metal3Data are counted after those of deleted claims were
    /// taken off the count, machines keep their claims until their host is released, a template is
    /// left alone until its Cluster is there, and a write that failed is forgotten.
    V1_8_1,
    /// 1.8.2 and later: these look again after 30 s, and count first. Machines give up their claims
    /// first (since 1.9.5), templates need no Cluster (since 1.14).
    Later,
}

/// How one release of CAPM3 differs from another, and how fast its world is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    pub(crate) release: Release,
    /// What is 30 s in CAPM3: until it looks again at what waits for other objects (not in 1.8.1),
    /// at what is paused, and after what it calls transient errors.
    pub(crate) requeue: Duration,
    /// How long a host takes to be released after its machine was deleted.
    pub(crate) deprovision: Duration,
    /// Whether machines get hosts at all; without, nobody touches them or makes their claims.
    pub(crate) hosts: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self { release: Release::Later, requeue: second, deprovision: second, hosts: true }
    }
}

impl Behaviour {
    /// CAPM3 1.8.1.
    pub(crate) fn v1_8_1() -> Self {
        Self { release: Release::V1_8_1, ..Self::default() }
    }
}

/// The controllers, running or stopped. Dropping it stops them where they are.
pub(crate) struct Capm3 {
    api: Api,
    behaviour: Behaviour,
    holds: Arc<Holds>,
    journal: Arc<Journal>,
    run: Option<Run>,
}

/// From one start to the next stop.
struct Run {
    cache: Arc<Cache>,
    queues: Arc<Queues>,
    /// Aborted when dropped.
    tasks: JoinSet<()>,
}

impl Capm3 {
    /// Starts the controllers for one namespace, as CAPM3's own user. Objects are read and written
    /// in that version.
    pub(crate) async fn start(
        plane: &ControlPlane,
        namespace: &str,
        version: &str,
        behaviour: Behaviour,
    ) -> Self {
        let api = Api::new(plane.client(User::Capm3).await, namespace, version);
        let (holds, journal) = (Arc::default(), Arc::default());
        let mut capm3 = Self { api, behaviour, holds, journal, run: None };
        capm3.restart().await;
        capm3
    }

    /// Stops all controllers where they are, as a crash would, between two writes of one look too.
    pub(crate) fn stop(&mut self) {
        self.run = None;
        self.journal.note("stopped");
    }

    /// Starts them again, after [`Self::stop`] if need be. Like any manager they first read all
    /// there is, and then look at all of it.
    pub(crate) async fn restart(&mut self) {
        self.stop();
        let (cache, queues) = (Arc::default(), Arc::default());
        let mut tasks = JoinSet::new();
        for resource in RESOURCES {
            let version = eventually("CAPM3 to read its caches", async || {
                cache::read(&self.api, resource, &cache, &queues).await.ok()
            })
            .await;
            let (api, cache, queues) = (self.api.clone(), Arc::clone(&cache), Arc::clone(&queues));
            let holds = Arc::clone(&self.holds);
            tasks.spawn(cache::follow(api, resource, version, cache, queues, holds));
        }
        self.journal.note("started");
        for role in ALL {
            let controller = Controller {
                role,
                api: self.api.clone(),
                behaviour: self.behaviour,
                cache: Arc::clone(&cache),
                queues: Arc::clone(&queues),
                holds: Arc::clone(&self.holds),
                journal: Arc::clone(&self.journal),
            };
            tasks.spawn(controller.run());
        }
        self.run = Some(Run { cache, queues, tasks });
    }

    /// What every informer does from time to time (CAPM3: each 10 minutes): an event for each
    /// object that it knows.
    pub(crate) fn resync(&self) {
        let Some(run) = &self.run else { return };
        self.journal.note("resync");
        for resource in RESOURCES {
            for object in run.cache.list(resource) {
                cache::notify(&run.queues, resource, &object);
            }
        }
    }

    /// Makes whoever comes to this point wait there.
    pub(crate) fn hold(&self, point: Point) -> Hold {
        self.holds.hold(point)
    }

    /// Waits until controllers know all there is and only an event can make them do anything. What
    /// is looked at again and again is never settled.
    pub(crate) async fn settled(&self, roles: &[Role]) {
        self.when(&format!("CAPM3's {roles:?} to settle"), |queues| {
            roles.iter().all(|role| queues.of(*role).is_asleep())
        })
        .await;
    }

    /// Waits until controllers know all there is and have nothing to do now; one that is held has
    /// something to do.
    pub(crate) async fn idle(&self, roles: &[Role]) {
        self.when(&format!("CAPM3's {roles:?} to be idle"), |queues| {
            roles.iter().all(|role| queues.of(*role).is_idle())
        })
        .await;
    }

    /// Waits until the controllers know all there is.
    pub(crate) async fn current(&self) {
        self.when("CAPM3 to know all there is", |_| true).await;
    }

    /// Lets a controller that is held before its looks look once.
    pub(crate) async fn one_look(&self, hold: &Hold, role: Role) {
        hold.reached().await;
        let looks = self.looks(role);
        hold.step();
        eventually("CAPM3 to have looked once", async || (self.looks(role) > looks).then_some(()))
            .await;
    }

    /// How often a controller has looked at something since the last start.
    pub(crate) fn looks(&self, role: Role) -> usize {
        self.run.as_ref().map_or(0, |run| run.queues.of(role).looks())
    }

    /// Waits for a state of the queues while the caches are up to date.
    async fn when(&self, what: &str, state: impl Fn(&Queues) -> bool) {
        eventually(what, async || {
            let run = self.run.as_ref()?;
            // A cache that is current has told the queues; a look that ended meanwhile may have
            // changed the cache.
            let current = state(&run.queues)
                && run.cache.is_current(&self.api).await.is_ok_and(|current| current)
                && state(&run.queues);
            current.then_some(())
        })
        .await;
    }

    /// What the controllers did, in order.
    pub(crate) fn journal(&self) -> Vec<String> {
        self.journal.lines()
    }
}

impl Drop for Capm3 {
    /// A test that fails shows what the controllers did.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = self.journal.lines().join("\n  ");
            writeln!(std::io::stderr(), "CAPM3:\n  {lines}").ok();
        }
    }
}
