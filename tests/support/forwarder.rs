//! A TCP forwarder in front of several guards, as a Service is: each new connection goes to the
//! next guard that is ready, and connections that are open stay where they are.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::guard::{self, Guard};

/// How often readiness is asked for; a Service learns of it in about this time or later.
const POLL: Duration = Duration::from_millis(200);

/// A running forwarder. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Forwarder {
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Shared {
    backends: Mutex<Vec<Backend>>,
    turn: AtomicUsize,
    /// Connections that no guard took.
    lost: AtomicUsize,
}

#[derive(Clone, Debug)]
struct Backend {
    webhooks: String,
    admin: String,
    ready: bool,
}

impl Forwarder {
    /// Starts one without any guard behind it.
    pub(crate) async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shared).accept(listener));
        tasks.spawn(Arc::clone(&shared).poll());
        Ok(Self { address, shared, _tasks: tasks })
    }

    /// Puts a guard behind it, which gets connections from the moment it is ready.
    pub(crate) fn add(&self, guard: &Guard) {
        let (webhooks, admin) = (guard.address.clone(), guard.admin.clone());
        self.shared.lock().push(Backend { webhooks, admin, ready: false });
    }

    /// How many guards get connections now.
    pub(crate) fn ready(&self) -> usize {
        self.shared.lock().iter().filter(|it| it.ready).count()
    }

    /// Connections that could not be passed on.
    pub(crate) fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Shared {
    async fn accept(self: Arc<Self>, listener: TcpListener) {
        let mut open = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.spawn(Arc::clone(&self).pass_on(stream));
            while open.try_join_next().is_some() {}
        }
    }

    async fn pass_on(self: Arc<Self>, mut from: TcpStream) {
        let connected = match self.next() {
            Some(address) => TcpStream::connect(address).await.ok(),
            None => None,
        };
        match connected {
            // Its end, in whatever way, is the end of both.
            Some(mut to) => drop(copy_bidirectional(&mut from, &mut to).await),
            None => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn next(&self) -> Option<String> {
        let backends = self.lock();
        let ready: Vec<_> = backends.iter().filter(|it| it.ready).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(ready.len())?;
        ready.get(turn).map(|it| it.webhooks.clone())
    }

    async fn poll(self: Arc<Self>) {
        loop {
            let known = self.lock().clone();
            for asked in known {
                let answer = guard::get(&asked.admin, "/readyz").await;
                let ready = answer.is_ok_and(|(status, _)| status == 200);
                if let Some(it) = self.lock().iter_mut().find(|it| it.admin == asked.admin) {
                    it.ready = ready;
                }
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Backend>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
