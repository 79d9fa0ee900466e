//! Handshakes, keys and what is refused before a port is open.

use base64::Engine as _;
use jiff::Timestamp;
use metal3_guard::{
    certificates,
    server::{Error, Metrics, Readiness, Server, Settings, TlsError},
};
use rcgen::{KeyPair, PKCS_ED25519, PKCS_RSA_SHA256, SanType, date_time_ymd};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    version::{TLS12, TLS13},
};

use crate::support::{
    Authority, ClientOptions, Files, NAME, Running, connect, folder, leaf_params, new_key, router,
    write,
};

const RSA_PKCS1: &str = include_str!("../data/tls/rsa-pkcs1.pem");

#[tokio::test]
async fn tls_1_2_and_1_3_are_verified_by_the_authority() {
    let server = Running::start(|_| {}).await;
    for (version, wanted) in
        [(&TLS12, rustls::ProtocolVersion::TLSv1_2), (&TLS13, rustls::ProtocolVersion::TLSv1_3)]
    {
        let options = ClientOptions { versions: vec![version], ..ClientOptions::default() };
        let mut client = server.try_connect(options).await.unwrap();
        let spoken = client.stream.get_ref().1.protocol_version();
        assert_eq!(spoken, Some(wanted));
        assert_eq!(client.get("/").await.unwrap().body, "hello");
    }

    let stranger = Authority::new().roots();
    let refused = connect(server.address, stranger, ClientOptions::default()).await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn only_http_1_1_is_offered() {
    let server = Running::start(|_| {}).await;
    let offer = |alpn: &[&'static [u8]]| {
        server.try_connect(ClientOptions { alpn: alpn.to_vec(), ..ClientOptions::default() })
    };
    for alpn in [&[b"http/1.1" as &[u8]] as &[&[u8]], &[b"h2", b"http/1.1"]] {
        let mut client = offer(alpn).await.unwrap();
        let chosen = client.stream.get_ref().1.alpn_protocol();
        assert_eq!(chosen, Some(b"http/1.1" as &[u8]));
        assert_eq!(client.get("/").await.unwrap().status, 200);
    }
    let mut silent = offer(&[]).await.unwrap();
    assert_eq!(silent.get("/").await.unwrap().status, 200);
    assert!(offer(&[b"h2"]).await.is_err());
}

#[tokio::test]
async fn http_2_without_asking_is_closed() {
    let server = Running::start(|_| {}).await;
    let mut client = server.connect().await;
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    client.until_closed().await;
}

#[tokio::test]
async fn every_kind_of_key_serves() {
    let authority = Authority::new();
    let p256 = new_key();
    let ed25519 = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let rsa = rsa_key();
    for (kind, key, pem) in [
        ("PKCS#8 ECDSA", &p256, p256.serialize_pem()),
        ("SEC1 ECDSA", &p256, sec1_pem(&p256)),
        ("PKCS#8 Ed25519", &ed25519, ed25519.serialize_pem()),
        ("PKCS#8 RSA", &rsa, rsa.serialize_pem()),
        ("PKCS#1 RSA", &rsa, RSA_PKCS1.to_owned()),
    ] {
        let files = Files::new(&authority.sign(&leaf_params(), key), &pem);
        let settings = files.settings();
        let roots = authority.roots();
        let server = Running::launch(Authority::new(), files, settings, router).await;
        let mut client = connect(server.address, roots, ClientOptions::default())
            .await
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(client.get("/").await.unwrap().body, "hello", "{kind}");
    }
}

#[tokio::test]
async fn intermediates_are_sent() {
    let root = Authority::new();
    let intermediate = root.intermediate();
    let (leaf, key) = intermediate.issue();
    let files = Files::new(&format!("{leaf}{}", intermediate.0.pem()), &key);
    let settings = files.settings();
    let server = Running::launch(root, files, settings, router).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.unwrap().body, "hello");
}

#[tokio::test]
async fn made_certificates_serve() {
    let bundle = certificates::generate(&[NAME.to_owned()], &[], Timestamp::now()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [ca, cert, key] = bundle.write(dir.path(), false).unwrap();
    let files = Files { dir, tls: metal3_guard::server::TlsFiles::new(cert, key) };
    let settings = files.settings();
    let server = Running::launch(Authority::new(), files, settings, router).await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let mut client = connect(server.address, roots, ClientOptions::default()).await.unwrap();
    assert_eq!(client.get("/").await.unwrap().body, "hello");
}

/// Binds on a port that is taken, so that success at loading shows as another error.
async fn refusal(change: impl FnOnce(&Files, &mut Settings)) -> (Error, String) {
    let (cert, key) = Authority::new().issue();
    let files = Files::new(&cert, &key);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = files.settings();
    settings.listen = taken.local_addr().unwrap();
    change(&files, &mut settings);
    let error = Server::bind(settings, Readiness::new(), Metrics::new(), Timestamp::now())
        .await
        .unwrap_err();
    let text = error.to_string();
    (error, text)
}

#[tokio::test]
async fn unusable_files_are_named_before_a_port_is_opened() {
    type Change = fn(&Files);
    let cases: [(&str, &str, Change); 10] = [
        ("tls.crt", "cannot read", |files| {
            std::fs::remove_file(&files.tls.cert).unwrap();
        }),
        ("tls.key", "cannot read", |files| {
            std::fs::remove_file(&files.tls.key).unwrap();
        }),
        ("tls.crt", "holds no certificate", |files| {
            write(&files.tls.cert, "");
        }),
        ("tls.key", "holds no private key", |files| {
            std::fs::copy(&files.tls.cert, &files.tls.key).unwrap();
        }),
        ("tls.key", "an unencrypted PEM key", |files| {
            let label = "ENCRYPTED PRIVATE KEY";
            write(
                &files.tls.key,
                &format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n"),
            );
        }),
        ("tls.crt", "is not valid PEM", |files| {
            write(&files.tls.cert, "-----BEGIN CERTIFICATE-----\nAAAA\n");
        }),
        ("tls.crt", "cannot be used", |files| {
            write(
                &files.tls.cert,
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            );
        }),
        ("tls.key", "does not belong to the certificate", |files| {
            write(&files.tls.key, &new_key().serialize_pem());
        }),
        ("tls.crt", "ended at 2020-02-01", |files| {
            reissue(files, (2020, 1), (2020, 2));
        }),
        ("tls.crt", "starts at 4000-01-01", |files| {
            reissue(files, (4000, 1), (4000, 2));
        }),
    ];
    for (file, wanted, change) in cases {
        let (error, text) = refusal(|files, _| change(files)).await;
        assert!(matches!(error, Error::Tls(_)), "{text}");
        assert!(text.contains(file) && text.contains(wanted), "{text}");
    }
}

#[tokio::test]
async fn an_unusable_client_authority_is_named() {
    let (error, text) = refusal(|files, settings| {
        settings.tls.client_ca = Some(write(&files.dir.path().join("clients.crt"), "none"));
    })
    .await;
    assert!(matches!(error, Error::Tls(TlsError::NoCertificate { .. })), "{text}");
    assert!(text.contains("clients.crt"), "{text}");
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let (error, text) = refusal(|_, _| {}).await;
    let Error::Bind { address, .. } = error else {
        panic!("{text}");
    };
    assert!(text.contains(&address.to_string()), "{text}");
}

#[tokio::test]
async fn clients_need_a_certificate_with_an_allowed_name() {
    let clients = Authority::new();
    let ca = clients.0.pem();
    let server = Running::start(|settings| {
        let clients = folder(settings).join("clients.crt");
        settings.tls.client_ca = Some(write(&clients, &ca));
        settings.tls.client_names = vec!["kube-apiserver".to_owned(), "api.test".to_owned()];
    })
    .await;
    let client = |authority: &Authority, common_name: &str, dns: Option<&str>| {
        let key = new_key();
        let mut params = leaf_params();
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names =
            dns.map(|name| SanType::DnsName(name.try_into().unwrap())).into_iter().collect();
        params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        Some((authority.sign(&params, &key), key.serialize_pem()))
    };
    let stranger = Authority::new();
    let cases = [
        ("common name", client(&clients, "kube-apiserver", None), true),
        ("DNS name", client(&clients, "x", Some("api.test")), true),
        ("other name", client(&clients, "x", Some("x.test")), false),
        ("no name", client(&clients, "", None), false),
        ("other authority", client(&stranger, "kube-apiserver", None), false),
        ("no certificate", None, false),
    ];
    for version in [&TLS12, &TLS13] {
        for (case, certificate, allowed) in &cases {
            let options = ClientOptions {
                versions: vec![version],
                certificate: certificate.clone(),
                ..ClientOptions::default()
            };
            // With TLS 1.3 a client learns of its refusal with the first read.
            let answered = match server.try_connect(options).await {
                Ok(mut client) => client.get("/").await.is_ok(),
                Err(_) => false,
            };
            assert_eq!(answered, *allowed, "{case} {version:?}");
        }
    }
    server.until_metric("handshakes_failed_total{reason=\"tls\"}", |count| count == 8).await;
}

fn reissue(files: &Files, start: (i32, u8), end: (i32, u8)) {
    let key = new_key();
    let mut params = leaf_params();
    params.not_before = date_time_ymd(start.0, start.1, 1);
    params.not_after = date_time_ymd(end.0, end.1, 1);
    write(&files.tls.cert, &Authority::new().sign(&params, &key));
    write(&files.tls.key, &key.serialize_pem());
}

/// The RSA key of the test data, in the form that certificates can be made with.
fn rsa_key() -> KeyPair {
    let PrivateKeyDer::Pkcs1(inner) = PrivateKeyDer::from_pem_slice(RSA_PKCS1.as_bytes()).unwrap()
    else {
        panic!("the test data changed its form");
    };
    // PrivateKeyInfo: version 0, rsaEncryption with no parameters, the key.
    let mut content = vec![0x02, 0x01, 0x00, 0x30, 0x0d, 0x06, 0x09];
    content.extend([0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00]);
    content.extend(der(0x04, inner.secret_pkcs1_der()));
    let key = PrivateKeyDer::try_from(der(0x30, &content)).unwrap();
    KeyPair::from_der_and_sign_algo(&key, &PKCS_RSA_SHA256).unwrap()
}

/// A tagged value of 256 to 65,535 bytes.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
    let mut bytes = vec![tag, 0x82, high, low];
    bytes.extend(content);
    bytes
}

/// The key without its PKCS#8 envelope: the octet string at the end of it.
fn sec1_pem(key: &KeyPair) -> String {
    let pkcs8 = key.serialized_der();
    let start = [0x02, 0x01, 0x01, 0x04, 0x20];
    let at = pkcs8.windows(start.len()).position(|window| window == start).unwrap();
    let sec1 = &pkcs8[at - 2..];
    assert_eq!(usize::from(sec1[1]), sec1.len() - 2, "the whole sequence");
    let text = base64::engine::general_purpose::STANDARD.encode(sec1);
    format!("-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n")
}
