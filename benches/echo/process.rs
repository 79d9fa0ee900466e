//! The servers as processes of their own, so that the system counts the CPU time of each.

use std::{
    env,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// A running server; it ends when this is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Server {
    /// The guard, logging every review to a file.
    pub(crate) fn guard(state: &Path, cert: &Path, key: &Path, log: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_metal3-guard"))
            // No settings from outside.
            .env_clear()
            .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .arg("--state")
            .arg(state)
            .arg("--tls-cert")
            .arg(cert)
            .arg("--tls-key")
            .arg(key)
            .stdin(Stdio::null())
            .stderr(File::create(log).expect("a log file"))
            .spawn()
            .expect("the guard's binary");
        // From here on the process ends with `server`, also when it says nothing.
        let mut server = Self { address: SocketAddr::from(([0; 4], 0)), child };
        for _ in 0..600 {
            let text = fs::read_to_string(log).expect("the log");
            if let Some(address) = listening(&text) {
                server.address = address;
                return server;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("the guard does not listen after 30 s: {:?}", fs::read_to_string(log));
    }

    /// This program as the echo.
    pub(crate) fn echo(mode: &str, cert: &Path, key: &Path) -> Self {
        let mut child = Command::new(env::current_exe().expect("the path of this program"))
            .arg(mode)
            .args([cert, key])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let out = child.stdout.take().expect("its output");
        let mut server = Self { address: SocketAddr::from(([0; 4], 0)), child };
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("a line");
        server.address = line.trim().parse().expect("the address");
        server
    }

    /// User and system time so far.
    pub(crate) fn cpu(&self) -> Duration {
        // Linux counts these in hundredths of a second on every architecture.
        const TICK: Duration = Duration::from_millis(10);
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))
            .expect("Linux, and a server that runs");
        // The second field is the name, which may hold anything but ends with the last `)`.
        let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
        let ticks = |field: usize| -> u32 {
            fields.split(' ').nth(field).and_then(|it| it.parse().ok()).expect("a number")
        };
        // utime and stime are fields 14 and 15 of proc(5), 12 and 13 from here.
        TICK * (ticks(11) + ticks(12))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only when the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address of the webhooks in the guard's log.
fn listening(log: &str) -> Option<SocketAddr> {
    let line = log.lines().find(|line| line.contains(r#"what="webhooks""#))?;
    line.split_once("address=")?.1.split(' ').next()?.parse().ok()
}
