//! A stand-in for CAPM3's controllers of machines, templates and Metal3Data in one namespace, as
//! they are since 1.8.2: no hosts, no secrets, no IP claims, but every finalizer, owner reference
//! and index in CAPM3's own order.
//!
//! Like CAPM3 it acts on events. Each controller is a task with a queue of its own, which an event
//! or a requeue fills: what nothing wakes stays as it is, and two controllers can overtake one
//! another. Objects are read live and written with their resourceVersion.

#![expect(clippy::indexing_slicing, reason = "a key that a JSON value lacks reads as null")]

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures_util::StreamExt as _;
use jiff::Timestamp;
use kube::api::WatchEvent;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use self::api::{Api, Result, deleted_at, has_finalizer, text};
use super::{ControlPlane, User};

mod api;

const MACHINES: &str = "metal3machines";
const CLAIMS: &str = "metal3dataclaims";
const DATAS: &str = "metal3datas";
const TEMPLATES: &str = "metal3datatemplates";

const MACHINE_FINALIZER: &str = "metal3machine.infrastructure.cluster.x-k8s.io";
const CLAIM_FINALIZER: &str = "metal3dataclaim.infrastructure.cluster.x-k8s.io";
const DATA_FINALIZER: &str = "metal3data.infrastructure.cluster.x-k8s.io";
const TEMPLATE_FINALIZER: &str = "metal3datatemplate.infrastructure.cluster.x-k8s.io";

/// After an error, such as a write that lost against another one or was refused.
const RETRY: Duration = Duration::from_millis(200);

/// How one release of CAPM3 differs from another, and how fast its world is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    /// When a controller looks again at what waits for other objects, without an event (CAPM3
    /// 1.8.2 and later: 30 s). `None`: never, which is what made 1.8.1 hang; that release also
    /// counted Metal3Data at the end of a pass, not at its beginning, which is not done here.
    pub(crate) requeue: Option<Duration>,
    /// How long a host takes to be released after its machine was deleted.
    pub(crate) deprovision: Duration,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { requeue: Some(Duration::from_secs(1)), deprovision: Duration::from_secs(1) }
    }
}

/// The running controllers. Dropping it stops them where they are.
pub(crate) struct Capm3 {
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
        let mut tasks = JoinSet::new();
        let queues = [Role::Machine, Role::Template, Role::Data].map(|role| {
            let (queue, events) = unbounded_channel();
            let api = api.clone();
            tasks.spawn(Controller { role, api, behaviour, events, due: BTreeMap::new() }.run());
            (role, queue)
        });
        for resource in [MACHINES, CLAIMS, DATAS, TEMPLATES] {
            tasks.spawn(watch(api.clone(), resource, queues.clone()));
        }
        Self { tasks }
    }
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Machine,
    Template,
    Data,
}

impl Role {
    /// The object that this controller looks at after an event; `None` when it is not concerned.
    fn woken(self, resource: &str, object: &Value) -> Option<String> {
        let name = match (self, resource) {
            // A claim has its machine's name.
            (Self::Machine, MACHINES | CLAIMS)
            | (Self::Template, TEMPLATES)
            | (Self::Data, DATAS) => &object["metadata"]["name"],
            (Self::Template, CLAIMS) => &object["spec"]["template"]["name"],
            // The template controller does not watch Metal3Data, that of Metal3Data no claims.
            _ => return None,
        };
        name.as_str().map(Into::into)
    }
}

/// Tells the controllers of everything there is, then of every change.
async fn watch(api: Api, resource: &str, queues: [(Role, UnboundedSender<String>); 3]) {
    loop {
        if let Ok(events) = api.events(resource).await {
            let mut events = pin!(events);
            while let Some(Ok(event)) = events.next().await {
                let (WatchEvent::Added(object)
                | WatchEvent::Modified(object)
                | WatchEvent::Deleted(object)) = event
                else {
                    break;
                };
                for (role, queue) in &queues {
                    if let Some(name) = role.woken(resource, &object) {
                        queue.send(name).ok();
                    }
                }
            }
        }
        sleep(RETRY).await;
    }
}

/// One controller: a queue, and one object at a time.
struct Controller {
    role: Role,
    api: Api,
    behaviour: Behaviour,
    events: UnboundedReceiver<String>,
    /// What is to be looked at, and when.
    due: BTreeMap<String, Instant>,
}

/// When to look again without an event.
type Again = Option<Duration>;

impl Controller {
    async fn run(mut self) {
        loop {
            let event = self.events.recv();
            let name = match self.due.iter().min_by_key(|(_, at)| **at) {
                None => Err(event.await),
                Some((name, at)) => tokio::select! {
                    biased;
                    event = event => Err(event),
                    () = sleep_until(*at) => Ok(name.clone()),
                },
            };
            match name {
                Ok(name) => {
                    self.due.remove(&name);
                    if let Some(pause) = self.look_at(&name).await {
                        self.due.insert(name, Instant::now() + pause);
                    }
                }
                Err(Some(name)) => drop(self.due.insert(name, Instant::now())),
                Err(None) => return,
            }
        }
    }

    async fn look_at(&self, name: &str) -> Again {
        let looked = match self.role {
            Role::Machine => self.machine(name).await,
            Role::Template => self.template(name).await,
            Role::Data => self.data(name).await,
        };
        looked.unwrap_or_else(|error| {
            report(self.role, name, &error);
            Some(RETRY)
        })
    }

    /// Makes the claim; on deletion gives it up before the host is released, which takes long.
    async fn machine(&self, name: &str) -> Result<Again> {
        let Some(machine) = self.api.get(MACHINES, name).await? else { return Ok(None) };
        let claim = self.api.get(CLAIMS, name).await?;
        let Some(deleted) = deleted_at(&machine) else {
            self.api.add_finalizer(MACHINES, &machine, MACHINE_FINALIZER).await?;
            let template = &machine["spec"]["dataTemplate"]["name"];
            if claim.is_none() && template.is_string() {
                let mut claim = self.api.object("Metal3DataClaim", name, &machine);
                claim["metadata"]["finalizers"] = json!([MACHINE_FINALIZER]);
                claim["metadata"]["ownerReferences"] =
                    json!([self.api.owner("Metal3Machine", &machine, true)]);
                claim["spec"] = json!({"template": self.api.reference(template)});
                self.api.create(CLAIMS, &claim).await?;
            }
            return Ok(None);
        };
        if let Some(claim) = claim {
            self.api.drop_finalizer(CLAIMS, &claim, MACHINE_FINALIZER).await?;
            if deleted_at(&claim).is_none() {
                self.api.delete(CLAIMS, name).await?;
            }
        }
        let since = Duration::try_from(Timestamp::now().duration_since(deleted));
        let left = self.behaviour.deprovision.saturating_sub(since.unwrap_or_default());
        if !left.is_zero() {
            return Ok(Some(left));
        }
        self.api.drop_finalizer(MACHINES, &machine, MACHINE_FINALIZER).await?;
        Ok(None)
    }

    /// Serves claims, also while the template is being deleted, and lets it go when none is live
    /// and there was no Metal3Data when it began to look.
    async fn template(&self, name: &str) -> Result<Again> {
        let Some(template) = self.api.get(TEMPLATES, name).await? else { return Ok(None) };
        let deleting = deleted_at(&template).is_some();
        if !deleting {
            self.api.add_finalizer(TEMPLATES, &template, TEMPLATE_FINALIZER).await?;
        }
        let names_it = |it: &Value| it["spec"]["template"]["name"] == name;
        let mut indexes = BTreeMap::new();
        for data in self.api.list(DATAS).await?.iter().filter(|it| names_it(it)) {
            let claim = data["spec"]["claim"]["name"].as_str().unwrap_or_default();
            // Up to 1.12 an index of 0 is left out.
            indexes.insert(claim.to_owned(), data["spec"]["index"].as_i64().unwrap_or_default());
        }
        let has_data = !indexes.is_empty();
        let mut has_claims = false;
        for claim in self.api.list(CLAIMS).await?.iter().filter(|it| names_it(it)) {
            if deleted_at(claim).is_some() {
                self.forget(claim, name, &mut indexes).await?;
            } else {
                has_claims = true;
                if claim["status"]["renderedData"]["name"].is_null() {
                    self.render(claim, &template, &mut indexes).await?;
                }
            }
        }
        self.write_indexes(name, &indexes).await?;
        if !deleting || has_claims {
            return Ok(None);
        }
        if has_data {
            return Ok(self.behaviour.requeue);
        }
        if let Some(template) = self.api.get(TEMPLATES, name).await? {
            self.api.drop_finalizer(TEMPLATES, &template, TEMPLATE_FINALIZER).await?;
        }
        Ok(None)
    }

    /// Makes the Metal3Data of a claim, at the lowest free index.
    async fn render(
        &self,
        claim: &Value,
        template: &Value,
        indexes: &mut BTreeMap<String, i64>,
    ) -> Result<()> {
        let name = claim["metadata"]["name"].as_str().unwrap_or_default();
        self.api.add_finalizer(CLAIMS, claim, CLAIM_FINALIZER).await?;
        // Of one more than are taken, one is free.
        let mut candidates = 0..=i64::try_from(indexes.len()).unwrap_or(i64::MAX);
        let free = || candidates.find(|index| !indexes.values().any(|taken| taken == index));
        let index = indexes.get(name).copied().or_else(free).unwrap_or_default();
        let data_name = format!("{}-{index}", text(&template["metadata"]["name"]));
        if !indexes.contains_key(name) {
            let mut data = self.api.object("Metal3Data", &data_name, claim);
            data["metadata"]["finalizers"] = json!([CLAIM_FINALIZER]);
            let mut owners = vec![self.api.owner("Metal3DataClaim", claim, !self.api.is_v1beta1())];
            // Its machine owns the claim, under the same name.
            let mut machine = claim["metadata"]["ownerReferences"][0].clone();
            machine["controller"] = false.into();
            owners.push(machine);
            data["spec"] = json!({
                "template": self.api.reference(&template["metadata"]["name"]),
                "claim": self.api.reference(&claim["metadata"]["name"]),
            });
            if self.api.is_v1beta1() {
                owners.insert(0, self.api.owner("Metal3DataTemplate", template, true));
            }
            if index > 0 || !self.api.is_v1beta1() {
                data["spec"]["index"] = index.into();
            }
            data["metadata"]["ownerReferences"] = owners.into();
            self.api.create(DATAS, &data).await?;
            indexes.insert(name.to_owned(), index);
        }
        let rendered = json!({"renderedData": self.api.reference(&data_name.into())});
        self.api.patch(CLAIMS, &format!("{name}/status"), &json!({"status": rendered})).await
    }

    /// Deletes the Metal3Data of a claim that is being deleted, and lets the claim go.
    async fn forget(
        &self,
        claim: &Value,
        template: &str,
        indexes: &mut BTreeMap<String, i64>,
    ) -> Result<()> {
        if let Some(index) = indexes.remove(text(&claim["metadata"]["name"])) {
            let name = format!("{template}-{index}");
            if let Some(data) = self.api.get(DATAS, &name).await? {
                self.api.drop_finalizer(DATAS, &data, CLAIM_FINALIZER).await?;
                self.api.delete(DATAS, &name).await?;
            }
        }
        self.api.drop_finalizer(CLAIMS, claim, CLAIM_FINALIZER).await
    }

    /// A list is never empty: the last entry takes the key with it.
    async fn write_indexes(&self, name: &str, indexes: &BTreeMap<String, i64>) -> Result<()> {
        let Some(mut template) = self.api.get(TEMPLATES, name).await? else { return Ok(()) };
        let mut entries: Vec<_> = indexes.iter().map(|(name, index)| (*index, name)).collect();
        entries.sort_unstable();
        let list = entries.iter().map(|(index, name)| json!({"index": index, "name": name}));
        let wanted = match indexes.len() {
            0 => Value::Null,
            _ if self.api.is_v1beta1() => json!(indexes),
            _ => list.collect(),
        };
        if template["status"]["indexes"] == wanted {
            return Ok(());
        }
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        template["status"] = json!({"lastUpdated": now});
        if !wanted.is_null() {
            template["status"]["indexes"] = wanted;
        }
        self.api.replace(TEMPLATES, &format!("{name}/status"), &template).await
    }

    /// Lets deleted Metal3Data go when its claim is gone and its template is there to say what it
    /// had.
    async fn data(&self, name: &str) -> Result<Again> {
        let Some(data) = self.api.get(DATAS, name).await? else { return Ok(None) };
        if deleted_at(&data).is_none() {
            self.api.add_finalizer(DATAS, &data, DATA_FINALIZER).await?;
            return Ok(None);
        }
        if !has_finalizer(&data, DATA_FINALIZER) {
            return Ok(None);
        }
        let claim = self.api.get(CLAIMS, text(&data["spec"]["claim"]["name"])).await?;
        let template = self.api.get(TEMPLATES, text(&data["spec"]["template"]["name"])).await?;
        if claim.is_some() || template.is_none() {
            return Ok(self.behaviour.requeue);
        }
        self.api.drop_finalizer(DATAS, &data, DATA_FINALIZER).await?;
        Ok(None)
    }
}

/// A lost race is everyday life; everything else may be why a test fails.
#[expect(clippy::print_stderr, reason = "belongs to the captured output of the test")]
fn report(role: Role, name: &str, error: &kube::Error) {
    match error {
        kube::Error::Api(status) if [404, 409].contains(&status.code) => {}
        kube::Error::Api(status) => eprintln!("CAPM3's {role:?} {name}: {}", status.message),
        error => eprintln!("CAPM3's {role:?} {name}: {error}"),
    }
}
