//! A child process that cannot outlive this one, however this one ends.
//!
//! Between the two stands a small shell whose standard input is a pipe from here. The
//! kernel closes the pipe when this process ends, by return, panic, `exit` or SIGKILL, and
//! the shell then kills the child. Rust alone cannot promise that: a static is never
//! dropped, and a killed process drops nothing.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

/// `$1` is a file that exists while the child lives, `$2` the log, the rest the command.
/// Once the child has ended, its number may be another's: then nothing is killed any more.
const SUPERVISE: &str = r#"
alive=$1 log=$2
shift 2
: > "$alive"
exec 3<&0 < /dev/null
"$@" 3<&- >> "$log" 2>&1 &
child=$!
echo "$child"
{ cat <&3; kill -KILL "$child"; } > /dev/null &
watcher=$!
exec 3<&-
wait "$child"
status=$?
kill "$watcher"
rm -f "$alive"
exit "$status"
"#;

/// A running child. Dropping it kills the child and waits until it is gone.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    pid: u32,
    log: PathBuf,
    supervisor: Child,
}

impl Process {
    /// Starts `program`; what it prints is added to `name`.log in `logs`. While it lives,
    /// a file is in `alive`.
    pub(crate) fn start(
        name: &str,
        program: &Path,
        args: &[String],
        logs: &Path,
        alive: &Path,
    ) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISE, "supervise"])
            .args([&alive.join(name), &log])
            .arg(program)
            .args(args)
            // Signals to the group of the tests (Ctrl-C) end the tests, which closes the pipe.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("no shell to start {name} with"))?;
        let mut pid = String::new();
        if let Some(stdout) = supervisor.stdout.take() {
            BufReader::new(stdout).read_line(&mut pid)?;
        }
        let pid = pid
            .trim()
            .parse()
            .with_context(|| format!("the shell did not start {name}: it said {pid:?}"))?;
        Ok(Self { name: name.to_owned(), pid, log, supervisor })
    }

    /// The child's own process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Fails if the child has ended, with the end of its log.
    pub(crate) fn check(&mut self) -> Result<()> {
        let ended = self.supervisor.try_wait()?;
        ensure!(
            ended.is_none(),
            "{} ended by itself. The end of {}:\n{}",
            self.name,
            self.log.display(),
            self.log_tail()
        );
        Ok(())
    }

    /// Kills the child, as a crash would, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        drop(self.supervisor.stdin.take()); // the word to kill it
        self.supervisor.wait().ok();
    }

    /// The last lines of the log.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(15)..).unwrap_or_default().join("\n")
    }

    /// Sends a signal, named as `kill` names it (`STOP`, `CONT`, ...).
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        // The shell's own `kill`: a program of that name is not on every machine.
        let sent = Command::new("sh")
            .args(["-c", r#"kill -"$1" "$2""#, "signal", name])
            .arg(self.pid.to_string())
            .stderr(Stdio::null())
            .status()?;
        ensure!(sent.success(), "{} ({}) is not there to get SIG{name}", self.name, self.pid);
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
