//! A random walk: what users do with two namespaces, one step after the other. It follows from its
//! seed alone; what comes of a step (done, refused, nothing there) does not change the next one.

use std::time::Duration;

use crate::{
    random::Random,
    space,
    support::{Behaviour, capm3::Release},
};

/// The templates that steps choose from, in each namespace.
pub(crate) const TEMPLATES: [&str; 2] = ["workers", "masters"];
/// The machines of each namespace. The names differ, as those of two clusters do.
pub(crate) const MACHINES: [[&str; 5]; 2] =
    [["a-0", "a-1", "a-2", "a-3", "a-4"], ["b-0", "b-1", "b-2", "b-3", "b-4"]];
/// The resources that are deleted as a whole.
const COLLECTIONS: [&str; 4] = [space::MACHINES, space::CLAIMS, space::DATAS, space::TEMPLATES];
/// Steps of a walk.
const STEPS: usize = 26;

/// A whole walk.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// How CAPM3 behaves in each of the two namespaces.
    pub(crate) capm3: [Behaviour; 2],
    /// The steps, each with the pause before it.
    pub(crate) steps: Vec<(Duration, Step)>,
}

/// One of the two namespaces. The second one stands for another cluster, too.
pub(crate) type Place = usize;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Cluster(Place),
    Template {
        at: Place,
        name: &'static str,
        finalizer: bool,
        owned: bool,
        addresses: bool,
    },
    MachineSet {
        at: Place,
        template: &'static str,
        first: usize,
        count: usize,
        owned: bool,
    },
    ScaleDown {
        at: Place,
        first: usize,
        count: usize,
        how: Propagation,
    },
    Delete {
        at: Place,
        what: What,
        how: Propagation,
    },
    ForceDelete {
        at: Place,
        template: &'static str,
    },
    DeleteAll {
        at: Place,
        resource: &'static str,
    },
    DeleteNamespace {
        at: Place,
    },
    Pause {
        at: Place,
        what: What,
        on: bool,
    },
    /// A finalizer that is nobody's here, until the end.
    Hold {
        at: Place,
        what: What,
    },
    /// Everything in the namespace, to the other one, as `clusterctl move` does.
    Move {
        from: Place,
        order: Order,
        stale_controller: bool,
    },
    /// A controller writes the finalizers of a copy that it read that long ago.
    StaleWrite {
        at: Place,
        what: What,
        age: Duration,
    },
    /// A machine is pointed at the other template.
    Retarget {
        at: Place,
        machine: &'static str,
        template: &'static str,
    },
    Capm3 {
        at: Place,
        what: Managers,
    },
    KillGuard,
    /// Long enough for every step of the guard, in case that CAPM3's managers do not run.
    Wait(Duration),
}

/// An object that may be there or not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Cluster,
    Template(&'static str),
    Machine(&'static str),
    Claim(&'static str),
    Data(&'static str, usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// The order in which clusterctl ends an object on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Up to 1.9.4: mark, strip, delete.
    Older,
    /// Since 1.9.5: mark, delete, strip.
    Newer,
}

/// What happens to CAPM3's managers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Managers {
    Stop,
    Start,
    Restart,
    Resync,
    /// They hear of changes to this resource that much later.
    Lag(&'static str, Duration),
}

impl Walk {
    /// The walk of a seed. In v1beta1 CAPM3 may be of the release of the public report.
    pub(crate) fn new(seed: u64, version: &str) -> Self {
        let mut random = Random::new(seed);
        let capm3 = [0, 1].map(|_| behaviour(&mut random, version));
        // Something to walk about in.
        let mut steps = vec![
            Step::Cluster(0),
            template(&mut random, 0, TEMPLATES[0]),
            machine_set(&mut random, 0, TEMPLATES[0]),
            Step::Cluster(1),
        ];
        // Where most of it is.
        let mut home = 0;
        for number in 0..STEPS {
            let at = if random.chance(70) { home } else { 1 - home };
            let step = match step(&mut random, at) {
                // So early it would leave nothing to walk about in.
                Step::DeleteNamespace { at } if number < STEPS * 2 / 3 => Step::Cluster(at),
                step => step,
            };
            if let Step::Move { from, .. } = step {
                home = 1 - from;
            }
            steps.push(step);
        }
        let steps = steps.into_iter().map(|step| (pause(&mut random), step)).collect();
        Self { capm3, steps }
    }
}

fn behaviour(random: &mut Random, version: &str) -> Behaviour {
    let release = match version {
        "v1beta1" if random.chance(60) => Release::V1_8_1,
        _ => Release::Later,
    };
    Behaviour {
        release,
        requeue: random.pause(1000, 3000),
        deprovision: random.pause(0, 2000),
        hosts: true,
    }
}

/// Often too short for CAPM3 to finish anything, sometimes long enough.
fn pause(random: &mut Random) -> Duration {
    match random.below(10) {
        0..=4 => random.pause(0, 150),
        5..=8 => random.pause(150, 900),
        _ => random.pause(900, 2500),
    }
}

fn step(random: &mut Random, at: Place) -> Step {
    let name = random.pick(&TEMPLATES);
    match random.below(100) {
        0..=8 => template(random, at, name),
        9..=22 => machine_set(random, at, name),
        23..=24 => Step::Cluster(at),
        25..=33 => Step::ScaleDown {
            at,
            first: random.below(5),
            count: 1 + random.below(4),
            how: propagation(random),
        },
        34..=45 => Step::Delete { at, what: What::Template(name), how: propagation(random) },
        46..=48 => Step::ForceDelete { at, template: name },
        49..=57 => Step::Delete { at, what: part(random, at), how: propagation(random) },
        58..=61 => Step::DeleteAll { at, resource: random.pick(&COLLECTIONS) },
        62..=71 => Step::Pause { at, what: anything(random, at), on: random.chance(60) },
        72..=74 => Step::Hold { at, what: anything(random, at) },
        75..=78 => Step::Move {
            from: at,
            order: random.pick(&[Order::Older, Order::Newer]),
            stale_controller: random.chance(50),
        },
        79..=84 => {
            Step::StaleWrite { at, what: anything(random, at), age: random.pause(200, 1500) }
        }
        85..=86 => Step::Retarget { at, machine: random.pick(&MACHINES[at]), template: name },
        87..=94 => Step::Capm3 { at, what: managers(random) },
        95 => Step::KillGuard,
        96..=97 => Step::Wait(random.pause(8000, 11_000)),
        _ => Step::DeleteNamespace { at },
    }
}

fn template(random: &mut Random, at: Place, name: &'static str) -> Step {
    Step::Template {
        at,
        name,
        finalizer: random.chance(60),
        owned: random.chance(40),
        addresses: random.chance(40),
    }
}

fn machine_set(random: &mut Random, at: Place, template: &'static str) -> Step {
    let (first, count) = (random.below(4), 1 + random.below(4));
    Step::MachineSet { at, template, first, count, owned: random.chance(40) }
}

fn managers(random: &mut Random) -> Managers {
    match random.below(10) {
        0..=3 => Managers::Stop,
        4 => Managers::Start,
        5..=6 => Managers::Restart,
        7 => Managers::Resync,
        _ => Managers::Lag(random.pick(&COLLECTIONS), random.pause(300, 3000)),
    }
}

fn propagation(random: &mut Random) -> Propagation {
    match random.below(10) {
        0..=5 => Propagation::Background,
        6..=7 => Propagation::Foreground,
        _ => Propagation::Orphan,
    }
}

/// What a person deletes by hand and should not.
fn part(random: &mut Random, at: Place) -> What {
    match random.below(10) {
        0..=3 => What::Claim(random.pick(&MACHINES[at])),
        4..=6 => What::Data(random.pick(&TEMPLATES), random.below(4)),
        7..=8 => What::Machine(random.pick(&MACHINES[at])),
        _ => What::Cluster,
    }
}

fn anything(random: &mut Random, at: Place) -> What {
    match random.below(10) {
        0..=2 => What::Template(random.pick(&TEMPLATES)),
        3..=5 => part(random, at),
        6..=7 => What::Machine(random.pick(&MACHINES[at])),
        _ => What::Cluster,
    }
}
