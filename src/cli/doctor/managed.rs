//! Certificates that the guard makes by itself: the Secret, the bundles made from it, and the rights
//! that this needs.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Api, Check, Refused, State, access, webhooks};
use crate::certificates::{
    keeper::ObjectName,
    rotation::{self, Phase},
    secret::{Found, Secret},
    webhooks::{FIELD_MANAGER, INJECTOR_ANNOTATION},
};

/// The webhook configurations of a guard that has written a `caBundle` by itself.
pub(super) struct Managed {
    /// Resource and object.
    configurations: Vec<(&'static str, Value)>,
}

/// Looks whether the guard makes its certificates; `None` when it does not, or nobody may say.
pub(super) async fn find(api: &Api) -> Option<Managed> {
    let mut configurations = Vec::new();
    for resource in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let url = format!("/apis/admissionregistration.k8s.io/v1/{resource}");
        // That it cannot be read is said where the webhooks are looked at.
        let Ok(list) = api.get(&url).await else { continue };
        let ours = webhooks::items(&list).filter(|it| webhooks::is_ours(it));
        configurations.extend(ours.map(|it| (resource, it.clone())));
    }
    let written = configurations.iter().any(|(_, it)| {
        let fields = it.pointer("/metadata/managedFields").and_then(Value::as_array);
        fields.into_iter().flatten().any(|it| it.get("manager") == Some(&FIELD_MANAGER.into()))
    });
    written.then_some(Managed { configurations })
}

impl Managed {
    pub(super) async fn check(
        &self,
        api: &Api,
        secret: &ObjectName,
        now: Timestamp,
        checks: &mut Vec<Check>,
    ) {
        for (resource, configuration) in &self.configurations {
            let annotations = configuration.pointer("/metadata/annotations");
            if annotations.is_some_and(|it| it.get(INJECTOR_ANNOTATION).is_some()) {
                let about = format!("injection into {resource} {}", object_name(configuration));
                checks.push(Check::new(
                    State::Problem,
                    &about,
                    format!("cert-manager writes it too: {INJECTOR_ANNOTATION}"),
                    "remove the annotation, or run the guard without --self-managed-certs",
                ));
            }
        }
        let ObjectName { namespace, name } = secret;
        let about = format!("secret {namespace}/{name}");
        let url = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let read = api.get(&url).await;
        checks.push(self.secret(&about, read, now));
        self.rights(api, secret, checks).await;
    }

    fn secret(&self, about: &str, read: Result<Value, Refused>, now: Timestamp) -> Check {
        let read = match read {
            Ok(read) => read,
            Err(why) if why.code == 404 => {
                let text = "is not there, though a guard has made certificates";
                let fix = "apply the installation again, or make it empty: a running guard fills \
                           it; is it another one, name it with --certs-secret";
                return Check::new(State::Warning, about, text, fix);
            }
            Err(why) => return Check::unknown(about, &why),
        };
        let log = "a running guard mends it by itself: look at its log for what keeps it";
        let found = serde_json::from_value(read).map(|secret: Secret| secret.read());
        match found {
            Ok(Found::State(state, _)) => self.state(about, &state, now),
            Ok(Found::Empty) => Check::new(State::Problem, about, "is empty", log),
            Ok(Found::Unusable(why)) => {
                Check::new(State::Problem, about, format!("cannot be used: {why}"), log)
            }
            Ok(Found::Foreign) | Err(_) => Check::new(
                State::Problem,
                about,
                "was not made by the guard",
                "remove it, or name another one with --certs-secret, here and for the guard",
            ),
        }
    }

    fn state(&self, about: &str, state: &rotation::State, now: Timestamp) -> Check {
        let log = "a running guard renews it by itself: look at its log for what keeps it";
        let (leaf, ca) = (&state.leaf.certificate, &state.signing.certificate);
        for (what, certificate) in [("certificate", leaf), ("CA", ca)] {
            let left = certificate.ends.duration_since(now);
            // It should have been renewed when a third was left.
            if left <= SignedDuration::ZERO {
                let text = format!("its {what} ended at {}", certificate.ends);
                return Check::new(State::Problem, about, text, log);
            } else if left * 4 < certificate.lifetime() {
                let text = format!("its {what} ends at {} and was not renewed", certificate.ends);
                return Check::new(State::Warning, about, text, log);
            }
        }
        if let Some(webhook) = self.other_bundle(&state.bundle()) {
            let text = format!("caBundle of {webhook} is not the one that belongs to it");
            let fix =
                "a running guard corrects it within seconds: look at its log for what keeps it";
            return Check::new(State::Problem, about, text, fix);
        }
        let phase = match state.phase() {
            Phase::Settled => "",
            Phase::Introducing => "; a new CA is trusted and will sign soon",
            Phase::Retiring => "; the CA before it is trusted for a while yet",
        };
        let ends = (leaf.ends, ca.ends);
        Check::ok(about, format!("certificate until {}, CA until {}{phase}", ends.0, ends.1))
    }

    /// A webhook that trusts something else.
    fn other_bundle(&self, bundle: &str) -> Option<String> {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        let wanted = BASE64_STANDARD.encode(bundle);
        let webhooks = self.configurations.iter().flat_map(|(_, it)| webhooks::webhooks(it));
        let mut others = webhooks.filter(|it| {
            let found = it.pointer("/clientConfig/caBundle").and_then(Value::as_str);
            found.unwrap_or_default() != wanted
        });
        others.next().map(|it| webhooks::name(it).to_owned())
    }

    async fn rights(&self, api: &Api, secret: &ObjectName, checks: &mut Vec<Check>) {
        let verbs = ["get", "update"].map(|verb| {
            json!({"group": "", "resource": "secrets", "namespace": secret.namespace,
                   "name": secret.name, "verb": verb})
        });
        let about = format!("access to secret {}/{}", secret.namespace, secret.name);
        let mut asked = vec![(about, Vec::from(verbs))];
        for (resource, configuration) in &self.configurations {
            let name = object_name(configuration);
            let verbs = ["get", "patch"].map(|verb| {
                json!({"group": "admissionregistration.k8s.io", "resource": resource,
                       "name": name, "verb": verb})
            });
            asked.push((format!("caBundle of {resource} {name}"), verbs.into()));
        }
        for (about, attributes) in asked {
            let (mut may, mut may_not, mut unknown) = (Vec::new(), Vec::new(), None);
            for attributes in &attributes {
                let verb = attributes.get("verb").and_then(Value::as_str).unwrap_or_default();
                match access::allowed(api, attributes).await {
                    Ok(true) => may.push(verb),
                    Ok(false) => may_not.push(verb),
                    Err(why) => unknown = Some(why),
                }
            }
            checks.push(match (may_not.as_slice(), unknown) {
                ([], None) => Check::ok(&about, format!("may {}", may.join(", "))),
                ([], Some(why)) => Check::unknown(&about, &why),
                (may_not, _) => Check::new(
                    State::Problem,
                    &about,
                    format!("may not {}", may_not.join(", ")),
                    "this is about the account that runs doctor: run it under the guard's own, and \
                     bind the Role and the ClusterRole metal3-guard-certificates to it",
                ),
            });
        }
    }
}

fn object_name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}
