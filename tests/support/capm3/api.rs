//! The requests of CAPM3's stand-in.

use futures_util::Stream;
use http::{Method, Request};
use jiff::Timestamp;
use kube::{Client, api::WatchEvent};
use serde_json::{Value, json};

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
        let url = format!("/apis/{GROUP}/{version}/namespaces/{namespace}/{resource}/{rest}");
        url.trim_end_matches('/').to_owned()
    }

    /// Everything there is, then every change, until the server ends it.
    pub(super) async fn events(
        &self,
        resource: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Value>>> + use<>> {
        let request = Request::get(format!("{}?watch=true", self.url(resource, "")));
        let request = request.body(Vec::new()).map_err(kube::Error::HttpError)?;
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

    pub(super) async fn get(&self, resource: &str, name: &str) -> Result<Option<Value>> {
        match self.send(Method::GET, &self.url(resource, name), &Value::Null).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn list(&self, resource: &str) -> Result<Vec<Value>> {
        let listed = self.send(Method::GET, &self.url(resource, ""), &Value::Null).await?;
        Ok(listed["items"].as_array().cloned().unwrap_or_default())
    }

    pub(super) async fn create(&self, resource: &str, object: &Value) -> Result<()> {
        self.send(Method::POST, &self.url(resource, ""), object).await.map(drop)
    }

    pub(super) async fn replace(&self, resource: &str, name: &str, object: &Value) -> Result<()> {
        self.send(Method::PUT, &self.url(resource, name), object).await.map(drop)
    }

    pub(super) async fn patch(&self, resource: &str, name: &str, patch: &Value) -> Result<()> {
        self.send(Method::PATCH, &self.url(resource, name), patch).await.map(drop)
    }

    /// One that is gone already counts as deleted.
    pub(super) async fn delete(&self, resource: &str, name: &str) -> Result<()> {
        match self.send(Method::DELETE, &self.url(resource, name), &Value::Null).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    pub(super) async fn add_finalizer(
        &self,
        resource: &str,
        object: &Value,
        finalizer: &str,
    ) -> Result<()> {
        if has_finalizer(object, finalizer) {
            return Ok(());
        }
        let added = finalizers(object).chain([finalizer]);
        self.write_finalizers(resource, object, added.collect()).await
    }

    pub(super) async fn drop_finalizer(
        &self,
        resource: &str,
        object: &Value,
        finalizer: &str,
    ) -> Result<()> {
        if !has_finalizer(object, finalizer) {
            return Ok(());
        }
        let kept = finalizers(object).filter(|it| *it != finalizer);
        self.write_finalizers(resource, object, kept.collect()).await
    }

    /// The whole list, as CAPM3 does: it puts back what others took off since the object was read.
    async fn write_finalizers(&self, resource: &str, old: &Value, new: Vec<&str>) -> Result<()> {
        let version = &old["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"finalizers": new, "resourceVersion": version}});
        self.patch(resource, text(&old["metadata"]["name"]), &patch).await
    }

    /// An object that belongs to the Cluster of another one.
    pub(super) fn object(&self, kind: &str, name: &str, of: &Value) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/{}", self.version),
            "kind": kind,
            "metadata": {
                "name": name, "namespace": self.namespace, "labels": of["metadata"]["labels"],
            },
        })
    }

    pub(super) fn owner(&self, kind: &str, owner: &Value, controller: bool) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/{}", self.version),
            "kind": kind,
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": controller,
        })
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
