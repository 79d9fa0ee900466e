//! A built-in sample state, to try the guard without a cluster.
//!
//! | namespace | what it shows |
//! |---|---|
//! | `metal3` | `prod-workers`, held by three machines (v1beta1); `edge-workers`, held by one (v1beta2); `old-workers`, free |
//! | `stuck` | `batch-workers`, terminating for ever: the claims are gone, the Metal3Data are not (CAPM3 #1994) |
//! | `lost` | a Metal3Data whose template is gone, with an IP claim that it holds |

use super::snapshot::{LoadError, Snapshot};

/// The sample state as `kubectl get -o yaml` would show it.
pub const YAML: &str = include_str!("demo.yaml");

/// The sample state, loaded.
///
/// # Errors
/// None with the text that is built in: a test loads it.
pub fn snapshot() -> Result<Snapshot, LoadError> {
    Snapshot::from_yaml("demo.yaml", YAML)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use jiff::SignedDuration;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        core::{
            contents::Contents,
            deletion::{self, Question},
            objects::Kind,
            plan::{Action, Plan, Scope, Situation, Timing, plan},
            verdict::Answer,
        },
        inventory::{Answering, Inventory, Need},
    };

    fn verified<F>(answering: Answering<'_, F>) -> F {
        let Some(Answer::Verified(facts)) = answering.now_or_never() else { panic!("unverified") };
        facts
    }

    fn contents(demo: &Snapshot, namespace: &str) -> Arc<Contents> {
        verified(demo.contents(namespace, Instant::now()))
    }

    fn plan_for(demo: &Snapshot, namespace: &str, template: &str) -> Plan {
        let contents = contents(demo, namespace);
        let deleted = contents.data.values().filter_map(|it| it.meta.deletion?.at).max().unwrap();
        plan(&Situation {
            contents: &contents,
            template,
            now: deleted + SignedDuration::from_hours(1),
            unchanged_since: None,
            timing: Timing::default(),
            scope: Scope::Person,
        })
    }

    #[test]
    fn nothing_is_skipped_or_incomplete() {
        let demo = snapshot().unwrap();
        let loaded = demo.loaded();
        assert_eq!(loaded.total_skipped(), 0, "{loaded:?}");
        assert_eq!(
            loaded.objects,
            [
                (Kind::Cluster, 3),
                (Kind::IpClaim, 4),
                (Kind::Data, 8),
                (Kind::Claim, 4),
                (Kind::Template, 4),
                (Kind::Machine, 4),
                (Kind::MachineTemplate, 2),
            ]
            .into()
        );
        let namespaces = verified(demo.namespaces(Instant::now()));
        assert_eq!(
            namespaces.iter().map(|it| &**it).collect::<Vec<_>>(),
            ["lost", "metal3", "stuck"]
        );
        assert_eq!(YAML.matches("\n  uid: ").count(), loaded.total());
    }

    #[test]
    fn held_templates_stay_and_the_free_one_may_go() {
        let demo = snapshot().unwrap();
        let metal3 = contents(&demo, "metal3");
        for (template, holders) in [("prod-workers", 3), ("edge-workers", 1), ("old-workers", 0)] {
            let question = Question::about(&metal3.templates[template].meta);
            let usage = verified(demo.usage(Need::Deletion(&question), Instant::now()));
            assert_eq!(usage.machines.len(), holders, "{template}");
            let ruling = deletion::judge(&question, &Answer::Verified(usage));
            assert_eq!(ruling.denial().is_some(), holders > 0, "{template}: {ruling:?}");
        }
        // Both shapes of indexes agree with the Metal3Data.
        for (template, entries) in [("prod-workers", vec![0, 1, 2]), ("edge-workers", vec![0])] {
            let indexes = metal3.templates[template].indexes.entries().iter().map(|it| it.index);
            assert_eq!(indexes.collect::<Vec<_>>(), entries);
            let data = metal3
                .data
                .values()
                .filter(|it| it.template.as_ref().unwrap().name == template.into());
            assert_eq!(data.filter_map(|it| it.index).collect::<Vec<_>>(), entries);
        }
        assert!(metal3.data.values().all(|data| !metal3.is_orphan(data)));
    }

    #[test]
    fn what_is_stuck_has_a_way_out() {
        let demo = snapshot().unwrap();
        let stuck = plan_for(&demo, "stuck", "batch-workers");
        let actions: Vec<_> = stuck.steps.iter().map(|step| step.action).collect();
        assert!(actions.contains(&Action::Wake) && actions.contains(&Action::Prune), "{stuck:?}");
        let lost = plan_for(&demo, "lost", "gone-workers");
        let actions: Vec<_> = lost.steps.iter().map(|step| step.action).collect();
        assert_eq!(actions, [Action::DeleteIpClaim], "{lost:?}");
    }
}
