//! The controller of machines: makes claims, and gives them up.

use serde_json::{Value, json};

use super::{
    Release,
    api::{CLAIMS, MACHINES, add_finalizer, deleted_at, drop_finalizer, text},
    controller::{Controller, Looked, until},
    holds::Point,
};

pub(super) const MACHINE_FINALIZER: &str = "metal3machine.infrastructure.cluster.x-k8s.io";

impl Controller {
    pub(super) async fn machine(&self, name: &str) -> Looked {
        let Some(old) = self.cache.get(MACHINES, name) else { return Ok(None) };
        if !self.behaviour.hosts {
            return Ok(None);
        }
        if self.is_paused(&old) {
            return Ok(Some(self.behaviour.requeue));
        }
        let mut new = old.clone();
        let looked = match deleted_at(&old) {
            None => self.keep_machine(&mut new).await,
            Some(since) => self.end_machine(&mut new, since).await,
        };
        self.conclude(MACHINES, &old, &new, looked).await
    }

    /// Makes the claim, and notes what it was given.
    async fn keep_machine(&self, machine: &mut Value) -> Looked {
        add_finalizer(machine, MACHINE_FINALIZER);
        let template = machine["spec"]["dataTemplate"]["name"].clone();
        if !template.is_string() || machine["status"]["renderedData"]["name"].is_string() {
            return Ok(None);
        }
        let name = text(&machine["metadata"]["name"]);
        match self.cache.get(CLAIMS, name) {
            Some(claim) if claim["status"]["renderedData"]["name"].is_string() => {
                machine["status"]["renderedData"] = claim["status"]["renderedData"].clone();
            }
            Some(_) => {}
            None => {
                let mut claim = self.api.object("Metal3DataClaim", name, machine);
                claim["metadata"]["finalizers"] = json!([MACHINE_FINALIZER]);
                claim["metadata"]["ownerReferences"] =
                    json!([self.api.owner("Metal3Machine", machine, true)]);
                claim["spec"] = json!({"template": self.api.reference(&template)});
                self.api.create(CLAIMS, &claim).await?;
            }
        }
        Ok(None)
    }

    /// Up to 1.8 the claim lives until the host is released, which takes long; later it goes
    /// first.
    async fn end_machine(&self, machine: &mut Value, since: jiff::Timestamp) -> Looked {
        let releasing = until(since, self.behaviour.deprovision);
        if self.behaviour.release == Release::V1_8_1 && releasing.is_some() {
            return Ok(releasing);
        }
        let name = text(&machine["metadata"]["name"]).to_owned();
        if let Some(mut claim) = self.cache.get(CLAIMS, &name) {
            if drop_finalizer(&mut claim, MACHINE_FINALIZER) {
                self.api.update(CLAIMS, &claim).await?;
            }
            if deleted_at(&claim).is_none() {
                self.api.delete(CLAIMS, &name).await?;
                self.note(&name, "claim given up");
            }
        }
        if releasing.is_some() {
            return Ok(releasing);
        }
        self.holds.pass(Point::MachineRelease, &name).await;
        drop_finalizer(machine, MACHINE_FINALIZER);
        self.note(&name, "gone");
        Ok(None)
    }
}
