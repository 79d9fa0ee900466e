//! The commands of a report, pasted into a shell as a person would.

use std::{ffi::OsString, path::Path, process::Output};

use tokio::process::Command;

use crate::support::{ControlPlane, PATIENCE, User};

/// Runs all commands that stand under "by hand" in a report.
pub(super) async fn by_hand(plane: &ControlPlane, report: &str) {
    let mut told = false;
    let commands = report.lines().filter(|line| {
        if !line.starts_with("    ") {
            told = line.starts_with("  by hand, ");
        }
        told && line.starts_with("    kubectl ")
    });
    let commands: Vec<_> = commands.map(str::trim).collect();
    assert!(!commands.is_empty(), "nothing to do by hand: {report}");
    for command in commands {
        let Output { status, stderr, .. } = in_a_shell(plane, command).await;
        assert!(status.success(), "{command}: {}", String::from_utf8_lossy(&stderr));
    }
}

async fn in_a_shell(plane: &ControlPlane, command: &str) -> Output {
    let kubectl = plane.binary("kubectl");
    let running = Command::new("sh")
        .args(["-c", command])
        .env("PATH", path_with(kubectl.parent().unwrap()))
        .env("KUBECONFIG", plane.kubeconfig(User::Admin))
        .env("HOME", plane.folder())
        .kill_on_drop(true)
        .output();
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap()
}

fn path_with(folder: &Path) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap()
}
