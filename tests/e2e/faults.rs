//! What happens when parts fail. Each test has a control plane of its own, one after another: two
//! cores carry no more, and the rest of the scenarios runs beside them.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{Method, Request};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, MutexGuard, oneshot},
    task::JoinHandle,
};

use super::{Crds, Space};
use crate::support::{ControlPlane, Guard, User, guard};

mod cluster;
mod crds;
mod guard_down;
pub(super) mod load;
mod rolling;

const TEMPLATES: &str = "metal3datatemplates";

/// Waits until no other test has a control plane of its own.
pub(super) async fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::const_new(());
    ONE.lock().await
}

/// A control plane of the test's own.
pub(super) struct Own {
    pub(super) plane: ControlPlane,
    // After the control plane: the next one starts when this one has ended.
    _alone: MutexGuard<'static, ()>,
}

impl Own {
    pub(super) async fn start() -> Self {
        let alone = alone().await;
        Self { plane: ControlPlane::start().await, _alone: alone }
    }

    pub(super) async fn install_crds(&self) {
        for file in Crds::of_binary().files() {
            self.plane.install_crds(&file).await;
        }
    }

    /// A guard under its own account.
    async fn guard(&self) -> Guard {
        let kubeconfig = self.plane.kubeconfig(User::Guard);
        Guard::start(&self.plane, &kubeconfig, "127.0.0.1:0", &[]).await.unwrap()
    }

    /// The shipped hooks and rights, with the hooks pointed at `address`.
    async fn register(&self, guard: &Guard, address: &str) {
        let manifests = guard.manifests().unwrap().replace(&guard.address, address);
        guard::apply(&self.plane, &manifests).await.unwrap();
        self.plane.bind(User::Guard, "metal3-guard").await;
    }

    pub(super) async fn space(&self, hint: &str) -> Space {
        let namespace = self.plane.namespace(hint).await;
        let kubeconfig = Kubeconfig::read_from(self.plane.kubeconfig(User::Admin)).unwrap();
        Space { client: client(kubeconfig).await, namespace }
    }
}

/// A client that does not try again by itself: here the first answer counts.
async fn client(kubeconfig: Kubeconfig) -> Client {
    rustls::crypto::ring::default_provider().install_default().ok();
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// A template that a machine uses.
async fn create_held(space: &Space, name: &str) {
    space.create(&space.template(name)).await.unwrap();
    space.create(&space.machine(&format!("{name}-0"), name)).await.unwrap();
}

/// The deletion of a template, for show.
async fn dry_delete(space: &Space, name: &str) -> Result<Value, String> {
    let url = format!("{}?dryRun=All", space.url(TEMPLATES, name, ""));
    attempt(space, Method::DELETE, &url).await
}

/// A request that may find no API server; the error is `code reason: message`, or how it failed.
async fn attempt(space: &Space, method: Method, url: &str) -> Result<Value, String> {
    let request = Request::builder().method(method).uri(url).body(Vec::new()).unwrap();
    space.client.request::<Value>(request).await.map_err(|error| match error {
        kube::Error::Api(status) => {
            format!("{} {}: {}", status.code, status.reason, status.message)
        }
        other => format!("{other:?}"),
    })
}

/// Whether the template is there, and nobody deleted it.
async fn is_whole(space: &Space, name: &str) -> bool {
    let read = attempt(space, Method::GET, &space.url(TEMPLATES, name, "")).await;
    read.is_ok_and(|template| template["metadata"].get("deletionTimestamp").is_none())
}

/// What a guard says to a review that comes past the API server.
struct Direct {
    client: Client,
}

struct Answer {
    allowed: bool,
    code: u64,
    message: String,
}

impl Direct {
    async fn to(guard: &Guard) -> Self {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "guard",
            "clusters": [{"name": "guard", "cluster": {
                "server": format!("https://{}", guard.address),
                "certificate-authority-data": BASE64_STANDARD.encode(&guard.ca_pem),
            }}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "guard", "context": {"cluster": "guard", "user": "nobody"}}],
        });
        let kubeconfig = Kubeconfig::from_yaml(&kubeconfig.to_string()).unwrap();
        Self { client: client(kubeconfig).await }
    }

    /// Asks whether the template may be deleted.
    async fn may_delete(&self, space: &Space, name: &str) -> Answer {
        let version = Crds::of_binary().version();
        let group = "infrastructure.cluster.x-k8s.io";
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": format!("direct-{name}"), "operation": "DELETE",
                "kind": {"group": group, "version": version, "kind": "Metal3DataTemplate"},
                "resource": {"group": group, "version": version, "resource": TEMPLATES},
                "namespace": space.ns(), "name": name,
                "userInfo": {"username": "admin"}, "dryRun": false,
                "object": null, "oldObject": space.template(name),
            },
        });
        let request = Request::post("/validate/deletion?timeout=5s")
            .header("Content-Type", "application/json")
            .body(serde_json::to_vec(&review).unwrap())
            .unwrap();
        let answer: Value = self.client.request(request).await.unwrap();
        let response = &answer["response"];
        Answer {
            allowed: response["allowed"].as_bool().unwrap(),
            code: response["status"]["code"].as_u64().unwrap_or_default(),
            message: response["status"]["message"].as_str().unwrap_or_default().to_owned(),
        }
    }
}

/// Asks a guard all the time whether it is ready.
struct Probe {
    stop: oneshot::Sender<()>,
    task: JoinHandle<(usize, Vec<String>)>,
}

impl Probe {
    /// The guard must be ready now, and stay so.
    fn start(guard: &Arc<Guard>) -> Self {
        let guard = Arc::clone(guard);
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let (mut asked, mut unready) = (0, Vec::new());
            while stopped.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
                match guard.get("/readyz").await {
                    Ok((200, _)) => {}
                    other => unready.push(format!("{other:?}")),
                }
                asked += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            (asked, unready)
        });
        Self { stop, task }
    }

    async fn finish(self) {
        self.stop.send(()).unwrap();
        let (asked, unready) = self.task.await.unwrap();
        assert!(asked > 0, "readiness was never asked for");
        assert!(unready.is_empty(), "not ready {} of {asked} times: {unready:?}", unready.len());
    }
}
