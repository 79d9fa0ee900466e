//! Whether a client with a bundle accepts what a server shows: the check that an API server makes.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring,
    pki_types::{PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    sign::CertifiedKey,
};

use super::x509::{Certificate, PrivateKey};

/// Whether `bundle` (PEM) verifies `certificate` as that of `host`, a DNS name or an IP address.
pub fn verifies(bundle: &str, certificate: &Certificate, host: &str, now: Timestamp) -> bool {
    check(bundle, certificate, host, now).is_some()
}

/// Whether a key is that of a certificate.
pub fn is_key_of(key: &PrivateKey, certificate: &Certificate) -> bool {
    let made = || {
        let key = PrivateKeyDer::from_pem_slice(key.pem().as_bytes()).ok()?;
        let chain = vec![certificate.der().ok()?];
        CertifiedKey::from_der(chain, key, &ring::default_provider()).ok()
    };
    made().is_some()
}

fn check(bundle: &str, certificate: &Certificate, host: &str, now: Timestamp) -> Option<()> {
    let mut roots = RootCertStore::empty();
    for trusted in Certificate::parse_all(bundle).ok()? {
        // What cannot be an authority verifies nothing, as in an API server.
        roots.add(trusted.der().ok()?).ok();
    }
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()?;
    let seconds = u64::try_from(now.as_second()).ok()?;
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    verifier.verify_server_cert(&certificate.der().ok()?, &[], &name, &[], at).ok()?;
    Some(())
}
