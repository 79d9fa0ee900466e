//! `diagnose -o dot` and `-o html`: the whole state, and nothing that a name could break.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::run;

const STATES: [&str; 3] = ["v1beta1", "v1beta2", "recorded-v1.8.1-stuck"];

/// What `-o json` says, and the same in another form.
fn both(state: &str, form: &str) -> (Value, String) {
    let path = format!("tests/data/states/{state}");
    let asked = |form: &str| run(&["diagnose", "-A", "--state", &path, "-o", form]);
    let (json, other) = (asked("json"), asked(form));
    assert_eq!(json.code, other.code, "{state}");
    assert_eq!(other.stderr, "", "{state}");
    (serde_json::from_str(&json.stdout).unwrap(), other.stdout)
}

/// Each template with its namespace.
fn templates(report: &Value) -> Vec<(&str, &Value)> {
    let namespaces = report["namespaces"].as_array().unwrap().iter();
    let of = |it: &'_ Value| it["templates"].as_array().unwrap().len();
    assert!(namespaces.clone().map(of).sum::<usize>() > 0);
    namespaces
        .flat_map(|space| {
            let name = space["namespace"].as_str().unwrap();
            space["templates"].as_array().unwrap().iter().map(move |it| (name, it))
        })
        .collect()
}

#[test]
fn the_graph_has_a_node_and_an_edge_for_each_holder() {
    for state in STATES {
        let (report, dot) = both(state, "dot");
        for (namespace, template) in templates(&report) {
            let to = format!(
                "\"{namespace}/Metal3DataTemplate/{}\"",
                template["name"].as_str().unwrap()
            );
            assert!(dot.contains(&format!("{to} [label=")), "{state}: {to}");
            for holder in template["holders"].as_array().unwrap() {
                let [kind, name] = ["kind", "name"].map(|key| holder[key].as_str().unwrap());
                let from = format!("\"{namespace}/{kind}/{name}\"");
                assert!(dot.contains(&format!("{from} [label=")), "{state}: {from}");
                assert!(dot.contains(&format!("{from} -> {to} [label=")), "{state}: {from}");
            }
        }
        assert_eq!(dot.matches('{').count(), dot.matches('}').count(), "{state}");
        // Without what is escaped, quotes come in pairs on each line.
        for line in dot.lines() {
            let plain = line.replace("\\\\", "").replace("\\\"", "");
            assert_eq!(plain.matches('"').count() % 2, 0, "{state}: {line}");
        }
    }
}

#[test]
fn the_page_shows_everything_and_loads_nothing() {
    for state in STATES {
        let (report, page) = both(state, "html");
        assert!(page.starts_with("<!DOCTYPE html>"), "{state}");
        for word in ["http:", "https:", "<script", "src=", "url(", "@import"] {
            assert!(!page.contains(word), "{state}: {word}");
        }
        balanced(&page);
        for (namespace, template) in templates(&report) {
            let name = template["name"].as_str().unwrap();
            assert!(page.contains(&format!("</span> {namespace}/{name}, ")), "{state}: {name}");
            let steps = template["steps"].as_array().unwrap();
            if !steps.is_empty() {
                let command = format!("metal3-guard unstick {name} -n {namespace}");
                assert!(page.contains(&command), "{state}: {command}");
            }
            for wait in template["waitsFor"].as_array().unwrap() {
                let wait = wait.as_str().unwrap().replace('\'', "&#39;");
                assert!(page.contains(&wait), "{state}: {wait}");
            }
        }
    }
}

/// Each element is closed, in the right order.
fn balanced(page: &str) {
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let name: String =
            tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        let alone = tag.starts_with('!')
            || ["meta"].contains(&&*name)
            || tag.split('>').next().is_some_and(|inside| inside.ends_with('/'));
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "before </{tag}");
        } else if !alone {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0]);
}

/// Finalizers and names in a state directory may be anything.
#[test]
fn a_hostile_name_stays_text() {
    let folder = with_template("prod", "x\"><img src=y>", "<script>");
    let state = folder.path().to_str().unwrap();
    let page = run(&["diagnose", "-n", "prod", "--state", state, "-o", "html"]).stdout;
    assert!(!page.contains("<img") && !page.contains("<script"), "{page}");
    assert!(page.contains("x&quot;&gt;&lt;img") && page.contains("&lt;script&gt;"), "{page}");
    balanced(&page);
    let dot = run(&["diagnose", "-n", "prod", "--state", state, "-o", "dot"]).stdout;
    assert!(dot.contains("x\\\"><img"), "{dot}");
}

/// The plan is a line to copy, and whoever names a template does not name commands.
#[test]
fn a_plan_to_copy_is_one_command_whatever_the_name() {
    let finalizer = "metal3datatemplate.infrastructure.cluster.x-k8s.io";
    let folder = with_template("a b", "$(reboot); it's", finalizer);
    let state = folder.path().to_str().unwrap();
    let told = |form| run(&["diagnose", "-A", "--state", state, "-o", form]).stdout;
    let plan = format!(r"metal3-guard unstick '$(reboot); it'\''s' -n 'a b' --state {state}");
    let text = told("text");
    assert!(text.contains(&format!("  plan: {plan}\n")), "{text}");
    let page = told("html").replace("&#39;", "'");
    assert!(page.contains(&format!("<code>{plan}</code>")), "{page}");
}

/// A state of one terminating template.
fn with_template(namespace: &str, name: &str, finalizer: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let object = serde_json::json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3DataTemplate",
        "metadata": {
            "name": name, "namespace": namespace, "uid": "u", "resourceVersion": "1",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer],
        },
        "spec": {},
    });
    fs::write(folder.path().join("state.json"), object.to_string()).unwrap();
    folder
}

#[test]
fn watching_is_for_the_terminal() {
    let done = run(&["diagnose", "--demo", "--watch", "-o", "html"]);
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains("--watch is for the terminal"), "{}", done.stderr);
}
