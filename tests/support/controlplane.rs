//! etcd, kube-apiserver and kube-controller-manager on loopback, started and stopped.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Result, anyhow, bail};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::{
    binaries,
    kubectl::Ran,
    manager::Collector,
    parts::{Audit, Parts, is_port_taken},
    process::Process,
    rundir::RunDir,
    users::{self, User},
};

/// A running control plane. Dropping it stops everything; so does the end of the process.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    // In this order they are stopped; the folder goes last.
    controller_manager: Mutex<Process>,
    apiserver: Mutex<Process>,
    etcd: Mutex<Process>,
    parts: Parts,
    namespaces: AtomicUsize,
    run: RunDir,
}

/// A namespace of one test. While it exists, the test counts as running: should the tests
/// be killed, the logs stay.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
    running: PathBuf,
}

impl Namespace {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        fs::remove_file(&self.running).ok();
    }
}

impl ControlPlane {
    /// The one of this test binary, started by the first caller. Panics, with what to do
    /// about it, when there can be none: such a test has not passed.
    pub(crate) async fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<ControlPlane, String>> = OnceLock::new();
        // On a thread and a runtime of its own: it outlives the runtime of any one test.
        let start = || {
            let started = || Self::start_blocking(Audit::default());
            SHARED.get_or_init(|| started().map_err(|error| format!("{error:#}")))
        };
        match or_fail(tokio::task::spawn_blocking(start).await.map_err(Into::into)) {
            Ok(plane) => plane,
            Err(error) => or_fail(Err(anyhow!("{error}"))),
        }
    }

    /// One more, for a test that pauses or restarts parts of it. Panics like [`Self::shared`].
    pub(crate) async fn start() -> Self {
        Self::start_audited(Audit::default()).await
    }

    /// The same, with more in its audit log.
    pub(crate) async fn start_audited(audit: Audit) -> Self {
        let started = tokio::task::spawn_blocking(move || Self::start_blocking(audit)).await;
        or_fail(started.map_err(Into::into).flatten())
    }

    fn start_blocking(audit: Audit) -> Result<Self> {
        let binaries = binaries::kube()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            match runtime.block_on(Self::start_once(&binaries, audit)) {
                Err(error) if attempts < 3 && is_port_taken(&error) => {}
                outcome => return outcome,
            }
        }
    }

    async fn start_once(binaries: &Path, audit: Audit) -> Result<Self> {
        let run = RunDir::new()?;
        match Self::start_parts(binaries, &run, audit).await {
            Ok((parts, [etcd, apiserver, controller_manager])) => Ok(Self {
                controller_manager,
                apiserver,
                etcd,
                parts,
                namespaces: AtomicUsize::new(0),
                run,
            }),
            Err(error) => {
                run.fail(&format!("{error:#}"));
                Err(error.context(format!(
                    "the control plane did not start; its logs: {}",
                    run.kept_logs().display()
                )))
            }
        }
    }

    async fn start_parts(
        binaries: &Path,
        run: &RunDir,
        audit: Audit,
    ) -> Result<(Parts, [Mutex<Process>; 3])> {
        let parts = Parts::new(binaries, run, audit)?;
        let etcd = parts.start_etcd(run).await?;
        let apiserver = parts.start_apiserver(run).await?;
        let rbac = ["apply", "--server-side", "-f", "-"];
        let ran = parts.kubectl.run(User::Admin, &rbac, users::RBAC).await?;
        if !ran.success {
            bail!("the roles of the test users were refused: {}", ran.stderr);
        }
        let controller_manager = parts.start_controller_manager(run).await?;
        Ok((parts, [etcd, apiserver, controller_manager].map(Mutex::new)))
    }

    /// A new namespace with `hint` in its name, which no other test has.
    pub(crate) async fn namespace(&self, hint: &str) -> Namespace {
        let name = format!("{hint}-{}", self.namespaces.fetch_add(1, Ordering::Relaxed));
        let running = self.run.join("tests").join(&name);
        fs::write(&running, "").ok();
        let namespace = Namespace { name, running };
        self.kubectl(User::Admin, &["create", "namespace", namespace.name()]).await.ok();
        namespace
    }

    /// A client of that user. It works on the runtime it was made on, so make one per test.
    pub(crate) async fn client(&self, user: User) -> Client {
        Self::client_from(&self.kubeconfig(user)).await
    }

    /// The same, from any kubeconfig file.
    pub(crate) async fn client_from(kubeconfig: &Path) -> Client {
        // Another test may have been first; whoever was, it is ring.
        rustls::crypto::ring::default_provider().install_default().ok();
        let kubeconfig = or_fail(Kubeconfig::read_from(kubeconfig).map_err(Into::into));
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = or_fail(config.map_err(Into::into));
        // A test sees the first answer, a 503 too.
        config.default_retry = false;
        or_fail(Client::try_from(config).map_err(Into::into))
    }

    /// The kubeconfig file of that user.
    pub(crate) fn kubeconfig(&self, user: User) -> PathBuf {
        self.parts.kubectl.kubeconfig(user)
    }

    /// Runs kubectl as that user.
    pub(crate) async fn kubectl(&self, user: User, args: &[&str]) -> Ran {
        self.kubectl_with(user, args, "").await
    }

    /// Runs kubectl as that user with `input` on its standard input (`-f -`).
    pub(crate) async fn kubectl_with(&self, user: User, args: &[&str], input: &str) -> Ran {
        or_fail(self.parts.kubectl.run(user, args, input).await)
    }

    /// Applies the CRDs in a file or folder and waits until they are served. The garbage
    /// collector looks for new kinds every 30 s only; a test that waits for it either has
    /// that patience or calls [`Self::restart_controller_manager`].
    pub(crate) async fn install_crds(&self, path: &Path) {
        or_fail(self.parts.kubectl.install_crds(path).await);
    }

    /// Binds a cluster role to a user, in all namespaces.
    pub(crate) async fn bind(&self, user: User, cluster_role: &str) {
        let (name, role) =
            (format!("{}-{cluster_role}", user.file()), format!("--clusterrole={cluster_role}"));
        let who = format!("--user={}", user.name());
        self.kubectl(User::Admin, &["create", "clusterrolebinding", &name, &role, &who]).await.ok();
    }

    /// The API server's URL.
    pub(crate) fn url(&self) -> String {
        self.parts.url()
    }

    /// A binary of the control plane, by name.
    pub(crate) fn binary(&self, name: &str) -> PathBuf {
        self.parts.binaries.join(name)
    }

    /// The folder with all that belongs to this control plane; gone when it has ended.
    pub(crate) fn folder(&self) -> &Path {
        self.run.path()
    }

    /// Where the logs are after a failure.
    pub(crate) fn kept_logs(&self) -> PathBuf {
        self.run.kept_logs()
    }

    /// The audit log: one JSON event per line for each write, with the webhooks' annotations.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.run.join("logs/audit.log")
    }

    /// The process ids of etcd, the API server and the controller manager.
    pub(crate) fn pids(&self) -> [u32; 3] {
        [&self.etcd, &self.apiserver, &self.controller_manager].map(|process| lock(process).pid())
    }

    /// Stops etcd where it stands (SIGSTOP): the API server answers no request that needs
    /// it until [`Self::resume_etcd`].
    pub(crate) fn pause_etcd(&self) {
        or_fail(lock(&self.etcd).signal("STOP"));
    }

    /// Lets etcd go on.
    pub(crate) fn resume_etcd(&self) {
        or_fail(lock(&self.etcd).signal("CONT"));
    }

    /// Kills the API server, as a crash would, and starts it again on the same port.
    pub(crate) async fn restart_apiserver(&self) {
        self.stop_apiserver();
        self.start_apiserver().await;
    }

    /// Kills the API server, as a crash would. Nobody answers on its port until
    /// [`Self::start_apiserver`].
    pub(crate) fn stop_apiserver(&self) {
        lock(&self.apiserver).kill();
    }

    /// Starts the API server again, on the same port.
    pub(crate) async fn start_apiserver(&self) {
        let started = or_fail(self.parts.start_apiserver(&self.run).await);
        *lock(&self.apiserver) = started;
    }

    /// Kills the controller manager and starts it again; it then knows all kinds there are.
    pub(crate) async fn restart_controller_manager(&self) {
        lock(&self.controller_manager).kill();
        let started = or_fail(self.parts.start_controller_manager(&self.run).await);
        *lock(&self.controller_manager) = started;
    }

    /// What the garbage collector knows.
    pub(crate) fn collector(&self) -> Collector {
        self.parts.collector()
    }
}

/// What stops the harness itself fails the test that needs it, with what to do about it.
#[expect(clippy::panic, reason = "a test that cannot run fails, it is never skipped")]
fn or_fail<T>(outcome: Result<T>) -> T {
    outcome.unwrap_or_else(|error| panic!("{error:#}"))
}

fn lock(process: &Mutex<Process>) -> MutexGuard<'_, Process> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}
