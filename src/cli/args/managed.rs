//! The flags for certificates that the guard makes by itself.

use std::net::IpAddr;

use clap::{Args, builder::FalseyValueParser};
use jiff::SignedDuration;

use super::pause;
use crate::{certificates::keeper::ObjectName, inventory::cluster::is_object_name};

/// Where the certificates are unless told otherwise.
const SECRET: &str = "metal3-guard-system/metal3-guard-tls";

/// Certificates that the guard makes by itself.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct ManagedCertsArgs {
    /// Make and renew the certificate and its CA without help, share them between replicas in a
    /// Secret, and keep caBundle of the webhook configurations right.
    #[arg(
        long,
        env = "METAL3_GUARD_SELF_MANAGED_CERTS",
        value_parser = FalseyValueParser::new()
    )]
    pub(in crate::cli) self_managed_certs: bool,
    /// The Secret for the certificates, made when missing.
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        default_value = SECRET,
        value_parser = object_name,
        requires = "self_managed_certs",
        env = "METAL3_GUARD_CERTS_SECRET"
    )]
    pub(in crate::cli) certs_secret: ObjectName,
    /// The Service that the API server calls.
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        default_value = "metal3-guard-system/metal3-guard",
        value_parser = object_name,
        requires = "self_managed_certs",
        env = "METAL3_GUARD_CERTS_SERVICE"
    )]
    pub(in crate::cli) certs_service: ObjectName,
    /// Name of the mutating webhook configuration whose caBundle is kept right.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "metal3-guard",
        value_parser = name,
        requires = "self_managed_certs",
        env = "METAL3_GUARD_CERTS_MUTATING"
    )]
    pub(in crate::cli) certs_mutating: String,
    /// Name of the validating webhook configuration whose caBundle is kept right.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "metal3-guard",
        value_parser = name,
        requires = "self_managed_certs",
        env = "METAL3_GUARD_CERTS_VALIDATING"
    )]
    pub(in crate::cli) certs_validating: String,
    /// One more DNS name or IP address for the certificate, for webhooks that call a URL.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = host,
        requires = "self_managed_certs",
        env = "METAL3_GUARD_CERTS_NAME"
    )]
    pub(in crate::cli) certs_name: Vec<String>,
    /// Lifetime of the certificate; it is renewed when a third is left.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "90d",
        value_parser = lifetime,
        requires = "self_managed_certs",
        env = "METAL3_GUARD_CERTS_LIFETIME"
    )]
    pub(in crate::cli) certs_lifetime: SignedDuration,
    /// Lifetime of the CA; the next one takes over when a third is left.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "365d",
        value_parser = lifetime,
        requires = "self_managed_certs",
        env = "METAL3_GUARD_CERTS_CA_LIFETIME"
    )]
    pub(in crate::cli) certs_ca_lifetime: SignedDuration,
    /// How long a new CA is trusted before it is used, and an old one after, so that all API
    /// servers and replicas have heard of it.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5m",
        value_parser = pause,
        requires = "self_managed_certs",
        env = "METAL3_GUARD_CERTS_DWELL"
    )]
    pub(in crate::cli) certs_dwell: SignedDuration,
}

/// Where a guard that makes its certificates keeps them.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct SecretArg {
    /// The Secret of a guard with --self-managed-certs.
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        default_value = SECRET,
        value_parser = object_name
    )]
    pub(in crate::cli) certs_secret: ObjectName,
}

/// A namespace and a name in it.
fn object_name(text: &str) -> Result<ObjectName, String> {
    let Some((namespace, object)) = text.split_once('/') else {
        return Err("not NAMESPACE/NAME".into());
    };
    Ok(ObjectName { namespace: name(namespace)?, name: name(object)? })
}

/// A name that an object can have; it becomes part of a URL.
fn name(text: &str) -> Result<String, String> {
    let fits = is_object_name(text);
    let hint =
        "a name is made of a-z, 0-9, '-' and '.', and begins and ends with a letter or digit";
    if fits { Ok(text.to_owned()) } else { Err(format!("{text:?} is no name: {hint}")) }
}

/// A DNS name or an IP address, in the form that certificates have it.
fn host(text: &str) -> Result<String, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.to_string());
    }
    match rustls::pki_types::DnsName::try_from(text) {
        Ok(_) => Ok(text.to_ascii_lowercase()),
        Err(_) => Err("neither a DNS name nor an IP address".into()),
    }
}

/// A time such as `90d` or `12h`, at least a minute and at most a hundred years.
fn lifetime(text: &str) -> Result<SignedDuration, String> {
    let hint = "write it like 90d or 12h";
    let days = text.strip_suffix('d').and_then(|days| days.parse::<i64>().ok());
    let time = match days {
        Some(days) => days.checked_mul(24).and_then(SignedDuration::try_from_hours),
        None => text.parse().ok(),
    };
    let time = time.ok_or_else(|| format!("not a time; {hint}"))?;
    if time < SignedDuration::from_mins(1) || time > SignedDuration::from_hours(24 * 36_525) {
        return Err(format!("not between a minute and a hundred years; {hint}"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_days_or_less() {
        assert_eq!(lifetime("90d"), Ok(SignedDuration::from_hours(90 * 24)));
        assert_eq!(lifetime("12h"), Ok(SignedDuration::from_hours(12)));
        assert_eq!(lifetime("1m"), Ok(SignedDuration::from_mins(1)));
        for bad in ["", "d", "90", "59s", "0d", "-1d", "36526d", "9223372036854775807d", "soon"] {
            assert!(lifetime(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn objects_are_a_namespace_and_a_name() {
        let object = object_name("a-b/c.d").unwrap();
        assert_eq!((&*object.namespace, &*object.name), ("a-b", "c.d"));
        for bad in ["", "a", "/a", "a/", "a/b/c", "A/b", "a/b?x=y", "a/.."] {
            assert!(object_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hosts_are_written_as_certificates_write_them() {
        assert_eq!(host("Guard.Example.Org"), Ok("guard.example.org".into()));
        assert_eq!(host("127.0.0.1"), Ok("127.0.0.1".into()));
        assert_eq!(host("0:0:0:0:0:0:0:1"), Ok("::1".into()));
        for bad in ["", "two words", "https://x", "a..b"] {
            assert!(host(bad).is_err(), "{bad}");
        }
    }
}
