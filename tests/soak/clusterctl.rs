//! `clusterctl move`, request by request, from one namespace to the other.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    random::Random,
    space::{CLUSTERS, RESOURCES, Refused, Sent, Space},
    user::{finalizers, name},
    walk::Order,
};

/// One move.
pub(crate) struct Move<'a> {
    pub(crate) from: &'a Space,
    pub(crate) to: &'a Space,
    pub(crate) order: Order,
    /// Whether a controller that has not heard of the pause puts its finalizers back.
    pub(crate) stale_controller: bool,
}

impl Move<'_> {
    /// Pauses the Cluster, makes everything again on the target, owners first, then ends everything
    /// on the source, what is owned first.
    pub(crate) async fn run(&self, random: &mut Random) -> Sent<()> {
        let paused = json!({"spec": {"paused": true}});
        self.from.patch(CLUSTERS, "prod", &paused).await?;
        let mut objects = Vec::new();
        for resource in RESOURCES {
            let listed = self.from.list(resource).await?;
            objects.extend(listed.into_iter().map(|object| (resource, object)));
        }
        let mut uids = BTreeMap::new();
        for (resource, object) in &objects {
            let made = match self.to.create(resource, &self.placed(object, &uids)).await {
                Err(Refused { code: 409, .. }) => self.to.get(resource, name(object)).await?,
                made => Some(made?),
            };
            let uid = |object: &Value| object["metadata"]["uid"].clone();
            uids.insert(uid(object).to_string(), made.as_ref().map(uid).unwrap_or_default());
        }
        for (resource, object) in objects.iter().rev() {
            self.end(random, resource, name(object)).await?;
        }
        let unpaused = json!({"spec": {"paused": false}});
        self.to.patch(CLUSTERS, "prod", &unpaused).await.map(drop)
    }

    /// As it is made on the target: with finalizers, with the new uids of its owners, without what
    /// only the API server writes.
    fn placed(&self, object: &Value, uids: &BTreeMap<String, Value>) -> Value {
        let mut placed = object.clone();
        placed.as_object_mut().unwrap().remove("status");
        let old = &object["metadata"];
        let mut metadata = json!({"namespace": self.to.ns()});
        for key in ["name", "labels", "annotations", "finalizers"] {
            if !old[key].is_null() {
                metadata[key] = old[key].clone();
            }
        }
        let mut owners = old["ownerReferences"].as_array().cloned().unwrap_or_default();
        for owner in &mut owners {
            if let Some(uid) = uids.get(&owner["uid"].to_string()) {
                owner["uid"] = uid.clone();
            }
        }
        // clusterctl knows no owner that it did not move.
        owners.retain(|owner| uids.values().any(|uid| *uid == owner["uid"]));
        if !owners.is_empty() {
            metadata["ownerReferences"] = owners.into();
        }
        placed["metadata"] = metadata;
        for part in ["template", "claim", "dataTemplate"] {
            let spec = &mut placed["spec"][part];
            if spec["namespace"].is_string() {
                spec["namespace"] = self.to.ns().into();
            } else if spec.is_null() {
                placed["spec"].as_object_mut().unwrap().remove(part);
            }
        }
        placed
    }

    /// Ends one object on the source. It may be gone already, at any point.
    async fn end(&self, random: &mut Random, resource: &str, name: &str) -> Sent<()> {
        let mark = json!([{
            "op": "add", "path": "/metadata/annotations",
            "value": {"clusterctl.cluster.x-k8s.io/delete-for-move": ""},
        }]);
        let url = self.from.url(resource, name);
        let marked = match self.from.send(Method::PATCH, &url, &mark).await {
            Err(Refused { code: 404, .. }) => return Ok(()),
            marked => marked?,
        };
        let held = finalizers(&marked);
        // clusterctl is far away.
        sleep(random.pause(0, 80)).await;
        match self.order {
            Order::Older => {
                self.strip(resource, name, &held).await?;
                sleep(random.pause(0, 80)).await;
                if self.stale_controller && random.chance(50) {
                    let back = json!({"metadata": {"finalizers": held}});
                    self.from.patch_as_controller(resource, name, &back).await.ok();
                }
                self.delete(resource, name).await
            }
            Order::Newer => {
                self.delete(resource, name).await?;
                sleep(random.pause(0, 80)).await;
                self.strip(resource, name, &held).await
            }
        }
    }

    async fn strip(&self, resource: &str, name: &str, held: &[Value]) -> Sent<()> {
        if held.is_empty() {
            return Ok(());
        }
        let none = json!({"metadata": {"finalizers": []}});
        gone_is_fine(self.from.patch(resource, name, &none).await)
    }

    /// With the patience of clusterctl: what is refused is tried again.
    async fn delete(&self, resource: &str, name: &str) -> Sent<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            match gone_is_fine(self.from.delete(resource, name, &Value::Null).await) {
                Err(_) if tries < 5 => sleep(Duration::from_millis(200)).await,
                outcome => return outcome,
            }
        }
    }
}

fn gone_is_fine(sent: Sent) -> Sent<()> {
    match sent {
        Err(Refused { code: 404, .. }) => Ok(()),
        other => other.map(drop),
    }
}
