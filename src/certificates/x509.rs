//! Certificates and keys as PEM texts, and what can be read from them.

use std::{collections::BTreeSet, fmt, net::IpAddr, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_cert::{
    certificate::Certificate as Parsed,
    der::Decode as _,
    ext::pkix::{SubjectAltName, name::GeneralName},
    time::Time,
};

/// One certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The PEM section, and nothing around it.
    pub pem: Arc<str>,
    /// The first moment of its lifetime.
    pub starts: Timestamp,
    /// The last moment of its lifetime.
    pub ends: Timestamp,
}

/// A text that is no certificate. It says what is wrong, not what the text is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

/// A private key as PEM (PKCS#8). It shows in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(Arc<str>);

impl Certificate {
    /// The only certificate in a text.
    ///
    /// # Errors
    /// There is none, or more than one, or it cannot be read.
    pub fn parse(pem: &str) -> Result<Self, Unreadable> {
        let mut found = Self::parse_all(pem)?;
        match (found.pop(), found.is_empty()) {
            (Some(one), true) => Ok(one),
            (None, _) => Err(Unreadable("it holds no certificate".into())),
            (Some(_), false) => Err(Unreadable("it holds more than one certificate".into())),
        }
    }

    /// All certificates in a text.
    ///
    /// # Errors
    /// The text is no PEM, or a certificate in it cannot be read.
    pub fn parse_all(pem: &str) -> Result<Vec<Self>, Unreadable> {
        let sections = CertificateDer::pem_slice_iter(pem.as_bytes());
        sections
            .map(|der| {
                let der = der.map_err(|error| Unreadable(format!("it is no PEM: {error}")))?;
                let validity = *parsed(&der)?.tbs_certificate().validity();
                Ok(Self {
                    pem: to_pem(&der).into(),
                    starts: timestamp(validity.not_before),
                    ends: timestamp(validity.not_after),
                })
            })
            .collect()
    }

    /// The whole lifetime.
    pub fn lifetime(&self) -> SignedDuration {
        self.ends.duration_since(self.starts)
    }

    /// The DNS names and IP addresses that it is for.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn names(&self) -> Result<BTreeSet<String>, Unreadable> {
        let certificate = parsed(&self.der()?)?;
        let names = certificate.tbs_certificate().get_extension::<SubjectAltName>();
        let names = names.map_err(|error| Unreadable(format!("its names: {error}")))?;
        let names = names.into_iter().flat_map(|(_, names)| names.0);
        Ok(names
            .filter_map(|name| match name {
                GeneralName::DnsName(name) => Some(name.to_string()),
                GeneralName::IpAddress(bytes) => Some(address(bytes.as_bytes())?.to_string()),
                _ => None,
            })
            .collect())
    }

    /// The common name of its subject, empty when there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn common_name(&self) -> Result<String, Unreadable> {
        let certificate = parsed(&self.der()?)?;
        let name = certificate.tbs_certificate().subject().common_name();
        let name = name.map_err(|error| Unreadable(format!("its subject: {error}")))?;
        Ok(name.map(|name| name.value().into_owned()).unwrap_or_default())
    }

    /// The bytes that the PEM section stands for.
    ///
    /// # Errors
    /// It was not made by parsing and holds no certificate.
    pub fn der(&self) -> Result<CertificateDer<'static>, Unreadable> {
        CertificateDer::from_pem_slice(self.pem.as_bytes())
            .map_err(|error| Unreadable(format!("it is no PEM: {error}")))
    }
}

impl PrivateKey {
    /// Takes a PEM text as it is.
    pub fn new(pem: impl Into<Arc<str>>) -> Self {
        Self(pem.into())
    }

    /// The PEM text. Secret.
    pub fn pem(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// When a time of X.509 is.
fn timestamp(time: Time) -> Timestamp {
    // X.509 ends with the year 9999, as does `Timestamp` (give or take a time zone).
    i64::try_from(time.to_unix_duration().as_secs())
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or(Timestamp::MAX)
}

fn parsed(der: &CertificateDer<'_>) -> Result<Parsed, Unreadable> {
    Parsed::from_der(der).map_err(|error| Unreadable(format!("its certificate: {error}")))
}

/// The usual form, so that equal certificates are equal texts wherever they were written.
fn to_pem(der: &[u8]) -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let body = BASE64_STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for (index, letter) in body.chars().enumerate() {
        if index > 0 && index % 64 == 0 {
            pem.push('\n');
        }
        pem.push(letter);
    }
    pem.push_str("\n-----END CERTIFICATE-----\n");
    pem
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::generate;

    #[test]
    fn the_same_certificate_is_the_same_text() {
        let now = "2026-12-01T12:00:00Z".parse().unwrap();
        let pem = generate(&["guard.svc".to_owned()], &[], now).unwrap().ca_pem;
        let parsed = Certificate::parse(&pem).unwrap();
        assert_eq!(parsed.common_name().unwrap(), "metal3-guard throw-away CA");
        assert_eq!(parsed.names().unwrap(), BTreeSet::new());
        let other_ends = pem.replace('\n', "\r\n");
        let with_words = format!("subject: CN=x\n{pem}\n\n");
        for other in [&*parsed.pem, &other_ends, &with_words] {
            assert_eq!(Certificate::parse(other).unwrap(), parsed);
        }
        assert_eq!(Certificate::parse_all(&pem.repeat(2)).unwrap(), [parsed.clone(), parsed]);
        assert_eq!(Certificate::parse_all("").unwrap(), []);
        for (bad, why) in [
            ("", "it holds no certificate"),
            (&*pem.repeat(2), "it holds more than one certificate"),
            ("-----BEGIN CERTIFICATE-----\nAA", "it is no PEM"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "its certificate"),
        ] {
            let error = Certificate::parse(bad).unwrap_err().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
