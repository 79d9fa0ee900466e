//! Which scenario is for which rule, and the proof that a scenario fails when its rule is off.
//!
//! The proof runs this binary again for one scenario, with [`WITHOUT`] set: the shipped manifests
//! are then registered without the hooks that it names, and the scenario has to fail, at the step
//! that the rule is for. That it passes with them is what every other run of it shows. Each proof
//! is made in one of the two binaries, because each takes a control plane of its own.
//!
//! `METAL3_GUARD_E2E_WITHOUT=controller` turns the acting controllers off instead. Scenarios that
//! wait for one then fail after their whole patience, which is too long to try each time.

use std::{collections::BTreeSet, path::PathBuf, process::Stdio};

use serde_json::{Value, json};
use tokio::process::Command;

use super::{Crds, TEMPLATE_FINALIZER, env, faults};
use crate::support::{PATIENCE, eventually};

/// Names the hooks to leave out, separated by commas.
const WITHOUT: &str = "METAL3_GUARD_E2E_WITHOUT";

/// In place of a hook: the controllers that act.
pub(crate) const CONTROLLER: &str = "controller";

pub(crate) const DELETION: &str = "deletion.metal3-guard.io";
const REFERENCES: &str = "references.metal3-guard.io";
const RELEASE: &str = "release.metal3-guard.io";
const FINALIZERS: &str = "finalizers.metal3-guard.io";
const FINALIZERS_MUTATING: &str = "finalizers.mutating.metal3-guard.io";
const INDEXES: &str = "indexes.metal3-guard.io";

/// Scenarios (the longest matching start of the name counts), their hooks, and the source of the
/// rule that they are for.
const RULES: &[(&str, &[&str], &str)] = &[
    ("commands::", &[], "src/cli/mod.rs"),
    ("deletion::", &[DELETION], "src/core/deletion.rs"),
    ("doctor::", &[], "src/cli/doctor.rs"),
    ("faults::", &[DELETION], "src/core/deletion.rs"),
    ("faults::cluster::", &[DELETION], "src/inventory/cluster.rs"),
    ("faults::crds::", &[DELETION], "src/inventory/cluster/live.rs"),
    ("faults::rolling::", &[DELETION, INDEXES], "src/server/drain.rs"),
    ("finalizers::", &[FINALIZERS_MUTATING, FINALIZERS], "src/core/finalizers.rs"),
    ("freshness::", &[DELETION], "src/inventory/cluster.rs"),
    ("indexes::", &[INDEXES], "src/core/indexes.rs"),
    ("moves::", &[FINALIZERS_MUTATING, FINALIZERS, DELETION], "src/core/finalizers.rs"),
    ("permissions::", &[], "manifests/base/account/clusterrole.yaml"),
    ("references::", &[REFERENCES], "src/core/references.rs"),
    ("release::", &[RELEASE], "src/core/release.rs"),
    ("repair::", &[], "src/core/plan.rs"),
    ("repair::crds::", &[], "src/core/plan/notes.rs"),
    ("repair::hooks::", &[], "src/controller/memory.rs"),
    ("repair::replicas::", &[], "src/controller/mod.rs"),
    ("repair::rights::", &[], "src/controller/hands.rs"),
    ("repair::states::", &[], "src/core/by_hand.rs"),
    ("rules_off::", &[], "tests/e2e/rules_off.rs"),
    ("rules_off::a_finalizer_", &[FINALIZERS_MUTATING, FINALIZERS], "src/core/finalizers.rs"),
    ("rules_off::a_stale_index_", &[INDEXES], "src/core/indexes.rs"),
    ("self_managed::", &[], "src/certificates/rotation.rs"),
    ("self_managed::two_", &[DELETION, INDEXES], "src/certificates/rotation.rs"),
    ("stuck::", &[], "src/core/plan.rs"),
    ("stuck::guarded::", &[DELETION], "src/core/plan.rs"),
    ("stuck::guarded::already::", &[], "src/core/plan.rs"),
    ("stuck::guarded::early::", &[RELEASE], "src/core/release.rs"),
    ("stuck::guarded::holes::", &[DELETION, REFERENCES, RELEASE], "src/core/plan.rs"),
    ("teardown::", &[DELETION, RELEASE], "src/core/deletion.rs"),
];

/// A scenario that must fail without these hooks, and what it then says.
struct Proof {
    proven_by: Crds,
    scenario: &'static str,
    without: &'static [&'static str],
    says: &'static str,
}

const PROOFS: &[Proof] = &[
    Proof {
        proven_by: Crds::V1beta1,
        scenario: "deletion::a_template_used_by_a_live_machine_is_kept_with_all_holders_named",
        without: &[DELETION],
        says: "called `Result::unwrap_err()` on an `Ok` value",
    },
    Proof {
        proven_by: Crds::V1beta2,
        scenario: "rules_off::a_finalizer_put_back_on_a_marked_object_is_refused",
        // Either of the two refuses it alone.
        without: &[FINALIZERS_MUTATING, FINALIZERS],
        says: "called `Result::unwrap_err()` on an `Ok` value",
    },
    Proof {
        proven_by: Crds::V1beta2,
        scenario: "rules_off::a_stale_index_is_pruned_from_a_status_write",
        without: &[INDEXES],
        says: "the entry of a claim that is gone was stored",
    },
];

/// Whether this run is one without that hook, or without controllers.
pub(crate) fn is_off(hook: &str) -> bool {
    off().iter().any(|name| name == hook)
}

/// The manifests as they are shipped, less the hooks that this run does without.
pub(crate) fn shipped_or_less(manifests: String) -> String {
    let mut off = off();
    off.retain(|name| name != CONTROLLER);
    if off.is_empty() {
        return manifests;
    }
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(&manifests).unwrap();
    let mut dropped = Vec::new();
    for hooks in objects.iter_mut().filter_map(|it| it.get_mut("webhooks")?.as_array_mut()) {
        hooks.retain(|hook| {
            let named = off.iter().find(|name| hook["name"] == name.as_str());
            dropped.extend(named.cloned());
            named.is_none()
        });
    }
    assert_eq!(dropped.len(), off.len(), "{off:?} are not all hooks of the manifests");
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

fn off() -> Vec<String> {
    let names = std::env::var_os(WITHOUT).unwrap_or_default();
    names.to_string_lossy().split(',').filter(|name| !name.is_empty()).map(Into::into).collect()
}

#[tokio::test]
async fn a_scenario_fails_when_its_rule_is_off() {
    // Not beside the other tests with control planes of their own.
    let _alone = faults::alone().await;
    for proof in PROOFS.iter().filter(|proof| proof.proven_by == Crds::of_binary()) {
        let Proof { scenario, without, says, .. } = proof;
        let mut again = this_binary();
        again.args(["--exact", &format!("e2e::{scenario}"), "--nocapture", "--test-threads=1"]);
        again.env(WITHOUT, without.join(","));
        let output = tokio::time::timeout(3 * PATIENCE, again.output()).await.unwrap().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!output.status.success(), "{scenario} passes without {without:?}:\n{said}");
        // Failed at the step that the rule is for, not on the way there.
        assert!(said.contains("0 passed; 1 failed"), "{scenario} did not run:\n{said}");
        assert!(said.contains(says), "{scenario} failed for another reason:\n{said}");
        forget_logs(&said).await;
    }
}

#[tokio::test]
async fn every_scenario_is_listed_with_its_rule_and_every_hook_with_a_scenario() {
    let listed = this_binary().args(["--list", "--format", "terse"]).output().await.unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let scenarios: Vec<_> = listed
        .lines()
        .filter_map(|line| line.strip_prefix("e2e::")?.strip_suffix(": test"))
        .collect();
    assert!(!scenarios.is_empty(), "{listed}");

    for scenario in &scenarios {
        let rows = RULES.iter().filter(|(start, ..)| scenario.starts_with(start));
        let Some((_, _, source)) = rows.max_by_key(|(start, ..)| start.len()) else {
            panic!("{scenario} is for no rule: add it to RULES")
        };
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(source);
        assert!(source.exists(), "{scenario}: no {}", source.display());
    }
    for proof in PROOFS {
        assert!(scenarios.contains(&proof.scenario), "no scenario {}", proof.scenario);
    }
    let covered: BTreeSet<_> = RULES.iter().flat_map(|(_, hooks, _)| *hooks).copied().collect();
    let shipped = hooks_shipped();
    assert_eq!(covered, shipped.iter().map(|hook| &**hook).collect());
}

#[tokio::test]
async fn a_finalizer_put_back_on_a_marked_object_is_refused() {
    let space = env().await.space("marked").await;
    let mut template = space.template("workers");
    template["metadata"]["finalizers"] = json!([]);
    template["metadata"]["annotations"] =
        json!({"clusterctl.cluster.x-k8s.io/delete-for-move": ""});
    space.create(&template).await.unwrap();
    let back = json!({"metadata": {"finalizers": [TEMPLATE_FINALIZER]}});
    let refused = space.patch("metal3datatemplates", "workers", "", back).await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (422, "Invalid"), "{}", refused.message);
}

#[tokio::test]
async fn a_stale_index_is_pruned_from_a_status_write() {
    let space = env().await.space("stale").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.claim("here", "workers")).await.unwrap();
    let stored = space
        .patch("metal3datatemplates", "workers", "status", indexes(&[("here", 0), ("gone", 1)]))
        .await
        .unwrap();
    let expected = indexes(&[("here", 0)])["status"]["indexes"].clone();
    assert_eq!(
        stored["status"]["indexes"], expected,
        "the entry of a claim that is gone was stored"
    );
}

/// A status with these entries, in the shape of this binary's version.
pub(crate) fn indexes(entries: &[(&str, i64)]) -> Value {
    let indexes: Value = match Crds::of_binary() {
        Crds::V1beta1 => entries.iter().map(|(claim, index)| (*claim, *index)).collect(),
        Crds::V1beta2 => {
            entries.iter().map(|(claim, index)| json!({"name": claim, "index": index})).collect()
        }
    };
    json!({"status": {"indexes": indexes}})
}

fn this_binary() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env_remove(WITHOUT).stdin(Stdio::null()).kill_on_drop(true);
    command
}

fn hooks_shipped() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/rendered/local-url.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let hooks = objects.iter().filter_map(|it| it["webhooks"].as_array()).flatten();
    hooks.map(|hook| hook["name"].as_str().unwrap().to_owned()).collect()
}

/// A run that had to fail leaves the logs of its control plane; nobody needs them.
async fn forget_logs(said: &str) {
    let logs = said.lines().find_map(|line| line.strip_prefix("logs of the control plane: "));
    let logs = PathBuf::from(logs.unwrap_or_else(|| panic!("no control plane ran:\n{said}")));
    // They are moved there before the folder of the run goes.
    let run = logs.with_extension("");
    eventually("the control plane to be cleared", async || (!run.exists()).then_some(())).await;
    std::fs::remove_dir_all(&logs).ok();
}
