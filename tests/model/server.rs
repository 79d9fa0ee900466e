//! The API server: two-phase deletion, finalizers, events, and the guard's webhooks on the writes
//! that they are registered for. A review and its write are one step.

use std::fmt;

use crate::{
    rules,
    setup::{Rule, Setup},
    world::{Claim, Data, Faults, Finalizers, Id, Machine, Meta, N, Objects, State},
};

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    User,
    Capm3,
    ClusterApi,
    Clusterctl,
    Kubernetes,
    Guard,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// The guard or the server refused it.
    Refused,
    /// It is not there.
    Missing,
    /// It is there already.
    Exists,
    /// It is not the version that the writer has seen.
    Conflict,
}

/// A state on its way to the next one.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) state: State,
    /// What happens, for someone who wants to read it.
    pub(crate) story: Option<Story>,
}

/// One event in words.
#[derive(Debug, Default)]
pub(crate) struct Story {
    who: &'static str,
    acts: Vec<String>,
    gone: Vec<String>,
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, acts, gone } = self;
        match acts.as_slice() {
            [] => write!(f, "{who} finds nothing to do")?,
            acts => write!(f, "{who} {}", acts.join(", "))?,
        }
        if gone.is_empty() { Ok(()) } else { write!(f, " ({} gone)", gone.join(", ")) }
    }
}

impl Run<'_> {
    /// Says who does what follows.
    pub(crate) fn by(&mut self, who: &'static str) {
        if let Some(story) = &mut self.story {
            story.who = who;
        }
    }

    pub(crate) fn say(&mut self, act: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.acts.push(act());
        }
    }

    fn answered(&mut self, answer: Answer, act: impl FnOnce() -> String) -> Answer {
        self.say(|| match answer {
            Answer::Done => act(),
            Answer::Refused => format!("{} (refused)", act()),
            Answer::Missing => format!("{} (not there)", act()),
            Answer::Exists => format!("{} (there already)", act()),
            Answer::Conflict => format!("{} (conflict)", act()),
        });
        answer
    }

    fn guarded(&self, rule: Rule) -> bool {
        self.state.installed && self.setup.has(rule)
    }

    /// Makes a machine, a claim or a Metal3Data.
    pub(crate) fn create(&mut self, id: Id, claim: u8) -> Answer {
        let answer = self.try_create(id, claim);
        self.answered(answer, || format!("creates {id}"))
    }

    fn try_create(&mut self, id: Id, claim: u8) -> Answer {
        if self.state.live.is(id) {
            return Answer::Exists;
        }
        let mut after = self.state.live;
        match id {
            Id::Machine(i) => after.machines[i] = Some(Machine::default()),
            Id::Claim(i) => {
                let meta = Meta::held(Finalizers::MACHINE);
                after.claims[i] = Some(Claim { meta, rendered: None });
            }
            Id::Data(i) => {
                after.data[i] = Some(Data { meta: Meta::held(Finalizers::CLAIM), claim });
            }
            Id::Template | Id::Cluster => unreachable!("{id} is there from the beginning"),
        }
        let referring = matches!(id, Id::Machine(_) | Id::Claim(_));
        if referring
            && self.guarded(Rule::References)
            && !rules::may_create(self.setup.release.version(), id, &after)
        {
            return Answer::Refused;
        }
        if self.state.namespace_going {
            return Answer::Refused;
        }
        self.store(after, id);
        Answer::Done
    }

    /// Begins to delete an object. What has no finalizer is gone at once.
    pub(crate) fn delete(&mut self, who: Who, id: Id) -> Answer {
        let answer = self.try_delete(who, id);
        self.answered(answer, || format!("deletes {id}"))
    }

    fn try_delete(&mut self, who: Who, id: Id) -> Answer {
        let Some(meta) = self.state.live.meta(id).copied() else { return Answer::Missing };
        if !self.may_delete(who, id) {
            return Answer::Refused;
        }
        if !meta.terminating {
            self.begin_deletion(who, id, meta);
        }
        Answer::Done
    }

    fn begin_deletion(&mut self, who: Who, id: Id, meta: Meta) {
        if let Id::Data(i) = id
            && who == Who::Guard
            && self.in_use(i)
        {
            self.fault(Faults::DELETED);
        }
        if meta.finalizers.is_empty() {
            self.gone(id);
            return;
        }
        let mut after = self.state.live;
        if let Some(meta) = after.meta_mut(id) {
            // A wake-up counts from the deletion on.
            (meta.terminating, meta.woken) = (true, false);
        }
        self.store(after, id);
    }

    /// The review of a user's DELETE of the template, when its write comes later.
    pub(crate) fn review_deletion(&mut self) {
        self.state.reviewed = self.may_delete(Who::User, Id::Template);
        let reviewed = self.state.reviewed;
        let answer = if reviewed { Answer::Done } else { Answer::Refused };
        self.answered(answer, || format!("asks to delete {}", Id::Template));
    }

    /// That write. Were the template another one by now, its review would be repeated.
    pub(crate) fn store_deletion(&mut self) {
        if let Some(meta) = self.state.live.meta(Id::Template).copied() {
            self.say(|| format!("carries the deletion of {} out", Id::Template));
            self.begin_deletion(Who::User, Id::Template, meta);
        }
    }

    /// Whether the guard lets a deletion pass.
    fn may_delete(&mut self, who: Who, id: Id) -> bool {
        let version = self.setup.release.version();
        let refused = id == Id::Template
            && self.guarded(Rule::Deletion)
            && !rules::may_delete(version, &self.state.live);
        if refused && who == Who::Clusterctl {
            self.fault(Faults::REFUSED);
        }
        !refused
    }

    /// Replaces the finalizers of an object.
    pub(crate) fn set_finalizers(&mut self, who: Who, id: Id, finalizers: Finalizers) -> Answer {
        let before = self.state.live.meta(id).map(|meta| meta.finalizers);
        let answer = self.try_set_finalizers(who, id, finalizers);
        if before != Some(finalizers) {
            self.answered(answer, || {
                let before = before.unwrap_or_default();
                let (added, removed) = (finalizers.without(before), before.without(finalizers));
                let change = match (added.short(), removed.short()) {
                    (added, removed) if removed.is_empty() => format!("puts {added} on"),
                    (added, removed) if added.is_empty() => format!("takes {removed} off"),
                    (added, removed) => format!("puts {added} on and takes {removed} off"),
                };
                format!("{change} {id}")
            });
        }
        answer
    }

    fn try_set_finalizers(&mut self, who: Who, id: Id, finalizers: Finalizers) -> Answer {
        let Some(meta) = self.state.live.meta(id).copied() else { return Answer::Missing };
        if meta.finalizers == finalizers {
            return Answer::Done;
        }
        let mut after = self.state.live;
        if let Some(meta) = after.meta_mut(id) {
            meta.finalizers = finalizers;
        }
        let version = self.setup.release.version();
        let before = self.state.live;
        let added = !finalizers.without(meta.finalizers).is_empty();
        let looked_at = added && (meta.terminating || meta.moving);
        let denied = looked_at
            && self.guarded(Rule::Finalizers)
            && !rules::may_add(version, id, &before, &after);
        let held = |finalizers: Finalizers| finalizers.has(Finalizers::TEMPLATE);
        let releases = id == Id::Template && held(meta.finalizers) && !held(finalizers);
        let kept = releases
            && meta.terminating
            && self.guarded(Rule::ReleaseGate)
            && !rules::may_release(version, &before, &after);
        if denied || kept {
            if who == Who::Clusterctl {
                self.fault(Faults::REFUSED);
            }
            return Answer::Refused;
        }
        if added && meta.terminating {
            return Answer::Refused;
        }
        let taken = !meta.finalizers.without(finalizers).is_empty();
        if who == Who::Guard && taken && !meta.terminating {
            self.fault(Faults::STRIPPED);
        }
        if meta.terminating && finalizers.is_empty() {
            self.gone(id);
            return Answer::Done;
        }
        if releases && meta.terminating {
            self.template_goes();
        }
        self.store(after, id);
        Answer::Done
    }

    /// Stores `status.indexes`, as far as the guard lets it.
    pub(crate) fn set_indexes(&mut self, indexes: [Option<u8>; N]) -> Answer {
        let mut after = self.state.live;
        let Some(template) = &mut after.template else { return Answer::Missing };
        template.indexes = indexes;
        if self.guarded(Rule::Indexes) {
            let kept = rules::stored_indexes(self.setup.release.version(), &after);
            if let Some(template) = &mut after.template {
                template.indexes = kept;
            }
            self.check_dropped(indexes, kept, true);
        }
        for (claim, index) in after.template.into_iter().flat_map(|it| it.indexes).enumerate() {
            if index.is_some_and(|index| !self.is_true(claim, index)) {
                self.fault(Faults::STALE);
            }
        }
        self.store(after, Id::Template);
        self.answered(Answer::Done, || {
            let stored = after.template.map(|it| it.indexes).unwrap_or_default();
            let each = stored.iter().enumerate();
            let each = each.filter_map(|(i, at)| at.map(|at| format!("w-{i}: {at}")));
            format!("stores status.indexes {{{}}}", each.collect::<Vec<_>>().join(", "))
        })
    }

    /// Stores what a claim was given.
    pub(crate) fn set_rendered(&mut self, claim: usize, rendered: Option<u8>) -> Answer {
        let mut after = self.state.live;
        let Some(its) = &mut after.claims[claim] else { return Answer::Missing };
        if its.rendered != rendered {
            its.rendered = rendered;
            self.store(after, Id::Claim(claim));
        }
        Answer::Done
    }

    /// Leaves an annotation on an object: an event, and nothing else.
    pub(crate) fn touch(&mut self, id: Id) -> Answer {
        let mut after = self.state.live;
        let Some(meta) = after.meta_mut(id) else { return Answer::Missing };
        meta.woken = true;
        self.store(after, id);
        self.answered(Answer::Done, || format!("wakes {id}"))
    }

    /// Marks an object for the move, as clusterctl does: every other annotation goes.
    pub(crate) fn mark(&mut self, id: Id) -> Answer {
        let mut after = self.state.live;
        let Some(meta) = after.meta_mut(id) else { return Answer::Missing };
        (meta.moving, meta.woken) = (true, false);
        self.store(after, id);
        self.answered(Answer::Done, || format!("marks {id} with delete-for-move"))
    }

    fn gone(&mut self, id: Id) {
        match id {
            Id::Template => self.template_goes(),
            Id::Data(i) if self.in_use(i) => self.fault(Faults::DELETED),
            _ => {}
        }
        let mut after = self.state.live;
        after.remove(id);
        self.store(after, id);
        if let Some(story) = &mut self.story {
            story.gone.push(id.to_string());
        }
    }

    /// Stores a change of one object: an event for whoever watches, and a conflict for every guard
    /// that meant to change it.
    fn store(&mut self, mut after: Objects, id: Id) {
        let version = self.setup.release.version();
        let progress = |objects| rules::progress(version, objects);
        if after.template.is_some_and(|it| it.meta.woken)
            && progress(&self.state.live) != progress(&after)
            && let Some(template) = &mut after.template
        {
            template.meta.woken = false;
        }
        self.state.live = after;
        if id == Id::Template {
            self.state.reviewed = false;
        }
        if !matches!(id, Id::Machine(_)) && !self.state.stopped {
            self.state.behind.insert(id);
        }
        let place = match id {
            Id::Template => Some(0),
            Id::Data(i) => Some(1 + i),
            _ => None,
        };
        if let Some(place) = place.filter(|_| self.setup.has(Rule::Preconditions)) {
            for guard in &mut self.state.guards {
                guard[place] = None;
            }
        }
    }
}
