//! How each part of the control plane is started, and when it counts as ready.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU16},
    time::Duration,
};

use anyhow::{Result, bail};
use tokio::time::Instant;

use super::{
    PATIENCE,
    kubectl::Kubectl,
    pki::Authority,
    process::Process,
    rundir::RunDir,
    users::{self, User},
};

/// All that is decided before the first process starts, and holds across restarts.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) binaries: PathBuf,
    pub(crate) kubectl: Kubectl,
    etcd_port: u16,
    peer_port: u16,
    port: u16,
    /// Another one with each start: nobody is told of it, so none needs to be kept.
    pub(super) manager_port: Arc<AtomicU16>,
}

impl Parts {
    /// Chooses ports and writes keys, certificates, tokens and kubeconfigs into `run`.
    pub(crate) fn new(binaries: &Path, run: &RunDir, audit: Audit) -> Result<Self> {
        let [etcd_port, peer_port, port] = free_ports()?;
        let kubectl =
            Kubectl::new(binaries.join("kubectl"), run.join("kubeconfigs"), run.join("data"));
        let parts = Self {
            binaries: binaries.to_owned(),
            kubectl,
            etcd_port,
            peer_port,
            port,
            manager_port: Arc::default(),
        };

        let authority = Authority::new("control plane of the tests")?;
        let (certificate, key) = authority.issue(&["127.0.0.1", "localhost"])?;
        let service_accounts = rcgen::KeyPair::generate()?;
        for (name, content) in [
            ("ca.pem", authority.pem()),
            ("server.pem", &certificate),
            ("server.key", &key),
            ("sa.key", &service_accounts.serialize_pem()),
            ("sa.pub", &service_accounts.public_key_pem()),
            ("audit.yaml", audit.policy()),
        ] {
            fs::write(run.join("pki").join(name), content)?;
        }
        users::write(
            &parts.url(),
            &run.join("pki/ca.pem"),
            &run.join("pki/tokens.csv"),
            &run.join("kubeconfigs"),
        )?;
        Ok(parts)
    }

    /// Where the API server listens.
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Ready when it says it is healthy.
    pub(crate) async fn start_etcd(&self, run: &RunDir) -> Result<Process> {
        let client = format!("http://127.0.0.1:{}", self.etcd_port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let process = self.start(
            run,
            "etcd",
            &[
                flag("data-dir", run.join("data/etcd").display()),
                flag("listen-client-urls", &client),
                flag("advertise-client-urls", &client),
                flag("listen-peer-urls", &peer),
                flag("initial-advertise-peer-urls", &peer),
                flag("initial-cluster", format_args!("default={peer}")),
                flag("log-level", "warn"),
                // The data lives no longer than the tests: no need to wait for the disk.
                "--unsafe-no-fsync".to_owned(),
            ],
        )?;
        until(process, "etcd to become healthy", async || {
            etcd_is_healthy(self.etcd_port).unwrap_or(false)
        })
        .await
    }

    /// Ready when `/readyz` says so, which includes the roles Kubernetes brings along.
    pub(crate) async fn start_apiserver(&self, run: &RunDir) -> Result<Process> {
        let pki = |name: &str| run.join("pki").join(name).display().to_string();
        let args = vec![
            flag("etcd-servers", format_args!("http://127.0.0.1:{}", self.etcd_port)),
            flag("bind-address", Ipv4Addr::LOCALHOST),
            flag("advertise-address", Ipv4Addr::LOCALHOST),
            // The `kubernetes` Service may not point at loopback, and nobody here uses it.
            flag("endpoint-reconciler-type", "none"),
            flag("secure-port", self.port),
            flag("tls-cert-file", pki("server.pem")),
            flag("tls-private-key-file", pki("server.key")),
            flag("service-account-issuer", "https://kubernetes.default.svc"),
            flag("service-account-key-file", pki("sa.pub")),
            flag("service-account-signing-key-file", pki("sa.key")),
            flag("service-cluster-ip-range", "10.0.0.0/24"),
            flag("token-auth-file", pki("tokens.csv")),
            flag("authorization-mode", "RBAC"),
            // No pod runs here; one without a token is as good as any.
            flag("disable-admission-plugins", "ServiceAccount"),
            flag("audit-policy-file", pki("audit.yaml")),
            flag("audit-log-path", run.join("logs/audit.log").display()),
            // One file, however much is written (megabytes).
            flag("audit-log-maxsize", 4000),
        ];
        let mut tries = 0;
        loop {
            tries += 1;
            let process = self.start(run, "kube-apiserver", &args)?;
            let ready = until(process, "the API server to become ready", async || {
                let ran = self
                    .kubectl
                    .run(User::Admin, &["get", "--raw=/readyz", "--request-timeout=5s"], "")
                    .await;
                ran.is_ok_and(|ran| ran.success)
            });
            match ready.await {
                // On a restart: an outgoing connection may have been given the port for now.
                Err(error) if tries < 5 && is_port_taken(&error) => {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                outcome => return outcome,
            }
        }
    }

    pub(super) fn start(&self, run: &RunDir, name: &str, args: &[String]) -> Result<Process> {
        Process::start(name, &self.binaries.join(name), args, &run.join("logs"), &run.join("alive"))
    }
}

/// Whether a part ended because something else had its port.
pub(crate) fn is_port_taken(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("address already in use")
}

/// How much the audit log holds of each write. It holds no reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Audit {
    /// Who did what to which object, and what webhooks noted. Of the guard, also what it sent: it
    /// must not have taken more than it says.
    #[default]
    Metadata,
    /// Also what was sent, and the object that it made, for the kinds of Cluster API and Metal3.
    Contents,
}

impl Audit {
    const fn policy(self) -> &'static str {
        match self {
            Self::Metadata => METADATA,
            Self::Contents => CONTENTS,
        }
    }
}

const METADATA: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources:
  - {group: "", resources: [events]}
  - {group: coordination.k8s.io, resources: [leases]}
- level: Request
  users: [guard]
- level: Metadata
"#;

const CONTENTS: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources:
  - {group: "", resources: [events]}
  - {group: coordination.k8s.io, resources: [leases]}
- level: RequestResponse
  resources:
  - {group: cluster.x-k8s.io}
  - {group: infrastructure.cluster.x-k8s.io}
  - {group: ipam.metal3.io}
- level: Metadata
"#;

pub(super) fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

/// Hands the process back once `ready`, or fails when it ends or takes too long.
pub(super) async fn until(
    mut process: Process,
    what: &str,
    ready: impl AsyncFn() -> bool,
) -> Result<Process> {
    let deadline = Instant::now() + PATIENCE;
    while !ready().await {
        process.check()?;
        if Instant::now() > deadline {
            bail!("gave up waiting for {what}. The end of its log:\n{}", process.log_tail());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Something else may have answered on the port.
    process.check()?;
    Ok(process)
}

/// Ports nobody listens on now. All are held until the last is found, so they differ.
pub(super) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn etcd_is_healthy(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.contains(r#""health":"true""#))
}
