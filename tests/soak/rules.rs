//! What must hold of every write to the namespaces of walks.
//!
//! The log says what was written when, not what a writer had read. So a state only counts against a
//! write when it certainly held all the time from before its last look until after the write.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    audit::{Audit, Certain, Event, History, Version, WOKEN},
    person::Rescue,
    space::{
        CLAIM_FINALIZER, CLAIMS, CLUSTERS, DATAS, IP_CLAIMS, MACHINE_FINALIZER, MACHINES,
        TEMPLATE_FINALIZER, TEMPLATES,
    },
};

/// The guard carries out what it has planned from a list that is at most this old.
const LOOK: Duration = Duration::from_secs(5);

const GUARD: &str = "guard";
const NAMESPACE_CONTROLLER: &str = "system:serviceaccount:kube-system:namespace-controller";
const GARBAGE_COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// Who may take finalizers off what is live: people, the stand-in for a stale controller, and CAPM3,
/// which takes the claim's off its Metal3Data before it deletes them.
const STRIPPERS: [&str; 3] = ["admin", "capi", "capm3"];

/// Something that must not have happened.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) namespace: String,
    /// Sentence, with the line of the log.
    pub(crate) what: String,
}

/// What a write of the guard does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Wake,
    Prune,
    Strip,
    Delete,
}

/// Checks a whole log.
pub(crate) fn check(audit: &Audit, rescues: &[Rescue]) -> Vec<Violation> {
    let mut checker = Checker { audit, found: Vec::new() };
    for event in &audit.events {
        if event.user == GUARD {
            checker.guard(event);
        }
        if event.done_something() {
            checker.no_finalizer_from_live(event);
            checker.deleted_for_a_reason(event);
        }
    }
    for rescue in rescues {
        if excuse(audit, rescue).is_none() {
            checker.found.push(Violation {
                namespace: rescue.namespace.clone(),
                what: format!("nobody but a person could end it: {rescue}"),
            });
        }
    }
    checker.found
}

/// What the guard's request asks for; `None` when it is none of its steps. Says also which uid and
/// resourceVersion it names.
pub(crate) fn read(event: &Event) -> Option<(Kind, String, String)> {
    let request = &event.request;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let main = event.subresource.is_empty();
    if event.verb == "delete" && main {
        let named = &request["preconditions"];
        return Some((Kind::Delete, text(&named["uid"])?, text(&named["resourceVersion"])?));
    }
    if event.verb != "patch" {
        return None;
    }
    if let Some(operations) = request.as_array().filter(|_| event.subresource == "status") {
        let at = |index: usize, op: &str, path: &str| {
            let operation = operations.get(index)?;
            let fits = operation["op"] == op && operation["path"] == path;
            fits.then(|| text(&operation["value"])).flatten()
        };
        let uid = at(0, "test", "/metadata/uid")?;
        let version = at(1, "replace", "/metadata/resourceVersion")?;
        let status = |it: &Value| it["path"].as_str().is_some_and(|it| it.starts_with("/status/"));
        return operations[2..].iter().all(status).then_some((Kind::Prune, uid, version));
    }
    let (uid, version) =
        (text(&request["metadata"]["uid"])?, text(&request["metadata"]["resourceVersion"])?);
    let mut rest = request.clone();
    let metadata = rest["metadata"].as_object_mut()?;
    metadata.remove("uid");
    metadata.remove("resourceVersion");
    let woken = &request["metadata"]["annotations"][WOKEN];
    if woken.is_string() && rest == json!({"metadata": {"annotations": {WOKEN: woken}}}) {
        return main.then_some((Kind::Wake, uid, version));
    }
    let kept = &request["metadata"]["finalizers"];
    let strips = kept.is_array() && rest == json!({"metadata": {"finalizers": kept}});
    (main && strips).then_some((Kind::Strip, uid, version))
}

struct Checker<'a> {
    audit: &'a Audit,
    found: Vec<Violation>,
}

impl<'a> Checker<'a> {
    fn wrong(&mut self, event: &Event, what: &str) {
        let Event { line, user, verb, resource, subresource, name, namespace, .. } = event;
        self.found.push(Violation {
            namespace: namespace.clone(),
            what: format!(
                "{what}: {user} {verb} {resource}/{name} {subresource} (audit.log line {line})"
            ),
        });
    }

    /// The guard's own writes.
    fn guard(&mut self, event: &Event) {
        let Some((kind, uid, version)) = read(event) else {
            return self.wrong(event, "a write that is none of the guard's steps");
        };
        if !event.done_something() {
            return;
        }
        if event.uid != uid {
            return self.wrong(event, "another object than the one that was planned for");
        }
        let audit = self.audit;
        let Some(history) = audit.objects.get(&uid) else { return };
        let before = history.versions.iter().rev().find(|it| it.revision.to_string() == version);
        let last = history.before(event);
        match (kind, before, last, &event.version) {
            // Whatever it was: nothing but the annotation changed.
            (Kind::Wake, Some(before), _, Some(after)) => {
                if before.rest != after.rest {
                    self.wrong(event, "more than a wake-up");
                }
            }
            // Its last write was by a collection, which deleted it.
            (Kind::Wake, None, _, Some(after)) if after.terminating => {}
            (Kind::Prune, _, Some(before), Some(after)) => {
                self.prune(event, before, after);
            }
            (Kind::Strip, _, Some(before), Some(after)) => {
                self.strip(event, before, after);
            }
            (Kind::Delete, _, Some(before), _) => self.delete(event, before),
            _ => self.wrong(event, "a write to an object whose history is not known"),
        }
    }

    fn prune(&mut self, event: &Event, before: &Version, after: &Version) {
        if !after.terminating || event.resource != TEMPLATES {
            self.wrong(event, "indexes of something that is not a terminating template");
        }
        for claim in before.indexed.iter().filter(|claim| !after.indexed.contains(claim)) {
            if self.there(event, CLAIMS, claim, LOOK).is_some() {
                self.wrong(event, &format!("an index of claim {claim}, which is there"));
            }
        }
        self.not_paused(event, after);
    }

    fn strip(&mut self, event: &Event, before: &Version, after: &Version) {
        if !after.terminating {
            self.wrong(event, "a finalizer of a live object");
        }
        let mut expected = before.finalizers.clone();
        let own = if event.resource == TEMPLATES { TEMPLATE_FINALIZER } else { CLAIM_FINALIZER };
        expected.retain(|it| it != own);
        if ![TEMPLATES, DATAS].contains(&&*event.resource)
            || expected == before.finalizers
            || expected != after.finalizers
        {
            let (before, after) = (&before.finalizers, &after.finalizers);
            self.wrong(event, &format!("finalizers {before:?} became {after:?}"));
        }
        self.not_paused(event, after);
        if event.resource == TEMPLATES {
            self.no_machine(event, &event.name);
            let claim = |it: &Certain<'_>| {
                it.live || it.version.finalizers.iter().any(|it| it == CLAIM_FINALIZER)
            };
            self.unused(event, DATAS, |_| true);
            self.unused(event, CLAIMS, claim);
        } else {
            self.orphan(event, after);
        }
    }

    fn delete(&mut self, event: &Event, before: &Version) {
        if event.resource != DATAS {
            return self.wrong(event, "not a Metal3Data");
        }
        self.orphan(event, before);
        self.not_paused(event, before);
        let template = before.template.clone().unwrap_or_default();
        let live = self.there(event, TEMPLATES, &template, LOOK).is_some_and(|it| it.live);
        if live {
            self.wrong(event, "a Metal3Data of a live template");
        }
    }

    /// The claim of a Metal3Data is gone, and so are the live machines of its template.
    fn orphan(&mut self, event: &Event, data: &Version) {
        let claim = data.claim.clone().unwrap_or_default();
        // Not even for a moment: this is the Metal3Data that is in use.
        if self.there(event, CLAIMS, &claim, Duration::ZERO).is_some() {
            self.wrong(event, &format!("claim {claim} is there"));
        }
        self.no_machine(event, &data.template.clone().unwrap_or_default());
    }

    fn no_machine(&mut self, event: &Event, template: &str) {
        let (from, to) = span(event, LOOK);
        let live = self.audit.of(&event.namespace, MACHINES).find(|machine| {
            let certain = self.audit.certain(machine, from, to);
            certain.is_some_and(|it| it.live && it.version.template.as_deref() == Some(template))
        });
        if let Some(machine) = live {
            self.wrong(event, &format!("live machine {} needs {template}", machine.name));
        }
    }

    fn unused(&mut self, event: &Event, by: &str, uses: impl Fn(&Certain<'_>) -> bool) {
        let (from, to) = span(event, LOOK);
        let found = self.audit.of(&event.namespace, by).find(|it| {
            let certain = self.audit.certain(it, from, to);
            certain.is_some_and(|it| it.version.template.as_ref() == Some(&event.name) && uses(&it))
        });
        if let Some(found) = found {
            self.wrong(event, &format!("{by}/{} needs the template", found.name));
        }
    }

    fn not_paused(&mut self, event: &Event, object: &Version) {
        let cluster = self.there(event, CLUSTERS, &object.cluster, LOOK);
        if object.paused || cluster.is_some_and(|it| it.version.paused) {
            self.wrong(event, "it is paused");
        }
    }

    /// An object of that name in the namespace of the write, if it was there all the time.
    fn there(
        &self,
        event: &Event,
        resource: &str,
        name: &str,
        look: Duration,
    ) -> Option<Certain<'a>> {
        let (from, to) = span(event, look);
        self.audit.named((&event.namespace, resource, name), from, to)
    }

    /// Nobody but those who may has taken a finalizer off a live object.
    fn no_finalizer_from_live(&mut self, event: &Event) {
        let audit = self.audit;
        let Some(after) = event.version.as_ref().filter(|it| !it.terminating) else { return };
        let Some(history) = audit.objects.get(&event.uid) else { return };
        let Some(before) = history.before(event) else { return };
        let gone = before.finalizers.iter().find(|it| !after.finalizers.contains(it));
        if let Some(finalizer) = gone.filter(|_| !STRIPPERS.contains(&&*event.user)) {
            self.wrong(event, &format!("finalizer {finalizer} of a live object"));
        }
    }

    /// What was live and got deleted was deleted by a person, or after what it belongs to.
    fn deleted_for_a_reason(&mut self, event: &Event) {
        let audit = self.audit;
        if event.verb == "deletecollection" {
            let reason = match &*event.user {
                "admin" => true,
                NAMESPACE_CONTROLLER => self.namespace_deleted(event),
                _ => false,
            };
            if !reason {
                self.wrong(event, "a collection that nobody deleted");
            }
            return;
        }
        if event.verb != "delete" || event.resource == "namespaces" || event.user == "admin" {
            return;
        }
        let Some(history) = audit.objects.get(&event.uid) else { return };
        let Some(before) = history.before(event) else { return };
        // It was terminating, or may have been.
        if before.terminating || audit.may_be_deleted(history, before, event.received) {
            return;
        }
        let reason = match &*event.user {
            // Has been looked at already.
            GUARD => true,
            GARBAGE_COLLECTOR => self.owners_gone(event, before),
            NAMESPACE_CONTROLLER => self.namespace_deleted(event),
            "capm3" => self.capm3_may_delete(event, before),
            _ => false,
        };
        if !reason {
            self.wrong(event, "a live object that nobody deleted");
        }
    }

    fn namespace_deleted(&self, event: &Event) -> bool {
        self.audit.events.iter().any(|it| {
            it.resource == "namespaces"
                && it.name == event.namespace
                && it.verb == "delete"
                && it.user == "admin"
                && it.received < event.done
        })
    }

    /// No owner certainly stays.
    fn owners_gone(&self, event: &Event, object: &Version) -> bool {
        let (from, to) = span(event, Duration::ZERO);
        !object.owners.is_empty()
            && object.owners.iter().all(|uid| {
                let owner = self.audit.objects.get(uid);
                let certain = owner.and_then(|owner| self.audit.certain(owner, from, to));
                certain.is_none_or(|it| !it.live)
            })
    }

    /// Claims go with their machines, Metal3Data with their claims, IP claims with their Metal3Data.
    fn capm3_may_delete(&self, event: &Event, object: &Version) -> bool {
        let (owners, name) = match &*event.resource {
            CLAIMS => (MACHINES, event.name.as_str()),
            DATAS => (CLAIMS, object.claim.as_deref().unwrap_or_default()),
            // It goes by the name, so that one that was orphaned or restored without owners goes too.
            IP_CLAIMS => match event.name.strip_suffix("-pool") {
                Some(data) if object.owners.is_empty() || self.owners_gone(event, object) => {
                    (DATAS, data)
                }
                _ => return false,
            },
            _ => return self.owners_gone(event, object),
        };
        self.there(event, owners, name, Duration::ZERO).is_none_or(|it| !it.live)
    }
}

/// Why a person had to help, as far as that is no fault of the guard: someone had overridden it, or
/// nobody could ask it.
pub(crate) fn excuse(audit: &Audit, rescue: &Rescue) -> Option<&'static str> {
    let Rescue { namespace, template, object, .. } = rescue;
    let by = |version: &Version| &audit.events[version.by];
    for history in audit.of(namespace, TEMPLATES).filter(|it| it.name == *template) {
        if history.versions.iter().any(|it| it.overridden) {
            return Some("its template was marked to go whatever needs it");
        }
        let unasked = history.end.is_some_and(|end| audit.events[end].failed_open)
            || history.versions.windows(2).any(|pair| {
                let has = |it: &Version| it.finalizers.iter().any(|it| it == TEMPLATE_FINALIZER);
                has(&pair[0]) && !has(&pair[1]) && by(&pair[1]).failed_open
            });
        if unasked {
            return Some("its template was released while no guard answered");
        }
    }
    let (resource, name) = object.as_ref()?;
    let own = || audit.of(namespace, resource).filter(|it| it.name == *name);
    // CAPM3 gives back what the template names that is there when a Metal3Data ends.
    if resource == IP_CLAIMS && own().any(|it| without_pools(audit, it)) {
        return Some("its Metal3Data ended with another template of the same name, without pools");
    }
    if resource == CLAIMS && own().any(|it| made_unseen(audit, it)) {
        return Some("its machine ended before CAPM3 had seen the claim that it had just made");
    }
    own().flat_map(|it| it.versions.windows(2)).find_map(|pair| {
        if pair[1].finalizers.iter().all(|it| pair[0].finalizers.contains(it)) {
            return None;
        }
        match by(&pair[1]) {
            event if event.failed_open => Some("a finalizer was put back while no guard answered"),
            event if event.user == "capi" => Some("a finalizer was put back before its deletion"),
            _ => None,
        }
    })
}

/// Whether CAPM3 let the machine of this claim go while its cache did not show the claim yet: it
/// takes its finalizer off a claim that it sees, and lets the machine go when it sees none.
fn made_unseen(audit: &Audit, claim: &History) -> bool {
    /// No cache lags more.
    const LAG: SignedDuration = SignedDuration::from_secs(3);
    let Some(first) = claim.versions.first() else { return false };
    let made = &audit.events[first.by];
    let machines = first.owners.iter().filter_map(|uid| audit.objects.get(uid));
    let mut ends = machines.filter_map(|it| Some(&audit.events[it.end?]));
    made.user == "capm3"
        && first.finalizers.iter().any(|it| it == MACHINE_FINALIZER)
        && ends.any(|end| end.user == "capm3" && end.received.duration_since(made.received) < LAG)
}

/// Whether the Metal3Data that owned this IP claim ended when the template of its name had no pools.
fn without_pools(audit: &Audit, ip_claim: &History) -> bool {
    let owners = ip_claim.versions.iter().flat_map(|it| &it.owners);
    owners.filter_map(|uid| audit.objects.get(uid)).any(|data| {
        let Some(end) = data.end.map(|end| audit.events[end].done) else { return false };
        let template = data.versions.last().and_then(|it| it.template.as_deref());
        let templates = audit.of(&data.namespace, TEMPLATES);
        let mut named = templates.filter(|it| Some(&*it.name) == template);
        named.any(|it| {
            let at_the_end = it.versions.iter().rfind(|it| audit.events[it.by].received <= end);
            at_the_end.is_some_and(|it| it.metadata_from.is_empty())
        })
    })
}

/// From the look that a write may stand on to its end.
fn span(event: &Event, look: Duration) -> (Timestamp, Timestamp) {
    let look = SignedDuration::try_from(look).unwrap_or_default();
    (event.received.checked_sub(look).unwrap_or(event.received), event.done)
}
