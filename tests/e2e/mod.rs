//! Scenarios against a real API server, with the guard under its own account and its hooks from
//! the shipped manifests. Each runs with both CRD sets; see `e2e_v1beta1.rs` and `e2e_v1beta2.rs`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a scenario that goes wrong fails by panicking"
)]

use std::{path::PathBuf, time::Duration};

use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

mod commands;
mod deletion;
mod doctor;
mod faults;
mod finalizers;
mod freshness;
mod indexes;
mod moves;
mod permissions;
mod references;
mod release;
mod repair;
mod rules_off;
mod self_managed;
mod stuck;
mod teardown;

use crate::support::{ControlPlane, Guard, Namespace, User, eventually, guard};

/// CAPM3's finalizer on templates.
pub(crate) const TEMPLATE_FINALIZER: &str = "metal3datatemplate.infrastructure.cluster.x-k8s.io";
/// CAPM3's finalizer on claims and Metal3Data.
pub(crate) const CLAIM_FINALIZER: &str = "metal3dataclaim.infrastructure.cluster.x-k8s.io";
/// CAPM3's finalizer on Metal3Data.
pub(crate) const DATA_FINALIZER: &str = "metal3data.infrastructure.cluster.x-k8s.io";
/// CAPM3's finalizer on machines and claims.
pub(crate) const MACHINE_FINALIZER: &str = "metal3machine.infrastructure.cluster.x-k8s.io";

/// A set of CRDs, and the version that objects are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crds {
    /// CAPM3 1.8.1: v1beta1 only.
    V1beta1,
    /// CAPM3 1.14: v1beta1 served, v1beta2 stored.
    V1beta2,
}

impl Crds {
    /// The set that this test binary is for.
    pub(crate) fn of_binary() -> Self {
        match env!("CARGO_CRATE_NAME") {
            "e2e_v1beta1" => Self::V1beta1,
            "e2e_v1beta2" => Self::V1beta2,
            other => panic!("{other} is no e2e binary"),
        }
    }

    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::V1beta1 => "v1beta1",
            Self::V1beta2 => "v1beta2",
        }
    }

    /// CAPM3's own CRDs where they are at hand, else the project's.
    fn files(self) -> Vec<PathBuf> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let real = root.join("../shared/crds").join(match self {
            Self::V1beta1 => "capm3-v1.8.1",
            Self::V1beta2 => "capm3-v1.14.0-rc.0",
        });
        let own = root.join("tests/data/crds");
        let metal3 =
            if real.exists() { real } else { own.join(format!("{}.yaml", self.version())) };
        vec![metal3, own.join("others.yaml")]
    }
}

/// A control plane with the CRDs and a registered guard, shared by the tests of this binary.
pub(crate) struct Env {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) guard: Guard,
}

/// The shared environment, made by the first test that asks.
pub(crate) async fn env() -> &'static Env {
    static ENV: OnceCell<Env> = OnceCell::const_new();
    ENV.get_or_init(async || {
        let plane = ControlPlane::shared().await;
        prepare(plane).await;
        let kubeconfig = plane.kubeconfig(User::Guard);
        let guard = Guard::start(plane, &kubeconfig, "127.0.0.1:0", &[]).await.unwrap();
        let manifests = rules_off::shipped_or_less(guard.manifests().unwrap());
        guard::apply(plane, &manifests).await.unwrap();
        plane.bind(User::Guard, "metal3-guard").await;
        plane.bind(User::Guard, "metal3-guard-repair").await;
        guard.ready().await;
        let env = Env { plane, guard };
        wait_registered(&env.space("registered").await).await;
        env
    })
    .await
}

/// Installs the CRDs of this binary; the garbage collector then knows them at once.
pub(crate) async fn prepare(plane: &ControlPlane) {
    for file in Crds::of_binary().files() {
        plane.install_crds(&file).await;
    }
    plane.restart_controller_manager().await;
}

impl Env {
    /// A namespace of the test's own, with a client of a user.
    pub(crate) async fn space(&self, hint: &str) -> Space {
        let namespace = self.plane.namespace(hint).await;
        let client = self.plane.client(User::Admin).await;
        Space { client, namespace }
    }
}

/// Waits until the API server calls the guard: for a write that is refused on sight.
pub(crate) async fn wait_registered(space: &Space) {
    let mut probe = space.template("probe");
    if rules_off::is_off(rules_off::DELETION) {
        space.create(&probe).await.unwrap();
        space.delete("metal3datatemplates", "probe").await.unwrap();
        let machine = space.machine("probe", "probe");
        eventually("the API server to call the guard", async || {
            let url = format!("{}?dryRun=All", space.url("metal3machines", "", ""));
            space.send(Method::POST, &url, Some(("application/json", &machine))).await.err()
        })
        .await;
        return;
    }
    probe["metadata"]["annotations"] = json!({"metal3-guard.io/force-delete": ""});
    space.create(&probe).await.unwrap();
    eventually("the API server to call the guard", async || {
        let url = format!("{}?dryRun=All", space.url("metal3datatemplates", "probe", ""));
        space.send(Method::DELETE, &url, None).await.err()
    })
    .await;
}

/// What the API server refused with.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) causes: Vec<Value>,
    /// Seconds; 0 when the answer names none.
    pub(crate) retry_after: u32,
}

/// One test's namespace, spoken to as one user.
pub(crate) struct Space {
    pub(crate) client: Client,
    pub(crate) namespace: Namespace,
}

impl Space {
    pub(crate) fn ns(&self) -> &str {
        self.namespace.name()
    }

    /// The URL of an object (or, with an empty name, of all), in this binary's version.
    pub(crate) fn url(&self, resource: &str, name: &str, subresource: &str) -> String {
        let base = match resource {
            "clusters" => "/apis/cluster.x-k8s.io/v1beta1".into(),
            "ipclaims" => "/apis/ipam.metal3.io/v1alpha1".into(),
            _ => format!("/apis/infrastructure.cluster.x-k8s.io/{}", Crds::of_binary().version()),
        };
        let mut url = format!("{base}/namespaces/{}/{resource}", self.ns());
        for part in [name, subresource].into_iter().filter(|part| !part.is_empty()) {
            url.push('/');
            url.push_str(part);
        }
        url
    }

    /// One request; the API server's refusal is an error.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value, Refused> {
        let content_type = body.map_or("application/json", |(content_type, _)| content_type);
        let bytes = body.map(|(_, body)| serde_json::to_vec(body).unwrap()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header("Content-Type", content_type)
            .body(bytes)
            .unwrap();
        match self.client.request::<Value>(request).await {
            Ok(value) => Ok(value),
            Err(kube::Error::Api(status)) => Err(Refused {
                code: status.code,
                reason: status.reason.clone(),
                message: status.message.clone(),
                retry_after: status.details.as_ref().map_or(0, |it| it.retry_after_seconds),
                causes: status
                    .details
                    .as_ref()
                    .map(|it| it.causes.iter().map(|c| serde_json::to_value(c).unwrap()).collect())
                    .unwrap_or_default(),
            }),
            Err(error) => panic!("{url}: {error}"),
        }
    }

    pub(crate) async fn create(&self, object: &Value) -> Result<Value, Refused> {
        let url = self.url(resource_of(object), "", "");
        self.send(Method::POST, &url, Some(("application/json", object))).await
    }

    pub(crate) async fn get(&self, resource: &str, name: &str) -> Option<Value> {
        match self.send(Method::GET, &self.url(resource, name, ""), None).await {
            Ok(object) => Some(object),
            Err(refused) if refused.code == 404 => None,
            Err(refused) => panic!("{refused:?}"),
        }
    }

    pub(crate) async fn delete(&self, resource: &str, name: &str) -> Result<Value, Refused> {
        self.send(Method::DELETE, &self.url(resource, name, ""), None).await
    }

    /// A merge patch.
    pub(crate) async fn patch(
        &self,
        resource: &str,
        name: &str,
        subresource: &str,
        patch: Value,
    ) -> Result<Value, Refused> {
        let url = self.url(resource, name, subresource);
        self.send(Method::PATCH, &url, Some(("application/merge-patch+json", &patch))).await
    }

    /// Waits until an object is gone.
    pub(crate) async fn gone(&self, resource: &str, name: &str) {
        eventually(&format!("{resource}/{name} to be gone"), async || {
            self.get(resource, name).await.is_none().then_some(())
        })
        .await;
    }

    /// Takes all finalizers off, as an object's controllers would.
    pub(crate) async fn finish(&self, resource: &str, name: &str) {
        let none = json!({"metadata": {"finalizers": null}});
        self.patch(resource, name, "", none).await.unwrap();
    }

    /// A template with CAPM3's finalizer.
    pub(crate) fn template(&self, name: &str) -> Value {
        let spec = match Crds::of_binary() {
            Crds::V1beta1 => json!({"clusterName": "prod"}),
            Crds::V1beta2 => json!({}),
        };
        self.object("Metal3DataTemplate", name, &[TEMPLATE_FINALIZER], &spec)
    }

    /// A machine that uses `template`, with CAPM3's finalizer.
    pub(crate) fn machine(&self, name: &str, template: &str) -> Value {
        let image = match Crds::of_binary() {
            Crds::V1beta1 => {
                json!({"url": "http://images/node.qcow2", "checksum": "http://images/sum",
                                    "checksumType": "sha256", "format": "qcow2"})
            }
            Crds::V1beta2 => {
                json!({"url": "http://images/node.qcow2", "checksum": "http://images/sum",
                                    "checksumType": "sha256", "diskFormat": "qcow2"})
            }
        };
        let spec = json!({"dataTemplate": {"name": template}, "image": image});
        self.object("Metal3Machine", name, &[MACHINE_FINALIZER], &spec)
    }

    /// A claim for `template`, with both of CAPM3's finalizers.
    pub(crate) fn claim(&self, name: &str, template: &str) -> Value {
        let spec = json!({"template": {"name": template}});
        self.object("Metal3DataClaim", name, &[MACHINE_FINALIZER, CLAIM_FINALIZER], &spec)
    }

    /// A Metal3Data of `template` for `claim`, with both of CAPM3's finalizers.
    pub(crate) fn data(&self, template: &str, index: i64, claim: &str) -> Value {
        let spec = json!({
            "template": {"name": template}, "claim": {"name": claim}, "index": index,
        });
        let name = format!("{template}-{index}");
        self.object("Metal3Data", &name, &[CLAIM_FINALIZER, DATA_FINALIZER], &spec)
    }

    /// A machine template whose machines use `template`.
    pub(crate) fn machine_template(&self, name: &str, template: &str) -> Value {
        let spec = self.machine("m", template)["spec"].clone();
        let spec = json!({"template": {"spec": spec}});
        self.object("Metal3MachineTemplate", name, &[], &spec)
    }

    /// Any object of the Metal3 group.
    pub(crate) fn object(
        &self,
        kind: &str,
        name: &str,
        finalizers: &[&str],
        spec: &Value,
    ) -> Value {
        json!({
            "apiVersion": format!("infrastructure.cluster.x-k8s.io/{}", Crds::of_binary().version()),
            "kind": kind,
            "metadata": {
                "name": name, "namespace": self.ns(), "finalizers": finalizers,
                "labels": {"cluster.x-k8s.io/cluster-name": "prod"},
            },
            "spec": spec,
        })
    }
}

fn resource_of(object: &Value) -> &'static str {
    match object["kind"].as_str().unwrap_or_default() {
        "Cluster" => "clusters",
        "IPClaim" => "ipclaims",
        "Metal3Data" => "metal3datas",
        "Metal3DataClaim" => "metal3dataclaims",
        "Metal3DataTemplate" => "metal3datatemplates",
        "Metal3Machine" => "metal3machines",
        "Metal3MachineTemplate" => "metal3machinetemplates",
        other => panic!("no resource for kind {other}"),
    }
}

/// A pause that a real cluster would also have between two steps of a person.
pub(crate) async fn moment() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}
