//! Certificates: loaded and checked before a port is open, then reloaded while serving.
//!
//! The server's own pair comes from files, or from whoever makes it ([`Handover`]). Files are
//! polled, not watched: the kubelet swaps a symlinked directory, which a watch on the file does not
//! see. Whatever goes wrong with a new pair, the one in use stays in use.

mod client;
mod files;
mod handover;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::gauge::ConstGauge,
};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::sync::Notify;

use self::{
    client::ClientVerifier,
    files::{Loaded, Pair},
};
pub use self::{files::Error, handover::Handover};
use super::{
    admin::Gate,
    metrics::{Counted, Reload},
};

/// Files with the server's pair.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// PEM chain: the server's certificate, then its intermediates.
    pub cert: PathBuf,
    /// PEM private key (PKCS#8, PKCS#1 or SEC1) of that certificate.
    pub key: PathBuf,
}

impl TlsFiles {
    /// These two files.
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { cert: cert.into(), key: key.into() }
    }
}

/// Where the server's pair comes from.
#[derive(Clone, Debug)]
pub enum PairSource {
    /// Files, which must be good before a port is opened.
    Files(TlsFiles),
    /// Somebody hands it over, now or later. Until then handshakes fail and the server is not
    /// ready.
    Handover(Handover),
}

impl From<TlsFiles> for PairSource {
    fn from(files: TlsFiles) -> Self {
        Self::Files(files)
    }
}

impl From<Handover> for PairSource {
    fn from(handover: Handover) -> Self {
        Self::Handover(handover)
    }
}

/// Where certificates come from.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// The server's certificate and key.
    pub pair: PairSource,
    /// PEM certificates of the authorities that clients must come from. Without it anyone may
    /// connect, which is what an API server without an admission kubeconfig needs.
    pub client_ca: Option<PathBuf>,
    /// Common or DNS names that a client certificate must carry one of. Empty: any name.
    /// Has no effect without `client_ca`.
    pub client_names: Vec<String>,
    /// Time between looks at the files. Default 10 s.
    pub poll: Duration,
}

impl TlsSettings {
    /// This pair, no client certificates, default poll interval.
    pub fn new(pair: impl Into<PairSource>) -> Self {
        Self {
            pair: pair.into(),
            client_ca: None,
            client_names: Vec::new(),
            poll: Duration::from_secs(10),
        }
    }
}

/// The certificates in use.
pub(super) struct Certificates {
    settings: TlsSettings,
    provider: Arc<CryptoProvider>,
    current: ArcSwap<Loaded>,
    reloads: Counted<Reload>,
    /// Asks for a look at the files now.
    pub(super) look: Notify,
}

impl Certificates {
    /// Loads and checks every file.
    pub(super) async fn load(
        settings: TlsSettings,
        now: Timestamp,
        reloads: Counted<Reload>,
    ) -> Result<Arc<Self>, Error> {
        let provider = Arc::new(ring::default_provider());
        let loaded = files::load(&settings, &provider, now).await?;
        Ok(Arc::new(Self {
            settings,
            provider,
            current: ArcSwap::from_pointee(loaded),
            reloads,
            look: Notify::new(),
        }))
    }

    /// The pair in use; `None` while none was handed over.
    fn pair(&self) -> Option<Arc<Pair>> {
        match &self.settings.pair {
            PairSource::Files(_) => self.current.load().pair.clone(),
            PairSource::Handover(handover) => handover.pair(),
        }
    }

    /// A configuration that always hands out the current certificates.
    pub(super) fn server_config(self: &Arc<Self>) -> Result<ServerConfig, Error> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(Error::Protocol)?;
        let builder = match &self.settings.client_ca {
            Some(_) => builder.with_client_cert_verifier(Arc::new(ClientVerifier::new(
                Arc::clone(self),
                self.provider.signature_verification_algorithms,
            ))),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::clone(self) as Arc<_>);
        // API servers speak HTTP/1.1 to webhooks; without h2 its attacks are out as well.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // They resume no sessions either. Without resumption every connection is judged by the
        // certificates of the moment, on both sides.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Looks at the files for ever: at each interval and whenever [`Self::look`] is notified.
    /// `gate` is open as long as the certificate in use is within its lifetime.
    pub(super) async fn keep_fresh(&self, gate: Gate) {
        let mut last_error = None;
        loop {
            let now = Timestamp::now();
            self.refresh(now, &mut last_error).await;
            match self.pair().map(|pair| pair.not_after) {
                Some(end) if end > now => gate.open(),
                Some(end) => gate.close(format!("the certificate ended at {end}")),
                None => gate.close("there is none yet"),
            }
            let handed = async {
                match &self.settings.pair {
                    PairSource::Files(_) => std::future::pending().await,
                    PairSource::Handover(handover) => handover.changed().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(self.settings.poll) => {}
                () = self.look.notified() => {}
                () = handed => {}
            }
        }
    }

    /// Swaps in the files if they changed and are good. A failure is logged when it differs from
    /// the one before.
    async fn refresh(&self, now: Timestamp, last_error: &mut Option<String>) {
        let current = self.current.load_full();
        let not_after = |pair: &Option<Arc<Pair>>| pair.as_ref().map(|it| it.not_after.to_string());
        match files::load_changed(&self.settings, &self.provider, now, &current).await {
            Ok(None) => *last_error = None,
            Ok(Some(new)) => {
                tracing::info!(not_after = not_after(&new.pair), "certificate files reloaded");
                self.current.store(Arc::new(new));
                self.reloads.count(Reload::Success);
                *last_error = None;
            }
            Err(error) => {
                self.reloads.count(Reload::Failure);
                let text = error.to_string();
                if last_error.as_ref() != Some(&text) {
                    tracing::warn!(
                        error = text,
                        not_after = not_after(&current.pair),
                        "certificate not reloaded; the one in use stays"
                    );
                    *last_error = Some(text);
                }
            }
        }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.pair()?.key))
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Collector for Certificates {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(pair) = self.pair() else { return Ok(()) };
        let gauge = ConstGauge::new(pair.not_after.as_second());
        let metric = encoder.encode_descriptor(
            "certificate_not_after_seconds",
            "When the certificate in use ends, in seconds since 1970",
            None,
            gauge.metric_type(),
        )?;
        gauge.encode(metric)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Write,
        sync::{Mutex, PoisonError},
    };

    use prometheus_client::registry::Registry;

    use super::*;
    use crate::{certificates, server::metrics::ServerMetrics};

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        fn warnings(&self) -> usize {
            let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            log.lines().filter(|line| line.contains("not reloaded")).count()
        }
    }

    #[tokio::test]
    async fn each_distinct_failure_is_logged_once() {
        let now = Timestamp::now();
        let dir = tempfile::tempdir().unwrap();
        let bundle = certificates::generate(&["guard.svc".to_owned()], &[], now).unwrap();
        let [_, cert, key] = bundle.write(dir.path(), false).unwrap();
        let metrics = ServerMetrics::register(&mut Registry::default());
        let reloads = metrics.certificate_reloads;
        let certificates =
            Certificates::load(TlsSettings::new(TlsFiles::new(&cert, &key)), now, reloads)
                .await
                .unwrap();

        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let mut last = None;
        certificates.refresh(now, &mut last).await;
        assert_eq!(log.warnings(), 0);
        for (content, warnings) in [
            (Some("none"), 1),
            (None, 2),
            (Some("none"), 3),
            // Whole again: the next failure is a new one.
            (Some(&*bundle.cert_pem), 3),
            (Some("none"), 4),
        ] {
            match content {
                Some(content) => fs::write(&cert, content).unwrap(),
                None => fs::remove_file(&cert).unwrap(),
            }
            for _ in 0..3 {
                certificates.refresh(now, &mut last).await;
                assert_eq!(log.warnings(), warnings);
            }
        }
    }

    #[tokio::test]
    async fn a_pair_that_is_not_valid_yet_is_taken_when_its_time_comes() {
        let now = Timestamp::now();
        let later = now + jiff::SignedDuration::from_hours(48);
        let dir = tempfile::tempdir().unwrap();
        let names = ["guard.svc".to_owned()];
        let bundle = certificates::generate(&names, &[], now).unwrap();
        let [_, cert, key] = bundle.write(dir.path(), false).unwrap();
        let metrics = ServerMetrics::register(&mut Registry::default());
        let reloads = metrics.certificate_reloads;
        let certificates =
            Certificates::load(TlsSettings::new(TlsFiles::new(cert, key)), now, reloads)
                .await
                .unwrap();
        let not_after = || certificates.pair().unwrap().not_after;
        let before = not_after();

        certificates::generate(&names, &[], later).unwrap().write(dir.path(), true).unwrap();
        let mut last = None;
        certificates.refresh(now, &mut last).await;
        assert!(last.as_ref().is_some_and(|error| error.contains("starts at")), "{last:?}");
        assert_eq!(not_after(), before);
        certificates.refresh(later, &mut last).await;
        assert_eq!(last, None);
        assert!(not_after() > before);
    }
}
