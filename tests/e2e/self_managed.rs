//! Guards that make their certificates themselves: nobody gives them any, and nobody fills in the
//! `caBundle` of their hooks.

use std::{collections::BTreeSet, io::Write as _, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Space,
    faults::{Own, load::Load},
    wait_registered,
};
use crate::support::{BINARY, Forwarder, Guard, User, eventually, guard};

mod prober;
mod trouble;

use self::prober::Prober;

const NAMESPACE: &str = "metal3-guard-system";
const SECRET: &str = "/api/v1/namespaces/metal3-guard-system/secrets/metal3-guard-tls";
const CONFIGURATIONS: [&str; 2] =
    ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
const MANAGER: &str = "metal3-guard-certificates";
/// Calls a second during the rotations.
const PACE: u32 = 200;

#[tokio::test]
async fn two_replicas_agree_and_rotate_under_load_without_a_failed_call() {
    let own = Own::start().await;
    own.install_crds().await;
    let forwarder = Forwarder::start().await.unwrap();
    install(&own, &forwarder.address).await;
    grant(&own).await;
    guard::apply(&own.plane, &shipped(|it| it.contains("kind: Secret\n")).await[0]).await.unwrap();
    let space = Arc::new(own.space("rotated").await);
    let (first, second) = tokio::join!(managed(&own), managed(&own));
    for guard in [&first, &second] {
        guard.ready().await;
        forwarder.add(guard);
    }
    eventually("both guards to get calls", async || (forwarder.ready() == 2).then_some(())).await;
    wait_registered(&space).await;

    // One of them made it, and the other took it.
    let stored = settled(&space).await;
    assert_eq!(bundles(&space).await, BTreeSet::from([stored.ca.clone()]));
    assert_eq!(count(&first, CHANGES, "make").await + count(&second, CHANGES, "make").await, 1);
    owns_nothing_but_the_bundles(&space).await;

    let started = Instant::now();
    let load = Load::paced(&space, PACE).await;
    let prober = Prober::start(&own, &[&first, &second]).await;
    let mut authorities = BTreeSet::from([stored.ca]);
    for number in 1..=3 {
        rotate(&space, "ca").await;
        if number == 2 {
            others_change_what_is_theirs(&own).await;
        }
        let stored = settled(&space).await;
        assert!(authorities.insert(stored.ca.clone()), "rotation {number} changed nothing");
        assert_eq!(bundles(&space).await, BTreeSet::from([stored.ca]));
    }
    // Another certificate by the same authority.
    let before = settled(&space).await;
    rotate(&space, "certificate").await;
    let after = settled(&space).await;
    assert_eq!((&before.ca, before.leaf == after.leaf), (&after.ca, false));
    // The replica that did not make it takes it too, while calls go on.
    for guard in [&first, &second] {
        eventually("all certificates to be taken", async || {
            (count(guard, RELOADS, "success").await >= 5).then_some(())
        })
        .await;
    }
    let seen = prober.stop().await;
    let (calls, failed) = load.stop().await;

    let (time, handshakes) = (started.elapsed().as_secs_f64(), seen.handshakes);
    let line = format!(
        "3 rotations of the CA in {time:.0} s: {calls} calls ({:.0} a second), {} failed; \
         {handshakes} handshakes, {} failed",
        f64::from(calls) / time,
        failed.len(),
        seen.failed.len()
    );
    writeln!(std::io::stderr(), "{line}").ok();
    assert!(failed.is_empty(), "{} of {calls} failed: {failed:#?}", failed.len());
    assert!(seen.failed.is_empty(), "of {handshakes} handshakes: {:#?}", seen.failed);
    // Two CAs were trusted in each of them.
    assert_eq!(seen.rotations(), 3);
    assert_eq!(forwarder.lost(), 0, "connections that no guard took");
    for guard in [&first, &second] {
        assert_eq!(count(guard, RELOADS, "failure").await, 0);
        assert_eq!(count(guard, "metal3_guard_certificate_trusted", "").await, 1);
        no_secrets_in(guard);
    }
    let switched = async |it: &Guard| count(it, CHANGES, "switch").await;
    assert_eq!(switched(&first).await + switched(&second).await, 3);
    owns_nothing_but_the_bundles(&space).await;
    others_kept_what_is_theirs(&space).await;
}

const CHANGES: &str = "metal3_guard_certificate_changes_total";
const RELOADS: &str = "metal3_guard_certificate_reloads_total";

async fn count(guard: &Guard, metric: &str, label: &str) -> u64 {
    let text = guard.metric(metric, label).await.to_string();
    text.parse().unwrap()
}

/// A guard that makes its certificate, in no more time than a test has.
async fn managed(own: &Own) -> Guard {
    let kubeconfig = own.plane.kubeconfig(User::Guard);
    let args = [guard::SELF_MANAGED, "--certs-name", "127.0.0.1", "--certs-dwell", "2s"];
    Guard::start(&own.plane, &kubeconfig, "127.0.0.1:0", &args).await.unwrap()
}

/// The shipped hooks, pointed at `address` and trusting nobody, and the rights to judge.
async fn install(own: &Own, address: &str) {
    guard::apply(&own.plane, &hooks(address).await).await.unwrap();
    own.plane.bind(User::Guard, "metal3-guard").await;
}

async fn hooks(address: &str) -> String {
    let text = manifests("local-url").await;
    let text = text.replace("https://127.0.0.1:8443/", &format!("https://{address}/"));
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("caBundle: "));
    lines.collect::<Vec<_>>().join("\n")
}

/// The shipped rights to make certificates, for the account of the guards.
async fn grant(own: &Own) {
    let roles = shipped(|it| {
        let role = it.contains("kind: Role\n") || it.contains("kind: ClusterRole\n");
        role && !it.contains("Binding") && it.contains("\n  name: metal3-guard-certificates\n")
    });
    let roles = roles.await;
    assert_eq!(roles.len(), 2, "{roles:?}");
    guard::apply(&own.plane, &roles.join("\n---\n")).await.unwrap();
    own.plane.bind(User::Guard, MANAGER).await;
    let role = ["create", "rolebinding", MANAGER, "--user=guard", "-n", NAMESPACE];
    let role = [&role[..], &["--role=metal3-guard-certificates"]].concat();
    own.plane.kubectl(User::Admin, &role).await.ok();
}

/// Some objects of the overlay for guards that make their certificates.
async fn shipped(wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let text = manifests("self-managed").await;
    text.split("\n---\n").filter(|it| wanted(it)).map(str::to_owned).collect()
}

async fn manifests(overlay: &str) -> String {
    let mut command = tokio::process::Command::new(BINARY);
    let output = command.args(["manifests", "--overlay", overlay]).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What is in the Secret, once no rotation is under way.
#[derive(Debug)]
struct Settled {
    ca: String,
    leaf: String,
}

async fn settled(space: &Space) -> Settled {
    eventually("the rotation to end", async || {
        let secret = space.send(Method::GET, SECRET, None).await.ok()?;
        let is_there = |key: &str| secret["data"].get(key).is_some();
        let annotations = &secret["metadata"]["annotations"];
        let under_way = is_there("next-ca.crt") || is_there("retired-ca.crt");
        if under_way || annotations.get("metal3-guard.io/rotate").is_some() {
            return None;
        }
        let text = |key: &str| {
            let value = BASE64_STANDARD.decode(secret["data"][key].as_str()?).ok()?;
            String::from_utf8(value).ok()
        };
        let settled = Settled { ca: text("ca.crt")?, leaf: text("tls.crt")? };
        // The bundle without the old one follows the Secret.
        (bundles(space).await == BTreeSet::from([settled.ca.clone()])).then_some(settled)
    })
    .await
}

/// What all hooks trust.
async fn bundles(space: &Space) -> BTreeSet<String> {
    let mut bundles = BTreeSet::new();
    for resource in CONFIGURATIONS {
        for webhook in configuration(space, resource).await["webhooks"].as_array().unwrap() {
            let bundle = webhook["clientConfig"]["caBundle"].as_str().unwrap_or_default();
            let bundle = BASE64_STANDARD.decode(bundle).unwrap();
            bundles.insert(String::from_utf8(bundle).unwrap());
        }
    }
    bundles
}

async fn configuration(space: &Space, resource: &str) -> Value {
    space.send(Method::GET, &url(resource), None).await.unwrap()
}

fn url(resource: &str) -> String {
    format!("/apis/admissionregistration.k8s.io/v1/{resource}/metal3-guard")
}

async fn rotate(space: &Space, what: &str) {
    let wish = json!({"metadata": {"annotations": {"metal3-guard.io/rotate": what}}});
    let body = Some(("application/merge-patch+json", &wish));
    space.send(Method::PATCH, SECRET, body).await.unwrap();
}

async fn owns_nothing_but_the_bundles(space: &Space) {
    for resource in CONFIGURATIONS {
        let configuration = configuration(space, resource).await;
        let fields = configuration["metadata"]["managedFields"].as_array().unwrap();
        let ours: Vec<_> = fields.iter().filter(|it| it["manager"] == MANAGER).collect();
        assert_eq!(ours.len(), 1, "{ours:?}");
        let webhooks = configuration["webhooks"].as_array().unwrap().iter();
        let bundle = json!({"f:clientConfig": {"f:caBundle": {}}});
        let expected: serde_json::Map<_, _> = webhooks
            .map(|it| (format!("k:{}", json!({"name": it["name"]})), bundle.clone()))
            .collect();
        assert_eq!(ours[0]["fieldsV1"], json!({"f:webhooks": expected}));
    }
}

/// Somebody patches the configurations, with an own field manager.
async fn others_change_what_is_theirs(own: &Own) {
    for resource in CONFIGURATIONS {
        let patch = json!([
            {"op": "add", "path": "/metadata/labels/team", "value": "metal"},
            {"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 7},
        ])
        .to_string();
        let args = ["patch", resource, "metal3-guard", "--type=json", "-p", &patch];
        let args = [&args[..], &["--field-manager=somebody"]].concat();
        own.plane.kubectl(User::Admin, &args).await.ok();
    }
}

async fn others_kept_what_is_theirs(space: &Space) {
    for resource in CONFIGURATIONS {
        let configuration = configuration(space, resource).await;
        assert_eq!(configuration["metadata"]["labels"]["team"], "metal");
        assert_eq!(configuration["webhooks"][0]["timeoutSeconds"], 7);
        let fields = configuration["metadata"]["managedFields"].as_array().unwrap();
        assert!(fields.iter().any(|it| it["manager"] == "somebody"), "{fields:?}");
    }
}

/// Neither a key nor anything else of the Secret is in a log.
fn no_secrets_in(guard: &Guard) {
    let log: String = guard.log().iter().map(ToString::to_string).collect();
    for sign in ["PRIVATE", "BEGIN", "LS0tLS1CRUdJTi"] {
        assert!(!log.contains(sign), "{sign} in the log");
    }
}
