//! A pair that is handed over by whoever makes it, instead of lying in files.

use std::{fmt, path::Path, sync::Arc};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use rustls::crypto::{CryptoProvider, ring};
use tokio::sync::Notify;

use super::{
    Error, TlsFiles,
    files::{self, Pair},
};
use crate::server::metrics::{Counted, Metrics, Reload};

/// Hands a certificate and its key to a running server. Clones are the same.
#[derive(Clone)]
pub struct Handover(Arc<Shared>);

struct Shared {
    provider: Arc<CryptoProvider>,
    current: ArcSwapOption<Pair>,
    changed: Notify,
    reloads: Counted<Reload>,
}

impl Handover {
    /// Nothing handed over yet. `metrics` are those of the server that will serve it.
    pub fn new(metrics: &Metrics) -> Self {
        Self(Arc::new(Shared {
            provider: Arc::new(ring::default_provider()),
            current: ArcSwapOption::empty(),
            changed: Notify::new(),
            reloads: metrics.server().certificate_reloads.clone(),
        }))
    }

    /// Serves this PEM chain and key from now on: the next handshake gets it, open connections
    /// stay. `place` says where it comes from, for errors.
    ///
    /// # Errors
    /// When it cannot be used at `now`. Then the one before stays.
    pub fn give(&self, chain: &str, key: &str, place: &str, now: Timestamp) -> Result<(), Error> {
        let part = |name: &str| Path::new(&format!("{place}, {name}")).to_owned();
        let places = TlsFiles { cert: part("tls.crt"), key: part("tls.key") };
        let checked = files::pair(chain.as_bytes(), key.as_bytes(), &places, &self.0.provider, now);
        let pair = checked.inspect_err(|_| self.0.reloads.count(Reload::Failure))?;
        self.0.current.store(Some(Arc::new(pair)));
        self.0.reloads.count(Reload::Success);
        self.0.changed.notify_one();
        Ok(())
    }

    pub(super) fn pair(&self) -> Option<Arc<Pair>> {
        self.0.current.load_full()
    }

    /// Returns once something was handed over since the last time. One waiter.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover").finish_non_exhaustive()
    }
}
