//! Two management clusters, the guard on both, and a clusterctl that is far from the first.

use std::{fs, path::Path, time::Duration};

use serde_json::Value;

use super::{
    census::{self, Census},
    objects,
    relay::Relay,
    support::{
        Capi, ControlPlane, Delay, Guard, Namespace, Process, Release, User, eventually, guard,
    },
};

/// What comes of the guard's refusals on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing: they are held back.
    Observing,
    /// They count.
    Active,
}

/// Everything that a move needs.
pub(crate) struct Lab {
    release: Release,
    capi: Capi,
    relay: Relay,
    far: Delay,
    // In this order they are stopped.
    _managers: [Process; 2],
    guards: [Guard; 2],
    source: ControlPlane,
    target: ControlPlane,
}

/// What a move did.
pub(crate) struct Moved {
    pub(crate) namespace: Namespace,
    /// The source before the move, and the target after it, in comparable form.
    pub(crate) before: Census,
    pub(crate) there: Census,
    /// What is left on the source, as it is.
    pub(crate) left: Census,
    /// The guard's refusals that nobody was told, `Kind/name: message`.
    pub(crate) held_back: Vec<String>,
    /// Its refusals in its log, `Kind rule`.
    pub(crate) denied: Vec<String>,
    /// Writes of Cluster API's manager that the source's API server refused for the guard.
    pub(crate) refused: usize,
    /// Whether the manager had its answer to a write to the Cluster before clusterctl, which had
    /// just taken the finalizers off, deleted it. On a machine that is too busy nobody is near.
    pub(crate) near: bool,
}

impl Moved {
    /// One line for the log of the test.
    pub(crate) fn summary(&self) -> String {
        let left: Vec<_> = self.left.keys().map(String::as_str).collect();
        let left = if left.is_empty() { "nothing".into() } else { left.join(", ") };
        format!(
            "{} of {} objects on the target, left on the source: {left}; {} refusals reached the \
             manager, {} were held back",
            self.there.len(),
            self.before.len(),
            self.refused,
            self.held_back.len(),
        )
    }
}

impl Lab {
    /// Starts it all, with that round trip between clusterctl and the cluster that it moves from.
    /// Panics, with what to do about it, when it cannot be had.
    pub(crate) async fn start(release: Release, round_trip: Duration) -> Self {
        let capi = Capi::of(release).await.unwrap_or_else(|error| panic!("{error:#}"));
        let (source, target) = tokio::join!(ControlPlane::start(), ControlPlane::start());
        tokio::join!(prepare(&source, &capi, release), prepare(&target, &capi, release));
        let (there, here) = tokio::join!(start_guard(&target), start_guard(&source));
        there.register(&target).await.unwrap();
        let relay = Relay::start(&here).await.unwrap();
        let manifests = guard::manifests_for(&relay.address, &relay.ca_pem).unwrap();
        guard::apply(&source, &manifests).await.unwrap();
        for (plane, guard) in [(&source, &here), (&target, &there)] {
            plane.bind(User::Guard, "metal3-guard").await;
            plane.bind(User::Guard, "metal3-guard-repair").await;
            guard.ready().await;
        }
        tokio::join!(wait_registered(&source, release), wait_registered(&target, release));
        let managers = tokio::join!(capi.start_manager(&source), capi.start_manager(&target));
        let far = Delay::start(&source, User::Admin, round_trip).await.unwrap();
        Self {
            release,
            capi,
            relay,
            far,
            _managers: [managers.0.unwrap(), managers.1.unwrap()],
            guards: [here, there],
            source,
            target,
        }
    }

    /// Makes a cluster on the source and has clusterctl move it, which has to exit with 0.
    pub(crate) async fn move_cluster(&self, way: Way) -> Moved {
        let hint = match way {
            Way::Observing => "observing",
            Way::Active => "active",
        };
        let namespace = self.source.namespace(hint).await;
        if way == Way::Observing {
            self.relay.only_observe(namespace.name());
        }
        let before = self.provision(namespace.name()).await;
        let there = self.target.kubeconfig(User::Admin);
        let args = [
            "move",
            "--namespace",
            namespace.name(),
            "--kubeconfig",
            &self.far.kubeconfig().to_string_lossy(),
            "--to-kubeconfig",
            &there.to_string_lossy(),
            "-v=3",
        ];
        self.capi.clusterctl(&self.source, &args).await.unwrap().ok();
        let there = self.taken_over(namespace.name()).await;
        let audit = self.audit(namespace.name());
        Moved {
            before: census::comparable(&before),
            there: census::comparable(&there),
            left: self.left(namespace.name()).await,
            held_back: self.relay.held_back(namespace.name()),
            denied: self.denials(|review| review["namespace"] == namespace.name()),
            refused: audit.iter().filter(|event| is_refused(event)).count(),
            near: is_near(&audit),
            namespace,
        }
    }

    /// What is in a namespace of the source.
    pub(crate) async fn left(&self, namespace: &str) -> Census {
        census::take(&self.source.client(User::Admin).await, namespace).await
    }

    /// The refusals of such reviews in the log of the source's guard, `Kind rule`.
    pub(crate) fn denials(&self, of: impl Fn(&Value) -> bool) -> Vec<String> {
        let text = |review: &Value, key: &str| review[key].as_str().unwrap_or_default().to_owned();
        let log = self.guards[0].log();
        let denied = log.iter().filter(|line| line["message"] == "review");
        let denied = denied.filter(|review| review["verdict"] == "deny" && of(review));
        denied.map(|review| format!("{} {}", text(review, "kind"), text(review, "rule"))).collect()
    }

    /// The reviews that the source's guard counted under these labels.
    pub(crate) async fn counted(&self, labels: &str) -> String {
        self.guards[0].metric("metal3_guard_reviews_total", labels).await.to_string()
    }

    /// Makes the cluster and waits until there is nothing left to do for its manager.
    async fn provision(&self, namespace: &str) -> Census {
        for (object, status) in objects::parts(self.release, namespace) {
            let object = self.create(namespace, &object).await;
            let kind = object["kind"].as_str().unwrap();
            let status = serde_json::json!({"status": status}).to_string();
            let patch =
                ["patch", kind, "prod", "-n", namespace, "--subresource=status", "--type=merge"];
            self.source.kubectl(User::Admin, &[&patch[..], &["-p", &status]].concat()).await.ok();
        }
        let cluster = self.create(namespace, &objects::cluster(self.release, namespace)).await;
        for object in objects::templates_and_workers(self.release, namespace, &cluster) {
            self.create(namespace, &object).await;
        }
        eventually("Cluster API to provision the cluster", async || {
            let census = self.left(namespace).await;
            is_provisioned(&census).then_some(census)
        })
        .await
    }

    /// What is in a namespace of the target, once its manager reconciles the Cluster.
    async fn taken_over(&self, namespace: &str) -> Census {
        let client = self.target.client(User::Admin).await;
        eventually("the target's manager to take the cluster over", async || {
            let census = census::take(&client, namespace).await;
            census.get("Cluster/prod")?["status"]["phase"].is_string().then_some(census)
        })
        .await
    }

    async fn create(&self, namespace: &str, object: &Value) -> Value {
        let create = ["create", "-n", namespace, "-o", "json", "-f", "-"];
        let made = self.source.kubectl_with(User::Admin, &create, &object.to_string()).await;
        serde_json::from_str(&made.ok()).unwrap()
    }

    /// The audit log, in which the API server writes down each write and its own answer.
    fn audit(&self, namespace: &str) -> Vec<Value> {
        let log = fs::read_to_string(self.source.audit_log()).unwrap();
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["objectRef"]["namespace"] == namespace).collect()
    }
}

/// Whether this is a write of Cluster API's manager that a hook of the guard refused: nearly always
/// the manager gets the guard's words, but where the object was deleted meanwhile it is a 404.
fn is_refused(event: &Value) -> bool {
    event["user"]["username"] == User::Capi.name()
        && event["annotations"]["finalizers.mutating.metal3-guard.io/finalizers-refused"]
            .is_string()
        && [422, 404].contains(&event["responseStatus"]["code"].as_u64().unwrap_or_default())
}

/// See [`Moved::near`].
fn is_near(audit: &[Value]) -> bool {
    let of = |user: User, verb: &'static str| {
        audit.iter().filter(move |event| {
            let object = &event["objectRef"];
            event["user"]["username"] == user.name()
                && event["verb"] == verb
                && object["resource"] == "clusters"
                && object["subresource"].is_null()
        })
    };
    // Times of one clock in one form, which are in order as texts.
    let begun = |event: &Value| event["requestReceivedTimestamp"].to_string();
    let ended = |event: &Value| event["stageTimestamp"].to_string();
    let stripped = of(User::Admin, "patch").map(begun).max();
    let deleted = of(User::Admin, "delete").map(begun).max();
    of(User::Capi, "patch").any(|it| Some(begun(it)) > stripped && Some(ended(it)) < deleted)
}

/// Whether the manager has done its part: what clusterctl asks for, and what a move has to keep.
fn is_provisioned(census: &Census) -> bool {
    let Some(cluster) = census.get("Cluster/prod") else { return false };
    let status = &cluster["status"];
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let initialized = conditions.any(|condition| {
        condition["type"] == "ControlPlaneInitialized" && condition["status"] == "True"
    });
    let all = |key: &str, kinds: &[&str]| {
        kinds.iter().all(|kind| {
            let has = |object: &Value| {
                object["metadata"][key].as_array().is_some_and(|entries| !entries.is_empty())
            };
            let mut objects = census.values().filter(|object| object["kind"] == *kind).peekable();
            objects.peek().is_some() && objects.all(has)
        })
    };
    status["phase"] == "Provisioned"
        && initialized
        && all("finalizers", &["Cluster", "MachineDeployment", "MachineSet"])
        && all("ownerReferences", &["KubeadmControlPlane", "MachineDeployment", "MachineSet"])
        && all("ownerReferences", &["Metal3Cluster", "Metal3MachineTemplate"])
}

/// The kinds of Cluster API and CAPM3, labelled and listed as by `clusterctl init`.
async fn prepare(plane: &ControlPlane, capi: &Capi, release: Release) {
    plane.install_crds(&capi.crds()).await;
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/crds");
    for file in ["", "metal3cluster-"] {
        plane.install_crds(&own.join(format!("{file}{}.yaml", release.version()))).await;
    }
    let contract = format!("cluster.x-k8s.io/{0}={0}", release.version());
    let label = ["label", "crds", "--all", "clusterctl.cluster.x-k8s.io=", &contract];
    plane.kubectl(User::Admin, &label).await.ok();
    let providers = objects::providers(release).to_string();
    plane.kubectl_with(User::Admin, &["create", "-f", "-"], &providers).await.ok();
    plane.restart_controller_manager().await;
}

/// As it is run: its controller, too, has to leave a move alone.
async fn start_guard(plane: &ControlPlane) -> Guard {
    let kubeconfig = plane.kubeconfig(User::Guard);
    Guard::start(plane, &kubeconfig, "127.0.0.1:0", &["--controller", "act"]).await.unwrap()
}

/// Waits until the API server calls the hooks of both kinds, for writes that are refused on sight.
async fn wait_registered(plane: &ControlPlane, release: Release) {
    let namespace = plane.namespace("registered").await;
    let name = namespace.name();
    let probes = objects::probes(release).to_string();
    plane.kubectl_with(User::Admin, &["create", "-n", name, "-f", "-"], &probes).await.ok();
    let asked = ["-n", name, "--dry-run=server"];
    let delete = [&["delete", "metal3datatemplate", "not-deleted"], &asked[..]].concat();
    let finalizer = r#"{"metadata": {"finalizers": ["tests.metal3-guard.io/late"]}}"#;
    let add = ["patch", "metal3datatemplate", "no-finalizer", "--type=merge", "-p", finalizer];
    let add = [&add[..], &asked[..]].concat();
    for (args, told) in [(delete, "without a reason"), (add, "moved away by clusterctl")] {
        eventually("the API server to call the guard", async || {
            let ran = plane.kubectl(User::Admin, &args).await;
            ran.stderr.contains(told).then_some(())
        })
        .await;
    }
}
