//! What a plan says that it waits for when it cannot go on.

use super::*;
use crate::core::objects::{MACHINE_FINALIZER, MOVE_ANNOTATION};

/// Cause, and the objects with a blank between them.
fn waits(plan: &Plan) -> Vec<(WaitCause, String)> {
    plan.waits.iter().map(|wait| (wait.cause, wait.names.join(" "))).collect()
}

fn attached() -> Make {
    data("workers-0").uses("workers").for_claim("w-0", 0)
}

/// A claim as CAPM3 makes it for the machine `w-0`.
fn machines_claim() -> Make {
    let owner = json!([{"kind": "Metal3Machine", "name": "w-0", "uid": "u"}]);
    claim("w-0").uses("workers").set(&["metadata", "ownerReferences"], owner)
}

fn ending_claim(finalizers: &[&str]) -> Make {
    machines_claim().terminating().finalizers(finalizers)
}

/// CAPM3's machine controller ends claims, and only while it works for their machine.
#[test]
fn a_claim_whose_machine_is_gone_is_named() {
    const CLAIM: &str = "Metal3DataClaim/w-0";
    let held = ending_claim(&[MACHINE_FINALIZER]);
    let held_twice = ending_claim(&[MACHINE_FINALIZER, CLAIM_FINALIZER]);
    let gone = vec![(WaitCause::Machineless, CLAIM.to_owned())];
    let draining = |names: &str| (WaitCause::Draining, names.to_owned());
    let with = |more: (WaitCause, String)| [gone.clone(), vec![more]].concat();
    for (objects, expected) in [
        (vec![dying(), machines_claim()], gone.clone()),
        (vec![dying(), held.clone(), attached()], with(draining("Metal3Data/workers-0"))),
        (vec![dying(), held_twice.clone()], with(draining(CLAIM))),
        (vec![template("workers"), held.clone(), attached().terminating()], gone.clone()),
        (vec![held.clone()], gone.clone()),
        // It keeps nothing: the template goes on without it.
        (vec![dying(), held], vec![]),
        // Its machine is there, by the owner's name or by its own.
        (
            vec![dying(), machines_claim(), machine("w-0").terminating()],
            vec![(WaitCause::Claims, CLAIM.to_owned())],
        ),
        (vec![dying(), held_twice, machine("w-0").terminating()], vec![draining(CLAIM)]),
        // Made by hand: whoever made it ends it.
        (vec![dying(), claim("w-0").uses("workers")], vec![(WaitCause::Claims, CLAIM.to_owned())]),
    ] {
        for scope in [Scope::Controller, Scope::Person] {
            let plan = look_as(scope, &objects, 0);
            assert_eq!(waits(&plan), expected, "{objects:?}");
        }
    }
    // Whether there is a machine is not known.
    let mut blind = contents(&[dying(), machines_claim()]);
    blind.unserved.insert(Kind::Machine);
    assert_eq!(causes(&look_in(&blind, Scope::Person, 0)), [WaitCause::Claims]);
}

/// Without their template CAPM3 does nothing for them, and a person must know that.
#[test]
fn what_needs_a_template_that_is_gone_is_named() {
    let orphaned = bound_orphan().set(&["metadata", "name"], "workers-1");
    let orphaned = orphaned.for_claim("w-1", 1);
    for (objects, expected) in [
        (vec![ending_claim(&[CLAIM_FINALIZER])], "Metal3DataClaim/w-0"),
        (vec![machine("w-0").uses("workers")], "Metal3Machine/w-0"),
        (
            vec![machine("w-0").uses("workers"), machines_claim(), attached(), orphaned.clone()],
            "Metal3Machine/w-0 Metal3DataClaim/w-0 Metal3Data/workers-0",
        ),
        (vec![ending_claim(&["a.io/x"]), machine("w-0").uses("workers").terminating()], ""),
        (vec![orphaned], ""),
    ] {
        for scope in [Scope::Controller, Scope::Person] {
            let plan = look_as(scope, &objects, 0);
            let told = waits(&plan).into_iter().find(|(cause, _)| *cause == WaitCause::NoTemplate);
            assert_eq!(told.map(|(_, names)| names).unwrap_or_default(), expected, "{objects:?}");
        }
    }
}

/// A move that was broken off, or an older one that strips before it deletes, leaves marks.
#[test]
fn metal3data_that_a_move_left_are_named() {
    let marked = |object: Make| object.annotation(MOVE_ANNOTATION, "");
    let (dead, live) = (marked(bound_orphan()), marked(attached()));
    for (objects, waits_for_it) in [
        (vec![dying(), dead.clone()], true),
        (vec![dying(), live.clone()], true),
        (vec![dying(), live.clone(), claim("w-0").uses("workers").terminating()], true),
        (vec![template("workers"), dead.clone()], true),
        (vec![dead], true),
        (vec![live.clone()], true),
        // What is there to stay is no reason to wait.
        (vec![template("workers"), live], false),
    ] {
        for scope in [Scope::Controller, Scope::Person] {
            let plan = look_as(scope, &objects, YEARS);
            let expected = if waits_for_it { vec![WaitCause::Moving] } else { vec![] };
            assert_eq!((actions(&plan), causes(&plan)), (vec![], expected), "{objects:?}");
            assert_eq!(plan.next_look.is_some(), waits_for_it);
        }
    }
}

/// When the owner alone can go on, and was woken in vain, that is the cause.
#[test]
fn an_owner_that_does_not_react_is_named() {
    let silent = |objects: &[Make], seconds: i64| {
        let plan = look(objects, seconds);
        waits(&plan).into_iter().find(|(cause, _)| *cause == WaitCause::Silent)
    };
    let named = |names: &str| Some((WaitCause::Silent, names.to_owned()));
    let woken_orphan = woken(orphan(), 60);
    assert_eq!(silent(&[dying(), woken_orphan.clone()], 64), None, "it has its time");
    assert_eq!(silent(&[dying(), woken_orphan.clone()], 65), named("Metal3Data/workers-0"));
    let live = woken(bare_template("workers"), 0);
    let forgotten = ending_claim(&[CLAIM_FINALIZER]);
    for (objects, since) in [
        (vec![live, claim("w-0").uses("workers")], 60),
        (vec![woken(dying(), 60), forgotten.clone()], 65),
        (vec![woken(template("workers"), 60), forgotten], 65),
    ] {
        assert_eq!(silent(&objects, since), named("Metal3DataTemplate/workers"));
    }
    let second = woken_orphan.clone().set(&["metadata", "name"], "workers-1");
    assert_eq!(
        silent(&[dying(), woken_orphan.clone(), second], 65),
        named("Metal3Data/workers-0 Metal3Data/workers-1"),
        "one wait for all"
    );
    // Something stronger follows, nobody was woken, it is paused, or it waits for others.
    for objects in [
        vec![woken(dying(), 60)],
        vec![dying(), orphan()],
        vec![dying(), woken(bound_orphan(), 60)],
        vec![dying().annotation("cluster.x-k8s.io/paused", ""), woken_orphan.clone()],
        vec![dying(), woken_orphan.finalizers(&["a.io/x"])],
    ] {
        assert_eq!(silent(&objects, YEARS), None, "{objects:?}");
    }
}

/// CAPM3 #2868 leaves them; while the template is in use, a person has to look.
#[test]
fn an_orphan_that_live_machines_keep_the_guard_from_is_named() {
    let machine = machine("w-1").uses("workers");
    let plan = look(&[template("workers"), machine.clone(), bound_orphan()], YEARS);
    assert_eq!(actions(&plan), [Action::Wake]);
    assert_eq!(waits(&plan), [(WaitCause::Bound, "Metal3Data/workers-0".into())]);
    assert_eq!(causes(&look(&[template("workers"), machine, orphan()], YEARS)), []);
}

/// An API server that does not serve a kind (yet) looks as if there were no objects of it.
#[test]
fn what_cannot_be_seen_keeps_the_controller_to_wake_ups() {
    let orphaned = [stale(), bound_orphan()];
    let free = [woken(stale(), 0)];
    for kind in [Kind::Claim, Kind::Data, Kind::Machine] {
        for objects in [&orphaned[..], &free] {
            let mut blind = contents(objects);
            blind.unserved.insert(kind);
            let plan = look_in(&blind, Scope::Controller, YEARS);
            assert_eq!(actions(&plan), [Action::Wake], "{kind}");
            let [wait] = &*plan.waits else { panic!("{plan:?}") };
            assert_eq!(wait.cause, WaitCause::Unserved);
            let text = wait.to_string();
            assert!(text.contains(kind.resource()) && text.contains("unstick --apply"), "{text}");
            // A person has seen to it.
            let plan = look_in(&blind, Scope::Person, YEARS);
            assert!(plan.waits.is_empty() && actions(&plan) != [Action::Wake], "{plan:?}");
        }
    }
    for kind in [Kind::Cluster, Kind::IpClaim, Kind::IpAddressClaim, Kind::MachineTemplate] {
        let mut others = contents(&free);
        others.unserved.insert(kind);
        let plan = look_in(&others, Scope::Controller, YEARS);
        assert_eq!(due(&plan, YEARS), [(Action::Release, "workers".into())], "{kind}");
    }
}
