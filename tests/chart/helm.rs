//! The program `helm`, with a home of its own.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::OnceLock,
};

use tempfile::TempDir;
use tokio::process::Command;

use super::{NAMESPACE, objects::Objects};
use crate::support::{ControlPlane, PATIENCE, User, built};

/// The folder of the chart.
pub(crate) fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/chart")
}

/// Helm for one cluster, or for none.
pub(crate) struct Helm {
    home: TempDir,
    kubeconfig: Option<PathBuf>,
}

/// What a finished helm left behind.
pub(crate) struct Ran {
    command: String,
    success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The standard output; panics with the standard error if helm failed.
    pub(crate) fn ok(self) -> String {
        assert!(self.success, "`{}` failed: {}{}", self.command, self.stdout, self.stderr);
        self.stdout
    }

    /// The standard error of a helm that had to fail; panics if it did not.
    pub(crate) fn refused(self) -> String {
        assert!(!self.success, "`{}` was not refused: {}", self.command, self.stdout);
        self.stderr
    }
}

impl Helm {
    /// Helm without a cluster.
    pub(crate) fn alone() -> Self {
        Self { home: TempDir::new().unwrap(), kubeconfig: None }
    }

    /// Helm for a control plane, as its administrator.
    pub(crate) fn of(plane: &ControlPlane) -> Self {
        Self { kubeconfig: Some(plane.kubeconfig(User::Admin)), ..Self::alone() }
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        let mut helm = Command::new(program());
        // Neither a cluster nor settings of whoever runs the tests.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("HELM_") || name.starts_with("KUBE") {
                helm.env_remove(name);
            }
        }
        helm.args(args).env("HOME", self.home.path());
        let none = self.home.path().join("no-kubeconfig");
        helm.env("KUBECONFIG", self.kubeconfig.as_ref().unwrap_or(&none));
        helm.stdin(Stdio::null()).kill_on_drop(true);
        let command = format!("helm {}", args.join(" "));
        let output = tokio::time::timeout(PATIENCE, helm.output()).await;
        let output = output.unwrap_or_else(|_| panic!("`{command}` did not end")).unwrap();
        Ran {
            command,
            success: output.status.success(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Renders the chart with these further arguments. The hooks are left out.
    pub(crate) async fn template(&self, args: &[&str]) -> Objects {
        let args = [&["--no-hooks"], args].concat();
        Objects::parse(&self.render(&args).await.ok())
    }

    /// The hooks alone.
    pub(crate) async fn hooks(&self, args: &[&str]) -> Objects {
        let mut objects = Objects::parse(&self.render(args).await.ok());
        objects.retain(|object| !object["metadata"]["annotations"]["helm.sh/hook"].is_null());
        objects
    }

    pub(crate) async fn render(&self, args: &[&str]) -> Ran {
        let chart = chart();
        let render = ["template", "guard", chart.to_str().unwrap(), "--namespace", NAMESPACE];
        self.run(&[&render, args].concat()).await
    }
}

/// `$HELM`, or the one that `build.sh` makes of the pinned module.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match std::env::var_os("HELM") {
        Some(given) => given.into(),
        None => built("helm").unwrap_or_else(|error| panic!("{error:#}")).join("helm"),
    })
}
