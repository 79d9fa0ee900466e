//! The plan for a template that is stuck, the gentlest step first (rule 4.5).
//!
//! Made from a complete list of the namespace. Nothing without a deletionTimestamp is ever
//! stripped, foreign finalizers are reported and left, and time alone releases nothing.

use std::{fmt, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::{
    contents::Contents,
    objects::{
        CLAIM_FINALIZER, DATA_FINALIZER, Data, Kind, Meta, TEMPLATE_FINALIZER, Template, Usage,
    },
    release::may_release,
    teardown::{self, Lifecycle, Terminating, Write},
};

mod notes;
mod wait;

pub use self::wait::{Wait, WaitCause};

/// How long each kind of step waits for the object's own controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Before the first wake-up; later ones follow after twice the time each.
    pub wake: SignedDuration,
    /// Longest pause between two wake-ups.
    pub wake_limit: SignedDuration,
    /// Without progress before indexes are pruned and orphans repaired; twice CAPM3's own requeue.
    pub grace: SignedDuration,
    /// After the grace period before the template's finalizer is taken off.
    pub release: SignedDuration,
    /// Until the next look when nothing is due.
    pub look: SignedDuration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            wake: SignedDuration::from_secs(5),
            wake_limit: SignedDuration::from_mins(5),
            grace: SignedDuration::from_secs(60),
            release: SignedDuration::from_secs(30),
            look: SignedDuration::from_secs(30),
        }
    }
}

/// Who will carry the plan out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The controller, on its own.
    Controller,
    /// A person, through `unstick`: also frees Metal3Data whose template is gone.
    Person,
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The whole namespace.
    pub contents: &'a Contents,
    /// The template's name; it need not exist any more.
    pub template: &'a str,
    /// The time of the look.
    pub now: Timestamp,
    /// Since when nothing has changed, when someone watched; else the last deletionTimestamp.
    pub unchanged_since: Option<Timestamp>,
    /// The periods to wait.
    pub timing: Timing,
    /// Who carries it out.
    pub scope: Scope,
}

/// What to do about one template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The steps, by due time; one object at most once among those that are due.
    pub steps: Vec<Step>,
    /// What it waits for.
    pub waits: Vec<Wait>,
    /// When to look again; `None` when nothing is left to do.
    pub next_look: Option<Timestamp>,
}

impl Plan {
    /// The steps whose time has come.
    pub fn due(&self, now: Timestamp) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(move |step| step.due <= now)
    }

    /// Whether there is neither a step nor something to wait for.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.waits.is_empty()
    }
}

/// One write, with its reason and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What kind of step it is.
    pub action: Action,
    /// The write and its precondition.
    pub write: Write,
    /// Why, as a sentence for a person.
    pub reason: String,
    /// Not before.
    pub due: Timestamp,
}

/// The kinds of step, the gentlest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Make the owner look again.
    Wake,
    /// Drop stale indexes.
    Prune,
    /// Delete an orphan Metal3Data that nobody deleted.
    DeleteOrphan,
    /// Take the claim finalizer off a terminating orphan.
    FreeOrphan,
    /// Take CAPM3's finalizer off the template.
    Release,
    /// Delete an IP claim of a Metal3Data without a template.
    DeleteIpClaim,
    /// Take CAPM3's finalizer off such an IP claim once it is terminating.
    FreeIpClaim,
    /// Take the data finalizer off a Metal3Data without a template.
    FreeLost,
}

impl Action {
    /// One word for logs and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Wake => "wake",
            Self::Prune => "prune",
            Self::DeleteOrphan => "delete-orphan",
            Self::FreeOrphan => "free-orphan",
            Self::Release => "release",
            Self::DeleteIpClaim => "delete-ip-claim",
            Self::FreeIpClaim => "free-ip-claim",
            Self::FreeLost => "free-lost",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Makes the plan.
pub fn plan(situation: &Situation<'_>) -> Plan {
    let mut planner = Planner::new(situation);
    match situation.contents.templates.get(situation.template) {
        Some(template) => planner.template(template),
        None => planner.lost(),
    }
    planner.finish()
}

struct Planner<'a> {
    at: &'a Situation<'a>,
    usage: Usage,
    since: Timestamp,
    /// A pause, or kinds that cannot be seen, leave nothing but wake-ups.
    held: bool,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn new(at: &'a Situation<'a>) -> Self {
        let usage = at.contents.usage(at.template);
        let template = at.contents.templates.get(at.template);
        let deletions = template
            .map(|it| it.meta.deletion)
            .into_iter()
            .chain(usage.data.values().map(|it| it.meta.deletion))
            .chain(usage.claims.values().map(|it| it.meta.deletion))
            .flatten()
            .filter_map(|deletion| deletion.at);
        let since = at.unchanged_since.or_else(|| deletions.max()).unwrap_or(at.now).min(at.now);
        let mut planner = Self { at, usage, since, held: false, plan: Plan::default() };
        let paused = planner.note_pauses(template.map(|it| &**it));
        let blind = planner.note_unserved();
        planner.held = paused || blind;
        planner
    }

    fn template(&mut self, template: &Arc<Template>) {
        let meta = &template.meta;
        if meta.moving {
            // clusterctl pauses what it moves; lifting that pause would break the move.
            self.plan.waits.clear();
            self.wait(WaitCause::Moving, vec![named(Kind::Template, meta)]);
            return;
        }
        match Lifecycle::of(Arc::clone(template)) {
            Lifecycle::Terminating(terminating) => self.terminating(template, &terminating),
            Lifecycle::Live(_) => {
                let used = !self.usage.data.is_empty() || !self.usage.claims.is_empty();
                if used && !meta.has_finalizer(TEMPLATE_FINALIZER) {
                    let since = meta.created.unwrap_or(self.since);
                    self.step(
                        Action::Wake,
                        teardown::wake(template),
                        "the template is in use but CAPM3 has not put its finalizer on it",
                        self.wake_due(meta, since),
                    );
                    self.note_silent(Kind::Template, meta, since);
                } else {
                    self.held_claims(template);
                }
                self.orphans(false);
                self.note_moved();
                self.note_machineless();
                self.note_foreign(None);
            }
        }
    }

    fn terminating(&mut self, template: &Arc<Template>, terminating: &Terminating<Arc<Template>>) {
        let meta = &template.meta;
        self.orphans(true);
        self.note_moved();
        self.note_holders();
        self.note_machineless();
        self.note_foreign(Some(meta));
        let stale = {
            let occupancy = self.at.contents.occupancy(&template.indexes, &self.usage);
            template.indexes.stale(&occupancy)
        };
        let unused = self.live_machines().next().is_none()
            && self.usage.claims.values().all(|claim| claim.meta.terminating());
        let free = unused && may_release(&self.usage);
        if let Some(patch) = template.indexes.removal(&stale).filter(|_| !self.held) {
            let due = self.grace_due();
            let woken = free && meta.has_finalizer(TEMPLATE_FINALIZER);
            self.step(
                Action::Prune,
                teardown::prune(terminating, patch),
                "status.indexes lists claims that are gone, with no Metal3Data behind them",
                if woken {
                    self.after_wake(meta, self.since, due, self.at.timing.wake)
                } else {
                    due
                },
            );
        }
        if !free {
            self.held_claims(template);
            return;
        }
        if meta.has_finalizer(TEMPLATE_FINALIZER) {
            self.step(
                Action::Wake,
                teardown::wake(template),
                "nothing needs the template any more, but CAPM3 has not looked again",
                self.wake_due(meta, self.since),
            );
        }
        if let Some(write) = terminating.strip(TEMPLATE_FINALIZER).filter(|_| !self.held) {
            let release = self.at.timing.release;
            let due = self.after_wake(meta, self.since, after(self.grace_due(), release), release);
            let reason = if due <= self.at.now {
                "nothing needs the template any more, and CAPM3 did not react to being woken"
            } else {
                "nothing needs the template any more; only if CAPM3 does not react to being woken"
            };
            self.step(Action::Release, write, reason, due);
        }
    }

    /// Claims that only their template's controller lets go: it looks when the template is touched.
    /// CAPM3 1.8.1 forgets a claim whose last write failed, and does not look at it again.
    fn held_claims(&mut self, template: &Arc<Template>) {
        let held = |meta: &Meta| {
            meta.terminating()
                && meta.has_finalizer(CLAIM_FINALIZER)
                && !meta.paused
                && !meta.moving
        };
        if self.usage.claims.values().any(|claim| held(&claim.meta)) {
            self.step(
                Action::Wake,
                teardown::wake(template),
                "a claim is being deleted, and CAPM3 has not looked at it again",
                self.wake_due(&template.meta, self.since),
            );
            self.note_silent(Kind::Template, &template.meta, self.since);
        }
    }

    /// Metal3Data whose claim is gone: only the claim's end would have taken their finalizer off.
    fn orphans(&mut self, template_terminating: bool) {
        let used = self.live_machines().next().is_some();
        let repairable = !self.held && !used;
        for data in self.orphaned() {
            match Lifecycle::of(Arc::clone(&data)) {
                Lifecycle::Terminating(terminating) => {
                    let since = deleted_at(&data.meta).unwrap_or(self.since);
                    self.step(
                        Action::Wake,
                        teardown::wake(&data),
                        "its claim is gone and CAPM3 has missed the event that it waits for",
                        self.wake_due(&data.meta, since),
                    );
                    match terminating.strip(CLAIM_FINALIZER) {
                        Some(write) if repairable => self.step(
                            Action::FreeOrphan,
                            write,
                            "its claim is gone, so nobody is left to take the claim finalizer off",
                            self.after_wake(
                                &data.meta,
                                since,
                                self.grace_due(),
                                self.at.timing.wake,
                            ),
                        ),
                        // Else the machines go too, and are waited for.
                        Some(_) if used && !template_terminating => {
                            self.wait(WaitCause::Bound, vec![named(Kind::Data, &data.meta)]);
                        }
                        None if data.meta.has_finalizer(DATA_FINALIZER) => {
                            self.note_silent(Kind::Data, &data.meta, since);
                        }
                        Some(_) | None => {}
                    }
                }
                // With a live template this may be a restore that has not come to the claims yet.
                Lifecycle::Live(live) if repairable && template_terminating => self.step(
                    Action::DeleteOrphan,
                    live.delete(),
                    "its claim is gone and its template is being deleted, but nobody deleted it",
                    self.grace_due(),
                ),
                Lifecycle::Live(_) => {}
            }
        }
    }

    /// Metal3Data of a template that no longer exists. CAPM3 waits for the template for ever.
    fn lost(&mut self) {
        self.note_moved();
        self.note_templateless();
        self.note_machineless();
        if self.at.scope == Scope::Controller {
            let orphaned = self.orphaned();
            let names = orphaned.iter().map(|it| named(Kind::Data, &it.meta)).collect();
            self.wait(WaitCause::Lost, names);
            return;
        }
        if self.held {
            return;
        }
        self.note_foreign(None);
        for data in self.orphaned() {
            match Lifecycle::of(Arc::clone(&data)) {
                Lifecycle::Live(live) => self.step(
                    Action::DeleteOrphan,
                    live.delete(),
                    "its claim and its template are gone",
                    self.at.now,
                ),
                Lifecycle::Terminating(terminating) => self.free_lost(&data, &terminating),
            }
        }
    }

    fn free_lost(&mut self, data: &Arc<Data>, terminating: &Terminating<Arc<Data>>) {
        if let Some(write) = terminating.strip(CLAIM_FINALIZER) {
            let reason = "its claim and its template are gone, so nobody takes this finalizer off";
            self.step(Action::FreeOrphan, write, reason, self.at.now);
            return;
        }
        let claims: Vec<_> = self
            .at
            .contents
            .ip_claims
            .values()
            .filter(|claim| owned_by(&claim.meta, &data.meta))
            .cloned()
            .collect();
        let mut releasing = Vec::new();
        for claim in &claims {
            match Lifecycle::of(Arc::clone(claim)) {
                Lifecycle::Live(live) => self.step(
                    Action::DeleteIpClaim,
                    live.delete(),
                    "its Metal3Data is being deleted without a template; its address must go first",
                    self.at.now,
                ),
                // CAPM3 puts its own finalizer on the IP claims that it makes, and only the data
                // controller, which waits for the template, would take it off.
                Lifecycle::Terminating(claimed) => match claimed.strip(DATA_FINALIZER) {
                    Some(write) => self.step(
                        Action::FreeIpClaim,
                        write,
                        "its Metal3Data has no template, so CAPM3 never takes this finalizer off",
                        self.at.now,
                    ),
                    None => releasing.push(named(claim.kind, &claim.meta)),
                },
            }
        }
        self.wait(WaitCause::IpClaims, releasing);
        if !claims.is_empty() {
            return;
        }
        if let Some(write) = terminating.strip(DATA_FINALIZER) {
            let reason =
                "its template is gone, so CAPM3 can never finish it; its IP claims are gone too";
            self.step(Action::FreeLost, write, reason, self.at.now);
        }
    }

    fn live_machines(&self) -> impl Iterator<Item = &Meta> {
        self.usage.machines.values().map(|it| &it.meta).filter(|meta| !meta.terminating())
    }

    fn orphaned(&self) -> Vec<Arc<Data>> {
        let contents = self.at.contents;
        let ours = |data: &&Arc<Data>| contents.is_orphan(data) && !data.meta.moving;
        self.usage.data.values().filter(ours).cloned().collect()
    }

    fn grace_due(&self) -> Timestamp {
        after(self.since, self.at.timing.grace)
    }

    /// First after the wake period, then each time after as long as it has been since then.
    fn wake_due(&self, meta: &Meta, since: Timestamp) -> Timestamp {
        let timing = &self.at.timing;
        match self.woken(meta, since) {
            None => after(since, timing.wake),
            Some(woken) => {
                after(woken, woken.duration_since(since).max(timing.wake).min(timing.wake_limit))
            }
        }
    }

    /// When a stronger step on an object that is woken first is due: not before its owner was
    /// woken and had `patience` to react, however long it has been stuck already.
    fn after_wake(
        &self,
        meta: &Meta,
        since: Timestamp,
        due: Timestamp,
        patience: SignedDuration,
    ) -> Timestamp {
        // Not longer than wake-ups are apart in the end, or each would put the step off again.
        let patience = patience.min(self.at.timing.wake_limit);
        let woken = self.woken(meta, since);
        let woken = woken.unwrap_or_else(|| self.wake_due(meta, since).max(self.at.now));
        due.max(after(woken, patience))
    }

    /// When the object was last woken in this stretch without progress.
    fn woken(&self, meta: &Meta, since: Timestamp) -> Option<Timestamp> {
        // A time further ahead than clocks differ is not a wake-up, and must not put off the next.
        let latest = after(self.at.now, self.at.timing.wake_limit);
        meta.woken.filter(|woken| (since..=latest).contains(woken))
    }

    fn step(&mut self, action: Action, write: Write, reason: &str, due: Timestamp) {
        self.plan.steps.push(Step { action, write, reason: reason.into(), due });
    }

    fn wait(&mut self, cause: WaitCause, names: Vec<Box<str>>) {
        if names.is_empty() {
            return;
        }
        match self.plan.waits.iter_mut().find(|wait| wait.cause == cause) {
            Some(wait) => wait.names.extend(names),
            None => self.plan.waits.push(Wait { cause, names }),
        }
    }

    /// Orders the steps, leaves one due step for each object (the strongest: the gentler ones had
    /// their time), and sets the time of the next look.
    fn finish(mut self) -> Plan {
        let now = self.at.now;
        let due: Vec<_> = self.plan.due(now).map(|it| (it.action, it.write.clone())).collect();
        self.plan.steps.retain(|step| {
            step.due > now
                || !due.iter().any(|(action, write)| {
                    write.target() == step.write.target() && *action > step.action
                })
        });
        self.plan.steps.sort_by_key(|step| (step.due.max(now), step.action));
        self.plan.waits.sort_by_key(|wait| wait.cause);
        let look = after(now, self.at.timing.look);
        let scheduled = self.plan.steps.iter().map(|step| step.due).filter(|due| *due > now).min();
        self.plan.next_look =
            (!self.plan.is_empty()).then(|| scheduled.map_or(look, |due| due.min(look)));
        self.plan
    }
}

/// Times come from objects, where anyone can write the last day of the calendar.
fn after(start: Timestamp, pause: SignedDuration) -> Timestamp {
    start.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// Whether a Metal3Data owns the object. The uid alone would match everything where it is missing.
fn owned_by(meta: &Meta, data: &Meta) -> bool {
    meta.owners.iter().any(|owner| {
        *owner.kind == *Kind::Data.name() && owner.name == data.name && owner.uid == data.uid
    })
}

fn deleted_at(meta: &Meta) -> Option<Timestamp> {
    meta.deletion.and_then(|deletion| deletion.at)
}

fn named(kind: Kind, meta: &Meta) -> Box<str> {
    format!("{kind}/{}", meta.name).into()
}

#[cfg(test)]
mod tests;
