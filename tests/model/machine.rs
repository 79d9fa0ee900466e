//! The state machine that is searched: what can happen next, and what must hold.

use metal3_guard::core::plan::Scope;
use stateright::{Model, Property};

use crate::{
    end::{self, End},
    events::Event,
    rules::{self, Age},
    server::{Answer, Run, Story, Who},
    setup::{Setup, Start},
    world::{
        Claim, Cluster, Data, Faults, Finalizers, Id, Machine, Meta, Mover, N, Objects, Planned,
        State, Template,
    },
};

pub(crate) const STRIPPED: &str = "the guard takes no finalizer off what is alive";
pub(crate) const RELEASED: &str =
    "the template is there as long as Metal3Data or a claim with its finalizer needs it";
pub(crate) const DELETED: &str = "no Metal3Data in use is deleted";
pub(crate) const DROPPED: &str = "status.indexes loses no entry in use";
pub(crate) const STALE: &str = "status.indexes is stored without stale entries";
pub(crate) const REFUSED: &str = "a move is refused nothing";
pub(crate) const TEMPLATE_GONE: &str = "a deleted template is gone in the end";
pub(crate) const DATA_GONE: &str = "deleted Metal3Data are gone in the end";
pub(crate) const SERVED: &str = "every machine has its Metal3Data in the end";
pub(crate) const TRUE: &str = "status.indexes of a terminating template is true in the end";
pub(crate) const MOVED: &str = "a move leaves nothing behind";

/// What holds for every teardown.
pub(crate) const TEARDOWN: [&str; 9] =
    [STRIPPED, RELEASED, DELETED, DROPPED, STALE, TEMPLATE_GONE, DATA_GONE, SERVED, TRUE];
/// What holds for every move.
pub(crate) const MOVE: [&str; 4] = [STRIPPED, DELETED, REFUSED, MOVED];

impl Model for Setup {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        self.starts.iter().map(|start| self.start(*start)).collect()
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        self.system_events(state, events);
        self.people_events(state, events);
        self.guard_events(state, events);
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let next = self.happen(state, event, None).state;
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn no(state: &State, fault: Faults) -> bool {
            !state.faults.has(fault)
        }
        let all = [
            Property::always(STRIPPED, |_, state| no(state, Faults::STRIPPED)),
            Property::always(RELEASED, |_, state| no(state, Faults::RELEASED)),
            Property::always(DELETED, |_, state| no(state, Faults::DELETED)),
            Property::always(DROPPED, |_, state| no(state, Faults::DROPPED)),
            Property::always(STALE, |_, state| no(state, Faults::STALE)),
            Property::always(REFUSED, |_, state| no(state, Faults::REFUSED)),
            Property::always(TEMPLATE_GONE, |setup, state| end::holds(setup, state, End::TEMPLATE)),
            Property::always(DATA_GONE, |setup, state| end::holds(setup, state, End::DATA)),
            Property::always(SERVED, |setup, state| end::holds(setup, state, End::SERVED)),
            Property::always(TRUE, |setup, state| end::holds(setup, state, End::TRUE)),
            Property::always(MOVED, |setup, state| end::holds(setup, state, End::MOVED)),
        ];
        all.into_iter().filter(|it| self.properties.contains(&it.name)).collect()
    }
}

impl Setup {
    fn start(&self, start: Start) -> State {
        let machines = usize::from(self.machines);
        let ready = match start {
            Start::Empty => 0,
            Start::Full => machines,
            Start::Growing => machines - 1,
        };
        let mut live = Objects::default();
        let mut indexes = [None; N];
        for (i, entry) in indexes.iter_mut().enumerate().take(ready) {
            let both = Finalizers::MACHINE.with(Finalizers::CLAIM);
            let index = Some(i as u8);
            live.machines[i] = Some(Machine { meta: Meta::held(Finalizers::MACHINE) });
            live.claims[i] = Some(Claim { meta: Meta::held(both), rendered: index });
            let both = Finalizers::CLAIM.with(Finalizers::DATA);
            live.data[i] = Some(Data { meta: Meta::held(both), claim: i as u8 });
            *entry = index;
        }
        let held = if ready > 0 { Finalizers::TEMPLATE } else { Finalizers::NONE };
        live.template = Some(Template { meta: Meta::held(held), indexes });
        if self.mover.is_some() {
            live.cluster = Some(Cluster { meta: Meta::held(Finalizers::CLUSTER) });
        }
        let mut state = State::of(live);
        state.to_make = (ready..machines).fold(0, |bits, i| bits | 1 << i);
        state.mover = self.mover.map(|_| Mover::default());
        state.installed = !self.late;
        if ready == 0 {
            state.cache.template = None;
            state.behind.insert(Id::Template);
        }
        state
    }

    /// Lets something happen, and tells it when there is a story to write.
    pub(crate) fn happen(&self, state: &State, event: Event, story: Option<Story>) -> Run<'_> {
        let mut run = Run { setup: self, state: *state, story };
        run.by(event.who());
        match event {
            Event::Deliver(watch) => run.deliver(watch),
            Event::Pass { first, stamp } => run.whole_pass(first, stamp),
            Event::BeginPass => run.begin_pass(),
            Event::GoOn { next, stamp } => run.go_on(next, stamp),
            Event::DataPass(data) => run.data_pass(data),
            Event::MachineStep(machine) => run.machine_step(machine),
            Event::ClusterStep => run.cluster_step(),
            Event::Collect(id) | Event::Sweep(id) => drop(run.delete(Who::Kubernetes, id)),
            Event::MakeMachine(machine) => {
                if run.create(Id::Machine(machine), 0) == Answer::Done {
                    run.state.to_make &= !(1 << machine);
                }
            }
            Event::Delete(id) => drop(run.delete(Who::User, id)),
            Event::Review => run.review_deletion(),
            Event::Store => run.store_deletion(),
            Event::DeleteNamespace => {
                run.say(|| "deletes the namespace".into());
                (run.state.namespace_going, run.state.to_make) = (true, 0);
            }
            Event::Move => run.move_on(),
            Event::Install => {
                run.say(|| "is installed".into());
                run.state.installed = true;
            }
            Event::Restart => run.restart(),
            Event::Stop => run.stop(),
            Event::Look { guard, age } => run.look(guard, age, Scope::Controller),
            Event::Write { guard, place } => drop(run.carry_out(guard, place)),
            Event::Crash(guard) => {
                run.say(|| "crashes".into());
                run.state.guards[guard] = Planned::default();
            }
            Event::ByHand => {
                if let Some((id, kept)) = rules::by_hand(self.release.version(), &state.live) {
                    run.set_finalizers(Who::User, id, kept);
                }
            }
            Event::Unstick => {
                run.look(0, Age::Release, Scope::Person);
                for place in 0..=N {
                    run.carry_out(0, place);
                }
            }
        }
        run
    }
}
