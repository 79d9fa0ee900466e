//! Leaving without breaking a request.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use metal3_guard::server::{Error, Metrics, Phase, Readiness, Server, Settings, Signal, Signals};
use tokio::{net::TcpStream, sync::Semaphore};

use crate::support::{Client, ClientOptions, Running, SHORT, connect, soon};

/// `/` answers at once, `/wait` once it gets a permit; `arrived` gets one for each call.
fn waiting(arrived: &Arc<Semaphore>, leave: &Arc<Semaphore>) -> Router {
    let (arrived, leave) = (Arc::clone(arrived), Arc::clone(leave));
    let wait = move || async move {
        arrived.add_permits(1);
        leave.acquire().await.unwrap().forget();
        "waited"
    };
    Router::new().route("/", get(|| async { "hello" })).route("/wait", get(wait))
}

struct Scene {
    server: Running,
    arrived: Arc<Semaphore>,
    leave: Arc<Semaphore>,
}

impl Scene {
    async fn new(change: impl FnOnce(&mut Settings)) -> Self {
        let arrived = Arc::new(Semaphore::new(0));
        let leave = Arc::new(Semaphore::new(0));
        let server = Running::with_handler(change, |_| waiting(&arrived, &leave)).await;
        Self { server, arrived, leave }
    }

    /// Sends a request that is not answered yet.
    async fn ask(&self) -> Client<tokio_rustls::client::TlsStream<TcpStream>> {
        let mut client = self.server.connect().await;
        client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        soon(self.arrived.acquire()).await.unwrap().forget();
        client
    }

    async fn until_refused(&self) {
        soon(async {
            while TcpStream::connect(self.server.address).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn draining_answers_everyone_and_closes_with_the_answer() {
    // Long enough that everything up to the closed port happens within it.
    let mut scene =
        Scene::new(|settings| settings.drain.propagation = Duration::from_secs(4)).await;
    let mut kept = scene.server.connect().await;
    assert!(!kept.get("/").await.unwrap().closes());
    let mut idle = scene.server.connect().await;
    assert_eq!(idle.get("/").await.unwrap().status, 200);
    let mut busy = scene.ask().await;

    scene.server.stop().await;
    soon(async {
        while scene.server.readiness.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let ready = scene.server.admin("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("draining: shutting down"), "{ready:?}");
    assert_eq!(scene.server.admin("/livez").await.status, 200);

    let answer = kept.get("/").await.unwrap();
    assert_eq!(answer.body, "hello");
    assert!(answer.closes());
    kept.until_closed().await;
    let answer = scene.server.connect().await.get("/").await.unwrap();
    assert!(answer.status == 200 && answer.closes(), "still accepting");

    scene.until_refused().await;
    idle.until_closed().await;
    assert_eq!(scene.server.admin("/livez").await.status, 200);
    scene.leave.add_permits(1);
    let answer = busy.answer().await.unwrap();
    assert_eq!(answer.body, "waited");
    assert!(answer.closes());
    scene.server.end().await.unwrap();
    assert!(TcpStream::connect(scene.server.admin).await.is_err());
}

#[tokio::test]
async fn what_does_not_finish_is_cut_at_the_deadline() {
    let mut scene = Scene::new(|settings| settings.drain.deadline = SHORT).await;
    let mut stuck = scene.ask().await;
    scene.server.stop().await;
    scene.server.end().await.unwrap();
    assert!(stuck.answer().await.is_err());
}

#[tokio::test]
async fn silent_connections_do_not_hold_the_end_up() {
    let mut scene = Scene::new(|settings| {
        settings.connections.first_request = Duration::from_mins(1);
        settings.connections.handshake = Duration::from_mins(1);
        settings.drain.deadline = Duration::from_mins(1);
    })
    .await;
    let _silent = TcpStream::connect(scene.server.address).await.unwrap();
    let _quiet = scene.server.connect().await;
    scene.server.until_metric("connections_open", |n| n == 2).await;
    scene.server.stop().await;
    // `end` itself gives up before any of the deadlines above.
    scene.server.end().await.unwrap();
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    for propagation in [Duration::from_hours(1), Duration::ZERO] {
        let mut scene = Scene::new(|settings| {
            settings.drain.propagation = propagation;
            settings.drain.deadline = Duration::from_hours(1);
        })
        .await;
        let mut stuck = scene.ask().await;
        scene.server.stop().await;
        if propagation.is_zero() {
            scene.until_refused().await;
        }
        scene.server.stop().await;
        let end = scene.server.end().await;
        assert!(matches!(end, Err(Error::Aborted)), "{end:?}");
        assert!(stuck.answer().await.is_err());
    }
}

#[tokio::test]
async fn a_server_that_is_dropped_takes_its_connections_along() {
    let scene = Scene::new(|_| {}).await;
    let mut stuck = scene.ask().await;
    scene.server.task.abort();
    assert!(stuck.answer().await.is_err());
    scene.until_refused().await;
}

#[tokio::test]
async fn signals_of_the_process_arrive() {
    let files = {
        let (cert, key) = crate::support::Authority::new().issue();
        crate::support::Files::new(&cert, &key)
    };
    let mut settings = files.settings();
    settings.drain.propagation = Duration::ZERO;
    let server = Server::bind(settings, Readiness::new(), Metrics::new(), jiff::Timestamp::now())
        .await
        .unwrap();
    let (mut reloads, mut phase) = (server.reloads(), server.phase());
    let signals = Signals::of_process().unwrap();
    let serving = tokio::spawn(server.serve(Router::new(), signals));

    let kill = |signal: &str| {
        let pid = std::process::id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(status.success());
    };
    kill("-HUP");
    soon(reloads.wait_for(|count| *count == 1)).await.unwrap();
    assert_eq!(*phase.borrow(), Phase::Serving);
    kill("-TERM");
    soon(phase.wait_for(|phase| *phase > Phase::Serving)).await.unwrap();
    soon(serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn reloads_are_announced_while_draining_too() {
    let mut scene = Scene::new(|settings| settings.drain.propagation = SHORT).await;
    let busy = scene.ask().await;
    scene.server.stop().await;
    for _ in 0..3 {
        scene.server.signals.send(Signal::Reload).await.unwrap();
    }
    drop(busy);
    scene.server.end().await.unwrap();
}

/// Clients that keep connections, as API servers do, while the server goes away: they come to
/// know of it late, and still no request may fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_under_load() {
    let mut scene =
        Scene::new(|settings| settings.drain.propagation = Duration::from_secs(3)).await;
    let gone = Arc::new(AtomicBool::new(false));
    let (address, roots) = (scene.server.address, scene.server.authority.roots());
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (gone, roots) = (Arc::clone(&gone), roots.clone());
            tokio::spawn(async move {
                let mut kept = None;
                let mut answers = 0;
                while !gone.load(Ordering::Relaxed) {
                    let mut client = match kept.take() {
                        Some(client) => client,
                        None => connect(address, roots.clone(), ClientOptions::default()).await?,
                    };
                    let answer = client.get("/").await?;
                    assert_eq!(answer.status, 200);
                    answers += 1;
                    if !answer.closes() {
                        kept = Some(client);
                    }
                }
                Ok::<_, std::io::Error>(answers)
            })
        })
        .collect();
    tokio::time::sleep(SHORT).await;
    scene.server.stop().await;
    soon(async {
        while scene.server.readiness.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // The endpoint disappears some time after the server is no longer ready.
    tokio::time::sleep(SHORT).await;
    gone.store(true, Ordering::Relaxed);
    for client in load {
        let answers = soon(client).await.unwrap().unwrap();
        assert!(answers > 0);
    }
    scene.server.end().await.unwrap();
}
