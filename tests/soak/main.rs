//! Random walks through two namespaces each: users create, delete, move and pause in any order,
//! CAPM3's managers and the guards stop and start. When the users are done, both namespaces must go,
//! and the API server's audit log must show that the guard did nothing that it never may.
//!
//! A walk follows from its number. `make test` walks a few, `make soak` the rest of 200;
//! `METAL3_GUARD_SOAK_SEED=17` walks number 17 again, `METAL3_GUARD_SOAK_SEED=11-60` these.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a walk that goes wrong fails by panicking"
)]

mod audit;
mod checks;
mod clusterctl;
mod guards;
mod lines;
mod person;
mod random;
mod rules;
mod sequence;
mod space;
#[path = "../support/mod.rs"]
mod support;
mod user;
mod walk;

use std::{
    collections::BTreeMap, fmt::Write as _, io::Write as _, ops::RangeInclusive, path::Path,
    sync::Arc,
};

use http::Method;
use serde_json::{Value, json};
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Duration, Instant},
};

use self::{
    audit::Audit,
    guards::Guards,
    rules::Violation,
    sequence::{Ran, World, prefix},
    space::{Space, TEMPLATES},
    support::{ControlPlane, eventually},
};

/// The walks of every run, and those of `make soak`.
const FEW: RangeInclusive<u64> = 1..=10;
const REST: RangeInclusive<u64> = 11..=200;

/// Walks side by side in each of the two control planes.
const SIDE_BY_SIDE: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_walks_end_with_nothing_left_and_nothing_lost() {
    let seeds = seeds();
    let (v1beta1, v1beta2): (Vec<_>, Vec<_>) =
        seeds.partition(|seed| version_of(*seed) == "v1beta1");
    // Most of the time is spent waiting.
    let (one, other) = tokio::join!(walk_all("v1beta1", &v1beta1), walk_all("v1beta2", &v1beta2));
    // With both still there: what ends by a panic leaves its logs.
    let failures = [&one, &other].into_iter().flatten().map(|it| it.1.join("\n"));
    let failures: String = failures.collect();
    assert!(failures.is_empty(), "{failures}");
}

/// The walks to make.
fn seeds() -> RangeInclusive<u64> {
    let setting = |name: &str| std::env::var_os(name).map(|it| it.to_string_lossy().into_owned());
    if let Some(wanted) = setting("METAL3_GUARD_SOAK_SEED") {
        let (first, last) = wanted.split_once('-').unwrap_or((&wanted, &wanted));
        return first.parse().unwrap()..=last.parse().unwrap();
    }
    if setting("METAL3_GUARD_SOAK").is_some() { REST } else { FEW }
}

/// Most in the version of the public report.
const fn version_of(seed: u64) -> &'static str {
    if seed.is_multiple_of(3) { "v1beta2" } else { "v1beta1" }
}

/// Walks these in a control plane of their own, and gives it with all that went wrong in it.
async fn walk_all(
    version: &'static str,
    seeds: &[u64],
) -> Option<(Arc<ControlPlane>, Vec<String>)> {
    if seeds.is_empty() {
        return None;
    }
    let began = Instant::now();
    let plane = Arc::new(ControlPlane::start_audited(support::Audit::Contents).await);
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/crds");
    for file in [format!("{version}.yaml"), "others.yaml".into()] {
        plane.install_crds(&crds.join(file)).await;
    }
    plane.restart_controller_manager().await;
    let guards = Arc::new(Guards::of(&plane).await.unwrap());
    let (started, has_started) = oneshot::channel();
    let running = tokio::spawn(Arc::clone(&guards).run(seeds[0], started));
    has_started.await.unwrap();
    wait_registered(&plane, version).await;

    let world = World { plane: Arc::clone(&plane), guards: Arc::clone(&guards), version };
    let began_walks = Instant::now();
    let ran = run_side_by_side(&world, seeds).await;
    let walked = began_walks.elapsed();
    guards.stop();
    running.await.unwrap();

    let rescues: Vec<_> = ran.iter().filter_map(|it| it.as_ref().ok()).collect();
    let rescues: Vec<_> = rescues.iter().flat_map(|it| it.rescues.clone()).collect();
    let audit = Audit::read(&plane.audit_log(), "seed-").unwrap();
    let lines = lines::read(&plane.folder().join("logs")).unwrap();
    let mut violations = rules::check(&audit, &rescues);
    violations.extend(lines::check(&audit, &lines, &guards.ended()));

    let mut failures = Vec::new();
    let mut came = BTreeMap::new();
    let mut longest = Duration::ZERO;
    for (ran, seed) in ran.into_iter().zip(seeds) {
        let ran = match ran {
            Ok(ran) => ran,
            Err(panic) => {
                failures.push(format!("walk {seed} in {version}: {panic}"));
                continue;
            }
        };
        for (how, times) in &ran.came {
            *came.entry(*how).or_insert(0) += times;
        }
        longest = longest.max(ran.ending);
        failures.extend(failure(&ran, version, &violations));
    }
    violations.retain(|it| seeds.iter().all(|seed| !it.namespace.starts_with(&prefix(*seed))));
    failures.extend(violations.iter().map(|it| format!("{}: {}", it.namespace, it.what)));
    let counts = lines::count(&lines);
    say(&format!(
        "{} walks in {version}: {walked:.0?} of {:.0?}, the longest end {longest:.0?}; steps \
         {came:?}; {} writes, of the guard {counts:?}; {} guards ended; helped by hand: {}",
        seeds.len(),
        began.elapsed(),
        audit.events.len(),
        guards.ended().len(),
        rescues.len(),
    ));
    for rescue in &rescues {
        say(&format!("  {rescue}: {}", rules::excuse(&audit, rescue).unwrap_or("no excuse")));
    }
    if seeds.len() > 2 && !counts.contains_key("Wake done") {
        failures.push(format!("the guard had nothing to do in {} walks: {counts:?}", seeds.len()));
    }
    Some((plane, failures))
}

/// What went wrong in a walk, with all that it did.
fn failure(ran: &Ran, version: &str, violations: &[Violation]) -> Option<String> {
    let prefix = prefix(ran.seed);
    let violations: Vec<_> = violations
        .iter()
        .filter(|it| it.namespace.starts_with(&prefix))
        .map(|it| format!("{}: {}", it.namespace, it.what))
        .chain(ran.failure.clone())
        .collect();
    if violations.is_empty() {
        return None;
    }
    let mut text = format!(
        "walk {seed} in {version} went wrong; METAL3_GUARD_SOAK_SEED={seed} walks it again\n",
        seed = ran.seed
    );
    for wrong in violations {
        writeln!(text, "  {wrong}").unwrap();
    }
    writeln!(text, "  CAPM3: {:?}", ran.walk.capm3).unwrap();
    for line in &ran.journal {
        writeln!(text, "    {line}").unwrap();
    }
    for rescue in &ran.rescues {
        writeln!(text, "  helped by hand: {rescue}").unwrap();
    }
    Some(text)
}

/// The results in the order of the seeds; a panic is an error.
async fn run_side_by_side(world: &World, seeds: &[u64]) -> Vec<Result<Ran, String>> {
    let mut running = JoinSet::new();
    let mut results = BTreeMap::new();
    let mut ids = BTreeMap::new();
    let mut waiting = seeds.iter().copied();
    loop {
        while running.len() < SIDE_BY_SIDE
            && let Some(seed) = waiting.next()
        {
            let task = running.spawn(sequence::run(world.clone(), seed));
            ids.insert(task.id(), seed);
        }
        let Some(ended) = running.join_next_with_id().await else { break };
        let (id, result) = match ended {
            Ok((id, ran)) => (id, Ok(ran)),
            Err(error) => (error.id(), Err(error.to_string())),
        };
        results.insert(ids[&id], result);
    }
    results.into_values().collect()
}

/// Waits until the API server calls the guard: for a deletion that is refused on sight.
async fn wait_registered(plane: &ControlPlane, version: &'static str) {
    let space = Space::new(plane, "registered", version).await;
    let mut probe = space.template("probe", false);
    probe["metadata"]["annotations"] = json!({"metal3-guard.io/force-delete": ""});
    space.create(TEMPLATES, &probe).await.unwrap();
    let url = format!("{}?dryRun=All", space.url(TEMPLATES, "probe"));
    eventually("the API server to call the guard", async || {
        let refused = space.send(Method::DELETE, &url, &Value::Null).await.err()?;
        (refused.code == 403).then_some(())
    })
    .await;
}

/// Past the capture of the test harness.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").ok();
}
