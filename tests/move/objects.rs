//! A Cluster as it is when everything about it is provisioned and its machines are to come, in the
//! two versions of its world: Cluster API 1.9 with CAPM3 1.9, and 1.14 with 1.14.
//!
//! Cluster API's core manager does its own part. What CAPM3 and the kubeadm control plane would do,
//! their finalizers and their status, is done here once and for all.

use serde_json::{Value, json};

use crate::support::Release;

const CORE: &str = "cluster.x-k8s.io";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// The objects that exist before the Cluster, and then the status that their controllers write.
pub(crate) fn parts(release: Release, namespace: &str) -> [(Value, Value); 2] {
    let kubeadm = json!({"machineTemplate": machines(release, namespace),
        "version": "v1.33.0", "replicas": 1, "kubeadmConfigSpec": {"format": "cloud-config"}});
    let (ready, initialized) = match release {
        Release::V1_9 => (json!({"ready": true}), json!({"ready": true, "initialized": true})),
        Release::V1_14 => (
            json!({"initialization": {"provisioned": true}}),
            json!({"initialization": {"controlPlaneInitialized": true}}),
        ),
    };
    let endpoint = json!({"controlPlaneEndpoint": {"host": "10.9.0.1", "port": 6443}});
    [
        (object(release, INFRASTRUCTURE, "Metal3Cluster", "prod", &endpoint), ready),
        (object(release, CONTROL_PLANE, "KubeadmControlPlane", "prod", &kubeadm), initialized),
    ]
}

/// The Cluster.
pub(crate) fn cluster(release: Release, namespace: &str) -> Value {
    let reference = |group, kind| reference(release, namespace, group, kind, "prod");
    let spec = json!({
        "controlPlaneRef": reference(CONTROL_PLANE, "KubeadmControlPlane"),
        "infrastructureRef": reference(INFRASTRUCTURE, "Metal3Cluster"),
    });
    object(release, CORE, "Cluster", "prod", &spec)
}

/// The templates, and the workers that are to come of them.
pub(crate) fn templates_and_workers(
    release: Release,
    namespace: &str,
    cluster: &Value,
) -> Vec<Value> {
    let owner = json!({"apiVersion": cluster["apiVersion"], "kind": "Cluster", "name": "prod",
        "uid": cluster["metadata"]["uid"]});
    let machine_template = |name: &str| {
        let format = match release {
            Release::V1_9 => "format",
            Release::V1_14 => "diskFormat",
        };
        let spec = json!({
            "dataTemplate": {"name": "prod-data"},
            "image": {"url": "http://images/node.qcow2", "checksum": "http://images/sum",
                "checksumType": "sha256", format: "qcow2"},
        });
        let spec = json!({"template": {"spec": spec}});
        object(release, INFRASTRUCTURE, "Metal3MachineTemplate", name, &spec)
    };
    // Of the control plane's templates its own controller is the one that names the owner.
    let mut of_control_plane = machine_template("prod-controlplane");
    of_control_plane["metadata"]["ownerReferences"] = json!([owner]);
    let spec = match release {
        Release::V1_9 => json!({"clusterName": "prod"}),
        Release::V1_14 => json!({}),
    };
    let mut data = object(release, INFRASTRUCTURE, "Metal3DataTemplate", "prod-data", &spec);
    if release == Release::V1_9 {
        data["metadata"]["ownerReferences"] = json!([owner]);
    }
    vec![data, of_control_plane, machine_template("prod-workers"), workers(release, namespace)]
}

/// clusterctl's inventory of what is installed, with the namespaces that it is installed in.
pub(crate) fn providers(release: Release) -> Value {
    let (core, metal3) = match release {
        Release::V1_9 => ("v1.9.4", "v1.9.4"),
        Release::V1_14 => ("v1.14.2", "v1.14.0"),
    };
    let mut items = Vec::new();
    for (namespace, label, name, kind, version) in [
        ("capi-system", "cluster-api", "cluster-api", "CoreProvider", core),
        ("capm3-system", "infrastructure-metal3", "metal3", "InfrastructureProvider", metal3),
    ] {
        items.push(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        );
        items.push(json!({
            "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
            "kind": "Provider",
            "metadata": {
                "name": label, "namespace": namespace,
                "labels": {"clusterctl.cluster.x-k8s.io": "", "cluster.x-k8s.io/provider": label},
            },
            "providerName": name, "type": kind, "version": version,
        }));
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// A template that may not be deleted, and one that may not get a finalizer.
pub(crate) fn probes(release: Release) -> Value {
    let spec = json!({"clusterName": "prod"});
    let probes = [("not-deleted", "metal3-guard.io/force-delete"), ("no-finalizer", crate::MARK)]
        .map(|(name, annotation)| {
            let mut probe = object(release, INFRASTRUCTURE, "Metal3DataTemplate", name, &spec);
            probe["metadata"]["annotations"] = json!({annotation: ""});
            probe
        });
    json!({"apiVersion": "v1", "kind": "List", "items": probes})
}

/// No machine runs, but its manager gives it a `MachineSet`, owners and finalizers.
fn workers(release: Release, namespace: &str) -> Value {
    let labels = json!({"cluster.x-k8s.io/cluster-name": "prod",
        "cluster.x-k8s.io/deployment-name": "prod-workers"});
    let rolling = json!({"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    let mut spec = json!({
        "clusterName": "prod", "replicas": 0,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "clusterName": "prod", "version": "v1.33.0",
                "bootstrap": {"dataSecretName": "prod-workers"},
                "infrastructureRef": machine_template(release, namespace, "prod-workers"),
            },
        },
    });
    match release {
        // The defaults of a webhook that is not registered here.
        Release::V1_9 => {
            spec["strategy"] = rolling;
            spec["minReadySeconds"] = json!(0);
            spec["progressDeadlineSeconds"] = json!(600);
            spec["revisionHistoryLimit"] = json!(1);
        }
        Release::V1_14 => spec["rollout"] = json!({"strategy": rolling}),
    }
    object(release, CORE, "MachineDeployment", "prod-workers", &spec)
}

/// What the control plane makes its machines of.
fn machines(release: Release, namespace: &str) -> Value {
    let reference = machine_template(release, namespace, "prod-controlplane");
    match release {
        Release::V1_9 => json!({"infrastructureRef": reference}),
        Release::V1_14 => json!({"spec": {"infrastructureRef": reference}}),
    }
}

fn machine_template(release: Release, namespace: &str, name: &str) -> Value {
    reference(release, namespace, INFRASTRUCTURE, "Metal3MachineTemplate", name)
}

fn reference(release: Release, namespace: &str, group: &str, kind: &str, name: &str) -> Value {
    match release {
        // The namespace is another default of a webhook that is not registered here.
        Release::V1_9 => json!({"apiVersion": format!("{group}/v1beta1"), "kind": kind,
            "name": name, "namespace": namespace}),
        Release::V1_14 => json!({"apiGroup": group, "kind": kind, "name": name}),
    }
}

fn object(release: Release, group: &str, kind: &str, name: &str, spec: &Value) -> Value {
    let finalizers = match kind {
        "KubeadmControlPlane" => json!(["kubeadm.controlplane.cluster.x-k8s.io"]),
        "Metal3Cluster" => json!(["metal3cluster.infrastructure.cluster.x-k8s.io"]),
        "Metal3DataTemplate" => json!(["metal3datatemplate.infrastructure.cluster.x-k8s.io"]),
        // Cluster API's core manager puts its own, and machine templates have none.
        _ => json!([]),
    };
    json!({
        "apiVersion": format!("{group}/{}", release.version()),
        "kind": kind,
        "metadata": {
            "name": name, "finalizers": finalizers,
            "labels": {"cluster.x-k8s.io/cluster-name": "prod"},
        },
        "spec": spec,
    })
}
