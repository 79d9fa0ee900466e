//! What others get to see of reviews: log lines and metrics.

use std::collections::BTreeSet;

use axum::http::Method;
use metal3_guard::admission::{Hook, ReviewMetrics};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};

use crate::{
    corpus, log,
    support::{Guard, Guards, but, deletion, machine, review, template, yaml},
};

/// Stands for everything secret that an object may hold.
const MARKER: &str = "s3cr3t-c0nt3nt";

#[tokio::test]
async fn no_content_of_an_object_reaches_the_log() {
    let mut guards = Guards::default();
    let mut asked = 0;
    let cases = corpus::cases().unwrap();
    for case in &cases {
        guards.of(case.expect["state"].as_str().unwrap());
    }
    log::catch();
    for case in &cases {
        let mut marked = case.review.clone();
        plant(&mut marked["request"]);
        let guard = guards.of(case.expect["state"].as_str().unwrap());
        for hook in Hook::ALL {
            guard.ask(hook.path(), &marked).await;
            asked += 1;
        }
    }
    // Not reviews at all: neither the log nor the answer quotes them.
    let guard = guards.of("v1beta1");
    for body in [
        json!({"request": MARKER}).to_string(),
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "x": MARKER})
            .to_string(),
        json!([MARKER]).to_string(),
        json!(MARKER).to_string(),
        format!("{MARKER}: \u{1b}[2J"),
    ] {
        let reply = guard.post("/validate/deletion", body).await;
        assert_eq!(reply.status, 400);
        assert!(!reply.text().contains(MARKER), "{}", reply.text());
        asked += 1;
    }
    let text = log::caught();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("metal3_guard")).collect();
    assert_eq!(lines.len(), asked, "one line a review");
    assert!(lines[0].contains("verdict=") && lines[0].contains("rule="), "{}", lines[0]);
    let leaks: Vec<_> = text.lines().filter(|line| line.contains(MARKER)).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

/// Puts the marker wherever the content of an object or of its sender may be.
fn plant(request: &mut Value) {
    request["userInfo"]["extra"]["example.com/token"] = json!([MARKER]);
    request["options"]["marker"] = MARKER.into();
    for key in ["object", "oldObject"] {
        let object = &mut request[key];
        if !object.is_object() {
            continue;
        }
        object["data"] = json!({"password": MARKER});
        object["spec"]["marker"] = MARKER.into();
        object["status"]["marker"] = MARKER.into();
        object["metadata"]["annotations"]["example.com/marker"] = MARKER.into();
        object["metadata"]["labels"]["example.com/marker"] = MARKER.into();
        let managed = json!({"manager": MARKER, "operation": "Update", "fieldsV1": {MARKER: {}}});
        match object["metadata"]["managedFields"].as_array_mut() {
            Some(list) => list.push(managed),
            None => object["metadata"]["managedFields"] = json!([managed]),
        }
    }
}

#[tokio::test]
async fn a_log_line_has_no_room_for_tricks() {
    let guard = Guard::of_yaml(&yaml(&[]));
    let mut tricky = deletion(&template("a\nb", &"n".repeat(100_000)));
    tricky["request"]["uid"] = format!("\u{1b}[2J\n{}", "u".repeat(100_000)).into();
    tricky["request"]["kind"]["kind"] = "k\r\nINFO forged".into();
    log::catch();
    guard.ask("/validate/deletion", &tricky).await;
    let text = log::caught();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.len() < 2048, "{} bytes", text.len());
    assert!(!text.trim_end().chars().any(char::is_control), "{text:?}");
}

/// The samples without their values.
fn series(metrics: &ReviewMetrics) -> BTreeSet<String> {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[tokio::test]
async fn names_make_no_new_series() {
    let guard = Guard::of_yaml(&yaml(&[machine("space-0", "m", "t-0")]));
    let named = |number: usize| {
        let named = template(&format!("space-{number}"), &format!("t-{number}"));
        let mut asked = deletion(&named);
        asked["request"]["uid"] = format!("uid-{number}").into();
        asked["request"]["userInfo"]["username"] = format!("user-{number}").into();
        asked["request"]["kind"]["kind"] = format!("Kind{number}").into();
        asked["request"]["resource"]["version"] = format!("v{number}").into();
        asked
    };
    let ask = async |number: usize| {
        guard.ask("/validate/deletion", &named(number)).await;
        if number < 100 {
            // The same for what varies elsewhere: kinds, finalizers, paths, what is not JSON.
            let old = but(template("a", "t"), &json!({"kind": format!("Kind{number}")}));
            let finalizers = json!({"metadata": {"finalizers": [format!("example.com/{number}")]}});
            let update = review("UPDATE", "", &but(old.clone(), &finalizers), &old);
            guard.ask("/mutate/finalizers", &update).await;
            guard.send(Method::POST, &format!("/validate/{number}"), "").await;
            guard.post("/validate/deletion", format!("not json {number}")).await;
        }
    };
    ask(0).await;
    ask(1).await;
    let before = series(&guard.metrics);
    assert!(before.iter().any(|it| it.contains("rule=\"deletion.in_use\"")), "{before:#?}");
    assert!(before.iter().any(|it| it.contains("verdict=\"refused\"")), "{before:#?}");
    for number in 2..10_000 {
        ask(number).await;
    }
    assert_eq!(series(&guard.metrics), before);
}
