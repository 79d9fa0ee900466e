//! The requests of CAPM3's stand-in.

use futures_util::Stream;
use http::{Method, Request};
use jiff::Timestamp;
use kube::{Client, api::WatchEvent};
use serde_json::{Map, Value, json};

pub(super) const MACHINES: &str = "metal3machines";
pub(super) const CLAIMS: &str = "metal3dataclaims";
pub(super) const DATAS: &str = "metal3datas";
pub(super) const TEMPLATES: &str = "metal3datatemplates";
pub(super) const IP_CLAIMS: &str = "ipclaims";
pub(super) const CLUSTERS: &str = "clusters";
pub(super) const RESOURCES: [&str; 6] = [MACHINES, CLAIMS, DATAS, TEMPLATES, IP_CLAIMS, CLUSTERS];

const GROUP: &str = "infrastructure.cluster.x-k8s.io";

pub(super) type Result<T, E = kube::Error> = std::result::Result<T, E>;

/// The API server, for one namespace and version.
#[derive(Clone)]
pub(super) struct Api {
    client: Client,
    namespace: String,
    version: String,
}

impl Api {
    pub(super) fn new(client: Client, namespace: &str, version: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), version: version.to_owned() }
    }

    pub(super) fn is_v1beta1(&self) -> bool {
        self.version == "v1beta1"
    }

    fn url(&self, resource: &str, rest: &str) -> String {
        let Self { namespace, version, .. } = self;
        let group = match resource {
            CLUSTERS => "cluster.x-k8s.io/v1beta1".to_owned(),
            IP_CLAIMS => "ipam.metal3.io/v1alpha1".to_owned(),
            _ => format!("{GROUP}/{version}"),
        };
        let url = format!("/apis/{group}/namespaces/{namespace}/{resource}/{rest}");
        url.trim_end_matches('/').to_owned()
    }

    /// Every change since that version of the list, until the server ends it.
    pub(super) async fn events(
        &self,
        resource: &str,
        since: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Value>>> + use<>> {
        let url = format!("{}?watch=true&resourceVersion={since}", self.url(resource, ""));
        let request = Request::get(url).body(Vec::new()).map_err(kube::Error::HttpError)?;
        self.client.request_events(request).await
    }

    async fn send(&self, method: Method, url: &str, body: &Value) -> Result<Value> {
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        // The name that a refusal of the guard tells.
        let url =
            if method == Method::GET { url.into() } else { format!("{url}?fieldManager=capm3") };
        let request = Request::builder().method(method).uri(url);
        let request = request.header("Content-Type", content_type).body(body);
        self.client.request(request.map_err(kube::Error::HttpError)?).await
    }

    /// All objects, and the version of the list.
    pub(super) async fn list(&self, resource: &str) -> Result<(Vec<Value>, String)> {
        let mut listed = self.send(Method::GET, &self.url(resource, ""), &Value::Null).await?;
        let version = text(&listed["metadata"]["resourceVersion"]).to_owned();
        let items = match listed["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        Ok((items, version))
    }

    pub(super) async fn create(&self, resource: &str, object: &Value) -> Result<()> {
        self.send(Method::POST, &self.url(resource, ""), object).await.map(drop)
    }

    /// Only if nobody has changed the object since it was read.
    pub(super) async fn update(&self, resource: &str, object: &Value) -> Result<()> {
        let url = self.url(resource, text(&object["metadata"]["name"]));
        self.send(Method::PUT, &url, object).await.map(drop)
    }

    /// One that is gone already counts as deleted.
    pub(super) async fn delete(&self, resource: &str, name: &str) -> Result<()> {
        match self.send(Method::DELETE, &self.url(resource, name), &Value::Null).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Writes what differs, first the object, then its status, whatever others wrote meanwhile:
    /// a list (finalizers, owners) is replaced as a whole by what the controller makes of its
    /// copy.
    pub(super) async fn patch(&self, resource: &str, old: &Value, new: &Value) -> Result<()> {
        let name = text(&old["metadata"]["name"]);
        let Some(mut changes) = changes(old, new) else { return Ok(()) };
        let status = changes.as_object_mut().and_then(|it| it.remove("status"));
        let object = match &changes {
            changes if *changes == json!({}) => Ok(()),
            changes => self.send(Method::PATCH, &self.url(resource, name), changes).await.map(drop),
        };
        let Some(status) = status else { return object };
        // Also when the first write was refused.
        let url = self.url(resource, &format!("{name}/status"));
        match self.send(Method::PATCH, &url, &json!({"status": status})).await {
            // The last finalizer has just been taken off.
            Err(kube::Error::Api(status))
                if status.code == 404 && finalizers(new).next().is_none() =>
            {
                object
            }
            outcome => object.and_then(|()| outcome.map(drop)),
        }
    }

    /// An object that belongs to the Cluster of another one.
    pub(super) fn object(&self, kind: &str, name: &str, of: &Value) -> Value {
        let version = match kind {
            "IPClaim" => "ipam.metal3.io/v1alpha1".to_owned(),
            _ => format!("{GROUP}/{}", self.version),
        };
        json!({
            "apiVersion": version,
            "kind": kind,
            "metadata": {
                "name": name, "namespace": self.namespace, "labels": of["metadata"]["labels"],
            },
        })
    }

    /// A reference of an owner, which may be the controller.
    pub(super) fn owner(&self, kind: &str, owner: &Value, controller: bool) -> Value {
        let mut reference = json!({
            "apiVersion": format!("{GROUP}/{}", self.version),
            "kind": kind,
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        });
        if controller {
            reference["controller"] = true.into();
        }
        reference
    }

    pub(super) fn reference(&self, name: &Value) -> Value {
        json!({"name": name, "namespace": self.namespace})
    }
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn deleted_at(object: &Value) -> Option<Timestamp> {
    object["metadata"]["deletionTimestamp"].as_str()?.parse().ok()
}

fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

pub(super) fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    finalizers(object).any(|it| it == finalizer)
}

/// In the controller's copy.
pub(super) fn add_finalizer(object: &mut Value, finalizer: &str) {
    if !has_finalizer(object, finalizer) {
        object["metadata"]["finalizers"] = finalizers(object).chain([finalizer]).collect();
    }
}

/// In the controller's copy; says whether it was there.
pub(super) fn drop_finalizer(object: &mut Value, finalizer: &str) -> bool {
    let had = has_finalizer(object, finalizer);
    if had {
        object["metadata"]["finalizers"] =
            finalizers(object).filter(|it| *it != finalizer).collect();
    }
    had
}

/// The merge patch from one value to another; `None` when there is no difference.
fn changes(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut patch = Map::new();
    for key in old.keys().chain(new.keys()) {
        let (from, to) = (old.get(key), new.get(key).unwrap_or(&Value::Null));
        match from {
            Some(from) => patch.extend(changes(from, to).map(|it| (key.clone(), it))),
            None if to.is_null() => {}
            None => drop(patch.insert(key.clone(), to.clone())),
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}
