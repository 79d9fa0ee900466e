//! What must never happen, told from the objects alone.

use crate::{
    server::Run,
    world::{Faults, Finalizers, Id, N},
};

impl Run<'_> {
    pub(crate) fn fault(&mut self, fault: Faults) {
        if self.state.installed {
            self.state.faults.0 |= fault.0;
        }
    }

    /// Whether an entry of `status.indexes` says something: its claim is there, or a Metal3Data is
    /// at that index.
    pub(crate) fn is_true(&self, claim: usize, index: u8) -> bool {
        self.state.live.claims[claim].is_some()
            || self.state.live.data[usize::from(index)].is_some()
    }

    /// What the guard takes out of `status.indexes` must not be in use: neither the claim nor the
    /// Metal3Data of that claim at that index may be there.
    ///
    /// `now` says that they were looked at in the same moment. Between a guard's look and its write
    /// a CAPM3 that has slept for as long as it likes may make a Metal3Data for a claim that is
    /// long gone: nobody uses that, and CAPM3's next pass writes its entry again.
    pub(crate) fn check_dropped(
        &mut self,
        before: [Option<u8>; N],
        after: [Option<u8>; N],
        now: bool,
    ) {
        for (claim, (old, new)) in before.into_iter().zip(after).enumerate() {
            let Some(index) = old.filter(|_| old != new) else { continue };
            let data = self.state.live.data[usize::from(index)];
            let occupied = data.is_some_and(|data| usize::from(data.claim) == claim);
            if now && occupied || self.state.live.claims[claim].is_some() {
                self.fault(Faults::DROPPED);
            }
        }
    }

    /// A Metal3Data is in use as long as its claim is there to stay.
    pub(crate) fn in_use(&self, data: usize) -> bool {
        self.state.live.data[data].is_some_and(|data| {
            let live = |id| self.state.live.is_live(id) && !self.is_moving(id);
            live(Id::Claim(data.claim.into())) && !data.meta.moving
        })
    }

    fn is_moving(&self, id: Id) -> bool {
        self.state.live.meta(id).is_some_and(|meta| meta.moving)
    }

    /// The template may only go when nothing needs it to finish.
    pub(crate) fn template_goes(&mut self) {
        let live = &self.state.live;
        let data = live.data.iter().any(Option::is_some);
        let claims = live.claims.iter().flatten();
        let claims = claims.filter(|claim| claim.meta.finalizers.has(Finalizers::CLAIM));
        if (data || claims.count() > 0) && !self.is_moving(Id::Template) {
            self.fault(Faults::RELEASED);
        }
    }
}
