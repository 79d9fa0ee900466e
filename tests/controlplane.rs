//! The harness in `support`, proved: what it starts is a real control plane, what it hands
//! out works, and nothing of it is left over, however a test binary ends.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

mod support;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use serde_json::json;
use support::{ControlPlane, Delay, PATIENCE, User, eventually};
use tokio::time::Instant;

#[tokio::test]
async fn a_second_call_gives_the_same_control_plane() {
    let (first, second) = tokio::join!(ControlPlane::shared(), ControlPlane::shared());
    assert!(std::ptr::eq(first, second));
    assert_eq!(first.pids(), ControlPlane::shared().await.pids());
    let [one, other] = [first.namespace("same").await, second.namespace("same").await];
    assert_ne!(one.name(), other.name());
}

#[tokio::test]
async fn a_template_goes_with_its_namespace() {
    let plane = ControlPlane::shared().await;
    plane.install_crds(&crds()).await;
    let namespace = plane.namespace("dying").await;
    let client = plane.client(User::Admin).await;
    let templates = templates(client.clone(), namespace.name());
    let namespaces = Api::<Namespace>::all(client);
    let finalizer = "tests.metal3-guard.io/hold";
    let template = serde_json::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
        "kind": "Metal3DataTemplate",
        "metadata": {"name": "pool", "finalizers": [finalizer]},
        "spec": {"clusterName": "cluster"},
    }))
    .unwrap();
    templates.create(&PostParams::default(), &template).await.unwrap();

    plane
        .kubectl(User::Admin, &["delete", "namespace", namespace.name(), "--wait=false"])
        .await
        .ok();
    eventually("the namespace controller to delete the template", async || {
        let template = templates.get("pool").await.unwrap();
        template.metadata.deletion_timestamp.map(drop)
    })
    .await;
    // The finalizer holds the template, and the template its namespace.
    let held = namespaces.get(namespace.name()).await.unwrap();
    assert_eq!(held.status.unwrap().phase.unwrap(), "Terminating");

    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    templates.patch("pool", &PatchParams::default(), &release).await.unwrap();
    eventually("the namespace to be gone", async || {
        namespaces.get_opt(namespace.name()).await.unwrap().is_none().then_some(())
    })
    .await;
    // The controllers act under their own names, as webhooks see them in a real cluster.
    let audit = fs::read_to_string(plane.audit_log()).unwrap();
    assert!(
        audit.lines().any(|event| event.contains(namespace.name())
            && event.contains("metal3datatemplates")
            && event.contains("system:serviceaccount:kube-system:namespace-controller")),
        "no word of the namespace controller in {}",
        plane.audit_log().display()
    );
}

#[tokio::test]
async fn the_garbage_collector_takes_what_lost_its_owner() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("owned").await;
    let maps = Api::<ConfigMap>::namespaced(plane.client(User::Admin).await, namespace.name());
    let owner = config_map(&json!({"name": "owner"}));
    let owner = maps.create(&PostParams::default(), &owner).await.unwrap();
    let dependent = config_map(&json!({"name": "dependent", "ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid,
    }]}));
    maps.create(&PostParams::default(), &dependent).await.unwrap();

    maps.delete("owner", &DeleteParams::background()).await.unwrap();
    eventually("the garbage collector to take the owned object", async || {
        maps.get_opt("dependent").await.unwrap().is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn from_afar_everything_takes_its_time_and_arrives_whole() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("afar").await;
    let pause = Duration::from_millis(200);
    let far = Delay::start(plane, User::Admin, pause).await.unwrap();
    let client = ControlPlane::client_from(far.kubeconfig()).await;
    let maps = Api::<ConfigMap>::namespaced(client, namespace.name());

    // More than the proxy reads at once, both ways.
    let mut map = config_map(&json!({"name": "big"}));
    let text = "0123456789".repeat(50_000);
    map.data = Some([("text".to_owned(), text.clone())].into());
    let begun = Instant::now();
    maps.create(&PostParams::default(), &map).await.unwrap();
    // To connect, to agree on keys, and to ask.
    assert!(begun.elapsed() >= 3 * pause, "{:?}", begun.elapsed());
    let begun = Instant::now();
    let read = maps.get("big").await.unwrap();
    assert!(begun.elapsed() >= pause, "{:?}", begun.elapsed());
    assert_eq!(read.data.unwrap().remove("text"), Some(text));
}

#[tokio::test]
async fn users_have_the_rights_they_were_given_and_no_others() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("rights").await;
    let list = ["get", "configmaps", "--namespace", namespace.name()];
    for user in [User::Person, User::Guard] {
        let maps = Api::<ConfigMap>::namespaced(plane.client(user).await, namespace.name());
        let Err(kube::Error::Api(status)) = maps.list(&ListParams::default()).await else {
            panic!("{user:?} was let in");
        };
        assert_eq!(status.code, 403, "{status:?}");
        assert!(status.message.contains(user.name()), "{status:?}");
        assert!(plane.kubectl(user, &list).await.refused().contains("Forbidden"));
    }
    for user in [User::Admin, User::Capm3, User::Capi] {
        plane.kubectl(user, &list).await.ok();
    }
    plane.kubectl(User::Capm3, &["get", "clusterroles"]).await.refused();

    plane.bind(User::Guard, "view").await;
    eventually("the binding to count", async || {
        plane.kubectl(User::Guard, &list).await.success.then_some(())
    })
    .await;
    plane.kubectl(User::Person, &list).await.refused();
}

#[tokio::test]
async fn parts_can_be_paused_and_restarted() {
    let plane = ControlPlane::start().await;
    let namespace = plane.namespace("kept").await;
    let make = |name| {
        let (plane, namespace) = (&plane, namespace.name());
        let args = ["create", "configmap", name, "--namespace", namespace, "--request-timeout=3s"];
        async move { plane.kubectl(User::Admin, &args).await }
    };
    make("before").await.ok();
    let [etcd, apiserver, controller_manager] = plane.pids();

    plane.pause_etcd();
    make("lost").await.refused();
    plane.resume_etcd();
    eventually("writes to work again", async || make("after").await.success.then_some(())).await;

    let url = plane.url();
    plane.restart_apiserver().await;
    plane.restart_controller_manager().await;
    assert_eq!(plane.url(), url);
    let after = plane.pids();
    assert_eq!(after[0], etcd);
    assert_ne!(after[1], apiserver);
    assert_ne!(after[2], controller_manager);
    let maps = Api::<ConfigMap>::namespaced(plane.client(User::Admin).await, namespace.name());
    maps.get("before").await.expect("what was there before the restart");

    let folder = plane.folder().to_owned();
    drop(plane);
    assert!(!folder.exists(), "{} is left", folder.display());
    assert_eq!(after.map(is_running), [false; 3]);
}

/// Not a test of its own: the ones below start it as a process, to see what is left of it.
/// Without them it does nothing.
#[tokio::test]
#[ignore = "started by the tests of how a test binary ends"]
async fn probe() {
    let Some(end) = std::env::var_os(PROBE) else { return };
    let mut own = None;
    let plane = match end.to_str() {
        Some("drop") => own.insert(ControlPlane::start().await),
        _ => ControlPlane::shared().await,
    };
    let namespace = plane.namespace("probe").await;
    let [etcd, apiserver, controller_manager] = plane.pids();
    let (folder, logs) = (plane.folder().display(), plane.kept_logs());
    println!("\n{PROBE} {etcd} {apiserver} {controller_manager} {folder} {}", logs.display());
    match end.to_str() {
        Some("return") => {}
        Some("drop") => drop(own), // before its namespace
        Some("panic") => panic!("on purpose"),
        _ => tokio::time::sleep(PATIENCE).await, // killed meanwhile
    }
    drop(namespace);
}

#[tokio::test]
async fn nothing_is_left_after_a_good_run() {
    for end in ["return", "drop"] {
        let seen = Probe::run(end);
        seen.is_all_gone().await;
        assert!(!seen.logs.exists(), "{} is left", seen.logs.display());
    }
}

#[tokio::test]
async fn only_logs_are_left_after_a_failure() {
    let seen = Probe::run("panic");
    seen.is_all_gone().await;
    assert!(seen.output.contains(&seen.logs.display().to_string()), "{}", seen.output);
    assert!(fs::read_to_string(seen.logs.join("failed")).unwrap().contains("on purpose"));
    seen.has_logs();
}

#[tokio::test]
async fn only_logs_are_left_after_a_kill() {
    let seen = Probe::run("be killed");
    seen.is_all_gone().await;
    seen.has_logs();
}

#[test]
fn build_says_what_to_do_without_go() {
    let empty = tempfile::tempdir().unwrap();
    let tools = empty.path().join("tools");
    fs::create_dir(&tools).unwrap();
    for tool in ["bash", "cat", "cut", "dirname", "sed", "sha256sum", "uname"] {
        let found = which(tool);
        std::os::unix::fs::symlink(found, tools.join(tool)).unwrap();
    }
    let output = build(|build| build.env("PATH", &tools).env("XDG_CACHE_HOME", empty.path()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    for word in ["Go is needed", "https://go.dev/dl/", "KUBEBUILDER_ASSETS"] {
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn build_takes_existing_binaries_or_says_what_they_lack() {
    let assets = tempfile::tempdir().unwrap();
    let run = || build(|build| build.env("KUBEBUILDER_ASSETS", assets.path()));
    let stderr = |output: Output| String::from_utf8(output.stderr).unwrap();
    let put = |name| {
        let file = assets.path().join(name);
        fs::copy(which("true"), file).unwrap();
    };

    put("etcd");
    let lacking = run();
    assert!(!lacking.status.success());
    assert!(stderr(lacking).contains("lacks: kube-apiserver kubectl kube-controller-manager"));

    put("kube-apiserver");
    put("kubectl");
    let envtest = run();
    assert!(!envtest.status.success());
    let said = stderr(envtest);
    assert!(said.contains("has no kube-controller-manager"), "{said}");
    assert!(said.contains("https://dl.k8s.io/"), "{said}");

    put("kube-controller-manager");
    let complete = run();
    assert!(complete.status.success());
    let said = String::from_utf8(complete.stdout).unwrap();
    assert_eq!(said.lines().last().map(Path::new), Some(assets.path()));
}

const PROBE: &str = "METAL3_GUARD_PROBE";

/// What a `probe` said before it ended.
struct Probe {
    pids: Vec<u32>,
    folder: PathBuf,
    logs: PathBuf,
    output: String,
}

impl Probe {
    /// Runs it to its end. One that is to be killed gets SIGKILL, which nobody can catch.
    fn run(end: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "probe", "--ignored", "--nocapture"])
            .env(PROBE, end)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        while !output.contains(PROBE) {
            assert_ne!(stdout.read_line(&mut output).unwrap(), 0, "no control plane: {output}");
        }
        let line = output.lines().last().unwrap().to_owned();
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        let pids: Vec<u32> = words[..3].iter().map(|pid| pid.parse().unwrap()).collect();
        if end == "be killed" {
            assert!(pids.iter().copied().all(is_running));
            child.kill().unwrap();
        }
        let rest = child.wait_with_output().unwrap();
        let good = end == "return" || end == "drop";
        assert_eq!(rest.status.success(), good, "{:?}", rest.status);
        output.push_str(&String::from_utf8_lossy(&rest.stderr));
        Self { pids, folder: words[3].into(), logs: words[4].into(), output }
    }

    async fn is_all_gone(&self) {
        eventually("the probe's processes and folder to be gone", async || {
            let running = self.pids.iter().copied().any(is_running);
            (!running && !self.folder.exists()).then_some(())
        })
        .await;
    }

    /// Checks the kept logs, and takes them away.
    fn has_logs(&self) {
        let log = self.logs.join("kube-apiserver.log");
        assert!(fs::metadata(&log).is_ok_and(|log| log.len() > 0), "no {}", log.display());
        fs::remove_dir_all(&self.logs).unwrap();
    }
}

/// Whether there is such a process.
fn is_running(pid: u32) -> bool {
    let pid = pid.to_string();
    let kill = ["-c", r#"kill -0 "$1""#, "is-running", &pid];
    Command::new("sh").args(kill).stderr(Stdio::null()).status().unwrap().success()
}

fn build(change: impl FnOnce(&mut Command) -> &mut Command) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/controlplane/build.sh");
    let mut build = Command::new(which("bash"));
    build.arg(script).arg("kube").env_remove("KUBEBUILDER_ASSETS");
    change(&mut build).output().unwrap()
}

fn which(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.exists()).unwrap()
}

/// CRDs that have Metal3DataTemplates as v1beta2: the whole ones of a release if they lie
/// beside this project, else the reduced ones in it.
fn crds() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    ["../shared/crds/capm3-v1.14.0-rc.0", "tests/data/crds/v1beta2.yaml"]
        .map(|path| here.join(path))
        .into_iter()
        .find(|path| path.exists())
        .expect("CRDs in tests/data/crds")
}

fn templates(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind =
        GroupVersionKind::gvk("infrastructure.cluster.x-k8s.io", "v1beta2", "Metal3DataTemplate");
    Api::namespaced_with(client, namespace, &ApiResource::from_gvk(&kind))
}

fn config_map(metadata: &serde_json::Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}
