//! How long a peer may take for its turn, with one timer for a connection.
//!
//! A timer that is set and cleared for each request head costs more than the rule that answers it.
//! So a turn only notes its end, and the timer looks at the notes when it strikes.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::listen::ConnectionLimits;

/// Whose turn it is on a connection.
#[derive(Debug)]
pub(super) struct Turns {
    idle: Duration,
    /// When the connection ends whatever happens on it.
    end: Instant,
    turn: Mutex<Turn>,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The peer has asked nothing yet and has until then.
    First(Instant),
    /// A request is being answered.
    Ours,
    /// The peer has its answer, and until then for its next request.
    Theirs(Instant),
}

impl Turns {
    /// The peer has to ask for the first time.
    pub(super) fn new(limits: &ConnectionLimits, end: Instant) -> Self {
        let first = Turn::First(Instant::now() + limits.first_request);
        Self { idle: limits.idle, end, turn: Mutex::new(first) }
    }

    /// The head of a request is here.
    pub(super) fn ours(&self) {
        *self.turn() = Turn::Ours;
    }

    /// It is answered.
    pub(super) fn theirs(&self) {
        *self.turn() = Turn::Theirs(Instant::now() + self.idle);
    }

    /// A peer that has not asked yet has no more time than this. Gives when to look.
    pub(super) fn hurry(&self, rest: Duration) -> Instant {
        let now = Instant::now();
        let mut turn = self.turn();
        if let Turn::First(until) = &mut *turn {
            *until = (*until).min(now + rest);
        }
        self.until(*turn, now)
    }

    /// When to look for the first time.
    pub(super) fn first_look(&self) -> Instant {
        self.until(*self.turn(), Instant::now())
    }

    /// When to look again; `None` when the peer has had its time.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let now = Instant::now();
        Some(self.until(*self.turn(), now)).filter(|until| *until > now)
    }

    fn until(&self, turn: Turn, now: Instant) -> Instant {
        match turn {
            Turn::First(until) | Turn::Theirs(until) => until,
            // Were it answered right now, the peer's time would end then.
            Turn::Ours => now + self.idle,
        }
        .min(self.end)
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn turns() -> Turns {
        let limits = ConnectionLimits {
            first_request: 10 * SECOND,
            idle: 120 * SECOND,
            ..ConnectionLimits::default()
        };
        Turns::new(&limits, Instant::now() + 1000 * SECOND)
    }

    fn seconds_to(look: Instant) -> u64 {
        (look - Instant::now()).as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_request_has_a_time_of_its_own() {
        let turns = turns();
        assert_eq!(seconds_to(turns.first_look()), 10);
        advance(9 * SECOND).await;
        assert_eq!(turns.next_look().map(seconds_to), Some(1));
        advance(SECOND).await;
        assert_eq!(turns.next_look(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_counts_from_the_last_answer() {
        let turns = turns();
        turns.ours();
        advance(500 * SECOND).await;
        assert_eq!(turns.next_look().map(seconds_to), Some(120), "an answer may take its time");
        advance(50 * SECOND).await;
        turns.theirs();
        advance(70 * SECOND).await;
        assert_eq!(turns.next_look().map(seconds_to), Some(50));
        turns.ours();
        turns.theirs();
        advance(50 * SECOND).await;
        assert_eq!(turns.next_look().map(seconds_to), Some(70));
        advance(70 * SECOND).await;
        assert_eq!(turns.next_look(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn only_who_has_not_asked_is_hurried() {
        let turns = turns();
        assert_eq!(seconds_to(turns.hurry(SECOND)), 1);
        assert_eq!(seconds_to(turns.hurry(60 * SECOND)), 1);
        turns.ours();
        assert_eq!(seconds_to(turns.hurry(SECOND)), 120);
        turns.theirs();
        assert_eq!(seconds_to(turns.hurry(SECOND)), 120);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_comes_whoever_is_at_it() {
        let turns = turns();
        turns.ours();
        advance(999 * SECOND).await;
        assert_eq!(turns.next_look().map(seconds_to), Some(1));
        turns.theirs();
        advance(SECOND).await;
        assert_eq!(turns.next_look(), None);
    }
}
