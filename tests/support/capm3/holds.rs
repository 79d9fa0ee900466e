//! Points at which a test can make the controllers wait, to bring about an order of events.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

/// Where a controller can be made to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Point {
    /// The machine controller was woken and has read nothing yet.
    MachineLook,
    /// So the template controller.
    TemplateLook,
    /// So the controller of Metal3Data.
    DataLook,
    /// The template controller has deleted the Metal3Data of a claim, and the claim still has its
    /// finalizer. A write that is lost here is one that nobody hears of.
    ClaimRelease,
    /// The machine controller has given up the claim of a machine, which can go.
    MachineRelease,
    /// The template controller has decided that a template can go.
    TemplateRelease,
    /// An event of this resource has arrived, and no controller knows it yet: caches are stale.
    Stale(&'static str),
}

/// The points that are held now.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<BTreeMap<Point, Arc<Gate>>>);

#[derive(Debug)]
struct Gate {
    /// Who stands there.
    waiting: watch::Sender<Vec<String>>,
    permits: Semaphore,
    lose: Mutex<Lose>,
}

/// Whose write is lost, of those who go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lose {
    #[default]
    Nobody,
    Next,
    All,
}

/// How a controller goes on behind a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Go,
    /// Its write is lost.
    Lost,
}

impl Holds {
    pub(super) fn hold(self: &Arc<Self>, point: Point) -> Hold {
        let gate = Arc::new(Gate {
            waiting: watch::Sender::new(Vec::new()),
            permits: Semaphore::new(0),
            lose: Mutex::default(),
        });
        self.0.lock().insert(point, Arc::clone(&gate));
        Hold { holds: Arc::clone(self), point, gate }
    }

    /// Comes by with an object; waits while the point is held.
    pub(super) async fn pass(&self, point: Point, name: &str) -> Pass {
        let Some(gate) = self.0.lock().get(&point).cloned() else { return Pass::Go };
        let _standing = Standing::at(&gate, name);
        // Held no more.
        let Ok(permit) = gate.permits.acquire().await else { return Pass::Go };
        let mut lose = gate.lose.lock();
        if *lose == Lose::All {
            return Pass::Lost;
        }
        permit.forget();
        if std::mem::take(&mut *lose) == Lose::Next { Pass::Lost } else { Pass::Go }
    }
}

/// Counts as waiting until it goes on or is stopped.
struct Standing<'a> {
    gate: &'a Gate,
    name: String,
}

impl<'a> Standing<'a> {
    fn at(gate: &'a Gate, name: &str) -> Self {
        gate.waiting.send_modify(|waiting| waiting.push(name.to_owned()));
        Self { gate, name: name.to_owned() }
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.gate.waiting.send_modify(|waiting| {
            if let Some(at) = waiting.iter().position(|name| *name == self.name) {
                waiting.remove(at);
            }
        });
    }
}

/// A point that is held until this is dropped; then all go on.
#[derive(Debug)]
pub(crate) struct Hold {
    holds: Arc<Holds>,
    point: Point,
    gate: Arc<Gate>,
}

impl Hold {
    /// Waits until a controller stands there, and says with which object.
    pub(crate) async fn reached(&self) -> String {
        let waited = async {
            let mut waiting = self.gate.waiting.subscribe();
            let waiting = waiting.wait_for(|waiting| !waiting.is_empty()).await;
            waiting.ok().and_then(|waiting| waiting.first().cloned()).unwrap_or_default()
        };
        let nobody = || format!("nobody came to {:?}", self.point);
        tokio::time::timeout(super::super::PATIENCE, waited).await.unwrap_or_else(|_| {
            fail(&nobody());
        })
    }

    /// Whether a controller stands there with this object.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.gate.waiting.borrow().iter().any(|waiting| waiting == name)
    }

    /// Lets one go on.
    pub(crate) fn step(&self) {
        self.gate.permits.add_permits(1);
    }

    /// Lets one go on, whose write is then lost.
    pub(crate) fn lose(&self) {
        *self.gate.lose.lock() = Lose::Next;
        self.step();
    }

    /// Lets all go on, and loses their writes until this is dropped.
    pub(crate) fn lose_all(&self) {
        *self.gate.lose.lock() = Lose::All;
        self.step();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.holds.0.lock();
        if held.get(&self.point).is_some_and(|gate| Arc::ptr_eq(gate, &self.gate)) {
            held.remove(&self.point);
        }
        self.gate.permits.close();
    }
}

#[expect(clippy::panic, reason = "what a test waits for in vain fails it")]
fn fail(what: &str) -> ! {
    panic!("{what}")
}
