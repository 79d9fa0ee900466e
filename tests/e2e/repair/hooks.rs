//! A hook of someone else that refuses what the guard writes.

use std::{
    convert::Infallible,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Collected, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use super::{TEMPLATES, acting, events, stuck};
use crate::{
    e2e::Space,
    support::{Authority, User, eventually, guard},
};

/// A template that the hook lets nobody but people write to.
const REFUSED: &str = "refused";

/// With code 409 it looks like a lost race, which is tried again at once. It must not be: two
/// controllers would write as fast as they can.
#[tokio::test]
async fn a_refusal_is_told_and_tried_again_after_growing_pauses() {
    let acting = acting().await;
    let plane = acting.env.plane;
    let space = acting.env.space("refusing-hook").await;
    let hook = Hook::start().await;
    let name = format!("{}.example.com", space.ns());
    let configuration = hook.configuration(&name, space.ns()).to_string();
    guard::apply(plane, &configuration).await.unwrap();
    let as_guard = Space {
        client: plane.client(User::Guard).await,
        namespace: plane.namespace("refusing-hook-as-guard").await,
    };
    space.create(&space.template(REFUSED)).await.unwrap();
    eventually("the API server to call the hook", async || {
        let url = format!("{}?dryRun=All", space.url(TEMPLATES, REFUSED, ""));
        let touch = json!({"metadata": {"annotations": {"probe": ""}}});
        let body = ("application/merge-patch+json", &touch);
        as_guard.send(Method::PATCH, &url, Some(body)).await.err().filter(|it| it.code == 409)
    })
    .await;
    space.delete(TEMPLATES, REFUSED).await.unwrap();

    let said = eventually("the refusal to be told", async || {
        let said = events(&space).await;
        said.get("RepairFailed")?.first().cloned()
    })
    .await;
    assert!(said.contains("an admission hook refuses it"), "{said}");
    assert!(said.contains("not while I look"), "its own words: {said}");

    hook.forget();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let attempts = hook.refused();
    println!("{attempts} attempts of two controllers in 20 s");
    // Each of the two: a pause of a second at first, then twice as long each time.
    assert!((2..=14).contains(&attempts), "{attempts} attempts in 20 s");
    let writes = acting.writes(space.ns());
    assert!(
        !writes.is_empty() && writes.iter().all(|line| line.ends_with(" refused")),
        "{writes:#?}"
    );

    // What is refused holds back nothing else in its namespace.
    stuck(&space, "other", &[]).await;
    space.gone(TEMPLATES, "other").await;
    assert!(space.get(TEMPLATES, REFUSED).await.is_some());

    hook.allow();
    space.gone(TEMPLATES, REFUSED).await;
    let delete = ["delete", "validatingwebhookconfiguration", &name];
    plane.kubectl(User::Admin, &delete).await.ok();
}

/// An HTTPS server that answers AdmissionReviews: no to the guard about [`REFUSED`], else yes.
struct Hook {
    url: String,
    ca_pem: String,
    state: Arc<State>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    allows: AtomicBool,
    refused: Mutex<usize>,
}

impl Hook {
    async fn start() -> Self {
        let authority = Authority::new("hooks of a test").unwrap();
        let (certificate, key) = authority.issue(&["127.0.0.1"]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        let serving =
            tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(tls)), Arc::clone(&state)));
        Self { url, ca_pem: authority.pem().into(), state, serving }
    }

    fn configuration(&self, name: &str, namespace: &str) -> Value {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [{
                "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": "Fail",
                "clientConfig": {
                    "url": self.url, "caBundle": BASE64_STANDARD.encode(&self.ca_pem),
                },
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": namespace},
                },
                "rules": [{
                    "apiGroups": ["infrastructure.cluster.x-k8s.io"], "apiVersions": ["*"],
                    "operations": ["UPDATE"], "resources": ["*", "*/status"],
                }],
            }],
        })
    }

    fn refused(&self) -> usize {
        *self.state.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self) {
        *self.state.refused.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }

    fn allow(&self) {
        self.state.allows.store(true, Ordering::Relaxed);
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, state) = (tls.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let service = service_fn(move |request| answer(Arc::clone(&state), request));
            let serving = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            serving.await.ok();
        });
    }
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Full<bytes::Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let asked = &review["request"];
    let refuses = asked["userInfo"]["username"] == User::Guard.name()
        && asked["name"] == REFUSED
        && !state.allows.load(Ordering::Relaxed);
    if refuses {
        *state.refused.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }
    let response = json!({
        "uid": asked["uid"], "allowed": !refuses,
        "status": {"code": 409, "reason": "Conflict", "message": "not while I look"},
    });
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
    });
    let answer = Response::builder()
        .header("Content-Type", "application/json")
        .body(Full::from(answer.to_string()));
    Ok(answer.unwrap_or_default())
}
