//! Plays API servers: reads what hooks trust, and looks whether the guards show just that.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{net::TcpStream, task::JoinHandle};
use tokio_rustls::TlsConnector;

use super::{Own, Space, bundles};
use crate::support::Guard;

/// Handshakes without an end.
pub(super) struct Prober {
    enough: Arc<AtomicBool>,
    task: JoinHandle<Probed>,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Probed {
    /// How many handshakes there were.
    pub(super) handshakes: usize,
    /// What went wrong.
    pub(super) failed: Vec<String>,
    /// What hooks trusted at one time or another.
    bundles: BTreeSet<String>,
}

impl Prober {
    /// With each of these guards in turn.
    pub(super) async fn start(own: &Own, guards: &[&Guard]) -> Self {
        let space = own.space("prober").await;
        let addresses: Vec<_> = guards.iter().map(|guard| guard.address.clone()).collect();
        let enough = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&enough);
        let task = tokio::spawn(async move {
            let mut probed = Probed::default();
            while !stop.load(Ordering::Relaxed) {
                for address in &addresses {
                    probed.handshakes(&space, address).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            probed
        });
        Self { enough, task }
    }

    pub(super) async fn stop(self) -> Probed {
        self.enough.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

impl Probed {
    /// How many rotations were looked at while they were under way.
    pub(super) fn rotations(&self) -> usize {
        let two = |it: &&String| it.matches("BEGIN CERTIFICATE").count() == 2;
        self.bundles.iter().filter(two).count()
    }

    /// One for each bundle that there is now.
    async fn handshakes(&mut self, space: &Space, address: &str) {
        for bundle in bundles(space).await {
            if let Err(error) = handshake(address, &bundle).await {
                self.failed.push(format!("{address}: {error}"));
            }
            self.handshakes += 1;
            self.bundles.insert(bundle);
        }
    }
}

/// Whether this guard shows a certificate for 127.0.0.1 that this bundle verifies.
pub(super) async fn handshake(address: &str, bundle: &str) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    connected.map(drop).map_err(|error| error.to_string())
}
