//! What others do to a guard that makes its certificates, and what it may not do.

use http::Method;
use serde_json::{Value, json};

use super::{
    super::{commands::run, moment},
    CHANGES, CONFIGURATIONS, NAMESPACE, Own, SECRET, Space, bundles, configuration, count, grant,
    hooks, managed,
    prober::handshake,
    settled, url,
};
use crate::support::{Guard, User, eventually, guard};

#[tokio::test]
async fn what_is_missing_is_named_and_what_is_broken_is_mended() {
    let own = Own::start().await;
    own.install_crds().await;
    let mut guard = managed(&own).await;
    own.plane.bind(User::Guard, "metal3-guard").await;
    let space = own.space("trouble").await;

    // Without the shipped rights, one after the other.
    says(&guard, "may not get mutatingwebhookconfigurations metal3-guard: grant it in RBAC").await;
    allow(&own, "clusterrole", "reads", "get", "mutatingwebhookconfigurations").await;
    allow(&own, "clusterrole", "reads-too", "get", "validatingwebhookconfigurations").await;
    says(&guard, "may not get secrets metal3-guard-system/metal3-guard-tls").await;
    allow(&own, "clusterrole", "reads-secrets", "get", "secrets").await;
    says(&guard, "may not create secrets in namespace metal3-guard-system").await;
    allow(&own, "clusterrole", "makes-secrets", "create", "secrets").await;
    says(&guard, "there is no namespace metal3-guard-system: create it").await;
    assert!(!guard.log().iter().any(|line| line["message"] == "certificate in use"));

    // The hooks come last, as in a first installation.
    own.plane.kubectl(User::Admin, &["create", "namespace", NAMESPACE]).await.ok();
    says(&guard, "there is no MutatingWebhookConfiguration metal3-guard").await;
    install_hooks(&own, &guard).await;
    says(&guard, "may not patch mutatingwebhookconfigurations metal3-guard").await;
    grant(&own).await;
    guard.ready().await;
    let first = settled(&space).await;
    assert_eq!(handshake(&guard.address, &first.ca).await, Ok(()));

    deleted_secret(&own, &space, &guard, &first.ca).await;
    let broken = json!({"data": {"tls.key": "bm90IGEga2V5"}});
    let body = Some(("application/merge-patch+json", &broken));
    space.send(Method::PATCH, SECRET, body).await.unwrap();
    eventually("the broken Secret to be mended", async || {
        let secret = space.send(Method::GET, SECRET, None).await.unwrap();
        (secret["data"]["tls.key"] != "bm90IGEga2V5").then_some(())
    })
    .await;
    assert_eq!(settled(&space).await.ca, first.ca);
    a_webhook_comes_and_goes(&own, &space, &guard).await;
    replaced(&own, &space, &guard).await;
    unknown_wish(&space, &guard).await;
    doctor(&own, &space, &guard).await;
    deleted_while_leaving(&space, &mut guard).await;
    foreign_secret(&own, &space).await;
}

/// A right of the guard's account, in all namespaces.
async fn allow(own: &Own, kind: &str, name: &str, verb: &str, resource: &str) {
    let (verb, resource) = (format!("--verb={verb}"), format!("--resource={resource}"));
    own.plane.kubectl(User::Admin, &["create", kind, name, &verb, &resource]).await.ok();
    own.plane.bind(User::Guard, name).await;
}

async fn install_hooks(own: &Own, guard: &Guard) {
    guard::apply(&own.plane, &hooks(&guard.address).await).await.unwrap();
}

/// The guard is not ready, and says so.
async fn says(guard: &Guard, why: &str) {
    eventually(&format!("the guard to say {why:?}"), async || {
        let (status, body) = guard.get("/readyz").await.unwrap();
        (status == 503 && body.contains(why)).then_some(())
    })
    .await;
    let (_, body) = guard.get("/readyz").await.unwrap();
    assert!(!body.contains("PRIVATE"), "{body}");
}

/// Whoever remembers what was in it puts it back: nothing changes for anybody.
async fn deleted_secret(own: &Own, space: &Space, guard: &Guard, ca: &str) {
    own.plane
        .kubectl(User::Admin, &["delete", "secret", "-n", NAMESPACE, "metal3-guard-tls"])
        .await
        .ok();
    eventually("the Secret to be made again", async || {
        space.send(Method::GET, SECRET, None).await.ok()
    })
    .await;
    assert_eq!(settled(space).await.ca, ca);
    assert_eq!(handshake(&guard.address, ca).await, Ok(()));
    // Counted a moment after it was written.
    eventually("the step to be counted", async || {
        (count(guard, CHANGES, "restore").await > 0).then_some(())
    })
    .await;
    assert_eq!(count(guard, CHANGES, "restore").await, 1);
}

/// A Secret that goes with the last guard does not come back.
async fn deleted_while_leaving(space: &Space, guard: &mut Guard) {
    guard.signal("TERM").unwrap();
    eventually("the guard to leave", async || {
        (guard.get("/readyz").await.ok()?.0 == 503).then_some(())
    })
    .await;
    space.send(Method::DELETE, SECRET, None).await.unwrap();
    eventually("the guard to end", || std::future::ready(guard.has_ended().then_some(()))).await;
    let found = space.send(Method::GET, SECRET, None).await.unwrap_err();
    assert_eq!(found.reason, "NotFound", "{found:?}");
    assert_eq!(bundles(space).await.len(), 1);
}

/// An owner of the configuration takes a webhook out by server-side apply, and puts it back.
async fn a_webhook_comes_and_goes(own: &Own, space: &Space, guard: &Guard) {
    let all = hooks(&guard.address).await;
    let start = all.find("- admissionReviewVersions").unwrap();
    let end = start + 1 + all[start + 1..].find("- admissionReviewVersions").unwrap();
    let less = format!("{}{}", &all[..start], &all[end..]);
    let count = async || {
        configuration(space, CONFIGURATIONS[0]).await["webhooks"].as_array().unwrap().len()
    };
    guard::apply(&own.plane, &less).await.unwrap();
    assert_eq!(count().await, 1);
    guard::apply(&own.plane, &all).await.unwrap();
    assert_eq!(count().await, 2);
    settled(space).await;
}

/// Somebody puts the configurations back as they were shipped, without a bundle.
async fn replaced(own: &Own, space: &Space, guard: &Guard) {
    let hooks = hooks(&guard.address).await;
    let configurations: Vec<_> =
        hooks.split("\n---\n").filter(|it| it.contains("WebhookConfiguration\n")).collect();
    assert_eq!(configurations.len(), 2);
    let replace = configurations.join("\n---\n");
    own.plane.kubectl_with(User::Admin, &["replace", "-f", "-"], &replace).await.ok();
    settled(space).await;
    assert_eq!(bundles(space).await.len(), 1);
}

async fn unknown_wish(space: &Space, guard: &Guard) {
    super::rotate(space, "everything").await;
    eventually("the guard to complain of the wish", || {
        let complained = guard.log().iter().any(|line| line.to_string().contains("neither ca nor"));
        std::future::ready(complained.then_some(()))
    })
    .await;
    let none = json!({"metadata": {"annotations": {"metal3-guard.io/rotate": Value::Null}}});
    let body = Some(("application/merge-patch+json", &none));
    space.send(Method::PATCH, SECRET, body).await.unwrap();
    settled(space).await;
}

async fn doctor(own: &Own, space: &Space, guard: &Guard) {
    let config = own.plane.kubeconfig(User::Admin);
    let args = ["doctor", "-o", "json", "--admin", &guard.admin];
    let report = async |code| -> Value {
        serde_json::from_str(&run(&config, &args).await.ended(code)).unwrap()
    };
    let about = |report: &Value, about: &str| {
        let checks = report["checks"].as_array().unwrap();
        let found: Vec<_> = checks.iter().filter(|it| it["about"] == about).collect();
        assert_eq!(found.len(), 1, "{about}: {checks:#?}");
        found[0].clone()
    };
    let secret = "secret metal3-guard-system/metal3-guard-tls";
    let healthy = report(0).await;
    let found = about(&healthy, secret);
    assert!(found["found"].as_str().unwrap().starts_with("certificate until "), "{found}");
    for (what, may) in [
        ("access to secret metal3-guard-system/metal3-guard-tls", "may get, update"),
        ("caBundle of mutatingwebhookconfigurations metal3-guard", "may get, patch"),
        ("caBundle of validatingwebhookconfigurations metal3-guard", "may get, patch"),
    ] {
        assert_eq!(about(&healthy, what)["found"], may);
    }
    // Where nobody may read it, that is all that is said.
    let person = own.plane.kubeconfig(User::Person);
    allow_person(own).await;
    let ran = run(&person, &["doctor", "-o", "json"]).await;
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(about(&found, secret)["state"], "unknown", "{found}");
    let access = about(&found, "caBundle of mutatingwebhookconfigurations metal3-guard");
    assert!(access["fix"].as_str().unwrap().contains("metal3-guard-certificates"), "{access}");

    // cert-manager is told to write it too.
    let annotations = json!({"cert-manager.io/inject-ca-from": "x/y"});
    let patch = json!({"metadata": {"annotations": annotations}});
    let body = Some(("application/merge-patch+json", &patch));
    space.send(Method::PATCH, &url(CONFIGURATIONS[1]), body).await.unwrap();
    let found = report(1).await;
    let injection = about(&found, "injection into validatingwebhookconfigurations metal3-guard");
    assert!(injection["found"].as_str().unwrap().contains("cert-manager"), "{injection}");
    eventually("the guard to complain of cert-manager", || {
        let complained =
            guard.log().iter().any(|line| line.to_string().contains("cert-manager writes"));
        std::future::ready(complained.then_some(()))
    })
    .await;
    // It goes on serving.
    assert_eq!(guard.get("/readyz").await.unwrap().0, 200);
    let patch = json!({"metadata": {"annotations": Value::Null}});
    let body = Some(("application/merge-patch+json", &patch));
    space.send(Method::PATCH, &url(CONFIGURATIONS[1]), body).await.unwrap();
    moment().await;
}

async fn allow_person(own: &Own) {
    for (name, resource) in [
        ("looks", "mutatingwebhookconfigurations"),
        ("looks-too", "validatingwebhookconfigurations"),
    ] {
        let resource = format!("--resource={resource}");
        let args = ["create", "clusterrole", name, "--verb=get,list", &resource];
        own.plane.kubectl(User::Admin, &args).await.ok();
        own.plane.bind(User::Person, name).await;
    }
}

/// A Secret of that name that somebody else fills is left alone; an empty one is filled.
async fn foreign_secret(own: &Own, space: &Space) {
    let secrets = format!("/api/v1/namespaces/{NAMESPACE}/secrets");
    let secret = |name: &str, data: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data});
    let theirs = secret("theirs", json!({"tls.crt": "eA=="}));
    let theirs = space.send(Method::POST, &secrets, Some(("application/json", &theirs))).await;
    let empty = secret("empty", json!({}));
    space.send(Method::POST, &secrets, Some(("application/json", &empty))).await.unwrap();
    for verb in ["get", "update"] {
        allow(own, "clusterrole", &format!("{verb}-all-secrets"), verb, "secrets").await;
    }
    let start = async |name: &str| {
        let kubeconfig = own.plane.kubeconfig(User::Guard);
        let secret = format!("{NAMESPACE}/{name}");
        let args = [guard::SELF_MANAGED, "--certs-name", "127.0.0.1", "--certs-secret", &secret];
        Guard::start(&own.plane, &kubeconfig, "127.0.0.1:0", &args).await.unwrap()
    };
    let guard = start("theirs").await;
    says(&guard, "the Secret metal3-guard-system/theirs was not made by the guard").await;
    let url = format!("{secrets}/theirs");
    assert_eq!(space.send(Method::GET, &url, None).await.unwrap(), theirs.unwrap());
    drop(guard);
    let _guard = start("empty").await;
    eventually("the empty Secret to be filled", async || {
        let filled = space.send(Method::GET, &format!("{secrets}/empty"), None).await.unwrap();
        filled["data"].get("ca.crt").cloned()
    })
    .await;
}
