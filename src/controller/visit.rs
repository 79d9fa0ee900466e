//! What the controller does at one namespace.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tokio::time::{Duration, Instant};

use super::{
    About, BREATH, Controller, Look, Mode, NotWritten, Tone, Written, confirmed, jitter,
    needs_second_look, unsigned,
};
use crate::core::{
    contents::Contents,
    objects::{Kind, Meta},
    plan::{Action, Plan, Scope, Situation, Step, Wait, WaitCause, plan},
    progress::{concerns, fingerprint},
    verdict::Unverified,
};

/// The plan for one template, as of one look.
#[derive(Debug)]
struct Planned {
    template: Box<str>,
    plan: Plan,
    /// For how long nothing has moved.
    unchanged: Duration,
    /// A step was refused a moment ago: none is tried yet.
    held_back: bool,
}

/// How the steps of a visit went.
#[derive(Clone, Copy, Debug, Default)]
struct Went {
    /// One was refused or failed.
    badly: bool,
    /// One lost against another writer, or there was no time for it: look again soon.
    short: bool,
    /// One was done: the times of those that follow it are known at the next look only.
    done: bool,
}

impl Went {
    const fn and(self, other: Self) -> Self {
        Self {
            badly: self.badly || other.badly,
            short: self.short || other.short,
            done: self.done || other.done,
        }
    }
}

impl Controller {
    /// Looks at a namespace, does what is due, and notes when to look again.
    pub(super) async fn visit(&self, namespace: &str) {
        match self.work(namespace).await {
            Ok((planned, went)) => {
                let mut memory = self.memory.lock();
                let space = memory.space(namespace);
                let (now, clock) = (Instant::now(), Timestamp::now());
                let look = |at: Timestamp| now + unsigned(at.duration_since(clock)).max(BREATH);
                let next = planned.iter().filter_map(|it| {
                    let held_back = space.held_back(&it.template, now);
                    held_back.or_else(|| it.plan.next_look.map(look))
                });
                let reaction = went.done.then(|| now + unsigned(self.timing.wake));
                let at_once = went.short.then(|| now + BREATH);
                let next = next.chain(reaction).chain(at_once).min();
                space.looked(next.map(|at| at + jitter(BREATH)));
            }
            Err(Unverified { why }) => {
                tracing::warn!(namespace, why, "cannot look at a namespace where something waits");
                self.memory.lock().space(namespace).failed(Instant::now());
            }
        }
        // What changed meanwhile may have gone unnoticed, and may be all that there was.
        self.note(namespace);
    }

    async fn work(&self, namespace: &str) -> Result<(Vec<Planned>, Went), Unverified> {
        let mut look = Look::at(&self.cluster, namespace).await?;
        let mut planned = self.plans(namespace, &look);
        let due = |planned: &[Planned], clock| -> Vec<Step> {
            let free = planned.iter().filter(|it| !it.held_back);
            free.flat_map(|it| it.plan.due(clock)).cloned().collect()
        };
        let mut steps = due(&planned, look.clock);
        if steps.iter().any(needs_second_look) {
            look = Look::at(&self.cluster, namespace).await?;
            planned = self.plans(namespace, &look);
            let agreed = planned.iter().flat_map(|it| confirmed(&steps, &it.plan, look.clock));
            steps = agreed.collect();
        }
        self.note_unserved(&look.contents.unserved);
        let mut all = Went::default();
        for it in &planned {
            let mut went = Went::default();
            let ours = steps.iter().filter(|step| it.plan.steps.contains(step));
            for step in ours {
                self.take(step, &it.template, &look, &mut went).await;
            }
            if went.badly || went.done {
                let mut memory = self.memory.lock();
                memory.space(namespace).stepped(&it.template, !went.badly, Instant::now());
            }
            all = all.and(went);
            self.tell(it, &look).await;
        }
        Ok((planned, all))
    }

    fn plans(&self, namespace: &str, look: &Look) -> Vec<Planned> {
        let contents = &*look.contents;
        let mut memory = self.memory.lock();
        let space = memory.space(namespace);
        let mut planned = Vec::new();
        for template in contents.template_names() {
            let usage = contents.usage(&template);
            if !concerns(contents, &template, &usage) {
                continue;
            }
            let print = fingerprint(contents, &template, &usage);
            let unchanged = look.begun.duration_since(space.seen(&template, print, look.begun));
            let plan = plan(&Situation {
                contents,
                template: &template,
                now: look.clock,
                unchanged_since: Some(look.clock - unchanged),
                timing: self.timing,
                scope: Scope::Controller,
            });
            let held_back = space.held_back(&template, look.begun).is_some();
            planned.push(Planned { template, plan, unchanged, held_back });
        }
        planned
    }

    /// Carries out a step, or says that it would be.
    async fn take(&self, step: &Step, template: &str, look: &Look, went: &mut Went) {
        let target = step.write.target();
        let about = About::target(target);
        let what = format!("{}/{}: {}", target.kind, target.name, step.reason);
        if self.mode == Mode::Observe {
            self.metrics.step(step.action, "observed");
            if self.events.say(&about, Tone::Normal, "WouldRepair", &what, step.action.word()).await
            {
                tracing::info!(step = step.action.word(), kind = %target.kind,
                    namespace = target.namespace, name = target.name, template,
                    reason = step.reason, "observed, not done");
            }
            return;
        }
        if !look.is_good() {
            went.short = true;
            return;
        }
        let result = self.hands.carry_out(step).await;
        match result {
            Ok(written) => {
                self.metrics.step(step.action, written.word());
                went.short |= written == Written::Conflict;
                went.done |= written == Written::Done;
                if written == Written::Done {
                    self.events.say(&about, Tone::Normal, event(step.action), &what, "").await;
                }
            }
            Err(NotWritten { refused, why }) => {
                went.badly = true;
                self.metrics.step(step.action, if refused { "refused" } else { "failed" });
                let note = format!("{} of {what}: {why}", step.action);
                self.events.say(&about, Tone::Warning, "RepairFailed", &note, "").await;
            }
        }
    }

    /// Says which kinds cannot be looked at, when that has changed.
    fn note_unserved(&self, unserved: &BTreeSet<Kind>) {
        let mut said = self.unserved.lock();
        if *said != *unserved {
            said.clone_from(unserved);
            let kinds: Vec<_> = unserved.iter().map(|kind| kind.resource()).collect();
            tracing::info!(
                kinds = kinds.join(", "),
                "kinds that the API server does not serve: as if there were none"
            );
        }
    }

    /// Says what a plan waits for, once it has waited for as long as the ordinary way may take.
    async fn tell(&self, planned: &Planned, look: &Look) {
        let Planned { template, plan, unchanged, .. } = planned;
        if plan.waits.is_empty() || *unchanged < unsigned(self.timing.grace) {
            return;
        }
        let Some(about) = subject(&look.contents, template) else { return };
        let waits: Vec<_> = plan.waits.iter().map(ToString::to_string).collect();
        let note = format!("Metal3DataTemplate {template} waits for {}", waits.join("; and for "));
        let next = plan.next_look.map_or_else(String::new, |at| {
            format!("the next look is at {}", at.strftime("%Y-%m-%dT%H:%M:%SZ"))
        });
        let by_itself = |wait: &Wait| {
            matches!(wait.cause, WaitCause::Draining | WaitCause::IpClaims | WaitCause::Moving)
        };
        let tone = if plan.waits.iter().all(by_itself) { Tone::Normal } else { Tone::Warning };
        if self.events.say(&about, tone, "Waiting", &note, &next).await {
            tracing::info!(
                namespace = about.namespace(),
                template = &**template,
                waits = waits.join("; "),
                next_look = plan.next_look.map(tracing::field::display),
                "waiting"
            );
        }
    }
}

/// Where an Event about a template goes: to the template, or to what is left of it.
fn subject(contents: &Contents, template: &str) -> Option<About> {
    let object = |kind, meta: &Meta| About::object(kind, meta);
    contents.templates.get(template).map(|it| object(Kind::Template, &it.meta)).or_else(|| {
        let usage = contents.usage(template);
        usage.data.values().next().map(|it| object(Kind::Data, &it.meta))
    })
}

/// The reason of the Event for a step that was done.
const fn event(action: Action) -> &'static str {
    match action {
        Action::Wake => "Woken",
        Action::Prune => "IndexesPruned",
        Action::DeleteOrphan => "OrphanDeleted",
        Action::FreeOrphan => "OrphanFreed",
        Action::Release => "Released",
        Action::DeleteIpClaim => "IPClaimDeleted",
        Action::FreeIpClaim => "IPClaimFreed",
        Action::FreeLost => "LostDataFreed",
    }
}
