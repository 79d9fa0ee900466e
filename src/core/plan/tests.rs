use serde_json::json;

use super::*;
use crate::core::{
    objects::{PAUSED_ANNOTATION, WOKEN_ANNOTATION},
    teardown::Change,
    testing::{
        CREATED, DELETED, Make, VERSIONS, bare_template, claim, cluster, contents, data, machine,
        machine_template, make, template,
    },
};

mod bounds;
mod lost;
mod patience;
mod waits;

/// Seconds after the deletion, far beyond every period.
const YEARS: i64 = 100_000_000;

fn at(seconds: i64) -> Timestamp {
    DELETED.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

fn look_as(scope: Scope, objects: &[Make], seconds: i64) -> Plan {
    look_in(&contents(objects), scope, seconds)
}

fn look_in(contents: &Contents, scope: Scope, seconds: i64) -> Plan {
    plan(&Situation {
        contents,
        template: "workers",
        now: at(seconds),
        unchanged_since: None,
        timing: Timing::default(),
        scope,
    })
}

fn look(objects: &[Make], seconds: i64) -> Plan {
    look_as(Scope::Controller, objects, seconds)
}

/// Action, object and seconds from the deletion to the due time of every step.
fn steps(plan: &Plan) -> Vec<(Action, String, i64)> {
    let name = |step: &Step| step.write.target().name.to_string();
    let due = |step: &Step| step.due.duration_since(at(0)).as_secs();
    plan.steps.iter().map(|step| (step.action, name(step), due(step))).collect()
}

fn due(plan: &Plan, seconds: i64) -> Vec<(Action, String)> {
    let name = |step: &Step| step.write.target().name.to_string();
    plan.due(at(seconds)).map(|step| (step.action, name(step))).collect()
}

fn actions(plan: &Plan) -> Vec<Action> {
    plan.steps.iter().map(|step| step.action).collect()
}

fn causes(plan: &Plan) -> Vec<WaitCause> {
    plan.waits.iter().map(|wait| wait.cause).collect()
}

fn dying() -> Make {
    template("workers").terminating()
}

/// A terminating Metal3Data whose claim is gone, as CAPM3 1.8.1 leaves it.
fn orphan() -> Make {
    data("workers-0")
        .uses("workers")
        .for_claim("w-0", 0)
        .terminating()
        .finalizers(&[DATA_FINALIZER])
}

/// One whose claim went without taking its finalizer off (CAPM3 #2868).
fn bound_orphan() -> Make {
    orphan().finalizers(&[CLAIM_FINALIZER, DATA_FINALIZER])
}

fn woken(object: Make, seconds: i64) -> Make {
    object.annotation(WOKEN_ANNOTATION, at(seconds).to_string())
}

fn stale() -> Make {
    dying().indexes(&[("w-0", 0), ("w-1", 1)])
}

// Step 1: wake.

/// The public report: Metal3Data whose claim is gone, then the template, wait for events that
/// never come. A wake-up is all that is missing.
#[test]
fn capm3_1994_what_waits_for_a_missed_event_is_woken_first() {
    for version in VERSIONS {
        let held = template("workers").version(version).terminating();
        let left = data("workers-0")
            .version(version)
            .uses("workers")
            .for_claim("w-0", 0)
            .terminating()
            .finalizers(&[DATA_FINALIZER]);
        let plan = look(&[held.clone(), left], 4);
        assert_eq!(steps(&plan), [(Action::Wake, "workers-0".into(), 5)]);
        assert_eq!(plan.steps[0].write.target().kind, Kind::Data);
        assert_eq!(plan.steps[0].write.change(), &Change::Wake);

        let plan = look(&[held], 4);
        assert_eq!(
            steps(&plan),
            [(Action::Wake, "workers".into(), 5), (Action::Release, "workers".into(), 90)]
        );
    }
}

#[test]
fn nothing_is_woken_before_its_time() {
    for (objects, name) in [(vec![dying()], "workers"), (vec![dying(), orphan()], "workers-0")] {
        assert_eq!(due(&look(&objects, 4), 4), []);
        assert_eq!(due(&look(&objects, 5), 5), [(Action::Wake, name.into())]);
    }
}

/// Seen once in 46: a template made right after its Cluster stays without a finalizer.
#[test]
fn a_live_template_in_use_without_finalizer_is_woken() {
    let claimed = claim("w-0").uses("workers");
    let rendered = data("workers-0").uses("workers").for_claim("w-0", 0);
    let five_after_creation = CREATED.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(5);
    for user in [claimed.clone(), claimed.clone().terminating(), rendered] {
        let plan = look(&[bare_template("workers"), user.clone(), claimed.clone()], 0);
        assert_eq!(actions(&plan), [Action::Wake]);
        assert_eq!(plan.steps[0].due, five_after_creation);
        assert_eq!(actions(&look(&[template("workers"), user, claimed.clone()], YEARS)), []);
    }
    for no_user in [machine("w-0").uses("workers"), machine_template("md").uses("workers")] {
        assert!(look(&[bare_template("workers"), no_user], YEARS).is_empty());
    }
}

#[test]
fn capm3_1994_a_claim_that_its_template_has_forgotten_wakes_the_template() {
    let held = claim("w-0").uses("workers").terminating();
    let held = held.finalizers(&["of-its-machine", CLAIM_FINALIZER]);
    for template in [dying(), template("workers")] {
        let plan = look(&[template.clone(), held.clone()], 0);
        assert_eq!(steps(&plan), [(Action::Wake, "workers".to_owned(), 5)]);
        for other in [
            claim("w-0").uses("workers"),
            held.clone().finalizers(&["of-its-machine"]),
            held.clone().annotation(PAUSED_ANNOTATION, ""),
        ] {
            let plan = look(&[template.clone(), other.clone()], YEARS);
            let woken = plan.steps.iter().any(|it| it.reason.contains("a claim is being deleted"));
            assert!(!woken, "{other:?}: {:?}", steps(&plan));
        }
    }
}

#[test]
fn wake_ups_are_repeated_with_growing_pauses_up_to_five_minutes() {
    for (last, next) in [
        (5, 10),
        (10, 20),
        (20, 40),
        (299, 598),
        (300, 600),
        (301, 601),
        (100_000, 100_300),
        // From before the deletion: about something else.
        (-1, 5),
        (0, 5),
    ] {
        for objects in [vec![woken(dying(), last)], vec![dying(), woken(orphan(), last)]] {
            let plan = look(&objects, last.max(0));
            let wake = plan.steps.iter().find(|step| step.action == Action::Wake).unwrap();
            assert_eq!(wake.due, at(next), "woken at {last}");
        }
    }
}

#[test]
fn a_wake_up_time_that_makes_no_sense_puts_nothing_off() {
    for odd in
        ["never", "", "9999-12-30T22:00:00Z", "2030-01-01T00:00:00Z", "-009999-01-02T00:00:00Z"]
    {
        let plan = look(&[dying().annotation(WOKEN_ANNOTATION, odd)], 5);
        assert_eq!(due(&plan, 5), [(Action::Wake, "workers".into())], "{odd}");
    }
    let end = Timestamp::MAX;
    let live = bare_template("workers").set(&["metadata", "creationTimestamp"], end.to_string());
    let late = orphan().deleted_at(end.to_string());
    for objects in [
        vec![live.annotation(WOKEN_ANNOTATION, end.to_string()), claim("w-0").uses("workers")],
        vec![dying().deleted_at(end.to_string()), late],
    ] {
        let situation = Situation {
            contents: &contents(&objects),
            template: "workers",
            now: end,
            unchanged_since: Some(end),
            timing: Timing::default(),
            scope: Scope::Controller,
        };
        assert!(plan(&situation).next_look.is_some());
    }
}

// Step 2: prune.

#[test]
fn stale_indexes_are_pruned_after_the_grace_period() {
    for version in VERSIONS {
        let held = template("workers").version(version).terminating().indexes(&[
            ("w-0", 0),
            ("w-1", 1),
            ("w-2", 2),
        ]);
        let others = [
            claim("w-1").version(version).uses("workers"),
            data("workers-2").version(version).uses("workers").for_claim("w-2", 2),
        ];
        let objects = [[held.clone()].as_slice(), &others].concat();
        let plan = look(&objects, 59);
        let [prune] =
            plan.steps.iter().filter(|it| it.action == Action::Prune).collect::<Vec<_>>()[..]
        else {
            panic!("{plan:?}")
        };
        assert_eq!(prune.due, at(60));
        let Change::PruneIndexes(patch) = prune.write.change() else { panic!("{prune:?}") };
        let mut stored = held.value();
        json_patch::patch(&mut stored, patch).unwrap();
        let kept = template("workers").version(version).indexes(&[("w-1", 1), ("w-2", 2)]);
        assert_eq!(stored["status"], kept.value()["status"]);
    }
    let live = template("workers").indexes(&[("w-0", 0)]);
    assert!(look(&[live], YEARS).is_empty(), "a live template is CAPM3's to keep");
    let true_entry = dying().indexes(&[("w-0", 0)]);
    assert!(!actions(&look(&[true_entry, orphan()], YEARS)).contains(&Action::Prune));
}

/// Pruning is no repair: a live machine does not stand against it.
#[test]
fn pruning_goes_on_while_machines_live() {
    let plan = look(&[stale(), machine("w-9").uses("workers")], 60);
    assert_eq!(due(&plan, 60), [(Action::Prune, "workers".into())]);
    assert_eq!(causes(&plan), [WaitCause::Machines]);
}

// Step 3: repair.

#[test]
fn capm3_2868_a_terminating_orphan_loses_the_claim_finalizer_after_the_grace_period() {
    for held in [dying(), template("workers")] {
        let plan = look(&[held.clone(), bound_orphan()], 59);
        assert_eq!(
            steps(&plan),
            [(Action::Wake, "workers-0".into(), 5), (Action::FreeOrphan, "workers-0".into(), 64)]
        );
        assert_eq!(due(&plan, 59), [(Action::Wake, "workers-0".into())]);
        let before = look(&[held.clone(), woken(bound_orphan(), 40)], 59);
        assert_eq!(
            steps(&before),
            [(Action::FreeOrphan, "workers-0".into(), 60), (Action::Wake, "workers-0".into(), 80)]
        );
        let plan = look(&[held, woken(bound_orphan(), 40)], 60);
        assert_eq!(due(&plan, 60), [(Action::FreeOrphan, "workers-0".into())]);
        let change = plan.steps[0].write.change();
        let kept: Box<[Box<str>]> = Box::new([DATA_FINALIZER.into()]);
        assert_eq!(change, &Change::Strip { finalizer: CLAIM_FINALIZER.into(), kept });
    }
}

/// Its own controller frees the IPs: the data finalizer is never ours while the template is there.
#[test]
fn a_data_finalizer_is_never_taken_off_while_the_template_is_there() {
    for scope in [Scope::Controller, Scope::Person] {
        let plan = look_as(scope, &[dying(), orphan()], YEARS);
        assert_eq!(actions(&plan), [Action::Wake]);
    }
}

#[test]
fn a_live_orphan_is_deleted_only_under_a_terminating_template() {
    let live = data("workers-0").uses("workers").for_claim("w-0", 0).finalizers(&[CLAIM_FINALIZER]);
    let claimless = data("workers-0").uses("workers");
    let elsewhere =
        live.clone().set(&["spec", "claim"], json!({"name": "w-0", "namespace": "elsewhere"}));
    for orphan in [live.clone(), claimless, elsewhere] {
        let plan = look(&[dying(), orphan.clone()], 59);
        assert_eq!(steps(&plan), [(Action::DeleteOrphan, "workers-0".into(), 60)]);
        assert_eq!(plan.steps[0].write.change(), &Change::Delete);
        for scope in [Scope::Controller, Scope::Person] {
            assert!(look_as(scope, &[template("workers"), orphan.clone()], YEARS).is_empty());
        }
    }
    let plan = look(&[dying(), live, claim("w-0").uses("workers")], YEARS);
    assert_eq!(actions(&plan), [], "its claim is there: {plan:?}");
    assert_eq!(causes(&plan), [WaitCause::Claims, WaitCause::Draining]);
}

#[test]
fn no_repair_while_a_live_machine_references_the_template() {
    let live_orphan = data("workers-1").uses("workers");
    let using = machine("w-9").uses("workers");
    let plan = look(&[dying(), bound_orphan(), live_orphan.clone(), using.clone()], YEARS);
    assert_eq!(actions(&plan), [Action::Wake], "a wake-up is harmless");
    assert_eq!(causes(&plan), [WaitCause::Machines]);
    for harmless in [
        using.terminating(),
        machine("w-9").uses("masters"),
        machine("w-9").refers(json!({"name": "workers", "namespace": "elsewhere"})),
        machine_template("md").uses("workers"),
    ] {
        let orphan = woken(bound_orphan(), YEARS - 5);
        let plan = look(&[dying(), orphan, live_orphan.clone(), harmless], YEARS);
        assert_eq!(
            due(&plan, YEARS),
            [(Action::DeleteOrphan, "workers-1".into()), (Action::FreeOrphan, "workers-0".into())]
        );
    }
}

#[test]
fn data_with_a_claim_is_left_to_capm3() {
    for version in VERSIONS {
        let attached = data("workers-0")
            .version(version)
            .uses("workers")
            .for_claim("w-0", 0)
            .terminating()
            .finalizers(&[CLAIM_FINALIZER, DATA_FINALIZER]);
        let let_go = claim("w-0").version(version).uses("workers").terminating();
        let foreign = let_go.clone().finalizers(&["a.io/x"]);
        let held = let_go.clone().finalizers(&["a.io/x", CLAIM_FINALIZER]);
        for (its_claim, steps, waits) in [
            (held, &[Action::Wake][..], &["Metal3DataClaim/w-0", "Metal3Data/workers-0"][..]),
            // Nobody waits for a claim that CAPM3 has let go: it does not keep the template.
            (foreign, &[], &["Metal3Data/workers-0"]),
            (let_go, &[], &["Metal3Data/workers-0"]),
        ] {
            for scope in [Scope::Controller, Scope::Person] {
                let plan = look_as(scope, &[dying(), attached.clone(), its_claim.clone()], YEARS);
                assert_eq!(actions(&plan), steps);
                assert_eq!(causes(&plan), [WaitCause::Draining]);
                let names: Vec<_> = plan.waits[0].names.iter().map(|name| &**name).collect();
                assert_eq!(names, waits);
                assert!(plan.next_look.is_some(), "not yet always has a retry time (CAPM3 #1997)");
            }
        }
    }
}

// Step 4: release.

#[test]
fn the_template_is_released_after_the_second_grace_period() {
    assert_eq!(due(&look(&[woken(dying(), 60)], 89), 89), []);
    let plan = look(&[woken(dying(), 60)], 90);
    assert_eq!(due(&plan, 90), [(Action::Release, "workers".into())]);
    let Change::Strip { finalizer, kept } = plan.steps[0].write.change() else {
        panic!("{plan:?}")
    };
    assert_eq!((&**finalizer, kept.len()), (TEMPLATE_FINALIZER, 0));

    let held = dying().finalizers(&["a.io/x", TEMPLATE_FINALIZER, "foregroundDeletion"]);
    let plan = look(&[woken(held, 60)], 90);
    let kept: Box<[Box<str>]> = Box::new(["a.io/x".into(), "foregroundDeletion".into()]);
    let strip = Change::Strip { finalizer: TEMPLATE_FINALIZER.into(), kept };
    assert_eq!(plan.steps[0].write.change(), &strip);
}

/// ephemeral-namespace-operator #577: never release by timeout.
#[test]
fn capm3_2000_nothing_is_released_while_something_needs_the_template() {
    let finalized = claim("w-0").uses("workers").finalizers(&[CLAIM_FINALIZER]);
    for holder in [
        data("workers-0").uses("workers"),
        orphan(),
        bound_orphan(),
        orphan().finalizers(&["a.io/x"]),
        finalized.clone(),
        finalized.terminating(),
        claim("w-0").uses("workers"),
        machine("w-0").uses("workers"),
    ] {
        for scope in [Scope::Controller, Scope::Person] {
            for held in [dying(), stale()] {
                let plan = look_as(scope, &[held, holder.clone()], YEARS);
                assert!(!actions(&plan).contains(&Action::Release), "{holder:?} {plan:?}");
                let woken_template = plan.steps.iter().any(|step| {
                    step.action == Action::Wake
                        && step.write.target().kind == Kind::Template
                        && !step.reason.contains("a claim is being deleted")
                });
                assert!(!woken_template, "it does not look free: {plan:?}");
                assert!(!plan.is_empty());
            }
        }
    }
}

/// CAPM3 #2717: a machine is deprovisioned for hours after its claim and data are gone.
#[test]
fn capm3_2717_what_does_not_need_the_template_does_not_keep_it() {
    for other in [
        machine("w-0").uses("workers").terminating(),
        claim("w-0").uses("workers").terminating().finalizers(&["a.io/x"]),
        machine_template("md").uses("workers"),
        data("masters-0").uses("masters"),
    ] {
        let plan = look(&[woken(dying(), 60), other], 90);
        assert_eq!(due(&plan, 90), [(Action::Release, "workers".into())]);
        assert_eq!(causes(&plan), [], "nothing to wait for");
    }
}

#[test]
fn a_template_without_capm3s_finalizer_is_neither_woken_nor_released() {
    let plan = look(&[bare_template("workers").terminating().finalizers(&["a.io/x"])], YEARS);
    assert_eq!(actions(&plan), []);
    assert_eq!(causes(&plan), [WaitCause::ForeignFinalizers]);
}

/// Progress starts the periods anew; without a watcher the last deletion does.
#[test]
fn the_periods_start_at_the_last_change() {
    let objects = [stale(), bound_orphan()];
    let contents = contents(&objects);
    let situation = |seconds: i64, unchanged_since: Option<i64>| Situation {
        contents: &contents,
        template: "workers",
        now: at(seconds),
        unchanged_since: unchanged_since.map(at),
        timing: Timing::default(),
        scope: Scope::Controller,
    };
    let plan_at = |seconds, since| steps(&plan(&situation(seconds, since)));
    let due_at = |since: i64| {
        vec![
            (Action::Wake, "workers-0".to_owned(), 5),
            (Action::Prune, "workers".to_owned(), since + 60),
            (Action::FreeOrphan, "workers-0".to_owned(), since + 60),
        ]
    };
    assert_eq!(plan_at(0, None), due_at(0));
    assert_eq!(plan_at(300, Some(280)), due_at(280));
    assert_eq!(plan_at(300, Some(301)), due_at(300), "not later than now");

    let later = bound_orphan().deleted_at(at(30).to_string());
    let plan = look(&[stale(), later], 0);
    let prune = plan.steps.iter().find(|step| step.action == Action::Prune).unwrap();
    assert_eq!(prune.due, at(60), "a deletion ahead of the clock counts as now");
    let later = bound_orphan().deleted_at(at(30).to_string());
    let plan = look(&[stale(), later], 40);
    let prune = plan.steps.iter().find(|step| step.action == Action::Prune).unwrap();
    assert_eq!(prune.due, at(90));
}

#[test]
fn other_periods_may_be_set() {
    let timing = Timing {
        wake: SignedDuration::from_secs(1),
        wake_limit: SignedDuration::from_secs(2),
        grace: SignedDuration::from_secs(3),
        release: SignedDuration::from_secs(4),
        look: SignedDuration::from_secs(5),
    };
    let contents = contents(&[woken(dying(), 10)]);
    let plan = plan(&Situation {
        contents: &contents,
        template: "workers",
        now: at(10),
        unchanged_since: Some(at(6)),
        timing,
        scope: Scope::Controller,
    });
    assert_eq!(
        steps(&plan),
        [(Action::Wake, "workers".into(), 12), (Action::Release, "workers".into(), 13)]
    );
    let defaults = Timing::default();
    let seconds = [defaults.wake, defaults.wake_limit, defaults.grace, defaults.release]
        .map(|period| period.as_secs());
    assert_eq!(seconds, [5, 300, 60, 30], "as documented");
}
