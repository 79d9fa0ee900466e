//! `serve`: checked settings, then the server until it is told to stop.

use std::{
    io::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::{task::JoinSet, time::Instant};

use super::{
    Failure, Outcome, Source,
    args::{ControllerArg, ServeArgs, StateArgs},
    cluster, log,
};
use crate::{
    admission::{Admission, Paths, Patience, ReviewMetrics},
    certificates,
    controller::{Controller, Mode, RepairMetrics},
    inventory::{cluster::Cluster, snapshot::Snapshot},
    server::{
        self, Gate, Handover, Metrics, PairSource, Readiness, Server, Settings, Signals, TlsFiles,
    },
};

mod curl;
mod managed;
mod reviews;

pub(super) async fn run(args: ServeArgs) -> Result<Outcome, Failure> {
    super::one_source(&args.state)?;
    let in_files = args.state.demo || args.state.state.is_some();
    let mode = mode(args.controller, in_files)?;
    let _flush = log::start(args.log, &args.log_level)?;
    // From here on a signal is ours, also one that comes while the state loads.
    let signals = Signals::of_process()
        .map_err(|error| Failure::Unverified(format!("cannot handle signals: {error}")))?;
    let mut metrics = Metrics::new();
    let managed = managed::settings(&args, in_files)?;
    let managed = managed.map(|settings| (settings, Handover::new(&metrics)));
    let mut settings = settings(&args, managed.as_ref().map(|(_, handover)| handover))?;
    let reviews_thread = reviews::Thread::start()
        .map_err(|error| Failure::Unverified(format!("cannot start a thread: {error}")))?;
    settings.reviews = Some(reviews_thread.runtime.clone());
    let ca = args.state.demo.then(|| args.demo_certs.join(certificates::CA_FILE));
    let readiness = Readiness::new();
    let reviews = ReviewMetrics::new();
    reviews.register(metrics.registry());
    let facts = Facts::start(&args.state, &readiness, metrics.registry()).await?;
    let repairs = RepairMetrics::default();
    let controller = match (&facts.source, mode) {
        (Source::Cluster(cluster), Some(mode)) => {
            repairs.register(metrics.registry());
            Some(Controller::new(Arc::clone(cluster), mode, args.timing.timing(), repairs))
        }
        _ => None,
    };
    let keeper = managed.and_then(|(settings, handover)| {
        managed::keeper(settings, &facts.source, handover, &readiness, &mut metrics)
    });
    let server = Server::bind(settings, readiness, metrics, Timestamp::now())
        .await
        .map_err(|error| failed(&error))?;
    if let Source::Snapshot(snapshot) = &facts.source {
        tokio::spawn(reload(Arc::clone(snapshot), server.reloads()));
    }
    let admission = Admission {
        inventory: facts.source.inventory(),
        additions: args.finalizer_additions.into(),
        patience: Patience::default(),
        metrics: reviews,
    };
    let paths = Paths::new(admission, server.budget());

    let mut background = JoinSet::new();
    let hands = controller.as_ref().map(Controller::hands);
    if let Some(controller) = controller {
        background.spawn(controller.run());
    }
    if let Some(keeper) = keeper {
        background.spawn(keeper.run(server.reloads(), server.phase()));
    }
    tracing::info!(what = "webhooks", address = %server.address(), "listening");
    if let Some(address) = server.admin_address() {
        tracing::info!(what = "admin", address = %address, "listening");
    }
    if let Some(ca) = ca {
        let ca = std::path::absolute(&ca).unwrap_or(ca);
        let lines = curl::lines(&ca, server.address());
        // The connection is accepted from the bind on, so a line pasted now gets its answer.
        let mut out = std::io::stdout().lock();
        out.write_all(lines.as_bytes())?;
        out.flush()?;
    }
    server.serve(paths, signals).await.map_err(|error| failed(&error))?;
    if let Some(hands) = hands {
        // What is being written leaves its line.
        hands.rest().await;
    }
    // Connections to the cluster that were opened for a review may serve others until here.
    drop(reviews_thread);
    Ok(Outcome::Good)
}

/// What the controller may do; `None` when it is off. There is nothing for it to do in files.
fn mode(asked: Option<ControllerArg>, in_files: bool) -> Result<Option<Mode>, Failure> {
    match asked {
        None if in_files => Ok(None),
        Some(ControllerArg::Off) => Ok(None),
        Some(_) if in_files => Err(Failure::Usage(
            "--controller works on a cluster; leave it out, or --state and --demo".into(),
        )),
        Some(ControllerArg::Observe) => Ok(Some(Mode::Observe)),
        None | Some(ControllerArg::Act) => Ok(Some(Mode::Act)),
    }
}

/// The facts of a running guard, with what makes it ready.
struct Facts {
    source: Source,
    /// A gate closes when it is dropped.
    _gates: Vec<Gate>,
    /// Opens the gates of a cluster; ends with this.
    _opener: JoinSet<()>,
}

impl Facts {
    /// Loads the state, or starts the watches. A cluster need not answer yet: until it does, the
    /// guard is not ready and its verdicts say why.
    async fn start(
        args: &StateArgs,
        readiness: &Readiness,
        registry: &mut Registry,
    ) -> Result<Self, Failure> {
        let mut opener = JoinSet::new();
        let state = args.clone();
        let loading = tokio::task::spawn_blocking(move || super::snapshot(&state));
        let loaded = loading.await.map_err(|error| {
            Failure::Unverified(format!("loading the state ended early: {error}"))
        })?;
        if let Some(snapshot) = loaded? {
            let gate = readiness.register("state");
            gate.open();
            tracing::info!(state = %snapshot.loaded(), "loaded");
            let source = Source::Snapshot(Arc::new(snapshot));
            return Ok(Self { source, _gates: vec![gate], _opener: opener });
        }
        let cluster = Arc::new(Cluster::watched(
            cluster::client(&args.cluster, cluster::OTHER_SOURCES).await?,
        ));
        registry.register_collector(Box::new(cluster.health().clone()));
        let gate = readiness.register("cluster");
        opener.spawn(open_when_answering(Arc::clone(&cluster), gate));
        Ok(Self { source: Source::Cluster(cluster), _gates: Vec::new(), _opener: opener })
    }
}

/// Opens the gate once the kinds are known and either all watches have synced or live reads are
/// proven to work. It stays open: an API server that restarts must not take the guard down.
async fn open_when_answering(cluster: Arc<Cluster>, gate: Gate) {
    const PROOF: Duration = Duration::from_secs(5);
    loop {
        let deadline = Instant::now() + PROOF;
        let proven = match cluster.discover(deadline).await {
            Ok(()) => tokio::select! {
                () = cluster.health().wait_synced() => Ok(()),
                proven = cluster.prove_reads(deadline) => proven,
            },
            Err(unverified) => Err(unverified),
        };
        match proven {
            Ok(()) => break,
            Err(unverified) => gate.close(unverified.why),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    gate.open();
    std::future::pending::<()>().await;
}

fn failed(error: &server::Error) -> Failure {
    match error {
        server::Error::Aborted => Failure::Unverified(error.to_string()),
        server::Error::Bind { .. } | server::Error::Tls(_) => Failure::Usage(error.to_string()),
    }
}

fn settings(args: &ServeArgs, handover: Option<&Handover>) -> Result<Settings, Failure> {
    let demo = args.state.demo;
    let host = if demo { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    let listen = args.listen.unwrap_or_else(|| SocketAddr::from((host, 8443)));
    let admin = args.admin_listen.unwrap_or_else(|| SocketAddr::from((host, 8080)));
    let pair = match (&args.tls_cert, &args.tls_key, handover) {
        (_, _, Some(handover)) => PairSource::from(handover.clone()),
        (Some(cert), Some(key), _) if !demo => TlsFiles::new(cert, key).into(),
        _ if demo => demo_certificates(args, [listen, admin])?.into(),
        _ => {
            return Err(Failure::Usage(
                "serve needs --tls-cert and --tls-key, or in a cluster --self-managed-certs; make a \
                 pair for a test with 'metal3-guard certs --out DIR --dns localhost --ip \
                 127.0.0.1', or try 'serve --demo'"
                    .into(),
            ));
        }
    };
    let mut settings = Settings::new(pair);
    settings.tls.client_ca.clone_from(&args.client_ca);
    settings.tls.client_names.clone_from(&args.client_name);
    settings.listen = listen;
    settings.admin_listen = Some(admin);
    settings.drain.propagation = Duration::from_secs(args.drain_delay.into());
    Ok(settings)
}

/// A new pair at each start: nobody can come to rely on it.
fn demo_certificates(args: &ServeArgs, addresses: [SocketAddr; 2]) -> Result<TlsFiles, Failure> {
    if args.tls_cert.is_some() {
        return Err(Failure::Usage(
            "--demo makes its own certificate; leave --tls-cert out".into(),
        ));
    }
    if let Some(open) = addresses.iter().find(|address| !address.ip().is_loopback()) {
        return Err(Failure::Usage(format!(
            "--demo serves a made-up state and listens on loopback only, not on {open}"
        )));
    }
    let ips = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    let made = certificates::generate(&["localhost".into()], &ips, Timestamp::now())
        .and_then(|bundle| bundle.write(&args.demo_certs, true));
    let [_, cert, key] = made.map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(TlsFiles::new(cert, key))
}

/// Loads the state again at each SIGHUP; the old state stays when the new one does not load.
async fn reload(snapshot: Arc<Snapshot>, mut reloads: tokio::sync::watch::Receiver<u64>) {
    while reloads.changed().await.is_ok() {
        let again = Arc::clone(&snapshot);
        match tokio::task::spawn_blocking(move || again.reload()).await {
            Ok(Ok(loaded)) => tracing::info!(state = %loaded, "state reloaded"),
            Ok(Err(error)) => tracing::error!(%error, "the state stays as it was"),
            Err(error) => tracing::error!(%error, "the state stays as it was"),
        }
    }
}
