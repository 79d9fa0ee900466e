//! What a port answers with.

use axum::{
    Router,
    body::Body,
    http::{Request, Response},
};
use tower::Service as _;

/// Answers the requests of a port. A [`Router`] does; so does what has nothing to route.
pub trait Handler: Send + Sync + 'static {
    /// The answer to one request. A panic in it becomes a 500.
    fn handle(&self, request: Request<Body>) -> impl Future<Output = Response<Body>> + Send;
}

impl Handler for Router {
    async fn handle(&self, request: Request<Body>) -> Response<Body> {
        // It is ready at all times, and a clone is a counter.
        match self.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}
