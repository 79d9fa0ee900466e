//! The way from the API server to the guard: a bundle that verifies what is served, and for how
//! long, and endpoints behind the Service.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::{SignedDuration, Timestamp};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;
use x509_cert::{Certificate, der::Decode as _};

use super::{Api, Check, State, webhooks};

/// Less than this left is worth a word.
const SOON: SignedDuration = SignedDuration::from_hours(14 * 24);

/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// What to do about a bundle that is wrong: by hand, or where the guard writes it.
const BY_HAND: &str = "put the CA of the serving certificate into caBundle of both configurations";
const BY_GUARD: &str = "the guard writes caBundle by itself: look at its log for what keeps it";

/// `managed`: the guard makes its certificates.
pub(super) async fn check(api: &Api, managed: bool, now: Timestamp, checks: &mut Vec<Check>) {
    let fix = if managed { BY_GUARD } else { BY_HAND };
    let mut seen: Vec<Way> = Vec::new();
    for resource in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let url = format!("/apis/admissionregistration.k8s.io/v1/{resource}");
        // That it cannot be read is said where the webhooks are looked at.
        let Ok(list) = api.get(&url).await else { continue };
        for configuration in webhooks::items(&list).filter(|it| webhooks::is_ours(it)) {
            for webhook in webhooks::webhooks(configuration) {
                let Some(client) = webhook.get("clientConfig") else { continue };
                let Some(server) = Server::of(client) else { continue };
                let bundle = client.get("caBundle").and_then(Value::as_str).unwrap_or_default();
                let name = webhooks::name(webhook).to_owned();
                // Six webhooks usually share one server and one bundle.
                match seen.iter_mut().find(|way| way.server == server && way.bundle == bundle) {
                    Some(way) => way.webhooks.push(name),
                    None => seen.push(Way { server, bundle: bundle.into(), webhooks: vec![name] }),
                }
            }
        }
    }
    for way in &seen {
        let mut about = format!("certificate of {}:{}", way.server.host, way.server.port);
        if seen.len() > 1 {
            about = format!("{about} for {}", way.webhooks.join(", "));
        }
        checks.push(serving(&about, &way.server, &way.bundle, fix, now).await);
    }
    let services: BTreeSet<_> = seen.iter().filter_map(|way| way.server.service.as_ref()).collect();
    for (namespace, name) in services {
        checks.push(endpoints(api, namespace, name).await);
    }
}

/// One server with one bundle to verify it by, and the webhooks that call it so.
struct Way {
    server: Server,
    bundle: String,
    webhooks: Vec<String>,
}

/// Where a webhook calls to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    host: String,
    port: u16,
    /// Namespace and name, when it is a Service.
    service: Option<(String, String)>,
}

impl Server {
    fn of(client: &Value) -> Option<Self> {
        let text = |pointer| client.pointer(pointer).and_then(Value::as_str);
        if let Some(url) = text("/url") {
            let uri: http::Uri = url.parse().ok()?;
            let host = uri.host()?.trim_matches(['[', ']']).to_owned();
            return Some(Self { host, port: uri.port_u16().unwrap_or(443), service: None });
        }
        let (namespace, name) = (text("/service/namespace")?, text("/service/name")?);
        let port = client.pointer("/service/port").and_then(Value::as_u64);
        Some(Self {
            // The name that the API server checks.
            host: format!("{name}.{namespace}.svc"),
            port: port.and_then(|port| port.try_into().ok()).unwrap_or(443),
            service: Some((namespace.into(), name.into())),
        })
    }
}

async fn serving(about: &str, server: &Server, bundle: &str, fix: &str, now: Timestamp) -> Check {
    let roots = match roots(bundle) {
        Ok(roots) => roots,
        Err(why) => return Check::new(State::Problem, about, format!("caBundle {why}"), fix),
    };
    let stream = match timeout(CONNECT, TcpStream::connect((&*server.host, server.port))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if server.service.is_none() => {
            let text = format!("nobody answers: {error}");
            return Check::new(State::Problem, about, text, "start the guard, or mend its address");
        }
        Ok(Err(_)) | Err(_) => {
            let text = "not reachable from here; run doctor in the cluster to check it";
            return Check::new(State::Unknown, about, text, "");
        }
    };
    let Ok(name) = ServerName::try_from(server.host.clone()) else {
        return Check::new(State::Problem, about, "is no name that a certificate can have", fix);
    };
    let provider = Arc::new(ring::default_provider());
    let Ok(versions) =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
    else {
        return Check::new(State::Unknown, about, "this binary speaks no TLS", "");
    };
    let config = versions.with_root_certificates(roots).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let connected = match timeout(CONNECT, connector.connect(name, stream)).await {
        Ok(Ok(connected)) => connected,
        Ok(Err(error)) => {
            return Check::new(State::Problem, about, format!("not verified: {error}"), fix);
        }
        Err(_) => return Check::new(State::Problem, about, "no TLS handshake in time", fix),
    };
    let (_, session) = connected.get_ref();
    let leaf = session.peer_certificates().and_then(|chain| chain.first());
    match leaf.and_then(not_after) {
        Some(end) if end < now + SOON => Check::new(
            State::Warning,
            about,
            format!("verified, but ends at {end}"),
            "renew it; the guard picks new files up by itself",
        ),
        Some(end) => Check::ok(about, format!("verified by caBundle, lives until {end}")),
        None => Check::new(State::Unknown, about, "verified; its end cannot be read", ""),
    }
}

fn roots(bundle: &str) -> Result<RootCertStore, String> {
    if bundle.is_empty() {
        return Err("is empty".into());
    }
    let pem = BASE64_STANDARD.decode(bundle).map_err(|error| format!("is no base64: {error}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| format!("is no PEM: {error}"))?;
        roots.add(certificate).map_err(|error| format!("holds no usable CA: {error}"))?;
    }
    if roots.is_empty() { Err("holds no certificate".into()) } else { Ok(roots) }
}

fn not_after(leaf: &CertificateDer<'_>) -> Option<Timestamp> {
    let certificate = Certificate::from_der(leaf).ok()?;
    let end = certificate.tbs_certificate().validity().not_after.to_unix_duration();
    Timestamp::from_second(end.as_secs().try_into().ok()?).ok()
}

async fn endpoints(api: &Api, namespace: &str, name: &str) -> Check {
    let about = format!("endpoints of service {namespace}/{name}");
    let url = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?\
         labelSelector=kubernetes.io/service-name%3D{name}"
    );
    let list = match api.get(&url).await {
        Ok(list) => list,
        Err(why) => return Check::unknown(&about, &why),
    };
    let endpoints =
        webhooks::items(&list).filter_map(|it| it.get("endpoints")?.as_array()).flatten();
    // Missing means ready (discovery.k8s.io/v1).
    let is_ready =
        |it: &&Value| it.pointer("/conditions/ready").and_then(Value::as_bool).unwrap_or(true);
    // With two address families each pod is there twice.
    let pod = |it: &Value| {
        let target = it.pointer("/targetRef/name").or_else(|| it.pointer("/addresses/0"));
        target.and_then(Value::as_str).map(str::to_owned)
    };
    let ready: BTreeSet<_> = endpoints.filter(is_ready).map(pod).collect();
    match ready.len() {
        0 => Check::new(
            State::Problem,
            &about,
            "none is ready: deletions of templates are refused until one is",
            format!("look at the pods: kubectl get pods -n {namespace}"),
        ),
        1 => Check::new(
            State::Warning,
            &about,
            "only one is ready",
            "run two replicas, so that a restart is not noticed",
        ),
        ready => Check::ok(&about, format!("{ready} are ready")),
    }
}
