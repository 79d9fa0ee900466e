//! What the pages show is what happens, and what they say to do heals.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    document::{Block, pages, text},
    recorded::load,
    root,
    support::{BINARY, ControlPlane, Guard, PATIENCE, Ran, User, built, eventually},
};

const NAMESPACE: &str = "metal3-guard-system";

/// The cases that `sh` blocks are run in.
const CASES: [&str; 10] = [
    "certificate",
    "foreign",
    "guard-down",
    "in-use",
    "namespace",
    "restart",
    "strip",
    "stuck",
    "unverified",
    "woken",
];

#[test]
fn every_block_says_what_it_is_run_with() {
    let mut cases = BTreeSet::new();
    for page in pages() {
        for block in &page.blocks {
            match block.language.as_str() {
                "sh" => cases.extend(block.given("case").map(str::to_owned)),
                "console" => assert!(block.given("state").is_some(), "{}", block.text),
                // Words of an error, which a case looks for.
                "text" => continue,
                other => panic!("a block of {other}"),
            }
            assert!(block.given.is_some(), "{}", block.text);
        }
        let heals = page.blocks.iter().any(|block| block.language == "sh");
        assert!(heals, "{}: nothing to do", page.anchor());
    }
    assert_eq!(cases, CASES.map(str::to_owned).into());
}

#[test]
fn every_page_is_in_the_table() {
    let text = text();
    let (table, _) = text.split_once("\n## ").unwrap();
    for page in pages() {
        assert!(table.contains(&format!("](#{}) |", page.anchor())), "{}", page.anchor());
    }
}

#[test]
fn what_is_shown_is_what_the_program_says() {
    let mut shown = 0;
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.language == "console") {
            let state = format!("tests/data/states/{}", block.given("state").unwrap());
            let (line, expected) = block.text.split_once('\n').unwrap();
            let args = line.strip_prefix("$ metal3-guard ").unwrap().split(' ');
            let mut guard = Command::new(BINARY);
            guard.args(args).args(["--state", &state]).current_dir(root());
            let output = guard.output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            // An operator asks the cluster.
            let said = said.replace(&format!(" --state {state}"), "");
            assert_eq!(comparable(&said), comparable(expected), "{line}");
            shown += 1;
        }
    }
    assert!(shown >= 4, "{shown}");
}

/// Without ages such as `(25 h)`, and the padding that depends on them.
fn comparable(text: &str) -> Vec<String> {
    let age = |word: &str| word.starts_with('(') && word[1..].parse::<u64>().is_ok();
    let unit = |word: &str| ["s)", "min)", "h)", "d)"].contains(&word);
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        while let Some(at) = words.windows(2).position(|pair| age(pair[0]) && unit(pair[1])) {
            words.splice(at..at + 2, ["(AGE)"]);
        }
        words.join(" ")
    };
    text.trim_end().lines().map(line).collect()
}

/// A cluster, and a shell as the runbook expects it.
struct Shell {
    plane: ControlPlane,
    folder: TempDir,
    /// One at a time: each is a whole control plane.
    _turn: MutexGuard<'static, ()>,
}

impl Shell {
    async fn start() -> Self {
        static TURN: Mutex<()> = Mutex::const_new(());
        let turn = TURN.lock().await;
        let plane = ControlPlane::start().await;
        for crds in ["v1beta1", "others"] {
            plane.install_crds(&root().join(format!("tests/data/crds/{crds}.yaml"))).await;
        }
        plane.restart_controller_manager().await;
        let folder = TempDir::new().unwrap();
        let programs = folder.path().join("bin");
        fs::create_dir(&programs).unwrap();
        symlink(BINARY, programs.join("metal3-guard")).unwrap();
        symlink(plane.binary("kubectl"), programs.join("kubectl")).unwrap();
        symlink(root().join("manifests"), folder.path().join("manifests")).unwrap();
        Self { plane, folder, _turn: turn }
    }

    /// Runs all blocks of a case, in order.
    async fn run(&self, case: &str) {
        for block in blocks(case) {
            self.sh(&block).await;
        }
    }

    /// Runs a text as the administrator, with quick steps of repair. A command that fails is a
    /// failure.
    async fn sh(&self, text: &str) -> String {
        let programs = self.folder.path().join("bin");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(programs).chain(std::env::split_paths(&path));
        let mut bash = tokio::process::Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", text])
            .current_dir(self.folder.path())
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.plane.kubeconfig(User::Admin))
            .env("METAL3_GUARD_WAKE_AFTER", "1s")
            .env("METAL3_GUARD_GRACE", "4s")
            .env("METAL3_GUARD_RELEASE_AFTER", "3s")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, bash.output()).await;
        let output = output.unwrap_or_else(|_| panic!("does not end: {text}")).unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}\n{said}\n{errors}");
        said
    }

    async fn kubectl(&self, args: &[&str]) -> Ran {
        self.plane.kubectl(User::Admin, args).await
    }

    /// A namespace with a template that nothing needs.
    async fn free_template(&self) {
        load(&self.plane, "recorded-v1.8.1", &["cap"]).await;
        let template = serde_json::json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3DataTemplate",
            "metadata": {"name": "free", "namespace": "cap"}, "spec": {"clusterName": "prod"},
        });
        let create = ["create", "-f", "-"];
        self.plane.kubectl_with(User::Admin, &create, &template.to_string()).await.ok();
    }

    /// Asks for a deletion, for show.
    async fn deletion(&self, template: &str, namespace: &str) -> Ran {
        let delete = ["delete", "metal3datatemplate", template, "-n", namespace];
        self.kubectl(&[&delete[..], &["--dry-run=server"]].concat()).await
    }

    /// Waits until a deletion is refused with these words.
    async fn is_refused(&self, template: &str, namespace: &str, words: &str) {
        eventually("the deletion to be refused", async || {
            let ran = self.deletion(template, namespace).await;
            (!ran.success && ran.stderr.contains(words)).then_some(())
        })
        .await;
    }

    async fn is_let_through(&self, template: &str, namespace: &str) {
        eventually("the deletion to be let through", async || {
            self.deletion(template, namespace).await.success.then_some(())
        })
        .await;
    }

    async fn is_gone(&self, object: &[&str]) {
        eventually("the object to be gone", async || {
            let args = [&["get", "--ignore-not-found", "-o", "name"], object].concat();
            self.kubectl(&args).await.ok().trim().is_empty().then_some(())
        })
        .await;
    }

    /// The guard's Deployment, without pods.
    async fn deployment(&self) -> Value {
        let get = ["get", "deployment", "metal3-guard", "-n", NAMESPACE, "-o", "json"];
        serde_json::from_str(&self.kubectl(&get).await.ok()).unwrap()
    }

    /// A kubeconfig for the guard's own account.
    async fn account(&self) -> PathBuf {
        let token = self.kubectl(&["create", "token", "metal3-guard", "-n", NAMESPACE]).await.ok();
        let admin = fs::read_to_string(self.plane.kubeconfig(User::Admin)).unwrap();
        let mut config: Value = serde_json::from_str(&admin).unwrap();
        config["users"][0]["user"] = serde_json::json!({"token": token.trim()});
        let file = self.folder.path().join("account");
        fs::write(&file, config.to_string()).unwrap();
        file
    }
}

fn blocks(case: &str) -> Vec<String> {
    let of_case = |block: &Block| block.given("case") == Some(case);
    let found: Vec<_> = pages()
        .into_iter()
        .flat_map(|page| page.blocks)
        .filter(of_case)
        .map(|block| block.text)
        .collect();
    assert!(!found.is_empty(), "no block is for {case}");
    found
}

#[tokio::test]
async fn an_installation_without_guards() {
    let shell = Shell::start().await;
    shell.free_template().await;
    shell.sh("kubectl apply --server-side -k manifests/base").await;
    let page = pages().into_iter().find(|page| page.anchor() == "the-guard-is-down").unwrap();
    let words = page.blocks.iter().find(|block| block.language == "text").unwrap();
    shell.is_refused("free", "cap", words.text.trim()).await;

    // What is done to the pods is done to their Deployment, whether or not there is one.
    let restarted = |deployment: &Value| {
        let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
        annotations["kubectl.kubernetes.io/restartedAt"].clone()
    };
    assert_eq!(restarted(&shell.deployment().await), Value::Null);
    shell.run("restart").await;
    let first = restarted(&shell.deployment().await);
    assert_ne!(first, Value::Null);
    shell.sh(&format!("kubectl -n {NAMESPACE} scale deployment/metal3-guard --replicas=0")).await;
    // Restarts within one second are one.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    shell.run("guard-down").await;
    let deployment = shell.deployment().await;
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_ne!(restarted(&deployment), first);
    shell.is_let_through("free", "cap").await;

    // A certificate, and its successor.
    let certs = format!("{BINARY} certs --dns metal3-guard.{NAMESPACE}.svc --force --out");
    shell.sh(&format!("{certs} old && {certs} .")).await;
    let create = "create secret tls metal3-guard-tls --cert=old/tls.crt --key=old/tls.key";
    shell.sh(&format!("kubectl -n {NAMESPACE} {create}")).await;
    shell.run("certificate").await;
    let get = ["get", "secret", "metal3-guard-tls", "-n", NAMESPACE, "-o", "json"];
    let secret: Value = serde_json::from_str(&shell.kubectl(&get).await.ok()).unwrap();
    let renewed = fs::read(shell.folder.path().join("tls.crt")).unwrap();
    assert_eq!(secret["data"]["tls.crt"], BASE64_STANDARD.encode(renewed));
}

#[tokio::test]
async fn a_release_of_helm() {
    let shell = Shell::start().await;
    let helm = built("helm").unwrap().join("helm");
    symlink(helm, shell.folder.path().join("bin/helm")).unwrap();
    let install = "helm install metal3-guard manifests/chart --create-namespace --set replicas=3";
    shell.sh(&format!("{install} -n {NAMESPACE}")).await;
    shell.run("strip").await;
    let deployment = shell.deployment().await;
    let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(args.contains("--finalizer-additions=strip"), "{args}");
    // The values from before are kept.
    assert_eq!(deployment["spec"]["replicas"], 3);
}

#[tokio::test]
async fn a_guard_that_refuses() {
    let shell = Shell::start().await;
    load(&shell.plane, "v1beta1", &["prod"]).await;
    shell.free_template().await;
    shell.sh("kubectl apply --server-side -k manifests/base/account").await;
    let account = shell.account().await;
    let args = ["--controller", "off"];
    let guard = Guard::start(&shell.plane, &account, "127.0.0.1:0", &args).await.unwrap();
    guard.register(&shell.plane).await.unwrap();
    guard.ready().await;
    shell.is_refused("workers", "prod", "is in use by 3 Metal3Machines").await;
    shell.is_let_through("free", "cap").await;

    // Somebody took its rights away.
    let bindings = ["clusterrolebinding", "metal3-guard", "metal3-guard-repair"];
    shell.kubectl(&[&["delete"], &bindings[..]].concat()).await.ok();
    shell.is_refused("free", "cap", "verif").await;
    assert!(guard.metric("metal3_guard_reviews_total", "deletion.unverified").await > 0.0);
    shell.run("unverified").await;
    shell.is_let_through("free", "cap").await;
    let may = ["auth", "can-i", "patch", "metal3datas.infrastructure.cluster.x-k8s.io", "-A"];
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:metal3-guard");
    shell.kubectl(&[&may[..], &[&account]].concat()).await.ok();

    // Refused to the last, and then forced.
    shell.is_refused("workers", "prod", "is in use by 3 Metal3Machines").await;
    shell.run("in-use").await;
    let get = ["get", "metal3datatemplate", "workers", "-n", "prod", "-o", "json"];
    let template: Value = serde_json::from_str(&shell.kubectl(&get).await.ok()).unwrap();
    assert!(template["metadata"]["deletionTimestamp"].is_string());
}

/// CAPM3 does not run here: each of these is as it was recorded for ever, until it is healed.
#[tokio::test]
async fn what_is_stuck_is_freed() {
    let shell = Shell::start().await;
    load(&shell.plane, "recorded-v1.8.1-stuck", &["cap", "dump1", "m3"]).await;
    load(&shell.plane, "v1beta1", &["release"]).await;
    shell.run("stuck").await;
    shell.is_gone(&["metal3datatemplate", "t-one", "-n", "cap"]).await;

    shell.run("woken").await;
    let get = ["get", "metal3datatemplate", "workers", "-n", "dump1", "-o", "json"];
    let template: Value = serde_json::from_str(&shell.kubectl(&get).await.ok()).unwrap();
    let woken = template["metadata"]["annotations"]["metal3-guard.io/woken-at"].as_str().unwrap();
    let age = woken.parse::<jiff::Timestamp>().unwrap().duration_until(jiff::Timestamp::now());
    assert!(age.abs() < jiff::SignedDuration::from_mins(5), "{woken}");

    shell.run("foreign").await;
    let get = ["get", "metal3datatemplate", "two-owners", "-n", "release", "-o", "json"];
    let template: Value = serde_json::from_str(&shell.kubectl(&get).await.ok()).unwrap();
    let left = template["metadata"]["finalizers"].as_array().unwrap();
    assert_eq!(left, &["metal3datatemplate.infrastructure.cluster.x-k8s.io"]);

    // The machines go with the namespace, in a cluster where their controller runs.
    shell.kubectl(&["delete", "namespace", "m3", "--wait=false"]).await.ok();
    release_machines(&shell, "m3").await;
    tokio::join!(shell.run("namespace"), react_to_wakes(&shell, "m3"));
    shell.is_gone(&["namespace", "m3"]).await;
}

/// Plays CAPM3, which looks again at what is woken, and is done with it.
async fn react_to_wakes(shell: &Shell, namespace: &str) {
    eventually("all to be woken", async || {
        let get = ["get", "metal3datas,metal3datatemplates", "-n", namespace, "-o", "json"];
        let found: Value = serde_json::from_str(&shell.kubectl(&get).await.ok()).unwrap();
        let found = found["items"].as_array().unwrap();
        for object in found.iter().map(|it| &it["metadata"]) {
            if !object["annotations"]["metal3-guard.io/woken-at"].is_null() {
                let kind =
                    if object["name"] == "workers" { "metal3datatemplate" } else { "metal3data" };
                let name = object["name"].as_str().unwrap();
                let patch = ["patch", kind, name, "-n", namespace, "--type=merge"];
                let none = ["-p", r#"{"metadata": {"finalizers": null}}"#];
                // It may have gone meanwhile, with its owner.
                shell.kubectl(&[&patch[..], &none].concat()).await;
            }
        }
        found.is_empty().then_some(())
    })
    .await;
}

/// Plays the controller that is done with its machines.
async fn release_machines(shell: &Shell, namespace: &str) {
    let machines = ["get", "metal3machines", "-n", namespace, "-o", "name"];
    for machine in shell.kubectl(&machines).await.ok().lines() {
        let patch = ["patch", machine, "-n", namespace, "--type=merge"];
        let none = ["-p", r#"{"metadata": {"finalizers": null}}"#];
        // Gone already, if the namespace was quicker.
        shell.kubectl(&[&patch[..], &none].concat()).await;
    }
}
