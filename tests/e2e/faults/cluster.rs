//! The API server goes away, etcd stands still, the guard loses a right: no verdict is wrong, and
//! all is well again by itself.

use std::{sync::Arc, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    super::{Space, wait_registered},
    Direct, Own, Probe, TEMPLATES, attempt, create_held, dry_delete, is_whole,
};
use crate::support::{Guard, User, eventually};

const MACHINES: &str = r#"kind="Metal3Machine""#;

/// How long etcd stands still.
const PAUSE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_cluster_that_fails_makes_no_verdict_wrong() {
    let own = Own::start().await;
    own.install_crds().await;
    let guard = Arc::new(own.guard().await);
    own.register(&guard, &guard.address).await;
    guard.ready().await;
    let space = own.space("failing").await;
    wait_registered(&space).await;
    create_held(&space, "held").await;
    for name in ["free", "spare"] {
        space.create(&space.template(name)).await.unwrap();
    }
    eventually("the watches to have synced", async || {
        (guard.metric("metal3_guard_watch_synced", "").await >= 5.0).then_some(())
    })
    .await;

    let ready = Probe::start(&guard);
    the_api_server_restarts(&own, &guard, &space).await;
    etcd_stands_still(&own, &guard, &space).await;
    a_right_is_lost(&own, &space).await;
    ready.finish().await;
}

/// While it is away, nothing can be confirmed, so nothing is allowed.
async fn the_api_server_restarts(own: &Own, guard: &Guard, space: &Space) {
    let direct = Direct::to(guard).await;
    let failures = async || guard.metric("metal3_guard_watch_failures_total", MACHINES).await;
    let age = async || guard.metric("metal3_guard_watch_age_seconds", MACHINES).await;
    let failures_before = failures().await;

    own.plane.stop_apiserver();
    let lost_at = age().await;
    for name in ["held", "free"] {
        let answer = direct.may_delete(space, name).await;
        assert!(!answer.allowed && answer.code == 503, "{name}: {}", answer.message);
        assert!(answer.message.contains("could not verify"), "{}", answer.message);
    }
    eventually("a lost watch to be counted", async || {
        (failures().await > failures_before).then_some(())
    })
    .await;
    let age_then = eventually("a lost watch to age", async || {
        Some(age().await).filter(|age| *age > lost_at + 2.0)
    })
    .await;

    let starting = own.plane.start_apiserver();
    tokio::pin!(starting);
    let mut asked = 0;
    loop {
        let asking = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            direct.may_delete(space, "held").await
        };
        tokio::select! {
            () = &mut starting => break,
            answer = asking => assert!(!answer.allowed, "a held template, while it starts"),
        }
        asked += 1;
    }
    assert!(asked > 0, "it started before anything was asked");

    // Not once in between is a held template free to go.
    eventually("verdicts by the rule again", async || {
        let refused = dry_delete(space, "held").await.unwrap_err();
        refused.contains("is in use by 1 Metal3Machine").then_some(())
    })
    .await;
    eventually("a free template to be free again", async || dry_delete(space, "free").await.ok())
        .await;
    create_held(space, "later").await;
    eventually("the watch to hear again", async || (age().await < age_then).then_some(())).await;
}

/// The API server answers what needs etcd with errors, and so does the guard.
async fn etcd_stands_still(own: &Own, guard: &Guard, space: &Space) {
    let direct = Direct::to(guard).await;
    own.plane.pause_etcd();
    let since = Instant::now();
    let mut errors = Vec::new();
    while since.elapsed() < PAUSE {
        // Without an end of its own a request would wait for etcd, and then be right to succeed.
        let url = |name| format!("{}?timeout=4s", space.url(TEMPLATES, name, ""));
        let (held_url, free_url) = (url("held"), url("free"));
        let (held, free, held_verdict, free_verdict) = tokio::join!(
            attempt(space, Method::DELETE, &held_url),
            attempt(space, Method::DELETE, &free_url),
            direct.may_delete(space, "held"),
            direct.may_delete(space, "free"),
        );
        errors.push(held.unwrap_err());
        errors.push(free.unwrap_err());
        assert!(!held_verdict.allowed && !free_verdict.allowed, "allowed without a confirmation");
        assert_eq!(free_verdict.code, 503, "{}", free_verdict.message);
    }
    own.plane.resume_etcd();
    for error in &errors {
        // When time is up in the middle of an answer, it breaks that off (http.ErrAbortHandler).
        let broken_off = error.contains("IncompleteMessage");
        assert!(broken_off || error.starts_with("50") || error.starts_with("429"), "{error}");
    }
    for name in ["held", "free"] {
        eventually("the template to be read, untouched", async || {
            is_whole(space, name).await.then_some(())
        })
        .await;
    }
    eventually("verdicts by the rule again", async || {
        let refused = attempt(space, Method::DELETE, &space.url(TEMPLATES, "held", "")).await;
        refused.unwrap_err().contains("is in use by 1 Metal3Machine").then_some(())
    })
    .await;
    eventually("a free template to go", async || {
        attempt(space, Method::DELETE, &space.url(TEMPLATES, "free", "")).await.ok()
    })
    .await;
    assert!(!is_whole(space, "free").await);
    assert!(is_whole(space, "held").await);
}

/// Without the right to list machines nobody can say that none uses a template; that one does is
/// still seen.
async fn a_right_is_lost(own: &Own, space: &Space) {
    let role =
        own.plane.kubectl(User::Admin, &["get", "clusterrole", "metal3-guard", "-o", "json"]);
    let role: Value = serde_json::from_str(&role.await.ok()).unwrap();
    let replace = async |rules: Value| {
        let mut role = role.clone();
        role["rules"] = rules;
        // Whatever it has become meanwhile.
        role["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let role = role.to_string();
        own.plane.kubectl_with(User::Admin, &["replace", "-f", "-"], &role).await.ok();
    };
    replace(without_list_of_machines(&role["rules"])).await;

    eventually("the lost right to show", async || dry_delete(space, "spare").await.err()).await;
    let refused = space.delete(TEMPLATES, "spare").await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (503, "ServiceUnavailable"));
    let named = format!("may not list metal3machines in namespace {}", space.ns());
    assert!(refused.message.contains(&named), "{}", refused.message);
    assert!(is_whole(space, "spare").await);
    let refused = space.delete(TEMPLATES, "held").await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (403, "Forbidden"), "{}", refused.message);

    replace(role["rules"].clone()).await;
    eventually("the right to be back", async || dry_delete(space, "spare").await.ok()).await;
    space.delete(TEMPLATES, "spare").await.unwrap();
}

fn without_list_of_machines(rules: &Value) -> Value {
    let mut reduced = Vec::new();
    for rule in rules.as_array().unwrap() {
        let machines = json!("metal3machines");
        let (with, without): (Vec<Value>, _) =
            rule["resources"].as_array().unwrap().iter().cloned().partition(|it| *it == machines);
        let mut others = rule.clone();
        others["resources"] = without.into();
        reduced.push(others);
        if !with.is_empty() {
            let verbs = rule["verbs"].as_array().unwrap().iter();
            let verbs: Vec<_> = verbs.filter(|verb| **verb != "list").cloned().collect();
            let groups = &rule["apiGroups"];
            reduced.push(json!({"apiGroups": groups, "resources": with, "verbs": verbs}));
        }
    }
    assert_eq!(reduced.len(), rules.as_array().unwrap().len() + 1, "one rule is about machines");
    reduced.into()
}
