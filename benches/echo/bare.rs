//! The least that a webhook over HTTPS can be: axum on rustls that reads the body and answers
//! bytes which it has.

use std::{path::Path, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::Path as InPath,
    http::header,
    response::{IntoResponse as _, Response},
    routing::post,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{net::TcpListener, runtime};
use tokio_rustls::TlsAcceptor;
use tower::Service as _;

/// Serves for ever on a free port, whose address is printed first.
pub(crate) fn run(cert: &Path, key: &Path) {
    let acceptor = TlsAcceptor::from(Arc::new(config(cert, key)));
    let runtime = runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("{}", listener.local_addr().expect("the port's address"));
        let router = Router::new().route("/{length}", post(answer));
        loop {
            let Ok((tcp, _)) = listener.accept().await else { continue };
            let (acceptor, router) = (acceptor.clone(), router.clone());
            tokio::spawn(async move {
                let _ = tcp.set_nodelay(true);
                let Ok(tls) = acceptor.accept(tcp).await else { return };
                let service = service_fn(move |request: hyper::Request<Incoming>| {
                    router.clone().call(request)
                });
                let http = http1::Builder::new().serve_connection(TokioIo::new(tls), service);
                // A client that left is no failure.
                let _ = http.await;
            });
        }
    });
}

async fn answer(InPath(length): InPath<usize>, body: Bytes) -> Response {
    const ANSWER: &[u8] = &[b'x'; 4096];
    assert!(!body.is_empty());
    let answer = ANSWER.get(..length).expect("answers of at most 4096 bytes");
    ([(header::CONTENT_TYPE, "application/json")], answer).into_response()
}

fn config(cert: &Path, key: &Path) -> ServerConfig {
    let chain = CertificateDer::pem_file_iter(cert)
        .expect("a readable certificate")
        .collect::<Result<_, _>>()
        .expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(key).expect("a key");
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the versions that ring has")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a key that fits the certificate");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}
