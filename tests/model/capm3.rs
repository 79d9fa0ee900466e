//! CAPM3's controllers, as they are at the tags v1.8.1, v1.8.2 and v1.14: one queue each, one
//! object at a time, reading from caches that may be behind, woken by events of what they watch.
//!
//! The machine controller is simpler than the real one: it reads live and looks at its machines
//! all the time (hosts keep it awake), so a claim is never lost by it.

use crate::{
    server::{Answer, Run, Who},
    setup::Release,
    world::{Claim, Finalizers, Id, Ids, N, Objects, State, Template},
};

/// One pass of the template controller, from its lists to its last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pass {
    /// The template as it was read.
    template: TemplateKey,
    claims: [Option<ClaimKey>; N],
    /// Claims that have not been looked at.
    left: u8,
    /// The claim whose patch comes next, with its finalizers and what it was given.
    patch: Option<(u8, Finalizers, Option<u8>)>,
    /// `status.indexes` and what is taken, in memory.
    indexes: [Option<u8>; N],
    taken: u8,
    had_data: bool,
    has_claims: bool,
    failed: bool,
}

type TemplateKey = (bool, Finalizers, [Option<u8>; N]);
type ClaimKey = (bool, Finalizers, Option<u8>);

impl Pass {
    /// Reads the lists. `None` when the template is not there.
    fn begin(cache: &Objects) -> Option<Self> {
        let Template { meta, indexes: stored } = cache.template?;
        let mut indexes = [None; N];
        let mut taken = 0;
        for (index, data) in cache.data.iter().enumerate() {
            if let Some(data) = data {
                indexes[usize::from(data.claim)] = Some(index as u8);
                taken |= 1 << index;
            }
        }
        let key = |it: Claim| (it.meta.terminating, it.meta.finalizers, it.rendered);
        let claims = cache.claims.map(|claim| claim.map(key));
        let live = |claim: &ClaimKey| !claim.0;
        Some(Self {
            template: (meta.terminating, meta.finalizers, stored),
            claims,
            left: (0..N).filter(|i| needs_work(claims[*i])).fold(0, |bits, i| bits | 1 << i),
            patch: None,
            indexes,
            taken,
            had_data: taken != 0,
            has_claims: claims.iter().flatten().any(live),
            failed: false,
        })
    }

    /// The claims of which any may be the next one.
    pub(crate) fn choices(&self) -> impl Iterator<Item = usize> + use<> {
        let left = if self.patch.is_some() { 0 } else { self.left };
        (0..N).filter(move |i| left >> i & 1 == 1)
    }

    pub(crate) fn renumbered(&self, new: &[usize; N]) -> Self {
        let mut it = *self;
        it.left = 0;
        for (i, to) in new.iter().copied().enumerate() {
            it.claims[to] = self.claims[i];
            it.indexes[to] = self.indexes[i];
            it.template.2[to] = self.template.2[i];
            it.left |= (self.left >> i & 1) << to;
        }
        it.patch =
            self.patch.map(|(claim, kept, given)| (new[usize::from(claim)] as u8, kept, given));
        it
    }
}

/// Deleted claims, and live ones that were not given anything.
fn needs_work(claim: Option<ClaimKey>) -> bool {
    claim.is_some_and(|(terminating, _, rendered)| terminating || rendered.is_none())
}

impl State {
    /// Claims that a pass would do something about, in the cache.
    pub(crate) fn claims_to_do(&self) -> impl Iterator<Item = usize> + use<> {
        let left = Pass::begin(&self.cache).map_or(0, |pass| pass.left);
        (0..N).filter(move |i| left >> i & 1 == 1)
    }
}

/// Whose events a cache gets at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Watch {
    Templates,
    Claims,
    Data,
    Clusters,
}

impl Watch {
    pub(crate) const ALL: [Self; 4] = [Self::Templates, Self::Claims, Self::Data, Self::Clusters];

    pub(crate) fn ids(self) -> impl Iterator<Item = Id> {
        Id::all().filter(move |id| match self {
            Self::Templates => *id == Id::Template,
            Self::Claims => matches!(id, Id::Claim(_)),
            Self::Data => matches!(id, Id::Data(_)),
            Self::Clusters => *id == Id::Cluster,
        })
    }
}

impl Run<'_> {
    /// The cache catches up with one kind, and what watches it is queued. Events in between are
    /// one: a cache that stops at each is the same as one that catches up earlier.
    pub(crate) fn deliver(&mut self, watch: Watch) {
        for id in watch.ids() {
            if !self.state.behind.has(id) {
                continue;
            }
            self.state.behind.remove(id);
            let live = self.state.live;
            self.state.cache.copy(id, &live);
            match id {
                Id::Template | Id::Claim(_) => self.state.queued.insert(Id::Template),
                Id::Data(_) => self.state.queued.insert(id),
                Id::Machine(_) | Id::Cluster => {}
            }
            self.say(|| id.to_string());
        }
    }

    /// The template controller begins a pass.
    pub(crate) fn begin_pass(&mut self) {
        self.state.queued.remove(Id::Template);
        self.state.pass = Pass::begin(&self.state.cache);
        if self.setup.interleaved {
            self.say(|| "begins to look at the template".into());
        }
    }

    /// A whole pass without anything in between. `first` is the claim that its list begins with;
    /// `stamp` says whether the time in `status.lastUpdated` is another one.
    pub(crate) fn whole_pass(&mut self, first: usize, stamp: bool) {
        self.begin_pass();
        while let Some(pass) = self.state.pass {
            let next = pass.choices().min_by_key(|claim| (claim + N - first) % N);
            self.go_on(next, stamp);
        }
    }

    /// The next write of the pass: the patch of the claim that it is at, the Metal3Data of the
    /// claim `next`, or, when there is neither, the template's own patches.
    pub(crate) fn go_on(&mut self, next: Option<usize>, stamp: bool) {
        let Some(mut pass) = self.state.pass.take() else { return };
        if let Some((claim, finalizers, rendered)) = pass.patch.take() {
            // Only what differs is sent. What goes wrong is logged and forgotten, in every release.
            let seen = pass.claims[usize::from(claim)];
            if seen.is_some_and(|(_, before, _)| before != finalizers) {
                self.set_finalizers(Who::Capm3, Id::Claim(claim.into()), finalizers);
            }
            if seen.is_some_and(|(_, _, before)| before != rendered) {
                self.set_rendered(claim.into(), rendered);
            }
        } else if let Some(claim) = next.filter(|_| !pass.failed) {
            pass.left &= !(1 << claim);
            if let Some((terminating, finalizers, rendered)) = pass.claims[claim] {
                if terminating {
                    self.forget(&mut pass, claim, finalizers, rendered);
                } else {
                    self.render(&mut pass, claim, finalizers);
                }
            }
        } else {
            self.end_pass(&pass, stamp);
            return;
        }
        if pass.failed {
            pass.left = 0;
        }
        self.state.pass = Some(pass);
    }

    /// Gives a claim its Metal3Data, also when the template is on its way out.
    fn render(&mut self, pass: &mut Pass, claim: usize, finalizers: Finalizers) {
        let finalizers = finalizers.with(Finalizers::CLAIM);
        let index = match pass.indexes[claim] {
            Some(index) => Some(index),
            None => (0..N as u8).find(|index| pass.taken >> index & 1 == 0),
        };
        let made = match index {
            Some(_) if pass.indexes[claim].is_some() => Answer::Done,
            Some(index) => self.create(Id::Data(index.into()), claim as u8),
            None => unreachable!("more Metal3Data than claims"),
        };
        pass.failed = made != Answer::Done;
        let given = index.filter(|_| !pass.failed);
        if let Some(index) = given {
            pass.indexes[claim] = Some(index);
            pass.taken |= 1 << index;
        }
        pass.patch = Some((claim as u8, finalizers, given));
    }

    /// Deletes the Metal3Data of a claim that is being deleted, then lets the claim go.
    fn forget(
        &mut self,
        pass: &mut Pass,
        claim: usize,
        finalizers: Finalizers,
        rendered: Option<u8>,
    ) {
        let cached = |run: &Self, index: &u8| run.state.cache.data[usize::from(*index)].is_some();
        let mut found = pass.indexes[claim].filter(|index| cached(self, index));
        if self.setup.release.is_current() {
            found = found.or_else(|| rendered.filter(|index| cached(self, index)));
        }
        if let Some(index) = found {
            let id = Id::Data(index.into());
            let seen = self.state.cache.meta(id).map(|meta| meta.finalizers).unwrap_or_default();
            let answer = if !self.state.live.is(id) {
                Answer::Missing
            } else if self.state.behind.has(id) {
                // An update names the version that it was made from.
                self.say(|| format!("takes metal3dataclaim off {id} (conflict)"));
                Answer::Conflict
            } else {
                self.set_finalizers(Who::Capm3, id, seen.without(Finalizers::CLAIM))
            };
            if matches!(answer, Answer::Conflict | Answer::Refused) {
                pass.failed = true;
                return;
            }
            self.delete(Who::Capm3, id);
        }
        if let Some(index) = pass.indexes[claim].take() {
            pass.taken &= !(1 << index);
        }
        pass.patch = Some((claim as u8, finalizers.without(Finalizers::CLAIM), None));
    }

    /// The template's own patches: finalizers, then status.
    fn end_pass(&mut self, pass: &Pass, stamp: bool) {
        let release = self.setup.release;
        let (terminating, finalizers, stored) = pass.template;
        let nothing_left = match release {
            Release::V1_8_1 => pass.taken == 0,
            Release::V1_8_2 | Release::V1_14 => !pass.had_data && !pass.has_claims,
        };
        let wanted = if !terminating {
            finalizers.with(Finalizers::TEMPLATE)
        } else if nothing_left && !pass.failed {
            finalizers.without(Finalizers::TEMPLATE)
        } else {
            finalizers
        };
        let mut again =
            pass.failed || terminating && release.requeues() && pass.had_data && !pass.has_claims;
        if wanted != finalizers {
            let answer = self.set_finalizers(Who::Capm3, Id::Template, wanted);
            again |= release.is_current() && answer == Answer::Refused;
        }
        if pass.indexes != stored || stamp {
            let mut indexes = pass.indexes;
            if !release.is_current() {
                // A merge patch of a map changes the keys that differ and no other.
                let live = self.state.live.template.map(|it| it.indexes).unwrap_or_default();
                let differs = |i: usize| pass.indexes[i] != stored[i];
                indexes =
                    std::array::from_fn(|i| if differs(i) { pass.indexes[i] } else { live[i] });
            }
            self.set_indexes(indexes);
        }
        if again {
            self.state.queued.insert(Id::Template);
        }
    }

    /// The data controller looks at one Metal3Data.
    pub(crate) fn data_pass(&mut self, data: usize) {
        let id = Id::Data(data);
        self.state.queued.remove(id);
        let Some(seen) = self.state.cache.data[data] else { return };
        let finalizers = seen.meta.finalizers;
        let wanted = if !seen.meta.terminating {
            finalizers.with(Finalizers::DATA)
        } else if self.state.cache.claims[usize::from(seen.claim)].is_some() {
            self.say(|| format!("finds that the claim of {id} is still there"));
            if self.setup.release.requeues() {
                self.state.queued.insert(id);
            }
            return;
        } else if self.state.cache.template.is_none() {
            self.say(|| format!("misses the template of {id}"));
            self.state.queued.insert(id);
            return;
        } else {
            finalizers.without(Finalizers::DATA)
        };
        if wanted == finalizers {
            return;
        }
        let answer = self.set_finalizers(Who::Capm3, id, wanted);
        if self.setup.release.is_current() && answer == Answer::Refused {
            self.state.queued.insert(id);
        }
    }

    /// The machine controller does the next thing for one machine.
    pub(crate) fn machine_step(&mut self, i: usize) {
        let Some(meta) = self.state.live.meta(Id::Machine(i)).copied() else { return };
        let claim = self.state.live.claims[i];
        let held = meta.finalizers.has(Finalizers::MACHINE);
        match (meta.terminating, claim) {
            (false, _) if !held => {
                let finalizers = meta.finalizers.with(Finalizers::MACHINE);
                self.set_finalizers(Who::Capm3, Id::Machine(i), finalizers);
            }
            (false, None) => {
                self.create(Id::Claim(i), 0);
            }
            (false, Some(_)) => {}
            (true, Some(Claim { meta, .. }))
                if !meta.terminating || meta.finalizers.has(Finalizers::MACHINE) =>
            {
                let kept = meta.finalizers.without(Finalizers::MACHINE);
                self.set_finalizers(Who::Capm3, Id::Claim(i), kept);
                self.delete(Who::Capm3, Id::Claim(i));
            }
            (true, _) => {
                let kept = meta.finalizers.without(Finalizers::MACHINE);
                self.set_finalizers(Who::Capm3, Id::Machine(i), kept);
            }
        }
    }

    /// CAPM3 starts anew: what it was about to do is forgotten, and it looks at everything.
    pub(crate) fn restart(&mut self) {
        self.say(|| "starts anew and looks at everything".into());
        self.state.pass = None;
        self.state.cache = self.state.live;
        (self.state.behind, self.state.queued) = (Ids::default(), Ids::default());
        for id in self.state.live.ids() {
            if matches!(id, Id::Template | Id::Data(_)) {
                self.state.queued.insert(id);
            }
        }
    }

    /// CAPM3 is taken away for good.
    pub(crate) fn stop(&mut self) {
        self.say(|| "stops for good".into());
        self.state.stopped = true;
        (self.state.pass, self.state.cache) = (None, Objects::default());
        (self.state.behind, self.state.queued) = (Ids::default(), Ids::default());
    }
}
