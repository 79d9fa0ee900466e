//! Both webhook configurations, as one look found them.

use jiff::Timestamp;

use super::{
    Settings,
    api::{Api, Trouble, Written},
};
use crate::certificates::{
    rotation::Leaf,
    trust,
    webhooks::{Callee, Configuration, Kind, Webhook},
};

/// What API servers are told to trust.
#[derive(Debug)]
pub(super) struct Published {
    found: Vec<(Kind, String, Configuration)>,
    /// What is not there, in words. It may come later, or never: nobody calls by it meanwhile.
    pub(super) missing: Vec<String>,
    /// Why something is not known.
    pub(super) trouble: Option<Trouble>,
}

impl Published {
    pub(super) async fn read(api: &Api, settings: &Settings, callee: &Callee) -> Self {
        let mut published = Self { found: Vec::new(), missing: Vec::new(), trouble: None };
        for (kind, name) in
            [(Kind::Mutating, &settings.mutating), (Kind::Validating, &settings.validating)]
        {
            let read = match api.configuration(kind, name).await {
                Ok(Some(object)) => Configuration::read(&object, callee).map_err(Trouble),
                Ok(None) => {
                    published.missing.push(format!("there is no {} {name}", kind.name()));
                    continue;
                }
                Err(trouble) => Err(trouble),
            };
            match read {
                Ok(read) if read.webhooks.is_empty() => published.missing.push(format!(
                    "no webhook of {} {name} calls the Service {}/{} or another name in the \
                     certificate",
                    kind.name(),
                    callee.service.namespace,
                    callee.service.name
                )),
                Ok(read) => published.found.push((kind, name.clone(), read)),
                Err(trouble) => published.trouble = published.trouble.or(Some(trouble)),
            }
        }
        published
    }

    pub(super) fn webhooks(&self) -> impl Iterator<Item = &Webhook> {
        self.found.iter().flat_map(|(_, _, configuration)| &configuration.webhooks)
    }

    /// Whether every webhook is known to trust exactly this bundle, and there is one.
    pub(super) fn is_in_order(&self, bundle: &str) -> bool {
        self.trouble.is_none()
            && !self.found.is_empty()
            && self.webhooks().all(|it| it.bundle == bundle)
    }

    /// Why API servers would not accept what is served; `None` when all of them would.
    pub(super) fn distrust(&self, served: Option<&Leaf>, now: Timestamp) -> Option<String> {
        let Some(served) = served else {
            return Some("there is no certificate to serve yet".into());
        };
        if self.found.is_empty() {
            return Some("no webhook is known that would verify it".into());
        }
        let distrusts =
            |it: &&Webhook| !trust::verifies(&it.bundle, &served.certificate, &it.host, now);
        let webhook = self.webhooks().find(distrusts)?;
        Some(format!("the caBundle of {} does not verify the certificate", webhook.name))
    }

    /// Makes every webhook trust this bundle. How many configurations were changed; `None` when
    /// none had to be.
    pub(super) async fn write(&self, api: &Api, bundle: &str) -> Result<Option<u32>, Trouble> {
        let mut changed = None;
        let mut trouble = None;
        for (kind, name, configuration) in &self.found {
            let Some(patch) = configuration.patch(bundle) else { continue };
            let before = changed.unwrap_or_default();
            match api.patch(*kind, name, &patch).await {
                Ok(Written::Done) => {
                    tracing::info!(kind = kind.name(), name, "caBundle published");
                    changed = Some(before + 1);
                }
                Ok(Written::Conflict) => changed = Some(before),
                Err(failed) => trouble = trouble.or(Some(failed)),
            }
        }
        trouble.map_or(Ok(changed), Err)
    }

    /// Makes the namespace an owner of what calls a Service in it, so that whoever deletes it is
    /// not left with webhooks that nobody answers. Whether something was changed, or has to be
    /// looked at anew.
    pub(super) async fn tie_to(&self, api: &Api, namespace: &str) -> Result<bool, Trouble> {
        let loose = || self.found.iter().filter(|(_, _, it)| it.outlives_service());
        if loose().next().is_none() {
            return Ok(false);
        }
        let Some(uid) = api.namespace(namespace).await? else { return Ok(false) };
        for (kind, name, configuration) in loose() {
            let patch = configuration.adoption(namespace, &uid);
            if api.patch(*kind, name, &patch).await? == Written::Done {
                tracing::info!(kind = kind.name(), name, namespace, "goes with the namespace");
            }
        }
        Ok(true)
    }
}
