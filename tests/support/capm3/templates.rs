//! The controller of templates: makes Metal3Data for claims, and ends both.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Release,
    api::{
        CLAIMS, DATAS, TEMPLATES, add_finalizer, deleted_at, drop_finalizer, has_finalizer, text,
    },
    controller::{Controller, Looked, Trouble},
    holds::{Pass, Point},
};

pub(super) const TEMPLATE_FINALIZER: &str = "metal3datatemplate.infrastructure.cluster.x-k8s.io";
/// On claims, and on the Metal3Data that were made for them.
pub(super) const CLAIM_FINALIZER: &str = "metal3dataclaim.infrastructure.cluster.x-k8s.io";

/// Which index has which claim. Neither need be unique, since people make Metal3Data, too.
#[derive(Default)]
struct Indexes(Vec<(i64, String)>);

impl Indexes {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn insert(&mut self, index: i64, claim: &str) {
        self.0.push((index, claim.to_owned()));
        self.0.sort_unstable();
    }

    fn remove(&mut self, index: i64, claim: &str) {
        self.0.retain(|(other, name)| *other != index && name != claim);
    }

    fn of(&self, claim: &str) -> Option<i64> {
        self.0.iter().find(|(_, name)| name == claim).map(|(index, _)| *index)
    }

    /// Of one more than there are, one is free.
    fn lowest_free(&self) -> i64 {
        let mut candidates = 0..=i64::try_from(self.0.len()).unwrap_or(i64::MAX);
        candidates.find(|free| self.0.iter().all(|(index, _)| index != free)).unwrap_or_default()
    }
}

/// What is left of a template's users.
struct Left {
    data: bool,
    claims: bool,
}

impl Controller {
    pub(super) async fn template(&self, name: &str) -> Looked {
        let Some(old) = self.cache.get(TEMPLATES, name) else { return Ok(None) };
        let mut new = old.clone();
        if self.behaviour.release == Release::V1_8_1 {
            let cluster = self.cluster(&old);
            if cluster.is_none() && deleted_at(&old).is_none() {
                self.note(name, "has no Cluster yet");
                return Ok(None);
            }
            if let Some(cluster) = cluster {
                own_by_cluster(&mut new, &cluster);
                if self.is_paused(&old) {
                    return Ok(Some(self.behaviour.requeue));
                }
            }
        } else if super::cache::is_paused(&old) {
            return Ok(Some(self.behaviour.requeue));
        }
        let looked = self.serve(&mut new).await;
        if has_finalizer(&old, TEMPLATE_FINALIZER) && !has_finalizer(&new, TEMPLATE_FINALIZER) {
            self.note(name, "can go");
            self.holds.pass(Point::TemplateRelease, name).await;
        }
        self.conclude(TEMPLATES, &old, &new, looked).await
    }

    /// Serves claims, also while the template is being deleted, and then lets it go when nothing
    /// is left.
    async fn serve(&self, template: &mut Value) -> Looked {
        let deleting = deleted_at(template).is_some();
        if !deleting {
            add_finalizer(template, TEMPLATE_FINALIZER);
        }
        let mut indexes = Indexes::default();
        let served = self.serve_claims(template, &mut indexes).await;
        self.set_status(template, &indexes);
        let left = served?;
        if !deleting {
            return Ok(None);
        }
        let name = text(&template["metadata"]["name"]).to_owned();
        if left.claims || left.data {
            self.note(&name, &format!("is kept: data {}, claims {}", left.data, left.claims));
            // A claim that is live will wake the template when it goes.
            return Ok(self.requeue().filter(|_| !left.claims));
        }
        drop_finalizer(template, TEMPLATE_FINALIZER);
        Ok(None)
    }

    async fn serve_claims(&self, template: &Value, indexes: &mut Indexes) -> Looked<Left> {
        let name = text(&template["metadata"]["name"]);
        let names_it = |it: &Value| it["spec"]["template"]["name"] == name;
        for data in self.cache.list(DATAS).iter().filter(|it| names_it(it)) {
            let claim = &data["spec"]["claim"];
            if !self.api.is_v1beta1() {
                // Later releases do not see a Metal3Data without a claim, and fall over one
                // without an index, each time they look.
                if claim.is_null() {
                    continue;
                }
                if data["spec"]["index"].is_null() {
                    return Err(Trouble::Error("a Metal3Data has no index".into()));
                }
            }
            // Up to 1.12 an index of 0 is left out.
            let index = data["spec"]["index"].as_i64().unwrap_or_default();
            indexes.insert(index, text(&claim["name"]));
        }
        let had_data = !indexes.is_empty();
        let (mut has_claims, mut paused) = (false, false);
        for claim in self.cache.list(CLAIMS).iter().filter(|it| names_it(it)) {
            if deleted_at(claim).is_none() {
                has_claims = true;
                if claim["status"]["renderedData"]["name"].is_string() {
                    continue;
                }
                if self.behaviour.release != Release::V1_8_1 && self.is_paused(claim) {
                    paused = true;
                    continue;
                }
            }
            self.serve_claim(template, claim, indexes).await?;
        }
        if paused {
            return Err(Trouble::Transient("a claim is paused".into()));
        }
        Ok(match self.behaviour.release {
            // What was freed in this very look counts no more, although it is still there.
            Release::V1_8_1 => Left { data: !indexes.is_empty(), claims: false },
            Release::Later => Left { data: had_data, claims: has_claims },
        })
    }

    /// Whatever comes of it, what was changed on the claim is written at the end; that this failed
    /// is forgotten in every release.
    async fn serve_claim(
        &self,
        template: &Value,
        old: &Value,
        indexes: &mut Indexes,
    ) -> Looked<()> {
        let mut claim = old.clone();
        let name = text(&old["metadata"]["name"]);
        let served = if deleted_at(old).is_none() {
            self.render(template, &mut claim, indexes).await
        } else {
            self.forget(template, &mut claim, indexes).await
        };
        let releases =
            !has_finalizer(&claim, CLAIM_FINALIZER) && has_finalizer(old, CLAIM_FINALIZER);
        if releases && self.holds.pass(Point::ClaimRelease, name).await == Pass::Lost {
            self.note(name, "claim not released: the write is lost");
        } else if let Err(error) = self.api.patch(CLAIMS, old, &claim).await {
            self.note(name, &format!("claim not written: {error}"));
        }
        served
    }

    /// Makes the Metal3Data of a claim, at the lowest free index.
    async fn render(
        &self,
        template: &Value,
        claim: &mut Value,
        indexes: &mut Indexes,
    ) -> Looked<()> {
        let template_name = text(&template["metadata"]["name"]);
        let name = text(&claim["metadata"]["name"]).to_owned();
        add_finalizer(claim, CLAIM_FINALIZER);
        let index = if let Some(index) = indexes.of(&name) {
            index
        } else {
            let mut owners = claim["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let Some(machine) = owners.find(|it| it["kind"] == "Metal3Machine") else {
                return Err(Trouble::Error(format!("no machine owns claim {name}")));
            };
            let machine = json!({"metadata": {"name": machine["name"], "uid": machine["uid"]}});
            let index = indexes.lowest_free();
            self.create_data(template, claim, &machine, index).await?;
            indexes.insert(index, &name);
            index
        };
        let data = format!("{template_name}-{index}");
        claim["status"]["renderedData"] = self.api.reference(&data.into());
        Ok(())
    }

    async fn create_data(
        &self,
        template: &Value,
        claim: &Value,
        machine: &Value,
        index: i64,
    ) -> Looked<()> {
        let v1beta1 = self.api.is_v1beta1();
        let name = format!("{}-{index}", text(&template["metadata"]["name"]));
        let mut data = self.api.object("Metal3Data", &name, claim);
        data["metadata"]["finalizers"] = json!([CLAIM_FINALIZER]);
        let mut owners = vec![
            self.api.owner("Metal3DataClaim", claim, !v1beta1),
            self.api.owner("Metal3Machine", machine, false),
        ];
        data["spec"] = json!({
            "template": self.api.reference(&template["metadata"]["name"]),
            "claim": self.api.reference(&claim["metadata"]["name"]),
        });
        if v1beta1 {
            owners.insert(0, self.api.owner("Metal3DataTemplate", template, true));
        }
        if index > 0 || !v1beta1 {
            data["spec"]["index"] = index.into();
        }
        data["metadata"]["ownerReferences"] = owners.into();
        self.api.create(DATAS, &data).await?;
        self.note(&name, "made");
        Ok(())
    }

    /// Deletes the Metal3Data of a claim that is being deleted, and takes the finalizer off both.
    /// A Metal3Data that is not in the cache is passed over.
    async fn forget(
        &self,
        template: &Value,
        claim: &mut Value,
        indexes: &mut Indexes,
    ) -> Looked<()> {
        let name = text(&claim["metadata"]["name"]).to_owned();
        let index = indexes.of(&name);
        let by_index = index.map(|it| format!("{}-{it}", text(&template["metadata"]["name"])));
        let mut data = by_index.and_then(|it| self.cache.get(DATAS, &it));
        if data.is_none() && self.behaviour.release != Release::V1_8_1 {
            data = self.cache.get(DATAS, text(&claim["status"]["renderedData"]["name"]));
        }
        match data {
            Some(mut data) => {
                if drop_finalizer(&mut data, CLAIM_FINALIZER) {
                    self.api.update(DATAS, &data).await?;
                }
                let data = text(&data["metadata"]["name"]);
                self.api.delete(DATAS, data).await?;
                self.note(data, "deleted");
            }
            None => self.note(&name, "claim has no Metal3Data"),
        }
        if let Some(status) = claim["status"].as_object_mut() {
            status.remove("renderedData");
        }
        drop_finalizer(claim, CLAIM_FINALIZER);
        if let Some(index) = index {
            indexes.remove(index, &name);
        }
        Ok(())
    }

    /// A list is never empty: the last entry takes the key with it.
    fn set_status(&self, template: &mut Value, indexes: &Indexes) {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut status = json!({"lastUpdated": now});
        if !indexes.is_empty() {
            let indexes = indexes.0.iter();
            status["indexes"] = if self.api.is_v1beta1() {
                indexes.map(|(index, claim)| (claim.clone(), json!(index))).collect()
            } else {
                indexes.map(|(index, claim)| json!({"index": index, "name": claim})).collect()
            };
        }
        template["status"] = status;
    }
}

fn own_by_cluster(template: &mut Value, cluster: &Value) {
    let name = &cluster["metadata"]["name"];
    let owners = template["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.cloned().unwrap_or_default();
    if !owners.iter().any(|it| it["kind"] == "Cluster" && it["name"] == *name) {
        owners.push(json!({
            "apiVersion": cluster["apiVersion"], "kind": "Cluster", "name": name,
            "uid": cluster["metadata"]["uid"], "controller": false,
        }));
        template["metadata"]["ownerReferences"] = owners.into();
    }
}
