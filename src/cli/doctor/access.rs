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

pub(super) async fn check(api: &Api, checks: &mut Vec<Check>) {
    for (kind, verbs) in needed() {
        let about = format!("access to {}.{}", kind.resource(), kind.group());
        let mut missing = Vec::new();
        let mut unknown = None;
        for verb in verbs {
            match allowed(api, kind, verb).await {
                Ok(true) => {}
                Ok(false) => missing.push(*verb),
                Err(why) => unknown = Some(why),
            }
        }
        checks.push(match (missing.as_slice(), unknown) {
            ([], None) => Check::ok(&about, format!("may {}", verbs.join(", "))),
            ([], Some(why)) => Check::unknown(&about, &why),
            (missing, _) => Check::new(
                State::Problem,
                &about,
                format!("may not {}", missing.join(", ")),
                "this is about the account that runs doctor: run it under the guard's own, and \
                 grant what is missing in the ClusterRole metal3-guard",
            ),
        });
    }
}

async fn allowed(api: &Api, kind: Kind, verb: &str) -> Result<bool, super::Refused> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {
            "group": kind.group(), "resource": kind.resource(), "verb": verb,
        }},
    });
    let url = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = api.post(url, &review).await?;
    Ok(answer.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or(false))
}
