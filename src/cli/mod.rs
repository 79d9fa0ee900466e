//! The command line: arguments in, text or JSON out, an exit code.
//!
//! Exit codes: 0 allowed or healthy, 1 denied or findings, 2 usage, 3 could not verify. Data goes
//! to standard output, logs and errors to standard error.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use clap::{CommandFactory as _, Parser as _};
use tokio::{runtime, time::Instant};

use crate::{
    core::verdict::{Answer, Unverified},
    inventory::{Answering, Inventory, cluster::Cluster, demo, snapshot::Snapshot},
};

mod args;
mod can_delete;
mod certs;
mod cluster;
mod diagnose;
mod doctor;
mod log;
mod manifests;
mod review;
mod serve;
mod text;
mod unstick;

use args::{Cli, Command, StateArgs};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Allowed, healthy, done.
    Good,
    /// Denied, or something was found.
    Found,
}

/// Why a command could not do its work.
#[derive(Debug)]
enum Failure {
    /// It was asked for something that cannot be.
    Usage(String),
    /// The facts could not be had, or the work was cut short.
    Unverified(String),
    /// The reader of standard output is gone, which is no failure of ours.
    ClosedOutput,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedOutput,
            _ => Self::Unverified(format!("cannot write the output: {error}")),
        }
    }
}

impl From<Unverified> for Failure {
    fn from(unverified: Unverified) -> Self {
        Self::Unverified(unverified.why)
    }
}

/// Runs the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match execute(cli.command) {
        Ok(Outcome::Good) | Err(Failure::ClosedOutput) => ExitCode::SUCCESS,
        Ok(Outcome::Found) => ExitCode::from(1),
        Err(Failure::Usage(text)) => complain(&text, 2),
        Err(Failure::Unverified(text)) => complain(&text, 3),
    }
}

fn execute(command: Command) -> Result<Outcome, Failure> {
    let mut out = io::stdout().lock();
    match command {
        Command::Serve(args) => {
            drop(out);
            runtime(true)?.block_on(serve::run(*args))
        }
        Command::Review(args) => runtime(false)?.block_on(review::run(&args, &mut out)),
        Command::CanDelete(args) => runtime(false)?.block_on(can_delete::run(&args, &mut out)),
        Command::Diagnose(args) => runtime(false)?.block_on(diagnose::run(&args, &mut out)),
        Command::Unstick(args) => runtime(false)?.block_on(unstick::run(&args, &mut out)),
        Command::Certs(args) => certs::run(&args, &mut out),
        Command::Doctor(args) => runtime(false)?.block_on(doctor::run(&args, &mut out)),
        Command::Manifests(args) => manifests::run(&args, &mut out),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "metal3-guard", &mut script);
            out.write_all(&script)?;
            Ok(Outcome::Good)
        }
    }
}

fn runtime(threads: bool) -> Result<runtime::Runtime, Failure> {
    let mut builder = if threads {
        runtime::Builder::new_multi_thread()
    } else {
        runtime::Builder::new_current_thread()
    };
    let built = builder.enable_all().build();
    built.map_err(|error| Failure::Unverified(format!("cannot start the runtime: {error}")))
}

fn complain(text: &str, code: u8) -> ExitCode {
    drop(writeln!(io::stderr(), "error: {text}"));
    ExitCode::from(code)
}

/// Where the facts of a command come from.
#[derive(Clone, Debug)]
enum Source {
    /// Files, or the sample state.
    Snapshot(Arc<Snapshot>),
    /// A live cluster.
    Cluster(Arc<Cluster>),
}

impl Source {
    fn inventory(&self) -> Arc<dyn Inventory> {
        match self {
            Self::Snapshot(snapshot) => Arc::clone(snapshot) as Arc<dyn Inventory>,
            Self::Cluster(cluster) => Arc::clone(cluster) as Arc<dyn Inventory>,
        }
    }
}

/// The facts for a command that asks once.
async fn load(args: &StateArgs) -> Result<Arc<dyn Inventory>, Failure> {
    if let Some(snapshot) = snapshot(args)? {
        return Ok(Arc::new(snapshot));
    }
    let cluster = Cluster::unwatched(cluster::client(&args.cluster, cluster::OTHER_SOURCES).await?);
    cluster.discover(deadline()).await?;
    Ok(Arc::new(cluster))
}

/// The state in files, when one was asked for. Blocks for as long as reading takes.
fn snapshot(args: &StateArgs) -> Result<Option<Snapshot>, Failure> {
    one_source(args)?;
    let loaded = match (&args.state, args.demo) {
        (Some(path), _) => Snapshot::load(path),
        (None, true) => demo::snapshot(),
        (None, false) => return Ok(None),
    };
    loaded.map(Some).map_err(|error| Failure::Unverified(error.to_string()))
}

/// Refuses two sources of facts: the verdicts must not depend on which of them wins.
fn one_source(args: &StateArgs) -> Result<(), Failure> {
    let named: Vec<_> = [
        ("--state", args.state.is_some()),
        ("--demo", args.demo),
        ("--kubeconfig", args.cluster.kubeconfig.is_some()),
        ("--context", args.cluster.context.is_some()),
    ]
    .into_iter()
    .filter_map(|(flag, given)| given.then_some(flag))
    .collect();
    match &*named {
        [] | [_] | ["--kubeconfig", "--context"] => Ok(()),
        _ => Err(Failure::Usage(format!(
            "{} exclude each other; use one, and look for METAL3_GUARD_ variables in the \
             environment",
            named.join(" and ")
        ))),
    }
}

/// The flags for the same state in a command to copy, each with a space before it.
fn flags(args: &StateArgs) -> String {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|it| it.display().to_string());
    let mut flags = String::from(if args.demo { " --demo" } else { "" });
    for (flag, value) in [
        (" --state ", path(&args.state)),
        (" --kubeconfig ", path(&args.cluster.kubeconfig)),
        (" --context ", args.cluster.context.clone()),
    ] {
        if let Some(value) = value {
            flags.push_str(flag);
            flags.push_str(&text::shell_word(&value));
        }
    }
    flags
}

/// The facts, or the reason why there are none.
async fn verified<F: Send>(answering: Answering<'_, F>) -> Result<F, Failure> {
    match answering.await {
        Answer::Verified(facts) => Ok(facts),
        Answer::Unverified(unverified) => Err(unverified.into()),
    }
}

/// When a command that a person waits for gives up.
fn deadline() -> Instant {
    Instant::now() + std::time::Duration::from_secs(30)
}

/// A template that must be there, with what a command says when it is not.
fn missing(state: &StateArgs, names: &[Box<str>], namespace: &str, name: &str) -> Failure {
    let near: Vec<_> = names.iter().take(5).map(|it| &**it).collect();
    let hint = if near.is_empty() {
        let flags = flags(state);
        format!("namespace {namespace} has none; look with 'metal3-guard diagnose -A{flags}'")
    } else {
        format!("namespace {namespace} has: {}", near.join(", "))
    };
    Failure::Usage(format!("there is no Metal3DataTemplate {namespace}/{name}; {hint}"))
}

/// The current contents of one namespace.
async fn contents(
    inventory: &dyn Inventory,
    namespace: &str,
) -> Result<Arc<crate::core::contents::Contents>, Failure> {
    verified(inventory.contents(namespace, deadline())).await
}
