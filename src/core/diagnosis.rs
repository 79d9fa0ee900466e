//! What holds what, in words: the state of a template for a person.
//!
//! Made of the same functions as the verdicts and the plan, so that all say the same.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    by_hand::{ByHand, by_hand},
    contents::Contents,
    deletion,
    objects::{
        CLAIM_FINALIZER, DATA_FINALIZER, Kind, Meta, Reference, TEMPLATE_FINALIZER, Template, Usage,
    },
    plan::{self, Plan, Scope, Situation, Timing},
    progress::concerns,
    verdict::{Answer, Ruling, first_three},
};

/// The note on a template that nothing uses.
pub const UNUSED: &str = "nothing uses it";

/// One namespace, told to a person.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceReport {
    /// Its name.
    pub namespace: String,
    /// Its templates, and those that are named but not there; the oldest trouble first.
    pub templates: Vec<TemplateReport>,
    /// References to other namespaces: CAPM3 never serves them.
    pub dead_references: Vec<DeadReference>,
}

/// One template, told to a person.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateReport {
    /// Its name.
    pub name: String,
    /// Whether it is there.
    pub state: State,
    /// Since when it is in this state, if known.
    pub since: Option<Timestamp>,
    /// Whether someone must act.
    pub health: Health,
    /// Whether a deletion would be allowed now; missing for a template that is not there.
    pub deletable: Option<bool>,
    /// What names it, the oldest first.
    pub holders: Vec<Holder>,
    /// What the template's finalizers wait for.
    pub finalizers: Vec<Finalizer>,
    /// Entries of `status.indexes` with neither claim nor Metal3Data, as `claim=index`.
    pub stale_indexes: Vec<String>,
    /// What to do, in order.
    pub steps: Vec<NextStep>,
    /// What must happen first, by others.
    pub waits_for: Vec<String>,
    /// What a person can do about that.
    pub by_hand: Vec<ByHand>,
    /// When the controller looks again at the latest; missing when there is nothing to look at.
    pub next_look: Option<Timestamp>,
    /// What else to know.
    pub notes: Vec<String>,
}

/// Whether a template is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// There to stay.
    Live,
    /// Being deleted.
    Terminating,
    /// Named by something, but not there.
    Missing,
}

/// Whether someone must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Nothing goes on without someone.
    Stuck,
    /// Things are on their way out by themselves.
    Draining,
    /// Nothing to do.
    Ok,
}

/// Something that names a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Since when it is terminating; missing for a live object.
    pub terminating: Option<Timestamp>,
    /// When it was created, if known.
    pub created: Option<Timestamp>,
    /// What it means for the template.
    pub role: String,
    /// Its finalizers, when it is terminating.
    pub finalizers: Vec<String>,
}

/// A finalizer and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finalizer {
    /// The finalizer.
    pub name: String,
    /// Who takes it off.
    pub owner: &'static str,
}

/// A step that would help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NextStep {
    /// The kind of step, as in the plan.
    pub action: &'static str,
    /// The object, as `Kind/name`.
    pub object: String,
    /// Why.
    pub reason: String,
    /// Not before.
    pub due: Timestamp,
}

/// A reference that CAPM3 ignores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadReference {
    /// Who refers, as `Kind/name`.
    pub from: String,
    /// The namespace that it refers to.
    pub namespace: String,
    /// The template that it names there.
    pub template: String,
}

/// Tells one namespace, or one template of it.
pub fn namespace(
    namespace: &str,
    contents: &Contents,
    only: Option<&str>,
    now: Timestamp,
) -> NamespaceReport {
    let names = contents.template_names();
    let wanted = names.iter().filter(|name| only.is_none_or(|only| ***name == *only));
    let mut templates: Vec<_> = wanted.map(|name| template(contents, name, now)).collect();
    templates.sort_by_key(|it| (it.health, it.since.is_none(), it.since));
    let dead_references =
        if only.is_none() { dead_references(namespace, contents) } else { vec![] };
    NamespaceReport { namespace: namespace.into(), templates, dead_references }
}

/// Tells one template.
pub fn template(contents: &Contents, name: &str, now: Timestamp) -> TemplateReport {
    let usage = contents.usage(name);
    let there = contents.templates.get(name).map(|it| &**it);
    let plan = plan::plan(&Situation {
        contents,
        template: name,
        now,
        unchanged_since: None,
        timing: Timing::default(),
        scope: Scope::Person,
    });
    let state = match there {
        Some(template) if template.meta.terminating() => State::Terminating,
        Some(_) => State::Live,
        None => State::Missing,
    };
    TemplateReport {
        name: name.into(),
        state,
        since: there
            .and_then(|it| it.meta.deletion.map_or(it.meta.created, |deletion| deletion.at)),
        health: health(state, &usage, &plan, now),
        deletable: there.map(|it| may_delete(it, usage.clone()).denial().is_none()),
        holders: holders(contents, &usage),
        finalizers: there.map(|it| finalizers(&it.meta)).unwrap_or_default(),
        stale_indexes: there.map(|it| stale_indexes(contents, it, &usage)).unwrap_or_default(),
        steps: plan
            .steps
            .iter()
            .map(|step| NextStep {
                action: step.action.word(),
                object: format!("{}/{}", step.write.target().kind, step.write.target().name),
                reason: step.reason.clone(),
                due: step.due,
            })
            .collect(),
        waits_for: plan.waits.iter().map(ToString::to_string).collect(),
        by_hand: by_hand(contents, &plan.waits),
        next_look: plan.next_look.filter(|_| concerns(contents, name, &usage)),
        notes: notes(contents, there, state, &usage),
    }
}

/// The verdict on a deletion of this template now.
pub fn may_delete(template: &Template, usage: Usage) -> Ruling {
    deletion::decided_by(&template.meta).unwrap_or_else(|| {
        deletion::judge(&deletion::Question::about(&template.meta), &Answer::Verified(usage))
    })
}

fn health(state: State, usage: &Usage, plan: &Plan, now: Timestamp) -> Health {
    let waits_for_someone = plan.waits.iter().any(|wait| wait.cause.needs_someone());
    if plan.due(now).next().is_some() || waits_for_someone {
        return Health::Stuck;
    }
    // What clusterctl is taking away follows its template, or goes before it.
    let waits = usage.machines.values().any(|it| !it.meta.moving)
        || usage.claims.values().any(|it| !it.meta.moving);
    match state {
        State::Missing if waits => Health::Stuck,
        State::Terminating => Health::Draining,
        _ if !plan.is_empty() => Health::Draining,
        State::Live | State::Missing => Health::Ok,
    }
}

fn holders(contents: &Contents, usage: &Usage) -> Vec<Holder> {
    let machines = usage.machines.values().map(|it| {
        let role = if it.meta.terminating() { "is being deleted" } else { "uses it" };
        holder(Kind::Machine, &it.meta, role)
    });
    let claims = usage.claims.values().map(|it| {
        let role = match (it.meta.terminating(), it.meta.has_finalizer(CLAIM_FINALIZER)) {
            (true, true) => "is draining",
            (true, false) if contents.is_machineless(it) && contents.has_data(it) => {
                "is going, but its machine is gone and cannot let go of it"
            }
            (true, false) => "is going, and CAPM3 is done with it (no hold)",
            (false, _) => "holds an index of it",
        };
        holder(Kind::Claim, &it.meta, role)
    });
    let data = usage.data.values().map(|it| {
        let role = match (it.meta.terminating(), contents.is_orphan(it), &it.error) {
            (true, true, _) => "is draining, but its claim is gone: CAPM3 missed its event",
            (true, false, _) => "is draining",
            (false, true, _) => "its claim is gone, and nobody deleted it",
            (false, false, Some(_)) => "holds an index of it, and reports an error",
            (false, false, None) => "holds an index of it",
        };
        holder(Kind::Data, &it.meta, role)
    });
    let machine_templates = usage
        .machine_templates
        .values()
        .map(|it| holder(Kind::MachineTemplate, &it.meta, "makes machines that use it (no hold)"));
    let mut holders: Vec<_> = machines.chain(claims).chain(data).chain(machine_templates).collect();
    let age = |it: &Holder| it.terminating.or(it.created);
    holders.sort_by_key(|it| (age(it).is_none(), age(it), it.kind, it.name.clone()));
    holders
}

fn holder(kind: Kind, meta: &Meta, role: &str) -> Holder {
    let finalizers = if meta.terminating() { meta.finalizers.as_ref() } else { &[] };
    Holder {
        kind: kind.name(),
        name: meta.name.as_ref().into(),
        terminating: meta.deletion.and_then(|deletion| deletion.at),
        created: meta.created,
        role: role.into(),
        finalizers: finalizers.iter().map(|it| it.as_ref().into()).collect(),
    }
}

fn finalizers(meta: &Meta) -> Vec<Finalizer> {
    let owner = |name: &str| match name {
        TEMPLATE_FINALIZER | CLAIM_FINALIZER => "CAPM3's template controller",
        DATA_FINALIZER => "CAPM3's data controller",
        "foregroundDeletion" | "orphan" => "the garbage collector",
        _ => "not CAPM3's: whoever put it there",
    };
    let named = meta.finalizers.iter();
    named.map(|it| Finalizer { name: it.as_ref().into(), owner: owner(it) }).collect()
}

fn stale_indexes(contents: &Contents, template: &Template, usage: &Usage) -> Vec<String> {
    let occupancy = contents.occupancy(&template.indexes, usage);
    let stale = template.indexes.stale(&occupancy);
    stale.iter().map(|entry| format!("{}={}", entry.claim, entry.index)).collect()
}

fn notes(
    contents: &Contents,
    template: Option<&Template>,
    state: State,
    usage: &Usage,
) -> Vec<String> {
    let mut notes = Vec::new();
    // IP claims matter to Metal3Data that have lost their template, and to nothing else.
    let matters = |kind: &Kind| {
        state == State::Missing || !matches!(kind, Kind::IpClaim | Kind::IpAddressClaim)
    };
    let unserved = contents.unserved.iter().filter(|kind| matters(kind));
    let unserved: Vec<_> = unserved.map(|kind| kind.resource()).collect();
    if !unserved.is_empty() {
        notes.push(format!(
            "the API server does not serve {}: told as if there were none",
            unserved.join(", ")
        ));
    }
    if state == State::Missing {
        notes.push("the template does not exist; what names it waits for it".into());
    }
    let Some(template) = template else { return notes };
    // In v1beta1 none means 0.
    let unnumbered: Vec<_> = usage.data.values().filter(|it| it.index.is_none()).collect();
    if !unnumbered.is_empty() {
        notes.push(format!(
            "CAPM3 stops at Metal3Data without an index and serves no one of this template until \
             they are deleted: {}",
            first_three(unnumbered.iter().map(|it| &*it.meta.name))
        ));
    }
    if template.meta.moving {
        notes.push("clusterctl move is taking it away".into());
    }
    match template.meta.force_reason() {
        Some("") => notes.push(
            "annotation metal3-guard.io/force-delete forces nothing: it must say the reason".into(),
        ),
        Some(reason) => notes.push(format!("its deletion is forced by annotation: {reason:?}")),
        None => {}
    }
    if state == State::Live && usage.is_empty() {
        notes.push(UNUSED.into());
    }
    notes
}

fn dead_references(namespace: &str, contents: &Contents) -> Vec<DeadReference> {
    let dead = |kind: Kind, meta: &Meta, reference: Option<&Reference>| {
        let reference = reference.filter(|it| it.local(namespace).is_none())?;
        Some(DeadReference {
            from: format!("{kind}/{}", meta.name),
            namespace: reference.namespace.as_deref().unwrap_or_default().into(),
            template: reference.name.as_ref().into(),
        })
    };
    let machines = contents.machines.values();
    let claims = contents.claims.values();
    let data = contents.data.values();
    let templates = contents.machine_templates.values();
    machines
        .filter_map(|it| dead(Kind::Machine, &it.meta, it.template.as_ref()))
        .chain(claims.filter_map(|it| dead(Kind::Claim, &it.meta, it.template.as_ref())))
        .chain(data.filter_map(|it| dead(Kind::Data, &it.meta, it.template.as_ref())))
        .chain(
            templates.filter_map(|it| dead(Kind::MachineTemplate, &it.meta, it.template.as_ref())),
        )
        .collect()
}

#[cfg(test)]
mod tests;
