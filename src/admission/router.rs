//! The six paths over HTTP. Nothing here ever redirects: an API server would follow.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};

use super::{Admission, Hook};
use crate::server::{Budget, read};

/// A router that answers reviews, within `budget` for their bodies.
pub fn router(admission: Admission, budget: Budget) -> Router {
    let mut router = Router::new();
    for hook in Hook::ALL {
        let review = move |State(app): State<Arc<App>>, request: Request| async move {
            app.answer(hook, request).await
        };
        router = router.route(hook.path(), post(review));
    }
    router
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::new(App { admission, budget }))
}

struct App {
    admission: Admission,
    budget: Budget,
}

impl App {
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

async fn unknown_path() -> Response {
    let paths: Vec<_> = Hook::ALL.into_iter().map(Hook::path).collect();
    let text = format!("no webhook on this path; there are:\n{}\n", paths.join("\n"));
    (StatusCode::NOT_FOUND, text).into_response()
}

async fn wrong_method() -> Response {
    let allow = [(header::ALLOW, "POST")];
    (StatusCode::METHOD_NOT_ALLOWED, allow, "send reviews by POST\n").into_response()
}
