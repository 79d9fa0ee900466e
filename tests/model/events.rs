//! What can happen in a state.

use metal3_guard::core::plan::Scope;

use crate::{
    capm3::Watch,
    rules::Age,
    setup::Setup,
    world::{Id, N, Planned, State},
};

/// Something that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Deliver(Watch),
    /// A whole pass of the template controller.
    Pass {
        first: usize,
        stamp: bool,
    },
    /// A pass that others can come in between of, and its next write.
    BeginPass,
    GoOn {
        next: Option<usize>,
        stamp: bool,
    },
    DataPass(usize),
    MachineStep(usize),
    ClusterStep,
    /// The garbage collector deletes what has no owner any more.
    Collect(Id),
    /// The namespace controller deletes what is left.
    Sweep(Id),
    MakeMachine(usize),
    Delete(Id),
    /// A user's DELETE of the template passes its review.
    Review,
    /// That DELETE is stored.
    Store,
    DeleteNamespace,
    Move,
    Install,
    Restart,
    Stop,
    Look {
        guard: usize,
        age: Age,
    },
    Write {
        guard: usize,
        place: usize,
    },
    Crash(usize),
    /// A person looks with `unstick`, and carries the plan out.
    Unstick,
    /// A person does what `diagnose` says is to be done by hand.
    ByHand,
}

impl Event {
    /// Who does it.
    pub(crate) const fn who(self) -> &'static str {
        match self {
            Self::Deliver(Watch::Clusters) => "Cluster API's cache sees",
            Self::Deliver(_) => "CAPM3's cache sees",
            Self::Pass { .. } | Self::BeginPass | Self::GoOn { .. } => {
                "CAPM3's template controller"
            }
            Self::DataPass(_) => "CAPM3's data controller",
            Self::MachineStep(_) => "CAPM3's machine controller",
            Self::ClusterStep => "Cluster API's controller",
            Self::Collect(_) => "the garbage collector",
            Self::Sweep(_) => "the namespace controller",
            Self::MakeMachine(_) | Self::Delete(_) | Self::Review | Self::DeleteNamespace => {
                "a user"
            }
            Self::Store => "the API server",
            Self::Move => "clusterctl",
            Self::Install => "the guard",
            Self::Restart | Self::Stop => "CAPM3",
            Self::Look { guard, .. } | Self::Write { guard, .. } | Self::Crash(guard) => {
                if guard == 0 { "a guard" } else { "the other guard" }
            }
            Self::Unstick => "a person with unstick",
            Self::ByHand => "a person with a command of diagnose",
        }
    }
}

impl Setup {
    /// What CAPM3, Kubernetes and Cluster API do by themselves.
    pub(crate) fn system_events(&self, state: &State, events: &mut Vec<Event>) {
        for watch in Watch::ALL {
            if watch.ids().any(|id| state.behind.has(id)) {
                events.push(Event::Deliver(watch));
            }
        }
        self.capm3_events(state, events);
        for i in 0..N {
            if self.is_orphan_of_owner(state, Id::Claim(i)) {
                events.push(Event::Collect(Id::Claim(i)));
            }
            if self.is_orphan_of_owner(state, Id::Data(i)) {
                events.push(Event::Collect(Id::Data(i)));
            }
        }
        if state.namespace_going {
            let left = state.live.ids().filter(|id| state.live.is_live(*id));
            events.extend(left.map(Event::Sweep));
        }
        if self.mover.is_some() {
            events.extend([Event::Move, Event::ClusterStep]);
        }
    }

    fn capm3_events(&self, state: &State, events: &mut Vec<Event>) {
        let paused = self.mover.is_some();
        if state.stopped {
            return;
        }
        let stamps: &[bool] = if self.stamps { &[false, true] } else { &[false] };
        if paused && !self.release.is_current() {
            // It is its Cluster's pause too.
        } else if let Some(pass) = state.pass {
            let choices: Vec<_> = pass.choices().collect();
            for stamp in stamps.iter().copied().take(if choices.is_empty() { 2 } else { 1 }) {
                if choices.is_empty() {
                    events.push(Event::GoOn { next: None, stamp });
                }
                events.extend(choices.iter().map(|it| Event::GoOn { next: Some(*it), stamp }));
            }
        } else if state.queued.has(Id::Template) {
            if self.interleaved {
                events.push(Event::BeginPass);
            } else {
                let to_do: Vec<_> = state.claims_to_do().collect();
                let firsts = if to_do.is_empty() { vec![0] } else { to_do };
                for first in firsts {
                    events.extend(stamps.iter().map(|stamp| Event::Pass { first, stamp: *stamp }));
                }
            }
        }
        if paused {
            return;
        }
        for i in 0..N {
            if state.queued.has(Id::Data(i)) {
                events.push(Event::DataPass(i));
            }
            if state.live.is(Id::Machine(i)) {
                events.push(Event::MachineStep(i));
            }
        }
    }

    /// Whether every owner of a live object is gone.
    fn is_orphan_of_owner(&self, state: &State, id: Id) -> bool {
        let live = &state.live;
        if self.mover.is_some() || !live.is_live(id) {
            return false;
        }
        match id {
            Id::Claim(i) => !live.is(Id::Machine(i)),
            Id::Data(i) => live.data[i].is_some_and(|data| {
                let claim = usize::from(data.claim);
                let owned = live.is(Id::Claim(claim)) || live.is(Id::Machine(claim));
                !owned && (self.release.is_current() || !live.is(Id::Template))
            }),
            Id::Template | Id::Machine(_) | Id::Cluster => false,
        }
    }

    pub(crate) fn people_events(&self, state: &State, events: &mut Vec<Event>) {
        if self.mover.is_some() {
            return;
        }
        let users = self.users;
        for i in 0..N {
            // Who makes a machine names a template that is there.
            if state.to_make >> i & 1 == 1 && state.live.is(Id::Template) {
                events.push(Event::MakeMachine(i));
            }
        }
        for id in state.live.ids().filter(|id| state.live.is_live(*id)) {
            let allowed = match id {
                Id::Machine(_) => true,
                Id::Template => users.delete_template,
                Id::Claim(_) => users.delete_claims,
                Id::Data(_) => users.delete_data,
                Id::Cluster => false,
            };
            if allowed {
                let slowly = id == Id::Template && self.slow_reviews;
                events.push(if slowly { Event::Review } else { Event::Delete(id) });
            }
        }
        if state.reviewed {
            events.push(Event::Store);
        }
        if users.delete_namespace && !state.namespace_going {
            events.push(Event::DeleteNamespace);
        }
        if !state.installed {
            events.push(Event::Install);
        }
        if self.restarts && !state.stopped {
            events.push(Event::Restart);
        }
        if self.stops && !state.stopped {
            events.push(Event::Stop);
        }
    }

    pub(crate) fn guard_events(&self, state: &State, events: &mut Vec<Event>) {
        if !state.installed {
            return;
        }
        let mut looks = None;
        for (guard, planned) in state.guards.iter().enumerate().take(self.guards) {
            if planned.iter().any(Option::is_some) {
                let places = (0..=N).filter(|place| planned[*place].is_some());
                events.extend(places.map(|place| Event::Write { guard, place }));
                events.push(Event::Crash(guard));
            } else {
                // One idle guard is like the other.
                looks = looks.or(Some(guard));
            }
        }
        let Some(guard) = looks else { return };
        let mut before = Planned::default();
        for age in Age::ALL {
            let planned = self.planned(state, age, Scope::Controller);
            if planned != before {
                events.push(Event::Look { guard, age });
                before = planned;
            }
        }
    }
}
