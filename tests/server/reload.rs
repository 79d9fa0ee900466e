//! Certificates change while serving.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use jiff::Timestamp;
use metal3_guard::server::{
    Handover, Metrics, Readiness, Server, Settings, Signal, Signals, TlsError,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::support::{
    Authority, Client, ClientOptions, Files, Running, connect, folder, new_key, router, soon, write,
};

/// The certificate that a new connection gets.
async fn served(server: &Running) -> CertificateDer<'static> {
    leaf(&server.connect().await)
}

fn leaf(client: &Client<TlsStream<TcpStream>>) -> CertificateDer<'static> {
    let chain = client.stream.get_ref().1.peer_certificates().unwrap();
    chain[0].clone().into_owned()
}

async fn until_served(server: &Running, pem: &str) {
    let wanted = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    soon(async {
        while served(server).await != wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_new_pair_is_served_and_open_connections_stay() {
    let server = Running::start(|_| {}).await;
    let mut old = server.connect().await;
    assert_eq!(old.get("/").await.unwrap().status, 200);

    let (cert, key) = server.authority.issue();
    write(&server.files.tls.cert, &cert);
    write(&server.files.tls.key, &key);
    until_served(&server, &cert).await;
    assert_eq!(old.get("/").await.unwrap().status, 200);
    server.until_metric("certificate_reloads_total{result=\"success\"}", |n| n == 1).await;
}

#[tokio::test]
async fn the_kubelet_s_swap_of_a_directory_is_seen() {
    let authority = Authority::new();
    let mut files = Files::new("", "");
    let mount = files.dir.path().join("mount");
    let publish = |version: &str, (cert, key): &(String, String)| {
        let data = mount.join(version);
        fs::create_dir_all(&data).unwrap();
        write(&data.join("tls.crt"), cert);
        write(&data.join("tls.key"), key);
        symlink(version, mount.join("..next")).unwrap();
        fs::rename(mount.join("..next"), mount.join("..data")).unwrap();
    };
    let first = authority.issue();
    publish("..1", &first);
    for name in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(name), mount.join(name)).unwrap();
    }
    files.tls.cert = mount.join("tls.crt");
    files.tls.key = mount.join("tls.key");
    let settings = files.settings();
    let server = Running::launch(authority, files, settings, router).await;
    until_served(&server, &first.0).await;

    let second = server.authority.issue();
    publish("..2", &second);
    fs::remove_dir_all(mount.join("..1")).unwrap();
    until_served(&server, &second.0).await;
}

#[tokio::test]
async fn a_torn_pair_is_not_served_until_it_is_whole() {
    let server = Running::start(|_| {}).await;
    let before = served(&server).await;
    let (cert, key) = server.authority.issue();
    write(&server.files.tls.cert, &cert);
    server.until_metric("certificate_reloads_total{result=\"failure\"}", |n| n >= 2).await;
    assert_eq!(served(&server).await, before);

    write(&server.files.tls.key, &key);
    until_served(&server, &cert).await;
}

#[tokio::test]
async fn bad_files_never_replace_a_good_pair() {
    let server = Running::start(|_| {}).await;
    let before = served(&server).await;
    let mut failures = 0;
    let expired = {
        let mut params = crate::support::leaf_params();
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        server.authority.sign(&params, &new_key())
    };
    for bad in ["", "-----BEGIN CERTIFICATE-----\nAA", &expired] {
        write(&server.files.tls.cert, bad);
        server
            .until_metric("certificate_reloads_total{result=\"failure\"}", |n| n > failures)
            .await;
        failures = server.metric("certificate_reloads_total{result=\"failure\"}").await + 1;
        assert_eq!(served(&server).await, before);
    }
    fs::remove_file(&server.files.tls.cert).unwrap();
    server.until_metric("certificate_reloads_total{result=\"failure\"}", |n| n > failures).await;
    assert_eq!(served(&server).await, before);
    assert!(server.readiness.is_ready());
}

#[tokio::test]
async fn a_signal_looks_at_the_files_at_once() {
    let server = Running::start(|settings| settings.tls.poll = Duration::from_hours(1)).await;
    until_ready(&server).await;
    let (cert, key) = server.authority.issue();
    write(&server.files.tls.cert, &cert);
    write(&server.files.tls.key, &key);
    server.signals.send(Signal::Reload).await.unwrap();
    until_served(&server, &cert).await;
}

#[tokio::test]
async fn a_new_client_authority_is_used() {
    let (first, second) = (Authority::new(), Authority::new());
    let ca = first.0.pem();
    let server = Running::start(|settings| {
        let path = folder(settings).join("clients.crt");
        settings.tls.client_ca = Some(write(&path, &ca));
    })
    .await;
    let answered = async |authority: &Authority| {
        let key = new_key();
        let mut params = crate::support::leaf_params();
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let options = ClientOptions {
            certificate: Some((authority.sign(&params, &key), key.serialize_pem())),
            ..Default::default()
        };
        match server.try_connect(options).await {
            Ok(mut client) => client.get("/").await.is_ok(),
            Err(_) => false,
        }
    };
    assert!(answered(&first).await);
    assert!(!answered(&second).await);

    let path = server.files.tls.cert.with_file_name("clients.crt");
    write(&path, &second.0.pem());
    server.until_metric("certificate_reloads_total{result=\"success\"}", |n| n == 1).await;
    assert!(answered(&second).await);
    assert!(!answered(&first).await);
}

async fn until_ready(server: &Running) {
    soon(async {
        while !server.readiness.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_pair_that_is_handed_over_is_served_at_once() {
    let metrics = Metrics::new();
    let handover = Handover::new(&metrics);
    let mut settings = Settings::new(handover.clone());
    settings.listen = "127.0.0.1:0".parse().unwrap();
    settings.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    settings.tls.poll = Duration::from_hours(1);
    let readiness = Readiness::new();
    let server =
        Server::bind(settings, readiness.clone(), metrics, Timestamp::now()).await.unwrap();
    let (address, admin) = (server.address(), server.admin_address().unwrap());
    let signals = Signals::manual();
    let router = router(server.budget());
    let task = tokio::spawn(server.serve(router, signals));
    let authority = Authority::new();
    let open = || connect(address, authority.roots(), ClientOptions::default());

    // The ports are open, and nothing is served.
    assert!(open().await.is_err());
    assert!(!readiness.is_ready());
    let metrics = async || {
        let mut client = Client::plain(admin).await;
        client.get("/metrics").await.unwrap().body
    };
    assert!(!metrics().await.contains("certificate_not_after_seconds "));

    let now = Timestamp::now();
    let (cert, key) = authority.issue();
    handover.give(&cert, &key, "the test", now).unwrap();
    let mut old = open().await.unwrap();
    assert_eq!(old.get("/").await.unwrap().status, 200);
    soon(async {
        while !readiness.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(metrics().await.contains("metal3_guard_certificate_not_after_seconds "));

    // What is no good changes nothing.
    let (other, _) = authority.issue();
    let torn = handover.give(&other, &key, "the test", now).unwrap_err();
    assert!(matches!(torn, TlsError::Mismatch { .. }), "{torn}");
    assert!(torn.to_string().contains("the test, tls.key"), "{torn}");
    let later = now + jiff::SignedDuration::from_hours(24 * 365 * 4000);
    let ended = handover.give(&cert, &key, "the test", later).unwrap_err();
    assert!(matches!(ended, TlsError::Expired { .. }), "{ended}");
    let wanted = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
    assert_eq!(leaf(&open().await.unwrap()), wanted);

    let (cert, key) = authority.issue();
    handover.give(&cert, &key, "the test", now).unwrap();
    let wanted = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
    assert_eq!(leaf(&open().await.unwrap()), wanted);
    assert_eq!(old.get("/").await.unwrap().status, 200);
    let text = metrics().await;
    assert!(text.contains("certificate_reloads_total{result=\"success\"} 2"), "{text}");
    assert!(text.contains("certificate_reloads_total{result=\"failure\"} 2"), "{text}");
    task.abort();
}
