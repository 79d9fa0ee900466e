//! The few requests that the keeper makes. Nothing of a Secret gets into a log or an error.

use std::{fmt, time::Duration};

use http::{Method, Request, StatusCode, header::CONTENT_TYPE};
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::ObjectName;
use crate::{
    certificates::{
        secret::Secret,
        webhooks::{FIELD_MANAGER, Kind},
    },
    inventory::cluster::root,
};

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The API server, for the objects that the keeper works on.
pub(super) struct Api {
    client: Client,
    secret: ObjectName,
}

/// Why a request was in vain, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble(pub(super) String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a write ended when nothing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It was done.
    Done,
    /// Somebody else was first: look again.
    Conflict,
}

impl Api {
    /// For this Secret.
    pub(super) const fn new(client: Client, secret: ObjectName) -> Self {
        Self { client, secret }
    }

    /// The Secret; `None` when there is none.
    pub(super) async fn secret(&self) -> Result<Option<Secret>, Trouble> {
        let what = || format!("get secrets {}/{}", self.secret.namespace, self.secret.name);
        self.read(&self.secret_url(&self.secret.name), &what).await
    }

    pub(super) async fn create(&self, secret: &Secret) -> Result<Written, Trouble> {
        let what = || format!("create secrets in namespace {}", self.secret.namespace);
        let request = Request::post(self.secret_url("")).header(CONTENT_TYPE, "application/json");
        let sent = self.send(request, serde_json::to_vec(secret)).await;
        if let Err(Failed::Status(status)) = &sent
            && is_by_rbac(status)
        {
            // The shipped role has no right to create, and the shipped manifests have the Secret.
            let ObjectName { namespace, name } = &self.secret;
            return Err(Trouble(format!(
                "there is no Secret {namespace}/{name}, and its account may not {}: make an empty \
                 one, which will be filled",
                what()
            )));
        }
        self.written(sent, &what)
    }

    /// Replaces the Secret, if nobody has changed it since it was read.
    pub(super) async fn update(&self, secret: &Secret) -> Result<Written, Trouble> {
        let what = || format!("update secrets {}/{}", self.secret.namespace, self.secret.name);
        let request = Request::put(self.secret_url(&self.secret.name));
        let request = request.header(CONTENT_TYPE, "application/json");
        let sent = self.send(request, serde_json::to_vec(secret)).await;
        self.written(sent, &what)
    }

    /// The uid of a namespace; `None` when there is none.
    pub(super) async fn namespace(&self, name: &str) -> Result<Option<String>, Trouble> {
        let what = || format!("get namespaces {name}");
        let read: Option<Value> = self.read(&format!("/api/v1/namespaces/{name}"), &what).await?;
        let uid = |it: &Value| it.pointer("/metadata/uid")?.as_str().map(str::to_owned);
        Ok(read.as_ref().and_then(uid))
    }

    /// A webhook configuration; `None` when there is none.
    pub(super) async fn configuration(
        &self,
        kind: Kind,
        name: &str,
    ) -> Result<Option<Value>, Trouble> {
        let what = || format!("get {} {name}", kind.resource());
        self.read(&configuration_url(kind, name), &what).await
    }

    /// Changes a webhook configuration by a JSON patch.
    pub(super) async fn patch(
        &self,
        kind: Kind,
        name: &str,
        patch: &Value,
    ) -> Result<Written, Trouble> {
        let what = || format!("patch {} {name}", kind.resource());
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(configuration_url(kind, name))
            .header(CONTENT_TYPE, "application/json-patch+json");
        let sent = self.send(request, serde_json::to_vec(patch)).await;
        self.written(sent, &what)
    }

    /// Of one Secret, or with an empty name of all.
    fn secret_url(&self, name: &str) -> String {
        let all = format!("/api/v1/namespaces/{}/secrets", self.secret.namespace);
        let slash = if name.is_empty() { "" } else { "/" };
        format!("{all}{slash}{name}?fieldManager={FIELD_MANAGER}")
    }

    async fn read<T: DeserializeOwned>(
        &self,
        url: &str,
        what: &impl Fn() -> String,
    ) -> Result<Option<T>, Trouble> {
        match self.send(Request::get(url), Ok(Vec::new())).await {
            Err(Failed::Status(status)) if status.code == 404 => Ok(None),
            Err(failed) => Err(failed.trouble(what)),
            // The parser's own words may repeat what it read.
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|_| {
                Trouble(format!("the API server answered something unreadable on {}", what()))
            }),
        }
    }

    fn written(
        &self,
        sent: Result<String, Failed>,
        what: &impl Fn() -> String,
    ) -> Result<Written, Trouble> {
        match sent {
            Ok(_) => Ok(Written::Done),
            Err(Failed::Status(status)) if status.code == 409 => Ok(Written::Conflict),
            // Gone since it was read. When it is created, its namespace is missing.
            Err(Failed::Status(status)) if status.code == 404 => {
                if what().starts_with("create") {
                    let namespace = &self.secret.namespace;
                    return Err(Trouble(format!(
                        "there is no namespace {namespace}: create it, or name another one with \
                         --certs-secret"
                    )));
                }
                Ok(Written::Conflict)
            }
            Err(failed) => Err(failed.trouble(what)),
        }
    }

    /// Not by kube's own parser, which logs a body that it cannot read.
    async fn send(
        &self,
        request: http::request::Builder,
        body: Result<Vec<u8>, serde_json::Error>,
    ) -> Result<String, Failed> {
        let body = body.map_err(|error| Failed::Other(error.to_string()))?;
        let request = request.body(body).map_err(|error| Failed::Other(error.to_string()))?;
        match timeout(PATIENCE, self.client.request_text(request)).await {
            Err(_) => Err(Failed::Other("it did not answer in time".into())),
            Ok(Ok(text)) => Ok(text),
            Ok(Err(kube::Error::Api(status))) => Err(Failed::Status(status)),
            Ok(Err(error)) => Err(Failed::Other(root(&error))),
        }
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("secret", &self.secret).finish_non_exhaustive()
    }
}

enum Failed {
    Status(Box<kube::core::Status>),
    Other(String),
}

impl Failed {
    fn trouble(self, what: &impl Fn() -> String) -> Trouble {
        let status = match self {
            Self::Other(why) => {
                return Trouble(format!("the API server cannot {}: {why}", what()));
            }
            Self::Status(status) => status,
        };
        match StatusCode::from_u16(status.code) {
            _ if is_by_rbac(&status) => {
                Trouble(format!("its account may not {}: grant it in RBAC", what()))
            }
            Ok(StatusCode::UNAUTHORIZED) => {
                Trouble(format!("its account may not {}: its credentials are not accepted", what()))
            }
            _ => {
                let fields = status.details.iter().flat_map(|it| &it.causes);
                let fields: Vec<_> = fields.map(|it| &*it.field).take(3).collect();
                // The message itself may repeat a value.
                let at = if fields.is_empty() {
                    String::new()
                } else {
                    format!(" at {}", fields.join(", "))
                };
                Trouble(format!(
                    "the API server answered {} {}{at} on {}",
                    status.code,
                    status.reason,
                    what()
                ))
            }
        }
    }
}

/// Quotas and the end of a namespace are told by 403 too.
fn is_by_rbac(status: &kube::core::Status) -> bool {
    status.code == StatusCode::FORBIDDEN.as_u16() && status.message.contains(" is forbidden: User ")
}

fn configuration_url(kind: Kind, name: &str) -> String {
    let url = "/apis/admissionregistration.k8s.io/v1";
    format!("{url}/{}/{name}?fieldManager={FIELD_MANAGER}", kind.resource())
}
