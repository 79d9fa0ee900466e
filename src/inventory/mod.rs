//! Where the facts come from: an index that proposes, and whatever confirms it.

use std::{future::Future, pin::Pin, sync::Arc};

use tokio::time::Instant;

use crate::core::{
    contents::Contents,
    deletion,
    indexes::{self, Occupancy},
    objects::{Kind, Meta, Usage},
    references::{self, Target},
    release,
    verdict::Answer,
};

pub mod cluster;
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
    fn usage<'a>(&'a self, need: Need<'a>, deadline: Instant) -> Answering<'a, Arc<Usage>>;

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

/// For which verdict the users of a template are wanted: it decides which of them count.
#[derive(Clone, Copy, Debug)]
pub enum Need<'a> {
    /// The template's deletion.
    Deletion(&'a deletion::Question),
    /// The release of its finalizer.
    Release(&'a release::Question),
}

impl<'a> Need<'a> {
    /// The template's namespace.
    pub fn namespace(self) -> &'a str {
        match self {
            Self::Deletion(question) => &question.namespace,
            Self::Release(question) => &question.namespace,
        }
    }

    /// The template's name.
    pub fn template(self) -> &'a str {
        match self {
            Self::Deletion(question) => &question.name,
            Self::Release(question) => &question.name,
        }
    }

    /// Of what names the template, what stands against the write.
    pub fn holders(self, usage: &Usage) -> Vec<(Kind, &Meta)> {
        match self {
            Self::Deletion(question) => question.holders(usage),
            Self::Release(_) => release::blockers(usage),
        }
    }
}
