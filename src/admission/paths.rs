//! The six paths over HTTP. Nothing here ever redirects: an API server would follow.
//!
//! Six names that never change need no router, which would cost as much as the rule that answers.

use axum::{
    extract::Request,
    http::{Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};

use super::{Admission, Hook};
use crate::server::{Budget, Handler, read};

/// Answers reviews, within a budget for their bodies.
#[derive(Debug)]
pub struct Paths {
    admission: Admission,
    budget: Budget,
}

impl Paths {
    /// Reviews go to `admission` once their bodies had room in `budget`.
    pub const fn new(admission: Admission, budget: Budget) -> Self {
        Self { admission, budget }
    }

    async fn answer(&self, hook: Hook, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let body = match read(body, &head.headers, &self.budget).await {
            Ok(body) => body,
            Err(refusal) => return refusal.into_response(),
        };
        match self.admission.answer(hook, &body, head.uri.query()).await {
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

fn unknown_path() -> Response {
    let paths: Vec<_> = Hook::ALL.into_iter().map(Hook::path).collect();
    let text = format!("no webhook on this path; there are:\n{}\n", paths.join("\n"));
    (StatusCode::NOT_FOUND, text).into_response()
}

fn wrong_method() -> Response {
    let allow = [(header::ALLOW, "POST")];
    (StatusCode::METHOD_NOT_ALLOWED, allow, "send reviews by POST\n").into_response()
}
