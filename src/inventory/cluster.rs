//! A live cluster as the inventory: watches propose, the API server confirms.
//!
//! | the index says | confirmed by |
//! |---|---|
//! | the template is held | a GET of one of its holders, three at most; else as if free |
//! | the template is free | a complete list that started after the question |
//! | all indexes are true | nothing: keeping them is always right |
//! | some indexes look stale | a GET of each claim and Metal3Data, or a list of both |
//!
//! Before the first sync, and when there are no watches at all, everything is read live. What
//! cannot be read in time is unverified, never free.

use std::{collections::BTreeSet, fmt, ops::Deref, sync::Arc};

use futures_util::future::{join_all, try_join_all};
use kube::{Client, api::ApiResource};
use parking_lot::RwLock;
use tokio::{task::JoinSet, time::Instant};

use super::{Answering, Inventory, Need, index::Index};
use crate::core::{
    contents::Contents,
    indexes::{self, Entry, Occupancy},
    objects::{Data, Kind, Meta, Object, Usage},
    references::{self, Target},
    verdict::{Answer, Unverified},
};

mod changes;
mod flight;
mod health;
mod live;
mod watch;

pub(crate) use self::live::{is_object_name, root};
pub use self::{changes::Changes, health::Health};
use self::{
    flight::Flights,
    live::{Live, ReadError, SHARED_READ},
    watch::Watch,
};

/// The kinds that are watched.
const WATCHED: [Kind; 5] =
    [Kind::Data, Kind::Claim, Kind::Template, Kind::Machine, Kind::MachineTemplate];

/// The kinds that can hold a template.
const HOLDING: [Kind; 3] = [Kind::Machine, Kind::Claim, Kind::Data];

/// Holders that are looked at one by one before the whole namespace is listed.
const CONFIRMED: usize = 3;

/// Stale-looking entries that are looked at one by one before both kinds are listed.
const ONE_BY_ONE: usize = 8;

/// A live cluster.
pub struct Cluster {
    live: Live,
    index: Arc<RwLock<Index>>,
    health: Health,
    changes: Arc<Changes>,
    holders: Flights<Result<Arc<Contents>, ReadError>>,
    /// The watches; they end with this.
    watches: JoinSet<()>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("health", &self.health).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Reads everything live, for a command that asks once.
    pub fn unwatched(client: Client) -> Self {
        Self {
            live: Live::new(client),
            index: Arc::default(),
            health: Health::new(&WATCHED),
            changes: Arc::default(),
            holders: Flights::default(),
            watches: JoinSet::new(),
        }
    }

    /// Starts the watches. Must be called within a runtime; they end when this is dropped.
    pub fn watched(client: Client) -> Self {
        let mut cluster = Self::unwatched(client);
        for kind in WATCHED {
            if let Some(health) = cluster.health.of(kind) {
                let live = cluster.live.clone();
                let index = Arc::clone(&cluster.index);
                let changes = Arc::clone(&cluster.changes);
                cluster.watches.spawn(Watch { kind, live, index, health, changes }.run());
            }
        }
        cluster
    }

    /// How near the index is to the cluster.
    pub const fn health(&self) -> &Health {
        &self.health
    }

    /// Where the index has changed.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The index as it is now: it proposes, and may lag. Keep the guard for no longer than a
    /// look takes, the watches wait for it.
    pub fn index(&self) -> impl Deref<Target = Index> + '_ {
        self.index.read()
    }

    /// How a kind is served; `None` when it is not.
    ///
    /// # Errors
    /// When the API server does not say, with the reason.
    pub async fn resource(
        &self,
        kind: Kind,
        deadline: Instant,
    ) -> Result<Option<ApiResource>, Unverified> {
        Ok(self.live.resource(kind, deadline).await?)
    }

    /// The client, for what is no question of a rule.
    pub const fn client(&self) -> &Client {
        self.live.client()
    }

    /// Proves that the API server answers and which kinds it serves.
    ///
    /// # Errors
    /// When it does not, with the reason.
    pub async fn discover(&self, deadline: Instant) -> Result<(), Unverified> {
        self.live.discover(deadline).await?;
        Ok(())
    }

    /// Proves that live reads work, by reading what every verdict reads.
    ///
    /// # Errors
    /// When one does not, with the reason.
    pub async fn prove_reads(&self, deadline: Instant) -> Result<(), Unverified> {
        // A namespace that cannot exist: permissions count, objects do not.
        self.list(&HOLDING, "metal3-guard--probe", deadline).await?;
        Ok(())
    }

    async fn answer_usage(
        &self,
        need: Need<'_>,
        deadline: Instant,
    ) -> Result<Arc<Usage>, Unverified> {
        let (namespace, template) = (need.namespace(), need.template());
        let proposed = self.index.read().usage(namespace, template);
        if self.health.all_synced(&HOLDING) && self.is_held(need, &proposed, deadline).await {
            return Ok(proposed);
        }
        let listed = self.list_holders(namespace, deadline).await?;
        let mut usage = listed.usage(template);
        // They hold nothing and are only warned of: the index is good enough.
        usage.machine_templates.clone_from(&proposed.machine_templates);
        Ok(Arc::new(usage))
    }

    /// Whether one of the first holders still holds. A read that fails proves nothing.
    async fn is_held(&self, need: Need<'_>, proposed: &Usage, deadline: Instant) -> bool {
        for (kind, meta) in need.holders(proposed).into_iter().rev().take(CONFIRMED) {
            let read = self.live.get(kind, &meta.namespace, &meta.name, deadline).await;
            let Ok(found) = read else { return false };
            let mut alone = Contents::default();
            if let Some(object) = found {
                alone.insert(object);
            }
            if !need.holders(&alone.usage(need.template())).is_empty() {
                return true;
            }
        }
        false
    }

    /// A complete list of what can hold a template; one for all questions that came before it.
    async fn list_holders(
        &self,
        namespace: &str,
        deadline: Instant,
    ) -> Result<Arc<Contents>, Unverified> {
        let live = self.live.clone();
        let asked: Box<str> = namespace.into();
        let list = move || async move {
            let until = Instant::now() + SHARED_READ;
            list(&live, &HOLDING, &asked, until).await.map(Arc::new)
        };
        match self.holders.join(namespace, deadline, list).await {
            Some(listed) => Ok(listed?),
            None => Err(ReadError::TimedOut.into()),
        }
    }

    async fn list(
        &self,
        kinds: &[Kind],
        namespace: &str,
        deadline: Instant,
    ) -> Result<Contents, Unverified> {
        Ok(list(&self.live, kinds, namespace, deadline).await?)
    }

    async fn answer_occupancy(
        &self,
        question: &indexes::Question,
        deadline: Instant,
    ) -> Result<Occupancy, Unverified> {
        if !self.health.all_synced(&[Kind::Claim, Kind::Data]) {
            return self.list_occupancy(question, deadline).await;
        }
        let proposed = self.index.read().occupancy(question);
        let stale = question.indexes.stale(&proposed);
        match stale.len() {
            0 => Ok(proposed),
            1..=ONE_BY_ONE => {
                let looks = stale.iter().map(|entry| self.is_true(question, entry, deadline));
                let mut occupancy = proposed;
                for (entry, is_true) in stale.iter().zip(try_join_all(looks).await?) {
                    if is_true {
                        occupancy.claims.insert(entry.claim.clone());
                    }
                }
                Ok(occupancy)
            }
            _ => self.list_occupancy(question, deadline).await,
        }
    }

    /// Whether the claim of an entry is there, or a Metal3Data of the template at its index.
    async fn is_true(
        &self,
        question: &indexes::Question,
        entry: &Entry,
        deadline: Instant,
    ) -> Result<bool, Unverified> {
        let namespace = &question.namespace;
        // CAPM3's webhook lets a Metal3Data have no other name than this.
        let data_name = format!("{}-{}", question.name, entry.index);
        let claim = self.live.get(Kind::Claim, namespace, &entry.claim, deadline);
        let data = self.live.get(Kind::Data, namespace, &data_name, deadline);
        let (claim, data) = tokio::join!(claim, data);
        let names_template = |data: &Data| {
            let local = data.template.as_ref().and_then(|it| it.local(namespace));
            local == Some(&*question.name)
        };
        let occupied = matches!(data?, Some(Object::Data(data)) if names_template(&data));
        Ok(claim?.is_some() || occupied)
    }

    async fn list_occupancy(
        &self,
        question: &indexes::Question,
        deadline: Instant,
    ) -> Result<Occupancy, Unverified> {
        let kinds = [Kind::Claim, Kind::Data];
        let contents = self.list(&kinds, &question.namespace, deadline).await?;
        Ok(contents.occupancy(&question.indexes, &contents.usage(&question.name)))
    }

    async fn answer_target(
        &self,
        question: &references::Question,
        deadline: Instant,
    ) -> Result<Target, Unverified> {
        let references::Question { namespace, template, cluster, .. } = question;
        let mut contents = Contents::default();
        if let Some(found) = self.live.get(Kind::Template, namespace, template, deadline).await? {
            contents.insert(found);
        }
        let terminating = contents.templates.values().any(|it| it.meta.terminating());
        if let Some(cluster) = cluster.as_ref().filter(|_| terminating) {
            // Without the Cluster the answer is the stricter one, so its failure is no obstacle.
            let found = self.live.get(Kind::Cluster, namespace, cluster, deadline).await;
            if let Ok(Some(found)) = found {
                contents.insert(found);
            }
        }
        Ok(contents.target(template, cluster.as_deref()))
    }

    async fn all_namespaces(&self, deadline: Instant) -> Result<Vec<Box<str>>, Unverified> {
        let kinds = [Kind::Template, Kind::Machine, Kind::Claim, Kind::Data];
        let lists = kinds.map(|kind| self.live.list(kind, None, deadline));
        let mut namespaces = BTreeSet::new();
        for listed in try_join_all(lists).await? {
            let metas = listed.objects.iter().filter_map(Object::meta);
            namespaces.extend(metas.map(|meta: &Meta| meta.namespace.clone()));
        }
        Ok(namespaces.into_iter().collect())
    }
}

/// Complete lists of these kinds in one namespace. One that fails fails all.
async fn list(
    live: &Live,
    kinds: &[Kind],
    namespace: &str,
    deadline: Instant,
) -> Result<Contents, ReadError> {
    let lists = kinds.iter().map(|kind| live.list(*kind, Some(namespace), deadline));
    let mut contents = Contents::default();
    for (kind, listed) in kinds.iter().zip(join_all(lists).await) {
        let listed = listed?;
        if !listed.served {
            contents.unserved.insert(*kind);
        }
        for object in listed.objects {
            contents.insert(object);
        }
    }
    Ok(contents)
}

fn answer<F>(result: Result<F, Unverified>) -> Answer<F> {
    match result {
        Ok(facts) => Answer::Verified(facts),
        Err(unverified) => Answer::Unverified(unverified),
    }
}

impl Inventory for Cluster {
    fn usage<'a>(&'a self, need: Need<'a>, deadline: Instant) -> Answering<'a, Arc<Usage>> {
        Box::pin(async move { answer(self.answer_usage(need, deadline).await) })
    }

    fn occupancy<'a>(
        &'a self,
        question: &'a indexes::Question,
        deadline: Instant,
    ) -> Answering<'a, Occupancy> {
        Box::pin(async move { answer(self.answer_occupancy(question, deadline).await) })
    }

    fn target<'a>(
        &'a self,
        question: &'a references::Question,
        deadline: Instant,
    ) -> Answering<'a, Target> {
        Box::pin(async move { answer(self.answer_target(question, deadline).await) })
    }

    fn contents<'a>(
        &'a self,
        namespace: &'a str,
        deadline: Instant,
    ) -> Answering<'a, Arc<Contents>> {
        Box::pin(
            async move { answer(self.list(&Kind::ALL, namespace, deadline).await.map(Arc::new)) },
        )
    }

    fn namespaces(&self, deadline: Instant) -> Answering<'_, Vec<Box<str>>> {
        Box::pin(async move { answer(self.all_namespaces(deadline).await) })
    }
}
