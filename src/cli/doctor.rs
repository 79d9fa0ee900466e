//! `doctor`: is the guard installed as this binary expects, and can it do its work?

use std::io::Write;

use jiff::Timestamp;
use kube::Client;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::{
    Failure, Outcome,
    args::{ControllerArg, DoctorArgs, Output},
    cluster, deadline, text,
};
use crate::inventory::cluster::root;

mod access;
mod admin;
mod certificates;
mod kinds;
mod managed;
mod webhooks;

pub(super) async fn run(args: &DoctorArgs, out: &mut impl Write) -> Result<Outcome, Failure> {
    let cluster = Api { client: cluster::client(&args.cluster, "").await?, deadline: deadline() };
    // Whether the API server answers at all decides whether the rest means anything.
    cluster.get("/version").await.map_err(|error| {
        Failure::Unverified(format!("the API server cannot be asked: {}", error.text))
    })?;
    let mut checks = Vec::new();
    webhooks::check(&cluster, &mut checks).await;
    let managed = managed::find(&cluster).await;
    certificates::check(&cluster, managed.is_some(), Timestamp::now(), &mut checks).await;
    if let Some(managed) = managed {
        managed.check(&cluster, &args.certs.certs_secret, Timestamp::now(), &mut checks).await;
    }
    let acts = args.controller == ControllerArg::Act;
    access::check(&cluster, acts, &mut checks).await;
    kinds::check(&cluster, &mut checks).await;
    if let Some(address) = args.admin {
        admin::check(address, &mut checks).await;
    }
    let worst = checks.iter().map(|check| check.state).max().unwrap_or(State::Ok);
    match args.output {
        Output::Text => write_text(&checks, out)?,
        Output::Json => {
            let report = Report { healthy: worst < State::Problem, checks: &checks };
            serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(if worst < State::Problem { Outcome::Good } else { Outcome::Found })
}

/// The stable JSON shape.
#[derive(Serialize)]
struct Report<'a> {
    healthy: bool,
    checks: &'a [Check],
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    state: State,
    /// What was looked at.
    about: String,
    /// What was seen.
    found: String,
    /// What to do; empty when there is nothing to do.
    fix: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Could not be told from here.
    Unknown,
    Warning,
    Problem,
}

impl State {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "?",
            Self::Warning => "WARN",
            Self::Problem => "FAIL",
        }
    }
}

impl Check {
    fn new(state: State, about: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { state, about: about.into(), found: found.into(), fix: fix.into() }
    }

    fn ok(about: &str, found: impl Into<String>) -> Self {
        Self::new(State::Ok, about, found, "")
    }

    fn unknown(about: &str, why: &Refused) -> Self {
        // The guard's own account may not, and must not, read everything that is looked at here.
        let fix = if why.code == 403 { "run doctor also as a user who may read this" } else { "" };
        Self::new(State::Unknown, about, format!("cannot be looked at: {}", why.text), fix)
    }
}

fn write_text(checks: &[Check], out: &mut impl Write) -> Result<(), Failure> {
    writeln!(out, "{}\n", headline(checks))?;
    let mut table = text::Table::default();
    for check in checks {
        table.row([check.state.word(), &check.about, &check.found]);
    }
    table.write(out, 0)?;
    let fixes = fixes(checks);
    if !fixes.is_empty() {
        writeln!(out, "\nwhat to do")?;
    }
    for (fix, abouts) in fixes {
        let about = match abouts.as_slice() {
            [first, _, rest @ ..] if !rest.is_empty() => {
                format!("{first} and {} more", rest.len() + 1)
            }
            few => few.join(", "),
        };
        writeln!(out, "  {}: {}", text::one_line(&about), text::one_line(fix))?;
    }
    Ok(())
}

/// What whoever reads one line only must know.
fn headline(checks: &[Check]) -> String {
    let counts: Vec<_> = [
        (State::Problem, "problem", "problems"),
        (State::Warning, "warning", "warnings"),
        (State::Unknown, "not looked at", "not looked at"),
    ]
    .into_iter()
    .filter_map(|(state, one, many)| {
        let count = checks.iter().filter(|check| check.state == state).count();
        (count > 0).then(|| format!("{count} {}", if count == 1 { one } else { many }))
    })
    .collect();
    let found = if counts.is_empty() { "all fine".into() } else { counts.join(", ") };
    format!("{} checks: {found}", checks.len())
}

/// What to do, the worst first, each once with all that it mends.
fn fixes(checks: &[Check]) -> Vec<(&str, Vec<&str>)> {
    let mut worst_first: Vec<_> = checks.iter().filter(|check| !check.fix.is_empty()).collect();
    worst_first.sort_by_key(|check| std::cmp::Reverse(check.state));
    let mut fixes: Vec<(&str, Vec<&str>)> = Vec::new();
    for check in worst_first {
        match fixes.iter_mut().find(|(fix, _)| *fix == check.fix) {
            Some((_, abouts)) => abouts.push(&check.about),
            None => fixes.push((&check.fix, vec![&check.about])),
        }
    }
    fixes
}

/// Reads of the API server, each within one deadline for all.
struct Api {
    client: Client,
    deadline: Instant,
}

/// Why something could not be read.
#[derive(Debug)]
struct Refused {
    /// The HTTP status; 0 when there was no answer.
    code: u16,
    text: String,
}

impl Api {
    async fn get(&self, url: &str) -> Result<Value, Refused> {
        self.send(http::Request::get(url).body(Vec::new())).await
    }

    async fn post(&self, url: &str, body: &Value) -> Result<Value, Refused> {
        let request = http::Request::post(url).header("Content-Type", "application/json");
        self.send(request.body(body.to_string().into_bytes())).await
    }

    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, http::Error>,
    ) -> Result<Value, Refused> {
        let failed = |text: String| Refused { code: 0, text };
        let request = request.map_err(|error| failed(error.to_string()))?;
        match timeout_at(self.deadline, self.client.request(request)).await {
            Err(_) => Err(failed("no answer in time".into())),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) => Err(Refused {
                code: status.code,
                text: format!("{} {}", status.code, status.message),
            }),
            Ok(Err(error)) => Err(failed(root(&error))),
        }
    }
}
