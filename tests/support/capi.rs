//! Cluster API itself: the real core manager and the real clusterctl, with the CRDs that they were
//! released with.

use std::{fs, path::PathBuf};

use anyhow::{Result, ensure};
use tokio::process::Command;

use super::{
    ControlPlane, PATIENCE, User, binaries, guard,
    kubectl::{self, Ran},
    parts::{flag, free_ports, is_port_taken, until},
    pki::Authority,
    process::Process,
};

/// A release of Cluster API that `tests/controlplane/build.sh` builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// 1.9.4: contract v1beta1; the last whose clusterctl strips finalizers before it deletes.
    V1_9,
    /// The 1.14 line: contract v1beta2; its clusterctl deletes first.
    V1_14,
}

impl Release {
    const fn folder(self) -> &'static str {
        match self {
            Self::V1_9 => "capi-v1.9.4",
            Self::V1_14 => "capi-v1.14",
        }
    }

    /// The version of the group `cluster.x-k8s.io` that it stores.
    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::V1_9 => "v1beta1",
            Self::V1_14 => "v1beta2",
        }
    }
}

/// The programs of one release.
#[derive(Debug)]
pub(crate) struct Capi {
    folder: PathBuf,
}

impl Capi {
    /// Those of that release; built when this machine has none yet, which takes minutes.
    pub(crate) async fn of(release: Release) -> Result<Self> {
        let built = tokio::task::spawn_blocking(binaries::capi).await??;
        Ok(Self { folder: built.join(release.folder()) })
    }

    /// The folder with Cluster API's CRDs, the one of clusterctl's inventory included. They lack
    /// the labels that clusterctl puts on what it installs.
    pub(crate) fn crds(&self) -> PathBuf {
        self.folder.join("crds")
    }

    /// Starts the core manager for a control plane, as [`User::Capi`]. None of its own webhooks
    /// is registered there, but it serves them: on a port of all addresses, which it has no flag
    /// to change.
    pub(crate) async fn start_manager(&self, plane: &ControlPlane) -> Result<Process> {
        let certs = plane.folder().join("capi-certs");
        fs::create_dir_all(&certs)?;
        let (certificate, key) =
            Authority::new("Cluster API of the tests")?.issue(&["localhost"])?;
        fs::write(certs.join("tls.crt"), certificate)?;
        fs::write(certs.join("tls.key"), key)?;
        let (logs, alive) = (plane.folder().join("logs"), plane.folder().join("alive"));
        let mut tries = 0;
        loop {
            tries += 1;
            let [health, webhooks] = free_ports()?;
            let health = format!("127.0.0.1:{health}");
            let args = [
                flag("kubeconfig", plane.kubeconfig(User::Capi).display()),
                flag("health-addr", &health),
                flag("diagnostics-address", "0"),
                flag("webhook-port", webhooks),
                flag("webhook-cert-dir", certs.display()),
            ];
            let program = self.folder.join("manager");
            let process = Process::start("capi-manager", &program, &args, &logs, &alive)?;
            let ready = until(process, "Cluster API's manager to become ready", async || {
                guard::get(&health, "/readyz").await.is_ok_and(|(status, _)| status == 200)
            });
            match ready.await {
                Err(error) if tries < 3 && is_port_taken(&error) => {}
                outcome => return outcome,
            }
        }
    }

    /// Runs clusterctl, with a home folder of the test's own and without a look at the internet.
    pub(crate) async fn clusterctl(&self, plane: &ControlPlane, args: &[&str]) -> Result<Ran> {
        let home = plane.folder().join("data/clusterctl");
        fs::create_dir_all(&home)?;
        let program = self.folder.join("clusterctl");
        ensure!(program.exists(), "there is no {}", program.display());
        let mut command = Command::new(program);
        command
            .args(args)
            .env("HOME", &home)
            .env("XDG_CONFIG_HOME", &home)
            .env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
            .env("GOPROXY", "off")
            .env_remove("KUBECONFIG");
        kubectl::run(command, format!("clusterctl {}", args.join(" ")), "", 3 * PATIENCE).await
    }
}
