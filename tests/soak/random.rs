//! Random choices that a number brings about again.

use std::time::Duration;

/// `SplitMix64`: small, and good enough to choose steps with.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The same seed makes the same choices; neighbouring ones have nothing in common.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to one less than `end`, which is at least 1.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % end).unwrap_or_default()
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of them.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A pause of `from` to `to` milliseconds.
    pub(crate) fn pause(&mut self, from: usize, to: usize) -> Duration {
        let millis = from + self.below(to + 1 - from);
        Duration::from_millis(u64::try_from(millis).unwrap_or_default())
    }
}
