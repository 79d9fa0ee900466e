//! kubectl against the control plane, as any of its users, and how any such program is run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{io::AsyncWriteExt as _, process::Command};

use super::{PATIENCE, users::User};

/// What a finished program left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The command line, for messages.
    pub(crate) command: String,
    /// Whether it exited with 0.
    pub(crate) success: bool,
    /// Its standard output.
    pub(crate) stdout: String,
    /// Its standard error: warnings of webhooks and the words of a refusal are here.
    pub(crate) stderr: String,
}

impl Ran {
    /// The standard output; panics with the standard error if the program failed.
    pub(crate) fn ok(self) -> String {
        assert!(self.success, "`{}` failed: {}", self.command, self.stderr);
        self.stdout
    }

    /// The standard error of a program that had to fail; panics if it did not.
    pub(crate) fn refused(self) -> String {
        assert!(!self.success, "`{}` was not refused: {}", self.command, self.stdout);
        self.stderr
    }
}

/// Everything needed to call kubectl.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfigs: PathBuf,
    /// Stands in for the home folder: the caller's own settings must not matter.
    home: PathBuf,
}

impl Kubectl {
    /// `program` with the kubeconfig of each user in `kubeconfigs`.
    pub(crate) fn new(program: PathBuf, kubeconfigs: PathBuf, home: PathBuf) -> Self {
        Self { program, kubeconfigs, home }
    }

    /// The kubeconfig file of a user.
    pub(crate) fn kubeconfig(&self, user: User) -> PathBuf {
        self.kubeconfigs.join(user.file())
    }

    /// Runs it with `input` on its standard input, for at most [`PATIENCE`] and a bit, so
    /// that a `wait --timeout` of that length ends first and says what it waited for.
    pub(crate) async fn run(&self, user: User, args: &[&str], input: &str) -> Result<Ran> {
        let mut command = Command::new(&self.program);
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig(user))
            .arg("--cache-dir")
            .arg(self.home.join("cache"))
            .args(args)
            .env("HOME", &self.home)
            .env_remove("KUBECONFIG");
        let said = format!("kubectl {} (as {})", args.join(" "), user.name());
        run(command, said, input, PATIENCE + PATIENCE / 4).await
    }

    /// Applies the CRDs in a file, or in the YAML files of a folder, and waits until the
    /// API server serves them.
    pub(crate) async fn install_crds(&self, path: &Path) -> Result<()> {
        ensure!(fs::exists(path)?, "no CRDs at {}", path.display());
        let path = path.to_string_lossy();
        let timeout = format!("--timeout={}s", PATIENCE.as_secs());
        for args in [
            &["apply", "--server-side", "--force-conflicts", "-f", &path][..],
            &["wait", "--for=condition=Established", &timeout, "-f", &path][..],
        ] {
            let ran = self.run(User::Admin, args, "").await?;
            ensure!(ran.success, "`{}` failed: {}", ran.command, ran.stderr);
        }
        Ok(())
    }
}

/// Runs a program with `input` on its standard input, for so long at most. `said` is its command
/// line for messages.
pub(super) async fn run(
    mut command: Command,
    said: String,
    input: &str,
    patience: Duration,
) -> Result<Ran> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("`{said}` does not start"))?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // It may end without having read all of it: its own words say why.
            stdin.write_all(input.as_bytes()).await.ok();
        }
    };
    let both = async { tokio::join!(feed, child.wait_with_output()).1 };
    let output = tokio::time::timeout(patience, both)
        .await
        .with_context(|| format!("`{said}` did not end within {patience:?}"))??;
    Ok(Ran {
        command: said,
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
