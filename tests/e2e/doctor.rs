//! `doctor` against live installations, in order and broken in one way at a time.

use std::path::Path;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    Crds, Space,
    commands::{Ran, kubeconfig, run},
    env, prepare,
};
use crate::support::{Authority, BINARY, ControlPlane, Guard, User};

const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";
const DELETION: &str = "webhook deletion.metal3-guard.io";

/// What a broken installation must show: about what, in which state, and words of what was found.
type Expected<'a> = (&'a str, &'a str, &'a str);

#[tokio::test]
async fn each_fault_is_found_where_it_is_and_nothing_else() {
    let plane = ControlPlane::start().await;
    let config = plane.kubeconfig(User::Admin);
    let space = Space {
        client: plane.client(User::Admin).await,
        namespace: plane.namespace("doctor").await,
    };

    // Before anything is installed.
    let said = run(&config, &["doctor"]).await.ended(1);
    assert!(said.contains("checks: 6 problems, 1 warning"), "{said}");
    assert!(
        said.contains("\n  webhook finalizers.mutating.metal3-guard.io and 5 more: "),
        "{said}"
    );
    assert_eq!(said.matches("apply the webhook configurations").count(), 1, "{said}");
    let found = checks(&run(&config, &["doctor", "-o", "json"]).await.ended(1));
    let crds = one(&found, "versions of infrastructure.cluster.x-k8s.io");
    assert_eq!((&crds["state"], &crds["fix"]), (&json!("warning"), &json!("install CAPM3's CRDs")));
    assert_eq!(one(&found, DELETION)["found"], "in no ValidatingWebhookConfiguration");

    prepare(&plane).await;
    let mut guard =
        Guard::start(&plane, &plane.kubeconfig(User::Guard), "127.0.0.1:0", &[]).await.unwrap();
    guard.register(&plane).await.unwrap();
    plane.bind(User::Guard, "metal3-guard").await;
    plane.bind(User::Guard, "metal3-guard-repair").await;
    guard.ready().await;
    healthy(&config, &guard).await;

    faults_of_our_own(&space, &config, &guard).await;
    strangers(&space, &config).await;
    missing_rights(&plane).await;
    // All was put back.
    healthy(&config, &guard).await;

    guard.kill();
    let certificate = format!("certificate of {}", guard.address);
    let admin = format!("guard at {}", guard.admin);
    let ran = run(&config, &["doctor", "-o", "json", "--admin", &guard.admin]).await;
    shows(&ran, &[(&certificate, "problem", "nobody answers"), (&admin, "problem", "refused")]);

    in_the_cluster(&space, &plane, &guard).await;
}

#[tokio::test]
async fn the_guards_own_account_may_do_its_work_and_not_read_webhooks() {
    let env = env().await;
    let config = env.plane.kubeconfig(User::Guard);
    let ran = run(&config, &["doctor", "-o", "json"]).await;
    let [mutating, validating] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
    shows(&ran, &[(mutating, "unknown", "forbidden"), (validating, "unknown", "forbidden")]);
    let found = checks(&ran.stdout);
    let access = one(&found, "access to metal3machines.infrastructure.cluster.x-k8s.io");
    assert_eq!(access["found"], "may get, list, watch");
    assert_eq!(found.iter().filter(|it| about(it).starts_with("access to ")).count(), 8);

    let said = run(&config, &["doctor"]).await.ended(0);
    assert!(said.starts_with("14 checks: 2 not looked at\n\n?   Mutating"), "{said}");
    assert!(said.contains("what to do\n  MutatingWebhookConfiguration, Validating"), "{said}");
}

#[tokio::test]
async fn without_an_api_server_nothing_is_said_to_be_fine() {
    let folder = TempDir::new().unwrap();
    // Nobody listens on port 1.
    let nobody = kubeconfig(folder.path(), "nobody", "https://127.0.0.1:1", "token");
    let said = run(&nobody, &["doctor"]).await.failed(3);
    assert!(said.contains("the API server cannot be asked: "), "{said}");
    assert!(said.to_lowercase().contains("connection refused"), "{said}");

    let url = env().await.plane.url();
    let stranger = kubeconfig(folder.path(), "stranger", &url, "not-a-token");
    let said = run(&stranger, &["doctor"]).await.failed(3);
    assert!(said.contains("the API server cannot be asked: 401"), "{said}");
}

async fn healthy(config: &Path, guard: &Guard) {
    let ran = run(config, &["doctor", "-o", "json", "--admin", &guard.admin]).await;
    shows(&ran, &[]);
    let found = checks(&ran.stdout);
    for hook in
        ["deletion", "finalizers", "finalizers.mutating", "indexes", "references", "release"]
    {
        let webhook = one(&found, &format!("webhook {hook}.metal3-guard.io"));
        assert_eq!(webhook["found"], "as shipped");
    }
    let certificate = one(&found, &format!("certificate of {}", guard.address));
    let until = certificate["found"].as_str().unwrap();
    let end = until.strip_prefix("verified by caBundle, lives until ").unwrap();
    let end: jiff::Timestamp = end.parse().unwrap();
    assert!(end > jiff::Timestamp::now(), "{until}");
    let versions = one(&found, "versions of infrastructure.cluster.x-k8s.io")["found"].clone();
    assert!(versions.as_str().unwrap().contains(Crds::of_binary().version()), "{versions}");
    assert_eq!(one(&found, &format!("guard at {}", guard.admin))["found"], "ready");
    for kind in ["Metal3Data", "Metal3DataClaim", "Metal3DataTemplate", "Metal3Machine"] {
        let watch = one(&found, &format!("watch of {kind}"));
        assert!(watch["found"].as_str().unwrap().starts_with("heard "), "{watch}");
    }

    let said = run(config, &["doctor"]).await.ended(0);
    assert!(said.starts_with("19 checks: all fine\n\nok  webhook "), "{said}");
    assert!(!said.contains("what to do"), "{said}");
}

/// Our own configurations, changed in one way at a time and restored.
async fn faults_of_our_own(space: &Space, config: &Path, guard: &Guard) {
    let at = |name: &'static str| move |it: &Value| it["name"] == format!("{name}.metal3-guard.io");
    let other = BASE64_STANDARD.encode(Authority::new("another").unwrap().pem());
    let only_prod = json!({"matchLabels": {"stage": "prod"}});
    let set = |name: &'static str, pointer: &'static str, value: Value| {
        move |webhooks: &mut Vec<Value>| {
            let webhook = webhooks.iter_mut().find(|it| at(name)(it)).unwrap();
            *webhook.pointer_mut(pointer).unwrap() = value.clone();
        }
    };
    let certificate = format!("certificate of {}", guard.address);
    let of_indexes = format!("{certificate} for indexes.metal3-guard.io");

    let removed = |webhooks: &mut Vec<Value>| webhooks.retain(|it| !at("deletion")(it));
    let expected = (DELETION, "problem", "in no ValidatingWebhookConfiguration");
    broken(space, config, VALIDATING, removed, &[expected]).await;

    let change = set("deletion", "/failurePolicy", json!("Ignore"));
    let expected = (DELETION, "problem", "differs from what is shipped: failurePolicy");
    broken(space, config, VALIDATING, change, &[expected]).await;

    let change = set("references", "/rules/0/operations", json!(["CREATE"]));
    let references = "webhook references.metal3-guard.io";
    let expected = (references, "problem", "differs from what is shipped: rules");
    broken(space, config, VALIDATING, change, &[expected]).await;

    // The same in another order is the same.
    let change = set("references", "/rules/0/operations", json!(["UPDATE", "CREATE"]));
    broken(space, config, VALIDATING, change, &[]).await;

    let change = set("release", "/matchConditions/1/expression", json!("false"));
    let release = "webhook release.metal3-guard.io";
    let expected = (release, "problem", "differs from what is shipped: matchConditions");
    broken(space, config, VALIDATING, change, &[expected]).await;

    let added = |webhooks: &mut Vec<Value>| {
        let webhook = webhooks.iter_mut().find(|it| at("release")(it)).unwrap();
        let conditions = webhook["matchConditions"].as_array_mut().unwrap();
        conditions.push(json!({"name": "mine", "expression": "true"}));
    };
    let expected = (release, "warning", "narrowed by its condition mine: ");
    broken(space, config, VALIDATING, added, &[expected]).await;

    let change = set("deletion", "/namespaceSelector", only_prod);
    let expected = (DELETION, "warning", "narrowed by its namespaceSelector");
    broken(space, config, VALIDATING, change, &[expected]).await;

    let url = json!(format!("https://{}/validate/finalizers", guard.address));
    let change = set("deletion", "/clientConfig/url", url);
    let expected = (DELETION, "problem", "differs from what is shipped: path");
    broken(space, config, VALIDATING, change, &[expected]).await;

    // One bundle of two is wrong: it is told whose.
    let change = set("indexes", "/clientConfig/caBundle", json!(other));
    let expected = (&*of_indexes, "problem", "not verified: ");
    broken(space, config, MUTATING, change, &[expected]).await;
}

/// Webhooks of others that meet ours.
async fn strangers(space: &Space, config: &Path) {
    let register = async |resource: &str, rule: Value, expected: &[Expected<'_>]| {
        let kind = if resource == MUTATING { "Mutating" } else { "Validating" };
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": format!("{kind}WebhookConfiguration"),
            "metadata": {"name": "another"},
            "webhooks": [{
                "name": "another.example.org",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Ignore",
                "clientConfig": {"url": "https://127.0.0.1:1/"},
                "rules": [rule],
            }],
        });
        let body = Some(("application/json", &configuration));
        space.send(Method::POST, &url(resource, ""), body).await.unwrap();
        let ran = run(config, &["doctor", "-o", "json"]).await;
        space.send(Method::DELETE, &url(resource, "another"), None).await.unwrap();
        shows(&ran, expected);
    };
    let rule = |groups: Value, resources: Value, operations: Value| {
        json!({"apiGroups": groups, "apiVersions": ["*"], "resources": resources,
               "operations": operations})
    };
    let (metal3, any) = (json!(["infrastructure.cluster.x-k8s.io"]), json!(["*"]));
    let validating = "other webhook another.example.org of ValidatingWebhookConfiguration another";
    let mutating = "other webhook another.example.org of MutatingWebhookConfiguration another";

    let deletions = rule(metal3.clone(), json!(["metal3datatemplates"]), json!(["DELETE"]));
    let expected = (validating, "warning", "judges deletions of templates too");
    register(VALIDATING, deletions, &[expected]).await;
    let updates = rule(any.clone(), any.clone(), json!(["UPDATE"]));
    let expected = (mutating, "warning", "changes updates of all kinds");
    register(MUTATING, updates, &[expected]).await;
    let status = rule(any, json!(["*/status"]), json!(["UPDATE"]));
    let expected = (mutating, "warning", "changes the status of templates");
    register(MUTATING, status, &[expected]).await;
    // CAPM3's own are none of these.
    let usual = rule(metal3, json!(["metal3datatemplates"]), json!(["CREATE", "UPDATE"]));
    register(MUTATING, usual.clone(), &[]).await;
    register(VALIDATING, usual, &[]).await;
}

/// A person with nothing but the right to list machines.
async fn missing_rights(plane: &ControlPlane) {
    let role = ["create", "clusterrole", "lists", "--verb=list"];
    let resource = "--resource=metal3machines.infrastructure.cluster.x-k8s.io";
    plane.kubectl(User::Admin, &[&role[..], &[resource]].concat()).await.ok();
    plane.bind(User::Person, "lists").await;
    let ran = run(&plane.kubeconfig(User::Person), &["doctor", "-o", "json"]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    let found = checks(&ran.stdout);
    for (resource, may_not) in [
        ("metal3machines.infrastructure.cluster.x-k8s.io", "may not get, watch"),
        ("metal3datatemplates.infrastructure.cluster.x-k8s.io", "may not get, list, watch"),
        ("clusters.cluster.x-k8s.io", "may not get, list"),
        ("ipclaims.ipam.metal3.io", "may not list"),
    ] {
        let access = one(&found, &format!("access to {resource}"));
        assert_eq!((&access["state"], &access["found"]), (&json!("problem"), &json!(may_not)));
        assert!(access["fix"].as_str().unwrap().contains("ClusterRole metal3-guard"), "{access}");
    }
    for (resource, may_not) in [
        ("metal3datatemplates", "may not patch"),
        ("metal3datatemplates/status", "may not patch"),
        ("metal3datas", "may not delete, patch"),
    ] {
        let repair = one(&found, &format!("repair of {resource}"));
        assert_eq!((&repair["state"], &repair["found"]), (&json!("problem"), &json!(may_not)));
        assert!(repair["fix"].as_str().unwrap().contains("metal3-guard-repair"), "{repair}");
    }
}

/// The guard behind its Service, with no node to run on and then with endpoints made by hand.
async fn in_the_cluster(space: &Space, plane: &ControlPlane, guard: &Guard) {
    let config = plane.kubeconfig(User::Admin);
    for resource in [MUTATING, VALIDATING] {
        space.send(Method::DELETE, &url(resource, "metal3-guard"), None).await.unwrap();
    }
    let base = tokio::process::Command::new(BINARY).arg("manifests").output().await.unwrap();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let base = String::from_utf8(base.stdout).unwrap();
    plane.kubectl_with(User::Admin, &apply, &base).await.ok();
    let certificate = "certificate of metal3-guard.metal3-guard-system.svc:443";
    let endpoints = "endpoints of service metal3-guard-system/metal3-guard";
    let none = (endpoints, "problem", "none is ready: deletions of templates are refused");
    let ran = run(&config, &["doctor", "-o", "json"]).await;
    shows(&ran, &[(certificate, "problem", "caBundle is empty"), none]);

    let bundle = BASE64_STANDARD.encode(&guard.ca_pem);
    for resource in [MUTATING, VALIDATING] {
        change(space, resource, |webhooks| {
            for webhook in webhooks {
                webhook["clientConfig"]["caBundle"] = json!(bundle);
            }
        })
        .await;
    }
    // The name of a Service means nothing outside the cluster, and that is no fault.
    let far = (certificate, "unknown", "not reachable from here");
    shows(&run(&config, &["doctor", "-o", "json"]).await, &[far, none]);

    let slice = |pods: &[&str], name: &str, address: &str| {
        let endpoints: Vec<_> = pods
            .iter()
            .map(|pod| json!({"addresses": [address], "targetRef": {"kind": "Pod", "name": pod}}))
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {
                "kubernetes.io/service-name": "metal3-guard",
                "endpointslice.kubernetes.io/managed-by": "test",
            }},
            "addressType": if address.contains(':') { "IPv6" } else { "IPv4" },
            "endpoints": endpoints,
        })
    };
    let slices = "/apis/discovery.k8s.io/v1/namespaces/metal3-guard-system/endpointslices";
    // One pod with an address of each family is one pod.
    for slice in [slice(&["a"], "v4", "10.1.0.1"), slice(&["a"], "v6", "fd00::1")] {
        space.send(Method::POST, slices, Some(("application/json", &slice))).await.unwrap();
    }
    let single = (endpoints, "warning", "only one is ready");
    shows(&run(&config, &["doctor", "-o", "json"]).await, &[far, single]);
    let slice = slice(&["b"], "second", "10.1.0.2");
    space.send(Method::POST, slices, Some(("application/json", &slice))).await.unwrap();
    let ran = run(&config, &["doctor", "-o", "json"]).await;
    shows(&ran, &[far]);
    assert_eq!(one(&checks(&ran.stdout), endpoints)["found"], "2 are ready");
}

/// Breaks a configuration of ours, looks at what doctor shows, and restores it.
async fn broken(
    space: &Space,
    config: &Path,
    resource: &str,
    how: impl Fn(&mut Vec<Value>),
    expected: &[Expected<'_>],
) {
    let before = change(space, resource, how).await;
    let ran = run(config, &["doctor", "-o", "json"]).await;
    change(space, resource, |webhooks| webhooks.clone_from(&before)).await;
    shows(&ran, expected);
}

/// Changes the webhooks of a configuration of ours; returns those before.
async fn change(space: &Space, resource: &str, how: impl Fn(&mut Vec<Value>)) -> Vec<Value> {
    let url = url(resource, "metal3-guard");
    let live = space.send(Method::GET, &url, None).await.unwrap();
    let before = live["webhooks"].as_array().unwrap().clone();
    let mut webhooks = before.clone();
    how(&mut webhooks);
    let patch = json!({"webhooks": webhooks});
    let body = Some(("application/merge-patch+json", &patch));
    space.send(Method::PATCH, &url, body).await.unwrap();
    before
}

fn url(resource: &str, name: &str) -> String {
    let url = format!("/apis/admissionregistration.k8s.io/v1/{resource}/{name}");
    url.trim_end_matches('/').to_owned()
}

/// Checks that all is in order but what is expected, and that the exit code and the JSON say so.
#[track_caller]
fn shows(ran: &Ran, expected: &[Expected<'_>]) {
    let found = checks(&ran.stdout);
    let amiss: Vec<_> = found.iter().filter(|it| it["state"] != "ok").collect();
    assert_eq!(amiss.len(), expected.len(), "{amiss:#?} instead of {expected:?}: {}", ran.stderr);
    for (about, state, words) in expected {
        let check = one(&found, about);
        assert_eq!(check["state"], *state, "{check}");
        assert!(check["found"].as_str().unwrap().contains(words), "no {words:?} in {check}");
        assert!(*state == "unknown" || check["fix"] != "", "nothing to do about {check}");
    }
    let problem = expected.iter().any(|(_, state, _)| *state == "problem");
    assert_eq!(ran.code, i32::from(problem), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["healthy"], !problem);
}

/// The checks of the JSON report.
#[track_caller]
fn checks(stdout: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(stdout).unwrap_or_else(|_| panic!("{stdout}"));
    report["checks"].as_array().unwrap().clone()
}

#[track_caller]
fn one<'a>(checks: &'a [Value], subject: &str) -> &'a Value {
    let mut found = checks.iter().filter(|it| about(it) == subject);
    match (found.next(), found.next()) {
        (Some(one), None) => one,
        (None, _) => panic!("nothing about {subject} in {checks:#?}"),
        (Some(_), Some(_)) => panic!("{subject} twice in {checks:#?}"),
    }
}

fn about(check: &Value) -> &str {
    check["about"].as_str().unwrap_or_default()
}
