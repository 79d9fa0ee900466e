//! Runs the program to its end and shows what it did as one text.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// The repository: commands run here, so that paths in their output are the same everywhere.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn binary() -> PathBuf {
    env!("CARGO_BIN_EXE_metal3-guard").into()
}

/// Names of the settings that the program reads from its environment.
pub(crate) fn settings() -> impl Iterator<Item = String> {
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("METAL3_GUARD_"))
}

/// The program with these arguments, in the repository and without settings.
pub(crate) fn command(args: &[&str]) -> assert_cmd::Command {
    let mut command = assert_cmd::Command::new(binary());
    for name in settings() {
        command.env_remove(name);
    }
    // No cluster either, whatever this machine has.
    command.env("HOME", "/no/such/home").env_remove("KUBECONFIG");
    command.env_remove("KUBERNETES_SERVICE_HOST");
    // Never meant to strike.
    command.args(args).current_dir(root()).timeout(Duration::from_mins(1));
    command
}

/// What a run did.
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    line: String,
}

pub(crate) fn run(args: &[&str]) -> Done {
    finish(command(args), args)
}

pub(crate) fn run_with_stdin(args: &[&str], stdin: impl Into<Vec<u8>>) -> Done {
    let mut command = command(args);
    command.write_stdin(stdin);
    finish(command, args)
}

pub(crate) fn finish(mut command: assert_cmd::Command, args: &[&str]) -> Done {
    let output = command.output().unwrap();
    Done {
        code: output.status.code().expect("ended by a signal"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        line: args.join(" "),
    }
}

impl Done {
    /// Everything as one text, without what time changes.
    pub(crate) fn shown(&self) -> String {
        let mut text = format!("$ metal3-guard {}\n{}", self.line, ageless(&self.stdout));
        if !self.stderr.is_empty() {
            let _ = write!(text, "--- standard error\n{}", self.stderr);
        }
        let _ = write!(text, "--- exit code {}", self.code);
        text
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

/// The text with `(AGE)` for each `(28 d)`, without the padding that depends on it, and with
/// `TIME` for the time of each step in JSON.
pub(crate) fn ageless(text: &str) -> String {
    let lines = text.lines().map(|line| {
        for key in ["\"due\": \"", "\"nextLook\": \""] {
            if let Some((start, rest)) = line.split_once(key) {
                let comma = if rest.ends_with(',') { "," } else { "" };
                return format!("{start}{key}TIME\"{comma}\n");
            }
        }
        let mut parts = line.split(" (");
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            match part.split_once(')') {
                Some((inside, rest)) if is_age(inside) => {
                    let gap = if rest.starts_with("  ") { "  " } else { "" };
                    let rest = if gap.is_empty() { rest } else { rest.trim_start() };
                    let _ = write!(shown, " (AGE){gap}{rest}");
                }
                _ => {
                    let _ = write!(shown, " ({part}");
                }
            }
        }
        shown + "\n"
    });
    lines.collect()
}

fn is_age(text: &str) -> bool {
    text.split_once(' ').is_some_and(|(number, unit)| {
        number.parse::<u64>().is_ok() && ["s", "min", "h", "d"].contains(&unit)
    })
}

/// Compares a run with the file `snapshots/NAME.snap`.
pub(crate) fn check(name: &str, done: &Done) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, done.shown()));
}
