//! `can-delete`, `diagnose` and `unstick`: what an operator reads at night.

use std::fs;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::{check, run};

const STATE: [&str; 2] = ["--state", "tests/data/states/v1beta1"];

#[test]
fn can_delete_says_what_holds_a_template() {
    for (name, args) in [
        ("can-delete-in-use", "prod-workers -n metal3 --demo"),
        ("can-delete-free", "old-workers -n metal3 --demo"),
        ("can-delete-missing", "nobody -n metal3 --demo"),
        ("can-delete-wrong-namespace", "prod-workers --demo"),
        ("can-delete-terminating", "batch-workers -n stuck --demo"),
        ("can-delete-in-use-json", "edge-workers -n metal3 --demo -o json"),
        ("can-delete-free-json", "old-workers -n metal3 --demo -o json"),
        ("can-delete-draining", "workers -n drain --state tests/data/states/v1beta1"),
        ("can-delete-forced", "forced -n prod --state tests/data/states/v1beta1"),
        ("can-delete-forced-empty", "forced-empty -n prod --state tests/data/states/v1beta1"),
        ("can-delete-must-gather", "workers -n prod --state tests/data/states/v1beta2"),
    ] {
        check(name, &run(&words("can-delete", args)));
    }
}

#[test]
fn diagnose_tells_the_oldest_trouble_first() {
    for (name, args) in [
        ("diagnose-all", "-A --demo"),
        ("diagnose-healthy", "-n metal3 --demo"),
        ("diagnose-one", "batch-workers -n stuck --demo"),
        ("diagnose-missing", "nobody -n stuck --demo"),
        ("diagnose-empty-namespace", "-n nowhere --demo"),
        ("diagnose-one-json", "gone-workers -n lost --demo -o json"),
        ("diagnose-release", "-n release --state tests/data/states/v1beta1"),
        ("diagnose-moving", "-n moving --state tests/data/states/v1beta1"),
        ("diagnose-elsewhere", "-n tenant --state tests/data/states/v1beta1"),
        ("diagnose-elsewhere-json", "-n tenant --state tests/data/states/v1beta1 -o json"),
        ("diagnose-forced-empty", "forced-empty -n release --state tests/data/states/v1beta1"),
        ("diagnose-recorded", "-A --state tests/data/states/recorded-v1.8.1-stuck"),
    ] {
        check(name, &run(&words("diagnose", args)));
    }
}

#[test]
fn unstick_prints_a_plan_and_changes_nothing() {
    for (name, args) in [
        ("unstick-stuck", "batch-workers -n stuck --demo"),
        ("unstick-lost", "gone-workers -n lost --demo"),
        ("unstick-idle", "old-workers -n metal3 --demo"),
        ("unstick-missing", "nobody -n stuck --demo"),
        ("unstick-stuck-json", "batch-workers -n stuck --demo -o json"),
        ("unstick-release", "t-one -n cap --state tests/data/states/recorded-v1.8.1-stuck"),
        ("unstick-loose", "loose -n release --state tests/data/states/v1beta1"),
        ("unstick-moving", "gone -n moving --state tests/data/states/v1beta1"),
        ("unstick-waiting", "workers -n ending --state tests/data/states/v1beta1"),
        ("unstick-foreign", "two-owners -n release --state tests/data/states/v1beta1"),
    ] {
        check(name, &run(&words("unstick", args)));
    }
}

/// Fractions of a second say nothing to a person, and a wake-up is done by hand only when it is due:
/// one before its time would put off what follows.
#[test]
fn a_template_that_was_just_woken_is_given_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let unstick = |woken: Timestamp, form: &str| {
        let template = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3DataTemplate",
            "metadata": {
                "namespace": "prod", "name": "workers", "uid": "1", "resourceVersion": "1",
                "deletionTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": ["metal3datatemplate.infrastructure.cluster.x-k8s.io"],
                "annotations": {"metal3-guard.io/woken-at": woken},
            },
        });
        fs::write(dir.path().join("state.json"), template.to_string()).unwrap();
        run(&["unstick", "workers", "-n", "prod", "--state", state, "-o", form])
    };
    let actions = |told: &Value| {
        let steps = told["steps"].as_array().unwrap().clone();
        steps.into_iter().map(|step| step["action"].clone()).collect::<Vec<_>>()
    };
    let now = Timestamp::now();
    let last_year: Timestamp = "2025-12-31T00:00:00Z".parse().unwrap();

    let never = unstick(last_year, "json").json();
    assert_eq!(actions(&never), ["wake", "release"]);
    for step in never["steps"].as_array().unwrap() {
        let due = step["due"].as_str().unwrap();
        assert_eq!(due.len(), "2026-01-01T00:00:00Z".len(), "{due} is not in whole seconds");
    }
    let text = unstick(last_year, "text").stdout;
    assert!(text.contains("in 30 s  release Metal3DataTemplate/workers"), "{text}");
    assert!(text.contains("wake them by hand, then look again\n    kubectl annotate"), "{text}");

    // Ahead as clocks differ, so that no slow run is late: its time is not over.
    let soon = unstick(now + SignedDuration::from_mins(4), "text").stdout;
    assert!(soon.contains("only if CAPM3 does not react to being woken"), "{soon}");
    assert!(!soon.contains("  now  ") && !soon.contains("by hand"), "{soon}");

    let ignored = unstick(now - SignedDuration::from_secs(60), "text").stdout;
    assert!(ignored.contains("1.  now  "), "{ignored}");
    assert!(ignored.contains("and CAPM3 did not react to being woken"), "{ignored}");
}

/// A line to copy must work as it is.
#[test]
fn the_plans_that_diagnose_names_are_there() {
    for state in ["--demo", "--state tests/data/states/v1beta1"] {
        let told = run(&words("diagnose", &format!("-A {state}")));
        let lines: Vec<_> = told
            .stdout
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("plan: metal3-guard "))
            .collect();
        assert!(!lines.is_empty(), "{}", told.stdout);
        for line in lines {
            let plan = run(&line.split(' ').collect::<Vec<_>>());
            assert_eq!(plan.code, 1, "{line}: {}", plan.stderr);
            assert!(plan.stdout.contains("dry run: nothing was changed"), "{}", plan.stdout);
        }
    }
}

/// Text and JSON are two forms of one answer.
#[test]
fn exit_codes_do_not_depend_on_the_form() {
    let every: Vec<_> = ["v1beta1", "v1beta2", "recorded-v1.8.1", "recorded-v1.8.1-stuck"]
        .iter()
        .map(|state| format!("tests/data/states/{state}"))
        .collect();
    for state in &every {
        let text = run(&["diagnose", "-A", "--state", state]);
        let json = run(&["diagnose", "-A", "--state", state, "-o", "json"]);
        assert_eq!(text.code, json.code, "{state}");
        assert_eq!(json.json()["healthy"], text.code == 0, "{state}");
        assert!(text.stderr.is_empty() && json.stderr.is_empty());
    }
}

/// `can-delete` and the webhook answer with the same rule.
#[test]
fn can_delete_is_the_verdict_on_the_deletion() {
    for (case, name, namespace) in [
        ("delete-in-use", "control-plane", "prod"),
        ("delete-free", "spare", "prod"),
        ("delete-draining-allowed", "workers", "drain"),
        ("delete-twelve-holders", "fleet", "many"),
    ] {
        let file = format!("tests/data/reviews/{case}/review.json");
        let told = run(&["can-delete", name, "-n", namespace, STATE[0], STATE[1], "-o", "json"]);
        let asked = run(&["review", &file, STATE[0], STATE[1], "-o", "json"]);
        assert_eq!(told.code, asked.code, "{case}");
        let hook = &asked.json()[0]["hooks"][0];
        for key in ["rule", "code", "message", "warnings"] {
            assert_eq!(told.json()[key], hook[key], "{case}: {key}");
        }
    }
}

fn words<'a>(command: &'a str, args: &'a str) -> Vec<&'a str> {
    std::iter::once(command).chain(args.split(' ')).collect()
}
