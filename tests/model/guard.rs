//! The guard's controller: a look at everything, a plan, and writes that name what they were
//! planned from. It may crash in between.

use metal3_guard::core::plan::{Action, Scope};

use crate::{
    rules::{self, Age},
    server::{Answer, Run, Who},
    setup::{Rule, Setup},
    world::{Finalizers, Id, N, Planned, State},
};

impl Setup {
    /// The due steps of a plan, of the kinds that are switched on.
    pub(crate) fn planned(&self, state: &State, age: Age, scope: Scope) -> Planned {
        let due = rules::due(self.release.version(), &state.live, age, scope);
        due.steps.map(|step| step.filter(|step| self.has(rule(step.action))))
    }
}

/// The rule that stands for a kind of step.
fn rule(action: Action) -> Rule {
    match action {
        Action::Wake => Rule::Wake,
        Action::Prune => Rule::Prune,
        Action::DeleteOrphan => Rule::DeleteOrphan,
        Action::FreeOrphan => Rule::FreeOrphan,
        Action::Release => Rule::ReleaseStep,
        Action::DeleteIpClaim | Action::FreeIpClaim | Action::FreeLost => Rule::FreeLost,
    }
}

impl Run<'_> {
    pub(crate) fn look(&mut self, guard: usize, age: Age, scope: Scope) {
        let planned = self.setup.planned(&self.state, age, scope);
        self.state.guards[guard] = planned;
        self.say(|| {
            let steps = planned.iter().enumerate();
            let steps = steps.filter_map(|(place, step)| {
                step.map(|step| format!("{} {}", step.action, target(place)))
            });
            format!("looks ({age}) and plans to {}", steps.collect::<Vec<_>>().join(" and to "))
        });
    }

    /// Carries out one planned step.
    pub(crate) fn carry_out(&mut self, guard: usize, place: usize) -> Option<Answer> {
        let step = self.state.guards[guard][place].take()?;
        let id = target(place);
        Some(match step.action {
            Action::Wake => self.touch(id),
            Action::DeleteOrphan => self.delete(Who::Guard, id),
            Action::FreeOrphan | Action::Release | Action::FreeLost => {
                self.set_finalizers(Who::Guard, id, Finalizers(step.payload))
            }
            Action::Prune => {
                let template = self.state.live.template?;
                let keeps = |claim: usize| step.payload >> claim & 1 == 0;
                let kept: [_; N] =
                    std::array::from_fn(|i| template.indexes[i].filter(|_| keeps(i)));
                self.check_dropped(template.indexes, kept, false);
                self.set_indexes(kept)
            }
            Action::DeleteIpClaim | Action::FreeIpClaim => unreachable!("there are no IP claims"),
        })
    }
}

/// The object of a planned step.
fn target(place: usize) -> Id {
    if place == 0 { Id::Template } else { Id::Data(place - 1) }
}
