//! Events on the objects that the guard works on or waits for. Best effort: a namespace that is
//! being deleted takes no new ones, and the log says the same.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams, Request};
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::hands::FIELD_MANAGER;
use crate::{
    core::{
        objects::{Kind, Meta},
        teardown::Target,
    },
    inventory::cluster::Cluster,
};

/// How often the same words about the same object are said again.
const AGAIN: Duration = Duration::from_mins(5);

/// Words that were said: when last, and how often.
type Said = BTreeMap<u64, (Instant, u32)>;

/// How long one Event may take; nothing waits for it longer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Most words remembered; beyond that all are forgotten, which repeats a few.
const REMEMBERED: usize = 4096;

/// Tells people on the objects themselves.
#[derive(Debug)]
pub struct Events {
    cluster: Arc<Cluster>,
    said: Mutex<Said>,
}

/// What an Event is about.
#[derive(Clone, Debug)]
pub struct About {
    kind: Kind,
    namespace: Box<str>,
    name: Box<str>,
    uid: Box<str>,
}

impl About {
    /// An object that was read.
    pub fn object(kind: Kind, meta: &Meta) -> Self {
        let Meta { namespace, name, uid, .. } = meta.clone();
        Self { kind, namespace, name, uid }
    }

    /// The object of a write.
    pub fn target(target: &Target) -> Self {
        let Target { kind, namespace, name, uid, .. } = target.clone();
        Self { kind, namespace, name, uid }
    }

    /// The namespace of the object.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Whether an Event is a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Something was done, or goes its way.
    Normal,
    /// Someone should look.
    Warning,
}

impl Events {
    /// Events in this cluster.
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, said: Mutex::default() }
    }

    /// Says something about an object: `reason` is one word in CamelCase, `note` a sentence. The
    /// same words about the same object are one Event with a count; `detail` is what may differ
    /// each time. False when it was said a moment ago and is not said again.
    pub async fn say(
        &self,
        about: &About,
        tone: Tone,
        reason: &str,
        note: &str,
        detail: &str,
    ) -> bool {
        let key = key(about, reason, note);
        let Some(count) = self.turn(key, Instant::now()) else { return false };
        let mut note = note.to_owned();
        if !detail.is_empty() {
            // The API server takes 1024 bytes.
            note = format!("{}; {detail}", short(&note, 800));
        }
        let note = short(&note, 1000);
        let sending = self.send(about, tone, reason, note, key, count);
        match timeout(PATIENCE, sending).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(kind = %about.kind, namespace = about.namespace, name = about.name,
                    reason, %error, "no Event");
            }
            Err(_) => tracing::debug!(namespace = about.namespace, reason, "no Event in time"),
        }
        true
    }

    /// Whether it is time to say this (again), and how often it was said with this time.
    fn turn(&self, key: u64, now: Instant) -> Option<u32> {
        let mut said = self.said.lock();
        if said.len() >= REMEMBERED {
            said.clear();
        }
        let (last, count) = said.entry(key).or_insert((now, 0));
        if *count > 0 && now.duration_since(*last) < AGAIN {
            return None;
        }
        *last = now;
        *count += 1;
        Some(*count)
    }

    async fn send(
        &self,
        about: &About,
        tone: Tone,
        reason: &str,
        note: &str,
        key: u64,
        count: u32,
    ) -> Result<(), kube::Error> {
        let deadline = Instant::now() + PATIENCE;
        let resource = self.cluster.resource(about.kind, deadline).await.ok().flatten();
        let api_version = resource.map_or_else(String::new, |it| it.api_version);
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        // The name follows from the words, so that replicas and restarts share one Event.
        let name: String = about.name.chars().take(230).collect();
        let name = format!("{}.{key:016x}", name.trim_end_matches(['.', '-']));
        let requests = Request::new(format!("/api/v1/namespaces/{}/events", about.namespace));
        let built = |request: Result<_, kube::core::request::Error>| {
            request.map_err(kube::Error::BuildRequest)
        };
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": about.namespace},
            "involvedObject": {
                "apiVersion": api_version, "kind": about.kind.name(),
                "namespace": about.namespace, "name": about.name, "uid": about.uid,
            },
            "type": match tone { Tone::Normal => "Normal", Tone::Warning => "Warning" },
            "reason": reason, "message": note,
            "source": {"component": FIELD_MANAGER}, "reportingComponent": FIELD_MANAGER,
            "firstTimestamp": now, "lastTimestamp": now, "count": count,
        });
        let create = requests.create(&PostParams::default(), event.to_string().into_bytes());
        match self.cluster.client().request::<IgnoredAny>(built(create)?).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let again = Patch::Merge(json!({
                    "lastTimestamp": now, "count": count.max(2), "message": note,
                }));
                let patch = requests.patch(&name, &PatchParams::default(), &again);
                self.cluster.client().request::<IgnoredAny>(built(patch)?).await.map(drop)
            }
            other => other.map(drop),
        }
    }
}

/// The first `most` bytes, or a little less to end between two characters.
fn short(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

fn key(about: &About, reason: &str, note: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&about.uid, &about.name, reason, note).hash(&mut hasher);
    hasher.finish()
}
