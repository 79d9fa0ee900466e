//! Writing the answer to a review.
//!
//! A v1 answer echoes uid, apiVersion and kind, and carries `patch` and `patchType` together or
//! not at all (apiserver `pkg/admission/plugin/webhook/request`).

use std::convert::Infallible;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use json_patch::Patch;
use serde::Serialize;

use super::wire::Envelope;
use crate::core::verdict::{Cause, Denial, Ruling, Verdict};

/// The answer as JSON.
///
/// # Errors
/// Never for the types used here; serde's signature has it.
pub(super) fn write<P: Change>(
    envelope: &Envelope<'_>,
    ruling: &Ruling<P>,
) -> Result<Vec<u8>, serde_json::Error> {
    let patch = match &ruling.verdict {
        Verdict::Patch(patch) => Some(BASE64_STANDARD.encode(patch.document()?)),
        Verdict::Allow | Verdict::Deny(_) => None,
    };
    let mut answer = Vec::with_capacity(512);
    let document = AnswerDocument {
        api_version: envelope.version.name(),
        kind: "AdmissionReview",
        response: Response {
            uid: envelope.uid(),
            allowed: ruling.denial().is_none(),
            status: ruling.denial().map(Status::of),
            patch_type: patch.is_some().then_some("JSONPatch"),
            patch,
            warnings: ruling.warnings.sent(),
            audit_annotations: Audit(&ruling.audit),
        },
    };
    serde_json::to_writer(&mut answer, &document)?;
    Ok(answer)
}

/// What a ruling may change in the object.
pub(super) trait Change {
    /// The JSON Patch document.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    fn document(&self) -> Result<Vec<u8>, serde_json::Error>;
}

impl Change for Infallible {
    fn document(&self) -> Result<Vec<u8>, serde_json::Error> {
        match *self {}
    }
}

impl Change for Patch {
    fn document(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnswerDocument<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Audit::is_empty")]
    audit_annotations: Audit<'a>,
}

struct Audit<'a>(&'a [(&'static str, String)]);

impl Audit<'_> {
    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Audit<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    #[serde(rename = "status")]
    outcome: &'static str,
    message: &'a str,
    reason: &'static str,
    code: u16,
    details: Details<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Details<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<CauseDocument<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

#[derive(Serialize)]
struct CauseDocument<'a> {
    reason: &'static str,
    message: &'a str,
    field: &'static str,
}

impl<'a> Status<'a> {
    fn of(denial: &'a Denial) -> Self {
        let cause = |it: &'a Cause| CauseDocument {
            reason: it.reason,
            message: &it.message,
            field: it.field,
        };
        Self {
            outcome: "Failure",
            message: &denial.message,
            reason: denial.code.reason(),
            code: denial.code.number(),
            details: Details {
                name: &denial.subject.name,
                group: &denial.subject.group,
                kind: &denial.subject.kind,
                uid: &denial.subject.uid,
                causes: denial.causes.iter().map(cause).collect(),
                retry_after_seconds: denial.retry_after,
            },
        }
    }
}
