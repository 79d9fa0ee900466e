//! The guard itself, as users run it: the real binary, its own account, hooks from the shipped
//! manifests.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, Result, bail, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use metal3_guard::certificates;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{ControlPlane, PATIENCE, User, eventually, process::Process};

/// The program under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_metal3-guard");

/// With this flag a guard needs no certificate files.
pub(crate) const SELF_MANAGED: &str = "--self-managed-certs";

/// A running guard. Dropping it kills it, as a crash would.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Process,
    log: PathBuf,
    /// `127.0.0.1:PORT` of the webhooks.
    pub(crate) address: String,
    /// `127.0.0.1:PORT` of probes and metrics.
    pub(crate) admin: String,
    /// The CA that its certificate comes from, unless it makes its own.
    pub(crate) ca_pem: String,
}

impl Guard {
    /// Starts a guard that talks to the cluster of `kubeconfig`, and waits until its ports are
    /// open. `listen` is a port to take over from a guard that is gone, or 0.
    pub(crate) async fn start(
        plane: &ControlPlane,
        kubeconfig: &Path,
        listen: &str,
        args: &[&str],
    ) -> Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("guard-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let certs = plane.folder().join("guard-certs");
        let ca_pem = shared_certificates(&certs)?;
        let logs = plane.folder().join("logs");
        let mut command: Vec<String> = ["serve", "--log", "json", "--drain-delay", "2"]
            .into_iter()
            .chain(["--listen", listen, "--admin-listen", "127.0.0.1:0", "--kubeconfig"])
            .map(Into::into)
            .collect();
        command.push(kubeconfig.display().to_string());
        let files =
            [("--tls-cert", certificates::CERT_FILE), ("--tls-key", certificates::KEY_FILE)];
        for (flag, file) in files.into_iter().filter(|_| !args.contains(&SELF_MANAGED)) {
            command.push(flag.into());
            command.push(certs.join(file).display().to_string());
        }
        if !args.contains(&"--controller") {
            // Scenarios of rules make states by hand that must stay as they are.
            command.extend(["--controller", "off"].map(Into::into));
        }
        command.extend(args.iter().map(|arg| (*arg).to_owned()));
        let alive = plane.folder().join("alive");
        fs::create_dir_all(&alive)?;
        let mut process = Process::start(&name, Path::new(BINARY), &command, &logs, &alive)?;
        let log = logs.join(format!("{name}.log"));
        let mut found = (None, None);
        for _ in 0..PATIENCE.as_millis() / 50 {
            found = (listening(&log, "webhooks"), listening(&log, "admin"));
            if found.0.is_some() && found.1.is_some() {
                break;
            }
            process.check()?;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let (Some(address), Some(admin)) = found else {
            bail!("the guard does not say where it listens:\n{}", process.log_tail())
        };
        Ok(Self { process, log, address, admin, ca_pem })
    }

    /// Waits until the guard says that it is ready.
    pub(crate) async fn ready(&self) {
        eventually("the guard to be ready", async || {
            let (status, _) = self.get("/readyz").await.ok()?;
            (status == 200).then_some(())
        })
        .await;
    }

    /// A GET on the admin port: status and body.
    pub(crate) async fn get(&self, path: &str) -> Result<(u16, String)> {
        get(&self.admin, path).await
    }

    /// The sum of all series of a metric whose labels contain `labels`.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> f64 {
        let (_, text) = self.get("/metrics").await.unwrap_or_default();
        text.lines()
            .filter(|line| line.starts_with(name) && line.contains(labels))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// The log so far, a JSON object a line. The guard writes it a moment after the fact: this
    /// waits until nothing more comes, for a second at most.
    pub(crate) fn log(&self) -> Vec<Value> {
        let mut text = fs::read_to_string(&self.log).unwrap_or_default();
        for _ in 0..10 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let before = text.len();
            text = fs::read_to_string(&self.log).unwrap_or_default();
            if text.len() == before {
                break;
            }
        }
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The reviews in the log that concern an object of this namespace.
    pub(crate) fn reviews(&self, namespace: &str) -> Vec<Value> {
        let mut log = self.log();
        log.retain(|line| {
            field(line, "message") == "review" && field(line, "namespace") == namespace
        });
        log
    }

    /// How many reviews of this namespace ended in that rule.
    pub(crate) fn judged(&self, namespace: &str, rule: &str) -> usize {
        self.reviews(namespace).iter().filter(|it| field(it, "rule") == rule).count()
    }

    /// Sends a signal to the guard, named as `kill` names it.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        self.process.signal(name)
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Whether it has ended by itself, as after a signal.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.check().is_err()
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The shipped webhook configurations and RBAC for a guard outside the cluster, pointed at
    /// this one.
    pub(crate) fn manifests(&self) -> Result<String> {
        manifests_for(&self.address, &self.ca_pem)
    }

    /// Applies the manifests as a user would. The API server takes a moment to use them.
    pub(crate) async fn register(&self, plane: &ControlPlane) -> Result<()> {
        apply(plane, &self.manifests()?).await
    }
}

/// The shipped manifests for a guard outside the cluster, pointed at that address (`HOST:PORT`)
/// with a certificate of that authority.
pub(crate) fn manifests_for(address: &str, ca_pem: &str) -> Result<String> {
    let output = std::process::Command::new(BINARY)
        .args(["manifests", "--overlay", "local-url"])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let bundle = BASE64_STANDARD.encode(ca_pem);
    let placeholder = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("caBundle: "))
        .context("no caBundle to put the CA into")?;
    ensure!(text.contains("https://127.0.0.1:8443/"), "no URL to point at the guard");
    Ok(text
        .replace(placeholder, &bundle)
        .replace("https://127.0.0.1:8443/", &format!("https://{address}/")))
}

/// Applies the shipped manifests, or what a test made of them.
pub(crate) async fn apply(plane: &ControlPlane, manifests: &str) -> Result<()> {
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let ran = plane.kubectl_with(User::Admin, &apply, manifests).await;
    ensure!(ran.success, "the shipped manifests were refused: {}", ran.stderr);
    Ok(())
}

/// A GET on the admin port of a guard: status and body.
pub(crate) async fn get(admin: &str, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: guard\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, body.to_owned()))
}

/// One pair for all guards of a control plane: a successor must be trusted like its predecessor.
fn shared_certificates(dir: &Path) -> Result<String> {
    let ca = dir.join(certificates::CA_FILE);
    if !ca.exists() {
        let ips = ["127.0.0.1".parse()?];
        let now = jiff::Timestamp::now();
        certificates::generate(&["localhost".into()], &ips, now)?.write(dir, true)?;
    }
    Ok(fs::read_to_string(ca)?)
}

fn listening(log: &Path, what: &str) -> Option<String> {
    let text = fs::read_to_string(log).ok()?;
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|line| field(line, "message") == "listening" && field(line, "what") == what)
        .map(|line| field(&line, "address").to_owned())
}

fn field<'a>(line: &'a Value, name: &str) -> &'a str {
    line.get(name).and_then(Value::as_str).unwrap_or_default()
}
