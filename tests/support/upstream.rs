//! A server behind TLS, as a proxy reaches it.

use std::{error::Error, sync::Arc};

use anyhow::{Context as _, Result};
use http::{Request, Response};
use hyper::{
    body::{Body, Incoming},
    client::conn::http1::SendRequest,
};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{net::TcpStream, sync::Mutex};
use tokio_rustls::TlsConnector;

/// A server behind TLS whose certificate a given authority issued.
#[derive(Debug)]
pub(crate) struct Upstream {
    address: String,
    tls: Arc<ClientConfig>,
}

impl Upstream {
    /// `address` is `HOST:PORT`.
    pub(crate) fn new(address: &str, ca_pem: &[u8]) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem) {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address: address.into(), tls: Arc::new(tls) })
    }

    async fn connect<B: Sent>(&self) -> Result<SendRequest<B>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let host = self.address.rsplit_once(':').context("no port")?.0;
        let name = ServerName::try_from(host.to_owned())?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// One connection, for one request after the other: made for the first, and anew when it broke.
#[derive(Debug)]
pub(crate) struct Link<B> {
    upstream: Arc<Upstream>,
    kept: Mutex<Option<SendRequest<B>>>,
}

impl<B: Sent> Link<B> {
    pub(crate) fn new(upstream: Arc<Upstream>) -> Self {
        Self { upstream, kept: Mutex::new(None) }
    }

    /// Sends a request, and waits for the head of the answer.
    pub(crate) async fn send(&self, request: Request<B>) -> Result<Response<Incoming>> {
        let mut link = self.kept.lock().await;
        let mut kept = link.take();
        if let Some(sender) = &mut kept
            && sender.ready().await.is_err()
        {
            kept = None;
        }
        let mut sender = match kept {
            Some(sender) => sender,
            None => self.upstream.connect().await?,
        };
        let response = sender.send_request(request).await?;
        *link = Some(sender);
        Ok(response)
    }
}

/// A body that can be sent.
pub(crate) trait Sent:
    Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static
{
}

impl<B> Sent for B where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static
{
}
