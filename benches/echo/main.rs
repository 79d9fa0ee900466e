//! The guard beside a bare echo, under the same load in the same run.
//!
//! The guard is the real binary with its log on and a state of some thousand machines. The echo is
//! axum on the hyper, tokio and rustls that the guard links: it reads the whole body and answers as
//! many bytes as the guard does. Both get DELETE reviews over kept-alive TLS connections from one
//! client, in short turns, so that a busy machine slows both alike. What counts is the ratio.
//!
//! The client runs on the same cores and takes its share of them, a little less than the echo does.
//! So the requests per second differ less than the CPU time of the servers, which is printed too.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench prints its result and has nobody to hand an error to"
)]

use std::{env, fs, path::Path, time::Duration};

use jiff::Timestamp;
use metal3_guard::{admission::Hook, certificates};
use tokio::runtime;

#[path = "../sample/mod.rs"]
mod sample;

mod bare;
mod client;
mod process;

use client::{Client, Round};
use process::Server;

/// Bodies to send, and the part of the echo's requests per second that the guard must reach.
const LINES: [(usize, Option<f64>); 2] = [(8 * 1024, Some(0.8)), (1229, None)];
const MACHINES: usize = 3000;
/// As many as an API server keeps open to one webhook.
const CONNECTIONS: usize = 25;
/// The first argument of this program when it is the echo.
const AS_ECHO: &str = "bare-echo";

/// How long to load each server.
struct Plan {
    rounds: usize,
    round: Duration,
    warm_up: Duration,
}

fn main() {
    let args: Vec<_> = env::args().skip(1).collect();
    if let [AS_ECHO, cert, key] = *args.iter().map(String::as_str).collect::<Vec<_>>() {
        return bare::run(Path::new(cert), Path::new(key));
    }
    // Without `--bench` it is a test run of cargo: only whether it works.
    let plan = if args.iter().any(|arg| arg == "--bench") {
        // Of so many rounds, two runs differ by some hundredths.
        Plan { rounds: 90, round: Duration::from_millis(200), warm_up: Duration::from_millis(300) }
    } else {
        Plan { rounds: 1, round: Duration::from_millis(50), warm_up: Duration::ZERO }
    };
    // One thread: the client must leave the cores to the servers.
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_mins(2), compare(&plan)).await })
        .expect("the servers answer within two minutes");
}

async fn compare(plan: &Plan) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let state = dir.path().join("state");
    fs::create_dir(&state).expect("a directory for the state");
    fs::write(state.join("all.json"), sample::state_file(MACHINES)).expect("room for the state");
    let addresses = ["127.0.0.1".parse().expect("an address")];
    let [ca, cert, key] =
        certificates::generate(&["localhost".into()], &addresses, Timestamp::now())
            .and_then(|bundle| bundle.write(dir.path(), false))
            .expect("certificates");
    let client = Client::new(&ca, CONNECTIONS);
    let guard = Server::guard(&state, &cert, &key, &dir.path().join("guard.log"));
    let echo = Server::echo(AS_ECHO, &cert, &key);
    println!(
        "{CONNECTIONS} connections, {} rounds of {:?} for each server, {MACHINES} machines",
        plan.rounds, plan.round
    );
    for (size, wanted) in LINES {
        let body = sample::Case::Deletion.review(size);
        let path = format!("{}?timeout=5s", Hook::Deletion.path());
        let answer = client.ask(guard.address, &path, &body).await;
        assert!(answer.contains(r#""allowed":true"#), "{answer}");
        // The echo's path says how many bytes to answer.
        let paths = [path, format!("/{}", answer.len())];
        println!("\nDELETE reviews of {} bytes, answers of {}:", body.len(), answer.len());
        let results = alternate(plan, &client, [&guard, &echo], &paths, &body).await;
        print(&results, wanted);
    }
}

/// The rounds of the two servers, which of them is first changing from round to round.
async fn alternate(
    plan: &Plan,
    client: &Client,
    servers: [&Server; 2],
    paths: &[String; 2],
    body: &str,
) -> [Vec<Round>; 2] {
    let mut results = [Vec::new(), Vec::new()];
    for (server, path) in servers.iter().zip(paths) {
        client.load(server, path, body, plan.warm_up).await;
    }
    for round in 0..plan.rounds {
        let mut turns: Vec<_> = servers.iter().zip(paths).zip(&mut results).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for ((server, path), results) in turns {
            results.push(client.load(server, path, body, plan.round).await);
        }
    }
    results
}

fn print(results: &[Vec<Round>; 2], wanted: Option<f64>) {
    println!("          requests/s    p50 us    p99 us   CPU us/request");
    for (name, rounds) in ["guard", "echo"].iter().zip(results) {
        let mut latencies: Vec<_> = rounds.iter().flat_map(|it| &it.latencies).copied().collect();
        latencies.sort_unstable();
        let at = |share: usize| {
            latencies
                .get(latencies.len() * share / 100)
                .map_or(f64::NAN, |it| it.as_secs_f64() * 1e6)
        };
        println!(
            "{name:<8}{:>12.0}{:>10.0}{:>10.0}{:>17.1}",
            median(rounds.iter().map(Round::per_second)),
            at(50),
            at(99),
            median(rounds.iter().map(Round::cpu_micros)),
        );
    }
    let [guard, echo] = results;
    let mut ratios: Vec<_> = guard
        .iter()
        .zip(echo)
        .map(|(guard, echo)| guard.per_second() / echo.per_second())
        .collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = median(ratios.iter().copied());
    let cpu =
        median(guard.iter().zip(echo).map(|(guard, echo)| guard.cpu_micros() / echo.cpu_micros()));
    let verdict = match wanted {
        Some(wanted) if ratio < wanted => format!(", BELOW the wanted {wanted}"),
        Some(wanted) => format!(", at least the wanted {wanted}"),
        None => String::new(),
    };
    println!(
        "guard/echo: {ratio:.2} of the requests per second ({:.2} to {:.2}){verdict}; {cpu:.2} of \
         the CPU time",
        ratios.first().copied().unwrap_or(f64::NAN),
        ratios.last().copied().unwrap_or(f64::NAN),
    );
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
