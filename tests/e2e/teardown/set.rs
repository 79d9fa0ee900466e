//! A whole set, as CAPM3 keeps it, and how it is torn down.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    super::{Crds, DATA_FINALIZER, Env, MACHINE_FINALIZER, Space, moment, resource_of},
    MACHINES, NAMESPACE_RETRY, TEMPLATES, is_terminating,
};
use crate::support::{Behaviour, Capm3, ControlPlane, PATIENCE, User, eventually};

/// All kinds that a set has.
const RESOURCES: [&str; 6] =
    ["clusters", "metal3datas", "metal3dataclaims", TEMPLATES, MACHINES, "metal3machinetemplates"];

/// A host that takes its time, until a test takes this off its machine.
pub(super) const HOLD: &str = "hosts.example.com/busy";

/// Who is owned by the Cluster.
pub(super) enum Owned {
    None,
    Machines,
    All,
}

/// A Cluster, a template, machines, a machine template, and what CAPM3 makes of them.
pub(super) struct Set {
    pub(super) space: Space,
    pub(super) machines: Vec<String>,
    /// Runs as long as the set is looked at.
    _capm3: Capm3,
}

impl Set {
    /// A set of that many machines, each with its claim and Metal3Data.
    pub(super) async fn live(
        plane: &ControlPlane,
        space: Space,
        machines: usize,
        owned: &Owned,
    ) -> Self {
        Self::create(plane, space, machines, owned, &[MACHINE_FINALIZER]).await
    }

    /// A set that its Cluster owns, whose hosts are busy until [`Self::release_hosts`].
    pub(super) async fn held(env: &Env, space: Space) -> Self {
        Self::create(env.plane, space, 3, &Owned::All, &[MACHINE_FINALIZER, HOLD]).await
    }

    async fn create(
        plane: &ControlPlane,
        space: Space,
        machines: usize,
        owned: &Owned,
        finalizers: &[&str],
    ) -> Self {
        let mut cluster = space.object("Cluster", "prod", &[], &json!({}));
        cluster["apiVersion"] = "cluster.x-k8s.io/v1beta1".into();
        let cluster = space.create(&cluster).await.unwrap();
        let by_cluster = |blocks: bool| {
            json!([{
                "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "name": "prod",
                "uid": cluster["metadata"]["uid"], "blockOwnerDeletion": blocks,
            }])
        };
        let mut template = space.template("workers");
        let mut machine_template = space.machine_template("workers", "workers");
        if matches!(owned, Owned::All) {
            template["metadata"]["ownerReferences"] = by_cluster(false);
            machine_template["metadata"]["ownerReferences"] = by_cluster(false);
        }
        space.create(&template).await.unwrap();
        space.create(&machine_template).await.unwrap();
        let machines: Vec<_> = (0..machines).map(|n| format!("w-{n}")).collect();
        let version = Crds::of_binary().version();
        let capm3 = Capm3::start(plane, space.ns(), version, Behaviour::default()).await;
        for name in &machines {
            let mut machine = space.machine(name, "workers");
            machine["metadata"]["finalizers"] = json!(finalizers);
            if !matches!(owned, Owned::None) {
                machine["metadata"]["ownerReferences"] = by_cluster(true);
            }
            space.create(&machine).await.unwrap();
        }
        space.indexed("workers", machines.len()).await;
        Self { space, machines, _capm3: capm3 }
    }

    /// Waits until the collector was refused the template; the template must not have suffered.
    pub(super) async fn let_the_collector_try(&self, env: &Env) {
        eventually("the collector to be refused the template", async || {
            (env.guard.judged(self.space.ns(), "deletion.in_use") > 0).then_some(())
        })
        .await;
        let template = self.space.get(TEMPLATES, "workers").await.unwrap();
        assert!(!is_terminating(&template), "{template}");
    }

    /// Takes [`HOLD`] off the machines, all of which are terminating by then.
    pub(super) async fn release_hosts(&self) {
        for name in &self.machines {
            let done = json!([HOLD]);
            eventually("CAPM3 to be done with a machine", async || {
                let machine = self.space.get(MACHINES, name).await?;
                (machine["metadata"]["finalizers"] == done).then_some(())
            })
            .await;
            self.space.finish(MACHINES, name).await;
        }
    }

    /// Deletes the namespace and says how long that took.
    pub(super) async fn delete_namespace(&self) -> Duration {
        let url = format!("/api/v1/namespaces/{}", self.space.ns());
        let started = Instant::now();
        self.space.send(Method::DELETE, &url, None).await.unwrap();
        // Longer than for anything else: three of the longest pauses of the namespace controller.
        while self.space.send(Method::GET, &url, None).await.is_ok() {
            let waited = started.elapsed();
            let condition = self.space.send(Method::GET, &url, None).await;
            assert!(waited < PATIENCE + NAMESPACE_RETRY, "still there: {condition:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        started.elapsed()
    }
}

impl Space {
    async fn list(&self, resource: &str) -> Vec<Value> {
        let listed = self.send(Method::GET, &self.url(resource, "", ""), None).await.unwrap();
        listed["items"].as_array().cloned().unwrap_or_default()
    }

    /// What is left of a set, as `resource/name`.
    pub(super) async fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for resource in RESOURCES {
            let names = self.list(resource).await;
            let names = names.iter().filter_map(|it| it["metadata"]["name"].as_str());
            left.extend(names.map(|name| format!("{resource}/{name}")));
        }
        left
    }

    pub(super) async fn nothing_left(&self) {
        eventually("everything to be gone", async || self.left().await.is_empty().then_some(()))
            .await;
    }

    /// Waits until CAPM3 has made that many claims and Metal3Data for a template, and said so.
    pub(super) async fn indexed(&self, template: &str, number: usize) {
        eventually("CAPM3 to serve all machines", async || {
            let entries = match &self.get(TEMPLATES, template).await?["status"]["indexes"] {
                Value::Object(by_claim) => by_claim.len(),
                Value::Array(list) => list.len(),
                _ => 0,
            };
            let data = self.list("metal3datas").await;
            let ready = data.iter().filter(|it| {
                let finalizers = it["metadata"]["finalizers"].as_array();
                it["spec"]["template"]["name"] == template
                    && finalizers.is_some_and(|it| it.contains(&DATA_FINALIZER.into()))
            });
            (entries == number && ready.count() == number).then_some(())
        })
        .await;
    }
}

/// Runs `kubectl delete -f` again and again, as a person would, until it succeeds; returns what
/// each run complained about.
pub(super) async fn delete_file_until_gone(
    env: &Env,
    space: &Space,
    order: [&str; 6],
) -> Vec<String> {
    let mut objects = Vec::new();
    for kind in order {
        objects.extend(space.list(resource_of(&json!({"kind": kind}))).await.into_iter().map(
            |object| {
                let name = &object["metadata"]["name"];
                json!({
                    "apiVersion": object["apiVersion"], "kind": object["kind"],
                    "metadata": {"name": name, "namespace": space.ns()},
                })
            },
        ));
    }
    let file = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let args = ["delete", "--ignore-not-found", "--timeout=60s", "-f", "-"];
    let mut complaints = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let ran = env.plane.kubectl_with(User::Admin, &args, &file).await;
        if ran.success {
            return complaints;
        }
        complaints.push(ran.stderr);
        moment().await;
    }
    panic!("kubectl did not get rid of {:?} in order {order:?}: {complaints:?}", space.left().await)
}
