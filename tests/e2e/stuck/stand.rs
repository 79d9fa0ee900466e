//! A namespace with a template, machines and a CAPM3 of its own, and what is left of them.

use http::Method;
use serde_json::{Value, json};

use super::{
    super::{Crds, Space},
    words::{Owners, lines, revisions},
};
use crate::support::{
    Behaviour, Capm3, Collector, ControlPlane, User,
    capm3::{ALL, Hold, Point, Release, Role},
    eventually,
};

pub(super) const TEMPLATES: &str = "metal3datatemplates";
pub(super) const MACHINES: &str = "metal3machines";
pub(super) const CLAIMS: &str = "metal3dataclaims";
pub(super) const DATAS: &str = "metal3datas";
pub(super) const IP_CLAIMS: &str = "ipclaims";
/// Those that the recordings have.
const RECORDED: [&str; 4] = [TEMPLATES, DATAS, CLAIMS, MACHINES];

/// The template of every stand.
pub(super) const TEMPLATE: &str = "workers";

/// What a scenario is about.
pub(super) struct Stand {
    pub(super) space: Space,
    pub(super) capm3: Capm3,
    pub(super) behaviour: Behaviour,
    pub(super) machines: Vec<String>,
    collector: Collector,
}

impl Stand {
    /// A Cluster, a template that asks for addresses, and a running CAPM3.
    pub(super) async fn empty(plane: &ControlPlane, hint: &str, behaviour: Behaviour) -> Self {
        let space = new_space(plane, hint).await;
        create_cluster(&space).await;
        // After the Cluster, which a manager may miss that learns of both at the same time.
        let stand = Self::in_space(plane, space, behaviour).await;
        stand.create_template().await;
        stand.capm3.settled(&ALL).await;
        stand
    }

    /// A template whose Cluster is not there yet.
    pub(super) async fn without_cluster(
        plane: &ControlPlane,
        hint: &str,
        behaviour: Behaviour,
    ) -> Self {
        let stand = Self::in_space(plane, new_space(plane, hint).await, behaviour).await;
        stand.create_template().await;
        stand.capm3.settled(&ALL).await;
        stand
    }

    async fn in_space(plane: &ControlPlane, space: Space, behaviour: Behaviour) -> Self {
        let version = Crds::of_binary().version();
        let capm3 = Capm3::start(plane, space.ns(), version, behaviour).await;
        let collector = plane.collector();
        Self { space, capm3, behaviour, machines: Vec::new(), collector }
    }

    /// With machines that have all that CAPM3 gives them.
    pub(super) async fn live(
        plane: &ControlPlane,
        hint: &str,
        behaviour: Behaviour,
        machines: usize,
    ) -> Self {
        let mut stand = Self::empty(plane, hint, behaviour).await;
        for number in 0..machines {
            let name = format!("w-{number}");
            stand.create_machine(&name).await;
            stand.machines.push(name);
            // In this order they get their indexes.
            stand.capm3.settled(&ALL).await;
        }
        assert_eq!(stand.list(DATAS).await.len(), machines);
        stand
    }

    /// With machines that never get a host, and claims that a person has made for them.
    pub(super) async fn by_hand(plane: &ControlPlane, hint: &str, behaviour: Behaviour) -> Self {
        let behaviour = Behaviour { hosts: false, ..behaviour };
        let mut stand = Self::empty(plane, hint, behaviour).await;
        for number in 0..3 {
            let name = format!("w-{number}");
            let machine = stand.create_machine(&name).await;
            stand.create_claim(&name, Some(&machine)).await;
            stand.machines.push(name);
            stand.capm3.settled(&ALL).await;
        }
        stand
    }

    /// As a person makes it: its finalizer comes from CAPM3.
    pub(super) async fn create_template(&self) {
        let mut template = self.space.template(TEMPLATE);
        template["metadata"]["finalizers"] = json!([]);
        let key = match Crds::of_binary() {
            Crds::V1beta1 => "ipAddressesFromIPPool",
            Crds::V1beta2 => "ipAddressesFromPool",
        };
        template["spec"]["metaData"] = json!({key: [{
            "apiGroup": "ipam.metal3.io", "kind": "IPPool", "name": "pool", "key": "provisioningIP",
        }]});
        self.space.create(&template).await.unwrap();
    }

    /// As Cluster API makes it: its finalizer comes from CAPM3.
    pub(super) async fn create_machine(&self, name: &str) -> Value {
        let mut machine = self.space.machine(name, TEMPLATE);
        machine["metadata"]["finalizers"] = json!([]);
        self.space.create(&machine).await.unwrap()
    }

    /// As a person makes it.
    pub(super) async fn create_claim(&self, name: &str, machine: Option<&Value>) {
        let mut claim = self.space.claim(name, TEMPLATE);
        claim["metadata"]["finalizers"] = json!([]);
        if let Some(machine) = machine {
            claim["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
                "kind": "Metal3Machine", "name": name, "uid": machine["metadata"]["uid"], "controller": true,
            }]);
        }
        self.space.create(&claim).await.unwrap();
    }

    /// A DELETE. One that is gone is deleted, and one that the guard keeps will be: says which.
    pub(super) async fn delete(&self, resource: &str, name: &str) -> bool {
        eventually(&format!("an answer on {resource}/{name}"), async || {
            match self.space.delete(resource, name).await {
                Ok(_) => Some(true),
                Err(refused) if refused.code == 404 => Some(true),
                Err(refused) if refused.code == 403 => Some(false),
                // A guard that had no time to look.
                Err(refused) if refused.code == 503 => None,
                Err(refused) => panic!("{resource}/{name}: {refused:?}"),
            }
        })
        .await
    }

    /// A DELETE of the namespace, without waiting for anything. It may be gone.
    pub(super) async fn delete_namespace(&self) {
        let deleted = self.space.send(Method::DELETE, &self.namespace_url(), None).await;
        assert!(!matches!(&deleted, Err(refused) if refused.code != 404), "{deleted:?}");
    }

    pub(super) async fn namespace_gone(&self) {
        self.end_cluster().await;
        eventually(&format!("namespace {} to be gone", self.space.ns()), async || {
            let namespace = self.space.send(Method::GET, &self.namespace_url(), None).await;
            namespace.is_err_and(|refused| refused.code == 404).then_some(())
        })
        .await;
    }

    /// The namespace is terminating, and its controller has found what it cannot get rid of.
    pub(super) async fn namespace_hangs(&self) {
        self.end_cluster().await;
        eventually("the namespace to wait for what is left", async || {
            let namespace =
                self.space.send(Method::GET, &self.namespace_url(), None).await.unwrap();
            let conditions = namespace["status"]["conditions"].as_array()?;
            let hangs =
                |it: &Value| it["type"] == "NamespaceFinalizersRemaining" && it["status"] == "True";
            conditions.iter().any(hangs).then_some(())
        })
        .await;
    }

    /// Cluster API lets the Cluster go after the last machine.
    async fn end_cluster(&self) {
        self.none(MACHINES).await;
        self.space.finish("clusters", "prod").await;
        self.space.gone("clusters", "prod").await;
    }

    fn namespace_url(&self) -> String {
        format!("/api/v1/namespaces/{}", self.space.ns())
    }

    /// An event: a write that changes nothing that matters.
    pub(super) async fn touch(&self, resource: &str, name: &str) {
        self.space.patch(resource, name, "", touched()).await.unwrap();
    }

    pub(super) async fn list(&self, resource: &str) -> Vec<Value> {
        let url = self.space.url(resource, "", "");
        let listed = self.space.send(Method::GET, &url, None).await.unwrap();
        listed["items"].as_array().cloned().unwrap_or_default()
    }

    pub(super) async fn exists(&self, resource: &str, name: &str) {
        eventually(&format!("{resource}/{name} to be there"), async || {
            self.space.get(resource, name).await.map(drop)
        })
        .await;
    }

    /// Waits until there are objects of a kind, and all pass a test.
    pub(super) async fn all(&self, resource: &str, what: &str, is: impl Fn(&Value) -> bool) {
        eventually(&format!("all {resource} to be {what}"), async || {
            let objects = self.list(resource).await;
            (!objects.is_empty() && objects.iter().all(&is)).then_some(())
        })
        .await;
    }

    /// Waits until there are no objects of a kind.
    pub(super) async fn none(&self, resource: &str) {
        eventually(&format!("all {resource} to be gone"), async || {
            self.list(resource).await.is_empty().then_some(())
        })
        .await;
    }

    /// Everything that the recordings have, in their words.
    pub(super) async fn left(&self) -> Vec<String> {
        lines(&self.objects().await, Owners::Compared)
    }

    /// The same, comparable with a recording of another API version.
    pub(super) async fn left_whoever_owns_it(&self) -> Vec<String> {
        lines(&self.objects().await, Owners::Any)
    }

    async fn objects(&self) -> Vec<Value> {
        let mut objects = Vec::new();
        for resource in RECORDED {
            objects.extend(self.list(resource).await);
        }
        objects
    }

    /// Nothing is going to happen any more: no controller has anything to do, nor plans to, and
    /// nobody else writes either.
    pub(super) async fn stays(&self) {
        self.capm3.settled(&ALL).await;
        let before = self.objects().await;
        super::super::moment().await;
        self.capm3.settled(&ALL).await;
        assert_eq!(revisions(&before), revisions(&self.objects().await));
    }

    /// A controller looks again and again, and nothing comes of it.
    pub(super) async fn stays_however_often_capm3_looks(&self, role: Role) {
        self.capm3.idle(&ALL).await;
        let before = self.left().await;
        let looks = self.capm3.looks(role);
        eventually("CAPM3 to look again", async || {
            (self.capm3.looks(role) > looks + 2 * before.len()).then_some(())
        })
        .await;
        self.capm3.idle(&ALL).await;
        assert_eq!(before, self.left().await);
    }

    /// Nothing comes of it any more, whether CAPM3 looks at the template again or not.
    pub(super) async fn stays_in_any_release(&self) {
        match self.behaviour.release {
            Release::V1_8_1 => self.stays().await,
            Release::Later => self.stays_however_often_capm3_looks(Role::Template).await,
        }
    }

    /// Deletes all machines; their hosts are released when the test lets them.
    pub(super) async fn delete_machines(&self) -> Hold {
        let hosts = self.capm3.hold(Point::MachineLook);
        for name in &self.machines {
            self.delete(MACHINES, name).await;
        }
        hosts
    }

    /// Releases one host after the other; the template is looked at in between.
    pub(super) async fn release_hosts_one_by_one(&self, hosts: Hold) {
        while !self.list(MACHINES).await.is_empty() {
            self.capm3.one_look(&hosts, Role::Machine).await;
            self.settled(Role::Template).await;
        }
        drop(hosts);
        self.none(CLAIMS).await;
        self.settled(Role::Template).await;
    }

    /// Makes sure of the end of what 1.8.1 would forget.
    pub(super) async fn touch_all_until_gone(&self, resource: &str) {
        eventually(&format!("all {resource} to be gone"), async || {
            let left = self.list(resource).await;
            for object in &left {
                let name = object["metadata"]["name"].as_str().unwrap();
                // It may be gone by now.
                self.space.patch(resource, name, "", touched()).await.ok();
            }
            left.is_empty().then_some(())
        })
        .await;
    }

    /// Waits until the garbage collector has heard of each Metal3Data that is being deleted.
    pub(super) async fn heard_by_the_collector(&self) {
        let uid = |it: &Value| it["metadata"]["uid"].as_str().unwrap().to_owned();
        eventually("the garbage collector to hear of what is being deleted", async || {
            // Each time: one that is gone meanwhile it does not know any more.
            let datas = self.list(DATAS).await;
            let uids: Vec<_> = datas.iter().filter(|it| is_terminating(it)).map(uid).collect();
            assert!(!uids.is_empty(), "none is being deleted");
            self.collector.sees_deletion(&uids).await.then_some(())
        })
        .await;
    }

    /// Waits until a controller has looked at everything that has happened. Later releases plan a
    /// further look, which is not waited for.
    pub(super) async fn settled(&self, role: Role) {
        match self.behaviour.release {
            Release::V1_8_1 => self.capm3.settled(&[role]).await,
            Release::Later => self.capm3.idle(&[role]).await,
        }
    }
}

fn touched() -> Value {
    let now = jiff::Timestamp::now().to_string();
    json!({"metadata": {"annotations": {"example.com/touched": now}}})
}

pub(super) async fn new_space(plane: &ControlPlane, hint: &str) -> Space {
    let namespace = plane.namespace(hint).await;
    Space { client: plane.client(User::Admin).await, namespace }
}

pub(super) async fn create_cluster(space: &Space) {
    let mut cluster = space.object("Cluster", "prod", &["cluster.cluster.x-k8s.io"], &json!({}));
    cluster["apiVersion"] = "cluster.x-k8s.io/v1beta1".into();
    space.create(&cluster).await.unwrap();
}

pub(super) fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}
