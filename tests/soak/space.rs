//! One of the two namespaces of a walk, and what can be asked of the API server about it.

use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use crate::support::{ControlPlane, Namespace, User};

pub(crate) const CLUSTERS: &str = "clusters";
pub(crate) const TEMPLATES: &str = "metal3datatemplates";
pub(crate) const MACHINES: &str = "metal3machines";
pub(crate) const MACHINE_TEMPLATES: &str = "metal3machinetemplates";
pub(crate) const CLAIMS: &str = "metal3dataclaims";
pub(crate) const DATAS: &str = "metal3datas";
pub(crate) const IP_CLAIMS: &str = "ipclaims";

/// All kinds that a walk makes, owners before what they own.
pub(crate) const RESOURCES: [&str; 7] =
    [CLUSTERS, TEMPLATES, MACHINE_TEMPLATES, MACHINES, CLAIMS, DATAS, IP_CLAIMS];

pub(crate) const TEMPLATE_FINALIZER: &str = "metal3datatemplate.infrastructure.cluster.x-k8s.io";
pub(crate) const CLAIM_FINALIZER: &str = "metal3dataclaim.infrastructure.cluster.x-k8s.io";
pub(crate) const MACHINE_FINALIZER: &str = "metal3machine.infrastructure.cluster.x-k8s.io";
/// Nobody's.
pub(crate) const HOLD: &str = "backup.example.com/hold";

pub(crate) const PAUSED: &str = "cluster.x-k8s.io/paused";

/// Why a request did not succeed.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// 0 when there was no answer.
    pub(crate) code: u16,
    pub(crate) message: String,
}

pub(crate) type Sent<T = Value> = Result<T, Refused>;

/// A namespace, spoken to by a person with all rights, and by a controller.
pub(crate) struct Space {
    namespace: Namespace,
    version: &'static str,
    person: Client,
    controller: Client,
}

impl Space {
    /// A new namespace with `hint` in its name.
    pub(crate) async fn new(plane: &ControlPlane, hint: &str, version: &'static str) -> Self {
        Self {
            namespace: plane.namespace(hint).await,
            version,
            person: plane.client(User::Admin).await,
            controller: plane.client(User::Capi).await,
        }
    }

    pub(crate) fn ns(&self) -> &str {
        self.namespace.name()
    }

    /// The URL of an object or, with an empty name, of all.
    pub(crate) fn url(&self, resource: &str, name: &str) -> String {
        let group = match resource {
            CLUSTERS => "cluster.x-k8s.io/v1beta1".to_owned(),
            IP_CLAIMS => "ipam.metal3.io/v1alpha1".to_owned(),
            _ => format!("infrastructure.cluster.x-k8s.io/{}", self.version),
        };
        let url = format!("/apis/{group}/namespaces/{}/{resource}/{name}", self.ns());
        url.trim_end_matches('/').to_owned()
    }

    pub(crate) async fn get(&self, resource: &str, name: &str) -> Sent<Option<Value>> {
        match self.send(Method::GET, &self.url(resource, name), &Value::Null).await {
            Ok(object) => Ok(Some(object)),
            Err(refused) if refused.code == 404 => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    pub(crate) async fn list(&self, resource: &str) -> Sent<Vec<Value>> {
        let mut listed = self.send(Method::GET, &self.url(resource, ""), &Value::Null).await?;
        match listed["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    pub(crate) async fn create(&self, resource: &str, object: &Value) -> Sent {
        self.send(Method::POST, &self.url(resource, ""), object).await
    }

    pub(crate) async fn delete(&self, resource: &str, name: &str, options: &Value) -> Sent {
        self.send(Method::DELETE, &self.url(resource, name), options).await
    }

    /// A merge patch.
    pub(crate) async fn patch(&self, resource: &str, name: &str, patch: &Value) -> Sent {
        self.send(Method::PATCH, &self.url(resource, name), patch).await
    }

    /// A merge patch by a controller.
    pub(crate) async fn patch_as_controller(
        &self,
        resource: &str,
        name: &str,
        patch: &Value,
    ) -> Sent {
        let url = format!("{}?fieldManager=stale-controller", self.url(resource, name));
        send(&self.controller, Method::PATCH, &url, patch).await
    }

    pub(crate) async fn delete_namespace(&self) -> Sent<()> {
        let url = format!("/api/v1/namespaces/{}", self.ns());
        match self.send(Method::DELETE, &url, &Value::Null).await {
            // On its way already.
            Err(refused) if ![404, 409].contains(&refused.code) => Err(refused),
            _ => Ok(()),
        }
    }

    /// Whether the namespace is gone.
    pub(crate) async fn is_gone(&self) -> bool {
        let url = format!("/api/v1/namespaces/{}", self.ns());
        let asked = self.send(Method::GET, &url, &Value::Null).await;
        asked.is_err_and(|refused| refused.code == 404)
    }

    /// As the person. A JSON array is a JSON patch, another body of a PATCH a merge patch.
    pub(crate) async fn send(&self, method: Method, url: &str, body: &Value) -> Sent {
        send(&self.person, method, url, body).await
    }

    /// An object of the Metal3 group.
    pub(crate) fn object(&self, kind: &str, name: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": format!("infrastructure.cluster.x-k8s.io/{}", self.version),
            "kind": kind,
            "metadata": {
                "name": name, "namespace": self.ns(),
                "labels": {"cluster.x-k8s.io/cluster-name": "prod"},
            },
            "spec": spec,
        })
    }

    pub(crate) fn cluster(&self) -> Value {
        let endpoint = json!({"controlPlaneEndpoint": {"host": "10.9.0.1", "port": 6443}});
        let mut cluster = self.object("Cluster", "prod", &endpoint);
        cluster["apiVersion"] = "cluster.x-k8s.io/v1beta1".into();
        cluster
    }

    /// A template whose Metal3Data get an address each, or none.
    pub(crate) fn template(&self, name: &str, addresses: bool) -> Value {
        let mut spec = json!({});
        let mut pools = "ipAddressesFromPool";
        if self.version == "v1beta1" {
            spec["clusterName"] = "prod".into();
            pools = "ipAddressesFromIPPool";
        }
        if addresses {
            spec["metaData"] = json!({pools: [{"key": "ip", "name": "pool"}]});
        }
        self.object("Metal3DataTemplate", name, &spec)
    }

    /// A machine with CAPM3's finalizer, as it has it long before it gets a claim.
    pub(crate) fn machine(&self, name: &str, template: &str) -> Value {
        let mut machine = self.object("Metal3Machine", name, &self.machine_spec(template));
        machine["metadata"]["finalizers"] = json!([MACHINE_FINALIZER]);
        machine
    }

    pub(crate) fn machine_template(&self, template: &str) -> Value {
        let spec = json!({"template": {"spec": self.machine_spec(template)}});
        self.object("Metal3MachineTemplate", template, &spec)
    }

    fn machine_spec(&self, template: &str) -> Value {
        let format = if self.version == "v1beta1" { "format" } else { "diskFormat" };
        json!({
            "dataTemplate": {"name": template},
            "image": {
                "url": "http://images/node.qcow2", "checksum": "http://images/sum",
                "checksumType": "sha256", format: "qcow2",
            },
        })
    }
}

async fn send(client: &Client, method: Method, url: &str, body: &Value) -> Sent {
    let content_type = match (&method, body) {
        (&Method::PATCH, Value::Array(_)) => "application/json-patch+json",
        (&Method::PATCH, _) => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(url).header("Content-Type", content_type);
    match client.request(request.body(body).unwrap()).await {
        Ok(value) => Ok(value),
        Err(kube::Error::Api(status)) => {
            Err(Refused { code: status.code, message: status.message.clone() })
        }
        Err(error) => Err(Refused { code: 0, message: error.to_string() }),
    }
}
