//! What the controllers know: like CAPM3's they read from caches that events fill, so what has
//! not arrived yet does not exist for them.

use std::{collections::BTreeMap, pin::pin, sync::Arc};

use futures_util::StreamExt as _;
use kube::api::WatchEvent;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::sleep;

use super::{
    RETRY,
    api::{Api, RESOURCES, Result, text},
    controller::{Queues, Role},
    holds::{Holds, Point},
};

/// Objects by resource and name.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<BTreeMap<&'static str, BTreeMap<String, Value>>>);

impl Cache {
    pub(super) fn get(&self, resource: &str, name: &str) -> Option<Value> {
        self.0.lock().get(resource)?.get(name).cloned()
    }

    pub(super) fn list(&self, resource: &str) -> Vec<Value> {
        self.0.lock().get(resource).map(|it| it.values().cloned().collect()).unwrap_or_default()
    }

    /// Takes over a whole list and returns what differs, things that are gone included.
    fn replace(&self, resource: &'static str, items: Vec<Value>) -> Vec<Value> {
        let items: BTreeMap<_, _> =
            items.into_iter().map(|it| (text(&it["metadata"]["name"]).to_owned(), it)).collect();
        let mut caches = self.0.lock();
        let old = caches.insert(resource, items.clone()).unwrap_or_default();
        let (mut changed, mut gone) = (items.clone(), old.clone());
        changed.retain(|name, it| old.get(name).is_none_or(|old| revision(old) != revision(it)));
        gone.retain(|name, _| !items.contains_key(name));
        changed.into_values().chain(gone.into_values()).collect()
    }

    fn apply(&self, resource: &'static str, event: WatchEvent<Value>) -> Option<Value> {
        let mut caches = self.0.lock();
        let objects = caches.entry(resource).or_default();
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                objects.insert(text(&object["metadata"]["name"]).to_owned(), object.clone());
                Some(object)
            }
            WatchEvent::Deleted(object) => {
                objects.remove(text(&object["metadata"]["name"]));
                Some(object)
            }
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => None,
        }
    }

    /// Whether the API server has nothing newer.
    pub(super) async fn is_current(&self, api: &Api) -> Result<bool> {
        for resource in RESOURCES {
            let (items, _) = api.list(resource).await?;
            let live = items.iter().map(|it| (text(&it["metadata"]["name"]), revision(it)));
            let caches = self.0.lock();
            let known = caches.get(resource);
            let known = known.into_iter().flatten().map(|(name, it)| (name.as_str(), revision(it)));
            if !live.collect::<BTreeMap<_, _>>().into_iter().eq(known) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Fills the cache of one resource and says up to where it goes.
pub(super) async fn read(
    api: &Api,
    resource: &'static str,
    cache: &Cache,
    queues: &Queues,
) -> Result<String> {
    let (items, version) = api.list(resource).await?;
    for object in cache.replace(resource, items) {
        notify(queues, resource, &object);
    }
    Ok(version)
}

/// Keeps the cache of one resource up to date, and tells the controllers of every change.
pub(super) async fn follow(
    api: Api,
    resource: &'static str,
    mut version: String,
    cache: Arc<Cache>,
    queues: Arc<Queues>,
    holds: Arc<Holds>,
) {
    loop {
        if let Ok(events) = api.events(resource, &version).await {
            let mut events = pin!(events);
            while let Some(Ok(event)) = events.next().await {
                let name = match &event {
                    WatchEvent::Added(it) | WatchEvent::Modified(it) | WatchEvent::Deleted(it) => {
                        text(&it["metadata"]["name"])
                    }
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(_) => break,
                };
                holds.pass(Point::Stale(resource), name).await;
                if let Some(object) = cache.apply(resource, event) {
                    notify(&queues, resource, &object);
                }
            }
        }
        version = loop {
            match read(&api, resource, &cache, &queues).await {
                Ok(version) => break version,
                Err(_) => sleep(RETRY).await,
            }
        };
    }
}

/// Wakes the controllers that an event of this object concerns. An object that is paused wakes
/// none, also when it is deleted.
pub(super) fn notify(queues: &Queues, resource: &str, object: &Value) {
    if is_paused(object) {
        return;
    }
    for (role, queue) in queues.all() {
        for name in woken(role, resource, object) {
            queue.wake(name);
        }
    }
}

/// The objects that a controller looks at after an event.
fn woken<'a>(role: Role, resource: &str, object: &'a Value) -> Vec<&'a str> {
    let own = || object["metadata"]["name"].as_str();
    match (role, resource) {
        (Role::Machine, "metal3machines")
        | (Role::Template, "metal3datatemplates")
        | (Role::Data, "metal3datas") => own().into_iter().collect(),
        (Role::Machine, "metal3dataclaims") => owners(object, "Metal3Machine").collect(),
        (Role::Template, "metal3dataclaims") => {
            object["spec"]["template"]["name"].as_str().into_iter().collect()
        }
        (Role::Data, "ipclaims") => owners(object, "Metal3Data").collect(),
        // The template controller does not watch Metal3Data, that of Metal3Data no claims.
        _ => Vec::new(),
    }
}

fn owners<'a>(object: &'a Value, kind: &str) -> impl Iterator<Item = &'a str> {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.filter(move |it| it["kind"] == kind).filter_map(|it| it["name"].as_str())
}

/// By an annotation of its own.
pub(super) fn is_paused(object: &Value) -> bool {
    object["metadata"]["annotations"].get("cluster.x-k8s.io/paused").is_some()
}

fn revision(object: &Value) -> &str {
    text(&object["metadata"]["resourceVersion"])
}
