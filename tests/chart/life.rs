//! Installed, upgraded, rolled back and removed, in a real API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::{Value, json};
use tokio::{
    process::Command,
    sync::{Mutex, MutexGuard},
};

use super::{
    NAMESPACE,
    helm::{Helm, chart},
    objects::Objects,
};
use crate::support::{
    BINARY, ControlPlane, Guard, PATIENCE, Ran, User, eventually, guard::SELF_MANAGED,
};

const CONFIGURATIONS: [&str; 2] =
    ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"];

/// Counts the times that a guard could not look after its certificates.
const FAILURES: &str = "metal3_guard_certificate_upkeep_failures_total";

/// A cluster with the guard's namespace and a template that nothing needs.
struct Cluster {
    plane: ControlPlane,
    helm: Helm,
    /// One at a time: each is a whole control plane.
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    async fn start() -> Self {
        static TURN: Mutex<()> = Mutex::const_new(());
        let turn = TURN.lock().await;
        let plane = ControlPlane::start().await;
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for crds in ["v1beta1", "others", "add-ons"] {
            plane.install_crds(&root.join(format!("tests/data/crds/{crds}.yaml"))).await;
        }
        plane.restart_controller_manager().await;
        let helm = Helm::of(&plane);
        let cluster = Self { plane, helm, _turn: turn };
        let namespace = root.join("manifests/base/account/namespace.yaml");
        cluster.kubectl(&["apply", "-f", namespace.to_str().unwrap()]).await;
        let template = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3DataTemplate",
            "metadata": {"name": "free", "namespace": "default"},
            "spec": {"clusterName": "none"},
        });
        cluster.apply(&template, "test").await;
        eventually("the accounts of the namespace", async || {
            let account = ["get", "serviceaccount", "default", "-n", NAMESPACE];
            cluster.plane.kubectl(User::Admin, &account).await.success.then_some(())
        })
        .await;
        cluster
    }

    async fn kubectl(&self, args: &[&str]) -> String {
        self.plane.kubectl(User::Admin, args).await.ok()
    }

    async fn apply(&self, object: &Value, manager: &str) {
        let manager = format!("--field-manager={manager}");
        let apply = ["apply", "--server-side", "--validate=ignore", &manager, "-f", "-"];
        self.plane.kubectl_with(User::Admin, &apply, &object.to_string()).await.ok();
    }

    async fn helm(&self, args: &[&str]) -> String {
        self.helm.run(&[args, &["--namespace", NAMESPACE]].concat()).await.ok()
    }

    async fn install(&self, args: &[&str]) -> String {
        let chart = chart();
        self.helm(&[&["install", "guard", chart.to_str().unwrap()], args].concat()).await
    }

    async fn upgrade(&self, args: &[&str]) {
        let chart = chart();
        self.helm(&[&["upgrade", "guard", chart.to_str().unwrap()], args].concat()).await;
    }

    async fn get(&self, kind: &str, name: &str) -> Value {
        let got = self.kubectl(&["get", kind, name, "-n", NAMESPACE, "-o", "json"]).await;
        serde_json::from_str(&got).unwrap()
    }

    /// All that there is, of every kind.
    async fn everything(&self) -> BTreeSet<String> {
        let kinds = self.kubectl(&["api-resources", "--verbs=list", "-o", "name"]).await;
        // Events are not removed but expire.
        let kinds: Vec<_> = kinds
            .lines()
            .filter(|kind| !kind.starts_with("events") && *kind != "componentstatuses")
            .collect();
        let columns = "custom-columns=:.kind,:.metadata.namespace,:.metadata.name";
        let get = ["get", &kinds.join(","), "-A", "--no-headers", "-o", columns];
        let lines = self.kubectl(&get).await;
        lines.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    /// A guard as the release's pods run it: as their account. That the Service does not lead to it
    /// is nothing to it.
    async fn guard(&self) -> Guard {
        let args = ["create", "token", "metal3-guard", "-n", NAMESPACE, "--duration=1h"];
        let token = self.kubectl(&args).await;
        let kubeconfig = self.plane.folder().join("of-the-guard");
        self.as_account(token.trim(), &kubeconfig);
        let args = [SELF_MANAGED];
        let guard = Guard::start(&self.plane, &kubeconfig, "127.0.0.1:0", &args).await.unwrap();
        guard.ready().await;
        guard
    }

    async fn secrets(&self, names: &[&str]) {
        for name in names {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "stringData": {"tls.crt": "a certificate", "tls.key": "a key"},
            });
            self.apply(&secret, "metal3-guard").await;
        }
    }

    /// The bundles of all webhooks; one that has none counts as empty.
    async fn bundles(&self) -> BTreeSet<String> {
        let mut bundles = BTreeSet::new();
        for kind in CONFIGURATIONS {
            for webhook in self.get(kind, "metal3-guard").await["webhooks"].as_array().unwrap() {
                let bundle = webhook["clientConfig"]["caBundle"].as_str().unwrap_or_default();
                bundles.insert(bundle.to_owned());
            }
        }
        bundles
    }

    async fn policy(&self, webhook: &str) -> Value {
        let live = self.get(CONFIGURATIONS[1], "metal3-guard").await;
        let webhooks = live["webhooks"].as_array().unwrap();
        webhooks.iter().find(|it| it["name"] == webhook).unwrap()["failurePolicy"].clone()
    }

    /// Asks for the deletion of the template, for show.
    async fn deletion(&self) -> Ran {
        let delete = ["delete", "metal3datatemplate", "free", "-n", "default", "--dry-run=server"];
        self.plane.kubectl(User::Admin, &delete).await
    }

    /// No guard runs here, so that a webhook that is in force refuses the deletion.
    async fn is_refused(&self) {
        eventually("the deletion of the template to be refused", async || {
            let ran = self.deletion().await;
            (!ran.success).then(|| {
                let said = ran.stderr;
                assert!(said.contains(r#"calling webhook "deletion.metal3-guard.io""#), "{said}");
            })
        })
        .await;
    }

    /// An API server takes a moment to see that a webhook is gone.
    async fn is_free(&self) {
        eventually("the deletion of the template to be let through", async || {
            self.deletion().await.success.then_some(())
        })
        .await;
    }

    /// Kind and name of what the audit log says was deleted, from this byte on.
    fn deleted(&self, from: usize) -> Vec<(String, String)> {
        let log = fs::read_to_string(self.plane.audit_log()).unwrap();
        let events = log[from..].lines().filter_map(|line| serde_json::from_str(line).ok());
        events
            .filter(|event: &Value| {
                event["verb"] == "delete" && event["responseStatus"]["code"] == 200
            })
            .map(|event| {
                let of = |key: &str| event["objectRef"][key].as_str().unwrap().to_owned();
                (of("resource"), of("name"))
            })
            .collect()
    }

    fn logged(&self) -> usize {
        fs::read_to_string(self.plane.audit_log()).unwrap().len()
    }
}

#[tokio::test]
async fn nothing_is_left_of_an_installation() {
    let cluster = Cluster::start().await;
    cluster.is_free().await;
    let before = cluster.everything().await;

    let notes = cluster.install(&[]).await;
    assert!(notes.contains("helm test guard -n metal3-guard-system"), "{notes}");
    assert!(!notes.contains("WARNING") && !notes.contains("--create-namespace"), "{notes}");
    cluster.is_refused().await;
    let mut guard = cluster.guard().await;
    let bundles = cluster.bundles().await;
    assert!(bundles.len() == 1 && !bundles.contains(""), "{bundles:?}");
    let filled = cluster.get("secret", "metal3-guard-tls").await["data"].clone();
    assert_ne!(filled["tls.key"], Value::Null);
    let installed = cluster.everything().await;
    // ServiceMonitor and PrometheusRule are among them: this cluster knows the kinds.
    for added in [
        "ServiceMonitor metal3-guard-system metal3-guard",
        "PrometheusRule metal3-guard-system metal3-guard",
        "Secret metal3-guard-system metal3-guard-tls",
    ] {
        assert!(!before.contains(added) && installed.contains(added), "{added}");
    }

    // An upgrade changes what it should, and not what is the guard's own.
    let changes = "replicas=3,webhooks.release.failurePolicy=Fail,controller.mode=observe";
    cluster.upgrade(&["--set", changes]).await;
    assert_eq!(cluster.get("deployment", "metal3-guard").await["spec"]["replicas"], 3);
    assert_eq!(cluster.policy("release.metal3-guard.io").await, "Fail");
    assert_eq!(cluster.bundles().await, bundles);
    let repair = cluster.get("clusterrole", "metal3-guard-repair").await;
    assert_eq!(repair["rules"].as_array().unwrap().len(), 1);

    cluster.helm(&["rollback", "guard", "1"]).await;
    assert_eq!(cluster.get("deployment", "metal3-guard").await["spec"]["replicas"], 2);
    assert_eq!(cluster.policy("release.metal3-guard.io").await, "Ignore");
    assert_eq!(cluster.bundles().await, bundles);
    assert_eq!(cluster.get("secret", "metal3-guard-tls").await["data"], filled);
    assert_eq!(guard.get("/readyz").await.unwrap().0, 200);
    let record = |it: &&String| !it.contains("sh.helm.release");
    assert_eq!(
        cluster.everything().await.iter().filter(record).collect::<Vec<_>>(),
        installed.iter().filter(record).collect::<Vec<_>>()
    );

    let logged = cluster.logged();
    let failures = guard.metric(FAILURES, "").await;
    cluster.helm(&["uninstall", "guard"]).await;
    cluster.is_free().await;
    assert_eq!(cluster.everything().await, before);
    the_webhooks_went_first(&cluster.deleted(logged));
    // A pod that outlives the release for a while puts nothing back.
    eventually("the guard to miss what is gone", async || {
        (guard.metric(FAILURES, "").await > failures).then_some(())
    })
    .await;
    guard.signal("TERM").unwrap();
    eventually("the guard to end", || std::future::ready(guard.has_ended().then_some(()))).await;
    assert_eq!(cluster.everything().await, before);

    // The Secrets of cert-manager go with their Certificates; one that a person made stays.
    cluster.install(&["--set", "certificates.mode=cert-manager"]).await;
    cluster.secrets(&["metal3-guard-tls", "metal3-guard-ca"]).await;
    cluster.helm(&["uninstall", "guard"]).await;
    assert_eq!(cluster.everything().await, before);
    cluster.secrets(&["metal3-guard-tls"]).await;
    cluster.install(&["--set", "certificates.mode=secret"]).await;
    cluster.helm(&["uninstall", "guard"]).await;
    let mut left = cluster.everything().await;
    assert!(left.remove("Secret metal3-guard-system metal3-guard-tls"));
    assert_eq!(left, before);
    cluster.is_free().await;
}

/// Or else deletions of templates would be refused while the rest is taken away.
fn the_webhooks_went_first(deleted: &[(String, String)]) {
    let at = |kind: &str| {
        let found = deleted.iter().position(|(resource, _)| resource == kind);
        found.unwrap_or_else(|| panic!("no deletion of {kind} in {deleted:?}"))
    };
    let webhooks = CONFIGURATIONS.map(|kind| at(&format!("{kind}s")));
    for kind in ["services", "deployments", "clusterroles", "clusterrolebindings", "secrets"] {
        assert!(webhooks.iter().all(|webhook| *webhook < at(kind)), "{kind}: {deleted:?}");
    }
}

/// Whoever deletes the namespace without `helm uninstall` is not left with a webhook that nobody
/// answers.
#[tokio::test]
async fn what_lies_in_no_namespace_goes_with_the_guards_namespace() {
    let cluster = Cluster::start().await;
    let others = |it: &String| !it.contains(NAMESPACE);
    let mut before = cluster.everything().await;
    before.retain(others);
    cluster.install(&[]).await;
    cluster.is_refused().await;
    cluster.kubectl(&["delete", "namespace", NAMESPACE]).await;
    cluster.is_free().await;
    eventually("the garbage collector to take the roles", async || {
        let mut left = cluster.everything().await;
        left.retain(others);
        (left == before).then_some(())
    })
    .await;
}

/// The same of what kustomize made, which knows no uid: the guard sees to it.
#[tokio::test]
async fn the_guard_ties_its_webhooks_to_its_namespace() {
    let cluster = Cluster::start().await;
    let rendered = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/rendered");
    let rendered = rendered.join("self-managed.yaml");
    cluster.kubectl(&["apply", "--server-side", "-f", rendered.to_str().unwrap()]).await;
    let guard = cluster.guard().await;
    let uid = cluster.get("namespace", NAMESPACE).await["metadata"]["uid"].clone();
    for kind in CONFIGURATIONS {
        eventually("the namespace to be an owner", async || {
            let live = cluster.get(kind, "metal3-guard").await;
            let owners = live["metadata"]["ownerReferences"].as_array()?.clone();
            (owners.len() == 1 && owners[0]["uid"] == uid).then_some(())
        })
        .await;
    }
    cluster.is_refused().await;
    guard.signal("TERM").unwrap();
    cluster.kubectl(&["delete", "namespace", NAMESPACE]).await;
    cluster.is_free().await;
    for kind in CONFIGURATIONS {
        let found = ["get", kind, "metal3-guard", "--ignore-not-found", "-o", "name"];
        assert_eq!(cluster.kubectl(&found).await, "", "{kind}");
    }
}

/// A namespace that is made along with the release is not known when the objects are made.
#[tokio::test]
async fn the_notes_say_what_a_new_namespace_lacks() {
    let cluster = Cluster::start().await;
    let new = "made-by-helm";
    let chart = chart();
    let args = [chart.to_str().unwrap(), "--namespace", new, "--create-namespace"];
    let install = [&["install", "guard"], &args[..]].concat();
    let notes = cluster.helm.run(&install).await.ok();
    assert!(notes.contains("run `helm upgrade` once"), "{notes}");
    let owners = async || {
        let live = cluster.get(CONFIGURATIONS[1], "metal3-guard").await;
        live["metadata"]["ownerReferences"].clone()
    };
    assert_eq!(owners().await, Value::Null);
    let upgrade = [&["upgrade", "guard"], &args[..3]].concat();
    let notes = cluster.helm.run(&upgrade).await.ok();
    assert!(notes.contains("kubectl label namespace made-by-helm pod-security"), "{notes}");
    assert_eq!(owners().await[0]["name"], new);
    let webhooks = async || {
        let admin = cluster.plane.kubeconfig(User::Admin);
        let checks = cluster.doctor(&admin, &["doctor"]).await;
        let found = |check: &Value| {
            let about = check["about"].as_str().unwrap().strip_prefix("webhook ")?.to_owned();
            Some((about, check["found"].as_str().unwrap().to_owned()))
        };
        checks.iter().filter_map(found).collect::<BTreeMap<_, _>>()
    };
    let found = webhooks().await;
    assert_eq!(found.len(), 6);
    assert!(found.values().all(|found| found == "as shipped"), "{found:?}");
    // A condition of one's own is no fault, but told.
    let mine = r#"webhooks.deletion.matchConditions=[{"name":"mine","expression":"true"}]"#;
    cluster.helm.run(&[&upgrade[..], &["--set-json", mine]].concat()).await.ok();
    let found = webhooks().await;
    let deletion = &found["deletion.metal3-guard.io"];
    assert!(deletion.starts_with("narrowed by its condition mine: "), "{deletion}");
    assert_eq!(found.values().filter(|found| *found == "as shipped").count(), 5, "{found:?}");
    let uninstall = ["uninstall", "guard", "--namespace", new];
    cluster.helm.run(&uninstall).await.ok();
    cluster.is_free().await;
}

/// No pod runs here; what it would run is run as the account that it would have.
#[tokio::test]
async fn the_test_may_look_at_all_that_doctor_looks_at() {
    let cluster = Cluster::start().await;
    cluster.install(&["--set", "controller.mode=observe"]).await;
    let mut hooks = cluster.helm.hooks(&["--set", "controller.mode=observe"]).await;
    hooks.retain(|hook| hook["metadata"]["annotations"]["helm.sh/hook"] == "test");
    let pod = hooks.get("test Pod/metal3-guard-system/metal3-guard-test").clone();
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap();
    let token = cluster.kubectl(&["create", "token", account, "-n", NAMESPACE]).await;
    let checks = async || {
        let kubeconfig = cluster.plane.folder().join("of-the-account");
        cluster.as_account(token.trim(), &kubeconfig);
        let args = pod["spec"]["containers"][0]["args"].as_array().unwrap();
        let args: Vec<_> = args.iter().map(|arg| arg.as_str().unwrap()).collect();
        cluster.doctor(&kubeconfig, &args).await
    };
    let forbidden = |checks: &[Value]| {
        checks.iter().filter(|check| check["found"].as_str().unwrap().contains("403")).count()
    };
    // The account alone may not, which is as it should be.
    assert_eq!(forbidden(&checks().await), 2);
    apply_without_pods(&cluster, &hooks).await;
    eventually("the rights of the test to count", async || {
        (forbidden(&checks().await) == 0).then_some(())
    })
    .await;
    // All is in order but that nothing runs, and the observer's rights are no fault.
    let checks = checks().await;
    let wrong: BTreeSet<_> = checks
        .iter()
        .filter(|check| check["state"] == "problem")
        .map(|check| check["about"].as_str().unwrap())
        .collect();
    let expected = [
        "certificate of metal3-guard.metal3-guard-system.svc:443",
        "endpoints of service metal3-guard-system/metal3-guard",
    ];
    assert_eq!(wrong, expected.into(), "{checks:?}");
}

async fn apply_without_pods(cluster: &Cluster, objects: &Objects) {
    let text = objects.yaml(|object| object["kind"] != "Pod");
    let apply = ["apply", "--server-side", "-f", "-"];
    cluster.plane.kubectl_with(User::Admin, &apply, &text).await.ok();
}

impl Cluster {
    /// What doctor says with a kubeconfig.
    async fn doctor(&self, kubeconfig: &Path, args: &[&str]) -> Vec<Value> {
        let mut doctor = Command::new(BINARY);
        doctor.args(args).args(["-o", "json"]).env("METAL3_GUARD_KUBECONFIG", kubeconfig);
        let output = doctor.kill_on_drop(true).output();
        let output = tokio::time::timeout(PATIENCE, output).await.unwrap().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["checks"].as_array().unwrap().clone()
    }

    /// Writes a kubeconfig for a token: the administrator's, with another user.
    fn as_account(&self, token: &str, to: &Path) {
        let admin = fs::read_to_string(self.plane.kubeconfig(User::Admin)).unwrap();
        let mut config: Value = serde_json::from_str(&admin).unwrap();
        config["users"][0]["user"] = json!({"token": token});
        fs::write(to, config.to_string()).unwrap();
    }
}
