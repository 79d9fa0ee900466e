//! Where the binaries that the tests run come from: `tests/controlplane/build.sh`.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail};

/// The folder with etcd, kube-apiserver, kube-controller-manager and kubectl.
pub(crate) fn kube() -> Result<PathBuf> {
    built("kube").context("no control plane to test against")
}

/// The folder with a folder for each release of Cluster API: clusterctl, the core manager and
/// the CRDs that belong to them.
pub(crate) fn capi() -> Result<PathBuf> {
    built("capi").context("no Cluster API to test with")
}

/// The folder with a set of `build.sh`. Builds it when this machine has none yet, which takes
/// minutes and is said on stderr meanwhile.
pub(crate) fn built(set: &str) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/controlplane/build.sh");
    let mut build = Command::new("bash")
        .arg(&script)
        .arg(set)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} needs bash", script.display()))?;
    let said = build.stderr.take().map(|stderr| thread::spawn(|| pass_on(stderr)));
    let mut stdout = String::new();
    if let Some(mut pipe) = build.stdout.take() {
        pipe.read_to_string(&mut stdout)?;
    }
    let status = build.wait()?;
    let said = said.and_then(|thread| thread.join().ok()).unwrap_or_default();
    if !status.success() {
        bail!("`build.sh {set}` failed ({status}):\n{said}");
    }
    stdout.lines().last().map(PathBuf::from).ok_or_else(|| anyhow!("build.sh named no folder"))
}

/// Copies what is said to stderr at once, past the capture of the test harness, since
/// nobody waits in silence for minutes, and returns the last of it for an error.
fn pass_on(stderr: impl std::io::Read) -> String {
    let mut last = Vec::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        writeln!(std::io::stderr(), "{line}").ok();
        last.push(line);
        if last.len() > 20 {
            last.remove(0);
        }
    }
    last.join("\n")
}
