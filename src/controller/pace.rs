//! A bound on writes per second.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Lets a burst through, then one each interval.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    burst: u32,
    /// When the next one would be on time if all came evenly.
    next: Mutex<Option<Instant>>,
}

impl Default for Pace {
    /// Ten at once, then ten a second: what one busy cluster's controllers also do.
    fn default() -> Self {
        Self::new(Duration::from_millis(100), 10)
    }
}

impl Pace {
    /// `burst` at once, then one each `interval`.
    pub const fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst, next: Mutex::new(None) }
    }

    /// Returns when the next one may go.
    pub async fn wait(&self) {
        let turn = self.turn(Instant::now());
        sleep_until(turn).await;
    }

    fn turn(&self, now: Instant) -> Instant {
        let mut next = self.next.lock();
        let even = next.map_or(now, |next| next.max(now));
        *next = Some(even + self.interval);
        drop(next);
        // Early by as much as a burst allows, but never before it was asked for.
        let slack = self.interval * self.burst.saturating_sub(1);
        even.checked_sub(slack).map_or(now, |early| early.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_evenly_then_a_burst_again() {
        let pace = Pace::new(Duration::from_millis(100), 3);
        let start = Instant::now();
        let mut at = Vec::new();
        for _ in 0..5 {
            pace.wait().await;
            at.push(start.elapsed().as_millis());
        }
        assert_eq!(at, [0, 0, 0, 100, 200]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        for _ in 0..3 {
            pace.wait().await;
        }
        assert_eq!(start.elapsed().as_millis(), 0);
    }
}
