//! The folder of one control plane: data and keys for as long as it runs, and logs that
//! stay when a test failed.

use std::{
    fs,
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, Once, PoisonError},
};

use anyhow::{Context as _, Result};

/// Waits for the end of the tests (see `process`), then for that of the children, then
/// clears the folder. A file in `tests` at that time means that the tests were killed in
/// the middle: their logs stay too.
const CLEAR: &str = r#"
cat > /dev/null
cd "$1" || exit
rounds=0
while [ "$rounds" -lt 100 ] && ls alive/* > /dev/null 2>&1; do
	sleep 0.1
	rounds=$((rounds + 1))
done
if [ -e failed ] || ls tests/* > /dev/null 2>&1; then
	mkdir ../"${1##*/}.logs" && mv logs/* failed tests ../"${1##*/}.logs"
fi
cd / && rm -rf "$1"
"#;

/// The folders of the control planes of this process that a failure concerns.
static RUNNING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Where one control plane keeps everything. Dropping it clears it; so does the end of the
/// process, in whatever way it ends.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    janitor: Child,
}

impl RunDir {
    /// Makes the folder, below Cargo's target folder.
    pub(crate) fn new() -> Result<Self> {
        keep_logs_on_panic();
        let path = tempfile::Builder::new()
            .prefix("controlplane-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .context("no folder for the control plane")?
            .keep();
        for folder in ["alive", "data", "kubeconfigs", "logs", "pki", "tests"] {
            fs::create_dir(path.join(folder))?;
        }
        let janitor = Command::new("sh")
            .args(["-c", CLEAR, "clear"])
            .arg(&path)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("no shell to clear up with")?;
        lock(&RUNNING).push(path.clone());
        Ok(Self { path, janitor })
    }

    /// A path inside.
    pub(crate) fn join(&self, inside: impl AsRef<Path>) -> PathBuf {
        self.path.join(inside)
    }

    /// The folder itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes a failure: the logs will stay.
    pub(crate) fn fail(&self, why: &str) {
        note_failure(&self.path, why);
    }

    /// Where the logs of a failed run are found after its end.
    pub(crate) fn kept_logs(&self) -> PathBuf {
        kept_logs(&self.path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        lock(&RUNNING).retain(|path| *path != self.path);
        if !std::thread::panicking() {
            // Stopped on purpose: a test that goes on without it was not killed.
            fs::remove_dir_all(self.path.join("tests")).ok();
        }
        drop(self.janitor.stdin.take()); // the word to begin
        self.janitor.wait().ok();
    }
}

fn note_failure(run: &Path, why: &str) {
    let note = fs::OpenOptions::new().create(true).append(true).open(run.join("failed"));
    note.and_then(|mut note| writeln!(note, "{why}")).ok();
}

fn kept_logs(run: &Path) -> PathBuf {
    run.with_extension("logs")
}

/// Has every panic mark the running control planes as failed, and say where the logs are.
fn keep_logs_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            for run in lock(&RUNNING).iter() {
                note_failure(run, &panic.to_string());
                report(&format!("logs of the control plane: {}", kept_logs(run).display()));
            }
        }));
    });
}

#[expect(clippy::print_stderr, reason = "belongs to the captured output of the failed test")]
fn report(line: &str) {
    eprintln!("{line}");
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
