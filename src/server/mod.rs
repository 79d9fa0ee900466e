//! Serves a [`Handler`] over HTTPS the way an API server needs it, and knows nothing of Metal3.
//!
//! ```text
//! Settings -> Server::bind (certificates checked, then both ports open)
//!          -> budget(), reloads(), phase()   for the handlers and the rest of the process
//!          -> serve(handler, signals)        until drained
//! ```
//!
//! What it takes care of: TLS with reload ([`TlsSettings`]), bounds on connections
//! ([`ConnectionLimits`]) and on bodies ([`read`]), leaving without breaking a request
//! ([`DrainTimes`]), probes and metrics on a port of their own ([`Readiness`], [`Metrics`]), and
//! an answer even when a handler panics.

mod admin;
mod body;
mod connection;
mod drain;
mod eager;
mod handler;
mod listen;
mod metrics;
mod tls;
mod turns;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use tokio::{net::TcpListener, runtime::Handle, sync::watch, task::JoinSet};
use tokio_rustls::TlsAcceptor;

pub(crate) use self::body::in_time;
pub use self::{
    admin::{Gate, Readiness},
    body::{BodyLimits, Budget, Held, Refusal, read, read_until},
    drain::{DrainTimes, Phase, Signal, Signals},
    handler::Handler,
    listen::ConnectionLimits,
    metrics::{Metrics, PREFIX},
    tls::{Error as TlsError, Handover, PairSource, TlsFiles, TlsSettings},
};
use self::{
    connection::{LogPace, Shared},
    listen::Listener,
    metrics::ServerMetrics,
    tls::Certificates,
};

const LONGEST: Duration = Duration::from_hours(24 * 365);

/// What a server is made from. [`Settings::new`] fills in every default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the HTTPS port; port 0 takes a free one. Default `0.0.0.0:8443`.
    pub listen: SocketAddr,
    /// Address of the plain-HTTP port for probes and metrics, if wanted. Default `0.0.0.0:8080`.
    pub admin_listen: Option<SocketAddr>,
    /// Certificates.
    pub tls: TlsSettings,
    /// Bounds on connections.
    pub connections: ConnectionLimits,
    /// Bounds on request bodies.
    pub bodies: BodyLimits,
    /// How long leaving may take.
    pub drain: DrainTimes,
    /// The runtime of the HTTPS connections and of the handler; it must outlive the server.
    /// Default: the one that [`Server::serve`] runs in.
    pub reviews: Option<Handle>,
}

impl Settings {
    /// Defaults for everything else.
    pub fn new(pair: impl Into<PairSource>) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8443)),
            admin_listen: Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080))),
            tls: TlsSettings::new(pair),
            connections: ConnectionLimits::default(),
            bodies: BodyLimits::default(),
            drain: DrainTimes::default(),
            reviews: None,
        }
    }
}

/// Why a server did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A second stop signal came while draining; requests may have been cut.
    #[error("stopped by a second signal before open requests had finished")]
    Aborted,
    /// A port cannot be opened.
    #[error("cannot listen on {address}: {source}; choose another address or stop what uses it")]
    Bind {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A server whose certificates are good and whose ports are open.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    settings: Settings,
    tcp: TcpListener,
    admin_tcp: Option<TcpListener>,
    tls: Arc<ServerConfig>,
    certificates: Arc<Certificates>,
    budget: Budget,
    readiness: Readiness,
    certificate_gate: Gate,
    registry: Registry,
    metrics: ServerMetrics,
    phase: watch::Sender<Phase>,
    reloads: watch::Sender<u64>,
}

impl Server {
    /// Loads and checks the certificate files, then opens the ports. Connections wait until
    /// [`Server::serve`]. `now` decides whether the certificate is within its lifetime.
    ///
    /// # Errors
    /// [`Error::Tls`] if a certificate file cannot be used: then no port was opened.
    /// [`Error::Bind`] if a port cannot be opened.
    pub async fn bind(
        mut settings: Settings,
        readiness: Readiness,
        metrics: Metrics,
        now: Timestamp,
    ) -> Result<Self, Error> {
        settings.connections.connections = settings.connections.connections.clamp(1, 1_000_000);
        for duration in [
            &mut settings.connections.age,
            &mut settings.connections.idle,
            &mut settings.bodies.deadline,
        ] {
            // Points in time are computed from these; nobody can tell this from longer.
            *duration = (*duration).min(LONGEST);
        }
        let (mut registry, metrics) = metrics.into_parts();
        let reloads = metrics.certificate_reloads.clone();
        let certificates = Certificates::load(settings.tls.clone(), now, reloads).await?;
        let tls = Arc::new(certificates.server_config()?);

        let (tcp, address) = open(settings.listen).await?;
        let (admin_tcp, admin_address) = match settings.admin_listen {
            Some(wanted) => {
                let (tcp, address) = open(wanted).await?;
                (Some(tcp), Some(address))
            }
            None => (None, None),
        };

        let budget = Budget::new(settings.bodies, metrics.bodies_refused.clone());
        registry.register_collector(Box::new(Arc::clone(&certificates)));
        registry.register_collector(Box::new(budget.clone()));
        Ok(Self {
            address,
            admin_address,
            settings,
            tcp,
            admin_tcp,
            tls,
            certificates,
            budget,
            certificate_gate: readiness.register("certificates"),
            readiness,
            registry,
            metrics,
            phase: watch::Sender::new(Phase::Serving),
            reloads: watch::Sender::new(0),
        })
    }

    /// Address of the HTTPS port, with the real port number.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address of the admin port, with the real port number.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// The room for request bodies, for handlers that [`read`] them.
    pub fn budget(&self) -> Budget {
        self.budget.clone()
    }

    /// Where the server is in its life, for tasks that should end with it.
    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Changes with every [`Signal::Reload`]; the value counts them.
    pub fn reloads(&self) -> watch::Receiver<u64> {
        self.reloads.subscribe()
    }

    /// Answers with `handler` until a [`Signal::Stop`] has been drained. Must run within the Tokio
    /// runtime that bound the server. Dropping the future cuts everything.
    ///
    /// # Errors
    /// [`Error::Aborted`] if a second stop came before the drain was done.
    pub async fn serve(self, handler: impl Handler, signals: Signals) -> Result<(), Error> {
        // Everything in here ends with this function.
        let mut tasks = JoinSet::new();
        let certificates = Arc::clone(&self.certificates);
        let gate = self.certificate_gate;
        tasks.spawn(async move { certificates.keep_fresh(gate).await });

        let reviews = self.settings.reviews.unwrap_or_else(Handle::current);
        // Probes are answered to the very end, so this port has a life of its own.
        let admin_phase = watch::Sender::new(Phase::Serving);
        if let Some(tcp) = self.admin_tcp {
            let admin = Listener {
                tcp,
                shared: Shared {
                    log: LogPace::default(),
                    tls: None,
                    handler: admin::router(
                        self.readiness.clone(),
                        reviews.clone(),
                        Arc::new(self.registry),
                    ),
                    limits: self.settings.connections,
                    metrics: None,
                    phase: admin_phase.subscribe(),
                },
                runtime: Handle::current(),
            };
            tasks.spawn(admin.run());
        }

        let listener = Listener {
            tcp: self.tcp,
            shared: Shared {
                log: LogPace::default(),
                tls: Some(TlsAcceptor::from(self.tls)),
                handler,
                limits: self.settings.connections,
                metrics: Some(self.metrics),
                phase: self.phase.subscribe(),
            },
            runtime: reviews,
        };
        let readiness = self.readiness;
        let certificates = self.certificates;
        let reloads = self.reloads;
        let told = drain::Told {
            stop: move || readiness.drain(),
            reload: move || {
                certificates.look.notify_one();
                reloads.send_modify(|count| *count += 1);
            },
        };
        tracing::info!(address = %self.address, admin = ?self.admin_address, "serving");
        drain::conduct(signals, self.settings.drain, &self.phase, told, pin!(listener.run()))
            .await
            .map_err(|drain::Aborted| Error::Aborted)
    }
}

async fn open(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let bind = |source| Error::Bind { address, source };
    let tcp = TcpListener::bind(address).await.map_err(bind)?;
    let real = tcp.local_addr().map_err(bind)?;
    Ok((tcp, real))
}
