//! A `serve` process on free loopback ports, killed when dropped.

use std::{
    io::{BufRead as _, BufReader, Read},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::support::{binary, root, run, settings};

/// How long anything may take that is meant to happen. Never meant to strike.
const PATIENCE: Duration = Duration::from_secs(30);

/// The program serving.
pub(crate) struct Guard {
    child: Child,
    log: Receiver<String>,
    out: Receiver<String>,
    /// All log lines that were looked at.
    seen: Vec<String>,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Guard {
    /// Starts `serve` with these arguments and settings, on free ports and with a JSON log, and
    /// waits until it listens.
    pub(crate) fn start(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary());
        for name in settings() {
            command.env_remove(name);
        }
        command
            .envs([
                ("METAL3_GUARD_LISTEN", "127.0.0.1:0"),
                ("METAL3_GUARD_ADMIN_LISTEN", "127.0.0.1:0"),
                ("METAL3_GUARD_LOG", "json"),
            ])
            .envs(environment.iter().copied())
            .arg("serve")
            .args(args)
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = lines(child.stdout.take().unwrap());
        let log = lines(child.stderr.take().unwrap());
        let nowhere = SocketAddr::from(([0; 4], 0));
        let mut guard =
            Self { child, log, out, seen: Vec::new(), address: nowhere, admin: nowhere };
        guard.address = guard.listening("webhooks");
        guard.admin = guard.listening("admin");
        guard
    }

    fn listening(&mut self, what: &str) -> SocketAddr {
        let line = self.until(|line| line["message"] == "listening" && line["what"] == what);
        line["address"].as_str().unwrap().parse().unwrap()
    }

    /// The next log line that is wanted.
    pub(crate) fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    let Ok(line) = serde_json::from_str(&line) else { continue };
                    if wanted(&line) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("no such line in {:#?}", self.seen),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("ended with {:?}: {:#?}", self.child.wait(), self.seen)
                }
            }
        }
    }

    pub(crate) fn until_message(&mut self, message: &str) -> Value {
        self.until(|line| line["message"].as_str().is_some_and(|it| it.starts_with(message)))
    }

    /// Lines of standard output up to one that begins like this.
    pub(crate) fn printed_until(&mut self, start: &str) -> Vec<String> {
        let mut printed = Vec::new();
        while printed.last().is_none_or(|line: &String| !line.starts_with(start)) {
            let line = self.out.recv_timeout(PATIENCE);
            printed.push(line.unwrap_or_else(|error| panic!("{error} after {printed:#?}")));
        }
        printed
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// All log lines so far that were looked at.
    pub(crate) fn seen(&self) -> &[String] {
        &self.seen
    }

    /// Waits for the end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        // The log ends with the process; then there is nothing left to wait for.
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap(),
                Err(RecvTimeoutError::Timeout) => panic!("still running: {:#?}", self.seen),
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Gone already after `end`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Makes `ca.crt`, `tls.crt` and `tls.key` for loopback.
pub(crate) fn certificates(dir: &Path) -> [String; 3] {
    let out = dir.to_str().unwrap();
    let done = run(&["certs", "--out", out, "--dns", "localhost", "--ip", "127.0.0.1"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    ["ca.crt", "tls.crt", "tls.key"].map(|name| format!("{out}/{name}"))
}

/// Runs a line as a shell does and gives what it prints.
pub(crate) fn bash(line: &str) -> String {
    let output = Command::new("bash")
        .args(["-c", line])
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .expect("this test needs bash");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(output.status.success(), "{line}\n{}", text(&output.stderr));
    text(&output.stdout)
}

/// POSTs a review of the corpus with curl and gives the `response`.
pub(crate) fn post(guard: &Guard, ca: &str, path: &str, case: &str) -> Value {
    let answer = bash(&format!(
        "curl -sS --max-time 20 --cacert '{ca}' -H 'Content-Type: application/json' \
         --data-binary @tests/data/reviews/{case}/review.json 'https://{}{path}?timeout=5s'",
        guard.address
    ));
    let mut answer: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}"));
    answer["response"].take()
}
