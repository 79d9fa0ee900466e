//! kube-controller-manager: how it is started, and what its garbage collector knows.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use anyhow::{Result, bail};

use super::{
    kubectl::Kubectl,
    parts::{Parts, flag, free_ports, is_port_taken, until},
    process::Process,
    rundir::RunDir,
    users::User,
};

/// What the tests are about, and what the rest stands on: service accounts to act under,
/// and the rights in `view`, `edit` and `admin`, which are empty until they are aggregated.
const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,\
    serviceaccount-controller,clusterrole-aggregation-controller";

/// Where the garbage collector shows the objects that it knows, with their owners.
const GRAPH: &str = "/debug/controllers/garbage-collector-controller/graph";

impl Parts {
    /// Ready when its service account controller has done its first work.
    pub(super) async fn start_controller_manager(&self, run: &RunDir) -> Result<Process> {
        // A restarted one must show its own work, not that of the one before.
        self.admin(&["delete", "serviceaccount", "default", "-n", "default", "--ignore-not-found"])
            .await?;
        let mut tries = 0;
        loop {
            tries += 1;
            let [port] = free_ports()?;
            let process = self.start(run, "kube-controller-manager", &self.flags(run, port))?;
            let works = until(process, "the controller manager to work", async || {
                self.admin(&["get", "serviceaccount", "default", "-n", "default"]).await.is_ok()
            });
            match works.await {
                Err(error) if tries < 3 && is_port_taken(&error) => {}
                outcome => {
                    self.manager_port.store(port, Ordering::Relaxed);
                    return outcome;
                }
            }
        }
    }

    fn flags(&self, run: &RunDir, port: u16) -> Vec<String> {
        let pki = |name: &str| run.join("pki").join(name).display().to_string();
        vec![
            flag("kubeconfig", self.kubectl.kubeconfig(User::ControllerManager).display()),
            flag("controllers", CONTROLLERS),
            // Each under its own name, which is what an admission webhook sees.
            flag("use-service-account-credentials", true),
            flag("leader-elect", false),
            flag("bind-address", Ipv4Addr::LOCALHOST),
            flag("secure-port", port),
            flag("tls-cert-file", pki("server.pem")),
            flag("tls-private-key-file", pki("server.key")),
            // To anyone who asks: it knows none of the test users.
            flag("authorization-always-allow-paths", GRAPH),
        ]
    }

    async fn admin(&self, args: &[&str]) -> Result<String> {
        let ran = self.kubectl.run(User::Admin, args, "").await?;
        if !ran.success {
            bail!("`{}` failed: {}", ran.command, ran.stderr);
        }
        Ok(ran.stdout)
    }

    pub(super) fn collector(&self) -> Collector {
        Collector { kubectl: self.kubectl.clone(), port: Arc::clone(&self.manager_port) }
    }
}

/// The garbage collector of a control plane, also after a restart.
#[derive(Clone, Debug)]
pub(crate) struct Collector {
    kubectl: Kubectl,
    port: Arc<AtomicU16>,
}

impl Collector {
    /// Whether it has heard that these objects, by uid, are being deleted. What it takes for live
    /// it frees of owners that are gone; what is being deleted it leaves alone. It knows of objects
    /// that have an owner or are one.
    pub(crate) async fn sees_deletion(&self, uids: &[String]) -> bool {
        let wanted: Vec<String> = uids.iter().map(|uid| format!("uid={uid}")).collect();
        let path = format!("{GRAPH}?{}", wanted.join("&"));
        let server = format!("https://127.0.0.1:{}", self.port.load(Ordering::Relaxed));
        let args = ["--server", &server, "get", "--raw", &path];
        let ran = self.kubectl.run(User::Admin, &args, "").await;
        // It says nothing while it starts.
        ran.is_ok_and(|ran| uids.iter().all(|uid| is_being_deleted(&ran.stdout, uid)))
    }
}

/// Each object is an entry of the graph: `"uid" [`, an attribute on each line, and `];`.
fn is_being_deleted(graph: &str, uid: &str) -> bool {
    let entry = graph.split_once(&format!("\"{uid}\" [\n")).map(|(_, rest)| rest);
    let entry = entry.and_then(|rest| rest.split_once("\n  ];")).map(|(entry, _)| entry);
    entry.is_some_and(|entry| entry.lines().any(|line| line.trim() == r#"beingDeleted="true""#))
}
