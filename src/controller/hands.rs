//! The guard's hands: carries out one [`Write`], under its precondition, with an audit line.
//!
//! The only place that changes objects of a cluster. Every call names the uid and resourceVersion
//! that the plan was made from, so whatever came in between wins.

use std::{fmt, sync::Arc, time::Duration};

use http::{StatusCode, header::CONTENT_TYPE};
use jiff::Timestamp;
use kube::{
    Resource as _,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, Request},
    core::request::Error as RequestError,
};
use serde_json::{Map, Value, json};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout, timeout_at},
};

use super::pace::Pace;
use crate::{
    core::{
        objects::WOKEN_ANNOTATION,
        plan::Step,
        teardown::{Change, Target, Write},
    },
    inventory::cluster::{Cluster, root},
};

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "metal3-guard";

/// How long one write may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most writes under way; more than anyone begins at once.
const SIDE_BY_SIDE: usize = 64;

/// Carries out steps.
#[derive(Debug)]
pub struct Hands {
    cluster: Arc<Cluster>,
    pace: Pace,
    /// One for each write under way.
    under_way: Semaphore,
    /// For the audit line: the controller, or the reason that a person gave.
    on_behalf_of: String,
}

/// How a step ended, when nothing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was done.
    Done,
    /// Someone else changed the object first: look again.
    Conflict,
    /// The object is gone.
    Gone,
}

impl Written {
    /// One word for logs and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Conflict => "conflict",
            Self::Gone => "gone",
        }
    }
}

/// Why a step was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotWritten {
    /// Whether the API server said no, rather than nothing.
    pub refused: bool,
    /// What it said, and what to do.
    pub why: String,
}

impl fmt::Display for NotWritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Hands {
    /// Hands that write no faster than `pace`. `on_behalf_of` stands in every audit line.
    pub fn new(cluster: Arc<Cluster>, pace: Pace, on_behalf_of: impl Into<String>) -> Self {
        let under_way = Semaphore::new(SIDE_BY_SIDE);
        Self { cluster, pace, under_way, on_behalf_of: on_behalf_of.into() }
    }

    /// Carries out one step and leaves an audit line.
    ///
    /// # Errors
    /// When the API server refused it or did not answer; in the latter case it may have been done.
    pub async fn carry_out(&self, step: &Step) -> Result<Written, NotWritten> {
        self.pace.wait().await;
        // Never closed as a whole.
        let _under_way = self.under_way.acquire().await;
        let outcome = self.write(&step.write).await;
        let Target { kind, namespace, name, uid, resource_version } = step.write.target();
        let removed = match step.write.change() {
            Change::Strip { finalizer, .. } => finalizer,
            Change::Wake | Change::PruneIndexes(_) | Change::Delete => "",
        };
        let result = match &outcome {
            Ok(written) => written.word(),
            Err(NotWritten { refused: true, .. }) => "refused",
            Err(NotWritten { refused: false, .. }) => "failed",
        };
        let error = outcome.as_ref().err().map(tracing::field::display);
        tracing::info!(
            step = step.action.word(), %kind, namespace, name, uid, resource_version, removed,
            reason = step.reason, on_behalf_of = self.on_behalf_of, result, error, "write"
        );
        outcome
    }

    /// Waits until the writes under way have ended and left their lines, and begins none any more:
    /// for the end of the program.
    pub async fn rest(&self) {
        let all = u32::try_from(SIDE_BY_SIDE).unwrap_or(u32::MAX);
        if let Ok(all) = timeout(PATIENCE, self.under_way.acquire_many(all)).await {
            all.map(SemaphorePermit::forget).ok();
        }
    }

    async fn write(&self, write: &Write) -> Result<Written, NotWritten> {
        let deadline = Instant::now() + PATIENCE;
        let kind = write.target().kind;
        let resource = self.cluster.resource(kind, deadline).await.map_err(|it| failed(it.why))?;
        let Some(resource) = resource else { return Ok(Written::Gone) };
        let request = request(write, &resource, Timestamp::now())
            .map_err(|error| refused(error.to_string()))?;
        let sending = self.cluster.client().request::<serde::de::IgnoredAny>(request);
        match timeout_at(deadline, sending).await {
            Err(_) => Err(failed("the API server did not answer in time".into())),
            // Whatever else it says, an answer that is no refusal says yes.
            Ok(Ok(_) | Err(kube::Error::SerdeError(_))) => Ok(Written::Done),
            Ok(Err(kube::Error::Api(status))) => sort(&status, write, &resource),
            Ok(Err(error)) => {
                Err(failed(format!("the API server cannot be reached: {}", root(&error))))
            }
        }
    }
}

/// The request that makes a write, its precondition included.
fn request(
    write: &Write,
    resource: &ApiResource,
    now: Timestamp,
) -> Result<http::Request<Vec<u8>>, RequestError> {
    let Target { namespace, name, uid, resource_version, .. } = write.target();
    let requests = Request::new(DynamicObject::url_path(resource, Some(namespace)));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let merge = |field: &str, value: Value| {
        let precondition = [("uid", json!(uid)), ("resourceVersion", json!(resource_version))];
        let fields = precondition.into_iter().chain([(field, value)]);
        let metadata: Map<_, _> = fields.map(|(key, value)| (key.to_owned(), value)).collect();
        Patch::Merge(json!({ "metadata": metadata }))
    };
    match write.change() {
        Change::Wake => {
            let woken = merge("annotations", json!({WOKEN_ANNOTATION: now.to_string()}));
            requests.patch(name, &params, &woken)
        }
        Change::Strip { kept, .. } => {
            let kept: Vec<&str> = kept.iter().map(|it| &**it).collect();
            requests.patch(name, &params, &merge("finalizers", json!(kept)))
        }
        Change::PruneIndexes(patch) => {
            let precondition = json!([
                {"op": "test", "path": "/metadata/uid", "value": **uid},
                {"op": "replace", "path": "/metadata/resourceVersion", "value": **resource_version},
            ]);
            let precondition: json_patch::Patch =
                serde_json::from_value(precondition).map_err(RequestError::SerializeBody)?;
            let whole = json_patch::Patch([precondition.0, patch.0.clone()].concat());
            let body = serde_json::to_vec(&whole).map_err(RequestError::SerializeBody)?;
            let base = requests.url_path;
            http::Request::patch(format!("{base}/{name}/status?fieldManager={FIELD_MANAGER}"))
                .header(CONTENT_TYPE, "application/json-patch+json")
                .body(body)
                .map_err(RequestError::BuildRequest)
        }
        Change::Delete => {
            let preconditions = Preconditions {
                uid: Some(String::from(&**uid)),
                resource_version: Some(String::from(&**resource_version)),
            };
            requests.delete(name, &DeleteParams::default().preconditions(preconditions))
        }
    }
}

/// What an answer other than success means.
fn sort(
    status: &kube::core::Status,
    write: &Write,
    resource: &ApiResource,
) -> Result<Written, NotWritten> {
    let text: String = status.message.chars().take(400).collect();
    let Target { namespace, name, .. } = write.target();
    // A hook may refuse with any code: its 409 is no lost race, and its 404 no missing object.
    if text.contains("admission webhook \"") && text.contains("denied the request") {
        return Err(refused(format!("an admission hook refuses it, see to that hook: {text}")));
    }
    match StatusCode::from_u16(status.code) {
        Ok(StatusCode::CONFLICT) => Ok(Written::Conflict),
        Ok(StatusCode::NOT_FOUND) => Ok(Written::Gone),
        Ok(StatusCode::UNPROCESSABLE_ENTITY) if is_not_as_planned(status) => Ok(Written::Conflict),
        // An admission policy answers 403 too.
        Ok(StatusCode::FORBIDDEN) if text.contains("cannot") => Err(refused(format!(
            "the guard's account may not {} {} {namespace}/{name} ({text}): grant it in RBAC",
            verb(write.change()),
            resource.plural,
        ))),
        Ok(code) if code.is_server_error() => Err(failed(format!("it answered {code}: {text}"))),
        _ => Err(refused(format!("the API server answered {}: {text}", status.code))),
    }
}

/// What the API server says to a JSON patch that cannot be applied, and no more than that.
const NOT_APPLICABLE: &str = "the server rejected our request due to an error in our request";

/// Whether the object is another one under the same name, or has lost what a patch takes away.
/// Both are found before the resourceVersion is compared, and mean that someone was first.
fn is_not_as_planned(status: &kube::core::Status) -> bool {
    status.message.contains("metadata.uid") || status.message == NOT_APPLICABLE
}

const fn verb(change: &Change) -> &'static str {
    match change {
        Change::Wake | Change::Strip { .. } => "patch",
        Change::PruneIndexes(_) => "patch the status of",
        Change::Delete => "delete",
    }
}

const fn refused(why: String) -> NotWritten {
    NotWritten { refused: true, why }
}

const fn failed(why: String) -> NotWritten {
    NotWritten { refused: false, why }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use kube::core::Status;

    use super::*;
    use crate::core::{
        objects::{Data, Kind, Object},
        teardown::{Lifecycle, wake},
    };

    fn data(deletion: Option<&str>) -> Data {
        let json = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3Data",
            "metadata": {"name": "w-0", "namespace": "prod", "uid": "u", "resourceVersion": "7",
                         "deletionTimestamp": deletion, "finalizers": ["a", "b"]},
        });
        match Object::from_json(&json.to_string()).unwrap() {
            Object::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }

    fn resource() -> ApiResource {
        let kind = Kind::Data;
        let version = kube::api::GroupVersionKind::gvk(kind.group(), "v1beta2", kind.name());
        ApiResource::from_gvk_with_plural(&version, kind.resource())
    }

    /// Method, path with query, and body of the request for a write.
    fn sent(write: &Write) -> (Method, String, Value) {
        let now = "2026-01-01T00:00:05Z".parse().unwrap();
        let request = request(write, &resource(), now).unwrap();
        let body = serde_json::from_slice(request.body()).unwrap();
        (request.method().clone(), request.uri().to_string(), body)
    }

    #[test]
    fn every_write_names_the_uid_and_the_version_that_it_was_planned_from() {
        let path = "/apis/infrastructure.cluster.x-k8s.io/v1beta2/namespaces/prod/metal3datas/w-0";
        let (method, url, body) = sent(&wake(&data(None)));
        assert_eq!((method, url), (Method::PATCH, format!("{path}?&fieldManager=metal3-guard")));
        let woken = json!({"metal3-guard.io/woken-at": "2026-01-01T00:00:05Z"});
        let expected = json!({"uid": "u", "resourceVersion": "7", "annotations": woken});
        assert_eq!(body, json!({ "metadata": expected }));

        let Lifecycle::Live(live) = Lifecycle::of(data(None)) else { panic!("it is live") };
        let (method, url, body) = sent(&live.delete());
        assert_eq!((method, url), (Method::DELETE, format!("{path}?")));
        assert_eq!(body["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));

        let terminating = Lifecycle::of(data(Some("2026-01-01T00:00:00Z")));
        let Lifecycle::Terminating(it) = terminating else { panic!("it is terminating") };
        let (method, url, body) = sent(&it.strip("a").unwrap());
        assert_eq!((method, url), (Method::PATCH, format!("{path}?&fieldManager=metal3-guard")));
        let expected = json!({"uid": "u", "resourceVersion": "7", "finalizers": ["b"]});
        assert_eq!(body, json!({ "metadata": expected }));
    }

    #[test]
    fn an_answer_says_whether_to_look_again_or_to_ask_for_help() {
        let write = wake(&data(None));
        let answer = |code: u16, message: &str| {
            let status = Status { code, message: message.into(), ..Status::default() };
            sort(&status, &write, &resource())
        };
        assert_eq!(answer(409, "the object has been modified"), Ok(Written::Conflict));
        assert_eq!(answer(422, "metadata.uid: field is immutable"), Ok(Written::Conflict));
        assert_eq!(answer(422, NOT_APPLICABLE), Ok(Written::Conflict));
        assert_eq!(answer(404, "not found"), Ok(Written::Gone));
        let missing = answer(403, "User \"g\" cannot patch resource").unwrap_err();
        assert!(missing.refused && missing.why.contains("may not patch metal3datas prod/w-0"));
        for (code, says) in [(403, "no"), (409, "busy"), (404, "x"), (422, "uid"), (500, "cannot")]
        {
            let text = format!("admission webhook \"x\" denied the request: {says}");
            let by_hook = answer(code, &text).unwrap_err();
            assert!(by_hook.refused && !by_hook.why.contains("RBAC"), "{by_hook}");
            assert!(by_hook.why.contains("an admission hook refuses it"), "{by_hook}");
        }
        let policy = "\"w-0\" is forbidden: ValidatingAdmissionPolicy 'p' denied request";
        assert!(!answer(403, policy).unwrap_err().why.contains("RBAC"));
        for invalid in ["spec.x: Required value", "spec.fluid: Invalid value"] {
            assert!(answer(422, invalid).unwrap_err().refused, "{invalid}");
        }
        let calling = "failed calling webhook \"x\": connection refused";
        assert!(!answer(500, calling).unwrap_err().refused);
        for code in [500, 503, 504] {
            assert!(!answer(code, "busy").unwrap_err().refused, "{code}");
        }
    }
}
