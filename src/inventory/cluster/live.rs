//! Reads from the API server: discovery, GET and paged LIST, each bounded in number and told apart
//! by what its failure means.
//!
//! Lists are read with resourceVersion unset, which means: at least as new as the request
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use kube::{
    Client, Resource as _,
    api::{ApiResource, DynamicObject, ListParams, Request},
    core::{GroupVersion, request::Error as RequestError},
    discovery,
};
use serde::Deserialize;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::core::{
    objects::{Kind, Object},
    verdict::Unverified,
};

/// Objects in one page of a list.
const PAGE: u32 = 500;

/// Live reads at the same time; a storm of reviews must not become a storm of reads.
const READS: usize = 16;

/// A client that knows which version of each kind is served.
#[derive(Clone)]
pub(super) struct Live {
    client: Client,
    served: Arc<ArcSwap<Option<Served>>>,
    room: Arc<Semaphore>,
}

/// The kinds that the API server serves, each in the version it prefers.
type Served = BTreeMap<Kind, ApiResource>;

/// Why a read failed, in terms of what to do about it.
#[derive(Clone, Debug)]
pub(super) enum ReadError {
    /// The guard's account lacks a permission.
    Forbidden(String),
    /// The API server answered with something else than the objects.
    Refused(String),
    /// The list that a continue token or a watch version belongs to is gone.
    Expired,
    /// The resource is not served (any more), in this version at least.
    NotServed,
    /// No answer in time.
    TimedOut,
    /// No connection, or one that broke.
    Unreachable(String),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(what) => write!(f, "its account may not {what}: grant it in RBAC"),
            Self::Refused(why) => write!(f, "the API server answered: {why}"),
            Self::Expired => f.write_str("the list expired while it was read"),
            Self::NotServed => f.write_str("the API server does not serve the resource"),
            Self::TimedOut => f.write_str("the API server did not answer in time"),
            Self::Unreachable(why) => write!(f, "the API server cannot be reached: {why}"),
        }
    }
}

impl From<ReadError> for Unverified {
    fn from(error: ReadError) -> Self {
        Self { why: error.to_string() }
    }
}

/// A complete list.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) objects: Vec<Object>,
    /// Where a watch goes on.
    pub(super) resource_version: String,
    /// False for the empty list of a kind that the API server does not serve.
    pub(super) served: bool,
}

impl Listed {
    const fn not_served() -> Self {
        Self { objects: Vec::new(), resource_version: String::new(), served: false }
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

impl Live {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            served: Arc::new(ArcSwap::from_pointee(None)),
            room: Arc::new(Semaphore::new(READS)),
        }
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Asks anew which kinds are served.
    pub(super) async fn discover(
        &self,
        deadline: Instant,
    ) -> Result<Arc<Option<Served>>, ReadError> {
        let mut served = Served::new();
        let mut groups: Vec<_> = Kind::ALL.into_iter().map(Kind::group).collect();
        groups.dedup();
        for group in groups {
            let found = timeout_at(deadline, self.discover_group(group, &mut served)).await;
            let found = found.map_err(|_| ReadError::TimedOut)?;
            found.map_err(|error| sort(error, || format!("discover {group}")))?;
        }
        let served = Arc::new(Some(served));
        self.served.store(Arc::clone(&served));
        Ok(served)
    }

    /// Adds the kinds of a group, each in the most preferred version that has it. The group is
    /// asked for by its own path: the list of all groups learns of new CRDs later than they are
    /// served, and while an API server starts it lacks them, where this path answers 503.
    async fn discover_group(&self, group: &str, served: &mut Served) -> Result<(), kube::Error> {
        let request = http::Request::get(format!("/apis/{group}")).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError)?;
        let found = match self.client.request::<APIGroup>(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            found => found?,
        };
        let mut missing: Vec<_> =
            Kind::ALL.into_iter().filter(|kind| kind.group() == group).collect();
        for version in found.preferred_version.into_iter().chain(found.versions) {
            if missing.is_empty() {
                break;
            }
            let version = GroupVersion::gv(group, &version.version);
            let resources = discovery::pinned_group(&self.client, &version).await?;
            missing.retain(|kind| {
                let found = resources.recommended_kind(kind.name());
                let is_missing = found.is_none();
                served.extend(found.map(|(resource, _)| (*kind, resource)));
                is_missing
            });
        }
        Ok(())
    }

    /// How a kind is served; `None` when it is not, which is never answered from memory: CRDs may
    /// have been installed a moment ago, and objects of the kind with them.
    pub(super) async fn resource(
        &self,
        kind: Kind,
        deadline: Instant,
    ) -> Result<Option<ApiResource>, ReadError> {
        let find = |served: &Option<Served>| served.as_ref()?.get(&kind).cloned();
        let known = find(&self.served.load());
        if known.is_some() {
            return Ok(known);
        }
        Ok(find(self.discover(deadline).await?.as_ref()))
    }

    /// One object; `None` when it, or its kind, is not there.
    pub(super) async fn get(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        deadline: Instant,
    ) -> Result<Option<Object>, ReadError> {
        if !is_object_name(name) {
            // No object can have this name, and it must not become part of a URL.
            return Ok(None);
        }
        for retry in [false, true] {
            let Some(resource) = self.resource(kind, deadline).await? else { return Ok(None) };
            let path = DynamicObject::url_path(&resource, Some(namespace));
            let request = Request::new(path).get(name, &kube::api::GetParams::default());
            let what = || format!("get {} in namespace {namespace}", resource.plural);
            let got = self.read::<Object>(request, deadline, what).await;
            match got {
                Ok(object) => return Ok(Some(object)),
                Err(Failed { not_found: Some(NotFound::Object), .. }) => return Ok(None),
                Err(Failed { not_found: Some(NotFound::Path), .. }) if !retry => {
                    self.discover(deadline).await?;
                }
                Err(failed) => return Err(failed.error),
            }
        }
        Err(ReadError::NotServed)
    }

    /// Every object of a kind in one namespace, or in all; empty when the kind is not served. A
    /// list that could not be read to its end is an error.
    pub(super) async fn list(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        deadline: Instant,
    ) -> Result<Listed, ReadError> {
        for _ in 0..2 {
            let Some(resource) = self.resource(kind, deadline).await? else {
                return Ok(Listed::not_served());
            };
            match self.pages(&resource, namespace, deadline).await {
                // Another version, or gone: ask what is served and try once more.
                Err(ReadError::NotServed) => self.discover(deadline).await?,
                other => return other,
            };
        }
        Err(ReadError::NotServed)
    }

    async fn pages(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        deadline: Instant,
    ) -> Result<Listed, ReadError> {
        let path = DynamicObject::url_path(resource, namespace);
        let mut objects = Vec::new();
        let mut token = None;
        loop {
            let mut params = ListParams::default().limit(PAGE);
            params.continue_token = token;
            let request = Request::new(path.clone()).list(&params);
            let what = || match namespace {
                Some(namespace) => format!("list {} in namespace {namespace}", resource.plural),
                None => format!("list {} in all namespaces", resource.plural),
            };
            let page: Page = self.read(request, deadline, what).await.map_err(|it| it.error)?;
            objects.extend(page.items);
            match page.metadata.continue_token.filter(|token| !token.is_empty()) {
                None => {
                    let resource_version = page.metadata.resource_version.unwrap_or_default();
                    return Ok(Listed { objects, resource_version, served: true });
                }
                next => token = next,
            }
        }
    }

    async fn read<T: serde::de::DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, RequestError>,
        deadline: Instant,
        what: impl Fn() -> String,
    ) -> Result<T, Failed> {
        let failed = |error| Failed { error, not_found: None };
        let request = request.map_err(|error| failed(ReadError::Refused(error.to_string())))?;
        let reading = async {
            // The semaphore is never closed.
            let _room = self.room.acquire().await;
            self.client.request::<T>(request).await
        };
        match timeout_at(deadline, reading).await {
            Err(_) => Err(failed(ReadError::TimedOut)),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                let not_found = not_found(&error);
                Err(Failed { error: sort(error, what), not_found })
            }
        }
    }
}

struct Failed {
    error: ReadError,
    not_found: Option<NotFound>,
}

/// Two kinds of 404: the object is gone, or the whole path is not served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NotFound {
    Object,
    Path,
}

fn not_found(error: &kube::Error) -> Option<NotFound> {
    match error {
        kube::Error::Api(status) if status.code == 404 => {
            // For an object the API server names it; for an unknown path it has nothing to name.
            let named = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
            Some(if named { NotFound::Object } else { NotFound::Path })
        }
        _ => None,
    }
}

/// What a client error means for the caller.
pub(super) fn sort(error: kube::Error, what: impl Fn() -> String) -> ReadError {
    match error {
        kube::Error::Api(status) => match status.code {
            401 => ReadError::Forbidden(format!("{} (its credentials are not accepted)", what())),
            403 => ReadError::Forbidden(what()),
            404 => ReadError::NotServed,
            410 => ReadError::Expired,
            code => {
                let text: String = status.message.chars().take(200).collect();
                ReadError::Refused(format!("{code} {} on {}: {text}", status.reason, what()))
            }
        },
        kube::Error::SerdeError(error) => {
            ReadError::Refused(format!("something unreadable on {}: {error}", what()))
        }
        other => ReadError::Unreachable(root(&other)),
    }
}

/// The innermost cause: the outer ones only repeat that something failed.
pub(crate) fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string().chars().take(200).collect()
}

/// Whether the API server could hold an object of this name (RFC 1123 subdomain).
pub(crate) fn is_object_name(name: &str) -> bool {
    let part = |part: &str| {
        let bytes = part.as_bytes();
        let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        bytes.first().is_some_and(plain)
            && bytes.last().is_some_and(plain)
            && bytes.iter().all(|b| plain(b) || *b == b'-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

/// A list with only what is needed: kube's own type buffers all items to find its type fields.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default, deserialize_with = "null_is_empty")]
    items: Vec<Object>,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Object>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PageMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// How long a read that serves several callers may take.
pub(super) const SHARED_READ: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_can_exist_reach_a_url() {
        for good in ["w-0", "a", "a.b-c.d", &"a".repeat(253)] {
            assert!(is_object_name(good), "{good}");
        }
        for bad in ["", "..", "a/b", "a b", "A", "-a", "a-", "a..b", "a?x=1", &"a".repeat(254)] {
            assert!(!is_object_name(bad), "{bad}");
        }
    }
}
