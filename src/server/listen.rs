//! Accepts connections and serves HTTP/1.1 on them, within bounds that one peer cannot exhaust
//! for the others.
//!
//! An own loop over hyper, because the number of connections has to be bounded *before* one is
//! accepted: then what is too much waits in the kernel's backlog instead of using a descriptor.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, Response, StatusCode, header},
    response::IntoResponse as _,
};
use futures_util::FutureExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_rustls::TlsAcceptor;
use tower::Service as _;

use super::{
    drain::Phase,
    metrics::{HandshakeFailure, ServerMetrics},
};

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections open at once; more wait to be accepted. Default 1024. An API server keeps up
    /// to 25 idle ones.
    pub connections: usize,
    /// Time for the TLS handshake. Default 10 s.
    pub handshake: Duration,
    /// Time from the handshake to the end of the first request's headers. Default 10 s.
    pub first_request: Duration,
    /// Time from an answer to the end of the next request's headers. Default 120 s. It must stay
    /// above 90 s: that long an API server keeps idle connections, and a POST on one that was
    /// just closed fails without a retry.
    pub idle: Duration,
    /// Age from which a connection is closed with its next answer, so that new replicas get
    /// their share. Connections differ by up to a quarter. Default 10 min.
    pub age: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            handshake: Duration::from_secs(10),
            first_request: Duration::from_secs(10),
            idle: Duration::from_mins(2),
            age: Duration::from_mins(10),
        }
    }
}

/// Largest request head, and the size of the read buffer of a connection.
const HEAD_LIMIT: usize = 64 * 1024;
/// Bytes that are read from the network at once.
const READ_AHEAD: usize = 16 * 1024;
/// Pause after a failed accept, which usually means that descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time that a connection without a request is left once the port is closed.
const LAST_CHANCE: Duration = Duration::from_secs(1);
/// Beyond age and idle time a connection has had every chance to end by itself; what is left is
/// a peer that does not read its answers.
const OVERDUE: Duration = Duration::from_mins(1);

/// One port and what is served on it.
pub(super) struct Listener {
    pub(super) tcp: TcpListener,
    /// Plain HTTP without it.
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) router: Router,
    pub(super) limits: ConnectionLimits,
    /// None: this port is not counted.
    pub(super) metrics: Option<ServerMetrics>,
    pub(super) phase: watch::Receiver<Phase>,
}

impl Listener {
    /// Serves until the phase is [`Phase::Closing`] and every connection has ended, or until
    /// [`Phase::Ended`]. Dropping the sender of the phase ends everything too.
    pub(super) async fn run(self) {
        let slots = Arc::new(Semaphore::new(self.limits.connections));
        let shared = Arc::new(Shared {
            log: LogPace::default(),
            tls: self.tls,
            router: self.router,
            limits: self.limits,
            metrics: self.metrics,
            phase: self.phase,
        });
        tokio::select! {
            () = reached(shared.phase.clone(), Phase::Closing) => {}
            () = accept_all(&self.tcp, &shared, &slots) => {}
        }
        // From here on the system refuses connections instead of letting them wait.
        drop(self.tcp);
        // A slot is free again when its connection has ended.
        let all = u32::try_from(self.limits.connections).unwrap_or(u32::MAX);
        let _ = slots.acquire_many(all).await;
    }
}

/// What the connections of one port have in common.
struct Shared {
    log: LogPace,
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: ConnectionLimits,
    metrics: Option<ServerMetrics>,
    phase: watch::Receiver<Phase>,
}

async fn accept_all(tcp: &TcpListener, shared: &Arc<Shared>, slots: &Arc<Semaphore>) {
    loop {
        if slots.available_permits() == 0 {
            if shared.log.may_write() {
                tracing::warn!(limit = shared.limits.connections, "connection limit reached");
            }
            if let Some(metrics) = &shared.metrics {
                metrics.connection_limit_reached.inc();
            }
        }
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else {
            return;
        };
        match tcp.accept().await {
            Ok((stream, peer)) => {
                let shared = Arc::clone(shared);
                // Ports differ from one connection to the next, which is all the age needs.
                let spread = f64::from(peer.port()) / f64::from(u16::MAX) / 4.0;
                tokio::spawn(async move { shared.connection(stream, peer, slot, spread).await });
            }
            Err(error) => {
                if shared.log.may_write() {
                    tracing::warn!(%error, "connection not accepted");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Shared {
    /// One connection from accept to close. `slot` is free again when it returns.
    async fn connection(
        &self,
        tcp: TcpStream,
        peer: SocketAddr,
        slot: OwnedSemaphorePermit,
        spread: f64,
    ) {
        let _slot = slot;
        let _open = self.metrics.as_ref().map(Open::new);
        // Answers are small and complete: waiting to fill a packet only delays them.
        let _ = tcp.set_nodelay(true);
        let old = Instant::now() + self.limits.age.mul_f64(1.0 - spread);
        tokio::select! {
            biased;
            () = reached(self.phase.clone(), Phase::Ended) => {}
            () = sleep_until(old + self.limits.idle + OVERDUE) => {}
            () = self.converse(tcp, peer, old) => {}
        }
    }

    async fn converse(&self, tcp: TcpStream, peer: SocketAddr, old: Instant) {
        let Some(tls) = &self.tls else {
            return self.serve(tcp, old).await;
        };
        // TLS asks for 4 KiB at a time; a usual review comes out of one call this way.
        let tcp = BufReader::with_capacity(READ_AHEAD, tcp);
        let result = tokio::select! {
            biased;
            result = tls.accept(tcp) => Some(result),
            () = self.patience(self.limits.handshake) => None,
        };
        let failure = match result {
            Some(Ok(stream)) => return self.serve(stream, old).await,
            Some(Err(error)) => {
                // Only errors of the TLS library itself have this kind. They deserve a line: an
                // API server that does not trust the certificate says so here and nowhere else.
                if error.kind() == io::ErrorKind::InvalidData {
                    if self.log.may_write() {
                        tracing::warn!(%peer, %error, "TLS handshake failed");
                    }
                    HandshakeFailure::Tls
                } else {
                    tracing::debug!(%peer, %error, "TLS handshake failed");
                    HandshakeFailure::Closed
                }
            }
            None => HandshakeFailure::Timeout,
        };
        if let Some(metrics) = &self.metrics {
            metrics.handshakes_failed.count(failure);
        }
    }

    async fn serve<S>(&self, stream: S, old: Instant)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let started = AtomicBool::new(false);
        let first = Notify::new();
        let service = service_fn(|request: Request<Incoming>| {
            if !started.swap(true, Ordering::Relaxed) {
                first.notify_one();
            }
            self.answer(request, old)
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                // hyper also runs this timer between requests, so it is the idle time.
                .header_read_timeout(self.limits.idle)
                .max_buf_size(HEAD_LIMIT)
                .serve_connection(TokioIo::new(stream), service)
        );
        let mut closing = pin!(reached(self.phase.clone(), Phase::Closing));
        let mut graceful = false;
        let mut waiting = true;
        let mut too_late = pin!(self.patience(self.limits.first_request));
        loop {
            tokio::select! {
                biased;
                () = &mut closing, if !graceful => {
                    graceful = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = first.notified(), if waiting => waiting = false,
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "connection ended");
                    }
                    return;
                }
                () = &mut too_late, if waiting => return,
            }
        }
    }

    /// Returns when a connection that has asked nothing yet has had its time.
    async fn patience(&self, limit: Duration) {
        tokio::select! {
            () = sleep(limit) => {}
            () = async {
                reached(self.phase.clone(), Phase::Closing).await;
                sleep(LAST_CHANCE).await;
            } => {}
        }
    }

    /// One request. Whatever the handler does, there is an answer, and it is never a redirect.
    async fn answer(
        &self,
        request: Request<Incoming>,
        old: Instant,
    ) -> Result<Response<Body>, Infallible> {
        let mut router = self.router.clone();
        let handler = AssertUnwindSafe(async move { router.call(request).await });
        let mut response = match handler.catch_unwind().await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(panic) => {
                tracing::error!(panic = panic_text(&*panic), "a handler panicked");
                if let Some(metrics) = &self.metrics {
                    metrics.handler_panics.inc();
                }
                internal_error()
            }
        };
        // Following redirects lets a webhook make an API server call other hosts
        // (CVE-2020-8561); no handler here has a reason to answer one.
        if response.status().is_redirection() {
            tracing::error!(status = %response.status(), "a handler answered a redirect");
            response = internal_error();
        }
        if *self.phase.borrow() >= Phase::Leaving || Instant::now() >= old {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        Ok(response)
    }
}

fn internal_error() -> Response<Body> {
    (StatusCode::INTERNAL_SERVER_ERROR, "internal error; see the log of the webhook\n")
        .into_response()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

/// Returns once the phase is at least `wanted`, or nobody is left to say so.
async fn reached(mut phase: watch::Receiver<Phase>, wanted: Phase) {
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}

/// Keeps peers from filling the log: one line in ten seconds for what they can bring about.
#[derive(Default)]
struct LogPace(Mutex<Option<Instant>>);

impl LogPace {
    fn may_write(&self) -> bool {
        let now = Instant::now();
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = next.is_none_or(|next| now >= next);
        if free {
            *next = Some(now + Duration::from_secs(10));
        }
        free
    }
}

/// Counts a connection while it is open.
struct Open<'a>(&'a ServerMetrics);

impl<'a> Open<'a> {
    fn new(metrics: &'a ServerMetrics) -> Self {
        metrics.connections.inc();
        Self(metrics)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}
