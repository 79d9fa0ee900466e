//! Makes keys and certificates. All of them are ECDSA P-256, which every API server knows.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use super::{
    Error,
    rotation::{Authority, Leaf},
    x509::{Certificate, PrivateKey},
};

/// Clients whose clock is behind ours must still accept a new certificate.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_hours(1);
/// Longest common name that X.509 allows.
const MAX_COMMON_NAME: usize = 64;

/// A new authority, which may sign servers' certificates and nothing else.
///
/// # Errors
/// `now` lies outside what a certificate can express.
pub fn authority(now: Timestamp, lifetime: SignedDuration) -> Result<Authority, Error> {
    let name = format!("metal3-guard CA of {now:.0}");
    let (starts, ends) = span(now, lifetime);
    let made = authority_named(&name, starts, ends, now)?;
    Ok(Authority {
        certificate: Certificate::parse(&made.pem())?,
        key: PrivateKey::new(made.key().serialize_pem()),
    })
}

/// A new key with a certificate for these DNS names and IP addresses, which ends no later than its
/// authority.
///
/// # Errors
/// No names at all, one that cannot stand in a certificate, or an authority that cannot sign.
pub fn leaf(
    by: &Authority,
    names: &BTreeSet<String>,
    now: Timestamp,
    lifetime: SignedDuration,
) -> Result<Leaf, Error> {
    let (ips, dns): (Vec<_>, Vec<_>) = names
        .iter()
        .map(|name| name.parse::<IpAddr>().map_err(|_| name.clone()))
        .partition(Result::is_ok);
    let ips: Vec<_> = ips.into_iter().flatten().collect();
    let dns: Vec<_> = dns.into_iter().filter_map(Result::err).collect();
    let (starts, ends) = span(now, lifetime);
    let (starts, ends) = (starts.max(by.certificate.starts), ends.min(by.certificate.ends));
    let params = leaf_params(&dns, &ips, starts, ends, now)?;
    let key = KeyPair::generate()?;
    let signed = params.signed_by(&key, &issuer(by)?)?;
    Ok(Leaf {
        certificate: Certificate::parse(&signed.pem())?,
        key: PrivateKey::new(key.serialize_pem()),
        names: names.clone(),
    })
}

/// The authority's side of a signature. Its certificate is not parsed by the library: what a
/// signature needs of it is its name and key.
fn issuer(by: &Authority) -> Result<Issuer<'static, KeyPair>, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&by.certificate.common_name()?);
    params.key_usages = ca_usages();
    Ok(Issuer::new(params, KeyPair::from_pem(by.key.pem())?))
}

pub(super) fn authority_named(
    name: &str,
    starts: Timestamp,
    ends: Timestamp,
    now: Timestamp,
) -> Result<CertifiedIssuer<'static, KeyPair>, Error> {
    let mut ca = validity(starts, ends, now)?;
    ca.distinguished_name = common_name(name);
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = ca_usages();
    Ok(CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?)
}

pub(super) fn leaf_params(
    dns: &[String],
    ips: &[IpAddr],
    starts: Timestamp,
    ends: Timestamp,
    now: Timestamp,
) -> Result<CertificateParams, Error> {
    if dns.is_empty() && ips.is_empty() {
        return Err(Error::NoNames);
    }
    let mut leaf = validity(starts, ends, now)?;
    leaf.subject_alt_names = alternative_names(dns, ips)?;
    if let Some(name) = dns.iter().find(|name| name.len() <= MAX_COMMON_NAME) {
        leaf.distinguished_name = common_name(name);
    }
    leaf.use_authority_key_identifier_extension = true;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(leaf)
}

/// From a little before `now` to the end of the lifetime.
pub(super) fn span(now: Timestamp, lifetime: SignedDuration) -> (Timestamp, Timestamp) {
    // Less than a lifetime, or a short one would look old from the start.
    let skew = CLOCK_SKEW.min(lifetime / 10);
    (
        now.checked_sub(skew).unwrap_or(Timestamp::MIN),
        now.checked_add(lifetime).unwrap_or(Timestamp::MAX),
    )
}

fn ca_usages() -> Vec<KeyUsagePurpose> {
    vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign]
}

fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

fn validity(
    starts: Timestamp,
    ends: Timestamp,
    now: Timestamp,
) -> Result<CertificateParams, Error> {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = |time: Timestamp| {
        u64::try_from(time.as_second())
            .ok()
            // X.509 ends with the year 9999.
            .filter(|seconds| *seconds < 253_000_000_000)
            .map(Duration::from_secs)
            .ok_or(Error::BadTime { now })
    };
    let mut params = CertificateParams::default();
    params.not_before = epoch + since(starts)?;
    params.not_after = epoch + since(ends)?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params)
}

fn alternative_names(dns: &[String], ips: &[IpAddr]) -> Result<Vec<SanType>, Error> {
    let mut names = Vec::with_capacity(dns.len() + ips.len());
    for name in dns {
        let bad = || Error::BadName { name: name.clone() };
        // The same check a client makes; a leading wildcard label is allowed by X.509 only.
        let host = name.strip_prefix("*.").unwrap_or(name);
        rustls::pki_types::DnsName::try_from(host).map_err(|_| bad())?;
        names.push(SanType::DnsName(name.as_str().try_into().map_err(|_| bad())?));
    }
    names.extend(ips.iter().copied().map(SanType::IpAddress));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::trust;

    fn now() -> Timestamp {
        "2026-12-01T12:00:00Z".parse().unwrap()
    }

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_kept_authority_signs_again_and_again() {
        let by = authority(now(), DAY * 365).unwrap();
        assert_eq!(by.certificate.starts, now() - SignedDuration::from_hours(1));
        assert_eq!(by.certificate.ends, now() + DAY * 365);
        let names = names(&["guard.system.svc", "127.0.0.1", "::1"]);
        for days in [0, 60, 300] {
            let then = now() + DAY * days;
            let leaf = leaf(&by, &names, then, DAY * 90).unwrap();
            assert!(trust::is_key_of(&leaf.key, &leaf.certificate));
            assert_eq!(leaf.certificate.names().unwrap(), names);
            let bundle = &by.certificate.pem;
            for name in &names {
                assert!(trust::verifies(bundle, &leaf.certificate, name, then), "{name}");
            }
            assert!(!trust::verifies(bundle, &leaf.certificate, "other.svc", then));
            // Not after its authority.
            let ends = (then + DAY * 90).min(by.certificate.ends);
            assert_eq!(leaf.certificate.ends, ends);
            assert!(!trust::verifies(bundle, &leaf.certificate, "::1", ends + DAY));
        }
    }

    #[test]
    fn only_its_own_authority_verifies_a_certificate() {
        let authorities = [(); 3].map(|()| authority(now(), DAY).unwrap());
        let leaf = leaf(&authorities[0], &names(&["guard.svc"]), now(), DAY).unwrap();
        let verified =
            |bundle: &str| trust::verifies(bundle, &leaf.certificate, "guard.svc", now());
        let pem = |index: usize| &*authorities[index].certificate.pem;
        assert!(verified(pem(0)));
        assert!(!verified(pem(1)));
        assert!(!verified(&[pem(1), pem(2)].concat()));
        // Whatever else is trusted, and in whatever order: all have the same name here.
        assert!(verified(&[pem(1), pem(0), pem(2)].concat()));
        assert!(!verified(""));
        assert!(!verified(&[pem(0), "-----BEGIN CERTIFICATE-----\nAA"].concat()));
        assert!(!trust::is_key_of(&authorities[1].key, &authorities[0].certificate));
        assert!(!trust::is_key_of(&PrivateKey::new("none"), &authorities[0].certificate));
    }

    #[test]
    fn a_short_life_is_not_old_from_the_start() {
        let by = authority(now(), SignedDuration::from_mins(10)).unwrap();
        assert_eq!(by.certificate.starts, now() - SignedDuration::from_mins(1));
    }

    #[test]
    fn what_cannot_be_made_is_an_error() {
        let by = authority(now(), DAY).unwrap();
        let made = |names: &BTreeSet<String>| leaf(&by, names, now(), DAY).map(drop);
        assert!(matches!(made(&BTreeSet::new()), Err(Error::NoNames)));
        assert!(matches!(made(&names(&["two words"])), Err(Error::BadName { .. })));
        assert!(matches!(authority(Timestamp::MIN, DAY), Err(Error::BadTime { .. })));
        assert!(matches!(authority(Timestamp::MAX, DAY), Err(Error::BadTime { .. })));
        let broken = Authority { key: PrivateKey::new("none"), ..by.clone() };
        assert!(leaf(&broken, &names(&["a"]), now(), DAY).is_err());
    }
}
