//! The six paths over HTTP. Nothing here ever redirects: an API server would follow.
//!
//! Six names that never change need no router, which would cost as much as the rule that answers.

use std::{panic::resume_unwind, sync::Arc};

use axum::{
    extract::Request,
    http::{Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use tokio::runtime::Handle;

use super::{Admission, Hook};
use crate::server::{Budget, Handler, read};

/// Bodies of more bytes than this are read on a thread of their own, so that the small reviews of
/// the same thread do not wait for milliseconds.
const LARGE: usize = 512 * 1024;

/// Answers reviews, within a budget for their bodies.
#[derive(Debug)]
pub struct Paths {
    admission: Arc<Admission>,
    budget: Budget,
}

impl Paths {
    /// Reviews go to `admission` once their bodies had room in `budget`.
    pub fn new(admission: Admission, budget: Budget) -> Self {
        Self { admission: Arc::new(admission), budget }
    }

    async fn answer(&self, hook: Hook, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let body = match read(body, &head.headers, &self.budget).await {
            Ok(body) => body,
            Err(refusal) => return refusal.into_response(),
        };
        let answer = if body.len() > LARGE {
            let admission = Arc::clone(&self.admission);
            aside(async move { admission.answer(hook, &body, head.uri.query()).await }).await
        } else {
            self.admission.answer(hook, &body, head.uri.query()).await
        };
        match answer {
            Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer).into_response(),
            Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        }
    }
}

impl Handler for Paths {
    async fn handle(&self, request: Request) -> Response {
        match Hook::of_path(request.uri().path()) {
            None => unknown_path(),
            Some(_) if request.method() != Method::POST => wrong_method(),
            Some(hook) => self.answer(hook, request).await,
        }
    }
}

/// What `work` gives, which has a thread for itself. It goes on to its end though nobody waits.
async fn aside<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = Handle::current();
    match tokio::task::spawn_blocking(move || runtime.block_on(work)).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime ends; with it this task is at its last await.
            Err(_) => std::future::pending().await,
        },
    }
}

fn unknown_path() -> Response {
    let paths: Vec<_> = Hook::ALL.into_iter().map(Hook::path).collect();
    let text = format!("no webhook on this path; there are:\n{}\n", paths.join("\n"));
    (StatusCode::NOT_FOUND, text).into_response()
}

fn wrong_method() -> Response {
    let allow = [(header::ALLOW, "POST")];
    (StatusCode::METHOD_NOT_ALLOWED, allow, "send reviews by POST\n").into_response()
}

#[cfg(test)]
mod tests {
    use std::{panic::AssertUnwindSafe, thread};

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn work_aside_has_its_own_thread_and_the_timers_of_this_one() {
        let here = thread::current().id();
        let there = aside(async {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            thread::current().id()
        });
        assert_ne!(there.await, here);
    }

    #[tokio::test]
    async fn a_panic_aside_goes_on_here() {
        let work = aside(async { assert!(thread::current().name().is_none(), "as it was") });
        let panic = AssertUnwindSafe(work).catch_unwind().await.unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"as it was"));
    }
}
