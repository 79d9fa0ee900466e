//! Where everything comes to rest once people stop: from a state, whoever can do something does
//! it, in turn, until nothing changes any more. Nothing else is promised about the order.
//!
//! This is asked of every state that a search reaches, so whatever came before is covered: there
//! is no state that only luck would lead out of.

use std::{
    cell::Cell,
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use metal3_guard::core::plan::Scope;
use stateright::Model as _;

use crate::{
    capm3::Watch,
    events::Event,
    rules::{self, Age},
    setup::Setup,
    world::{Finalizers, Id, N, State},
};

/// What must hold in the end, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct End(u8);

impl End {
    pub(crate) const TEMPLATE: Self = Self(1);
    pub(crate) const SERVED: Self = Self(2);
    pub(crate) const TRUE: Self = Self(4);
    pub(crate) const MOVED: Self = Self(8);
    pub(crate) const DATA: Self = Self(16);
}

/// Whether it ends well.
pub(crate) fn holds(setup: &Setup, state: &State, what: End) -> bool {
    thread_local! {
        static LAST: Cell<Option<(State, End)>> = const { Cell::new(None) };
    }
    // Several properties ask for the same state, one after the other.
    let missed = match LAST.get() {
        Some((last, missed)) if last == *state => missed,
        _ => from(setup, state),
    };
    LAST.set(Some((*state, missed)));
    missed.0 & what.0 == 0
}

/// What is missed in the end.
fn from(setup: &Setup, state: &State) -> End {
    let (path, missed) = run(setup, state);
    if missed == End::default() {
        for hash in path {
            setup.known_good.insert(hash);
        }
    }
    missed
}

/// The events from a state to its end, for the story of it.
pub(crate) fn events(setup: &Setup, state: &State) -> Vec<Event> {
    let mut seen = BTreeSet::new();
    let mut state = *state;
    let mut events = Vec::new();
    while seen.insert(hash(&state)) {
        let Some((event, next)) = step(setup, &state) else { break };
        events.push(event);
        state = next;
    }
    events
}

/// The states on the way to the end, and what does not hold there.
fn run(setup: &Setup, state: &State) -> (BTreeSet<u64>, End) {
    let mut path = BTreeSet::new();
    let mut state = *state;
    loop {
        let hash = hash(&state);
        if setup.known_good.has(hash) {
            return (path, End::default());
        }
        // A circle is an end too: wake-ups are repeated for ever where nothing else can be done.
        if !path.insert(hash) {
            return (path, missed(setup, &state));
        }
        match step(setup, &state) {
            Some((_, next)) => state = next,
            None => return (path, missed(setup, &state)),
        }
    }
}

fn hash(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// The first thing in a fixed order that changes anything.
fn step(setup: &Setup, state: &State) -> Option<(Event, State)> {
    let each = |make: fn(usize) -> Event| (0..N).map(make);
    let finish = setup.is_move_on(state).then_some(Event::Move);
    let guard = state.guards[0].iter().position(Option::is_some);
    let other = state.guards[1].iter().position(Option::is_some);
    let write = guard.map(|place| Event::Write { guard: 0, place });
    let write = write.or_else(|| other.map(|place| Event::Write { guard: 1, place }));
    let looks = [Age::Release, Age::Grace, Age::Wake].map(|age| Event::Look { guard: 0, age });
    let looks = looks.into_iter().filter(|_| state.installed && write.is_none());
    let events = state
        .reviewed
        .then_some(Event::Store)
        .into_iter()
        .chain((!state.installed).then_some(Event::Install))
        .chain(Watch::ALL.map(Event::Deliver))
        .chain(setup.next_of_pass(state))
        .chain(each(Event::DataPass).filter(|_| setup.mover.is_none()))
        .chain(each(Event::MachineStep).filter(|_| setup.mover.is_none()))
        .chain(setup.clean_up(state))
        .chain(finish)
        .chain(setup.mover.map(|_| Event::ClusterStep))
        .chain(write)
        .chain(setup.by_hand(state))
        .chain(looks)
        .chain(setup.unstick(state));
    for event in events {
        if let Some(next) = setup.next_state(state, event) {
            return Some((event, next));
        }
    }
    None
}

impl Setup {
    fn is_move_on(&self, state: &State) -> bool {
        self.mover.is_some() && !state.moved()
    }
}

/// What does not hold in a state where everything has come to rest.
fn missed(setup: &Setup, state: &State) -> End {
    let live = &state.live;
    if setup.mover.is_some() {
        let left = live.ids().next().is_some();
        return if left { End::MOVED } else { End::default() };
    }
    let machines = || (0..N).filter(|i| live.is_live(Id::Machine(*i)));
    let claims = || (0..N).filter(|i| live.is_live(Id::Claim(*i)));
    let users = machines().next().is_some() || claims().next().is_some();
    let mut end = 0;
    if live.is_terminating(Id::Template) && !users && !template_needs_capm3(state) {
        end |= End::TEMPLATE.0;
    }
    for (i, data) in live.data.iter().enumerate() {
        let Some(data) = data.filter(|data| data.meta.terminating) else { continue };
        let claim = usize::from(data.claim);
        let used = live.is(Id::Claim(claim)) && live.is_live(Id::Machine(claim));
        let waits = used || state.stopped && needs_capm3(state, i);
        if !waits {
            end |= End::DATA.0;
        }
    }
    for machine in machines() {
        let its = |data: &crate::world::Data| usize::from(data.claim) == machine;
        if !live.is_live(Id::Template) && !live.data.iter().flatten().any(its) {
            end |= End::SERVED.0;
        }
    }
    if let Some(template) = live.template.filter(|it| it.meta.terminating) {
        for (claim, index) in template.indexes.into_iter().enumerate() {
            let Some(index) = index else { continue };
            let data = live.data[usize::from(index)].is_some();
            if !data && live.claims[claim].is_none() {
                end |= End::TRUE.0;
            }
        }
    }
    End(end)
}

/// With CAPM3 gone for good, nobody but a person may finish what only CAPM3 can: the addresses of
/// a Metal3Data, the Metal3Data of a claim.
fn template_needs_capm3(state: &State) -> bool {
    let finalized = |claim: &crate::world::Claim| claim.meta.finalizers.has(Finalizers::CLAIM);
    let claims = state.live.claims.iter().flatten().any(finalized);
    state.stopped && (claims || state.live.data.iter().any(Option::is_some))
}

fn needs_capm3(state: &State, data: usize) -> bool {
    state.live.data[data].is_some_and(|data| {
        data.meta.finalizers.has(Finalizers::DATA) || state.live.is(Id::Claim(data.claim.into()))
    })
}

impl Setup {
    /// A person does what a plan asks for.
    fn unstick(&self, state: &State) -> Option<Event> {
        let asked = || {
            let version = self.release.version();
            rules::due(version, &state.live, Age::Release, Scope::Controller).lost
        };
        (self.users.unstick && state.installed && asked()).then_some(Event::Unstick)
    }

    /// A person does by hand what nobody else may.
    fn by_hand(&self, state: &State) -> Option<Event> {
        (self.users.unstick && state.installed).then_some(Event::ByHand)
    }

    /// What the template controller does next, when it may do anything.
    fn next_of_pass(&self, state: &State) -> Option<Event> {
        if state.stopped || self.mover.is_some() && !self.release.is_current() {
            return None;
        }
        if let Some(pass) = state.pass {
            return Some(Event::GoOn { next: pass.choices().next(), stamp: false });
        }
        state.queued.has(Id::Template).then_some(Event::Pass { first: 0, stamp: false })
    }

    /// What Kubernetes deletes.
    fn clean_up(&self, state: &State) -> Vec<Event> {
        let mut events = Vec::new();
        self.system_events(state, &mut events);
        events.retain(|event| matches!(event, Event::Collect(_) | Event::Sweep(_)));
        events
    }
}
