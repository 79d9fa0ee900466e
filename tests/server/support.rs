//! A server on loopback, certificates for it, and a client that can misbehave.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    routing::{get, post},
};
use jiff::Timestamp;
use metal3_guard::server::{
    Budget, DrainTimes, Error, Handler, Metrics, PairSource, Readiness, Server, Settings, Signal,
    Signals, TlsFiles, read,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, PKCS_ECDSA_P256_SHA256,
};
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Deadlines of the test servers that are meant to strike.
pub(crate) const SHORT: Duration = Duration::from_millis(500);
/// The name on the certificates.
pub(crate) const NAME: &str = "guard.system.svc";

/// Ends a test that hangs. Never meant to strike.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("hangs")
}

/// A runtime with one thread, which is called "reviews".
pub(crate) struct OwnRuntime {
    pub(crate) handle: Handle,
    end: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl OwnRuntime {
    pub(crate) fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("reviews".to_owned());
        let thread = thread.spawn(move || runtime.block_on(ended).unwrap()).unwrap();
        Self { handle, end, thread }
    }

    /// Cuts what runs on it.
    pub(crate) fn end(self) {
        self.end.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

/// A certificate authority.
pub(crate) struct Authority(pub(crate) CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        Self(CertifiedIssuer::self_signed(ca_params("root"), new_key()).unwrap())
    }

    pub(crate) fn intermediate(&self) -> Self {
        Self(CertifiedIssuer::signed_by(ca_params("intermediate"), new_key(), &self.0).unwrap())
    }

    /// A leaf for [`NAME`] with a new P-256 key: certificate and key as PEM.
    pub(crate) fn issue(&self) -> (String, String) {
        let key = new_key();
        (self.sign(&leaf_params(), &key), key.serialize_pem())
    }

    pub(crate) fn sign(&self, params: &CertificateParams, key: &KeyPair) -> String {
        params.signed_by(key, &self.0).unwrap().pem()
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots
    }
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

pub(crate) fn leaf_params() -> CertificateParams {
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params
}

pub(crate) fn new_key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
}

/// Files of a server in a directory that goes away with it.
pub(crate) struct Files {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) tls: TlsFiles,
}

impl Files {
    pub(crate) fn new(cert: &str, key: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str, text: &str| write(&dir.path().join(name), text);
        let tls = TlsFiles::new(path("tls.crt", cert), path("tls.key", key));
        Self { dir, tls }
    }

    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::new(self.tls.clone());
        settings.tls.poll = Duration::from_millis(20);
        settings.listen = "127.0.0.1:0".parse().unwrap();
        settings.admin_listen = Some("127.0.0.1:0".parse().unwrap());
        settings.drain = DrainTimes { propagation: SHORT, ..DrainTimes::default() };
        settings
    }
}

/// The folder of the server's files.
pub(crate) fn folder(settings: &Settings) -> &Path {
    let PairSource::Files(files) = &settings.tls.pair else { panic!("no files") };
    files.cert.parent().unwrap()
}

pub(crate) fn write(path: &Path, text: &str) -> PathBuf {
    std::fs::write(path, text).unwrap();
    path.to_owned()
}

/// A server in a task; dropped, it ends.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) signals: mpsc::Sender<Signal>,
    pub(crate) readiness: Readiness,
    pub(crate) budget: Budget,
    pub(crate) task: JoinHandle<Result<(), Error>>,
    pub(crate) authority: Authority,
    pub(crate) files: Files,
}

impl Running {
    /// A server with a fresh certificate and [`router`].
    pub(crate) async fn start(change: impl FnOnce(&mut Settings)) -> Self {
        Self::with_handler(change, router).await
    }

    pub(crate) async fn with_handler<H: Handler>(
        change: impl FnOnce(&mut Settings),
        handler: impl FnOnce(Budget) -> H,
    ) -> Self {
        let authority = Authority::new();
        let (cert, key) = authority.issue();
        let files = Files::new(&cert, &key);
        let mut settings = files.settings();
        change(&mut settings);
        Self::launch(authority, files, settings, handler).await
    }

    pub(crate) async fn launch<H: Handler>(
        authority: Authority,
        files: Files,
        settings: Settings,
        handler: impl FnOnce(Budget) -> H,
    ) -> Self {
        let readiness = Readiness::new();
        let server = Server::bind(settings, readiness.clone(), Metrics::new(), Timestamp::now())
            .await
            .unwrap();
        let signals = Signals::manual();
        let budget = server.budget();
        Self {
            address: server.address(),
            admin: server.admin_address().unwrap(),
            signals: signals.sender(),
            readiness,
            task: tokio::spawn(server.serve(handler(budget.clone()), signals)),
            budget,
            authority,
            files,
        }
    }

    pub(crate) async fn connect(&self) -> Client<TlsStream<TcpStream>> {
        self.try_connect(ClientOptions::default()).await.unwrap()
    }

    pub(crate) async fn try_connect(
        &self,
        options: ClientOptions,
    ) -> io::Result<Client<TlsStream<TcpStream>>> {
        connect(self.address, self.authority.roots(), options).await
    }

    /// A GET on the admin port.
    pub(crate) async fn admin(&self, path: &str) -> Answer {
        let mut client = Client::plain(self.admin).await;
        client.get(path).await.unwrap()
    }

    /// The value of a line of `/metrics`.
    pub(crate) async fn metric(&self, name: &str) -> i64 {
        let text = self.admin("/metrics").await.body;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("metal3_guard_")?.strip_prefix(name))
            .unwrap_or_else(|| panic!("no {name} in {text}"));
        line.trim().parse().unwrap()
    }

    pub(crate) async fn until_metric(&self, name: &str, wanted: impl Fn(i64) -> bool) {
        soon(async {
            while !wanted(self.metric(name).await) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    pub(crate) async fn stop(&self) {
        self.signals.send(Signal::Stop).await.unwrap();
    }

    /// How serving ended.
    pub(crate) async fn end(&mut self) -> Result<(), Error> {
        soon(&mut self.task).await.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `/` says hello, `/length` counts the body.
pub(crate) fn router(budget: Budget) -> Router {
    Router::new().route("/", get(|| async { "hello" })).route(
        "/length",
        post(move |request: axum::extract::Request| async move {
            let (parts, body) = request.into_parts();
            let body = read(body, &parts.headers, &budget).await?;
            Ok::<_, metal3_guard::server::Refusal>(body.len().to_string())
        }),
    )
}

#[derive(Default)]
pub(crate) struct ClientOptions {
    /// Empty: all that rustls has.
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
    pub(crate) alpn: Vec<&'static [u8]>,
    /// Certificate and key as PEM.
    pub(crate) certificate: Option<(String, String)>,
}

pub(crate) async fn connect(
    address: SocketAddr,
    roots: RootCertStore,
    options: ClientOptions,
) -> io::Result<Client<TlsStream<TcpStream>>> {
    let versions =
        if options.versions.is_empty() { rustls::ALL_VERSIONS } else { &options.versions };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match options.certificate {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    config.alpn_protocols = options.alpn.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from(NAME).unwrap();
    let tcp = TcpStream::connect(address).await?;
    let stream = soon(TlsConnector::from(Arc::new(config)).connect(name, tcp)).await?;
    Ok(Client { stream })
}

/// HTTP/1.1 by hand, over whatever stream.
pub(crate) struct Client<S> {
    pub(crate) stream: S,
}

impl Client<TcpStream> {
    pub(crate) async fn plain(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        Self { stream }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub(crate) async fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {NAME}\r\n\r\n")).await?;
        self.answer().await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &[u8]) -> io::Result<Answer> {
        self.head(path, body.len()).await?;
        self.stream.write_all(body).await?;
        self.stream.flush().await?;
        self.answer().await
    }

    /// The head of a POST whose body is still to come.
    pub(crate) async fn head(&mut self, path: &str, length: usize) -> io::Result<()> {
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: {length}\r\n\r\n"
        ))
        .await
    }

    /// The answer to a HEAD, which must be a 200 without a body; the last one on a connection.
    pub(crate) async fn head_without_body(&mut self, path: &str) {
        let head = format!("HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        self.send(&head).await.unwrap();
        let mut text = String::new();
        soon(self.stream.read_to_string(&mut text)).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n"), "no body: {text}");
    }

    pub(crate) async fn send(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes()).await?;
        self.stream.flush().await
    }

    pub(crate) async fn answer(&mut self) -> io::Result<Answer> {
        soon(self.read_answer()).await
    }

    async fn read_answer(&mut self) -> io::Result<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head: head.to_ascii_lowercase(), body: String::new() };
        let length = answer.header("content-length").unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        self.stream.read_exact(&mut body).await?;
        answer.body = String::from_utf8(body).unwrap();
        Ok(answer)
    }

    /// Waits until the server has closed the connection; what it still says is dropped.
    pub(crate) async fn until_closed(&mut self) {
        soon(async {
            let mut buffer = [0; 1024];
            while self.stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
        })
        .await;
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn closes(&self) -> bool {
        self.header("connection") == Some("close")
    }
}
