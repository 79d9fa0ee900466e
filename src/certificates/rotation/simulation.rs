//! Several replicas and API servers, each slow in its own way, crashes at any point of a look, and
//! whatever order it all comes in: what a replica serves is verified by what every API server
//! believes, at every moment.
//!
//! Two bounds hold, as in a cluster: an API server hears of a change within [`LAG`], a replica that
//! lives finishes a look within [`POLL`]; both are less than the dwell.

use proptest::{
    prelude::*,
    test_runner::{Config, TestError, TestRunner},
};

use super::*;

const LAG: u64 = 4;
const POLL: u64 = 3;
const DWELL: u64 = 12;
const LEAF_LIFETIME: i64 = 90;
const CA_LIFETIME: i64 = 500;
const REPLICAS: usize = 3;
const SERVERS: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A second passes.
    Tick,
    /// A replica makes one request of its look.
    Step(usize),
    /// A replica ends where it is; a new one starts in its place.
    Crash(usize),
    /// An API server hears of the next change of a configuration.
    Hear(usize, usize),
    /// A person asks for something.
    Ask(Wish),
    /// A person deletes the Secret.
    Delete,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Tick),
        20 => (0..REPLICAS).prop_map(Event::Step),
        1 => (0..REPLICAS).prop_map(Event::Crash),
        4 => (0..SERVERS, 0..2_usize).prop_map(|(server, at)| Event::Hear(server, at)),
        1 => Just(Event::Ask(Wish::Authority)),
        1 => Just(Event::Ask(Wish::Certificate)),
        1 => Just(Event::Delete),
    ]
}

/// A certificate's text is `[A1]` for an authority, and `[A1]x7` for one that it has signed.
fn issuer(pem: &str) -> &str {
    pem.split_inclusive(']').next().unwrap()
}

fn trusts(bundle: &str, pem: &str) -> bool {
    bundle.contains(issuer(pem))
}

struct World {
    rules: Rules,
    seconds: u64,
    /// Makes versions and names unique.
    number: u64,
    secret: Option<(u64, State, Option<Wish>)>,
    configurations: [Versions; 2],
    replicas: [Replica; REPLICAS],
    servers: [[usize; 2]; SERVERS],
    switches: usize,
}

/// All versions of a configuration's bundle, with their times.
struct Versions(Vec<(u64, String)>);

impl Versions {
    fn version(&self) -> usize {
        self.0.len() - 1
    }

    fn bundle(&self) -> &str {
        &self.0[self.version()].1
    }
}

#[derive(Default)]
struct Replica {
    remembered: Option<State>,
    served: Option<String>,
    steady: Steady,
    looked: u64,
    progress: Progress,
}

/// How far a look has come, with what it has read.
#[derive(Default)]
enum Progress {
    #[default]
    Idle,
    One(usize, String),
    Both([(usize, String); 2]),
    Decided {
        read: Option<(u64, Box<State>)>,
        versions: [usize; 2],
        step: Step,
    },
    Publish {
        versions: [usize; 2],
        bundle: String,
        at: usize,
    },
}

impl World {
    fn new(dwell: u64) -> Self {
        let names = BTreeSet::from(["guard.svc".to_owned()]);
        Self {
            rules: Rules { names, dwell: Duration::from_secs(dwell) },
            seconds: 1,
            number: 0,
            secret: None,
            configurations: [(); 2].map(|()| Versions(vec![(0, String::new())])),
            replicas: Default::default(),
            servers: Default::default(),
            switches: 0,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(self.seconds.try_into().unwrap())
    }

    fn certificate(&mut self, pem: String, lifetime: i64) -> Certificate {
        let starts = self.now();
        let ends = starts + jiff::SignedDuration::from_secs(lifetime);
        Certificate { pem: pem.into(), starts, ends }
    }

    fn authority(&mut self) -> Authority {
        self.number += 1;
        let certificate = self.certificate(format!("[A{}]", self.number), CA_LIFETIME);
        Authority { certificate, key: PrivateKey::new("") }
    }

    fn leaf(&mut self, by: &Authority) -> Leaf {
        self.number += 1;
        let pem = format!("{}x{}", by.certificate.pem, self.number);
        let mut certificate = self.certificate(pem, LEAF_LIFETIME);
        certificate.ends = certificate.ends.min(by.certificate.ends);
        Leaf { certificate, key: PrivateKey::new(""), names: self.rules.names.clone() }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Tick => self.tick(),
            Event::Step(replica) => self.step(replica),
            Event::Crash(replica) => {
                // Else nobody might remember what was in it.
                if self.secret.is_some() {
                    let looked = self.seconds;
                    self.replicas[replica] = Replica { looked, ..Replica::default() };
                }
            }
            Event::Hear(server, at) => {
                let known = &mut self.servers[server][at];
                *known = (*known + 1).min(self.configurations[at].version());
            }
            Event::Ask(wish) => {
                if let Some((version, _, asked)) = &mut self.secret {
                    self.number += 1;
                    *version = self.number;
                    *asked = Some(wish);
                }
            }
            Event::Delete => {
                if self.replicas.iter().all(|it| it.remembered.is_some()) {
                    self.secret = None;
                }
            }
        }
    }

    fn tick(&mut self) {
        self.seconds += 1;
        for replica in 0..REPLICAS {
            while self.seconds - self.replicas[replica].looked > POLL {
                self.step(replica);
            }
        }
        for server in &mut self.servers {
            for (known, versions) in server.iter_mut().zip(&self.configurations) {
                let late = |(time, _): &(u64, String)| time + LAG <= self.seconds;
                while versions.0.get(*known + 1).is_some_and(late) {
                    *known += 1;
                }
            }
        }
    }

    /// One request of a replica's look, in the order of the keeper.
    fn step(&mut self, number: usize) {
        let progress = std::mem::take(&mut self.replicas[number].progress);
        let read = |it: &Versions| (it.version(), it.bundle().to_owned());
        let next = match progress {
            Progress::Idle => {
                let (version, bundle) = read(&self.configurations[0]);
                Progress::One(version, bundle)
            }
            Progress::One(version, bundle) => {
                Progress::Both([(version, bundle), read(&self.configurations[1])])
            }
            Progress::Both(configurations) => self.look_at_secret(number, configurations),
            Progress::Decided { read, versions, step } => {
                let done = step.change.is_some_and(|change| {
                    self.write(number, change, read.as_ref());
                    true
                });
                match read {
                    Some((_, state)) if step.publish && !done => {
                        Progress::Publish { versions, bundle: state.bundle(), at: 0 }
                    }
                    _ => Progress::Idle,
                }
            }
            Progress::Publish { versions, bundle, at } => {
                let configuration = &mut self.configurations[at];
                // Only what is still as it was read, and different.
                if versions[at] == configuration.version() && configuration.bundle() != bundle {
                    configuration.0.push((self.seconds, bundle.clone()));
                }
                match at {
                    0 => Progress::Publish { versions, bundle, at: 1 },
                    _ => Progress::Idle,
                }
            }
        };
        let replica = &mut self.replicas[number];
        if matches!(next, Progress::Idle) {
            replica.looked = self.seconds;
        }
        replica.progress = next;
    }

    fn look_at_secret(&mut self, number: usize, found: [(usize, String); 2]) -> Progress {
        let (now, clock) = (self.now(), Duration::from_secs(self.seconds));
        let replica = &mut self.replicas[number];
        let trusted = |pem: &str| found.iter().all(|(_, bundle)| trusts(bundle, pem));
        let stored = self.secret.as_ref();
        let mut in_order = false;
        let mut steady = Duration::ZERO;
        if let Some((_, state, _)) = stored {
            let pem = &*state.leaf.certificate.pem;
            if should_serve(trusted(pem), replica.served.as_deref().is_some_and(trusted)) {
                replica.served = Some(pem.to_owned());
            }
            let bundle = state.bundle();
            in_order = found.iter().all(|(_, it)| *it == bundle);
            steady = replica.steady.look(state, in_order, clock, Duration::from_secs(POLL * 3));
        }
        let remembered = replica.remembered.as_ref();
        let seen = Seen {
            stored: stored.map_or(Stored::Nothing, |(_, it, wish)| Stored::State(it, *wish)),
            remembered: remembered.filter(|it| {
                let pem = &*it.leaf.certificate.pem;
                found.iter().all(|(_, bundle)| bundle.is_empty() || trusts(bundle, pem))
            }),
            in_order,
            steady,
        };
        let step = decide(&seen, &self.rules, now);
        let read = stored.map(|(version, state, _)| (*version, Box::new(state.clone())));
        if let Some((_, state)) = &read {
            replica.remembered = Some(State::clone(state));
        }
        Progress::Decided { read, versions: found.map(|(version, _)| version), step }
    }

    /// Writes a change into the Secret, unless somebody has written since it was read.
    fn write(&mut self, number: usize, change: Change, read: Option<&(u64, Box<State>)>) {
        let version = read.map(|(version, _)| *version);
        let (current, asked) = match &self.secret {
            Some((version, _, asked)) => (Some(*version), *asked),
            None => (None, None),
        };
        if version != current {
            return;
        }
        let state = read.map(|(_, state)| State::clone(state));
        let new = match (change, state) {
            (Change::Make, _) => {
                let by = self.authority();
                let leaf = self.leaf(&by);
                State::new(by, leaf, Vec::new())
            }
            (Change::Restore, _) => self.replicas[number].remembered.clone().unwrap(),
            (Change::Renew(_), Some(state)) => {
                let leaf = self.leaf(&state.signing);
                state.renewed(leaf)
            }
            (Change::Introduce(_), Some(state)) => state.introduced(self.authority()),
            (Change::Switch, Some(state)) => {
                self.switches += 1;
                let leaf = self.leaf(state.next.as_ref().unwrap());
                state.switched(leaf)
            }
            (Change::Settle, Some(state)) => state.settled(),
            (change, None) => panic!("{change:?} of nothing"),
        };
        let granted = match change {
            Change::Renew(_) => asked == Some(Wish::Certificate),
            Change::Introduce(_) => asked == Some(Wish::Authority),
            _ => false,
        };
        self.number += 1;
        self.secret = Some((self.number, new, asked.filter(|_| !granted)));
    }

    /// What is wrong now.
    fn broken(&self) -> Option<String> {
        for (number, replica) in self.replicas.iter().enumerate() {
            let Some(served) = &replica.served else { continue };
            for (server, known) in self.servers.iter().enumerate() {
                for (at, version) in known.iter().enumerate() {
                    let (_, bundle) = &self.configurations[at].0[*version];
                    // Before the first publication nobody can call.
                    if !bundle.is_empty() && !trusts(bundle, served) {
                        return Some(format!(
                            "after {} s replica {number} serves {served}, and API server {server} \
                             trusts {bundle} in configuration {at}",
                            self.seconds
                        ));
                    }
                }
            }
        }
        None
    }

    fn is_quiet(&self) -> bool {
        let Some((_, state, None)) = &self.secret else { return false };
        let (bundle, leaf) = (state.bundle(), &*state.leaf.certificate.pem);
        let told = |server: &[usize; 2]| {
            server.iter().zip(&self.configurations).all(|(it, all)| all.0[*it].1 == bundle)
        };
        state.phase() == Phase::Settled
            && self.servers.iter().all(told)
            && self.replicas.iter().all(|it| it.served.as_deref() == Some(leaf))
    }
}

/// Lets all of it happen, then waits until nothing is left to do.
fn run(dwell: u64, events: &[Event]) -> Result<World, String> {
    let mut world = World::new(dwell);
    for event in events {
        world.happens(*event);
        if let Some(broken) = world.broken() {
            return Err(broken);
        }
    }
    for _ in 0..DWELL * 8 {
        if world.is_quiet() {
            return Ok(world);
        }
        world.tick();
        if let Some(broken) = world.broken() {
            return Err(broken);
        }
    }
    Err(format!("no end to it: {:?}", world.secret))
}

fn cases(cases: u32) -> Config {
    // Nothing is written beside the sources.
    Config { cases, failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(cases(128))]
    #[test]
    fn what_is_served_is_always_verified(events in prop::collection::vec(event(), 0..600)) {
        let world = run(DWELL, &events).map_err(TestCaseError::fail)?;
        let asked = events.iter().any(|it| matches!(it, Event::Ask(Wish::Authority)));
        prop_assert!(asked || world.switches <= 1, "{} switches unasked", world.switches);
    }
}

/// The model sees what the dwell is for.
#[test]
fn without_a_dwell_calls_break() {
    let config = Config { max_shrink_iters: 0, ..cases(2000) };
    let found = TestRunner::new(config).run(&prop::collection::vec(event(), 600), |events| {
        run(0, &events).map(drop).map_err(TestCaseError::fail)
    });
    let Err(TestError::Fail(why, _)) = found else { panic!("nothing broke: {found:?}") };
    assert!(why.to_string().contains("serves"), "{why}");
}

#[test]
fn authorities_are_replaced_before_they_end() {
    let mut world = World::new(DWELL);
    let mut authorities = BTreeSet::new();
    for _ in 0..3 * CA_LIFETIME {
        world.tick();
        assert_eq!(world.broken(), None);
        let Some((_, state, _)) = &world.secret else { continue };
        authorities.insert(state.signing.certificate.pem.clone());
        let now = world.now();
        assert!(state.leaf.certificate.ends > now && state.signing.certificate.ends > now);
    }
    // Each is in use for two thirds of its life.
    assert_eq!(authorities.len(), 5, "{authorities:?}");
    assert_eq!(world.switches, 4);
}
