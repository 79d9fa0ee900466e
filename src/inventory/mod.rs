//! Where the facts come from: an index that proposes, and whatever confirms it.

use std::{future::Future, pin::Pin, sync::Arc};

use tokio::time::Instant;

use crate::core::{
    contents::Contents,
    indexes::{self, Occupancy},
    objects::Usage,
    references::{self, Target},
    verdict::Answer,
};

pub mod demo;
pub mod index;
pub mod snapshot;

/// An answer on its way. It comes before the deadline, as `Unverified` if need be.
pub type Answering<'a, F> = Pin<Box<dyn Future<Output = Answer<F>> + Send + 'a>>;

/// A source of facts about one cluster.
///
/// Every answer is `Verified` only if it was complete and true at a moment after the question was
/// put; anything less is `Unverified`, with the reason. The deadline is for the answer, the time to
/// send it included.
pub trait Inventory: Send + Sync + std::fmt::Debug {
    /// Everything that names a template, for its deletion or release.
    fn usage<'a>(
        &'a self,
        namespace: &'a str,
        template: &'a str,
        deadline: Instant,
    ) -> Answering<'a, Arc<Usage>>;

    /// Which entries of a template's indexes are true.
    fn occupancy<'a>(
        &'a self,
        question: &'a indexes::Question,
        deadline: Instant,
    ) -> Answering<'a, Occupancy>;

    /// The state of a template that something wants to reference.
    fn target<'a>(
        &'a self,
        question: &'a references::Question,
        deadline: Instant,
    ) -> Answering<'a, Target>;

    /// A complete list of a namespace, for a plan.
    fn contents<'a>(
        &'a self,
        namespace: &'a str,
        deadline: Instant,
    ) -> Answering<'a, Arc<Contents>>;

    /// The namespaces that hold something a rule reads, in order.
    fn namespaces(&self, deadline: Instant) -> Answering<'_, Vec<Box<str>>>;
}
