//! What a port answers with.

use axum::{Router, extract::Request, response::Response};
use tower::Service as _;

/// Answers the requests of a port. A [`Router`] does; so does what has nothing to route.
pub trait Handler: Send + Sync + 'static {
    /// The answer to one request. A panic in it becomes a 500.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send;
}

impl Handler for Router {
    async fn handle(&self, request: Request) -> Response {
        // It is ready at all times, and a clone is a counter.
        match self.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}
