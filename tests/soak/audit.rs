//! The API server's audit log, read into the history of each object. Everything that was written to
//! a namespace of a walk is in it, with what was sent and what came of it.

use std::{
    collections::BTreeMap,
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{BufRead as _, BufReader},
    path::Path,
};

use jiff::Timestamp;
use serde_json::Value;

use crate::space::PAUSED;

/// What the guard leaves on an object to wake its owner.
pub(crate) const WOKEN: &str = "metal3-guard.io/woken-at";
const FORCED: &str = "metal3-guard.io/force-delete";
const MOVING: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";

/// One write, done or refused.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// The number of its line in the log, from 1.
    pub(crate) line: usize,
    pub(crate) user: String,
    pub(crate) verb: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The HTTP status of the answer.
    pub(crate) code: u16,
    /// When the API server got it.
    pub(crate) received: Timestamp,
    /// When it had answered.
    pub(crate) done: Timestamp,
    /// A hook that may be passed over did not answer.
    pub(crate) failed_open: bool,
    /// What was sent; only for the guard's own.
    pub(crate) request: Value,
    /// The object that it concerns, where the answer names it.
    pub(crate) uid: String,
    /// The object as it was after it, where the answer says so.
    pub(crate) version: Option<Version>,
}

/// An object after a write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    pub(crate) revision: u64,
    pub(crate) terminating: bool,
    pub(crate) finalizers: Vec<String>,
    pub(crate) paused: bool,
    /// Marked to be moved away, or to be deleted whatever needs it.
    pub(crate) overridden: bool,
    pub(crate) owners: Vec<String>,
    pub(crate) cluster: String,
    /// The template that it names.
    pub(crate) template: Option<String>,
    /// The claim that it names.
    pub(crate) claim: Option<String>,
    /// Of a template: what its Metal3Data have from where, their addresses among it.
    pub(crate) metadata_from: Vec<String>,
    /// The claims in `status.indexes`.
    pub(crate) indexed: Vec<String>,
    /// Numbers for the metadata without the wake-up and the revision, and for all but the metadata.
    /// Where only the metadata is known, the rest is taken to be as before.
    pub(crate) rest: (u64, Option<u64>),
    /// The event that made it.
    pub(crate) by: usize,
}

/// All that is known of one object.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// In the order of the writes.
    pub(crate) versions: Vec<Version>,
    /// The event that ended it, where there is one: a collection's may be unknown.
    pub(crate) end: Option<usize>,
}

/// The whole log.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// In the order of the log.
    pub(crate) events: Vec<Event>,
    /// By uid.
    pub(crate) objects: BTreeMap<String, History>,
    /// Uids, by namespace and resource.
    kinds: BTreeMap<(String, String), Vec<String>>,
    /// The events that delete what their answers do not name: collections, and what the API server
    /// may have deleted although it answered with a failure of its own.
    unclear: Vec<usize>,
}

impl Audit {
    /// Reads what concerns the namespaces that begin with `prefix`.
    pub(crate) fn read(path: &Path, prefix: &str) -> std::io::Result<Self> {
        let mut audit = Self::default();
        for (line, number) in BufReader::new(File::open(path)?).lines().zip(1..) {
            let line = line?;
            // Cheaper than to parse what is of no concern.
            if line.contains(prefix)
                && let Ok(event) = serde_json::from_str(&line)
            {
                audit.push(number, &event, prefix);
            }
        }
        audit.sort();
        Ok(audit)
    }

    /// Adds an event as it is in the log.
    pub(crate) fn push(&mut self, line: usize, event: &Value, prefix: &str) {
        let by = self.events.len();
        let Some(event) = Event::parse(line, event, by) else { return };
        let space = if event.resource == "namespaces" { &event.name } else { &event.namespace };
        if !space.starts_with(prefix) {
            return;
        }
        if event.done_something() && !event.uid.is_empty() && event.resource != "namespaces" {
            let history = self.objects.entry(event.uid.clone()).or_insert_with(|| {
                let kind = (event.namespace.clone(), event.resource.clone());
                self.kinds.entry(kind).or_default().push(event.uid.clone());
                History {
                    resource: event.resource.clone(),
                    namespace: event.namespace.clone(),
                    name: event.name.clone(),
                    ..History::default()
                }
            });
            // Deleted in an instant, or the last finalizer went from what is terminating.
            let over = match &event.version {
                Some(version) => version.terminating && version.finalizers.is_empty(),
                None => event.verb == "delete",
            };
            if over {
                history.end.get_or_insert(by);
            }
            history.versions.extend(event.version.clone());
        }
        if event.verb == "deletecollection" || (event.verb == "delete" && event.code >= 500) {
            self.unclear.push(by);
        }
        self.events.push(event);
    }

    /// To be called after the last [`Self::push`].
    pub(crate) fn sort(&mut self) {
        for history in self.objects.values_mut() {
            // The first event of a revision made it; others only showed it.
            history.versions.sort_by_key(|it| (it.revision, it.by));
            history.versions.dedup_by_key(|it| it.revision);
            let mut before = Version::default();
            for version in &mut history.versions {
                if version.rest.1.is_none() {
                    version.fill(&before);
                }
                before = version.clone();
            }
        }
    }
}

impl Event {
    fn parse(line: usize, event: &Value, by: usize) -> Option<Self> {
        let target = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let time = |key: &str| event[key].as_str()?.parse::<Timestamp>().ok();
        let answer = &event["responseObject"];
        let user = text(&event["user"]["username"]);
        let annotations = event["annotations"].as_object();
        let is_object = answer["metadata"]["uid"].is_string();
        let uid = if is_object { &answer["metadata"]["uid"] } else { &answer["details"]["uid"] };
        // One that is made with a generated name has its name in the answer alone.
        let name = if is_object { &answer["metadata"]["name"] } else { &target["name"] };
        Some(Self {
            line,
            verb: text(&event["verb"]),
            resource: text(&target["resource"]),
            subresource: text(&target["subresource"]),
            namespace: text(&target["namespace"]),
            name: text(name),
            code: u16::try_from(event["responseStatus"]["code"].as_u64()?).ok()?,
            received: time("requestReceivedTimestamp")?,
            done: time("stageTimestamp")?,
            failed_open: annotations
                .is_some_and(|it| it.keys().any(|key| key.starts_with("failed-open."))),
            request: if user == "guard" { event["requestObject"].clone() } else { Value::Null },
            uid: text(uid),
            version: is_object.then(|| Version::of(answer, by)),
            user,
        })
    }

    /// Whether the API server did what it was asked.
    pub(crate) const fn done_something(&self) -> bool {
        matches!(self.code, 200..=299)
    }
}

impl Version {
    fn of(object: &Value, by: usize) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let metadata = &object["metadata"];
        let has = |annotation: &str| !metadata["annotations"][annotation].is_null();
        let spec = &object["spec"];
        let named = |part: &str| spec[part]["name"].as_str().map(Into::into);
        let indexes = &object["status"]["indexes"];
        Self {
            revision: text(&metadata["resourceVersion"]).parse().unwrap_or_default(),
            terminating: metadata["deletionTimestamp"].is_string(),
            finalizers: list(&metadata["finalizers"]).iter().map(text).collect(),
            paused: has(PAUSED) || (object["kind"] == "Cluster" && spec["paused"] == true),
            overridden: has(MOVING) || has(FORCED),
            owners: list(&metadata["ownerReferences"]).iter().map(|it| text(&it["uid"])).collect(),
            cluster: text(&metadata["labels"]["cluster.x-k8s.io/cluster-name"]),
            template: named("template").or_else(|| named("dataTemplate")),
            claim: named("claim"),
            metadata_from: spec["metaData"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|it| it.0.clone())
                .collect(),
            indexed: match indexes {
                Value::Object(by_claim) => by_claim.keys().cloned().collect(),
                list_of => list(list_of).iter().map(|it| text(&it["name"])).collect(),
            },
            rest: rest(object),
            by,
        }
    }
}

impl Version {
    /// Takes over what is not in the metadata.
    fn fill(&mut self, before: &Self) {
        self.template.clone_from(&before.template);
        self.claim.clone_from(&before.claim);
        self.metadata_from.clone_from(&before.metadata_from);
        self.indexed.clone_from(&before.indexed);
        self.paused |= before.paused;
        self.rest.1 = before.rest.1;
    }
}

fn rest(object: &Value) -> (u64, Option<u64>) {
    let mut object = object.clone();
    let mut metadata = object["metadata"].take();
    if let Some(metadata) = metadata.as_object_mut() {
        for key in ["resourceVersion", "managedFields"] {
            metadata.remove(key);
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(WOKEN);
        }
        metadata.retain(|_, value| *value != serde_json::json!({}));
    }
    let hash = |value: &Value| {
        let mut hasher = DefaultHasher::new();
        // The keys of an object come out in their order.
        value.to_string().hash(&mut hasher);
        hasher.finish()
    };
    // What a controller gets that asks for no more, since it knows no kinds.
    let partial = object["kind"] == "PartialObjectMetadata";
    (hash(&metadata), (!partial).then(|| hash(&object)))
}

/// What is certain about an object over a span of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Certain<'a> {
    pub(crate) version: &'a Version,
    /// Whether it is certain that nobody had deleted it.
    pub(crate) live: bool,
}

impl History {
    /// The object as it was before an event that it has a version of, or that ended it.
    pub(crate) fn before(&self, event: &Event) -> Option<&Version> {
        let Some(after) = &event.version else {
            // It is gone; all that is known of it was before.
            return self.versions.last();
        };
        let at = self.versions.iter().position(|it| it.revision == after.revision)?;
        if self.versions[at].by == after.by {
            return self.versions.get(at.checked_sub(1)?);
        }
        // The event changed nothing, or ended it, which makes no revision.
        Some(&self.versions[at])
    }
}

impl Audit {
    /// The object as it certainly was all the time from `from` to `to`; `None` when it changed, or
    /// may have ended.
    pub(crate) fn certain<'a>(
        &self,
        history: &'a History,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<Certain<'a>> {
        if history.end.is_some_and(|end| self.events[end].received < to) {
            return None;
        }
        let written = |version: &Version| &self.events[version.by];
        let last = history.versions.iter().rposition(|it| written(it).done <= from)?;
        let version = &history.versions[last];
        if history.versions[last + 1..].iter().any(|it| written(it).received < to) {
            return None;
        }
        let deleted = self.may_be_deleted(history, version, to);
        if deleted && version.finalizers.is_empty() {
            return None;
        }
        Some(Certain { version, live: !version.terminating && !deleted })
    }

    /// Whether the object may have been deleted after `version` and before `to` by what does not
    /// say so: a collection's answer does not name what it deleted, a failure does not name its end.
    pub(crate) fn may_be_deleted(
        &self,
        history: &History,
        version: &Version,
        to: Timestamp,
    ) -> bool {
        let since = self.events[version.by].received;
        self.unclear.iter().map(|at| &self.events[*at]).any(|event| {
            event.namespace == history.namespace
                && event.resource == history.resource
                && (event.verb == "deletecollection" || event.name == history.name)
                && event.received < to
                && event.done > since
        })
    }

    /// The objects of a resource in a namespace, ended or not.
    pub(crate) fn of(&self, namespace: &str, resource: &str) -> impl Iterator<Item = &History> {
        let uids = self.kinds.get(&(namespace.to_owned(), resource.to_owned()));
        uids.into_iter().flatten().filter_map(|uid| self.objects.get(uid))
    }

    /// An object of this name that was certainly there all the time.
    pub(crate) fn named(
        &self,
        (namespace, resource, name): (&str, &str, &str),
        from: Timestamp,
        to: Timestamp,
    ) -> Option<Certain<'_>> {
        let mut named = self.of(namespace, resource).filter(|it| it.name == name);
        named.find_map(|it| self.certain(it, from, to))
    }
}
