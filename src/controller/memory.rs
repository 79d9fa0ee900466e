//! What the controller remembers of each template: since when nothing has moved, and when to look.
//!
//! Kept by this process alone. After a restart everything is as if first seen, so the grace
//! periods begin anew: late, never wrong.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::Duration,
};

use tokio::time::Instant;

/// Pauses after a look or a step that failed: from the first to the last, doubled each time.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// All namespaces that need a look.
#[derive(Debug, Default)]
pub(super) struct Memory {
    spaces: BTreeMap<Box<str>, Space>,
}

/// One namespace.
#[derive(Debug, Default)]
pub(super) struct Space {
    templates: BTreeMap<Box<str>, Progress>,
    /// When to look next; `None` while someone looks.
    next_look: Option<Instant>,
    looking: bool,
    /// What a change asked for while someone looked.
    asked_for: Option<Instant>,
    failures: u32,
}

/// One template.
#[derive(Clone, Copy, Debug)]
struct Progress {
    fingerprint: u64,
    since: Instant,
    /// Times in a row that a step was refused or failed, and until when none is tried.
    refusals: u32,
    held_back: Option<Instant>,
}

impl Progress {
    const fn new(fingerprint: u64, since: Instant) -> Self {
        Self { fingerprint, since, refusals: 0, held_back: None }
    }
}

impl Memory {
    /// The namespace, remembered from now on.
    pub(super) fn space(&mut self, namespace: &str) -> &mut Space {
        self.spaces.entry(namespace.into()).or_default()
    }

    /// Forgets a namespace where nothing needs a look. One that is being looked at stays.
    pub(super) fn forget(&mut self, namespace: &str) {
        if self.spaces.get(namespace).is_some_and(|space| !space.looking) {
            self.spaces.remove(namespace);
        }
    }

    /// When the next look is due.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.spaces.values().filter_map(|space| space.next_look).min()
    }

    /// Takes up to `most` namespaces whose look is due, the longest due first. Until
    /// [`Space::looked`] or [`Space::failed`] they are not due again.
    pub(super) fn take_due(&mut self, now: Instant, most: usize) -> Vec<Box<str>> {
        let mut due: Vec<_> = self
            .spaces
            .iter()
            .filter_map(|(name, space)| Some((space.next_look.filter(|at| *at <= now)?, name)))
            .map(|(at, name)| (at, name.clone()))
            .collect();
        due.sort_unstable();
        due.truncate(most);
        for (_, name) in &due {
            let space = self.space(name);
            space.next_look = None;
            space.looking = true;
        }
        due.into_iter().map(|(_, name)| name).collect()
    }
}

impl Space {
    /// Notes a template as it was seen; since when it has been like this.
    pub(super) fn seen(&mut self, template: &str, fingerprint: u64, now: Instant) -> Instant {
        let progress = self
            .templates
            .entry(template.into())
            .and_modify(|it| {
                if it.fingerprint != fingerprint {
                    *it = Progress::new(fingerprint, now);
                }
            })
            .or_insert_with(|| Progress::new(fingerprint, now));
        progress.since
    }

    /// Forgets the templates that need no look any more.
    pub(super) fn keep_only(&mut self, is_there: impl Fn(&str) -> bool) {
        self.templates.retain(|name, _| is_there(name));
    }

    /// Until when no step for a template is tried, because the last one was refused.
    pub(super) fn held_back(&self, template: &str, now: Instant) -> Option<Instant> {
        self.templates.get(template)?.held_back.filter(|until| *until > now)
    }

    /// Notes how the steps for a template went: after a refusal comes a pause that grows, for this
    /// template alone, until they go well or the template makes progress.
    pub(super) fn stepped(&mut self, template: &str, well: bool, now: Instant) {
        let Some(progress) = self.templates.get_mut(template) else { return };
        progress.refusals = if well { 0 } else { progress.refusals.saturating_add(1) };
        progress.held_back = (!well).then(|| now + backoff(progress.refusals));
    }

    /// Brings the next look forward, if it is later. A backoff is kept.
    pub(super) fn look_by(&mut self, at: Instant) {
        if self.looking {
            self.asked_for = Some(self.asked_for.map_or(at, |asked| asked.min(at)));
        } else if self.failures == 0 {
            self.next_look = Some(self.next_look.map_or(at, |next| next.min(at)));
        }
    }

    /// A look has ended; the next one is due then, or when a change asked for it meanwhile.
    pub(super) fn looked(&mut self, next: Option<Instant>) {
        self.looking = false;
        self.failures = 0;
        self.next_look = next.into_iter().chain(self.asked_for.take()).min();
    }

    /// A look has failed: the next one comes after a pause that grows.
    pub(super) fn failed(&mut self, now: Instant) {
        self.looking = false;
        self.asked_for = None;
        self.failures = self.failures.saturating_add(1);
        self.next_look = Some(now + backoff(self.failures));
    }
}

/// The pause after the last of so many failures in a row.
fn backoff(failures: u32) -> Duration {
    let (first, last) = BACKOFF;
    let full = first.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(last);
    full / 2 + jitter(full / 2)
}

/// A random part of `most`, so that replicas and namespaces do not all act at once.
pub(super) fn jitter(most: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    let share = u32::try_from(random % 1024).unwrap_or_default();
    most.mul_f64(f64::from(share) / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_moved_counts_from_the_last_change() {
        let mut memory = Memory::default();
        let start = Instant::now();
        let space = memory.space("prod");
        assert_eq!(space.seen("w", 1, start), start);
        let later = start + Duration::from_secs(9);
        assert_eq!(space.seen("w", 1, later), start);
        assert_eq!(space.seen("w", 2, later), later);
        space.keep_only(|name| name != "w");
        assert_eq!(space.seen("w", 2, start), start);
    }

    #[tokio::test(start_paused = true)]
    async fn one_look_at_a_time_and_the_longest_due_first() {
        let mut memory = Memory::default();
        let now = Instant::now();
        for (name, after) in [("a", 2), ("b", 1), ("c", 9)] {
            memory.space(name).look_by(now + Duration::from_secs(after));
        }
        let then = now + Duration::from_secs(3);
        assert_eq!(memory.take_due(then, 1), ["b".into()]);
        assert_eq!(memory.take_due(then, 9), ["a".into()]);
        assert_eq!(memory.take_due(then, 9), []);
        memory.forget("a");
        memory.space("a").look_by(now);
        assert_eq!(memory.next_look(), Some(now + Duration::from_secs(9)));
        memory.space("a").looked(Some(then));
        assert_eq!(memory.next_look(), Some(now));
        memory.forget("a");
        assert_eq!(memory.next_look(), Some(now + Duration::from_secs(9)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_step_holds_back_its_template_alone() {
        let mut memory = Memory::default();
        let now = Instant::now();
        let space = memory.space("prod");
        for name in ["refused", "other"] {
            space.seen(name, 1, now);
        }
        let mut last = Duration::ZERO;
        for times in 1..20 {
            space.stepped("refused", false, now);
            last = space.held_back("refused", now).unwrap() - now;
            let full = BACKOFF.0.saturating_mul(1 << (times - 1).min(10)).min(BACKOFF.1);
            assert!(last >= full / 2 && last <= full, "{last:?} after {times}");
        }
        assert_eq!(space.held_back("other", now), None);
        assert_eq!(space.held_back("refused", now + last), None);
        space.look_by(now);
        assert_eq!(space.next_look, Some(now), "the others of the namespace are looked at");

        space.stepped("refused", true, now);
        assert_eq!(space.held_back("refused", now), None);
        space.stepped("refused", false, now);
        assert!(space.held_back("refused", now).unwrap() <= now + BACKOFF.0, "from the beginning");
        space.seen("refused", 2, now);
        assert_eq!(space.held_back("refused", now), None, "it is not as it was");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_events_do_not_cut_that_short() {
        let mut memory = Memory::default();
        let now = Instant::now();
        let space = memory.space("prod");
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            space.failed(now);
            space.look_by(now);
            last = space.next_look.unwrap() - now;
            assert!(last >= BACKOFF.0 / 2 && last <= BACKOFF.1, "{last:?}");
        }
        assert!(last >= BACKOFF.1 / 2);
        space.looked(None);
        space.look_by(now);
        assert_eq!(space.next_look, Some(now));
    }
}
