//! What the chart makes for Prometheus and Grafana, where they are.

use serde_json::{Value, json};

use super::helm::Helm;

const METRICS: &str = "Service/metal3-guard-system/metal3-guard-metrics";
const MONITOR: &str = "ServiceMonitor/metal3-guard-system/metal3-guard";
const RULES: &str = "PrometheusRule/metal3-guard-system/metal3-guard";
const DASHBOARD: &str = "ConfigMap/metal3-guard-system/metal3-guard-dashboard";

/// What a cluster with the Prometheus Operator knows.
pub(crate) const KNOWN: [&str; 2] = [
    "--api-versions=monitoring.coreos.com/v1/ServiceMonitor",
    "--api-versions=monitoring.coreos.com/v1/PrometheusRule",
];

#[tokio::test]
async fn kinds_of_the_operator_are_made_where_they_are_known() {
    let helm = Helm::alone();
    let plain = helm.template(&[]).await;
    for absent in [METRICS, MONITOR, RULES, DASHBOARD] {
        assert!(!plain.has(absent), "{absent}");
    }
    let with = helm.template(&KNOWN).await;
    for there in [METRICS, MONITOR, RULES] {
        assert!(with.has(there), "{there}");
    }
    let off = ["--set=serviceMonitor.enabled=false,prometheusRule.enabled=false"];
    let off = helm.template(&[&KNOWN[..], &off].concat()).await;
    for absent in [METRICS, MONITOR, RULES] {
        assert!(!off.has(absent), "{absent}");
    }
}

#[tokio::test]
async fn the_monitor_finds_the_pods_and_names_the_job_of_the_alerts() {
    let set = "--set=serviceMonitor.labels.release=prom,prometheusRule.labels.release=prom";
    let objects = Helm::alone().template(&[&KNOWN[..], &[set]].concat()).await;
    let (service, monitor) = (objects.get(METRICS), &objects.get(MONITOR)["spec"]);
    let labels = service["metadata"]["labels"].as_object().unwrap();
    for (label, value) in monitor["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(labels.get(label), Some(value));
    }
    // The Service of the webhooks has no such port, and must not be selected.
    let other = &objects.get("Service/metal3-guard-system/metal3-guard")["metadata"]["labels"];
    assert_eq!(other["app.kubernetes.io/component"], Value::Null);
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
    let deployment = objects.get("Deployment/metal3-guard-system/metal3-guard");
    let pod = &deployment["spec"]["template"];
    let selector = service["spec"]["selector"].as_object().unwrap();
    for (label, value) in selector {
        assert_eq!(pod["metadata"]["labels"][label], *value);
    }
    let port = &service["spec"]["ports"][0];
    assert_eq!(monitor["endpoints"][0]["port"], port["name"]);
    let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
    let admin = ports.iter().find(|it| it["name"] == port["targetPort"]).unwrap();
    assert_eq!(admin["containerPort"], port["port"]);

    let job = monitor["jobLabel"].as_str().unwrap();
    assert_eq!(labels[job], "metal3-guard");
    let rules = objects.get(RULES);
    assert!(rules.to_string().contains(r#"up{job=\"metal3-guard\"}"#));
    for labelled in [rules, objects.get(MONITOR)] {
        assert_eq!(labelled["metadata"]["labels"]["release"], "prom");
    }
}

#[tokio::test]
async fn the_dashboard_is_carried_whole() {
    let objects = Helm::alone().template(&["--set", "dashboard.enabled=true"]).await;
    let map = objects.get(DASHBOARD);
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let carried: Value =
        serde_json::from_str(map["data"]["metal3-guard.json"].as_str().unwrap()).unwrap();
    let file = super::helm::chart().join("../monitoring/dashboard.json");
    let source: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(carried, source);
    assert_ne!(source["panels"], json!([]));
}
