//! The controller of Metal3Data: claims their addresses, and gives them back.

use serde_json::{Value, json};

use super::{
    api::{CLAIMS, DATAS, IP_CLAIMS, TEMPLATES, add_finalizer, deleted_at, drop_finalizer, text},
    controller::{Controller, Looked, Trouble},
};

/// On Metal3Data, and on the IP claims that they have made.
pub(super) const DATA_FINALIZER: &str = "metal3data.infrastructure.cluster.x-k8s.io";

impl Controller {
    pub(super) async fn data(&self, name: &str) -> Looked {
        let Some(old) = self.cache.get(DATAS, name) else { return Ok(None) };
        let terminating = deleted_at(&old).is_some();
        if !terminating && self.cluster(&old).is_none() {
            return Ok(None);
        }
        if self.is_paused(&old) {
            return Ok(Some(self.behaviour.requeue));
        }
        let mut new = old.clone();
        let looked = if terminating {
            self.end_data(&mut new).await
        } else {
            self.keep_data(&mut new).await
        };
        self.conclude(DATAS, &old, &new, looked).await
    }

    /// Addresses come from nobody here: to have claimed them is enough.
    async fn keep_data(&self, data: &mut Value) -> Looked {
        add_finalizer(data, DATA_FINALIZER);
        for claim in self.ip_claims(data)? {
            if self.cache.get(IP_CLAIMS, text(&claim["metadata"]["name"])).is_none() {
                self.api.create(IP_CLAIMS, &claim).await?;
            }
        }
        data["status"]["ready"] = true.into();
        Ok(None)
    }

    /// Waits for the end of the claim. This controller hears nothing of claims: 1.8.1 waits for
    /// another event of the Metal3Data, which need not come.
    async fn end_data(&self, data: &mut Value) -> Looked {
        let name = text(&data["metadata"]["name"]).to_owned();
        let claim = text(&data["spec"]["claim"]["name"]);
        if self.cache.get(CLAIMS, claim).is_some() {
            self.note(&name, "waits for its claim");
            return Ok(self.requeue());
        }
        for claim in self.ip_claims(data)? {
            let claimed = text(&claim["metadata"]["name"]);
            if let Some(mut claim) = self.cache.get(IP_CLAIMS, claimed) {
                if drop_finalizer(&mut claim, DATA_FINALIZER) {
                    self.api.update(IP_CLAIMS, &claim).await?;
                }
                self.api.delete(IP_CLAIMS, claimed).await?;
            }
        }
        if drop_finalizer(data, DATA_FINALIZER) {
            self.note(&name, "has given back what it had");
        }
        Ok(None)
    }

    /// The IP claims of a Metal3Data, one for each pool that its template names. Without the
    /// template nobody knows them, and CAPM3 waits for it, for ever if need be.
    fn ip_claims(&self, data: &Value) -> Looked<Vec<Value>> {
        let name = text(&data["spec"]["template"]["name"]);
        let Some(template) = self.cache.get(TEMPLATES, name) else {
            return Err(Trouble::Transient(format!("template {name} is not found")));
        };
        let key =
            if self.api.is_v1beta1() { "ipAddressesFromIPPool" } else { "ipAddressesFromPool" };
        let pools = template["spec"]["metaData"][key].as_array().into_iter().flatten();
        let claims = pools.map(|pool| {
            let (data_name, pool) = (text(&data["metadata"]["name"]), text(&pool["name"]));
            let mut claim = self.api.object("IPClaim", &format!("{data_name}-{pool}"), data);
            claim["metadata"]["finalizers"] = json!([DATA_FINALIZER]);
            claim["metadata"]["ownerReferences"] =
                json!([self.api.owner("Metal3Data", data, true)]);
            claim["spec"] = json!({"pool": self.api.reference(&pool.into())});
            claim
        });
        Ok(claims.collect())
    }
}
