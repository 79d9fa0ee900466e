//! A real API server takes every shipped manifest, and has no remark on any.

use std::{fs, path::Path};

use super::{MODES, NAMESPACE, helm::Helm, monitoring::KNOWN, objects::Objects};
use crate::support::{ControlPlane, User};

/// Server-side apply for show, where what would be a warning is an error.
const APPLY: [&str; 6] =
    ["apply", "--server-side", "--dry-run=server", "--warnings-as-errors", "-f", "-"];

/// A plane with the guard's namespace, which asks for restricted pods, and all kinds.
async fn plane() -> &'static ControlPlane {
    let plane = ControlPlane::shared().await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    plane.install_crds(&root.join("tests/data/crds/add-ons.yaml")).await;
    let namespace = root.join("manifests/base/account/namespace.yaml");
    let apply = ["apply", "--server-side", "-f", namespace.to_str().unwrap()];
    plane.kubectl(User::Admin, &apply).await.ok();
    plane
}

#[tokio::test]
async fn what_kustomize_makes_is_accepted() {
    let plane = plane().await;
    let rendered = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/rendered");
    let mut accepted = 0;
    for entry in fs::read_dir(rendered).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        plane.kubectl_with(User::Admin, &APPLY, &text).await.ok();
        accepted += 1;
    }
    assert!(accepted >= 4, "{accepted}");
}

#[tokio::test]
async fn what_helm_makes_is_accepted() {
    let plane = plane().await;
    let helm = Helm::alone();
    let everything = [
        r#"--set-json=webhooks.deletion.matchConditions=[{"name":"example.org/mine","expression":"request.userInfo.username != 'root'"}]"#,
        r#"--set-json=networkPolicy={"enabled":true,"metricsFrom":[{"podSelector":{}}],"egress":[{}]}"#,
        "--set=webhooks.release.failurePolicy=Fail,dashboard.enabled=true,controller.mode=observe",
        "--set=image.pullSecrets={pull},nodeSelector.role=infra,podLabels.team=metal",
    ];
    for mode in MODES {
        let mode = format!("--set=certificates.mode={mode}");
        for more in [&[][..], &everything] {
            let args = [&KNOWN[..], &[&mode], more].concat();
            // The hooks too: each is an object that Helm creates some day. Those that are named
            // like others are applied for themselves.
            let hooks = helm.hooks(&args).await;
            let objects = helm.template(&args).await;
            for set in [objects.yaml(|_| true), hooks.yaml(|_| true)] {
                plane.kubectl_with(User::Admin, &APPLY, &set).await.ok();
            }
        }
    }
}

/// The two above would not pass if something were wrong.
#[tokio::test]
async fn what_is_wrong_is_not_accepted() {
    let plane = plane().await;
    let objects = Objects::kustomized("base");
    let id = format!("Deployment/{NAMESPACE}/metal3-guard");
    let deployment = objects.yaml(|object| object["kind"] == "Deployment");
    assert_eq!(objects.get(&id)["kind"], "Deployment");
    plane.kubectl_with(User::Admin, &APPLY, &deployment).await.ok();
    for (right, wrong, why) in [
        (r#""runAsNonRoot":true"#, r#""runAsNonRoot":false"#, "would violate PodSecurity"),
        (r#""replicas":2"#, r#""replica":2"#, "field not declared in schema"),
    ] {
        assert!(deployment.contains(right), "{deployment}");
        let changed = deployment.replace(right, wrong);
        let said = plane.kubectl_with(User::Admin, &APPLY, &changed).await.refused();
        assert!(said.contains(why), "{said}");
    }
    let configuration = objects.yaml(|it| it["kind"] == "ValidatingWebhookConfiguration");
    let broken = configuration.replace("has(request.namespace)", "has(request.nonsense)");
    let said = plane.kubectl_with(User::Admin, &APPLY, &broken).await.refused();
    assert!(said.contains("undefined field 'nonsense'"), "{said}");
}
