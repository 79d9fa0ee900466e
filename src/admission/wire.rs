//! Reading `AdmissionReview`s, v1 and v1beta1, without copying the objects.
//!
//! A wrong type reads as missing and unknown fields are ignored, so that whoever sends a uid gets
//! an answer (`k8s.io/api/admission/v1`).

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::core::{
    json::{self, Both},
    lenient::{Flag, Maybe, Obj, Read, Word},
    objects::Object,
    review::{Known, Operation, Review},
};

/// A review as received; objects are borrowed text.
#[derive(Debug)]
pub struct Envelope<'a> {
    pub(super) version: Version,
    request: Request<'a>,
}

/// The versions of `admission.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V1Beta1,
}

impl Version {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V1 => "admission.k8s.io/v1",
            Self::V1Beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

/// Why a body is no review that could be answered: without a uid no answer is valid.
#[derive(Debug, thiserror::Error)]
pub enum BadReview {
    /// Nothing was sent.
    #[error("the body is empty; send an AdmissionReview as JSON")]
    Empty,
    /// Not UTF-8, not JSON, or not a JSON object.
    #[error("the body is not a JSON object: {0}; send an AdmissionReview")]
    NotJson(String),
    /// JSON, but something else.
    #[error(
        "the body is {0}, not an AdmissionReview of admission.k8s.io/v1 or v1beta1; check which \
         URL the webhook configuration names"
    )]
    NotAReview(String),
    /// A review that asks nothing.
    #[error("the AdmissionReview has no request")]
    NoRequest,
    /// A request that cannot be answered.
    #[error("the AdmissionReview's request has no uid, so it cannot be answered")]
    NoUid,
}

impl<'a> Envelope<'a> {
    /// Reads a review.
    ///
    /// # Errors
    /// When there is no uid to answer to; see [`BadReview`].
    pub fn read(body: &'a [u8]) -> Result<Self, BadReview> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(BadReview::Empty);
        }
        // Checked once here; the JSON reader then need not check each string again.
        let text = std::str::from_utf8(body).map_err(|e| BadReview::NotJson(e.to_string()))?;
        let Document(raw) = json::from_str(text).map_err(|e| BadReview::NotJson(e.to_string()))?;
        let version = match (raw.api_version.text(), raw.kind.text()) {
            ("admission.k8s.io/v1", "AdmissionReview") => Version::V1,
            ("admission.k8s.io/v1beta1", "AdmissionReview") => Version::V1Beta1,
            (api_version, kind) => return Err(BadReview::NotAReview(shown(api_version, kind))),
        };
        let Read(Maybe(Some(request))) = raw.request else { return Err(BadReview::NoRequest) };
        if request.uid.text().is_empty() {
            return Err(BadReview::NoUid);
        }
        Ok(Self { version, request })
    }

    /// The uid to echo.
    pub fn uid(&self) -> &str {
        self.request.uid.text()
    }

    /// Whether nothing will be written.
    pub const fn dry_run(&self) -> bool {
        self.request.dry_run.0.0
    }

    /// The question, free of the wire format.
    pub fn review(&self) -> Review<'_> {
        let request = &self.request;
        Review {
            operation: match request.operation.text() {
                "CREATE" => Operation::Create,
                "UPDATE" => Operation::Update,
                "DELETE" => Operation::Delete,
                _ => Operation::Other,
            },
            group: request.resource.0.0.group.text(),
            resource: request.resource.0.0.resource.text(),
            kind: request.kind.0.0.kind.text(),
            subresource: request.sub_resource.text(),
            name: request.name.text(),
            namespace: request.namespace.text(),
            user: request.user_info.0.0.username.text(),
            object: request.object.as_ref().map(|object| object.text),
            old_object: request.old_object.as_ref().map(|object| object.text),
            known: Known::of([&request.object, &request.old_object].map(|object| {
                let Both { text, value } = object.as_ref()?;
                Some((*text, value.as_deref()?))
            })),
        }
    }
}

/// What something claims to be, short enough for an error message.
fn shown(api_version: &str, kind: &str) -> String {
    if api_version.is_empty() && kind.is_empty() {
        return "JSON without apiVersion and kind".into();
    }
    let short = |text: &str| text.chars().filter(|c| !c.is_control()).take(80).collect::<String>();
    format!("{} {}", short(api_version), short(kind))
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawReview<'a> {
    #[serde(borrow)]
    api_version: Read<Word<'a>>,
    #[serde(borrow)]
    kind: Read<Word<'a>>,
    #[serde(borrow)]
    request: Read<Maybe<Request<'a>>>,
}

impl Read<Word<'_>> {
    fn text(&self) -> &str {
        &self.0.0
    }
}

/// A JSON object at the top: a derived struct would take a list as well.
struct Document<'a>(RawReview<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Document<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Read(Maybe(raw)) = Read::deserialize(deserializer)?;
        raw.map(Self).ok_or_else(|| D::Error::custom("it is of another type"))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    uid: Read<Word<'a>>,
    #[serde(borrow)]
    kind: Read<Obj<GroupKind<'a>>>,
    #[serde(borrow)]
    resource: Read<Obj<GroupResource<'a>>>,
    #[serde(borrow)]
    sub_resource: Read<Word<'a>>,
    #[serde(borrow)]
    name: Read<Word<'a>>,
    #[serde(borrow)]
    namespace: Read<Word<'a>>,
    #[serde(borrow)]
    operation: Read<Word<'a>>,
    #[serde(borrow)]
    user_info: Read<Obj<UserInfo<'a>>>,
    #[serde(borrow)]
    object: Option<Both<'a, Box<Object>>>,
    #[serde(borrow)]
    old_object: Option<Both<'a, Box<Object>>>,
    dry_run: Read<Flag>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GroupKind<'a> {
    #[serde(borrow)]
    kind: Read<Word<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GroupResource<'a> {
    #[serde(borrow)]
    group: Read<Word<'a>>,
    #[serde(borrow)]
    resource: Read<Word<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct UserInfo<'a> {
    #[serde(borrow)]
    username: Read<Word<'a>>,
}

#[cfg(test)]
mod tests;
