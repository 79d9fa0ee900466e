//! Bounds on request bodies, seen from the client.

use std::{sync::Arc, time::Duration};

use axum::{Router, extract::Request, routing::post};
use metal3_guard::server::{BodyLimits, Budget, Refusal, read};
use tokio::{io::AsyncWriteExt as _, sync::Semaphore};

use crate::support::{Running, SHORT, router, soon};

const MIB: usize = 1 << 20;

#[tokio::test]
async fn a_body_up_to_the_limit_is_read() {
    let server = Running::start(|_| {}).await;
    let mut client = server.connect().await;
    for length in [0, 1, 8 * 1024, 7 * MIB, 32 * MIB] {
        let answer = client.post("/length", &vec![b'x'; length]).await.unwrap();
        assert_eq!((answer.status, answer.body), (200, length.to_string()));
    }
    server.until_metric("body_bytes_in_flight", |n| n == 0).await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_with_the_limit() {
    let server = Running::start(|_| {}).await;
    let mut client = server.connect().await;
    let answer = client.post("/length", &vec![b'x'; 33 * MIB]).await.unwrap();
    assert_eq!(answer.status, 413);
    assert!(answer.body.contains("33554432 bytes"), "{}", answer.body);
    assert!(answer.closes());

    let mut other = server.connect().await;
    assert_eq!(other.post("/length", b"four").await.unwrap().body, "4");
    let refused = server.metric("bodies_refused_total{reason=\"too_large\"}").await;
    assert_eq!(refused, 1);
}

#[tokio::test]
async fn a_body_of_unknown_length_has_the_same_limit() {
    let server = Running::start(|settings| settings.bodies.per_body = MIB).await;
    let head = "POST /length HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for (chunks, status, body) in [
        (0, 200, "0"),
        (1, 200, "65536"),
        (16, 200, "1048576"),
        (17, 413, "the request body exceeds the limit of 1048576 bytes"),
    ] {
        let mut client = server.connect().await;
        client.send(head).await.unwrap();
        for _ in 0..chunks {
            client.send(&chunk).await.unwrap();
        }
        client.send("0\r\n\r\n").await.unwrap();
        let answer = client.answer().await.unwrap();
        assert_eq!(answer.status, status);
        assert!(answer.body.starts_with(body), "{}", answer.body);
    }
    server.until_metric("body_bytes_in_flight", |n| n == 0).await;
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_before_it_sends() {
    let server = Running::start(|_| {}).await;
    let mut client = server.connect().await;
    let head = |length: usize| {
        format!(
            "POST /length HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    client.send(&head(4)).await.unwrap();
    assert_eq!(client.answer().await.unwrap().status, 100);
    client.send("four").await.unwrap();
    assert_eq!(client.answer().await.unwrap().body, "4");
    client.send(&head(33 * MIB)).await.unwrap();
    assert_eq!(client.answer().await.unwrap().status, 413);
}

#[tokio::test]
async fn a_body_that_stalls_times_out() {
    let server = Running::start(|settings| settings.bodies.deadline = SHORT).await;
    let mut client = server.connect().await;
    client.head("/length", 10).await.unwrap();
    client.send("five.").await.unwrap();
    let answer = client.answer().await.unwrap();
    assert_eq!(answer.status, 408);
    assert!(answer.body.contains("did not arrive in time"));
    server.until_metric("body_bytes_in_flight", |n| n == 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_room_back() {
    let server = Running::start(|_| {}).await;
    let mut client = server.connect().await;
    client.head("/length", 10 * MIB).await.unwrap();
    client.send("a bit").await.unwrap();
    server.until_metric("body_bytes_in_flight", |n| n == 10 << 20).await;
    drop(client);
    server.until_metric("body_bytes_in_flight", |n| n == 0).await;
}

#[tokio::test]
async fn malformed_chunks_are_the_client_s_fault() {
    let server = Running::start(|_| {}).await;
    let mut client = server.connect().await;
    client
        .send("POST /length HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnot hex\r\n")
        .await
        .unwrap();
    // The answer may or may not be written to a connection in this state; it ends either way.
    client.until_closed().await;
    server.until_metric("bodies_refused_total{reason=\"broken\"}", |n| n == 1).await;
    let mut other = server.connect().await;
    assert_eq!(other.get("/").await.unwrap().status, 200);
}

/// A handler that keeps its body until it gets a permit.
fn holding(budget: Budget, leave: Arc<Semaphore>) -> Router {
    let routes = router(budget.clone());
    let handler = move |request: Request| async move {
        let (parts, body) = request.into_parts();
        let held = read(body, &parts.headers, &budget).await?;
        leave.acquire().await.unwrap().forget();
        Ok::<_, Refusal>(held.len().to_string())
    };
    routes.route("/hold", post(handler))
}

#[tokio::test]
async fn bytes_in_flight_are_bounded_over_all_requests() {
    let leave = Arc::new(Semaphore::new(0));
    let server = Running::with_handler(
        |settings| {
            settings.bodies =
                BodyLimits { per_body: 64 * 1024, in_flight: 100 * 1024, deadline: SHORT }
        },
        |budget| holding(budget, Arc::clone(&leave)),
    )
    .await;
    let body = vec![b'x'; 64 * 1024];

    let mut first = server.connect().await;
    first.head("/hold", body.len()).await.unwrap();
    first.stream.write_all(&body).await.unwrap();
    first.stream.flush().await.unwrap();
    server.until_metric("body_bytes_in_flight", |n| n == 64 * 1024).await;
    assert_eq!(server.budget.bytes_in_flight(), 64 * 1024);

    let mut second = server.connect().await;
    let answer = second.post("/hold", &body).await.unwrap();
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("in flight"), "{}", answer.body);
    assert_eq!(answer.header("retry-after"), None);

    // What fits beside the first is read.
    let mut third = server.connect().await;
    assert_eq!(third.post("/length", &body[..1024]).await.unwrap().status, 200);

    leave.add_permits(1);
    assert_eq!(first.answer().await.unwrap().body, "65536");
    leave.add_permits(1);
    let mut fourth = server.connect().await;
    assert_eq!(fourth.post("/hold", &body).await.unwrap().status, 200);
    server.until_metric("body_bytes_in_flight", |n| n == 0).await;
}

#[tokio::test]
async fn a_waiting_body_gets_the_room_that_becomes_free() {
    let leave = Arc::new(Semaphore::new(0));
    let server = Running::with_handler(
        |settings| {
            settings.bodies = BodyLimits {
                per_body: 64 * 1024,
                in_flight: 64 * 1024,
                deadline: Duration::from_secs(30),
            }
        },
        |budget| holding(budget, Arc::clone(&leave)),
    )
    .await;
    let body = vec![b'x'; 64 * 1024];
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = server.connect().await;
        client.head("/hold", body.len()).await.unwrap();
        client.stream.write_all(&body).await.unwrap();
        client.stream.flush().await.unwrap();
        clients.push(client);
    }
    leave.add_permits(4);
    for mut client in clients {
        assert_eq!(soon(client.answer()).await.unwrap().status, 200);
    }
}
