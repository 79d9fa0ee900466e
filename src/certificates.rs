//! Makes certificates: throw-away ones for trying things out ([`generate`]), and those that a guard
//! in a cluster makes, publishes and renews by itself ([`keeper`]).
//!
//! The key of a throw-away authority is used once and never leaves that function, so nothing can be
//! signed with it later; a new certificate comes with a new authority.

pub mod issue;
pub mod keeper;
pub mod rotation;
pub mod secret;
pub mod trust;
pub mod webhooks;
pub mod x509;

use std::{
    fmt, fs,
    io::{self, Write as _},
    net::IpAddr,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use rcgen::KeyPair;

/// File name of the authority's certificate, as in a Kubernetes TLS secret.
pub const CA_FILE: &str = "ca.crt";
/// File name of the server's certificate, as in a Kubernetes TLS secret.
pub const CERT_FILE: &str = "tls.crt";
/// File name of the server's private key, as in a Kubernetes TLS secret.
pub const KEY_FILE: &str = "tls.key";

const DAY: SignedDuration = SignedDuration::from_hours(24);
const CA_DAYS: i32 = 3652;
const LEAF_DAYS: i32 = 365;

/// An authority's certificate with a server certificate signed by it, all PEM.
#[derive(Clone)]
pub struct Bundle {
    /// The authority: what goes into `caBundle`, or `curl --cacert`.
    pub ca_pem: String,
    /// The server's certificate.
    pub cert_pem: String,
    /// The server's private key (PKCS#8). Secret.
    pub key_pem: String,
}

/// Why no certificate was made or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Clients verify the alternative names and nothing else, so there must be one.
    #[error(
        "a certificate needs at least one DNS name or IP address; name the service, for example metal3-guard.metal3-guard.svc"
    )]
    NoNames,
    /// A name cannot stand in a certificate.
    #[error("{name:?} is no DNS name; use letters, digits, dots and hyphens")]
    BadName {
        /// The name as it was given.
        name: String,
    },
    /// The requested time lies outside what a certificate can express.
    #[error("{now} cannot be the start of a certificate; check the clock")]
    BadTime {
        /// The time that was given.
        now: Timestamp,
    },
    /// A key or a signature could not be made.
    #[error("cannot make the certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A certificate that was just made, or is to sign, cannot be read.
    #[error("cannot use the certificate: {0}")]
    Unreadable(#[from] x509::Unreadable),
    /// The target is there and was not to be replaced.
    #[error("{} already exists; remove it, choose another directory, or ask to overwrite", path.display())]
    Exists {
        /// The file that is in the way.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or directory concerned.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Makes an authority (valid ten years) and a server certificate (one year) for these names.
///
/// Both are valid from one hour before `now`. The API server checks
/// `<service>.<namespace>.svc`, so that must be among `dns`.
///
/// # Errors
/// No names at all, a name that is not a DNS name, or a time outside the years X.509 knows.
pub fn generate(dns: &[String], ips: &[IpAddr], now: Timestamp) -> Result<Bundle, Error> {
    let (starts, ends) = issue::span(now, DAY * CA_DAYS);
    let ca = issue::authority_named("metal3-guard throw-away CA", starts, ends, now)?;
    let (starts, ends) = issue::span(now, DAY * LEAF_DAYS);
    let key = KeyPair::generate()?;
    let leaf = issue::leaf_params(dns, ips, starts, ends, now)?.signed_by(&key, &ca)?;
    Ok(Bundle { ca_pem: ca.pem(), cert_pem: leaf.pem(), key_pem: key.serialize_pem() })
}

impl Bundle {
    /// Writes `ca.crt`, `tls.crt` and `tls.key` into `dir`, which is made if missing.
    ///
    /// Each file appears complete or not at all. The key is readable by its owner only, from the
    /// moment it exists. The paths written are returned in the order above.
    ///
    /// # Errors
    /// [`Error::Exists`] if one of them is there and `overwrite` is false: then nothing changes.
    /// [`Error::Write`] with the path the file system refused.
    pub fn write(&self, dir: &Path, overwrite: bool) -> Result<[PathBuf; 3], Error> {
        fs::create_dir_all(dir).map_err(|source| Error::Write { path: dir.to_owned(), source })?;
        let [ca, cert, key] = [CA_FILE, CERT_FILE, KEY_FILE].map(|name| dir.join(name));
        if !overwrite {
            // A dangling link counts too: renaming over it would replace what someone set up.
            for path in [&ca, &cert, &key] {
                if fs::symlink_metadata(path).is_ok() {
                    return Err(Error::Exists { path: path.clone() });
                }
            }
        }
        place(&ca, &self.ca_pem, 0o644, overwrite)?;
        place(&key, &self.key_pem, 0o600, overwrite)?;
        place(&cert, &self.cert_pem, 0o644, overwrite)?;
        Ok([ca, cert, key])
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle")
            .field("ca_pem", &self.ca_pem)
            .field("cert_pem", &self.cert_pem)
            .finish_non_exhaustive()
    }
}

/// Writes under a temporary name in the same directory, then moves the file into place.
fn place(path: &Path, content: &str, mode: u32, overwrite: bool) -> Result<(), Error> {
    let mut draft = path.to_owned().into_os_string();
    draft.push(format!(".{}.tmp", std::process::id()));
    let draft = PathBuf::from(draft);
    let moved = write_draft(&draft, content, mode).and_then(|()| {
        if overwrite {
            return fs::rename(&draft, path);
        }
        // Unlike a rename, a link never replaces a file that appeared since the check.
        fs::hard_link(&draft, path)
    });
    // After a rename there is nothing left to remove.
    let _ = fs::remove_file(&draft);
    moved.map_err(|source| {
        if source.kind() == io::ErrorKind::AlreadyExists && !overwrite {
            return Error::Exists { path: path.to_owned() };
        }
        Error::Write { path: path.to_owned(), source }
    })
}

fn write_draft(draft: &Path, content: &str, mode: u32) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut file = options.open(draft)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use x509_cert::{
        Certificate,
        der::Decode as _,
        ext::pkix::{ExtendedKeyUsage, SubjectAltName, name::GeneralName},
    };

    use super::*;

    fn now() -> Timestamp {
        "2026-12-01T12:00:00Z".parse().unwrap()
    }

    fn bundle() -> Bundle {
        generate(
            &["guard.system.svc".to_owned(), "localhost".to_owned()],
            &["127.0.0.1".parse().unwrap()],
            now(),
        )
        .unwrap()
    }

    fn parse(pem: &str) -> Certificate {
        use rustls::pki_types::{CertificateDer, pem::PemObject as _};
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        Certificate::from_der(&der).unwrap()
    }

    fn lifetime(certificate: &Certificate) -> (i64, i64) {
        let validity = certificate.tbs_certificate().validity();
        let seconds =
            |time: x509_cert::time::Time| i64::try_from(time.to_unix_duration().as_secs()).unwrap();
        (seconds(validity.not_before), seconds(validity.not_after))
    }

    #[test]
    fn the_leaf_names_what_was_asked_and_lives_a_year() {
        let leaf = parse(&bundle().cert_pem);
        let (start, end) = lifetime(&leaf);
        assert_eq!(start, now().as_second() - 3600);
        assert_eq!(end, now().as_second() + 365 * 86_400);

        let (_, names) = leaf.tbs_certificate().get_extension::<SubjectAltName>().unwrap().unwrap();
        let dns: Vec<_> = names
            .0
            .iter()
            .filter_map(|name| match name {
                GeneralName::DnsName(name) => Some(name.to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(dns, ["guard.system.svc", "localhost"]);
        let (_, usage) =
            leaf.tbs_certificate().get_extension::<ExtendedKeyUsage>().unwrap().unwrap();
        assert_eq!(usage.0, [x509_cert::der::oid::db::rfc5280::ID_KP_SERVER_AUTH]);
    }

    #[test]
    fn the_authority_lives_ten_years() {
        let (start, end) = lifetime(&parse(&bundle().ca_pem));
        assert_eq!(start, now().as_second() - 3600);
        assert_eq!(end, now().as_second() + 3652 * 86_400);
    }

    #[test]
    fn names_are_required_and_checked() {
        assert!(matches!(generate(&[], &[], now()), Err(Error::NoNames)));
        for bad in ["", "two words", "ümlaut", "a..b", "https://x"] {
            let result = generate(&[bad.to_owned()], &[], now());
            assert!(matches!(result, Err(Error::BadName { .. })), "{bad:?}");
        }
        assert!(generate(&["*.guard.svc".to_owned()], &[], now()).is_ok());
        assert!(generate(&["a".to_owned()], &[], Timestamp::MIN).is_err());
        assert!(generate(&["a".to_owned()], &[], Timestamp::UNIX_EPOCH).is_err());
    }

    #[test]
    fn a_name_longer_than_a_common_name_still_works() {
        let long = format!("{}.{}.svc", "a".repeat(60), "b".repeat(60));
        let leaf = parse(&generate(&[long], &[], now()).unwrap().cert_pem);
        assert!(leaf.tbs_certificate().subject().is_empty());
    }

    #[test]
    fn files_are_written_once_and_the_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("new/certs");
        let first = bundle();
        let paths = first.write(&dir, false).unwrap();
        let names: Vec<_> =
            paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["ca.crt", "tls.crt", "tls.key"]);
        let mode = fs::metadata(&paths[2]).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let error = bundle().write(&dir, false).unwrap_err().to_string();
        assert!(error.contains("ca.crt already exists"), "{error}");
        assert_eq!(fs::read_to_string(&paths[1]).unwrap(), first.cert_pem);

        let second = bundle();
        second.write(&dir, true).unwrap();
        assert_eq!(fs::read_to_string(&paths[2]).unwrap(), second.key_pem);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 3, "no drafts are left");
    }

    #[test]
    fn one_file_in_the_way_stops_all_three() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join(KEY_FILE)).unwrap();
        let error = bundle().write(dir.path(), false).unwrap_err();
        assert!(matches!(error, Error::Exists { path } if path.ends_with(KEY_FILE)));
        assert!(!dir.path().join(CA_FILE).exists());
    }

    #[test]
    fn debug_hides_the_key() {
        assert!(!format!("{:?}", bundle()).contains("PRIVATE"));
    }
}
