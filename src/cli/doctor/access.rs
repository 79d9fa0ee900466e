//! What the account may do, verb by verb.

use serde_json::{Value, json};

use super::{Api, Check, State};
use crate::core::objects::Kind;

/// The verbs that verdicts, watches and plans need.
fn needed() -> Vec<(Kind, &'static [&'static str])> {
    Kind::ALL
        .into_iter()
        .map(|kind| {
            let verbs: &[&str] = match kind {
                Kind::Cluster => &["get", "list"],
                Kind::IpClaim | Kind::IpAddressClaim => &["list"],
                _ => &["get", "list", "watch"],
            };
            (kind, verbs)
        })
        .collect()
}

/// The verbs that repair needs besides: resource, with its subresource if it is one, and verbs.
const REPAIR: [(Kind, &str, &[&str]); 3] = [
    (Kind::Template, "", &["patch"]),
    (Kind::Template, "status", &["patch"]),
    (Kind::Data, "", &["delete", "patch"]),
];

/// `acts`: whether what is stuck is to be repaired too.
pub(super) async fn check(api: &Api, acts: bool, checks: &mut Vec<Check>) {
    for (kind, verbs) in needed() {
        let about = format!("access to {}.{}", kind.resource(), kind.group());
        let advice = "this is about the account that runs doctor: run it under the guard's own, \
                      and grant what is missing in the ClusterRole metal3-guard";
        checks.push(ask(api, &about, kind, "", verbs, advice).await);
    }
    for (kind, subresource, verbs) in REPAIR.into_iter().filter(|_| acts) {
        let slash = if subresource.is_empty() { "" } else { "/" };
        let about = format!("repair of {}{slash}{subresource}", kind.resource());
        let advice = "this is about the account that runs doctor: run it under the guard's own, \
                      and bind the ClusterRole metal3-guard-repair to it; without it the guard \
                      must run with --controller off or observe";
        checks.push(ask(api, &about, kind, subresource, verbs, advice).await);
    }
}

/// Asks for each verb on one resource.
async fn ask(
    api: &Api,
    about: &str,
    kind: Kind,
    subresource: &str,
    verbs: &[&str],
    advice: &str,
) -> Check {
    let mut missing = Vec::new();
    let mut unknown = None;
    for verb in verbs {
        let attributes = json!({
            "group": kind.group(), "resource": kind.resource(), "subresource": subresource,
            "verb": verb,
        });
        match allowed(api, &attributes).await {
            Ok(true) => {}
            Ok(false) => missing.push(*verb),
            Err(why) => unknown = Some(why),
        }
    }
    match (missing.as_slice(), unknown) {
        ([], None) => Check::ok(about, format!("may {}", verbs.join(", "))),
        ([], Some(why)) => Check::unknown(about, &why),
        (missing, _) => {
            Check::new(State::Problem, about, format!("may not {}", missing.join(", ")), advice)
        }
    }
}

/// Whether the account that asks may do this.
pub(super) async fn allowed(api: &Api, attributes: &Value) -> Result<bool, super::Refused> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    });
    let url = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = api.post(url, &review).await?;
    Ok(answer.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or(false))
}
