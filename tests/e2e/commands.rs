//! The commands for people, against the live cluster and under the guard's own account.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::{Crds, Space, env};
use crate::support::{BINARY, PATIENCE, User};

/// How a command ended, and what it said.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Ran {
    /// Checks the exit code; the standard output.
    pub(super) fn ended(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        self.stdout
    }

    /// Checks the exit code, and that nothing but an error was said; the error.
    pub(super) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stdout.is_empty(), "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        self.stderr
    }
}

#[tokio::test]
async fn can_delete_tells_what_a_deletion_would() {
    let env = env().await;
    let space = env.space("candelete").await;
    for name in ["used", "free"] {
        space.create(&space.template(name)).await.unwrap();
    }
    space.create(&space.machine("w-0", "used")).await.unwrap();
    space.create(&space.machine_template("blueprint", "free")).await.unwrap();
    let config = env.plane.kubeconfig(User::Guard);
    let ask = async |name: &str, more: &[&str]| {
        let args = [&["can-delete", name, "-n", space.ns()], more].concat();
        run(&config, &args).await
    };

    let said = ask("used", &[]).await.ended(1);
    assert!(said.starts_with("NO "), "{said}");
    let refused = space.delete("metal3datatemplates", "used").await.unwrap_err();
    let (_, message) = refused.message.split_once("denied the request: ").unwrap();
    // The same words, wrapped for a terminal.
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(message), "not the words of the refusal, {message:?}: {said}");
    assert!(said.contains("Metal3Machine/w-0"), "{said}");

    let said = ask("free", &[]).await.ended(0);
    assert!(said.starts_with("YES "), "{said}");
    assert!(said.contains("warning: new machines of Metal3MachineTemplate blueprint"), "{said}");

    let said = ask("used", &["-o", "json"]).await.ended(1);
    let verdict: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&verdict["allowed"], &verdict["code"]), (&json!(false), &json!(403)), "{said}");
    assert_eq!(verdict["holders"][0]["name"], "w-0", "{said}");

    let said = ask("nosuch", &[]).await.failed(2);
    assert!(said.contains(&format!("namespace {} has: free, used", space.ns())), "{said}");
}

#[tokio::test]
async fn diagnose_finds_what_is_stuck_in_one_namespace_and_in_all() {
    let env = env().await;
    let (stuck, fine) = (env.space("diagnosed").await, env.space("diagnosed").await);
    make_stuck(&stuck).await;
    fine.create(&fine.template("workers")).await.unwrap();
    fine.create(&fine.machine("w-0", "workers")).await.unwrap();
    let config = env.plane.kubeconfig(User::Guard);

    let said = run(&config, &["diagnose", "-n", fine.ns()]).await.ended(0);
    assert!(said.starts_with("1 template: 0 stuck, 0 draining, 1 ok"), "{said}");
    assert!(said.contains("in use  named by 1 object"), "{said}");

    let title = format!("STUCK  Metal3DataTemplate {}/workers, terminating since", stuck.ns());
    let said = run(&config, &["diagnose", "-n", stuck.ns()]).await.ended(1);
    assert!(said.contains(&title), "{said}");
    assert!(said.contains("Metal3Machine/w-0"), "{said}");
    let said = run(&config, &["diagnose", "workers", "-n", stuck.ns()]).await.ended(1);
    assert!(said.contains(&title), "{said}");

    let said = run(&config, &["diagnose", "-A"]).await.ended(1);
    assert!(said.contains(&title), "{said}");
    assert!(said.contains(&format!("{}/workers", fine.ns())), "{said}");
    let said = run(&config, &["diagnose", "-A", "-o", "json"]).await.ended(1);
    let document: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(document["healthy"], false);
    let of_all = document["namespaces"].as_array().unwrap();
    for (namespace, health) in [(stuck.ns(), "stuck"), (fine.ns(), "ok")] {
        let found = of_all.iter().find(|it| it["namespace"] == namespace).unwrap();
        assert_eq!(found["templates"][0]["health"], health, "{found}");
    }
}

#[tokio::test]
async fn unstick_prints_its_plan_and_changes_nothing() {
    let env = env().await;
    let (waiting, left) = (env.space("unstuck").await, env.space("unstuck").await);
    make_stuck(&waiting).await;
    // As CAPM3 leaves it: all gone but the template, and an index in its status.
    left.create(&left.template("workers")).await.unwrap();
    left.create(&left.template("spare")).await.unwrap();
    left.create(&left.data("workers", 0, "w-0")).await.unwrap();
    left.delete("metal3datatemplates", "workers").await.unwrap();
    left.delete("metal3datas", "workers-0").await.unwrap();
    let config = env.plane.kubeconfig(User::Guard);
    let everything = async || {
        let mut all = Vec::new();
        for space in [&waiting, &left] {
            for resource in ["metal3datatemplates", "metal3datas", "metal3machines"] {
                let list = space.get(resource, "").await.unwrap();
                all.extend(list["items"].as_array().unwrap().clone());
            }
        }
        all
    };
    let before = everything().await;
    assert_eq!(before.len(), 5);

    let said = run(&config, &["unstick", "workers", "-n", waiting.ns()]).await.ended(1);
    assert!(said.contains("is terminating since"), "{said}");
    assert!(said.contains("waits for"), "{said}");
    let said = run(&config, &["unstick", "workers", "-n", left.ns()]).await.ended(1);
    assert!(said.contains("Metal3Data/workers-0"), "{said}");
    assert!(
        said.ends_with("dry run: nothing was changed; --apply --reason TEXT does it\n"),
        "{said}"
    );
    let said = run(&config, &["unstick", "spare", "-n", left.ns()]).await.ended(0);
    assert!(said.contains("there is nothing to do"), "{said}");
    let said = run(&config, &["unstick", "nosuch", "-n", left.ns()]).await.failed(2);
    assert!(said.contains("there is no Metal3DataTemplate"), "{said}");
    assert_eq!(everything().await, before);
}

#[tokio::test]
async fn review_answers_a_file_from_the_live_cluster() {
    let env = env().await;
    let space = env.space("reviewed").await;
    let folder = TempDir::new().unwrap();
    for name in ["used", "free"] {
        let created = space.create(&space.template(name)).await.unwrap();
        let file = folder.path().join(name);
        fs::write(file, deletion_review(&created).to_string()).unwrap();
    }
    space.create(&space.machine("w-0", "used")).await.unwrap();
    fs::write(folder.path().join("broken"), r#"{"kind": "AdmissionReview""#).unwrap();
    let config = env.plane.kubeconfig(User::Guard);
    let file = |name: &str| folder.path().join(name).display().to_string();

    let said = run(&config, &["review", &file("free")]).await.ended(0);
    assert!(said.starts_with("ALLOWED  DELETE "), "{said}");
    let said = run(&config, &["review", &file("used"), &file("free")]).await.ended(1);
    assert!(said.starts_with("DENIED  DELETE "), "{said}");
    assert!(said.contains("403 Forbidden: Metal3DataTemplate"), "{said}");
    assert!(said.contains("Metal3Machine/w-0"), "{said}");
    assert!(said.contains("\nALLOWED  DELETE "), "{said}");
    for missing in ["broken", "nosuch"] {
        run(&config, &["review", &file(missing)]).await.failed(2);
    }
}

#[tokio::test]
async fn without_a_cluster_there_is_no_verdict() {
    let env = env().await;
    let folder = TempDir::new().unwrap();
    let review = folder.path().join("review.json");
    let space = env.space("nocluster").await;
    let created = space.create(&space.template("workers")).await.unwrap();
    fs::write(&review, deletion_review(&created).to_string()).unwrap();
    let review = review.display().to_string();
    let commands: [&[&str]; 5] = [
        &["can-delete", "workers", "-n", space.ns()],
        &["diagnose", "-n", space.ns()],
        &["diagnose", "-A"],
        &["unstick", "workers", "-n", space.ns()],
        &["review", &review],
    ];

    // Nobody listens on port 1.
    let nobody = kubeconfig(folder.path(), "nobody", "https://127.0.0.1:1", "token");
    let missing = folder.path().join("nosuch");
    for command in commands {
        let said = run(&nobody, command).await.failed(3);
        assert!(said.contains("cannot be reached"), "{command:?}: {said}");
        assert!(said.to_lowercase().contains("connection refused"), "{command:?}: {said}");
        let said = run(&missing, command).await.failed(2);
        assert!(said.contains(&*missing.to_string_lossy()), "{command:?}: {said}");
    }
}

#[tokio::test]
async fn an_account_without_rights_is_told_which_are_missing() {
    let env = env().await;
    let space = env.space("norights").await;
    let created = space.create(&space.template("workers")).await.unwrap();
    let folder = TempDir::new().unwrap();
    let review = folder.path().join("review.json");
    fs::write(&review, deletion_review(&created).to_string()).unwrap();
    let review = review.display().to_string();
    let config = account(&space, folder.path(), "nothing").await;
    let within = format!("in namespace {}: grant it in RBAC", space.ns());
    for command in [
        &["can-delete", "workers", "-n", space.ns()][..],
        &["diagnose", "-n", space.ns()],
        &["unstick", "workers", "-n", space.ns()],
    ] {
        let said = run(&config, command).await.failed(3);
        // Whichever it asked for first.
        assert!(said.contains("may not list "), "{command:?}: {said}");
        assert!(said.contains(&within), "{command:?}: {said}");
    }
    let said = run(&config, &["diagnose", "-A"]).await.failed(3);
    assert!(said.contains("may not list metal3"), "{said}");
    assert!(said.contains("in all namespaces: grant it in RBAC"), "{said}");
    let ran = run(&config, &["review", &review]).await;
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stdout.contains("503 ServiceUnavailable"), "{ran:?}");
    assert!(ran.stdout.contains("may not list metal3"), "{ran:?}");

    // All but one right: that one is named.
    let config = account(&space, folder.path(), "some").await;
    let resources = "--resource=metal3datas.infrastructure.cluster.x-k8s.io,\
        metal3dataclaims.infrastructure.cluster.x-k8s.io,\
        metal3datatemplates.infrastructure.cluster.x-k8s.io,\
        metal3machinetemplates.infrastructure.cluster.x-k8s.io,\
        clusters.cluster.x-k8s.io,ipclaims.ipam.metal3.io";
    let account = format!("--serviceaccount={}:some", space.ns());
    for args in [
        &["create", "role", "reads", "--verb=get,list", resources, "-n", space.ns()][..],
        &["create", "rolebinding", "reads", "--role=reads", &account, "-n", space.ns()],
    ] {
        env.plane.kubectl(User::Admin, args).await.ok();
    }
    let args = ["can-delete", "workers", "-n", space.ns()];
    let said = run(&config, &args).await.failed(3);
    assert!(said.contains(&format!("may not list metal3machines {within}")), "{said}");
}

#[tokio::test]
async fn the_context_decides_which_cluster_is_asked() {
    let env = env().await;
    let space = env.space("contexts").await;
    space.create(&space.template("workers")).await.unwrap();
    let folder = TempDir::new().unwrap();
    let text = fs::read_to_string(env.plane.kubeconfig(User::Guard)).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let add = |config: &mut Value, list: &str, entry: Value| {
        config[list].as_array_mut().unwrap().push(entry);
    };
    let dead = json!({"name": "dead", "cluster": {"server": "https://127.0.0.1:1"}});
    add(&mut config, "clusters", dead);
    let dead = json!({"name": "dead", "context": {"cluster": "dead", "user": "guard"}});
    add(&mut config, "contexts", dead);
    config["current-context"] = json!("dead");
    let path = folder.path().join("contexts");
    fs::write(&path, config.to_string()).unwrap();

    let ask = ["can-delete", "workers", "-n", space.ns()];
    let with = |context| [&ask[..], &["--context", context]].concat();
    run(&path, &ask).await.failed(3);
    let said = run(&path, &with("tests")).await.ended(0);
    assert!(said.starts_with("YES "), "{said}");
    let said = run(&path, &with("nosuch")).await.failed(2);
    assert!(said.contains("nosuch"), "{said}");
}

/// A template that is terminating and used by a machine that is not.
async fn make_stuck(space: &Space) {
    let mut template = space.template("workers");
    template["metadata"]["annotations"] = json!({"metal3-guard.io/force-delete": "test"});
    space.create(&template).await.unwrap();
    space.create(&space.machine("w-0", "workers")).await.unwrap();
    space.delete("metal3datatemplates", "workers").await.unwrap();
}

/// What the API server would send about the deletion of this template.
fn deletion_review(template: &Value) -> Value {
    let version = Crds::of_binary().version();
    let group = "infrastructure.cluster.x-k8s.io";
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": group, "version": version, "kind": "Metal3DataTemplate"},
            "resource": {"group": group, "version": version, "resource": "metal3datatemplates"},
            "name": template["metadata"]["name"],
            "namespace": template["metadata"]["namespace"],
            "operation": "DELETE",
            "userInfo": {"username": "person"},
            "object": null,
            "oldObject": template,
        },
    })
}

/// A new service account of the test's namespace, and its kubeconfig.
pub(super) async fn account(space: &Space, folder: &Path, name: &str) -> PathBuf {
    let plane = env().await.plane;
    let create = ["create", "serviceaccount", name, "-n", space.ns()];
    plane.kubectl(User::Admin, &create).await.ok();
    let token = plane.kubectl(User::Admin, &["create", "token", name, "-n", space.ns()]).await.ok();
    kubeconfig(folder, name, &plane.url(), token.trim())
}

pub(super) fn kubeconfig(folder: &Path, name: &str, server: &str, token: &str) -> PathBuf {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{
            "name": name, "cluster": {"server": server, "insecure-skip-tls-verify": true},
        }],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    });
    let path = folder.join(name);
    fs::write(&path, config.to_string()).unwrap();
    path
}

/// Runs the program as a person would, with a kubeconfig.
pub(super) async fn run(kubeconfig: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(BINARY);
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("METAL3_GUARD_") {
            command.env_remove(key);
        }
    }
    let running = command
        .args(args)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
