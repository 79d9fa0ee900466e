//! Pauses, moves, what others own, and the plan as a whole.

use super::*;
use crate::core::objects::{CLUSTER_LABEL, MOVE_ANNOTATION, PAUSED_ANNOTATION};

#[test]
fn capa_4584_a_pause_leaves_only_wake_ups() {
    let paused_cluster = cluster("c").set(&["spec", "paused"], true);
    let annotated_cluster = cluster("c").annotation(PAUSED_ANNOTATION, "");
    let named = |object: Make| object.set(&["spec", "clusterName"], "c");
    let labelled = |object: Make| object.label(CLUSTER_LABEL, "c");
    let paused = |object: Make| object.annotation(PAUSED_ANNOTATION, "true");
    let live = data("workers-1").uses("workers");
    for (objects, who) in [
        (vec![paused(stale()), bound_orphan()], "Metal3DataTemplate/workers"),
        (vec![stale(), paused(bound_orphan())], "Metal3Data/workers-0"),
        (vec![named(stale()), bound_orphan(), paused_cluster.clone()], "Cluster/c"),
        (vec![labelled(stale()), bound_orphan(), paused_cluster.clone()], "Cluster/c"),
        (vec![stale(), labelled(bound_orphan()), paused_cluster.clone()], "Cluster/c"),
        (vec![named(stale()), bound_orphan(), annotated_cluster], "Cluster/c"),
    ] {
        let objects: Vec<_> = objects.into_iter().chain([live.clone()]).collect();
        for scope in [Scope::Controller, Scope::Person] {
            let plan = look_as(scope, &objects, YEARS);
            assert_eq!(actions(&plan), [Action::Wake], "{objects:?}");
            let wait = plan.waits.iter().find(|wait| wait.cause == WaitCause::Paused).unwrap();
            assert_eq!(wait.names, [who.into()]);
        }
    }
    let free = look(&[named(dying()), paused_cluster.clone()], YEARS);
    assert_eq!((actions(&free), causes(&free)), (vec![Action::Wake], vec![WaitCause::Paused]));
    for lost in [paused(bound_orphan()), labelled(bound_orphan())] {
        let plan = look_as(Scope::Person, &[lost, paused_cluster.clone()], YEARS);
        assert_eq!((actions(&plan), causes(&plan)), (vec![], vec![WaitCause::Paused]));
    }
    // Another cluster's pause, and a cluster that is gone, change nothing.
    for objects in [
        vec![
            named(woken(stale(), YEARS - 30)),
            cluster("c"),
            cluster("d").set(&["spec", "paused"], true),
        ],
        vec![named(woken(stale(), YEARS - 30))],
    ] {
        assert_eq!(due(&look(&objects, YEARS), YEARS), [(Action::Release, "workers".into())]);
    }
    // Nothing is on its way out, so nothing waits for the pause.
    assert!(look(&[paused(template("workers"))], YEARS).is_empty());
}

/// Cluster API #11812: the mover owns what it has marked.
#[test]
fn capi_11812_what_is_moved_is_left_alone() {
    for scope in [Scope::Controller, Scope::Person] {
        for held in [stale(), template("workers"), bare_template("workers")] {
            let moved = held.annotation(MOVE_ANNOTATION, "").label(CLUSTER_LABEL, "c");
            let others = [moved, bound_orphan(), claim("w-1").uses("workers")];
            for running in [cluster("c"), cluster("c").set(&["spec", "paused"], true)] {
                // The pause is clusterctl's own, and nobody's to lift.
                let plan = look_as(scope, &[&others[..], &[running]].concat(), YEARS);
                assert_eq!((actions(&plan), causes(&plan)), (vec![], vec![WaitCause::Moving]));
                assert_eq!(plan.waits[0].names, ["Metal3DataTemplate/workers".into()]);
            }
        }
        let moved = bound_orphan().annotation(MOVE_ANNOTATION, "");
        assert_eq!(actions(&look_as(scope, &[dying(), moved.clone()], YEARS)), []);
        assert_eq!(actions(&look_as(scope, &[moved], YEARS)), []);
    }
}

/// Baremetal Operator #1230: the finalizers of others run first; they are reported and stay.
#[test]
fn bmo_1230_foreign_finalizers_are_reported_never_removed() {
    let foreign_data = orphan().finalizers(&["a.io/x", DATA_FINALIZER]);
    let foreign_names = |plan: &Plan| {
        let wait = plan.waits.iter().find(|wait| wait.cause == WaitCause::ForeignFinalizers);
        wait.unwrap().names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for scope in [Scope::Controller, Scope::Person] {
        let held = dying().finalizers(&[TEMPLATE_FINALIZER, "foregroundDeletion", "b.io/y"]);
        let plan = look_as(scope, &[held, foreign_data.clone()], YEARS);
        assert_eq!(
            foreign_names(&plan),
            ["foregroundDeletion", "b.io/y", "a.io/x on Metal3Data/workers-0"]
        );
        assert_eq!(actions(&plan), [Action::Wake]);
        let plan = look_as(scope, &[template("workers"), foreign_data.clone()], YEARS);
        assert_eq!(foreign_names(&plan), ["a.io/x on Metal3Data/workers-0"]);
    }
    let lost = look_as(Scope::Person, &[foreign_data], 0);
    assert_eq!((actions(&lost), foreign_names(&lost).len()), (vec![Action::FreeLost], 1));
    let held = look_as(Scope::Person, &[orphan().finalizers(&["a.io/x"])], 0);
    assert_eq!((actions(&held), causes(&held)), (vec![], vec![WaitCause::ForeignFinalizers]));
}

#[test]
fn nothing_that_is_not_terminating_is_ever_changed_but_by_a_wake_up() {
    let objects = [
        template("workers").indexes(&[("gone", 7)]),
        data("workers-0").uses("workers").finalizers(&[CLAIM_FINALIZER, DATA_FINALIZER]),
        claim("w-1").uses("workers").finalizers(&[CLAIM_FINALIZER]),
    ];
    for scope in [Scope::Controller, Scope::Person] {
        assert!(look_as(scope, &objects, YEARS).is_empty());
    }
    assert!(look(&[template("workers")], YEARS).is_empty());
    assert_eq!(look(&[template("workers")], YEARS).next_look, None);
}

// The plan as a whole.

#[test]
fn only_the_strongest_due_step_is_left_for_an_object() {
    for (object, seconds, expected) in [
        (stale(), 5, Action::Wake),
        (woken(stale(), 20), 40, Action::Wake),
        (woken(stale(), 20), 60, Action::Prune),
        (woken(stale(), 20), 90, Action::Release),
        // Never woken: the gentlest first, however late it is.
        (stale(), 60, Action::Wake),
        (stale(), YEARS, Action::Wake),
    ] {
        assert_eq!(due(&look(&[object], seconds), seconds), [(expected, "workers".into())]);
    }
    let plan = look(&[dying(), woken(bound_orphan(), 55)], 61);
    assert_eq!(
        steps(&plan),
        [(Action::FreeOrphan, "workers-0".into(), 60), (Action::Wake, "workers-0".into(), 110)]
    );
}

#[test]
fn live_users_are_waited_for_by_name() {
    let plan = look(
        &[
            dying(),
            machine("w-1").uses("workers"),
            machine("w-0").uses("workers"),
            claim("w-1").uses("workers"),
        ],
        YEARS,
    );
    let waits: Vec<_> = plan.waits.iter().map(ToString::to_string).collect();
    assert_eq!(
        waits,
        [
            "live machines that use it to be deleted: Metal3Machine/w-0, Metal3Machine/w-1",
            "live claims that use it to be deleted: Metal3DataClaim/w-1",
        ]
    );
    assert_eq!(actions(&plan), []);
}

#[test]
fn the_next_look_is_at_the_next_step_or_after_the_pause() {
    for (objects, seconds, next) in [
        (vec![dying()], 0, Some(5)),
        (vec![woken(dying(), 5)], 6, Some(10)),
        // Due now: carried out, then looked at again.
        (vec![dying()], 5, Some(35)),
        (vec![dying()], 60, Some(90)),
        (vec![dying()], 70, Some(100)),
        (vec![woken(dying(), 60)], 70, Some(90)),
        (vec![stale()], 70, Some(75)),
        (vec![dying(), claim("w-0").uses("workers")], 0, Some(30)),
        (vec![template("workers")], 0, None),
    ] {
        assert_eq!(look(&objects, seconds).next_look, next.map(at), "{objects:?} at {seconds}");
    }
}

/// argo-cd #29043: a write hits the object that was looked at, or nothing.
#[test]
fn every_write_carries_its_precondition() {
    let objects = [stale(), bound_orphan(), data("workers-1").uses("workers")];
    let plan = look(&objects, YEARS);
    assert_eq!(
        actions(&plan),
        [Action::Wake, Action::Prune, Action::DeleteOrphan, Action::FreeOrphan]
    );
    for step in &plan.steps {
        let target = step.write.target();
        assert_eq!(*target.uid, *format!("uid-{}", target.name));
        assert_eq!((&*target.resource_version, &*target.namespace), ("7", "prod"));
        assert!(!step.reason.is_empty());
    }
}

#[test]
fn a_deletion_time_that_cannot_be_read_still_counts_as_a_deletion() {
    let objects = [dying().deleted_at("some day")];
    let plan = look(&objects, 0);
    assert_eq!(
        steps(&plan),
        [(Action::Wake, "workers".into(), 5), (Action::Release, "workers".into(), 90)]
    );
}
