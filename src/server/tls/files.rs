//! From files on disk to keys that are known to work.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use x509_cert::{Certificate, der::Decode as _, time::Time};

use super::{PairSource, TlsFiles, TlsSettings};

/// Why certificates cannot be used. Each text names the file and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; check the path and that this user may read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is no PEM, or is cut off.
    #[error("{} is not valid PEM: {source}; write the file again", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// A file holds no certificate.
    #[error("{} holds no certificate; it needs a PEM section CERTIFICATE", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A certificate cannot be understood.
    #[error("{} holds a certificate that cannot be used: {reason}; issue a new one", path.display())]
    BadCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file holds no private key, or only an encrypted one.
    #[error("{} holds no private key; it needs an unencrypted PEM key (PKCS#8, PKCS#1 or SEC1)", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The key is of a kind that cannot sign handshakes.
    #[error("{} holds a key that cannot be used: {reason}; use ECDSA P-256 or P-384, Ed25519, or RSA of 2048 bits or more", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: rustls::Error,
    },
    /// Key and certificate are both fine, but not of one another.
    #[error("the key in {} does not belong to the certificate in {}; the server's certificate must come first in its file", key.display(), cert.display())]
    Mismatch {
        /// The certificate file.
        cert: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The certificate is no longer valid.
    #[error("the certificate in {} ended at {end}; issue a new one", path.display())]
    Expired {
        /// The file.
        path: PathBuf,
        /// The end of its lifetime.
        end: Timestamp,
    },
    /// The certificate is not valid yet.
    #[error("the certificate in {} starts at {start}; check the clock, or wait", path.display())]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// The start of its lifetime.
        start: Timestamp,
    },
    /// The TLS library refused its own settings.
    #[error("cannot set up TLS: {0}")]
    Protocol(rustls::Error),
}

/// A certificate with its key, known to work.
pub(super) struct Pair {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) not_after: Timestamp,
}

/// Everything made from one reading of the files.
pub(super) struct Loaded {
    /// Present if the pair comes from files.
    pub(super) pair: Option<Arc<Pair>>,
    /// Present if client certificates are asked for.
    pub(super) clients: Option<Arc<dyn ClientCertVerifier>>,
    raw: Raw,
}

/// The bytes of the files, to see whether they changed.
#[derive(Eq, PartialEq)]
struct Raw {
    pair: Option<(Vec<u8>, Vec<u8>)>,
    client_ca: Option<Vec<u8>>,
}

/// Reads and checks everything.
pub(super) async fn load(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
    now: Timestamp,
) -> Result<Loaded, Error> {
    parse(read_all(settings).await?, settings, provider, now)
}

/// As [`load`], but `None` if the files are what `current` was made from.
pub(super) async fn load_changed(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
    now: Timestamp,
    current: &Loaded,
) -> Result<Option<Loaded>, Error> {
    let raw = read_all(settings).await?;
    if raw == current.raw {
        return Ok(None);
    }
    parse(raw, settings, provider, now).map(Some)
}

async fn read_all(settings: &TlsSettings) -> Result<Raw, Error> {
    Ok(Raw {
        pair: match &settings.pair {
            PairSource::Files(files) => Some((read(&files.cert).await?, read(&files.key).await?)),
            PairSource::Handover(_) => None,
        },
        client_ca: match &settings.client_ca {
            Some(path) => Some(read(path).await?),
            None => None,
        },
    })
}

async fn read(path: &Path) -> Result<Vec<u8>, Error> {
    tokio::fs::read(path).await.map_err(|source| Error::Read { path: path.to_owned(), source })
}

fn parse(
    raw: Raw,
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
    now: Timestamp,
) -> Result<Loaded, Error> {
    let pair = match (&raw.pair, &settings.pair) {
        (Some((cert, key)), PairSource::Files(files)) => {
            Some(Arc::new(pair(cert, key, files, provider, now)?))
        }
        _ => None,
    };
    let clients = match (&raw.client_ca, &settings.client_ca) {
        (Some(pem), Some(path)) => Some(client_verifier(pem, path, provider)?),
        _ => None,
    };
    Ok(Loaded { pair, clients, raw })
}

/// Checks a pair. `files` is where its two halves come from, for errors.
pub(super) fn pair(
    cert: &[u8],
    key: &[u8],
    files: &TlsFiles,
    provider: &Arc<CryptoProvider>,
    now: Timestamp,
) -> Result<Pair, Error> {
    let chain = certificates(cert, &files.cert)?;
    let not_after = check_lifetime(&chain, &files.cert, now)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|source| match source {
        pem::Error::NoItemsFound => Error::NoKey { path: files.key.clone() },
        source => Error::Pem { path: files.key.clone(), source },
    })?;
    let key = CertifiedKey::from_der(chain, key, provider).map_err(|reason| match reason {
        rustls::Error::InconsistentKeys(_) => {
            Error::Mismatch { cert: files.cert.clone(), key: files.key.clone() }
        }
        rustls::Error::InvalidCertificate(reason) => {
            Error::BadCertificate { path: files.cert.clone(), reason: format!("{reason:?}") }
        }
        reason => Error::BadKey { path: files.key.clone(), reason },
    })?;
    Ok(Pair { key: Arc::new(key), not_after })
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| Error::Pem { path: path.to_owned(), source })?;
    if chain.is_empty() {
        return Err(Error::NoCertificate { path: path.to_owned() });
    }
    Ok(chain)
}

/// The end of the leaf's lifetime, if `now` lies within it.
fn check_lifetime(
    chain: &[CertificateDer<'_>],
    path: &Path,
    now: Timestamp,
) -> Result<Timestamp, Error> {
    let leaf = chain.first().map_or(&[][..], AsRef::as_ref);
    let leaf = Certificate::from_der(leaf).map_err(|error| Error::BadCertificate {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let validity = leaf.tbs_certificate().validity();
    let (start, end) = (timestamp(validity.not_before), timestamp(validity.not_after));
    if now > end {
        return Err(Error::Expired { path: path.to_owned(), end });
    }
    if now < start {
        return Err(Error::NotYetValid { path: path.to_owned(), start });
    }
    Ok(end)
}

fn timestamp(time: Time) -> Timestamp {
    // X.509 ends with the year 9999, as does `Timestamp` (give or take a time zone).
    i64::try_from(time.to_unix_duration().as_secs())
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or(Timestamp::MAX)
}

fn client_verifier(
    pem: &[u8],
    path: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let bad = |reason: String| Error::BadCertificate { path: path.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, path)? {
        roots.add(certificate).map_err(|error| bad(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| bad(error.to_string()))
}
