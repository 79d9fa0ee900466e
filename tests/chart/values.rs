//! What each value changes, and what is refused as a value.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::helm::Helm;

const DEPLOYMENT: &str = "Deployment/metal3-guard-system/metal3-guard";
const REPAIR: &str = "ClusterRole/-/metal3-guard-repair";

/// The keys under `webhooks`, and the webhooks that they mean.
const WEBHOOKS: [(&str, &str); 6] = [
    ("deletion", "deletion.metal3-guard.io"),
    ("references", "references.metal3-guard.io"),
    ("finalizers", "finalizers.metal3-guard.io"),
    ("finalizersMutating", "finalizers.mutating.metal3-guard.io"),
    ("indexes", "indexes.metal3-guard.io"),
    ("release", "release.metal3-guard.io"),
];

#[tokio::test]
async fn each_webhook_has_its_policy_and_its_conditions() {
    let helm = Helm::alone();
    let plain = helm.template(&[]).await;
    assert_eq!(plain.webhooks().len(), WEBHOOKS.len());
    for (key, name) in WEBHOOKS {
        let other = if key == "deletion" { "Ignore" } else { "Fail" };
        let policy = format!("webhooks.{key}.failurePolicy={other}");
        let condition = format!(
            r#"webhooks.{key}.matchConditions=[{{"name":"mine","expression":"a == 'b' && c"}}]"#
        );
        let changed = helm.template(&["--set", &policy, "--set-json", &condition]).await;
        for (found, webhook) in changed.webhooks() {
            let mut expected = plain.webhooks()[found].clone();
            if found == name {
                assert_ne!(expected["failurePolicy"], other);
                expected["failurePolicy"] = json!(other);
                let added = json!({"name": "mine", "expression": "a == 'b' && c"});
                expected["matchConditions"].as_array_mut().unwrap().push(added);
            }
            assert_eq!(*webhook, expected, "{key}: {found}");
        }
    }
}

#[tokio::test]
async fn a_ca_bundle_goes_into_every_webhook() {
    let pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let bundle = format!("certificates.caBundle={pem}");
    let objects =
        Helm::alone().template(&["--set", "certificates.mode=secret", "--set", &bundle]).await;
    for (name, webhook) in objects.webhooks() {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        assert_eq!(webhook["clientConfig"]["caBundle"], BASE64_STANDARD.encode(pem), "{name}");
    }
}

#[tokio::test]
async fn the_mode_of_the_controller_decides_its_rights() {
    let helm = Helm::alone();
    let events =
        json!([{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]);
    for (mode, rules, arg) in [
        ("act", None, None),
        ("observe", Some(events), Some("--controller=observe")),
        ("off", Some(Value::Null), Some("--controller=off")),
    ] {
        let mode = format!("controller.mode={mode}");
        let objects = helm.template(&["--set", &mode]).await;
        let found: Vec<_> =
            objects.args().into_iter().filter(|arg| arg.starts_with("--controller")).collect();
        assert_eq!(found, arg.into_iter().collect::<Vec<_>>());
        let binding = "ClusterRoleBinding/-/metal3-guard-repair";
        match rules {
            // As shipped, which rendering.rs compares.
            None => assert!(objects.has(REPAIR) && objects.has(binding)),
            Some(Value::Null) => assert!(!objects.has(REPAIR) && !objects.has(binding)),
            Some(rules) => {
                assert_eq!(objects.get(REPAIR)["rules"], rules);
                assert!(objects.has(binding));
            }
        }
        let hooks = helm.hooks(&["--set", &mode]).await;
        let test = hooks.get("test Pod/metal3-guard-system/metal3-guard-test");
        let expected = json!(["doctor", format!("--{}", mode.replace(".mode", ""))]);
        assert_eq!(test["spec"]["containers"][0]["args"], expected);
    }
}

#[tokio::test]
async fn the_namespace_is_the_releases_own() {
    let helm = Helm::alone();
    for mode in super::MODES {
        let values = format!("certificates.mode={mode}");
        let shipped = helm.render(&["--set", &values]).await.ok();
        let mut elsewhere = helm.render(&["--set", &values, "--namespace", "other"]).await.ok();
        if mode == "self-managed" {
            // In the shipped one, these are the program's own defaults: of serve, and of doctor.
            let (given, rest): (Vec<_>, Vec<_>) =
                elsewhere.lines().partition(|line| line.trim_start().starts_with("- --certs-"));
            let secret = "- --certs-secret=other/metal3-guard-tls";
            let service = "- --certs-service=other/metal3-guard";
            let given: Vec<_> = given.into_iter().map(str::trim_start).collect();
            assert_eq!(given, [secret, service, secret]);
            elsewhere = rest.join("\n") + "\n";
        }
        assert_eq!(shipped.replace("metal3-guard-system", "other"), elsewhere, "{mode}");
    }
}

#[tokio::test]
async fn arguments_of_serve() {
    let helm = Helm::alone();
    let standard = ["serve", "--self-managed-certs", "--log=json"];
    assert_eq!(helm.template(&[]).await.args(), standard);
    let objects = helm
        .template(&[
            "--set=controller.wakeAfter=7s,controller.grace=2m,controller.releaseAfter=1m30s",
            "--set=finalizerAdditions=strip,log.format=text",
            "--set-json=log.level=\"info,rustls=debug\"",
            "--set=extraArgs={--drain-delay=7}",
        ])
        .await;
    let expected = [
        "serve",
        "--self-managed-certs",
        "--log=text",
        "--log-level=info,rustls=debug",
        "--wake-after=7s",
        "--grace=2m",
        "--release-after=1m30s",
        "--finalizer-additions=strip",
        "--drain-delay=7",
    ];
    assert_eq!(objects.args(), expected);
    // All of them are flags of the program, but for the one that a cluster must be there for.
    let known = std::process::Command::new(crate::support::BINARY)
        .args(["serve", "--help"])
        .output()
        .unwrap();
    let known = String::from_utf8(known.stdout).unwrap();
    for flag in expected[2..].iter().map(|arg| arg.split('=').next().unwrap()) {
        assert!(known.contains(&format!("{flag} <")), "{flag} is no flag of serve");
    }
}

#[tokio::test]
async fn the_pods_are_where_and_as_the_values_say() {
    let values = r#"
        replicas: 3
        image: {repository: registry.example.org/guard, digest: DIGEST, pullSecrets: [pull]}
        priorityClassName: ""
        nodeSelector: {role: infra}
        tolerations: []
        affinity: {nodeAffinity: {}}
        topologySpreadConstraints: []
        resources: {requests: {cpu: 1m}, limits: null}
        podLabels: {team: metal}
        podAnnotations: {note: mine}
    "#;
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.yaml");
    std::fs::write(&file, values.replace("DIGEST", &digest)).unwrap();
    let objects = Helm::alone().template(&["--values", file.to_str().unwrap()]).await;
    let deployment = &objects.get(DEPLOYMENT)["spec"];
    assert_eq!(deployment["replicas"], 3);
    let (metadata, pod) = (&deployment["template"]["metadata"], &deployment["template"]["spec"]);
    assert_eq!(metadata["labels"]["team"], "metal");
    assert_eq!(metadata["labels"]["app.kubernetes.io/name"], "metal3-guard");
    assert_eq!(metadata["annotations"]["note"], "mine");
    let container = &pod["containers"][0];
    assert_eq!(container["image"], format!("registry.example.org/guard@{digest}"));
    assert_eq!(container["resources"], json!({"requests": {"cpu": "1m", "memory": "128Mi"}}));
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(pod["nodeSelector"], json!({"role": "infra"}));
    assert_eq!(pod["affinity"], json!({"nodeAffinity": {}}));
    for absent in ["priorityClassName", "tolerations", "topologySpreadConstraints"] {
        assert_eq!(pod[absent], Value::Null, "{absent}");
    }
}

/// A budget of one out of one would keep its node from being drained.
#[tokio::test]
async fn one_replica_has_no_budget() {
    let helm = Helm::alone();
    let budget = "PodDisruptionBudget/metal3-guard-system/metal3-guard";
    assert!(helm.template(&["--set", "replicas=2"]).await.has(budget));
    assert!(!helm.template(&["--set", "replicas=1"]).await.has(budget));
}

#[tokio::test]
async fn a_network_policy_lets_reviews_in_from_everywhere() {
    let helm = Helm::alone();
    let id = "NetworkPolicy/metal3-guard-system/metal3-guard";
    assert!(!helm.template(&[]).await.has(id));
    let open = helm.template(&["--set", "networkPolicy.enabled=true"]).await;
    let (reviews, metrics) = (json!({"ports": [{"port": "https"}]}), json!([{"port": "admin"}]));
    let spec = &open.get(id)["spec"];
    assert_eq!(spec["ingress"], json!([reviews, {"ports": metrics}]));
    assert_eq!(spec["policyTypes"], json!(["Ingress"]));

    let from = r#"networkPolicy.metricsFrom=[{"podSelector":{}}]"#;
    let egress = r#"networkPolicy.egress=[{"ports":[{"port":6443}]}]"#;
    let narrow = helm
        .template(&["--set=networkPolicy.enabled=true", "--set-json", from, "--set-json", egress])
        .await;
    let spec = &narrow.get(id)["spec"];
    let metrics = json!({"ports": metrics, "from": [{"podSelector": {}}]});
    assert_eq!(spec["ingress"], json!([reviews, metrics]));
    assert_eq!(spec["egress"], json!([{"ports": [{"port": 6443}]}]));
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
}

#[tokio::test]
async fn wrong_values_are_refused() {
    let helm = Helm::alone();
    for (wrong, why) in [
        ("replicas=0", "replicas"),
        ("replicas=two", "replicas"),
        ("replicaCount=2", "replicaCount"),
        ("certificates.mode=selfmanaged", "certificates/mode"),
        ("certificates.mode=null", "mode"),
        // Only in mode `secret` are these read.
        ("certificates.secretName=mine", "certificates/secretName"),
        ("certificates.caBundle=x", "certificates/caBundle"),
        ("certificates.mode=secret,certificates.caBundle=x", "certificates/caBundle"),
        ("certificates.mode=secret,certificates.secretName=No_Name", "certificates/secretName"),
        ("controller.mode=watch", "controller/mode"),
        ("controller.grace=90", "controller/grace"),
        ("finalizerAdditions=drop", "finalizerAdditions"),
        ("log.format=xml", "log/format"),
        ("extraArgs={drain-delay}", "extraArgs/0"),
        ("webhooks.deletion.failurePolicy=ignore", "webhooks/deletion/failurePolicy"),
        ("webhooks.deletion.timeoutSeconds=9", "timeoutSeconds"),
        ("webhooks.delete.failurePolicy=Fail", "delete"),
        ("webhooks.release.matchConditions[0].name=x", "expression"),
        ("image.tag=a b", "image/tag"),
        ("image.digest=abc", "image/digest"),
        ("image.pullPolicy=Sometimes", "image/pullPolicy"),
        ("networkPolicy.enabled=1", "networkPolicy/enabled"),
        ("serviceMonitor.interval=often", "serviceMonitor/interval"),
        ("tolerations=all", "tolerations"),
    ] {
        let said = helm.render(&["--set", wrong]).await.refused();
        assert!(said.contains("values don't meet the specifications"), "{wrong}: {said}");
        assert!(said.contains(why), "{wrong}: {said}");
    }
    // What the table takes for wrong is not refused for another reason.
    helm.render(&["--set", "replicas=1,controller.grace=90s,image.tag=a_b"]).await.ok();
}

#[tokio::test]
async fn every_value_is_in_the_schema_and_in_the_file() {
    let read = |file: &str| {
        let text = std::fs::read_to_string(super::helm::chart().join(file)).unwrap();
        serde_saphyr::from_str::<Value>(&text).unwrap()
    };
    let (values, schema) = (read("values.yaml"), read("values.schema.json"));
    compare("", &values, &schema, &schema["definitions"]["webhook"]);
    Helm::alone().run(&["lint", "--strict", super::helm::chart().to_str().unwrap()]).await.ok();
}

/// Compares the keys, wherever the schema lists them.
fn compare(at: &str, values: &Value, schema: &Value, webhook: &Value) {
    let schema = if schema["$ref"].is_null() { schema } else { webhook };
    let Some(known) = schema["properties"].as_object() else { return };
    let values: BTreeMap<_, _> = values.as_object().unwrap().iter().collect();
    // Helm puts it there in a chart of charts.
    let known: BTreeMap<_, _> = known.iter().filter(|(key, _)| *key != "global").collect();
    assert_eq!(values.keys().collect::<Vec<_>>(), known.keys().collect::<Vec<_>>(), "{at}");
    assert_eq!(schema["additionalProperties"], false, "{at}");
    for (key, value) in values {
        compare(&format!("{at}.{key}"), value, known[key], webhook);
    }
}

#[tokio::test]
async fn every_mode_passes_the_linter() {
    let helm = Helm::alone();
    let chart = super::helm::chart();
    for mode in super::MODES {
        let mode = format!("certificates.mode={mode}");
        let lint = ["lint", "--strict", chart.to_str().unwrap(), "--set", &mode];
        for more in [&[][..], &["--set", "networkPolicy.enabled=true,dashboard.enabled=true"]] {
            helm.run(&[&lint, more].concat()).await.ok();
        }
    }
}
