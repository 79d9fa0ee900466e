//! A stronger step waits for a wake-up and for the time to react to it, but not for ever.

use super::*;

/// The template that looks free, or the orphan, and the stronger step on it.
fn patients() -> [(Action, Make, Vec<Make>); 3] {
    [
        (Action::Prune, stale(), vec![]),
        (Action::FreeOrphan, bound_orphan(), vec![dying()]),
        (Action::Release, dying(), vec![]),
    ]
}

fn due_of(action: Action, plan: &Plan) -> i64 {
    let step = plan.steps.iter().find(|step| step.action == action);
    step.unwrap_or_else(|| panic!("no {action}: {plan:?}")).due.duration_since(at(0)).as_secs()
}

#[test]
fn a_stronger_step_is_due_when_its_object_was_woken_and_its_owner_had_time() {
    let short = [
        // Never woken: after the wake-up, which is not before now.
        (None, 0, 60),
        (None, 55, 60),
        (None, 56, 61),
        (None, 60, 65),
        (None, YEARS, YEARS + 5),
        // Woken in time: as if nothing had been.
        (Some(0), 60, 60),
        (Some(5), 60, 60),
        (Some(10), 60, 60),
        (Some(20), 60, 60),
        (Some(40), 60, 60),
        (Some(55), 60, 60),
        // Woken late.
        (Some(56), 60, 61),
        (Some(60), 60, 65),
        (Some(YEARS), YEARS, YEARS + 5),
        // Woken for something else: before the deletion, or further ahead than clocks differ.
        (Some(-1), 60, 65),
        (Some(360), 60, 365),
        (Some(361), 60, 65),
    ];
    let long = [
        (None, 0, 90),
        (None, 60, 90),
        (None, 61, 91),
        (None, 90, 120),
        (None, YEARS, YEARS + 30),
        (Some(0), 90, 90),
        (Some(40), 90, 90),
        (Some(60), 90, 90),
        (Some(60), YEARS, 90),
        (Some(61), 90, 91),
        (Some(80), 90, 110),
        (Some(90), 90, 120),
        (Some(-1), 90, 120),
        (Some(390), 90, 420),
        (Some(391), 90, 120),
    ];
    for (action, object, others) in patients() {
        let rows = if action == Action::Release { &long[..] } else { &short };
        for (last, now, expected) in rows {
            let object = last.map_or_else(|| object.clone(), |last| woken(object.clone(), last));
            let plan = look(&[&[object], &*others].concat(), *now);
            assert_eq!(due_of(action, &plan), *expected, "{action} woken {last:?}, now {now}");
        }
    }
}

/// What a release says of CAPM3 is true at the time.
#[test]
fn a_release_says_that_capm3_did_not_react_only_when_it_had_the_chance() {
    let reason = |object: Make, seconds| {
        let plan = look(&[object], seconds);
        let step = plan.steps.iter().find(|step| step.action == Action::Release).unwrap();
        step.reason.clone()
    };
    let planned = "only if CAPM3 does not react to being woken";
    let due = "and CAPM3 did not react to being woken";
    for (object, seconds, words) in [
        (dying(), 0, planned),
        (dying(), YEARS, planned),
        (woken(dying(), 80), 109, planned),
        (woken(dying(), 80), 110, due),
    ] {
        assert!(reason(object, seconds).ends_with(words), "at {seconds}");
    }
}

/// A template that is not woken, because something needs it, is pruned without.
#[test]
fn what_is_not_woken_first_waits_for_no_wake_up() {
    for other in [machine("w-9").uses("workers"), claim("w-9").uses("workers"), orphan()] {
        let plan = look(&[stale(), other], YEARS);
        assert_eq!(due_of(Action::Prune, &plan), 60);
    }
    let bare = stale().finalizers(&["a.io/x"]);
    assert_eq!(due_of(Action::Prune, &look(&[bare], YEARS)), 60);
}

/// Looks when the plan says, from `start` on, and carries out what is due, with an owner that never
/// reacts, until `last` or a stronger step: each step and when.
fn carried_out(
    timing: Timing,
    mut object: Make,
    others: &[Make],
    last: Action,
    start: i64,
) -> Vec<(Action, i64)> {
    let mut now = at(start);
    let mut done = Vec::new();
    while done.len() < 30 {
        let objects = [std::slice::from_ref(&object), others].concat();
        let plan = plan(&Situation {
            contents: &contents(&objects),
            template: "workers",
            now,
            unchanged_since: None,
            timing,
            scope: Scope::Controller,
        });
        let seconds = now.duration_since(at(0)).as_secs();
        let mut pruned = false;
        for step in plan.due(now) {
            done.push((step.action, seconds));
            match step.action {
                Action::Wake => object = woken(object.clone(), seconds),
                Action::Prune => pruned = true,
                _ => {}
            }
            if step.action >= last {
                return done;
            }
        }
        if pruned {
            object = object.set(&["status"], json!({}));
        }
        // A write is an event, and so brings the next look at once.
        if plan.due(now).next().is_none() {
            now = plan.next_look.unwrap();
        }
    }
    panic!("put off for ever: {done:?}");
}

#[test]
fn an_owner_that_never_reacts_is_woken_in_time_and_then_done_without() {
    use Action::{FreeOrphan, Prune, Release, Wake};
    let timing = Timing::default();
    let [(_, stale, _), (_, orphan, held), (_, dying, _)] = patients();
    let early = [(Wake, 5), (Wake, 10), (Wake, 20), (Wake, 40)];
    let and = |more: &[(Action, i64)]| [&early[..], more].concat();
    assert_eq!(carried_out(timing, orphan.clone(), &held, FreeOrphan, 0), and(&[(FreeOrphan, 60)]));
    assert_eq!(
        carried_out(timing, stale.clone(), &[], Release, 0),
        and(&[(Prune, 60), (Wake, 80), (Release, 110)])
    );
    assert_eq!(
        carried_out(timing, dying.clone(), &[], Release, 0),
        and(&[(Wake, 80), (Release, 110)])
    );
    // Looked at for the first time when it has been stuck for a day.
    let day = 86_400;
    assert_eq!(
        carried_out(timing, orphan, &held, FreeOrphan, day),
        [(Wake, day), (FreeOrphan, day + 5)]
    );
    assert_eq!(
        carried_out(timing, stale, &[], Release, day),
        [(Wake, day), (Prune, day + 5), (Release, day + 30)]
    );
    assert_eq!(carried_out(timing, dying, &[], Release, day), [(Wake, day), (Release, day + 30)]);
}

/// Wake-ups that come more often than an owner is given to react put nothing off for ever.
#[test]
fn periods_that_do_not_fit_together_still_come_to_an_end() {
    let seconds = SignedDuration::from_secs;
    for (wake, wake_limit, release) in [(5, 5, 30), (1, 29, 30), (60, 2, 30), (5, 300, 3600)] {
        let timing = Timing {
            wake: seconds(wake),
            wake_limit: seconds(wake_limit),
            release: seconds(release),
            ..Timing::default()
        };
        for (action, object, others) in patients() {
            for start in [0, 86_400] {
                let done = carried_out(timing, object.clone(), &others, action, start);
                assert_eq!(done[0].0, Action::Wake, "{timing:?} {done:?}");
                assert!(done.last().is_some_and(|it| it.0 >= action), "{timing:?} {done:?}");
            }
        }
    }
}
