//! From the first signal to the end: leave without breaking a request.
//!
//! The order matters. API servers keep sending for a moment after the endpoint is gone, and a
//! POST on a connection that was closed while idle fails without a retry. So: be unready, keep
//! accepting, close each connection together with its next answer, and only then the idle rest.

use std::{future::Future, pin::Pin, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

/// What the outside asks of a running server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Signal {
    /// Look at the certificate files and reload other state (SIGHUP).
    Reload,
    /// Drain and end; the second one ends at once (SIGTERM, SIGINT).
    Stop,
}

/// Where signals come from.
#[derive(Debug)]
pub struct Signals {
    sender: mpsc::Sender<Signal>,
    receiver: mpsc::Receiver<Signal>,
}

impl Signals {
    /// Signals that only [`Signals::sender`] sends.
    pub fn manual() -> Self {
        let (sender, receiver) = mpsc::channel(8);
        Self { sender, receiver }
    }

    /// The signals of this process: SIGTERM and SIGINT stop, SIGHUP reloads. From here on they
    /// no longer end the process by themselves. Must run within a Tokio runtime.
    ///
    /// # Errors
    /// When the system refuses a signal handler.
    pub fn of_process() -> Result<Self, std::io::Error> {
        let signals = Self::manual();
        for (kind, meaning) in [
            (SignalKind::terminate(), Signal::Stop),
            (SignalKind::interrupt(), Signal::Stop),
            (SignalKind::hangup(), Signal::Reload),
        ] {
            let mut stream = signal(kind)?;
            let sender = signals.sender();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if sender.send(meaning).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(signals)
    }

    /// Another way to send, for parts of the process that want it to stop.
    pub fn sender(&self) -> mpsc::Sender<Signal> {
        self.sender.clone()
    }

    async fn next(&mut self) -> Signal {
        // `self` holds a sender, so the channel never ends.
        self.receiver.recv().await.unwrap_or(Signal::Stop)
    }

    /// Returns at the next stop; until then every other signal goes to `reload`.
    async fn stop(&mut self, reload: &impl Fn()) {
        while self.next().await == Signal::Reload {
            reload();
        }
    }
}

/// How long leaving may take.
#[derive(Clone, Copy, Debug)]
pub struct DrainTimes {
    /// Time to keep accepting after the first signal, until the cluster has stopped sending.
    /// Default 5 s.
    pub propagation: Duration,
    /// Time that open requests then have to finish. Default 20 s. With `propagation` it should
    /// stay below the pod's `terminationGracePeriodSeconds`, 30 s unless set.
    pub deadline: Duration,
}

impl Default for DrainTimes {
    fn default() -> Self {
        Self { propagation: Duration::from_secs(5), deadline: Duration::from_secs(20) }
    }
}

/// Where a server is in its life. Only ever goes forward.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Phase {
    /// Serving.
    Serving,
    /// Told to stop: not ready, still accepting, closing connections with each answer.
    Leaving,
    /// The port is closed, open requests finish.
    Closing,
    /// Everything still open is cut.
    Ended,
}

/// Time for connections to notice that they are cut.
const CUT: Duration = Duration::from_secs(1);

/// A second stop came before the first one was done.
#[derive(Debug)]
pub(super) struct Aborted;

/// Who is told of a signal.
pub(super) struct Told<S, R> {
    /// The first [`Signal::Stop`].
    pub(super) stop: S,
    /// Every [`Signal::Reload`].
    pub(super) reload: R,
}

/// Takes a server through its life. `listening` is done when the port is closed and the last
/// connection has ended.
pub(super) async fn conduct(
    mut signals: Signals,
    times: DrainTimes,
    phase: &watch::Sender<Phase>,
    told: Told<impl Fn(), impl Fn()>,
    mut listening: Pin<&mut impl Future<Output = ()>>,
) -> Result<(), Aborted> {
    tokio::select! {
        () = signals.stop(&told.reload) => {}
        () = &mut listening => return Ok(()),
    }
    // First: whoever sees that it is not ready may rely on what comes with leaving.
    phase.send_replace(Phase::Leaving);
    (told.stop)();
    tracing::info!(propagation = ?times.propagation, "draining: not ready, still accepting");
    let drained = async {
        tokio::select! {
            () = sleep(times.propagation) => {}
            () = &mut listening => return,
        }
        phase.send_replace(Phase::Closing);
        tokio::select! {
            () = &mut listening => return,
            () = sleep(times.deadline) => {}
        }
        tracing::warn!(deadline = ?times.deadline, "drain deadline reached, open requests are cut");
        phase.send_replace(Phase::Ended);
        // A handler that never yields cannot be cut; it must not keep the process either.
        let _ = timeout(CUT, listening).await;
    };
    tokio::select! {
        biased;
        () = signals.stop(&told.reload) => {
            phase.send_replace(Phase::Ended);
            Err(Aborted)
        }
        () = drained => Ok(()),
    }
}
