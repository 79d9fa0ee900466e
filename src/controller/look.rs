//! One look: a complete live list, and which of the steps planned from it may be carried out.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::{Duration, Instant};

use crate::{
    core::{
        contents::Contents,
        plan::{Action, Plan, Step},
        verdict::{Answer, Unverified},
    },
    inventory::{Inventory as _, cluster::Cluster},
};

/// How long a list may take, all its pages and kinds.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long after its list a step may still be carried out. The precondition protects its object,
/// but not the others that were the reason.
const GOOD_FOR: Duration = Duration::from_secs(5);

/// A complete list of a namespace.
#[derive(Clone, Debug)]
pub struct Look {
    /// What there is.
    pub contents: Arc<Contents>,
    /// The time when it began, for plans.
    pub clock: Timestamp,
    /// The same, for measuring.
    pub begun: Instant,
}

impl Look {
    /// Lists a namespace.
    ///
    /// # Errors
    /// When the list is not complete, with the reason.
    pub async fn at(cluster: &Cluster, namespace: &str) -> Result<Self, Unverified> {
        let (clock, begun) = (Timestamp::now(), Instant::now());
        match cluster.contents(namespace, begun + PATIENCE).await {
            Answer::Verified(contents) => Ok(Self { contents, clock, begun }),
            Answer::Unverified(unverified) => Err(unverified),
        }
    }

    /// Whether its steps may still be carried out.
    pub fn is_good(&self) -> bool {
        self.begun.elapsed() < GOOD_FOR
    }
}

/// Whether a step may only be carried out when a second list agrees. The kinds of one list are
/// read side by side: a claim that was made while they were read can be missing beside its
/// Metal3Data. A list that begins later has it.
pub fn needs_second_look(step: &Step) -> bool {
    !matches!(step.action, Action::Wake | Action::Prune)
}

/// The due steps of a plan that need no second look, or that were due in the first one too.
pub fn confirmed(first: &[Step], second: &Plan, now: Timestamp) -> Vec<Step> {
    let same = |step: &Step| {
        first.iter().any(|before| before.action == step.action && before.write == step.write)
    };
    second.due(now).filter(|step| !needs_second_look(step) || same(step)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::{
        objects::{Data, Object},
        teardown::{Lifecycle, wake},
    };

    fn data(version: &str) -> Arc<Data> {
        let json = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3Data",
            "metadata": {"name": "w-0", "uid": "u", "resourceVersion": version,
                         "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["f"]},
        });
        match Object::from_json(&json.to_string()).unwrap() {
            Object::Data(data) => Arc::new(data),
            other => panic!("{other:?}"),
        }
    }

    fn step(action: Action, version: &str, due: Timestamp) -> Step {
        let data = data(version);
        let write = match Lifecycle::of(Arc::clone(&data)) {
            Lifecycle::Terminating(it) if action != Action::Wake => it.strip("f").unwrap(),
            _ => wake(&data),
        };
        Step { action, write, reason: "because".into(), due }
    }

    #[test]
    fn what_cannot_be_undone_is_seen_twice() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let later = "2026-01-01T02:00:00Z".parse().unwrap();
        let plan = |steps: Vec<Step>| Plan { steps, ..Plan::default() };
        let strip = step(Action::FreeOrphan, "7", now);
        for (first, second, wanted) in [
            (vec![strip.clone()], vec![strip.clone()], 1),
            (vec![], vec![strip.clone()], 0),
            (vec![strip.clone()], vec![], 0),
            (vec![step(Action::FreeOrphan, "6", now)], vec![strip.clone()], 0),
            (vec![strip], vec![step(Action::FreeOrphan, "7", later)], 0),
            (vec![], vec![step(Action::Wake, "7", now)], 1),
            (vec![], vec![step(Action::Wake, "7", later)], 0),
        ] {
            let confirmed = confirmed(&first, &plan(second.clone()), now);
            assert_eq!(confirmed.len(), wanted, "{first:?} {second:?}");
        }
    }
}
