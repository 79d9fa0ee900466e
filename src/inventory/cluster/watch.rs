//! One watch for each kind: keeps the index near the cluster, and says how near.
//!
//! The index only proposes, so a watch that lags or breaks costs reads and never a wrong verdict.
//! A loop of its own rather than a ready-made one, because the age of the last bookmark is what
//! tells a quiet watch from a dead one.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, pin_mut};
use kube::{
    Resource as _,
    api::{ApiResource, DynamicObject, Request, WatchEvent, WatchParams},
};
use parking_lot::RwLock;
use tokio::time::{Instant, sleep, timeout};

use super::{
    changes::Changes,
    health::KindHealth,
    live::{Live, ReadError, SHARED_READ, sort},
};
use crate::{
    core::objects::{Kind, Object},
    inventory::index::{Index, identity},
};

/// How long the API server keeps one watch open; a dead connection is noticed a little later.
const WATCH_SECONDS: u32 = 60;

/// How long to wait for a kind that is not served, before asking again.
const ABSENT: Duration = Duration::from_secs(10);

/// Pauses between failed attempts: from the first to the last, doubled each time.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A bookmark with this annotation ends the initial events (KEP-3157).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Watches one kind for ever.
pub(super) struct Watch {
    pub(super) kind: Kind,
    pub(super) live: Live,
    pub(super) index: Arc<RwLock<Index>>,
    pub(super) health: Arc<KindHealth>,
    pub(super) changes: Arc<Changes>,
}

/// Where a watch stands. Every failure leads to a state that is safe to go on from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Fill the index by a watch that starts with everything there is.
    Stream,
    /// Fill the index by pages: the server does not know the other way.
    List,
    /// Follow changes from this resourceVersion on.
    Follow(String),
}

/// How one attempt ended.
enum Ended {
    /// Go on there at once.
    Next(State),
    /// Go on there after a pause.
    Failed(State, ReadError),
    /// The kind is not served.
    Absent,
}

impl Watch {
    pub(super) async fn run(self) {
        let mut state = State::Stream;
        let mut failures = 0;
        loop {
            match self.step(state).await {
                Ended::Next(next) => {
                    failures = 0;
                    state = next;
                }
                Ended::Failed(next, error) => {
                    failures += 1;
                    self.health.failed();
                    tracing::warn!(kind = %self.kind, %error, failures, "watch interrupted");
                    state = next;
                    sleep(pause(failures)).await;
                }
                Ended::Absent => {
                    failures = 0;
                    // Nothing of a kind that is not served can exist.
                    self.keep_only(|_, _| false);
                    self.health.synced();
                    state = State::Stream;
                    sleep(ABSENT).await;
                }
            }
        }
    }

    async fn step(&self, state: State) -> Ended {
        let resource = match self.live.resource(self.kind, Instant::now() + SHARED_READ).await {
            Ok(Some(resource)) => resource,
            Ok(None) => return Ended::Absent,
            Err(error) => return Ended::Failed(state, error),
        };
        match state {
            State::List => self.list().await,
            State::Stream => self.follow(&resource, None).await,
            State::Follow(version) => self.follow(&resource, Some(version)).await,
        }
    }

    async fn list(&self) -> Ended {
        match self.live.list(self.kind, None, Instant::now() + SHARED_READ * 4).await {
            Ok(listed) => {
                let mut seen = BTreeSet::new();
                for object in listed.objects {
                    self.apply(object, Some(&mut seen));
                }
                self.synced(&seen);
                Ended::Next(State::Follow(listed.resource_version))
            }
            Err(ReadError::NotServed) => self.not_served().await,
            Err(error) => Ended::Failed(State::List, error),
        }
    }

    /// One watch call: from a version on, or from the beginning with everything there is.
    async fn follow(&self, resource: &ApiResource, from: Option<String>) -> Ended {
        let initial = from.is_none();
        let mut params = WatchParams::default().timeout(WATCH_SECONDS);
        params.send_initial_events = initial;
        let mut version = from.unwrap_or_default();
        let back = |version: &str| {
            if version.is_empty() { State::Stream } else { State::Follow(version.into()) }
        };
        let what = || format!("watch {} in all namespaces", resource.plural);
        let request = Request::new(DynamicObject::url_path(resource, None));
        let request = match request.watch(&params, &version) {
            Ok(request) => request,
            Err(error) => return Ended::Failed(State::List, ReadError::Refused(error.to_string())),
        };
        // Quiet for longer than the server keeps a watch: the connection is dead. That holds for
        // the head of the answer too, which comes before any event.
        let patience = Duration::from_secs(u64::from(WATCH_SECONDS) + 5);
        let opening = self.live.client().request_events::<Object>(request);
        let events = match timeout(patience, opening).await {
            Err(_) => return Ended::Failed(back(&version), ReadError::TimedOut),
            Ok(Ok(events)) => events,
            Ok(Err(error)) => {
                return match sort(error, what) {
                    ReadError::NotServed => self.not_served().await,
                    ReadError::Expired => Ended::Next(State::Stream),
                    // An older server refuses to send initial events.
                    ReadError::Refused(_) if initial => Ended::Next(State::List),
                    error => Ended::Failed(back(&version), error),
                };
            }
        };
        pin_mut!(events);
        let mut seen = initial.then(BTreeSet::new);
        loop {
            let event = match timeout(patience, events.next()).await {
                Err(_) => return Ended::Failed(back(&version), ReadError::TimedOut),
                Ok(None) if seen.is_some() => return Ended::Next(State::List),
                Ok(None) => return Ended::Next(back(&version)),
                Ok(Some(Err(error))) => return Ended::Failed(back(&version), sort(error, what)),
                Ok(Some(Ok(event))) => event,
            };
            self.health.heard();
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let at = self.apply(object, seen.as_mut());
                    // During the initial events versions come in no order.
                    if seen.is_none() {
                        version = at.unwrap_or(version);
                    }
                }
                WatchEvent::Deleted(object) => {
                    version = self.remove(&object).unwrap_or(version);
                }
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    let ends_initial =
                        bookmark.metadata.annotations.contains_key(INITIAL_EVENTS_END);
                    if let Some(seen) = seen.take_if(|_| ends_initial) {
                        self.synced(&seen);
                    }
                }
                WatchEvent::Error(status) => {
                    return match sort(kube::Error::Api(status), what) {
                        ReadError::Expired => Ended::Next(State::Stream),
                        error => Ended::Failed(back(&version), error),
                    };
                }
            }
        }
    }

    /// A path that was served a moment ago is not: another version is, or none.
    async fn not_served(&self) -> Ended {
        match self.live.discover(Instant::now() + SHARED_READ).await {
            Ok(served) => match served.as_ref().as_ref().and_then(|it| it.get(&self.kind)) {
                Some(_) => Ended::Failed(State::Stream, ReadError::NotServed),
                None => Ended::Absent,
            },
            Err(error) => Ended::Failed(State::Stream, error),
        }
    }

    fn apply(
        &self,
        object: Object,
        seen: Option<&mut BTreeSet<(Box<str>, Box<str>)>>,
    ) -> Option<String> {
        let (_, meta) = identity(&object).filter(|(kind, _)| *kind == self.kind)?;
        let version = String::from(&*meta.resource_version);
        if let Some(seen) = seen {
            seen.insert((meta.namespace.clone(), meta.name.clone()));
        }
        let namespace = meta.namespace.clone();
        self.index.write().apply(object);
        self.changes.note(&namespace);
        Some(version)
    }

    fn remove(&self, object: &Object) -> Option<String> {
        let (_, meta) = identity(object).filter(|(kind, _)| *kind == self.kind)?;
        self.index.write().remove(self.kind, &meta.namespace, &meta.name);
        self.changes.note(&meta.namespace);
        Some(meta.resource_version.as_ref().into())
    }

    /// A complete list was applied: what was not in it is gone.
    fn synced(&self, seen: &BTreeSet<(Box<str>, Box<str>)>) {
        let is_there =
            |namespace: &str, name: &str| seen.contains(&(Box::from(namespace), Box::from(name)));
        self.keep_only(is_there);
        self.health.synced();
        tracing::info!(kind = %self.kind, objects = seen.len(), "synced");
    }

    fn keep_only(&self, is_there: impl Fn(&str, &str) -> bool) {
        let changed = self.index.write().keep_only(self.kind, is_there);
        for namespace in &changed {
            self.changes.note(namespace);
        }
    }
}

/// A pause with jitter, so that replicas and kinds do not all come back at once.
fn pause(failures: u32) -> Duration {
    let (first, last) = BACKOFF;
    let full = first.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(last);
    let random = RandomState::new().build_hasher().finish();
    let share = u32::try_from(random % 512).unwrap_or_default();
    full / 2 + full.mul_f64(f64::from(share) / 1024.0)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use kube::{Client, api::GroupVersionKind};

    use super::{super::health::Health, *};

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_never_answered_is_given_up() {
        type Never = Result<http::Response<kube::client::Body>, tower::BoxError>;
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| pending::<Never>());
        let watch = Watch {
            kind: Kind::Machine,
            live: Live::new(Client::new(silent, "default")),
            index: Arc::default(),
            health: Health::new(&[Kind::Machine]).of(Kind::Machine).unwrap(),
            changes: Arc::default(),
        };
        let kind = GroupVersionKind::gvk(Kind::Machine.group(), "v1beta1", Kind::Machine.name());
        let resource = ApiResource::from_gvk(&kind);
        for (from, back) in
            [(None, State::Stream), (Some("7".to_owned()), State::Follow("7".into()))]
        {
            let ended = watch.follow(&resource, from).await;
            let Ended::Failed(state, ReadError::TimedOut) = ended else { panic!("not given up") };
            assert_eq!(state, back);
        }
    }

    #[test]
    fn pauses_grow_and_stay_within_their_bounds() {
        for (failures, least, most) in [(1, 250, 500), (3, 1000, 2000), (20, 15_000, 30_000)] {
            for _ in 0..100 {
                let pause = pause(failures);
                assert!(pause >= Duration::from_millis(least), "{pause:?} after {failures}");
                assert!(pause <= Duration::from_millis(most), "{pause:?} after {failures}");
            }
        }
    }
}
