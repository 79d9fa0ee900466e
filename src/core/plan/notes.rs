//! What the planner notes as waits, beside the steps.

use super::{
    super::objects::{
        CLAIM_FINALIZER, Claim, DATA_FINALIZER, Data, Kind, Meta, TEMPLATE_FINALIZER, Template,
    },
    Planner, Scope, WaitCause, named,
};

/// The kinds whose absence from a list is a reason for steps.
const REASONS: [Kind; 3] = [Kind::Claim, Kind::Data, Kind::Machine];

impl Planner<'_> {
    /// Who holds a terminating template.
    pub(super) fn note_holders(&mut self) {
        let machines: Vec<_> = self.live_machines().map(|it| named(Kind::Machine, it)).collect();
        self.wait(WaitCause::Machines, machines);
        let (live, draining): (Vec<_>, Vec<_>) =
            self.usage.claims.values().partition(|claim| !claim.meta.terminating());
        let live = live
            .iter()
            .filter(|claim| !self.is_machineless(claim))
            .map(|claim| named(Kind::Claim, &claim.meta))
            .collect();
        let attached = self.attached().into_iter();
        let draining = draining
            .iter()
            .filter(|claim| claim.meta.has_finalizer(CLAIM_FINALIZER))
            .map(|claim| named(Kind::Claim, &claim.meta))
            .chain(attached.map(|data| named(Kind::Data, &data.meta)))
            .collect();
        self.wait(WaitCause::Claims, live);
        self.wait(WaitCause::Draining, draining);
    }

    /// Metal3Data that `clusterctl move` has marked. It may have ended and left them: their
    /// template then waits for ever, and only a person knows.
    pub(super) fn note_moved(&mut self) {
        let there_to_stay = self
            .at
            .contents
            .templates
            .get(self.at.template)
            .is_some_and(|template| !template.meta.terminating());
        let data = self.usage.data.values().map(|it| &it.meta).filter(|meta| meta.moving);
        let names = data
            .filter(|meta| meta.terminating() || !there_to_stay)
            .map(|meta| named(Kind::Data, meta))
            .collect();
        self.wait(WaitCause::Moving, names);
    }

    /// Claims that only CAPM3's machine controller would end, while it works for their machine.
    pub(super) fn note_machineless(&mut self) {
        let template = self.at.contents.templates.get(self.at.template);
        let there_to_stay = template.is_some_and(|it| !it.meta.terminating());
        let counts = |claim: &Claim| {
            if claim.meta.terminating() {
                let holds =
                    claim.meta.has_finalizer(CLAIM_FINALIZER) || self.at.contents.has_data(claim);
                template.is_none() || holds
            } else {
                !there_to_stay
            }
        };
        let claims = self.usage.claims.values().filter(|it| self.is_machineless(it) && counts(it));
        let names = claims.map(|claim| named(Kind::Claim, &claim.meta)).collect();
        self.wait(WaitCause::Machineless, names);
    }

    /// What a template that is gone has left waiting: CAPM3 reads it to work for them.
    pub(super) fn note_templateless(&mut self) {
        let machines = self.live_machines().filter(|it| !it.moving);
        let machines = machines.map(|it| named(Kind::Machine, it));
        let claims = self.usage.claims.values().filter(|claim| {
            let waits = if claim.meta.terminating() {
                claim.meta.has_finalizer(CLAIM_FINALIZER)
            } else {
                !self.is_machineless(claim)
            };
            waits && !claim.meta.moving
        });
        let attached = self.attached().into_iter();
        let names = machines
            .chain(claims.map(|claim| named(Kind::Claim, &claim.meta)))
            .chain(attached.map(|data| named(Kind::Data, &data.meta)))
            .collect();
        self.wait(WaitCause::NoTemplate, names);
    }

    /// Finalizers that are not CAPM3's, on the template and on its terminating Metal3Data.
    pub(super) fn note_foreign(&mut self, template: Option<&Meta>) {
        let of_template = template
            .into_iter()
            .flat_map(|meta| &meta.finalizers)
            .filter(|it| &***it != TEMPLATE_FINALIZER)
            .cloned();
        let data = self.usage.data.values().map(|it| &it.meta).filter(|meta| meta.terminating());
        let of_data = data.flat_map(|meta| {
            let all = meta.finalizers.iter().map(|it| &**it);
            let foreign = all.filter(|it| ![CLAIM_FINALIZER, DATA_FINALIZER].contains(it));
            foreign.map(|it| format!("{it} on {}", named(Kind::Data, meta)).into())
        });
        let names = of_template.chain(of_data).collect();
        self.wait(WaitCause::ForeignFinalizers, names);
    }

    /// Notes what is paused; whether that keeps the plan from doing more than waking.
    pub(super) fn note_pauses(&mut self, template: Option<&Template>) -> bool {
        let mut names = Vec::new();
        let mut clusters: Vec<&str> = Vec::new();
        if let Some(template) = template {
            if template.meta.paused {
                names.push(named(Kind::Template, &template.meta));
            }
            clusters.extend(template.cluster());
        }
        let data: Vec<_> = self.usage.data.values().cloned().collect();
        for it in &data {
            if it.meta.paused {
                names.push(named(Kind::Data, &it.meta));
            }
            clusters.extend(it.meta.cluster.as_deref());
        }
        clusters.sort_unstable();
        clusters.dedup();
        names.extend(
            clusters
                .into_iter()
                .filter(|name| self.at.contents.cluster_paused(name))
                .map(|name| format!("{}/{name}", Kind::Cluster).into()),
        );
        let paused = !names.is_empty();
        let concerned = template.is_none_or(|it| it.meta.terminating())
            || data.iter().any(|it| it.meta.terminating());
        if concerned {
            self.wait(WaitCause::Paused, names);
        }
        paused
    }

    /// Notes kinds that are not served. An API server that learns of a CRD late, and one that is
    /// being restored, look as if there were no objects; only a person knows that there are none.
    pub(super) fn note_unserved(&mut self) -> bool {
        let contents = self.at.contents;
        let unserved = REASONS.into_iter().filter(|kind| contents.unserved.contains(kind));
        let names: Vec<_> = unserved.map(|kind| kind.resource().into()).collect();
        if self.at.scope == Scope::Person || names.is_empty() {
            return false;
        }
        self.wait(WaitCause::Unserved, names);
        true
    }

    /// Notes an object whose owner was woken, had its time and did nothing. For one that no
    /// stronger step follows on.
    pub(super) fn note_silent(&mut self, kind: Kind, meta: &Meta, since: jiff::Timestamp) {
        let (now, patience) = (self.at.now, self.at.timing.wake);
        let woken = self.woken(meta, since);
        if !self.held && woken.is_some_and(|woken| now.duration_since(woken) >= patience) {
            self.wait(WaitCause::Silent, vec![named(kind, meta)]);
        }
    }

    /// Metal3Data whose claim is there, and which nobody moves.
    fn attached(&self) -> Vec<&Data> {
        let attached = |data: &&Data| !self.at.contents.is_orphan(data) && !data.meta.moving;
        self.usage.data.values().map(|it| &**it).filter(attached).collect()
    }

    fn is_machineless(&self, claim: &Claim) -> bool {
        !claim.meta.moving && self.at.contents.is_machineless(claim)
    }
}
