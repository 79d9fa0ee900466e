//! What is not a review: methods, paths, sizes.

use axum::{
    body::{Body, Bytes},
    http::{Method, StatusCode, header},
};
use futures_util::stream;
use metal3_guard::admission::Hook;

use crate::support::{Guard, deletion, template};

const MIB: usize = 1 << 20;

fn guard() -> Guard {
    Guard::of_yaml("{apiVersion: v1, kind: List, items: []}")
}

#[tokio::test]
async fn only_post_is_allowed() {
    for hook in Hook::ALL {
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let reply = guard().send(method, hook.path(), Body::empty()).await;
            assert_eq!(reply.status, StatusCode::METHOD_NOT_ALLOWED, "{}", hook.path());
            assert_eq!(reply.headers[header::ALLOW], "POST");
            // Of HEAD the server leaves it out.
            assert!(reply.text().contains("POST"), "{}", reply.text());
        }
    }
}

#[tokio::test]
async fn other_paths_get_the_list_of_paths_and_never_a_redirect() {
    let body = deletion(&template("a", "b")).to_string();
    for path in [
        "/",
        "//validate/deletion",
        "/validate//deletion",
        "/validate/deletion/",
        "/mutate/indexes/",
        "/validate/Deletion",
        "/validate/deletion%2f",
        "/validate/./deletion",
        "/mutate/../validate/deletion",
        "/validate",
        "/mutate/deletion",
        "/validate/indexes",
        "/livez",
        "/metrics",
    ] {
        for method in [Method::GET, Method::POST] {
            let reply = guard().send(method, path, body.clone()).await;
            assert_eq!(reply.status, StatusCode::NOT_FOUND, "{path}");
            assert!(!reply.headers.contains_key(header::LOCATION), "{path}");
            assert!(reply.content_type().starts_with("text/plain"), "{path}");
            for hook in Hook::ALL {
                assert!(reply.text().lines().any(|line| line == hook.path()), "{}", reply.text());
            }
        }
    }
}

#[tokio::test]
async fn a_body_may_have_32_mib_and_no_more() {
    let spaces = |size: usize| Bytes::from(vec![b' '; size]);
    let chunks = |size: usize| {
        let chunk = spaces(MIB);
        Body::from_stream(stream::iter(
            (0..size / MIB).map(move |_| Ok::<_, std::io::Error>(chunk.clone())),
        ))
    };
    let whole = Body::from(spaces(33 * MIB));
    for (what, body) in [("announced", whole), ("in pieces", chunks(33 * MIB))] {
        let reply = guard().post("/validate/deletion", body).await;
        assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE, "{what}");
        assert!(reply.text().contains("33554432 bytes"), "{}", reply.text());
    }
    // Read to the end, and then found to be empty.
    for (what, body) in [("announced", spaces(32 * MIB).into()), ("in pieces", chunks(32 * MIB))] {
        let reply = guard().post("/validate/deletion", body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{what}");
        assert!(reply.text().contains("empty"), "{}", reply.text());
    }
    let mut padded = deletion(&template("a", "b")).to_string().into_bytes();
    padded.resize(32 * MIB, b' ');
    guard().post("/validate/deletion", padded).await.allowed();
}

#[tokio::test]
async fn the_timeout_of_the_call_may_say_anything() {
    let review = deletion(&template("a", "b"));
    for query in ["timeout=5s", "timeout=", "timeout=-1s", "timeout=999999h", "x=%ff&timeout=%zz"] {
        guard().ask(&format!("/validate/deletion?{query}"), &review).await.allowed();
    }
}
