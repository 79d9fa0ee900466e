//! Inventories that fail: by a panic, by silence, by not knowing.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use metal3_guard::{
    core::{
        contents::Contents,
        indexes::{self, Occupancy},
        objects::Usage,
        references::{self, Target},
        verdict::{Answer, Unverified},
    },
    inventory::{Answering, Inventory, Need},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{DELETED, Guard, UID, but, deletion, machine, review, template};

/// What an inventory does with every question.
#[derive(Debug)]
enum Broken {
    /// It panics where it is called, once; after that it knows of no object.
    PanicsInCall(AtomicBool),
    /// It panics while the answer is awaited, once.
    PanicsInAnswer(AtomicBool),
    /// It never answers.
    Silent,
    /// It says why it does not know.
    Unsure,
}

impl Broken {
    fn answer<'a, F: Default + Send + 'a>(&'a self) -> Answering<'a, F> {
        let first = |done: &AtomicBool| !done.swap(true, Ordering::Relaxed);
        match self {
            Self::PanicsInCall(done) => {
                assert!(!first(done), "on purpose");
                Box::pin(async { Answer::Verified(F::default()) })
            }
            Self::PanicsInAnswer(done) => Box::pin(async move {
                tokio::task::yield_now().await;
                assert!(!first(done), "on purpose");
                Answer::Verified(F::default())
            }),
            Self::Silent => Box::pin(pending()),
            Self::Unsure => Box::pin(async {
                let why = "the watch of Metal3Machines is 90 s old".into();
                Answer::Unverified(Unverified { why })
            }),
        }
    }
}

impl Inventory for Broken {
    fn usage<'a>(&'a self, _: Need<'a>, _: Instant) -> Answering<'a, Arc<Usage>> {
        self.answer()
    }

    fn occupancy<'a>(&'a self, _: &'a indexes::Question, _: Instant) -> Answering<'a, Occupancy> {
        self.answer()
    }

    fn target<'a>(&'a self, _: &'a references::Question, _: Instant) -> Answering<'a, Target> {
        self.answer()
    }

    fn contents<'a>(&'a self, _: &'a str, _: Instant) -> Answering<'a, Arc<Contents>> {
        self.answer()
    }

    fn namespaces(&self, _: Instant) -> Answering<'_, Vec<Box<str>>> {
        self.answer()
    }
}

/// A review for each path whose rule needs facts.
fn questions() -> [(&'static str, Value); 4] {
    let live = template("a", "t");
    let terminating = but(live.clone(), &json!({"metadata": {"deletionTimestamp": DELETED}}));
    let released = but(terminating.clone(), &json!({"metadata": {"finalizers": []}}));
    let indexed = but(live.clone(), &json!({"status": {"indexes": {"gone": 1}}}));
    [
        ("/validate/deletion", deletion(&live)),
        ("/validate/release", review("UPDATE", "", &released, &terminating)),
        ("/validate/references", review("CREATE", "", &machine("a", "m", "t"), &Value::Null)),
        ("/mutate/indexes", review("UPDATE", "status", &indexed, &live)),
    ]
}

#[tokio::test]
async fn a_panic_is_a_denial_and_the_next_review_is_answered() {
    let kinds = [Broken::PanicsInCall as fn(_) -> _, Broken::PanicsInAnswer];
    for broken in kinds {
        for (path, review) in questions() {
            let guard = Guard::with(broken(AtomicBool::new(false)));
            let reply = guard.ask(path, &review).await;
            assert_eq!(reply.response()["uid"], UID);
            let status = reply.denied();
            assert_eq!(
                (&status["code"], &status["reason"]),
                (&json!(500), &json!("InternalError"))
            );
            let message = status["message"].as_str().unwrap();
            assert!(!message.contains("on purpose"), "{message}");
            assert_eq!(guard.ask(path, &review).await.response()["allowed"], true, "{path}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn silence_ends_before_the_callers_deadline() {
    for (timeout, seconds) in [("?timeout=2s", 2), ("?timeout=10s", 10), ("", 5)] {
        let guard = Guard::with(Broken::Silent);
        for (path, review) in questions() {
            let started = Instant::now();
            let uri = format!("{path}{timeout}");
            // Without it, a rule that waits for ever would hang the test.
            let asking = tokio::time::timeout(Duration::from_hours(1), guard.ask(&uri, &review));
            let reply = asking.await.unwrap();
            let took = started.elapsed();
            let deadline = Duration::from_secs(seconds);
            assert!(took < deadline && took > deadline / 2, "{path}{timeout} took {took:?}");
            unverified(path, &reply.response(), "did not come in time");
        }
    }
}

#[tokio::test]
async fn an_inventory_that_does_not_know_is_never_taken_for_free() {
    let guard = Guard::with(Broken::Unsure);
    for (path, review) in questions() {
        let reply = guard.ask(path, &review).await;
        unverified(path, &reply.response(), "Metal3Machines is 90 s old");
    }
}

/// Only the deletion holds: the other hooks are advisory.
fn unverified(path: &str, response: &Value, why: &str) {
    if path == "/validate/deletion" {
        let status = &response["status"];
        assert_eq!(response["allowed"], false);
        assert_eq!(
            (&status["code"], &status["reason"]),
            (&json!(503), &json!("ServiceUnavailable"))
        );
        assert!(status["details"]["retryAfterSeconds"].as_u64().is_some_and(|it| it > 0));
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("could not verify") && message.contains(why), "{message}");
        return;
    }
    assert_eq!(response["allowed"], true, "{path}");
    assert_eq!(response.get("patch"), None, "{path}");
    if path != "/mutate/indexes" {
        let warning = response["warnings"][0].as_str().unwrap();
        assert!(warning.contains("metal3-guard could not"), "{path}: {warning}");
    }
}
