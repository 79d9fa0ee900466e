//! `clusterctl move` between two control planes, with the real clusterctl and the real core manager
//! of Cluster API, and the guard in between (Cluster API #11812).
//!
//! clusterctl is far away from the cluster that it moves from: 400 ms of round trip. Up to 1.9.4 it
//! takes the finalizers off an object and then deletes it. In between, a manager that is near puts
//! its own back, and the object is left terminating on the source for ever, while clusterctl exits
//! with 0.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

mod census;
mod lab;
mod objects;
mod relay;
#[path = "../support/mod.rs"]
mod support;

use std::{env, time::Duration};

use serde_json::json;
use tokio::sync::Mutex;

use self::{
    lab::{Lab, Moved, Way},
    support::Release,
};

/// Cluster API's finalizer on a Cluster.
const CLUSTER_FINALIZER: &str = "cluster.cluster.x-k8s.io";
/// What clusterctl puts on an object that the target cluster already has.
const MARK: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";
/// The rule that refuses a finalizer on a marked object.
const RULE: &str = "finalizers.moving";
/// The objects of the cluster that is moved; the `MachineSet` has a name of its own each time.
const KINDS: [&str; 8] = [
    "Cluster",
    "KubeadmControlPlane",
    "MachineDeployment",
    "MachineSet",
    "Metal3Cluster",
    "Metal3DataTemplate",
    "Metal3MachineTemplate",
    "Metal3MachineTemplate",
];

/// Between clusterctl and the cluster that it moves from, there and back.
const FAR: Duration = Duration::from_millis(400);

/// How often a move that shows nothing is made again.
const TRIES: usize = 5;

/// Two control planes at a time are enough for a small machine.
static ONE_LAB: Mutex<()> = Mutex::const_new(());

/// The same cluster twice, in two namespaces, at the same time, through the same hooks: where the
/// guard's refusals reach nobody, and where they count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusterctl_1_9_leaves_a_cluster_behind_unless_the_guard_is_active() {
    let _one = ONE_LAB.lock().await;
    let lab = Lab::start(Release::V1_9, FAR).await;
    let mut stuck = Vec::new();
    for run in 1..=runs() {
        let (observed, guarded) =
            tokio::join!(race(&lab, Way::Observing, run), race(&lab, Way::Active, run));

        // Without the guard: clusterctl is content, the target has everything, and the Cluster will
        // never be gone.
        let left = observed.left.get("Cluster/prod").expect("the race was not lost");
        assert_eq!(left["metadata"]["finalizers"], json!([CLUSTER_FINALIZER]));
        for left in observed.left.values() {
            assert!(left["metadata"]["deletionTimestamp"].is_string(), "{left}");
            assert_eq!(left["metadata"]["annotations"], json!({MARK: ""}));
        }
        assert!(observed.held_back.iter().any(|it| it.starts_with("Cluster/prod: ")));
        assert_eq!(observed.refused, 0);
        stuck.push(observed.namespace);

        // With it: nothing is left, and it says what it refused.
        assert_eq!(guarded.held_back, [""; 0]);
        assert!(guarded.denied.iter().any(|it| it == &format!("Cluster {RULE}")));
        assert!(guarded.denied.iter().all(|it| it.ends_with(RULE)), "{:?}", guarded.denied);
        // What the mutating hook refuses does not get to the validating one.
        assert_eq!(guarded.refused, guarded.denied.len());
    }
    let logged = lab.denials(|review| review["rule"] == RULE).len();
    let counted = lab.counted(&format!(r#"verdict="deny",rule="{RULE}""#)).await;
    assert_eq!(counted, logged.to_string(), "logged and counted refusals differ");
    for namespace in stuck {
        let left = lab.left(namespace.name()).await;
        assert!(left.contains_key("Cluster/prod"), "{} healed by itself", namespace.name());
    }
}

/// The newer order is mark, delete, strip: there is nothing to refuse, and the guard is in nobody's
/// way. There is no race that needs the distance, which is for the long run only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_clusterctl_moves_as_it_does_without_the_guard() {
    let _one = ONE_LAB.lock().await;
    let distance = if runs() > 1 { FAR } else { FAR / 4 };
    let lab = Lab::start(Release::V1_14, distance).await;
    for run in 1..=runs() {
        let both = tokio::join!(lab.move_cluster(Way::Observing), lab.move_cluster(Way::Active));
        for (way, moved) in [(Way::Observing, both.0), (Way::Active, both.1)] {
            report(run, way, &moved.summary());
            nothing_is_lost(&moved);
            assert_eq!(moved.left, census::NOTHING, "{way:?}");
            assert_eq!(moved.denied, [""; 0], "{way:?}");
            assert_eq!(moved.held_back, [""; 0], "{way:?}");
        }
    }
}

/// Moves a cluster with a manager that is nearer than clusterctl. It always is, unless the machine is
/// too busy to let it run: such a move shows nothing about the race, and is made again.
async fn race(lab: &Lab, way: Way, run: usize) -> Moved {
    for _ in 0..TRIES {
        let moved = lab.move_cluster(way).await;
        nothing_is_lost(&moved);
        if way == Way::Active {
            assert_eq!(moved.left, census::NOTHING);
        }
        if moved.near {
            report(run, way, &moved.summary());
            return moved;
        }
        report(run, way, &format!("the manager had no answer in time; {}", moved.summary()));
    }
    panic!("in {TRIES} moves the manager never had an answer in time: is this machine too busy?")
}

#[expect(clippy::print_stdout, reason = "belongs to the output of the test")]
fn report(run: usize, way: Way, moved: &str) {
    println!("run {run}, {way:?}: {moved}");
}

/// The target has what the source had.
fn nothing_is_lost(moved: &Moved) {
    let kinds = moved.before.keys().filter_map(|key| key.split('/').next());
    assert_eq!(kinds.collect::<Vec<_>>(), KINDS);
    assert_eq!(moved.there, moved.before);
}

/// How often each way is gone: once, or five times in `make soak`.
fn runs() -> usize {
    if env::var_os("METAL3_GUARD_SOAK").is_some() { 5 } else { 1 }
}
