//! Alerts and dashboard ask for what a guard has.

use std::{collections::BTreeMap, fs};

use serde_json::Value;

use crate::{
    alerts::{monitoring, rules},
    support::{ControlPlane, Guard, User},
};

const PREFIX: &str = "metal3_guard_";

/// The metrics of an expression, with the suffix that says how they are read.
fn named(expression: &str) -> Vec<String> {
    let word = |it: char| !it.is_ascii_alphanumeric() && it != '_';
    expression.split(word).filter(|it| it.starts_with(PREFIX)).map(str::to_owned).collect()
}

/// The expressions of all panels.
fn panels() -> Vec<(String, String)> {
    let text = fs::read_to_string(monitoring().join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut expressions = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().unwrap() {
            expressions.push((title.to_owned(), target["expr"].as_str().unwrap().to_owned()));
        }
    }
    expressions
}

#[tokio::test]
async fn what_is_asked_for_is_there() {
    let plane = ControlPlane::shared().await;
    let config = plane.kubeconfig(User::Admin);
    let args = ["--controller", "observe"];
    let guard = Guard::start(plane, &config, "127.0.0.1:0", &args).await.unwrap();
    let (_, text) = guard.get("/metrics").await.unwrap();
    // `# TYPE metal3_guard_bodies_refused counter`; not of families that have no series yet.
    let types: BTreeMap<_, _> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    assert!(types.len() > 10, "{text}");

    let alerts = rules().into_iter().map(|rule| {
        let text = |key: &str| rule[key].as_str().unwrap().to_owned();
        (text("alert"), text("expr"))
    });
    let mut asked = 0;
    for (whose, expression) in alerts.chain(panels()) {
        assert!(expression.contains(r#"job="metal3-guard""#), "{whose}: {expression}");
        for metric in named(&expression) {
            let (name, kind) = match metric.rsplit_once('_') {
                Some((name, "total")) => (name, "counter"),
                Some((name, "bucket")) => (name, "histogram"),
                _ => (&*metric, "gauge"),
            };
            match types.get(name) {
                Some(found) => assert_eq!(*found, kind, "{whose}: {metric}"),
                None => assert!(registered(name), "{whose}: {metric} in {types:?}"),
            }
            asked += 1;
        }
    }
    assert!(asked > 20, "{asked}");
    // And all that there is can be seen on the dashboard.
    let shown: String = panels().into_iter().map(|(_, expression)| expression + "\n").collect();
    for name in types.keys().filter(|name| **name != "metal3_guard_watch_synced") {
        assert!(shown.contains(name), "{name} is in no panel");
    }
}

/// Whether the program registers a metric of this name, which a guard without reviews and without
/// anything to repair does not show.
fn registered(name: &str) -> bool {
    let quoted = format!("\"{}\",\n", name.strip_prefix(PREFIX).unwrap());
    let mut folders = vec![crate::root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if fs::read_to_string(path).unwrap().contains(&quoted) {
                return true;
            }
        }
    }
    false
}

#[test]
fn names_of_metrics_are_found_where_they_are_registered() {
    assert!(registered("metal3_guard_reviews"));
    assert!(!registered("metal3_guard_review"));
}

#[test]
fn panels_have_their_place_and_say_what_they_show() {
    let text = fs::read_to_string(monitoring().join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut taken = BTreeMap::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert_ne!(panel["description"].as_str().unwrap(), "", "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title}");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                let other = taken.insert((x, y), title);
                assert_eq!(other, None, "{title}");
            }
        }
    }
}
