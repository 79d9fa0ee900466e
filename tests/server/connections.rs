//! Bounds on connections: one bad peer must not harm the others.

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    http::{Request, Response},
    response::Redirect,
    routing::get,
};
use metal3_guard::server::{Handler, Settings, Signal};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::support::{Client, OwnRuntime, Running, SHORT, router, soon};

fn impatient(settings: &mut Settings) {
    settings.connections.handshake = SHORT;
    settings.connections.first_request = SHORT;
}

#[tokio::test]
async fn peers_that_stall_are_closed_while_others_are_served() {
    let server = Running::start(impatient).await;
    let mut good = server.connect().await;
    assert_eq!(good.get("/").await.unwrap().status, 200);

    let mut silent = Client::plain(server.address).await;
    let mut half = Client::plain(server.address).await;
    // The start of a client hello that announces more than it sends.
    half.stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00]).await.unwrap();
    let mut plain = Client::plain(server.address).await;
    plain.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut quiet = server.connect().await;
    let mut slow = server.connect().await;

    let drip = async {
        // Until the server closes, one byte of headers at a time.
        while slow.send("G").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let serve = async {
        for _ in 0..20 {
            assert_eq!(good.get("/").await.unwrap().status, 200);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(Box::pin(async {
        tokio::join!(
            silent.until_closed(),
            half.until_closed(),
            plain.until_closed(),
            quiet.until_closed(),
            drip,
            serve,
        )
    }))
    .await;
    server.until_metric("connections_open", |n| n == 1).await;
    for (reason, count) in [("timeout", 2), ("tls", 1)] {
        let name = format!("handshakes_failed_total{{reason=\"{reason}\"}}");
        assert_eq!(server.metric(&name).await, count, "{reason}");
    }
    assert_eq!(good.get("/").await.unwrap().status, 200);
}

#[tokio::test]
async fn slow_headers_of_the_first_request_are_closed() {
    let server = Running::start(impatient).await;
    let mut slow = server.connect().await;
    slow.send("GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.unwrap();
    slow.until_closed().await;
    server.until_metric("connections_open", |n| n == 0).await;
}

#[tokio::test]
async fn a_port_check_is_counted_apart() {
    let server = Running::start(|_| {}).await;
    drop(TcpStream::connect(server.address).await.unwrap());
    server.until_metric("handshakes_failed_total{reason=\"closed\"}", |n| n == 1).await;
}

#[tokio::test]
async fn a_kept_connection_may_idle_beyond_the_first_deadline() {
    let server = Running::start(impatient).await;
    let mut client = server.connect().await;
    for _ in 0..3 {
        assert_eq!(client.get("/").await.unwrap().status, 200);
        tokio::time::sleep(SHORT * 2).await;
    }
    assert!(!client.get("/").await.unwrap().closes());
}

#[tokio::test]
async fn a_kept_connection_is_closed_after_the_idle_time() {
    let server = Running::start(|settings| settings.connections.idle = SHORT).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.unwrap().status, 200);
    client.until_closed().await;
}

#[tokio::test]
async fn slow_headers_of_a_later_request_are_closed_after_the_idle_time() {
    let server = Running::start(|settings| settings.connections.idle = SHORT).await;
    let mut slow = server.connect().await;
    assert_eq!(slow.get("/").await.unwrap().status, 200);
    soon(async {
        // Until the server closes, one byte of headers at a time.
        while slow.send("G").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    server.until_metric("connections_open", |n| n == 0).await;
}

#[tokio::test]
async fn an_answer_may_take_longer_than_the_idle_time() {
    let server = Running::with_handler(
        |settings| settings.connections.idle = SHORT,
        |budget| {
            let late = get(|| async {
                tokio::time::sleep(SHORT * 3).await;
                "late"
            });
            router(budget).route("/late", late)
        },
    )
    .await;
    let mut client = server.connect().await;
    for path in ["/late", "/", "/late"] {
        let answer = client.get(path).await.unwrap();
        assert_eq!((answer.status, answer.closes()), (200, false), "{path}");
    }
    client.until_closed().await;
}

#[tokio::test]
async fn an_old_connection_is_closed_with_an_answer() {
    let server = Running::start(|settings| settings.connections.age = Duration::ZERO).await;
    let mut client = server.connect().await;
    let answer = client.get("/").await.unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.closes());
    client.until_closed().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_a_free_one() {
    let server = Running::start(|settings| {
        settings.connections.connections = 2;
        settings.connections.handshake = Duration::from_secs(30);
    })
    .await;
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    assert_eq!(first.get("/").await.unwrap().status, 200);
    assert_eq!(second.get("/").await.unwrap().status, 200);

    let mut third = Box::pin(server.connect());
    let early = tokio::time::timeout(SHORT, &mut third).await;
    assert!(early.is_err(), "accepted beyond the limit");
    assert_eq!(server.metric("connections_open").await, 2);
    assert!(server.metric("connection_limit_reached_total").await >= 1);
    assert_eq!(second.get("/").await.unwrap().status, 200);

    drop(first);
    let mut third = soon(third).await;
    assert_eq!(third.get("/").await.unwrap().status, 200);
}

#[tokio::test]
async fn connections_have_the_runtime_that_they_are_given() {
    let reviews = OwnRuntime::start();
    let handle = reviews.handle.clone();
    let mut server = Running::with_handler(
        |settings| {
            impatient(settings);
            settings.reviews = Some(handle);
        },
        |budget| {
            let name = get(async || std::thread::current().name().unwrap_or_default().to_owned());
            router(budget).route("/thread", name)
        },
    )
    .await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/thread").await.unwrap().body, "reviews");
    // Their times and bounds are the same there.
    let mut silent = Client::plain(server.address).await;
    soon(silent.until_closed()).await;
    server.until_metric("connections_open", |n| n == 1).await;
    server.signals.send(Signal::Stop).await.unwrap();
    assert_eq!(client.get("/thread").await.unwrap().body, "reviews");
    drop(client);
    assert!(soon(&mut server.task).await.unwrap().is_ok());
    reviews.end();
}

#[tokio::test]
async fn a_panic_is_answered_and_the_connection_lives() {
    let server = Running::with_handler(
        |_| {},
        |budget| {
            let panics = get(|| async {
                let nothing: Vec<&str> = Vec::new();
                nothing[0]
            });
            router(budget).route("/panic", panics)
        },
    )
    .await;
    let mut client = server.connect().await;
    let answer = client.get("/panic").await.unwrap();
    assert_eq!(answer.status, 500);
    assert!(answer.body.starts_with("internal error"), "{}", answer.body);
    assert_eq!(client.get("/").await.unwrap().body, "hello");
    assert_eq!(server.metric("handler_panics_total").await, 1);
}

/// Says the same to everybody, whatever is asked.
struct Parrot;

impl Handler for Parrot {
    async fn handle(&self, request: Request<Body>) -> Response<Body> {
        Response::new(Body::from(format!("{} indeed", request.method())))
    }
}

#[tokio::test]
async fn what_routes_nothing_is_served_as_well_and_head_gets_no_body() {
    let server = Running::with_handler(|_| {}, |_| Parrot).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/any/path").await.unwrap().body, "GET indeed");
    client.head_without_body("/").await;
}

#[tokio::test]
async fn a_redirect_never_leaves_the_server() {
    let server = Running::with_handler(
        |_| {},
        |_| {
            Router::new()
                .route("/moved", get(|| async { Redirect::temporary("/") }))
                .route("/here", get(|| async { "here" }))
        },
    )
    .await;
    let mut client = server.connect().await;
    let answer = client.get("/moved").await.unwrap();
    assert_eq!(answer.status, 500);
    assert_eq!(answer.header("location"), None);
    for (path, status) in [("/here/", 404), ("//here", 404), ("/here", 200)] {
        assert_eq!(client.get(path).await.unwrap().status, status, "{path}");
    }
}
