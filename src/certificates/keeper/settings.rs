//! What the keeper is told.

use std::{collections::BTreeSet, time::Duration};

use jiff::SignedDuration;

/// What a guard is told about the certificates that it makes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the replicas share them.
    pub secret: ObjectName,
    /// Which Service the API server calls.
    pub service: ObjectName,
    /// Name of the `MutatingWebhookConfiguration`.
    pub mutating: String,
    /// Name of the `ValidatingWebhookConfiguration`.
    pub validating: String,
    /// DNS names and IP addresses of the certificate besides those of the Service.
    pub names: BTreeSet<String>,
    /// Lifetime of the certificate; renewed when a third is left.
    pub lifetime: SignedDuration,
    /// Lifetime of the authority; the next one is introduced when a third is left.
    pub ca_lifetime: SignedDuration,
    /// How long to wait until all API servers and replicas have heard of a change.
    pub dwell: Duration,
}

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Settings {
    /// Time between looks when nothing is due: several within a dwell.
    pub(super) fn poll(&self) -> Duration {
        (self.dwell / 4).clamp(Duration::from_millis(100), Duration::from_secs(10))
    }

    /// The longest time between two looks that belong together.
    pub(super) fn gap(&self) -> Duration {
        (self.poll() * 3).max(Duration::from_secs(15))
    }

    pub(super) fn all_names(&self) -> BTreeSet<String> {
        let ObjectName { namespace, name } = &self.service;
        let of_service =
            ["svc", "svc.cluster.local"].map(|end| format!("{name}.{namespace}.{end}"));
        // The first is what API servers check; the others are for people.
        let of_service = of_service.into_iter().chain([format!("{name}.{namespace}")]);
        of_service.chain(self.names.iter().map(|it| it.to_ascii_lowercase())).collect()
    }
}
