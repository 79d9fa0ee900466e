//! Client certificates (mTLS): from the right authority, and with an allowed name.

use std::{fmt, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use x509_cert::{
    Certificate,
    der::Decode as _,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

use super::Certificates;

/// Judges by the authorities of the moment, so that they can change while serving.
pub(super) struct ClientVerifier {
    certificates: Arc<Certificates>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientVerifier {
    pub(super) fn new(
        certificates: Arc<Certificates>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { certificates, algorithms }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // An empty list asks for whatever certificate the client has. The authorities may change
        // while serving, a borrowed list could not.
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let current = self.certificates.current.load();
        let Some(clients) = &current.clients else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        let verified = clients.verify_client_cert(leaf, intermediates, now)?;
        let allowed = &self.certificates.settings.client_names;
        if allowed.is_empty() {
            return Ok(verified);
        }
        let names = names(leaf).ok_or(CertificateError::BadEncoding)?;
        if names.iter().any(|name| allowed.contains(name)) {
            return Ok(verified);
        }
        tracing::warn!(?names, ?allowed, "client refused: its certificate carries no allowed name");
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientVerifier").finish_non_exhaustive()
    }
}

/// The common name and the DNS names of a certificate; `None` if it cannot be read.
fn names(der: &CertificateDer<'_>) -> Option<Vec<String>> {
    let certificate = Certificate::from_der(der).ok()?;
    let subject = certificate.tbs_certificate();
    let mut names = Vec::new();
    if let Some(name) = subject.subject().common_name().ok()? {
        names.push(name.value().into_owned());
    }
    if let Some((_, alternatives)) = subject.get_extension::<SubjectAltName>().ok()? {
        names.extend(alternatives.0.iter().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.to_string()),
            _ => None,
        }));
    }
    Some(names)
}
