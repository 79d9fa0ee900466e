//! The rules. Everything here is a plain function of its arguments: no I/O, no clock, no log.
//!
//! A rule that needs facts works in two steps: `preflight` answers `Decided` or `Ask(question)`;
//! the caller puts the question to an inventory and hands the answer to `judge`.
//!
//! | module | rule |
//! |---|---|
//! | [`deletion`] | may this template be deleted? |
//! | [`finalizers`] | may these finalizers be added? |
//! | [`indexes`] | which entries of `status.indexes` are stale? |
//! | [`references`] | may this object start to use that template? |
//! | [`release`] | may CAPM3's finalizer go? |
//! | [`plan`] | what to do about what is stuck |
//! | [`progress`] | what needs a look, and whether it moves |
//! | [`diagnosis`] | what holds what, in words |
//! | [`by_hand`] | commands for what only a person may do |
//! | [`teardown`] | delete first, strip after |

pub mod by_hand;
pub mod contents;
pub mod deletion;
pub mod diagnosis;
pub mod finalizers;
pub mod indexes;
pub(crate) mod json;
pub(crate) mod lenient;
pub mod objects;
pub mod plan;
pub mod progress;
pub mod references;
pub mod release;
pub mod review;
pub mod teardown;
#[cfg(test)]
mod testing;
pub mod verdict;
