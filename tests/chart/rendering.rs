//! Helm and kustomize make the same objects.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};

use super::{
    MODES,
    helm::{Helm, chart},
    objects::Objects,
};

#[tokio::test]
async fn each_mode_makes_the_objects_that_kustomize_makes() {
    let helm = Helm::alone();
    for mode in MODES {
        let mut expected = match mode {
            "secret" => Objects::kustomized("base"),
            overlay => Objects::kustomized(overlay),
        };
        // The name that kustomize sets the image under.
        let values = format!("certificates.mode={mode},image.tag=dev");
        let mut made = helm.template(&["--set", &values]).await;
        for object in made.0.values_mut() {
            without_labels_of_helm(object);
        }
        // Helm keeps its own record in the namespace, so that it is there before the chart.
        expected.retain(|object| object["kind"] != "Namespace");
        assert_eq!(made.ids(), expected.ids(), "{mode}");
        for (id, object) in &made.0 {
            assert_eq!(object, expected.get(id), "{mode}: {id}");
        }
    }
}

/// Takes off what every object has, and the pods one of.
fn without_labels_of_helm(object: &mut Value) {
    let labels = object["metadata"]["labels"].as_object_mut().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    for (label, value) in [
        ("app.kubernetes.io/instance", "guard"),
        ("app.kubernetes.io/managed-by", "Helm"),
        ("app.kubernetes.io/version", version),
        ("helm.sh/chart", &format!("metal3-guard-{version}")),
    ] {
        assert_eq!(labels.remove(label), Some(json!(value)), "{label}");
    }
    if object["kind"] == "Deployment" {
        let labels = &mut object["spec"]["template"]["metadata"]["labels"];
        let instance = labels.as_object_mut().unwrap().remove("app.kubernetes.io/instance");
        assert_eq!(instance, Some(json!("guard")));
    }
}

/// Beside what kustomize makes: what is there for `helm test` and `helm uninstall` only.
#[tokio::test]
async fn hooks_test_and_clean_up() {
    let test = [
        "test ClusterRole/-/metal3-guard-test",
        "test ClusterRoleBinding/-/metal3-guard-test",
        "test Pod/metal3-guard-system/metal3-guard-test",
    ];
    let configurations = [
        "pre-delete MutatingWebhookConfiguration/-/metal3-guard",
        "pre-delete ValidatingWebhookConfiguration/-/metal3-guard",
    ];
    let secret = |name: &str| format!("post-delete Secret/metal3-guard-system/{name}");
    let helm = Helm::alone();
    for (mode, secrets) in [
        // That one is part of the release.
        ("self-managed", &[][..]),
        ("cert-manager", &["metal3-guard-ca", "metal3-guard-tls"]),
        // That one is not ours to delete.
        ("secret", &[]),
    ] {
        let hooks = helm.hooks(&["--set", &format!("certificates.mode={mode}")]).await;
        let expected: BTreeSet<String> = [&configurations[..], &test]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .chain(secrets.iter().map(|name| secret(name)))
            .collect();
        assert_eq!(hooks.ids(), expected.iter().collect::<Vec<_>>(), "{mode}");
        for (id, hook) in &hooks.0 {
            let policy = &hook["metadata"]["annotations"]["helm.sh/hook-delete-policy"];
            assert_eq!(policy, "before-hook-creation,hook-succeeded,hook-failed", "{id}");
        }
        for configuration in configurations {
            assert_eq!(hooks.get(configuration)["webhooks"], json!([]));
        }
    }
}

#[tokio::test]
async fn the_pod_of_the_test_is_as_restricted_as_the_guard() {
    let helm = Helm::alone();
    let objects = helm.template(&[]).await;
    let hooks = helm.hooks(&[]).await;
    let guard = objects.get("Deployment/metal3-guard-system/metal3-guard");
    let guard = &guard["spec"]["template"]["spec"];
    let test = hooks.get("test Pod/metal3-guard-system/metal3-guard-test");
    assert_eq!(test["spec"]["securityContext"], guard["securityContext"]);
    let (container, guarded) = (&test["spec"]["containers"][0], &guard["containers"][0]);
    assert_eq!(container["securityContext"], guarded["securityContext"]);
    assert_eq!(container["image"], guarded["image"]);
    assert_eq!(test["spec"]["serviceAccountName"], guard["serviceAccountName"]);
    // The Service must not send reviews to it, nor the budget count it.
    let labels = &test["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/name"], "metal3-guard-test");
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let text = fs::read_to_string(chart().join("Chart.yaml")).unwrap();
    let chart: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_copies_in_the_chart_are_those_of_render_sh() {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    let copied = [
        ("shipped.yaml", "rendered/cert-manager.yaml"),
        ("alerts.yaml", "monitoring/alerts.yaml"),
        ("dashboard.json", "monitoring/dashboard.json"),
    ];
    let there: BTreeSet<_> = fs::read_dir(chart().join("files"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(there, copied.map(|(copy, _)| copy.to_owned()).into());
    for (copy, source) in copied {
        let text = fs::read_to_string(chart().join("files").join(copy)).unwrap();
        let source = fs::read_to_string(manifests.join(source)).unwrap();
        assert_eq!(text, source, "{copy}: run manifests/render.sh");
    }
}
