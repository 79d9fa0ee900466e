//! One list for many questions about a namespace.
//!
//! A question may share a list only if the list started after the question arrived: an older list
//! could miss a machine created in between. So besides the running list there is at most one
//! waiting, and newcomers join the waiting one.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

/// The lists under way, by namespace. Clones share them.
#[derive(Debug)]
pub(super) struct Flights<T> {
    spaces: Arc<Mutex<BTreeMap<Box<str>, Space<T>>>>,
}

type Landing<T> = watch::Receiver<Option<T>>;

#[derive(Debug)]
struct Space<T> {
    running: Option<Landing<T>>,
    waiting: Option<Landing<T>>,
}

impl<T> Clone for Flights<T> {
    fn clone(&self) -> Self {
        Self { spaces: Arc::clone(&self.spaces) }
    }
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self { spaces: Arc::default() }
    }
}

impl<T: Clone + Send + Sync + 'static> Flights<T> {
    /// The result of a list that starts after this call; `None` when it does not come in time.
    /// `list` is called only when no list is waiting to start, and runs on its own task: it goes
    /// on for the others when this caller gives up.
    pub(super) async fn join<F>(
        &self,
        namespace: &str,
        deadline: Instant,
        list: impl FnOnce() -> F + Send + 'static,
    ) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut landing = self.board(namespace, list);
        let landed = timeout_at(deadline, landing.wait_for(Option::is_some)).await;
        landed.ok()?.ok()?.clone()
    }

    fn board<F>(&self, namespace: &str, list: impl FnOnce() -> F + Send + 'static) -> Landing<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut spaces = self.spaces.lock();
        let space = spaces
            .entry(namespace.into())
            .or_insert_with(|| Space { running: None, waiting: None });
        if let Some(waiting) = &space.waiting {
            return waiting.clone();
        }
        let (sender, landing) = watch::channel(None);
        space.waiting = Some(landing.clone());
        let before = space.running.clone();
        let flights = self.clone();
        let namespace: Box<str> = namespace.into();
        tokio::spawn(async move {
            if let Some(mut before) = before {
                // Its end, or its failure: either way it is this one's turn.
                drop(before.wait_for(Option::is_some).await);
            }
            // From here on newcomers need another list.
            flights.take_off(&namespace);
            // Dropped on a panic of the list too, which ends the callers' wait.
            let _landed = Landed { flights: &flights, namespace: &namespace };
            let result = list().await;
            sender.send_replace(Some(result));
        });
        landing
    }

    fn take_off(&self, namespace: &str) {
        if let Some(space) = self.spaces.lock().get_mut(namespace) {
            space.running = space.waiting.take();
        }
    }
}

struct Landed<'a, T> {
    flights: &'a Flights<T>,
    namespace: &'a str,
}

impl<T> Drop for Landed<'_, T> {
    fn drop(&mut self) {
        let mut spaces = self.flights.spaces.lock();
        if let Some(space) = spaces.get_mut(self.namespace) {
            space.running = None;
            if space.waiting.is_none() {
                spaces.remove(self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        time::Duration,
    };

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_running_is_never_shared_with_a_newcomer() {
        let flights = Flights::<u32>::default();
        let started = Arc::new(AtomicU32::new(0));
        let ask = |delay: u64| {
            let (flights, started) = (flights.clone(), Arc::clone(&started));
            async move {
                sleep(Duration::from_millis(delay)).await;
                let deadline = Instant::now() + Duration::from_mins(1);
                let list = move || async move {
                    let number = started.fetch_add(1, Ordering::SeqCst) + 1;
                    sleep(Duration::from_millis(100)).await;
                    number
                };
                flights.join("prod", deadline, list).await
            }
        };
        // 0 ms starts list 1 (until 100); 10, 20 and 90 ms wait for list 2; 150 ms for list 3.
        let answers = tokio::join!(ask(0), ask(10), ask(20), ask(90), ask(150));
        assert_eq!(answers, (Some(1), Some(2), Some(2), Some(2), Some(3)));
        assert_eq!(started.load(Ordering::SeqCst), 3, "five questions, three lists");
        assert!(flights.spaces.lock().is_empty(), "nothing is left behind");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_does_not_end_the_list() {
        let flights = Flights::<u32>::default();
        let slow = || async {
            sleep(Duration::from_secs(5)).await;
            7
        };
        let early = flights.join("prod", Instant::now() + Duration::from_secs(1), slow);
        let late = flights.join("prod", Instant::now() + Duration::from_secs(10), slow);
        assert_eq!(tokio::join!(early, late), (None, Some(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_panics_fails_its_callers_and_not_the_next() {
        let flights = Flights::<u32>::default();
        let deadline = Instant::now() + Duration::from_secs(10);
        let broken = || async { panic!("as a test") };
        assert_eq!(flights.join("prod", deadline, broken).await, None);
        assert_eq!(flights.join("prod", deadline, || async { 3 }).await, Some(3));
    }
}
