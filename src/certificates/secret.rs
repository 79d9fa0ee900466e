//! The Secret that the replicas share: read into a [`State`], and written from one.
//!
//! | key | what |
//! |---|---|
//! | `tls.crt`, `tls.key` | what is served |
//! | `ca.crt`, `ca.key` | the authority that has signed it |
//! | `next-ca.crt`, `next-ca.key` | the authority to come |
//! | `retired-ca.crt` | authorities that sign no more and are still trusted |

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    CA_FILE, CERT_FILE, KEY_FILE,
    rotation::{Authority, Leaf, State, Wish},
    trust,
    x509::{Certificate, PrivateKey},
};

/// The annotation that says whose Secret it is.
pub const OWNER_ANNOTATION: &str = "metal3-guard.io/certificates";
/// Its value.
pub const OWNER: &str = "self-managed";
/// The annotation by which a person asks for something new: `ca` or `certificate`.
pub const ROTATE_ANNOTATION: &str = "metal3-guard.io/rotate";

const CA_KEY: &str = "ca.key";
const NEXT_CERT: &str = "next-ca.crt";
const NEXT_KEY: &str = "next-ca.key";
const RETIRED: &str = "retired-ca.crt";
const KEYS: [&str; 7] = [CERT_FILE, KEY_FILE, CA_FILE, CA_KEY, NEXT_CERT, NEXT_KEY, RETIRED];

/// A Secret, as the API server gives and takes it.
#[derive(Clone, Serialize, Deserialize)]
pub struct Secret {
    metadata: Metadata,
    /// Base64.
    #[serde(default)]
    data: BTreeMap<String, String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Metadata {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// What a Secret is to the guard.
#[derive(Debug)]
pub enum Found {
    /// Without content, whoever made it: to be filled.
    Empty,
    /// Somebody else's: to be left alone.
    Foreign,
    /// Ours, and broken: why, without any of its content.
    Unusable(String),
    /// Ours.
    State(Box<State>, Asked),
}

/// What the annotation asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// Nothing.
    #[default]
    Nothing,
    /// Something that can be done.
    Wish(Wish),
    /// Something else.
    Unknown(String),
}

impl Secret {
    /// A Secret to create.
    pub fn new(namespace: &str, name: &str, state: &State) -> Self {
        let text = |text: &str| Value::from(text);
        let labels = json!({"app.kubernetes.io/name": "metal3-guard"});
        let metadata = [("name", text(name)), ("namespace", text(namespace)), ("labels", labels)];
        let kind = [("apiVersion", "v1"), ("kind", "Secret"), ("type", "Opaque")];
        let mut secret = Self {
            metadata: Metadata {
                annotations: BTreeMap::new(),
                rest: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            },
            data: BTreeMap::new(),
            rest: kind.into_iter().map(|(key, value)| (key.to_owned(), text(value))).collect(),
        };
        secret.put(state, false);
        secret
    }

    /// What it is to the guard.
    pub fn read(&self) -> Found {
        if self.data.values().all(String::is_empty) {
            return Found::Empty;
        }
        let annotation = |name| self.metadata.annotations.get(name).map(String::as_str);
        if annotation(OWNER_ANNOTATION) != Some(OWNER) {
            return Found::Foreign;
        }
        let asked = match annotation(ROTATE_ANNOTATION) {
            None => Asked::Nothing,
            Some("ca") => Asked::Wish(Wish::Authority),
            Some("certificate") => Asked::Wish(Wish::Certificate),
            Some(other) => Asked::Unknown(other.chars().take(40).collect()),
        };
        match self.state() {
            Ok(state) => Found::State(Box::new(state), asked),
            Err(why) => Found::Unusable(why),
        }
    }

    /// Puts another state in, and leaves everything else as it is. `granted`: what the annotation
    /// asked for is done, and the annotation goes.
    pub fn put(&mut self, state: &State, granted: bool) {
        self.data.retain(|key, _| !KEYS.contains(&key.as_str()));
        let mut put = |key: &str, pem: &str| {
            self.data.insert(key.to_owned(), BASE64_STANDARD.encode(pem));
        };
        put(CERT_FILE, &state.leaf.certificate.pem);
        put(KEY_FILE, state.leaf.key.pem());
        put(CA_FILE, &state.signing.certificate.pem);
        put(CA_KEY, state.signing.key.pem());
        if let Some(next) = &state.next {
            put(NEXT_CERT, &next.certificate.pem);
            put(NEXT_KEY, next.key.pem());
        }
        if !state.retired.is_empty() {
            put(RETIRED, &state.retired.iter().map(|it| &*it.pem).collect::<String>());
        }
        let annotations = &mut self.metadata.annotations;
        annotations.insert(OWNER_ANNOTATION.to_owned(), OWNER.to_owned());
        if granted {
            annotations.remove(ROTATE_ANNOTATION);
        }
    }

    fn state(&self) -> Result<State, String> {
        let certificate = self.certificate(CERT_FILE)?;
        let names = certificate.names().map_err(|error| format!("{CERT_FILE}: {error}"))?;
        let leaf = Leaf { certificate, key: self.key(KEY_FILE)?, names };
        if !trust::is_key_of(&leaf.key, &leaf.certificate) {
            return Err(format!("{KEY_FILE} is not the key of {CERT_FILE}"));
        }
        let signing = self.authority(CA_FILE, CA_KEY)?;
        let host = leaf.names.first().ok_or_else(|| format!("{CERT_FILE} has no names"))?;
        // Whether it has ended since is another question.
        let starts = leaf.certificate.starts;
        if !trust::verifies(&signing.certificate.pem, &leaf.certificate, host, starts) {
            return Err(format!("{CERT_FILE} is not signed by {CA_FILE}"));
        }
        let has = |key| self.data.contains_key(key);
        let next = if has(NEXT_CERT) || has(NEXT_KEY) {
            Some(self.authority(NEXT_CERT, NEXT_KEY)?)
        } else {
            None
        };
        let retired = if has(RETIRED) {
            let parsed = Certificate::parse_all(&self.text(RETIRED)?);
            parsed.map_err(|error| format!("{RETIRED}: {error}"))?
        } else {
            Vec::new()
        };
        Ok(State { signing, next, retired, leaf })
    }

    fn authority(&self, cert: &str, key: &str) -> Result<Authority, String> {
        let authority = Authority { certificate: self.certificate(cert)?, key: self.key(key)? };
        if trust::is_key_of(&authority.key, &authority.certificate) {
            Ok(authority)
        } else {
            Err(format!("{key} is not the key of {cert}"))
        }
    }

    fn certificate(&self, key: &str) -> Result<Certificate, String> {
        Certificate::parse(&self.text(key)?).map_err(|error| format!("{key}: {error}"))
    }

    fn key(&self, key: &str) -> Result<PrivateKey, String> {
        Ok(PrivateKey::new(self.text(key)?))
    }

    /// A value as text. No error repeats any of it.
    fn text(&self, key: &str) -> Result<String, String> {
        let value = self.data.get(key).ok_or_else(|| format!("{key} is missing"))?;
        let bytes = BASE64_STANDARD.decode(value).map_err(|_| format!("{key} is no base64"))?;
        String::from_utf8(bytes).map_err(|_| format!("{key} is no text"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("metadata", &self.metadata.rest).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::certificates::issue;

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn now() -> Timestamp {
        "2026-12-01T12:00:00Z".parse().unwrap()
    }

    fn authority() -> Authority {
        issue::authority(now(), DAY * 365).unwrap()
    }

    fn leaf(by: &Authority) -> Leaf {
        issue::leaf(by, &BTreeSet::from(["guard.svc".to_owned()]), now(), DAY * 90).unwrap()
    }

    fn state() -> State {
        let by = authority();
        let leaf = leaf(&by);
        State::new(by, leaf, Vec::new())
    }

    fn json(secret: &Secret) -> Value {
        serde_json::to_value(secret).unwrap()
    }

    fn parsed(json: Value) -> Secret {
        serde_json::from_value(json).unwrap()
    }

    fn found(secret: &Secret) -> State {
        match secret.read() {
            Found::State(state, _) => *state,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_state_comes_back_as_it_was() {
        let settled = state();
        let next = authority();
        let introducing = settled.clone().introduced(next.clone());
        let retiring = introducing.clone().switched(leaf(&next));
        for state in [settled, introducing, retiring.clone(), retiring.settled()] {
            let secret = Secret::new("system", "tls", &state);
            assert_eq!(found(&secret), state);
            let again = parsed(json(&secret));
            assert_eq!(found(&again), state);
        }
    }

    #[test]
    fn a_new_secret_is_what_other_tools_expect() {
        let state = state();
        let json = json(&Secret::new("system", "tls", &state));
        assert_eq!((&json["kind"], &json["type"]), (&"Secret".into(), &"Opaque".into()));
        assert_eq!(json["metadata"]["namespace"], "system");
        let keys: Vec<_> = json["data"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["ca.crt", "ca.key", "tls.crt", "tls.key"]);
    }

    #[test]
    fn what_others_wrote_stays() {
        let mut secret = parsed(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": "tls", "resourceVersion": "7", "labels": {"a": "b"},
                         "annotations": {"c": "d", ROTATE_ANNOTATION: "ca"}},
            "data": {"other": "eA=="},
        }));
        let settled = state();
        secret.put(&settled.clone().introduced(authority()), false);
        secret.put(&settled, true);
        let json = json(&secret);
        assert_eq!((&json["type"], &json["data"]["other"]), (&"Opaque".into(), &"eA==".into()));
        assert_eq!(json["data"].get(NEXT_KEY), None, "no key outlives its use");
        assert_eq!(json["metadata"]["resourceVersion"], "7");
        assert_eq!(json["metadata"]["labels"]["a"], "b");
        let annotations = json!({"c": "d", OWNER_ANNOTATION: OWNER});
        assert_eq!(json["metadata"]["annotations"], annotations);
    }

    #[test]
    fn only_what_is_empty_or_ours_is_touched() {
        let secret = |annotations: Value, data: Value| {
            parsed(json!({"metadata": {"annotations": annotations}, "data": data}))
        };
        let (ours, none) = (json!({OWNER_ANNOTATION: OWNER}), json!({}));
        for data in [json!({}), json!({"tls.crt": "", "tls.key": ""})] {
            assert!(matches!(secret(none.clone(), data).read(), Found::Empty));
        }
        assert!(matches!(parsed(json!({"metadata": {}})).read(), Found::Empty));
        let foreign = secret(none, json!({"tls.crt": "eA=="}));
        assert!(matches!(foreign.read(), Found::Foreign));
        let broken = secret(ours, json!({"tls.crt": "eA=="}));
        assert!(matches!(broken.read(), Found::Unusable(_)));
    }

    #[test]
    fn what_does_not_belong_together_is_not_used() {
        let (one, other) =
            (json(&Secret::new("s", "n", &state())), json(&Secret::new("s", "n", &state())));
        let next = json(&Secret::new("s", "n", &state().introduced(authority())));
        let key = other["data"]["tls.key"].as_str().unwrap();
        for (changed, from, why) in [
            (vec!["tls.key"], &other, "tls.key is not the key of tls.crt"),
            (vec!["ca.key"], &other, "ca.key is not the key of ca.crt"),
            (vec!["ca.crt", "ca.key"], &other, "tls.crt is not signed by ca.crt"),
            (vec!["next-ca.crt"], &next, "next-ca.key is missing"),
            (vec!["next-ca.key"], &next, "next-ca.crt is missing"),
            (vec!["retired-ca.crt"], &json!({"data": {"retired-ca.crt": "LS0t"}}), ""),
            (vec!["tls.crt"], &json!({"data": {"tls.crt": "!"}}), "tls.crt is no base64"),
            (vec!["tls.crt"], &json!({"data": {"tls.crt": "/w=="}}), "tls.crt is no text"),
            (
                vec!["tls.crt"],
                &json!({"data": {"tls.crt": key}}),
                "tls.crt: it holds no certificate",
            ),
        ] {
            let mut broken = one.clone();
            for part in changed {
                broken["data"][part] = from["data"][part].clone();
            }
            match (parsed(broken).read(), why) {
                (Found::Unusable(found), why) if !why.is_empty() => assert_eq!(found, why),
                // No certificate is none to trust.
                (Found::State(state, _), "") => assert_eq!(state.retired, []),
                (other, why) => panic!("{other:?} instead of {why}"),
            }
        }
    }

    #[test]
    fn wishes_are_two_words() {
        let state = state();
        let asked = |wish: &str| {
            let mut secret = json(&Secret::new("s", "n", &state));
            secret["metadata"]["annotations"][ROTATE_ANNOTATION] = wish.into();
            match parsed(secret).read() {
                Found::State(_, asked) => asked,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(asked("ca"), Asked::Wish(Wish::Authority));
        assert_eq!(asked("certificate"), Asked::Wish(Wish::Certificate));
        assert_eq!(asked("all"), Asked::Unknown("all".into()));
    }

    #[test]
    fn debug_shows_no_content() {
        let secret = Secret::new("system", "tls", &state());
        let text = format!("{secret:?} {:?}", secret.read());
        assert!(text.contains("system") && !text.contains("LS0t"), "{text}");
        assert!(!text.contains("PRIVATE"), "{text}");
    }
}
