//! One walk from its first step to the end of both namespaces.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    guards::Guards,
    person::{self, Rescue},
    random::Random,
    space::Space,
    support::{Capm3, ControlPlane, PATIENCE, capm3::Point},
    user::{self, Came, finalizers, name},
    walk::{Managers, Step, Walk},
};

/// How long after the last change a person asks what is going on. Longer than the guard waits before
/// any of its own steps.
const ASKS: Duration = Duration::from_secs(12);

/// How long after the last change a person takes the last resort. The namespace controller's own
/// pauses grow up to a minute.
const FORCE: Duration = Duration::from_secs(75);

/// How long after its deletion a namespace must be gone.
const GONE: Duration = Duration::from_secs(PATIENCE.as_secs() + 60);

/// What sequences run in.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) plane: Arc<ControlPlane>,
    pub(crate) guards: Arc<Guards>,
    pub(crate) version: &'static str,
}

/// How a sequence ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) seed: u64,
    pub(crate) walk: Walk,
    /// How many steps came to what.
    pub(crate) came: BTreeMap<Came, usize>,
    /// What was done when, and what came of it.
    pub(crate) journal: Vec<String>,
    /// What a person had to help with. Each must have its reason in the audit log.
    pub(crate) rescues: Vec<Rescue>,
    /// Why it failed, if it did.
    pub(crate) failure: Option<String>,
    /// From the deletion of the namespaces to their end.
    pub(crate) ending: Duration,
}

/// The prefix of the namespaces of a seed.
pub(crate) fn prefix(seed: u64) -> String {
    format!("seed-{seed}-")
}

/// Runs a sequence.
pub(crate) async fn run(world: World, seed: u64) -> Ran {
    let walk = Walk::new(seed, world.version);
    let hint = |place: &str| format!("{}{place}", prefix(seed));
    let spaces = [
        Space::new(&world.plane, &hint("a"), world.version).await,
        Space::new(&world.plane, &hint("b"), world.version).await,
    ];
    let mut managers = Vec::new();
    for (space, behaviour) in spaces.iter().zip(walk.capm3) {
        let capm3 = Capm3::start(&world.plane, space.ns(), world.version, behaviour).await;
        managers.push((capm3, true));
    }
    let mut ran = Ran {
        seed,
        came: BTreeMap::new(),
        journal: Vec::new(),
        rescues: Vec::new(),
        failure: None,
        ending: Duration::ZERO,
        walk,
    };
    let mut random = Random::new(seed ^ 0x0073_7465_7073);
    for (pause, step) in ran.walk.steps.clone() {
        sleep(pause).await;
        let began = jiff::Timestamp::now().strftime("%T.%3f");
        let mut why = None;
        match step {
            Step::KillGuard => world.guards.kill_one(),
            Step::Wait(pause) => sleep(pause).await,
            Step::Capm3 { at, what } => manage(&mut managers[at], what).await,
            _ => {
                let came;
                (came, why) = user::take(&spaces, &mut random, step).await;
                *ran.came.entry(came).or_default() += 1;
            }
        }
        let why = why.map_or_else(String::new, |why| format!(": {} {}", why.code, why.message));
        ran.journal.push(format!("{began} {step:?}{why}"));
    }
    for manager in &mut managers {
        manage(manager, Managers::Start).await;
    }
    for space in &spaces {
        let mut tries = 0;
        while let Err(refused) = user::lift_everything(space).await {
            tries += 1;
            if tries == 20 {
                ran.failure = Some(format!("what users had paused stays so: {refused:?}"));
                return ran;
            }
            sleep(Duration::from_millis(300)).await;
        }
    }
    let began = Instant::now();
    let (mut ends, rescues) = {
        let [one, other] = &spaces;
        let (one, other) = tokio::join!(end(&world, one), end(&world, other));
        ([one.0, other.0], [one.1, other.1].concat())
    };
    ran.ending = began.elapsed();
    ran.rescues = rescues;
    for ((end, space), (capm3, _)) in ends.iter_mut().zip(&spaces).zip(&managers) {
        if let Err(left) = end {
            let journal = capm3.journal().join("\n    ");
            let failure = format!("{} is not gone: {left}\n    {journal}", space.ns());
            ran.failure.get_or_insert_default().push_str(&failure);
        }
    }
    ran
}

async fn manage((capm3, running): &mut (Capm3, bool), what: Managers) {
    match what {
        Managers::Stop => {
            capm3.stop();
            *running = false;
        }
        Managers::Start if *running => {}
        Managers::Start | Managers::Restart => {
            capm3.restart().await;
            *running = true;
        }
        Managers::Resync => capm3.resync(),
        Managers::Lag(resource, lag) => {
            let hold = capm3.hold(Point::Stale(resource));
            tokio::spawn(async move {
                sleep(lag).await;
                drop(hold);
            });
        }
    }
}

/// Deletes a namespace and waits for its end; the error says what is left.
async fn end(world: &World, space: &Space) -> (Result<(), String>, Vec<Rescue>) {
    let began = Instant::now();
    let (mut before, mut since) = (Vec::new(), began);
    let (mut asked, mut rescues) = (began, Vec::new());
    let mut deleted = false;
    loop {
        // An answer may be lost, the request not.
        deleted = deleted || space.delete_namespace().await.is_ok();
        if deleted && space.is_gone().await {
            return (Ok(()), rescues);
        }
        let left = person::left(space).await;
        let now: Vec<_> = left.iter().map(|(resource, it)| line(resource, it)).collect();
        if now != before {
            (before, since, asked) = (now, Instant::now(), Instant::now());
        }
        if began.elapsed() > GONE {
            return (Err(before.join(", ")), rescues);
        }
        if asked.elapsed() > ASKS {
            rescues.extend(person::follow_advice(&world.plane, space).await);
            asked = Instant::now();
        }
        if since.elapsed() > FORCE {
            rescues.extend(person::free_by_force(space, &left).await);
            since = Instant::now();
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// What counts as a change; a wake-up does not.
fn line(resource: &str, object: &Value) -> String {
    let metadata = &object["metadata"];
    let [uid, deleted] = ["uid", "deletionTimestamp"].map(|key| metadata[key].to_string());
    format!("{resource}/{} {uid} {deleted} {:?}", name(object), finalizers(object))
}
