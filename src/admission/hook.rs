//! The six hooks: their paths, and which rule answers on which.

use std::time::Duration;

use json_patch::Patch;
use tokio::time::Instant;

use crate::{
    core::{
        deletion,
        finalizers::{self, Additions},
        indexes,
        objects::Kind,
        references, release,
        review::{Operation, Review},
        verdict::{Answer, Preflight, Ruling, Unverified},
    },
    inventory::{Answering, Inventory, Need},
    server,
};

/// A webhook path. Validating and mutating hooks have paths of their own, because a validating
/// answer may never carry a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// `/mutate/finalizers`
    MutateFinalizers,
    /// `/mutate/indexes`
    Indexes,
    /// `/validate/deletion`
    Deletion,
    /// `/validate/references`
    References,
    /// `/validate/finalizers`
    ValidateFinalizers,
    /// `/validate/release`
    Release,
}

impl Hook {
    /// All hooks, in the order in which an API server calls them: mutating first.
    pub const ALL: [Self; 6] = [
        Self::MutateFinalizers,
        Self::Indexes,
        Self::Deletion,
        Self::References,
        Self::ValidateFinalizers,
        Self::Release,
    ];

    /// The path it is served on.
    pub const fn path(self) -> &'static str {
        match self {
            Self::MutateFinalizers => "/mutate/finalizers",
            Self::Indexes => "/mutate/indexes",
            Self::Deletion => "/validate/deletion",
            Self::References => "/validate/references",
            Self::ValidateFinalizers => "/validate/finalizers",
            Self::Release => "/validate/release",
        }
    }

    /// The hook served on a path.
    pub fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hook| hook.path() == path)
    }

    /// Whether the shipped webhook rules send such a review here.
    pub fn gets(self, review: &Review<'_>) -> bool {
        let kind = review.known_kind();
        let main = review.subresource.is_empty();
        let update = review.operation == Operation::Update;
        match self {
            Self::MutateFinalizers | Self::ValidateFinalizers => {
                main && update && FINALIZER_GROUPS.contains(&review.group)
            }
            Self::Indexes => {
                update && kind == Some(Kind::Template) && review.subresource == "status"
            }
            Self::Deletion => {
                main && review.operation == Operation::Delete && kind == Some(Kind::Template)
            }
            Self::References => {
                main && (update || review.operation == Operation::Create)
                    && matches!(kind, Some(Kind::Machine | Kind::Claim | Kind::MachineTemplate))
            }
            Self::Release => main && update && kind == Some(Kind::Template),
        }
    }

    /// Puts a review to this hook's rule. The answer comes by `deadline`.
    pub async fn judge(
        self,
        review: &Review<'_>,
        inventory: &dyn Inventory,
        additions: Additions,
        deadline: Instant,
    ) -> Answered {
        match self {
            Self::Deletion => Answered::Validating(deletion(review, inventory, deadline).await),
            Self::References => Answered::Validating(references(review, inventory, deadline).await),
            Self::Release => Answered::Validating(release(review, inventory, deadline).await),
            Self::ValidateFinalizers => Answered::Validating(finalizers::validate(review)),
            Self::MutateFinalizers => Answered::Mutating(finalizers::mutate(review, additions)),
            Self::Indexes => Answered::Mutating(indexes(review, inventory, deadline).await),
        }
    }
}

/// The groups whose main resources reach the finalizer hooks.
pub const FINALIZER_GROUPS: [&str; 7] = [
    "cluster.x-k8s.io",
    "infrastructure.cluster.x-k8s.io",
    "controlplane.cluster.x-k8s.io",
    "bootstrap.cluster.x-k8s.io",
    "ipam.cluster.x-k8s.io",
    "ipam.metal3.io",
    "metal3.io",
];

/// A ruling, typed by what its hook may send.
#[derive(Clone, Debug, PartialEq)]
pub enum Answered {
    /// From a validating hook: no patch is possible.
    Validating(Ruling),
    /// From a mutating hook.
    Mutating(Ruling<Patch>),
}

impl Answered {
    /// The ruling, with what it may change.
    pub fn into_ruling(self) -> Ruling<Patch> {
        match self {
            Self::Validating(ruling) => ruling.widen(),
            Self::Mutating(ruling) => ruling,
        }
    }
}

async fn deletion(review: &Review<'_>, inventory: &dyn Inventory, deadline: Instant) -> Ruling {
    match deletion::preflight(review) {
        Preflight::Decided(ruling) => ruling,
        Preflight::Ask(question) => {
            let usage = inventory.usage(Need::Deletion(&question), deadline);
            deletion::judge(&question, &in_time(usage, deadline).await)
        }
    }
}

async fn release(review: &Review<'_>, inventory: &dyn Inventory, deadline: Instant) -> Ruling {
    match release::preflight(review) {
        Preflight::Decided(ruling) => ruling,
        Preflight::Ask(question) => {
            let usage = inventory.usage(Need::Release(&question), deadline);
            release::judge(&question, &in_time(usage, deadline).await)
        }
    }
}

async fn references(review: &Review<'_>, inventory: &dyn Inventory, deadline: Instant) -> Ruling {
    match references::preflight(review) {
        Preflight::Decided(ruling) => ruling,
        Preflight::Ask(question) => {
            let target = inventory.target(&question, deadline);
            references::judge(&question, &in_time(target, deadline).await)
        }
    }
}

async fn indexes(
    review: &Review<'_>,
    inventory: &dyn Inventory,
    deadline: Instant,
) -> Ruling<Patch> {
    match indexes::preflight(review) {
        Preflight::Decided(ruling) => ruling,
        Preflight::Ask(question) => {
            let occupancy = inventory.occupancy(&question, deadline);
            indexes::judge(review, &question, &in_time(occupancy, deadline).await)
        }
    }
}

/// Holds an inventory to its deadline: an answer with a reason beats the API server's own timeout.
async fn in_time<F>(answering: Answering<'_, F>, deadline: Instant) -> Answer<F> {
    server::in_time(answering, deadline).await.unwrap_or_else(|| {
        Answer::Unverified(Unverified { why: "the facts did not come in time".into() })
    })
}

/// How much of the API server's patience a rule may use.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// When the call names no timeout: the `timeoutSeconds` of the shipped configurations.
    pub default: Duration,
    /// Kept back for the way home; also covers that the API server rounds up to whole seconds.
    pub margin: Duration,
    /// Never less than this.
    pub least: Duration,
    /// Never more than this: the API server's own limit.
    pub most: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            default: Duration::from_secs(5),
            margin: Duration::from_millis(500),
            least: Duration::from_millis(200),
            most: Duration::from_secs(30),
        }
    }
}

impl Patience {
    /// The time a rule has, from the `?timeout=` of the call (Go's notation, such as `5s`).
    pub fn budget(&self, query: Option<&str>) -> Duration {
        let asked = query
            .into_iter()
            .flat_map(|query| query.split('&'))
            .find_map(|pair| pair.strip_prefix("timeout="))
            .and_then(|text| text.parse::<jiff::SignedDuration>().ok())
            .and_then(|duration| Duration::try_from(duration).ok())
            .unwrap_or(self.default);
        asked.min(self.most).saturating_sub(self.margin).max(self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_timeout_sets_the_deadline() {
        let patience = Patience::default();
        for (query, millis) in [
            (Some("timeout=5s"), 4500),
            (Some("a=b&timeout=10s"), 9500),
            (Some("timeout=1m30s"), 29_500),
            (Some("timeout=500ms"), 200),
            (Some("timeout=0s"), 200),
            (Some("timeout=-5s"), 4500),
            (Some("timeout=soon"), 4500),
            (Some("timeout="), 4500),
            (None, 4500),
        ] {
            assert_eq!(patience.budget(query), Duration::from_millis(millis), "{query:?}");
        }
    }

    #[test]
    fn paths_are_their_hooks() {
        for hook in Hook::ALL {
            assert_eq!(Hook::of_path(hook.path()), Some(hook));
        }
        assert_eq!(Hook::of_path("/validate/deletion/"), None);
    }
}
