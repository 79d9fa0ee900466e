//! The webhook configurations: whom they call, what they trust, and the patch that changes the
//! latter and nothing else.

use std::{collections::BTreeSet, net::IpAddr};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{keeper::ObjectName, trust, x509::Certificate};

/// The field manager of every `caBundle`.
pub const FIELD_MANAGER: &str = "metal3-guard-certificates";
/// By this annotation cert-manager fills `caBundle`.
pub const INJECTOR_ANNOTATION: &str = "cert-manager.io/inject-ca-from";

/// Certificates of others that a new bundle goes on to trust for a while, at most.
const INHERITED: usize = 4;

/// The two kinds of configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `MutatingWebhookConfiguration`.
    Mutating,
    /// `ValidatingWebhookConfiguration`.
    Validating,
}

impl Kind {
    /// The kind in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutating => "MutatingWebhookConfiguration",
            Self::Validating => "ValidatingWebhookConfiguration",
        }
    }

    /// The resource in URLs and RBAC.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Mutating => "mutatingwebhookconfigurations",
            Self::Validating => "validatingwebhookconfigurations",
        }
    }
}

/// Who is meant by a webhook that calls us.
#[derive(Clone, Debug)]
pub struct Callee {
    /// The Service.
    pub service: ObjectName,
    /// The names in the certificate.
    pub names: BTreeSet<String>,
}

/// A configuration as it was read.
#[derive(Clone, Debug)]
pub struct Configuration {
    resource_version: String,
    /// The webhooks in it that call us.
    pub webhooks: Vec<Webhook>,
    /// Whether it calls the Service, rather than an address.
    calls_service: bool,
    /// Whether a namespace owns it.
    is_owned: bool,
    has_owners: bool,
}

/// A webhook that calls us.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// Where it stands in its configuration.
    index: usize,
    /// Its name.
    pub name: String,
    /// The name that it expects in the certificate.
    pub host: String,
    /// What it trusts, PEM; empty when there is nothing, or nothing that can be read.
    pub bundle: String,
    has_bundle: bool,
}

impl Configuration {
    /// Reads a configuration.
    ///
    /// # Errors
    /// It is not ours to write.
    pub fn read(configuration: &Value, callee: &Callee) -> Result<Self, String> {
        let annotation = configuration
            .pointer("/metadata/annotations")
            .and_then(|it| it.get(INJECTOR_ANNOTATION));
        if annotation.is_some() {
            return Err(format!(
                "it has the annotation {INJECTOR_ANNOTATION}, so cert-manager writes its caBundle: \
                 remove the annotation, or serve with the files that cert-manager makes"
            ));
        }
        let text = |value: &Value, pointer: &str| {
            value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let webhooks = configuration.get("webhooks").and_then(Value::as_array);
        let webhooks = webhooks.into_iter().flatten().enumerate().filter_map(|(index, webhook)| {
            let bundle = text(webhook, "/clientConfig/caBundle");
            Some(Webhook {
                index,
                name: text(webhook, "/name"),
                host: callee.host(webhook.get("clientConfig")?)?,
                has_bundle: !bundle.is_empty(),
                bundle: decoded(&bundle).unwrap_or_default(),
            })
        });
        let webhooks: Vec<_> = webhooks.collect();
        let service = callee.service_host();
        let owners = configuration.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let is_namespace =
            |it: &Value| text(it, "/apiVersion") == "v1" && text(it, "/kind") == "Namespace";
        Ok(Self {
            resource_version: text(configuration, "/metadata/resourceVersion"),
            calls_service: webhooks.iter().any(|it| it.host == service),
            is_owned: owners.is_some_and(|owners| owners.iter().any(is_namespace)),
            has_owners: owners.is_some(),
            webhooks,
        })
    }

    /// The JSON patch after which every webhook trusts exactly this bundle; `None` when they do.
    ///
    /// Not a server-side apply: that owns the whole entry of the list along with the field, and
    /// whoever takes a webhook out of the configuration by another one gets "invalid", because the
    /// entry stays for its second owner without its other fields. This owns the `caBundle` alone.
    /// The version keeps the positions true.
    pub fn patch(&self, bundle: &str) -> Option<Value> {
        let encoded = BASE64_STANDARD.encode(bundle);
        let wrong = self.webhooks.iter().filter(|it| it.bundle != bundle);
        let changes: Vec<_> = wrong
            .map(|it| {
                let path = format!("/webhooks/{}/clientConfig/caBundle", it.index);
                let op = if it.has_bundle { "replace" } else { "add" };
                json!({"op": op, "path": path, "value": encoded})
            })
            .collect();
        if changes.is_empty() {
            return None;
        }
        Some([self.version()].into_iter().chain(changes).collect())
    }

    /// Whether it would stay when the namespace of the Service is deleted, and then refuse what
    /// nobody is there to judge.
    pub const fn outlives_service(&self) -> bool {
        self.calls_service && !self.is_owned
    }

    /// The JSON patch that makes this namespace an owner, so that the garbage collector takes the
    /// configuration away after it.
    pub fn adoption(&self, namespace: &str, uid: &str) -> Value {
        let owner = json!({"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": uid});
        let path = "/metadata/ownerReferences";
        let add = if self.has_owners {
            json!({"op": "add", "path": format!("{path}/-"), "value": owner})
        } else {
            json!({"op": "add", "path": path, "value": [owner]})
        };
        json!([self.version(), add])
    }

    /// Makes a patch fail when the object has changed since.
    fn version(&self) -> Value {
        json!({"op": "replace", "path": "/metadata/resourceVersion",
               "value": self.resource_version})
    }
}

impl Callee {
    /// The name that a client expects in our certificate; `None` when it calls somebody else.
    fn host(&self, client: &Value) -> Option<String> {
        let text = |pointer| client.pointer(pointer).and_then(Value::as_str);
        if let Some(url) = text("/url") {
            let uri: http::Uri = url.parse().ok()?;
            let host = uri.host()?.trim_matches(['[', ']']).to_ascii_lowercase();
            let host = host.parse::<IpAddr>().map_or(host, |address| address.to_string());
            return self.names.contains(&host).then_some(host);
        }
        let (namespace, name) = (text("/service/namespace")?, text("/service/name")?);
        let ours = namespace == self.service.namespace && name == self.service.name;
        ours.then(|| self.service_host())
    }

    /// What API servers expect in the certificate when they call the Service.
    fn service_host(&self) -> String {
        format!("{}.{}.svc", self.service.name, self.service.namespace)
    }
}

/// Whether all of these webhooks trust a certificate.
pub fn trust<'a>(
    webhooks: impl IntoIterator<Item = &'a Webhook>,
    certificate: &Certificate,
    now: Timestamp,
) -> bool {
    webhooks.into_iter().all(|it| trust::verifies(&it.bundle, certificate, &it.host, now))
}

/// What these webhooks trust already and a new bundle should go on to trust for a while: somebody
/// may still show a certificate by it.
pub fn inherited<'a>(
    webhooks: impl IntoIterator<Item = &'a Webhook>,
    now: Timestamp,
) -> Vec<Certificate> {
    let mut found: Vec<Certificate> = Vec::new();
    for webhook in webhooks {
        for certificate in Certificate::parse_all(&webhook.bundle).unwrap_or_default() {
            if certificate.ends > now && !found.contains(&certificate) && found.len() < INHERITED {
                found.push(certificate);
            }
        }
    }
    found
}

fn decoded(base64: &str) -> Option<String> {
    String::from_utf8(BASE64_STANDARD.decode(base64).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callee() -> Callee {
        let service = ObjectName { namespace: "system".into(), name: "guard".into() };
        let names = ["guard.system.svc", "127.0.0.1", "::1", "guard.example.org"];
        Callee { service, names: names.map(str::to_owned).into() }
    }

    fn configuration(clients: &[Value]) -> Value {
        let webhooks = clients.iter().enumerate();
        let webhooks: Vec<_> = webhooks
            .map(|(number, client)| json!({"name": format!("w{number}"), "clientConfig": client}))
            .collect();
        json!({"metadata": {"name": "guard", "resourceVersion": "7"}, "webhooks": webhooks})
    }

    fn service(namespace: &str, name: &str) -> Value {
        json!({"service": {"namespace": namespace, "name": name, "path": "/x"}})
    }

    #[test]
    fn only_webhooks_that_call_us_are_ours() {
        let object = configuration(&[
            service("system", "guard"),
            service("system", "other"),
            service("other", "guard"),
            json!({"url": "https://127.0.0.1:9443/x"}),
            json!({"url": "https://[0:0::1]/x"}),
            json!({"url": "https://Guard.Example.Org/x"}),
            json!({"url": "https://elsewhere.example.org/x"}),
            json!({"url": "not a url"}),
            json!({}),
        ]);
        let read = Configuration::read(&object, &callee()).unwrap();
        let found: Vec<_> = read.webhooks.iter().map(|it| (&*it.name, &*it.host)).collect();
        let expected = [
            ("w0", "guard.system.svc"),
            ("w3", "127.0.0.1"),
            ("w4", "::1"),
            ("w5", "guard.example.org"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_patch_changes_what_is_wrong_and_nothing_else() {
        let with = |mut client: Value, bundle: &str| {
            client["caBundle"] = BASE64_STANDARD.encode(bundle).into();
            client
        };
        let object = configuration(&[
            service("system", "other"),
            with(service("system", "guard"), "new"),
            with(service("system", "guard"), "old"),
            service("system", "guard"),
            with(service("system", "other"), "old"),
        ]);
        let read = Configuration::read(&object, &callee()).unwrap();
        let bundle_of = |index: usize| format!("/webhooks/{index}/clientConfig/caBundle");
        let expected = json!([
            {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "replace", "path": bundle_of(2), "value": "bmV3"},
            {"op": "add", "path": bundle_of(3), "value": "bmV3"},
        ]);
        let patch = read.patch("new").unwrap();
        assert_eq!(patch, expected);

        let mut patched = object;
        let operations: json_patch::Patch = serde_json::from_value(patch).unwrap();
        json_patch::patch(&mut patched, &operations).unwrap();
        let read = Configuration::read(&patched, &callee()).unwrap();
        assert_eq!(read.patch("new"), None);
        assert_eq!(patched["webhooks"][4]["clientConfig"]["caBundle"], "b2xk");
    }

    #[test]
    fn a_namespace_becomes_an_owner_once() {
        let mut object = configuration(&[service("system", "guard")]);
        let adopted = |object: &Value| {
            let read = Configuration::read(object, &callee()).unwrap();
            assert!(read.outlives_service());
            let operations = serde_json::from_value(read.adoption("system", "u-1")).unwrap();
            let mut patched = object.clone();
            json_patch::patch(&mut patched, &operations as &json_patch::Patch).unwrap();
            assert!(!Configuration::read(&patched, &callee()).unwrap().outlives_service());
            patched["metadata"]["ownerReferences"].clone()
        };
        let owner =
            json!({"apiVersion": "v1", "kind": "Namespace", "name": "system", "uid": "u-1"});
        assert_eq!(adopted(&object), json!([owner]));
        let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u-2"});
        object["metadata"]["ownerReferences"] = json!([other]);
        assert_eq!(adopted(&object), json!([other, owner]));
        // A guard outside the cluster does not go with a namespace.
        let outside = configuration(&[json!({"url": "https://127.0.0.1:9443/x"})]);
        assert!(!Configuration::read(&outside, &callee()).unwrap().outlives_service());
    }

    #[test]
    fn what_cert_manager_fills_is_left_to_it() {
        let mut object = configuration(&[service("system", "guard")]);
        object["metadata"]["annotations"] = json!({INJECTOR_ANNOTATION: "system/guard"});
        let error = Configuration::read(&object, &callee()).unwrap_err();
        assert!(error.contains("cert-manager writes its caBundle"), "{error}");
    }

    #[test]
    fn a_new_bundle_goes_on_to_trust_what_was_trusted() {
        let now: Timestamp = "2026-12-01T12:00:00Z".parse().unwrap();
        let day = jiff::SignedDuration::from_hours(24);
        let made =
            |days: i32| crate::certificates::issue::authority(now, day * days).unwrap().certificate;
        let many: Vec<_> = (2..8).map(made).collect();
        let bundled = |certificates: &[&Certificate]| {
            let bundle: String = certificates.iter().map(|it| &*it.pem).collect();
            let mut client = service("system", "guard");
            client["caBundle"] = BASE64_STANDARD.encode(bundle).into();
            client
        };
        let object = configuration(&[
            service("system", "guard"),
            bundled(&[&many[0], &many[1]]),
            bundled(&[&many[1], &many[2]]),
            json!({"service": {"namespace": "system", "name": "guard"}, "caBundle": "IQ=="}),
        ]);
        let read = Configuration::read(&object, &callee()).unwrap();
        assert_eq!(inherited(&read.webhooks, now), many[..3]);
        // What has ended vouches for nothing.
        assert_eq!(inherited(&read.webhooks, now + day * 3), many[2..3]);
        let object = configuration(&[bundled(&many.iter().collect::<Vec<_>>())]);
        let read = Configuration::read(&object, &callee()).unwrap();
        assert_eq!(inherited(&read.webhooks, now), many[..INHERITED]);
    }
}
