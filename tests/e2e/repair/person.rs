//! `unstick --apply`, by a person, in a cluster without any controller.

use std::{path::Path, process::Stdio};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout},
};

use super::{DATAS, TEMPLATES, events, people::ip_claim, stuck};
use crate::{
    e2e::{Space, commands::run, env},
    support::{Proxy, User, eventually, guard::BINARY},
};

/// CAPM3 1.8.1 left these when it released a template too early: no restart and no resync of CAPM3
/// ever frees them (lab-facts: "only the namespace").
#[tokio::test]
async fn capm3_1994_three_metal3data_without_a_template_are_freed_ip_claims_first() {
    let env = env().await;
    let space = env.space("lost-three").await;
    for index in 0..3 {
        let made = space.create(&space.data("gone", index, &format!("w-{index}"))).await.unwrap();
        ip_claim(&space, &made).await;
        space.delete(DATAS, &format!("gone-{index}")).await.unwrap();
    }
    let config = env.plane.kubeconfig(User::Admin);
    let diagnosed = run(&config, &["diagnose", "-n", space.ns()]).await;
    assert_eq!(diagnosed.code, 1, "{diagnosed:?}");
    assert!(diagnosed.stdout.contains("1 stuck"), "{}", diagnosed.stdout);
    assert!(diagnosed.stdout.contains("unstick gone"), "{}", diagnosed.stdout);

    let apply = ["unstick", "gone", "-n", space.ns(), "--apply", "--reason", "released too early"];
    let freed = run(&config, &apply).await;
    assert_eq!(freed.code, 0, "{freed:?}");
    assert!(freed.stdout.contains("by admin: released too early"), "{}", freed.stdout);
    assert!(freed.stdout.contains("it is gone, and nothing names it any more"), "{}", freed.stdout);
    let at = |step: &str| freed.stdout.find(step).unwrap_or_else(|| panic!("no {step}: {freed:?}"));
    for index in 0..3 {
        assert!(space.get(DATAS, &format!("gone-{index}")).await.is_none());
        assert!(space.get("ipclaims", &format!("gone-{index}-pool")).await.is_none());
        let order = [
            format!("delete-ip-claim IPClaim/gone-{index}-pool"),
            format!("free-ip-claim IPClaim/gone-{index}-pool"),
            format!("free-lost Metal3Data/gone-{index}"),
        ];
        assert!(order.iter().map(|step| at(step)).is_sorted(), "{}", freed.stdout);
    }
    let said = events(&space).await;
    assert!(
        said["Unstuck"].iter().any(|it| it.contains("By admin: released too early")),
        "{said:?}"
    );

    let again = run(&config, &apply).await;
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.stdout.contains("there is nothing to do"), "{}", again.stdout);
}

/// Nobody reacts to the wake-up; with --wait it goes on to the release and to the end.
#[tokio::test]
async fn an_abandoned_template_is_followed_until_it_is_gone() {
    let env = env().await;
    let space = env.space("abandoned").await;
    stuck(&space, "workers", &[]).await;
    let config = env.plane.kubeconfig(User::Admin);
    let args = [
        "unstick",
        "workers",
        "-n",
        space.ns(),
        "--apply",
        "--reason",
        "capm3 is gone",
        "-o",
        "json",
    ];

    // Woken, and no more in this time: what is stronger has its own.
    let first = run(&config, &args).await;
    assert_eq!(first.code, 1, "{first:?}");
    let report: Value = serde_json::from_str(&first.stdout).unwrap();
    let actions = |report: &Value| -> Vec<String> {
        let steps = report["steps"].as_array().unwrap().iter();
        steps.map(|it| it["action"].as_str().unwrap().to_owned()).collect()
    };
    assert!(actions(&report).iter().all(|it| it == "wake"), "{report}");
    assert_eq!(report["ended"], "waiting");
    assert!(space.get(TEMPLATES, "workers").await.is_some());

    let quick = ["--wait", "--grace", "5s", "--release-after", "5s"];
    let followed = run(&config, &[&args[..], &quick].concat()).await;
    assert_eq!(followed.code, 0, "{followed:?}");
    let report: Value = serde_json::from_str(&followed.stdout).unwrap();
    assert_eq!(report["ended"], "gone");
    let steps = actions(&report);
    assert_eq!(steps.last().map(String::as_str), Some("release"), "{report}");
    assert!(space.get(TEMPLATES, "workers").await.is_none());
}

/// Ctrl-C between two steps: what is done is done, and the next run does the rest.
#[tokio::test]
async fn stopped_half_way_it_goes_on_from_there() {
    let env = env().await;
    let space = env.space("stopped").await;
    let config = env.plane.kubeconfig(User::Admin);
    let mut running = Running::half_way(&space, &config).await;
    let pid = running.child.id().unwrap().to_string();
    let kill = ["-c", r#"kill -INT "$1""#, "sh", &pid];
    assert!(std::process::Command::new("sh").args(kill).status().unwrap().success());
    let (code, rest) = running.end().await;
    assert_eq!(code, Some(3), "{rest:?}");
    the_next_run_ends_it(&space, &config, &rest).await;
}

/// The way to the API server breaks: it gives up after a while, and the next run does the rest.
#[tokio::test]
async fn cut_off_half_way_it_goes_on_from_there() {
    let env = env().await;
    let space = env.space("cut-off").await;
    let proxy = Proxy::start(env.plane, User::Admin).unwrap();
    let mut running = Running::half_way(&space, proxy.kubeconfig()).await;
    drop(proxy);
    let (code, rest) = running.end().await;
    assert_eq!(code, Some(3), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("trying again")), "{rest:?}");
    the_next_run_ends_it(&space, &env.plane.kubeconfig(User::Admin), &rest).await;
}

const LOST: [&str; 5] = ["unstick", "gone", "--apply", "--reason", "a test"];

/// `unstick --apply` at work on thirty Metal3Data, some of which it has freed from their claims.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    async fn half_way(space: &Space, config: &Path) -> Self {
        for index in 0..30 {
            let data = space.data("gone", index, &format!("w-{index}"));
            space.create(&data).await.unwrap();
            space.delete(DATAS, &format!("gone-{index}")).await.unwrap();
        }
        let mut child = tokio::process::Command::new(BINARY)
            .args(LOST)
            .args(["-n", space.ns(), "--kubeconfig"])
            .arg(config)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while !lines.next_line().await.unwrap().unwrap().contains("free-orphan") {}
        Self { child, lines }
    }

    /// The exit code, and what else it printed.
    async fn end(&mut self) -> (Option<i32>, Vec<String>) {
        let mut rest = Vec::new();
        while let Some(line) = self.lines.next_line().await.unwrap() {
            rest.push(line);
        }
        (self.child.wait().await.unwrap().code(), rest)
    }
}

async fn the_next_run_ends_it(space: &Space, config: &Path, rest: &[String]) {
    let left = async || {
        let list = space.send(http::Method::GET, &space.url(DATAS, "", ""), None).await.unwrap();
        list["items"].as_array().unwrap().len()
    };
    assert!(left().await > 0, "it was stopped too late: {rest:?}");
    let again = run(config, &[&LOST[..], &["-n", space.ns()]].concat()).await;
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(left().await, 0);
}

/// A person who may read and not write is told which right is missing, and nothing is half done.
#[tokio::test]
async fn a_missing_right_is_named() {
    let env = env().await;
    let space = env.space("no-right").await;
    stuck(&space, "workers", &[]).await;
    env.plane.bind(User::Person, "metal3-guard").await;
    let config = env.plane.kubeconfig(User::Person);
    let args = ["unstick", "workers", "-n", space.ns(), "--apply", "--reason", "a test"];
    let refused = eventually("the right to read", async || {
        let ran = run(&config, &args).await;
        (ran.code != 3).then_some(ran)
    })
    .await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stdout.contains("may not patch metal3datatemplates"), "{}", refused.stdout);
    assert!(refused.stdout.contains("by person: a test"), "{}", refused.stdout);
    space.finish(TEMPLATES, "workers").await;
}
