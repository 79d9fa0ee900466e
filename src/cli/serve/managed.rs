//! Certificates that the guard makes by itself: from flags to a keeper.

use std::time::Duration;

use super::{Failure, Source};
use crate::{
    certificates::keeper::{Keeper, KeeperMetrics, Settings},
    cli::args::ServeArgs,
    server::{Handover, Metrics, Readiness},
};

/// Shortest life of a CA, in dwells: a third of it must be enough for the change to the next one.
const DWELLS: i32 = 20;

/// What was asked for; `None` when the certificates come from files.
pub(super) fn settings(args: &ServeArgs, in_files: bool) -> Result<Option<Settings>, Failure> {
    let managed = &args.managed;
    if !managed.self_managed_certs {
        return Ok(None);
    }
    let wrong = |text: &str| Err(Failure::Usage(text.into()));
    if in_files {
        return wrong("--self-managed-certs needs a cluster; leave it out, or --state and --demo");
    }
    if args.tls_cert.is_some() {
        return wrong("--self-managed-certs makes the certificate; leave --tls-cert out");
    }
    if managed.certs_ca_lifetime < managed.certs_dwell * DWELLS {
        return wrong("--certs-ca-lifetime must be at least 20 times --certs-dwell");
    }
    if managed.certs_ca_lifetime < managed.certs_lifetime {
        return wrong("--certs-lifetime must not be longer than --certs-ca-lifetime");
    }
    Ok(Some(Settings {
        secret: managed.certs_secret.clone(),
        service: managed.certs_service.clone(),
        mutating: managed.certs_mutating.clone(),
        validating: managed.certs_validating.clone(),
        names: managed.certs_name.iter().cloned().collect(),
        lifetime: managed.certs_lifetime,
        ca_lifetime: managed.certs_ca_lifetime,
        dwell: Duration::try_from(managed.certs_dwell).unwrap_or_default(),
    }))
}

/// The keeper, which holds back readiness until API servers trust what it serves.
pub(super) fn keeper(
    settings: Settings,
    source: &Source,
    handover: Handover,
    readiness: &Readiness,
    metrics: &mut Metrics,
) -> Option<Keeper> {
    let Source::Cluster(cluster) = source else { return None };
    let counters = KeeperMetrics::default();
    counters.register(metrics.registry());
    let gate = readiness.register("webhooks");
    Some(Keeper::new(cluster.client().clone(), settings, handover, gate, counters))
}
