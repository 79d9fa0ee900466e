//! A running guard's own word: readiness and the age of its watches.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{Check, State};

/// A watch hears at least a bookmark a minute, and is opened anew each minute.
const QUIET_SECONDS: f64 = 180.0;

pub(super) async fn check(address: SocketAddr, checks: &mut Vec<Check>) {
    let about = format!("guard at {address}");
    match get(address, "/readyz").await {
        Ok((200, _)) => checks.push(Check::ok(&about, "ready")),
        Ok((_, text)) => {
            let text = format!("not ready: {}", text.trim().replace('\n', "; "));
            checks.push(Check::new(State::Problem, &about, text, "look at its log"));
        }
        Err(error) => {
            let text = format!("does not answer: {error:#}");
            checks.push(Check::new(State::Problem, &about, text, "check the address of --admin"));
            return;
        }
    }
    let ages = match get(address, "/metrics").await {
        Ok((200, metrics)) => metrics,
        _ => String::new(),
    };
    let mut ages =
        ages.lines().filter(|it| it.starts_with("metal3_guard_watch_age_seconds{")).peekable();
    if ages.peek().is_none() {
        let text = "their age is not in its metrics: it works from files, or is no metal3-guard";
        checks.push(Check::new(State::Unknown, &format!("watches of {address}"), text, ""));
    }
    for line in ages {
        let kind = line.split('"').nth(1).unwrap_or_default();
        let age = line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
        let about = format!("watch of {kind}");
        checks.push(match age {
            Some(age) if age < QUIET_SECONDS => Check::ok(&about, format!("heard {age:.0} s ago")),
            Some(age) => Check::new(
                State::Warning,
                &about,
                format!("heard nothing for {age:.0} s: verdicts are right but slower"),
                "check the guard's way to the API server, and its right to watch",
            ),
            None => Check::new(State::Unknown, &about, "its age cannot be read", ""),
        });
    }
}

async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(1 << 20).read_to_end(&mut answer).await?;
        anyhow::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = timeout(Duration::from_secs(5), talk).await.context("no answer in time")??;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((status.context("no HTTP status")?, body.into()))
}
