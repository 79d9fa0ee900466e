//! Probes and metrics.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, routing::get};

use crate::support::{Client, OwnRuntime, Running, soon};

#[tokio::test]
async fn readiness_names_what_is_missing() {
    let server = Running::start(|_| {}).await;
    let watches = server.readiness.register("watches");
    soon(async {
        // The certificate's own gate opens by itself.
        while server.readiness.unmet() != ["watches: starting"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let answer = server.admin("/readyz").await;
    assert_eq!((answer.status, &*answer.body), (503, "watches: starting\n"));

    watches.open();
    let answer = server.admin("/readyz").await;
    assert_eq!((answer.status, &*answer.body), (200, "ok\n"));

    watches.close("lost for 90 s");
    let answer = server.admin("/readyz").await;
    assert_eq!(answer.body, "watches: lost for 90 s\n");
    drop(watches);
    let answer = server.admin("/readyz").await;
    assert_eq!(answer.body, "watches: no longer running\n");
    assert_eq!(server.admin("/livez").await.body, "ok\n");
}

#[tokio::test]
async fn neither_live_nor_ready_when_the_reviews_get_no_turn() {
    let reviews = OwnRuntime::start();
    let handle = reviews.handle.clone();
    let (send, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let server = Running::with_handler(
        |settings| settings.reviews = Some(handle),
        |_| {
            // A rule that does not end, until it is told to.
            let endless = get(async move || released.lock().unwrap().recv().unwrap());
            Router::new().route("/", get(async || "ok")).route("/endless", endless)
        },
    )
    .await;
    assert_eq!(server.connect().await.get("/").await.unwrap().status, 200);
    assert_eq!(server.admin("/livez").await.status, 200);
    assert_eq!(server.admin("/readyz").await.status, 200);

    let mut client = server.connect().await;
    let endless = tokio::spawn(async move { client.get("/endless").await.unwrap().status });
    let held_up = "reviews: their thread has taken up no work for 3 s\n";
    soon(async { while server.admin("/livez").await.status == 200 {} }).await;
    for path in ["/livez", "/readyz"] {
        let answer = server.admin(path).await;
        assert_eq!((answer.status, &*answer.body), (503, held_up), "{path}");
    }
    assert_eq!(server.admin("/metrics").await.status, 200);

    send.send(()).unwrap();
    assert_eq!(soon(endless).await.unwrap(), 200);
    assert_eq!(server.admin("/livez").await.body, "ok\n");
    assert_eq!(server.admin("/readyz").await.body, "ok\n");

    reviews.end();
    for path in ["/livez", "/readyz"] {
        let answer = server.admin(path).await;
        assert_eq!((answer.status, &*answer.body), (503, "reviews: their thread has ended\n"));
    }
}

#[tokio::test]
async fn metrics_are_openmetrics_with_bounded_labels() {
    let server = Running::start(|_| {}).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.unwrap().status, 200);
    let answer = server.admin("/metrics").await;
    assert_eq!(
        answer.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(answer.body.ends_with("# EOF\n"));
    let mut lines: Vec<_> = answer
        .body
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.split_once(' ').unwrap();
            if name == "metal3_guard_certificate_not_after_seconds" {
                let end: i64 = value.parse().unwrap();
                assert!(end > jiff::Timestamp::now().as_second(), "{end}");
                return name.to_owned();
            }
            line.to_owned()
        })
        .collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "metal3_guard_bodies_refused_total{reason=\"broken\"} 0",
            "metal3_guard_bodies_refused_total{reason=\"busy\"} 0",
            "metal3_guard_bodies_refused_total{reason=\"slow\"} 0",
            "metal3_guard_bodies_refused_total{reason=\"too_large\"} 0",
            "metal3_guard_body_bytes_in_flight 0",
            "metal3_guard_certificate_not_after_seconds",
            "metal3_guard_certificate_reloads_total{result=\"failure\"} 0",
            "metal3_guard_certificate_reloads_total{result=\"success\"} 0",
            "metal3_guard_connection_limit_reached_total 0",
            "metal3_guard_connections_open 1",
            "metal3_guard_handler_panics_total 0",
            "metal3_guard_handshakes_failed_total{reason=\"closed\"} 0",
            "metal3_guard_handshakes_failed_total{reason=\"timeout\"} 0",
            "metal3_guard_handshakes_failed_total{reason=\"tls\"} 0",
        ]
    );
}

#[tokio::test]
async fn only_get_and_head_on_known_paths() {
    let server = Running::start(|_| {}).await;
    for (request, status) in [
        ("GET /livez", 200),
        ("GET /", 404),
        ("GET /livez/", 404),
        ("GET /debug/pprof", 404),
        ("POST /livez", 405),
        ("DELETE /metrics", 405),
        ("PUT /readyz", 405),
        ("POST /other", 404),
    ] {
        let mut client = Client::plain(server.admin).await;
        client.send(&format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n")).await.unwrap();
        assert_eq!(client.answer().await.unwrap().status, status, "{request}");
    }
    let mut client = Client::plain(server.admin).await;
    client.head_without_body("/livez").await;
}
