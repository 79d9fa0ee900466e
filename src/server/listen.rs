//! Accepts connections and serves HTTP/1.1 on them, within bounds that one peer cannot exhaust
//! for the others.
//!
//! An own loop over hyper, because the number of connections has to be bounded *before* one is
//! accepted: then what is too much waits in the kernel's backlog instead of using a descriptor.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::Semaphore,
    time::sleep,
};

use super::{
    connection::{LogPace, Shared, reached},
    drain::Phase,
    handler::Handler,
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

/// Pause after a failed accept, which usually means that descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One port and what is served on it.
pub(super) struct Listener<H> {
    pub(super) tcp: TcpListener,
    pub(super) shared: Shared<H>,
    /// Where connections are served.
    pub(super) runtime: Handle,
}

impl<H: Handler> Listener<H> {
    /// Serves until the phase is [`Phase::Closing`] and every connection has ended, or until
    /// [`Phase::Ended`]. Dropping the sender of the phase ends everything too.
    pub(super) async fn run(self) {
        let shared = Arc::new(self.shared);
        let slots = Arc::new(Semaphore::new(shared.limits.connections));
        tokio::select! {
            () = reached(shared.phase.clone(), Phase::Closing) => {}
            () = accept_all(&self.tcp, &self.runtime, &shared, &slots) => {}
        }
        // From here on the system refuses connections instead of letting them wait.
        drop(self.tcp);
        // A slot is free again when its connection has ended.
        let all = u32::try_from(shared.limits.connections).unwrap_or(u32::MAX);
        let _ = slots.acquire_many(all).await;
    }
}

async fn accept_all(
    tcp: &TcpListener,
    runtime: &Handle,
    shared: &Arc<Shared<impl Handler>>,
    slots: &Arc<Semaphore>,
) {
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
        // A stream belongs to the runtime that it is made in.
        match tcp.accept().await.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
            Ok((stream, peer)) => {
                let shared = Arc::clone(shared);
                // Ports differ from one connection to the next, which is all the age needs.
                let spread = f64::from(peer.port()) / f64::from(u16::MAX) / 4.0;
                runtime.spawn(async move {
                    match TcpStream::from_std(stream) {
                        Ok(stream) => shared.connection(stream, peer, slot, spread).await,
                        Err(error) => not_accepted(&shared.log, &error),
                    }
                });
            }
            Err(error) => {
                not_accepted(&shared.log, &error);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn not_accepted(log: &LogPace, error: &io::Error) {
    if log.may_write() {
        tracing::warn!(%error, "connection not accepted");
    }
}
