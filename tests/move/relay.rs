//! A webhook server in the guard's place, which asks the guard. For some namespaces it only observes:
//! what the guard refuses is then allowed, by the same hooks and after the same time.

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{Request, Response, header::CONTENT_LENGTH};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::support::{Authority, Guard, Link, Upstream};

/// A running relay. It ends when it is dropped.
pub(crate) struct Relay {
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    /// The authority that its certificate comes from.
    pub(crate) ca_pem: String,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    guard: Arc<Upstream>,
    observed: Mutex<BTreeSet<String>>,
    held_back: Mutex<Vec<(String, String)>>,
}

impl Relay {
    /// Starts one in front of `guard`.
    pub(crate) async fn start(guard: &Guard) -> Result<Self> {
        let authority = Authority::new("relay of the tests")?;
        let (certificate, key) = authority.issue(&["127.0.0.1"])?;
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let shared = Arc::new(Shared {
            guard: Arc::new(Upstream::new(&guard.address, guard.ca_pem.as_bytes())?),
            observed: Mutex::default(),
            held_back: Mutex::default(),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?.to_string();
        let mut tasks = JoinSet::new();
        let serving = Arc::clone(&shared);
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(serve(acceptor.clone(), stream, Arc::clone(&serving)));
                while open.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, ca_pem: authority.pem().to_owned(), shared, _tasks: tasks })
    }

    /// From here on nothing is refused in a namespace.
    pub(crate) fn only_observe(&self, namespace: &str) {
        lock(&self.shared.observed).insert(namespace.to_owned());
    }

    /// The refusals that were held back in a namespace, in order: `Kind/name: message`.
    pub(crate) fn held_back(&self, namespace: &str) -> Vec<String> {
        let held_back = lock(&self.shared.held_back);
        let of_it = held_back.iter().filter(|(of, _)| of == namespace);
        of_it.map(|(_, refusal)| refusal.clone()).collect()
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, shared: Arc<Shared>) {
    stream.set_nodelay(true).ok();
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let guard = Arc::new(Link::new(Arc::clone(&shared.guard)));
    let service =
        service_fn(move |request| answer(Arc::clone(&shared), Arc::clone(&guard), request));
    // The API server may close it at any time.
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
}

async fn answer(
    shared: Arc<Shared>,
    guard: Arc<Link<Full<Bytes>>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    let review = body.collect().await?.to_bytes();
    let asked: Value = serde_json::from_slice(&review)?;
    let answer = guard.send(Request::from_parts(parts, Full::new(review))).await?;
    let (mut parts, body) = answer.into_parts();
    let mut said = body.collect().await?.to_bytes();

    let asked = &asked["request"];
    let namespace = asked["namespace"].as_str().unwrap_or_default();
    if lock(&shared.observed).contains(namespace) {
        let mut review: Value = serde_json::from_slice(&said)?;
        let response = review.get_mut("response").context("no response in the guard's answer")?;
        if response["allowed"] == false {
            let [kind, name, message] =
                [&asked["kind"]["kind"], &asked["name"], &response["status"]["message"]]
                    .map(|text| text.as_str().unwrap_or_default());
            let refusal = format!("{kind}/{name}: {message}");
            lock(&shared.held_back).push((namespace.to_owned(), refusal));
            *response = json!({"uid": response["uid"], "allowed": true});
            said = review.to_string().into();
            parts.headers.remove(CONTENT_LENGTH);
        }
    }
    Ok(Response::from_parts(parts, Full::new(said)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
