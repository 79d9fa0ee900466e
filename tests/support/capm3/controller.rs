//! One controller: a queue, and one object at a time.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::Value;

use super::{
    Behaviour, RETRY, Release,
    api::{Api, CLUSTERS, text},
    cache::{Cache, is_paused},
    holds::{Holds, Point},
    queue::{Again, Queue},
};

/// Which of CAPM3's controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Machine,
    Template,
    Data,
}

/// A queue for each controller.
#[derive(Debug, Default)]
pub(super) struct Queues {
    machine: Queue,
    template: Queue,
    data: Queue,
}

impl Queues {
    pub(super) fn of(&self, role: Role) -> &Queue {
        match role {
            Role::Machine => &self.machine,
            Role::Template => &self.template,
            Role::Data => &self.data,
        }
    }

    pub(super) fn all(&self) -> [(Role, &Queue); 3] {
        super::ALL.map(|role| (role, self.of(role)))
    }
}

/// Why a look ended early.
#[derive(Debug)]
pub(super) enum Trouble {
    /// What CAPM3 calls transient: it looks again after its 30 s, in every release.
    Transient(String),
    /// Anything else: it tries again soon, with growing pauses.
    Error(String),
}

pub(super) type Looked<T = Again> = Result<T, Trouble>;

impl From<kube::Error> for Trouble {
    fn from(error: kube::Error) -> Self {
        match error {
            // An object that is already there, or has been changed since it was read.
            kube::Error::Api(status) if status.code == 409 => {
                Self::Transient(status.message.clone())
            }
            kube::Error::Api(status) => Self::Error(status.message.clone()),
            error => Self::Error(error.to_string()),
        }
    }
}

/// What a controller works with.
#[derive(Clone)]
pub(super) struct Controller {
    pub(super) role: Role,
    pub(super) api: Api,
    pub(super) behaviour: Behaviour,
    pub(super) cache: Arc<Cache>,
    pub(super) queues: Arc<Queues>,
    pub(super) holds: Arc<Holds>,
    pub(super) journal: Arc<Journal>,
}

impl Controller {
    pub(super) async fn run(self) {
        let queue = self.queues.of(self.role);
        let point = match self.role {
            Role::Machine => Point::MachineLook,
            Role::Template => Point::TemplateLook,
            Role::Data => Point::DataLook,
        };
        loop {
            let name = queue.next().await;
            self.holds.pass(point, &name).await;
            let looked = match self.role {
                Role::Machine => self.machine(&name).await,
                Role::Template => self.template(&name).await,
                Role::Data => self.data(&name).await,
            };
            queue.done(&name, self.again(&name, looked));
        }
    }

    fn again(&self, name: &str, looked: Looked) -> Again {
        match looked {
            Ok(again) => again,
            Err(Trouble::Transient(why)) => {
                self.note(name, &format!("transient: {why}"));
                Some(self.behaviour.requeue)
            }
            Err(Trouble::Error(why)) => {
                self.note(name, &format!("error: {why}"));
                Some(RETRY)
            }
        }
    }

    /// When to look again at what waits for other objects: CAPM3 1.8.1 does not.
    pub(super) fn requeue(&self) -> Again {
        (self.behaviour.release != Release::V1_8_1).then_some(self.behaviour.requeue)
    }

    /// Writes what a look has changed, when it ends. CAPM3 1.8.1 forgets a write that failed.
    pub(super) async fn conclude(
        &self,
        resource: &str,
        old: &Value,
        new: &Value,
        looked: Looked,
    ) -> Looked {
        match self.api.patch(resource, old, new).await {
            Ok(()) => looked,
            Err(error) => {
                let trouble = Trouble::from(error);
                self.note(text(&old["metadata"]["name"]), &format!("not written: {trouble:?}"));
                if self.behaviour.release == Release::V1_8_1 { looked } else { Err(trouble) }
            }
        }
    }

    /// The Cluster that an object belongs to, while it is there.
    pub(super) fn cluster(&self, object: &Value) -> Option<Value> {
        let label = &object["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"];
        self.cache.get(CLUSTERS, text(label))
    }

    /// By an annotation, or with its Cluster.
    pub(super) fn is_paused(&self, object: &Value) -> bool {
        let cluster = self.cluster(object);
        is_paused(object) || cluster.is_some_and(|it| it["spec"]["paused"] == true)
    }

    /// Says what was done, for whoever reads the journal of a test that went wrong.
    pub(super) fn note(&self, name: &str, what: &str) {
        self.journal.note(&format!("{:?} {name}: {what}", self.role));
    }
}

/// What the controllers did, in order.
#[derive(Debug, Default)]
pub(super) struct Journal(Mutex<Vec<String>>);

impl Journal {
    /// As long as nobody is interested in more.
    const LINES: usize = 500;

    pub(super) fn note(&self, line: &str) {
        let now = jiff::Timestamp::now().strftime("%M:%S.%3f");
        let mut lines = self.0.lock();
        if lines.len() == Self::LINES {
            lines.remove(0);
        }
        lines.push(format!("{now} {line}"));
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// The pause until a time that long after another one.
pub(super) fn until(since: jiff::Timestamp, period: Duration) -> Again {
    let passed = Duration::try_from(jiff::Timestamp::now().duration_since(since));
    let left = period.saturating_sub(passed.unwrap_or_default());
    (!left.is_zero()).then_some(left)
}
