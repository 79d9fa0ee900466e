//! One connection from accept to close: the handshake, then one request after the other, each peer
//! within its time.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderValue, Request, Response, StatusCode, header},
    response::IntoResponse as _,
};
use futures_util::FutureExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_rustls::TlsAcceptor;

use super::{
    drain::Phase,
    eager::Eager,
    handler::Handler,
    listen::ConnectionLimits,
    metrics::{HandshakeFailure, ServerMetrics},
    turns::Turns,
};

/// Largest request head, and the most that the read buffer of a connection grows to.
const HEAD_LIMIT: usize = 64 * 1024;
/// Bytes that are read from the network at once.
const READ_AHEAD: usize = 16 * 1024;
/// Time that a connection without a request is left once the port is closed.
const LAST_CHANCE: Duration = Duration::from_secs(1);
/// Beyond age and idle time a connection has had every chance to end by itself; what is left is
/// a peer that does not read its answers.
const OVERDUE: Duration = Duration::from_mins(1);

/// What the connections of one port have in common.
pub(super) struct Shared<H> {
    pub(super) log: LogPace,
    /// Plain HTTP without it.
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) handler: H,
    pub(super) limits: ConnectionLimits,
    /// None: this port is not counted.
    pub(super) metrics: Option<ServerMetrics>,
    pub(super) phase: watch::Receiver<Phase>,
}

impl<H: Handler> Shared<H> {
    /// One connection from accept to close. `slot` is free again when it returns.
    pub(super) async fn connection(
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
        let Some(tls) = &self.tls else {
            return self.serve(tcp, old).await;
        };
        // TLS asks for 4 KiB at a time; a usual review comes out of one call this way.
        let tcp = BufReader::with_capacity(READ_AHEAD, tcp);
        let result = tokio::select! {
            biased;
            () = reached(self.phase.clone(), Phase::Ended) => return,
            result = tls.accept(tcp) => Some(result),
            () = self.patience(self.limits.handshake) => None,
        };
        let failure = match result {
            Some(Ok(stream)) => return self.serve(stream, old).await,
            Some(Err(error)) => self.handshake_failed(peer, &error),
            None => HandshakeFailure::Timeout,
        };
        if let Some(metrics) = &self.metrics {
            metrics.handshakes_failed.count(failure);
        }
    }

    fn handshake_failed(&self, peer: SocketAddr, error: &io::Error) -> HandshakeFailure {
        // Only errors of the TLS library itself have this kind. They deserve a line: an API server
        // that does not trust the certificate says so here and nowhere else.
        if error.kind() != io::ErrorKind::InvalidData {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            return HandshakeFailure::Closed;
        }
        if self.log.may_write() {
            tracing::warn!(%peer, %error, "TLS handshake failed");
        }
        HandshakeFailure::Tls
    }

    async fn serve<S>(&self, stream: S, old: Instant)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let turns = Turns::new(&self.limits, old + self.limits.idle + OVERDUE);
        let service = service_fn(|request: Request<Incoming>| {
            turns.ours();
            self.answer(request, old).inspect(|_| turns.theirs())
        });
        let mut connection = pin!(
            http1::Builder::new()
                // A timer for each request head; `turns` has one for the connection.
                .header_read_timeout(None)
                .max_buf_size(HEAD_LIMIT)
                .serve_connection(TokioIo::new(Eager::new(stream)), service)
        );
        let mut leave = pin!(reached(self.phase.clone(), Phase::Closing));
        let mut graceful = false;
        let mut look = pin!(sleep_until(turns.first_look()));
        loop {
            // Each of these is looked at again at each byte that comes, so they are few.
            tokio::select! {
                biased;
                () = &mut leave => {
                    if graceful {
                        return;
                    }
                    graceful = true;
                    leave.set(reached(self.phase.clone(), Phase::Ended));
                    connection.as_mut().graceful_shutdown();
                    look.as_mut().reset(turns.hurry(LAST_CHANCE));
                }
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "connection ended");
                    }
                    return;
                }
                () = &mut look => match turns.next_look() {
                    Some(next) => look.as_mut().reset(next),
                    None => return,
                },
            }
        }
    }

    /// Returns when a connection without a finished handshake has had its time.
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
        let handling = AssertUnwindSafe(self.handler.handle(request.map(Body::new)));
        let mut response = match handling.catch_unwind().await {
            Ok(response) => response,
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
pub(super) async fn reached(mut phase: watch::Receiver<Phase>, wanted: Phase) {
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}

/// Keeps peers from filling the log: one line in ten seconds for what they can bring about.
#[derive(Default)]
pub(super) struct LogPace(Mutex<Option<Instant>>);

impl LogPace {
    pub(super) fn may_write(&self) -> bool {
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
