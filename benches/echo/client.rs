//! The client: verified TLS, HTTP/1.1, one request after the other on each connection.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    task::JoinSet,
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::process::Server;

/// A round ends with this many requests on one connection, if not with its time.
const MOST_REQUESTS: usize = 100_000;

/// An API server's HTTP client sends what fills its buffer (`net/http`, `WriteBufferSize`) and then
/// the rest of the body as it is: two TLS records.
const WRITE_BUFFER: usize = 4096;

/// Opens connections to servers whose certificate the CA signed.
pub(crate) struct Client {
    tls: TlsConnector,
    connections: usize,
}

/// What one round of load saw.
pub(crate) struct Round {
    /// Of each request.
    pub(crate) latencies: Vec<Duration>,
    took: Duration,
    /// Of the server's process.
    cpu: Duration,
}

impl Round {
    pub(crate) fn per_second(&self) -> f64 {
        self.requests() / self.took.as_secs_f64()
    }

    pub(crate) fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.requests()
    }

    #[expect(clippy::cast_precision_loss, reason = "no round has 2^52 requests")]
    fn requests(&self) -> f64 {
        self.latencies.len() as f64
    }
}

impl Client {
    pub(crate) fn new(ca: &Path, connections: usize) -> Self {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(ca).expect("a readable CA"))
            .expect("a CA certificate");
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the versions that ring has")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { tls: TlsConnector::from(Arc::new(config)), connections }
    }

    /// The body of one answer.
    pub(crate) async fn ask(&self, address: SocketAddr, path: &str, body: &str) -> String {
        let mut connection = self.connect(address).await;
        let answer = connection.ask(&request(path, body)).await;
        String::from_utf8(answer.to_vec()).expect("an answer in UTF-8")
    }

    /// Keeps all connections busy for as long as `time`.
    pub(crate) async fn load(
        &self,
        server: &Server,
        path: &str,
        body: &str,
        time: Duration,
    ) -> Round {
        let request = Arc::new(request(path, body));
        let mut open = Vec::new();
        for _ in 0..self.connections {
            open.push(self.connect(server.address).await);
        }
        let cpu = server.cpu();
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for mut connection in open {
            let request = Arc::clone(&request);
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                while start.elapsed() < time && latencies.len() < MOST_REQUESTS {
                    let sent = Instant::now();
                    connection.ask(&request).await;
                    latencies.push(sent.elapsed());
                }
                latencies
            });
        }
        let latencies = tasks.join_all().await.concat();
        Round { latencies, took: start.elapsed(), cpu: server.cpu().saturating_sub(cpu) }
    }

    async fn connect(&self, address: SocketAddr) -> Connection {
        let tcp = TcpStream::connect(address).await.expect("a server that listens");
        tcp.set_nodelay(true).expect("a socket option");
        let name = ServerName::from(address.ip());
        let tls = self.tls.connect(name, tcp).await.expect("a certificate of the CA");
        Connection { stream: BufReader::new(tls), answer: Vec::new() }
    }
}

/// As an API server sends it.
fn request(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: metal3-guard.metal3-guard-system.svc:443\r\nUser-Agent: \
         kube-apiserver-admission\r\nContent-Length: {}\r\nAccept: application/json, */*\r\n\
         Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

struct Connection {
    stream: BufReader<TlsStream<TcpStream>>,
    answer: Vec<u8>,
}

impl Connection {
    async fn ask(&mut self, request: &[u8]) -> &[u8] {
        let (first, rest) = request.split_at(request.len().min(WRITE_BUFFER));
        for part in [first, rest] {
            self.stream.write_all(part).await.expect("an open connection");
        }
        self.stream.flush().await.expect("an open connection");
        self.answer.clear();
        loop {
            let read = self.stream.read_buf(&mut self.answer).await.expect("an open connection");
            assert!(read > 0, "the server closed the connection");
            if let Some(body) = body(&self.answer) {
                return self.answer.get(body..).unwrap_or_default();
            }
        }
    }
}

/// Where the body of an answer starts, once the whole answer is there. Nothing but 200 will do.
fn body(answer: &[u8]) -> Option<usize> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(answer.get(..end)?).expect("a head in ASCII");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .and_then(|length| length.parse().ok())
        .expect("an answer with its length");
    (answer.len() >= end + length).then_some(end)
}
