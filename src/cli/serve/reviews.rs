//! A thread for the reviews alone.
//!
//! No review wakes up on one core and goes on on another this way, and none stands behind what the
//! watches and the controller have to do. One core answers some ten thousand reviews a second,
//! where a busy cluster asks hundreds; what would hold it up for long, a large body, is read aside.

use std::{convert::Infallible, io, thread};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// A running thread; it ends some time after this is dropped.
#[derive(Debug)]
pub(super) struct Thread {
    /// What is spawned on it runs there.
    pub(super) runtime: Handle,
    _end: oneshot::Sender<Infallible>,
}

impl Thread {
    /// Starts it.
    ///
    /// # Errors
    /// When the system gives no thread, or none of what a runtime waits with.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        let handle = runtime.handle().clone();
        thread::Builder::new().name("reviews".to_owned()).spawn(move || {
            // Nothing is ever sent: it ends with the sender.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, _end: end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_run_on_the_thread_and_end_with_it() {
        let thread = Thread::start().unwrap();
        let name = thread.runtime.spawn(async {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            thread::current().name().map(str::to_owned)
        });
        assert_eq!(name.await.unwrap().as_deref(), Some("reviews"));
        let endless = thread.runtime.spawn(std::future::pending::<()>());
        drop(thread);
        assert!(endless.await.unwrap_err().is_cancelled());
    }
}
