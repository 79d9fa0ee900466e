//! Searches, and the story of what they find.

use std::{env, fmt, fmt::Write as _, fs};

use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model as _, Path, UniformChooser};
use tokio::time::Instant;

use crate::{end, events::Event, server::Story, setup::Setup, text::describe, world::State};

/// What a search came to.
#[derive(Debug)]
pub(crate) struct Found {
    states: usize,
    reach: Reach,
    depth: usize,
    seconds: f64,
    broken: Option<(&'static str, String)>,
}

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All states.
    All,
    /// All states that so many events lead to. With one thread: two would not keep the order.
    Depth(usize),
    /// Until something is found that must not be, the shortest way to it.
    Shortest,
    /// Random walks from this seed, until they have come by so many states.
    Walks { seed: u64, states: usize },
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all states"),
            Self::Depth(events) => write!(f, "all states within {} events", events - 1),
            Self::Shortest => f.write_str("until the first find"),
            Self::Walks { seed, .. } => write!(f, "random walks, seed {seed}"),
        }
    }
}

/// Whether there is time for all that takes long, and the first seed for what is random.
pub(crate) fn soak() -> Option<u64> {
    let seed = env::var_os("METAL3_GUARD_SOAK")?;
    Some(seed.to_str().unwrap().parse().unwrap())
}

pub(crate) fn search(setup: Setup, reach: Reach) -> Found {
    let builder = setup.checker().finish_when(HasDiscoveries::AnyFailures);
    match reach {
        Reach::All => outcome(reach, builder.threads(2), CheckerBuilder::spawn_bfs),
        Reach::Shortest => outcome(reach, builder, CheckerBuilder::spawn_bfs),
        Reach::Depth(depth) => {
            outcome(reach, builder.target_max_depth(depth), CheckerBuilder::spawn_bfs)
        }
        Reach::Walks { seed, states } => {
            let builder = builder.target_state_count(states);
            outcome(reach, builder, |it| it.spawn_simulation(seed, UniformChooser))
        }
    }
}

fn outcome<C: Checker<Setup>>(
    reach: Reach,
    builder: CheckerBuilder<Setup>,
    spawn: impl FnOnce(CheckerBuilder<Setup>) -> C,
) -> Found {
    let begun = Instant::now();
    let checker = spawn(builder).join();
    let broken = checker.discoveries().into_iter().next();
    Found {
        states: checker.unique_state_count(),
        reach,
        depth: checker.max_depth(),
        seconds: begun.elapsed().as_secs_f64(),
        broken: broken.map(|(name, path)| (name, story(checker.model(), path))),
    }
}

impl Found {
    /// Nothing that must not be was found.
    #[track_caller]
    pub(crate) fn assert_holds(&self, title: &str) {
        let Self { states, reach, depth, seconds, broken } = self;
        let memory = peak_memory();
        println!("{title}: {reach}: {states}, {depth} deep, {seconds:.1} s{memory}");
        if let Some((property, story)) = broken {
            panic!("{title}, {reach}: it does not hold that {property}:\n{story}");
        }
    }

    /// A property was found broken; how.
    #[track_caller]
    pub(crate) fn assert_breaks(self, title: &str, wanted: &str) -> String {
        let Self { states, reach: _, depth, seconds, broken } = self;
        let Some((property, story)) = broken else {
            panic!("{title}: {states} states, {depth} deep, and nothing found against: {wanted}");
        };
        println!(
            "{title}, after {states} states in {seconds:.1} s: not always {property}:\n{story}"
        );
        assert_eq!(property, wanted, "{title}");
        story
    }
}

/// The most memory that all searches of this process have taken, where the system tells it.
fn peak_memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or_else(String::new, |it| format!(", {} at most so far", it.trim()))
}

/// What happens on a path, in words, and how it ends when nobody does anything more.
pub(crate) fn story(setup: &Setup, path: Path<State, Event>) -> String {
    let steps = path.into_vec();
    let (mut state, _) = steps[0];
    let mut text = String::new();
    let mut number = 0;
    let mut tell = |state: &mut State, event: Event, text: &mut String| {
        let run = setup.happen(state, event, Some(Story::default()));
        *state = run.state;
        number += 1;
        writeln!(text, "{number:3}. {}", run.story.unwrap_or_default()).unwrap();
    };
    for (_, event) in steps {
        if let Some(event) = event {
            tell(&mut state, event, &mut text);
        }
    }
    writeln!(text, "     people stop; there is {}", describe(&state.live)).unwrap();
    for event in end::events(setup, &state) {
        tell(&mut state, event, &mut text);
    }
    writeln!(text, "     in the end there is {}", describe(&state.live)).unwrap();
    text
}
