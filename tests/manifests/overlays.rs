//! Overlays change how the guard is reached, and nothing else.

use std::collections::BTreeSet;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use serde_json::{Value, json};

use crate::documents::{NAMES, all, id, objects, one, text, texts};

const CONFIGURATIONS: [&str; 2] =
    ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// A configuration without what an overlay may change.
fn rules(objects: &[Value], configuration: &str) -> Value {
    let mut configuration = one(objects, configuration).clone();
    configuration["metadata"].as_object_mut().unwrap().remove("annotations");
    for webhook in configuration["webhooks"].as_array_mut().unwrap() {
        webhook["clientConfig"].take();
    }
    configuration
}

#[test]
fn every_object_is_ours_and_in_its_place() {
    for name in NAMES {
        let objects = objects(name);
        for object in &objects {
            let metadata = &object["metadata"];
            assert_eq!(metadata["labels"]["app.kubernetes.io/name"], "metal3-guard", "{name}");
            let namespaced = [
                "ServiceAccount",
                "Service",
                "Deployment",
                "PodDisruptionBudget",
                "Role",
                "RoleBinding",
                "Secret",
                "Issuer",
                "Certificate",
            ]
            .iter()
            .any(|kind| object["kind"] == *kind);
            let namespace = namespaced.then_some("metal3-guard-system");
            assert_eq!(metadata["namespace"].as_str(), namespace, "{name}: {}", id(object));
        }
        // What is called is created before what calls it.
        assert_eq!(objects[0]["kind"], "Namespace", "{name}");
        let last: Vec<_> = objects[objects.len() - 2..].iter().map(|it| &it["kind"]).collect();
        assert_eq!(last, CONFIGURATIONS, "{name}");
    }
}

#[test]
fn the_rules_are_the_same_everywhere() {
    let base = objects("base");
    for name in NAMES {
        let objects = objects(name);
        for configuration in CONFIGURATIONS {
            assert_eq!(rules(&objects, configuration), rules(&base, configuration), "{name}");
        }
    }
}

/// What an overlay has besides the base, which it has all of.
fn added(overlay: &str) -> Vec<String> {
    let ids = |name| objects(name).iter().map(id).collect::<BTreeSet<_>>();
    let (base, overlay) = (ids("base"), ids(overlay));
    assert!(overlay.is_superset(&base));
    overlay.difference(&base).cloned().collect()
}

#[test]
fn self_managed_takes_nothing_from_outside() {
    let name = "metal3-guard-certificates";
    let expected = [
        format!("ClusterRole/-/{name}"),
        format!("ClusterRoleBinding/-/{name}"),
        format!("Role/metal3-guard-system/{name}"),
        format!("RoleBinding/metal3-guard-system/{name}"),
        "Secret/metal3-guard-system/metal3-guard-tls".to_owned(),
    ];
    assert_eq!(added("self-managed"), expected);
    let objects = objects("self-managed");
    let pod = &one(&objects, "Deployment")["spec"]["template"]["spec"];
    // A volume of a Secret that its own pod makes would wait for itself.
    assert_eq!(pod["volumes"], Value::Null);
    assert_eq!(pod["containers"][0]["volumeMounts"], Value::Null);
    // The guard may not make one, and what is in it is not taken out by applying this again.
    let secret = one(&objects, "Secret");
    assert_eq!((&secret["data"], &secret["stringData"]), (&Value::Null, &Value::Null));
    // The guard fills them in, and nobody takes that away by applying this again.
    for configuration in CONFIGURATIONS {
        let configuration = one(&objects, configuration);
        assert_eq!(configuration["metadata"]["annotations"], Value::Null);
        for webhook in configuration["webhooks"].as_array().unwrap() {
            assert_eq!(webhook["clientConfig"]["caBundle"], Value::Null);
        }
    }
}

#[test]
fn cert_manager_adds_a_certificate_and_its_ca() {
    let objects = objects("cert-manager");
    assert_eq!(added("cert-manager").len(), 4);
    let certificates = all(&objects, "Certificate");
    let certificate = |name: &str| {
        let found = certificates.iter().find(|it| it["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no Certificate {name}"))
    };
    for configuration in CONFIGURATIONS {
        let annotations = &one(&objects, configuration)["metadata"]["annotations"];
        let from = annotations["cert-manager.io/inject-ca-from"].as_str().unwrap();
        let (namespace, name) = from.split_once('/').unwrap();
        assert_eq!(certificate(name)["metadata"]["namespace"], namespace);
    }

    let serving = &certificate("metal3-guard")["spec"];
    let service = one(&objects, "Service");
    let part = |key: &str| service["metadata"][key].as_str().unwrap();
    let host = format!("{}.{}.svc", part("name"), part("namespace"));
    assert!(texts(&serving["dnsNames"]).contains(&&*host), "API servers check {host}");
    let pod = &one(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(serving["secretName"], pod["volumes"][0]["secret"]["secretName"]);
    assert!(texts(&serving["usages"]).contains(&"server auth"));

    // Self-signed CA -> CA issuer -> serving certificate.
    let issuers = all(&objects, "Issuer");
    let issuer = |certificate: &Value| {
        let name = &certificate["issuerRef"]["name"];
        let found = issuers.iter().find(|it| it["metadata"]["name"] == *name);
        &found.unwrap_or_else(|| panic!("no Issuer {name}"))["spec"]
    };
    let authority = &certificate("metal3-guard-ca")["spec"];
    assert_eq!(issuer(serving)["ca"]["secretName"], authority["secretName"]);
    assert_eq!(authority["isCA"], true);
    assert_eq!(authority["privateKey"]["rotationPolicy"], "Never");
    assert_eq!(issuer(authority)["selfSigned"], json!({}));
}

#[test]
fn local_url_is_the_webhooks_and_the_account() {
    let objects = objects("local-url");
    let kinds: Vec<_> = objects.iter().map(|it| it["kind"].as_str().unwrap()).collect();
    let expected = [
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRole",
        "ClusterRoleBinding",
        "ClusterRoleBinding",
    ];
    assert_eq!(kinds, [expected.as_slice(), &CONFIGURATIONS].concat());
    let base = crate::documents::objects("base");
    for configuration in CONFIGURATIONS {
        let service = one(&base, configuration)["webhooks"].as_array().unwrap();
        let url = one(&objects, configuration)["webhooks"].as_array().unwrap();
        for (service, url) in service.iter().zip(url) {
            let path = service["clientConfig"]["service"]["path"].as_str().unwrap();
            let client = &url["clientConfig"];
            assert_eq!(client["url"], format!("https://127.0.0.1:8443{path}"));
            assert_eq!(client["service"], Value::Null);
        }
    }
}

/// Two plain replacements in the text make it ready, as its README says.
#[test]
fn local_url_is_made_ready_by_search_and_replace() {
    let rendered = text("local-url");
    let objects = objects("local-url");
    let bundle =
        one(&objects, CONFIGURATIONS[0])["webhooks"][0]["clientConfig"]["caBundle"].clone();
    let bundle = bundle.as_str().unwrap();
    let ready = rendered
        .replace("https://127.0.0.1:8443", "https://192.0.2.7:9443")
        .replace(bundle, "QSBidW5kbGU=");
    let ready = crate::documents::parse(&ready);
    for configuration in CONFIGURATIONS {
        for webhook in one(&ready, configuration)["webhooks"].as_array().unwrap() {
            let client = &webhook["clientConfig"];
            assert!(client["url"].as_str().unwrap().starts_with("https://192.0.2.7:9443/"));
            assert_eq!(client["caBundle"], "QSBidW5kbGU=");
        }
    }

    // Until then it is a CA that can be loaded, and has signed nothing.
    let pem = BASE64_STANDARD.decode(bundle).unwrap();
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let mut roots = RootCertStore::empty();
    assert_eq!(roots.add_parsable_certificates(certificates.unwrap()), (1, 0));
}
