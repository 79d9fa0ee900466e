//! The Deployment gives the server what it needs and takes what it does not.

use std::{path::Path, process::Command};

use metal3_guard::server::{Settings, TlsFiles};
use serde_json::{Value, json};

use crate::documents::{all, objects, one, texts};

/// Bytes of index for one machine, and machines, that the memory limit has to allow.
const INDEX: (u64, u64) = (4 << 10, 100_000);

/// The renderings with a server.
const SERVING: [&str; 3] = ["base", "self-managed", "cert-manager"];

/// The ones whose server reads its certificate from files.
const WITH_FILES: [&str; 2] = ["base", "cert-manager"];

fn pod(objects: &[Value]) -> &Value {
    &one(objects, "Deployment")["spec"]["template"]["spec"]
}

fn container(objects: &[Value]) -> &Value {
    match pod(objects)["containers"].as_array().unwrap().as_slice() {
        [container] => container,
        other => panic!("{} containers instead of one", other.len()),
    }
}

fn port(container: &Value, name: &str) -> u64 {
    let ports = container["ports"].as_array().unwrap();
    let port = ports.iter().find(|port| port["name"] == name);
    port.unwrap_or_else(|| panic!("no port {name}"))["containerPort"].as_u64().unwrap()
}

#[test]
fn the_pod_is_restricted() {
    for name in SERVING {
        let objects = objects(name);
        // Every level that the namespace asks for; the pod must pass the strictest.
        let labels = &one(&objects, "Namespace")["metadata"]["labels"];
        for mode in ["enforce", "audit", "warn"] {
            assert_eq!(labels[format!("pod-security.kubernetes.io/{mode}")], "restricted");
        }
        let pod = pod(&objects);
        let expected = json!({
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        assert_eq!(pod["securityContext"], expected);
        let expected = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        });
        assert_eq!(container(&objects)["securityContext"], expected);
        for unwanted in ["hostNetwork", "hostPID", "hostIPC", "initContainers"] {
            assert_eq!(pod[unwanted], Value::Null, "{unwanted}");
        }
        let volumes = pod["volumes"].as_array().into_iter().flatten();
        for volume in volumes {
            assert!(volume["secret"].is_object(), "{volume:?}");
        }
    }
}

#[test]
fn one_guard_is_there_whatever_happens() {
    for name in SERVING {
        let objects = objects(name);
        let spec = &one(&objects, "Deployment")["spec"];
        assert_eq!(spec["replicas"], 2);
        let expected = json!({
            "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
        });
        assert_eq!(spec["strategy"], expected);
        assert_eq!(one(&objects, "PodDisruptionBudget")["spec"]["minAvailable"], 1);
        let pod = pod(&objects);
        assert_eq!(pod["priorityClassName"], "system-cluster-critical");
        let spread = &pod["topologySpreadConstraints"][0];
        assert_eq!(spread["topologyKey"], "kubernetes.io/hostname");
        assert_eq!(spread["whenUnsatisfiable"], "ScheduleAnyway");
    }
}

#[test]
fn everything_selects_the_pods() {
    for name in SERVING {
        let objects = objects(name);
        let spec = &one(&objects, "Deployment")["spec"];
        let labels = spec["template"]["metadata"]["labels"].as_object().unwrap();
        let service = one(&objects, "Service");
        let budget = one(&objects, "PodDisruptionBudget");
        for selector in [
            &spec["selector"]["matchLabels"],
            &service["spec"]["selector"],
            &budget["spec"]["selector"]["matchLabels"],
            &pod(&objects)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        ] {
            let selector = selector.as_object().unwrap();
            let selects = selector.iter().all(|(key, value)| labels.get(key) == Some(value));
            assert!(selects && !selector.is_empty(), "{selector:?} of {labels:?}");
        }
        for configuration in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
            for webhook in one(&objects, configuration)["webhooks"].as_array().unwrap() {
                let called = &webhook["clientConfig"]["service"];
                assert_eq!(called["name"], service["metadata"]["name"]);
                assert_eq!(called["namespace"], service["metadata"]["namespace"]);
                assert_eq!(called["port"].as_u64().unwrap_or(443), 443);
            }
        }
    }
}

#[test]
fn ports_and_probes_are_the_servers_own() {
    for name in SERVING {
        let objects = objects(name);
        let container = container(&objects);
        let settings = Settings::new(TlsFiles::new("", ""));
        assert_eq!(port(container, "https"), u64::from(settings.listen.port()));
        assert_eq!(port(container, "admin"), u64::from(settings.admin_listen.unwrap().port()));
        let ports = &one(&objects, "Service")["spec"]["ports"];
        assert_eq!(*ports, json!([{"name": "https", "port": 443, "targetPort": "https"}]));
        for (probe, path) in
            [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
        {
            let asked = &container[probe]["httpGet"];
            assert_eq!(*asked, json!({"path": path, "port": "admin"}), "{probe}");
        }
    }
}

#[test]
fn the_grace_period_is_enough_to_drain() {
    for name in SERVING {
        let objects = objects(name);
        let drain = Settings::new(TlsFiles::new("", "")).drain;
        let needed = (drain.propagation + drain.deadline).as_secs();
        let grace = pod(&objects)["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(grace >= needed + 3, "{grace} s for {needed} s and the end of the process");
    }
}

#[test]
fn the_memory_limit_allows_what_the_server_allows_itself() {
    for name in SERVING {
        let objects = objects(name);
        let resources = &container(&objects)["resources"];
        let bodies = Settings::new(TlsFiles::new("", "")).bodies.in_flight as u64;
        let limit = bytes(&resources["limits"]["memory"]);
        assert!(limit >= bodies + INDEX.0 * INDEX.1 + (64 << 20), "{limit}");
        assert!(bytes(&resources["requests"]["memory"]) <= limit);
        assert!(resources["requests"]["cpu"].is_string());
        // A throttled guard answers late.
        assert_eq!(resources["limits"]["cpu"], Value::Null);
    }
}

fn bytes(quantity: &Value) -> u64 {
    let quantity = quantity.as_str().unwrap();
    let (digits, shift) = match quantity.split_at(quantity.len() - 2) {
        (digits, "Gi") => (digits, 30),
        (digits, "Mi") => (digits, 20),
        _ => panic!("{quantity} is neither Mi nor Gi"),
    };
    digits.parse::<u64>().unwrap() << shift
}

#[test]
fn the_arguments_are_flags_of_serve_and_files_of_the_secret() {
    let help = Command::new(env!("CARGO_BIN_EXE_metal3-guard"))
        .args(["serve", "--help"])
        .output()
        .unwrap()
        .stdout;
    let help = String::from_utf8(help).unwrap();
    let flags: Vec<_> = help.split_whitespace().filter(|word| word.starts_with("--")).collect();
    for name in SERVING {
        let objects = objects(name);
        let container = container(&objects);
        let args = texts(&container["args"]);
        assert_eq!(args[0], "serve");
        assert_eq!(container["command"], Value::Null, "the image's own entry point");
        for arg in &args[1..] {
            let (flag, value) = arg.split_once('=').unwrap_or((*arg, ""));
            assert!(flags.contains(&flag), "{flag} is no flag of serve: {flags:?}");
            if flag.starts_with("--tls") {
                assert_eq!(
                    Path::new(value).file_name().unwrap(),
                    file_of(&objects, value).as_str()
                );
            }
        }
        let needed = if WITH_FILES.contains(&name) {
            &["--tls-cert", "--tls-key", "--log"][..]
        } else {
            &["--self-managed-certs", "--log"]
        };
        assert_eq!(args.len(), 1 + needed.len());
        for needed in needed {
            assert!(args.iter().any(|arg| arg.starts_with(needed)), "{needed}");
        }
    }
}

/// The key of the Secret that a file in the container comes from.
fn file_of(objects: &[Value], file: &str) -> String {
    let mounts = container(objects)["volumeMounts"].as_array().unwrap();
    let folder = Path::new(file).parent().unwrap().to_str().unwrap();
    let mount = mounts.iter().find(|mount| mount["mountPath"] == folder).unwrap();
    assert_eq!(mount["readOnly"], true);
    // A single file would never be renewed.
    assert_eq!(mount["subPath"], Value::Null);
    let volumes = pod(objects)["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
    assert_eq!(volume["secret"]["secretName"], "metal3-guard-tls");
    assert_eq!(volume["secret"]["defaultMode"], 0o440);
    let items = volume["secret"]["items"].as_array().unwrap();
    let name = Path::new(file).file_name().unwrap().to_str().unwrap();
    let item = items.iter().find(|item| item["path"] == name).unwrap();
    item["key"].as_str().unwrap().to_owned()
}

#[test]
fn the_image_is_one_that_kustomize_can_replace() {
    for name in SERVING {
        let objects = objects(name);
        assert_eq!(container(&objects)["image"], "metal3-guard:dev", "{name}");
        for secret in all(&objects, "Secret") {
            let keys: Vec<_> = secret.as_object().unwrap().keys().collect();
            let empty = ["apiVersion", "kind", "metadata", "type"];
            assert_eq!(keys, empty, "{name}: no key is ever rendered");
        }
    }
}

/// The names that the flags default to are those of the manifests.
#[test]
fn the_guard_finds_the_shipped_objects_without_being_told() {
    let output = Command::new(env!("CARGO_BIN_EXE_metal3-guard"))
        .args(["serve", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let default = |flag: &str| {
        let after = help.split(flag).nth(1).unwrap_or_else(|| panic!("no {flag}: {help}"));
        let value = after.split("[default: ").nth(1).unwrap();
        value.split(']').next().unwrap().to_owned()
    };
    let objects = objects("self-managed");
    let name = |kind: &str| one(&objects, kind)["metadata"]["name"].as_str().unwrap();
    let namespace = name("Namespace");
    let secret = &one(&objects, "Role")["rules"][0]["resourceNames"][0];
    let secret = format!("{namespace}/{}", secret.as_str().unwrap());
    assert_eq!(default("--certs-secret"), secret);
    assert_eq!(default("--certs-service"), format!("{namespace}/{}", name("Service")));
    assert_eq!(default("--certs-mutating"), name("MutatingWebhookConfiguration"));
    assert_eq!(default("--certs-validating"), name("ValidatingWebhookConfiguration"));
}
