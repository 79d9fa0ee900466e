//! The alerts fire when they should, by Prometheus' own tool, and lead to a page of the runbook.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use serde_json::Value;

use crate::{document, root, support::built};

pub(crate) fn monitoring() -> PathBuf {
    root().join("manifests/monitoring")
}

/// The rules, in order.
pub(crate) fn rules() -> Vec<Value> {
    let text = fs::read_to_string(monitoring().join("alerts.yaml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

/// `$PROMTOOL`, or the one that `build.sh` makes of the pinned module.
fn promtool(args: &[&str]) -> Output {
    let program = std::env::var_os("PROMTOOL").map_or_else(
        || built("promtool").unwrap_or_else(|error| panic!("{error:#}")).join("promtool"),
        PathBuf::from,
    );
    Command::new(program).args(args).current_dir(monitoring()).output().unwrap()
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn the_rules_are_valid_and_their_examples_hold() {
    for args in [
        &["check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml"][..],
        &["test", "rules", "alerts_test.yaml"],
    ] {
        let output = promtool(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output));
    }
}

/// The tool does look: another threshold breaks an example.
#[test]
fn an_example_that_does_not_hold_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let rules = fs::read_to_string(monitoring().join("alerts.yaml")).unwrap();
    let changed = rules.replace("> 15 * 60", "> 15 * 3600");
    assert_ne!(rules, changed);
    fs::write(folder.path().join("alerts.yaml"), changed).unwrap();
    let test = folder.path().join("alerts_test.yaml");
    fs::copy(monitoring().join("alerts_test.yaml"), &test).unwrap();
    let output = promtool(&["test", "rules", test.to_str().unwrap()]);
    assert!(!output.status.success());
    assert!(text(&output).contains("Metal3TemplateStuck"), "{}", text(&output));
}

#[test]
fn every_alert_has_an_example_of_firing_and_one_of_not() {
    let examples = fs::read_to_string(monitoring().join("alerts_test.yaml")).unwrap();
    let examples: Value = serde_saphyr::from_str(&examples).unwrap();
    let (mut firing, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    for test in examples["tests"].as_array().unwrap() {
        for example in test["alert_rule_test"].as_array().unwrap() {
            let name = example["alertname"].as_str().unwrap();
            let alerts = example["exp_alerts"].as_array().unwrap();
            if alerts.is_empty() {
                quiet.insert(name.to_owned());
            }
            for alert in alerts {
                let severity = alert["exp_labels"]["severity"].as_str().unwrap();
                firing.insert((name.to_owned(), severity.to_owned()));
            }
        }
    }
    for rule in rules() {
        let name = rule["alert"].as_str().unwrap().to_owned();
        let severity = rule["labels"]["severity"].as_str().unwrap().to_owned();
        assert!(quiet.contains(&name), "{name}");
        assert!(firing.contains(&(name.clone(), severity)), "{name}");
    }
}

#[test]
fn every_alert_leads_to_a_page() {
    let anchors: BTreeSet<_> = document::pages().iter().map(document::Page::anchor).collect();
    for rule in rules() {
        let page = rule["annotations"]["runbook"].as_str().unwrap();
        let anchor = page.strip_prefix("docs/runbook.md#").unwrap();
        assert!(anchors.contains(anchor), "{page}: {anchors:?}");
    }
}
