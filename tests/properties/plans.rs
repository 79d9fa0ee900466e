//! Plans: never a strip of what is alive, and carried out they come to an end.

use jiff::{SignedDuration, Timestamp};
use metal3_guard::core::{
    objects::{CLAIM_FINALIZER, DATA_FINALIZER, Kind, TEMPLATE_FINALIZER, WOKEN_ANNOTATION},
    plan::{Action, Plan, Scope, Situation, Step, Timing, plan},
    teardown::Change,
};
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};

use crate::world::{
    DELETED, FOREIGN, IPAM, MOVE, PAUSED, TEMPLATE, World, a_world, cases, contents, has_finalizer,
    points_here, reference, terminating,
};

fn after(seconds: i64) -> Timestamp {
    DELETED.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

fn make_plan(world: &World, now: Timestamp, scope: Scope) -> Plan {
    plan(&Situation {
        contents: &contents(world),
        template: TEMPLATE,
        now,
        unchanged_since: None,
        timing: Timing::default(),
        scope,
    })
}

fn key(step: &Step) -> (Kind, String) {
    (step.write.target().kind, step.write.target().name.to_string())
}

fn finalizers(value: &Value) -> Vec<String> {
    let list = value["metadata"]["finalizers"].as_array();
    list.into_iter().flatten().map(|it| it.as_str().unwrap().to_owned()).collect()
}

fn marked(value: &Value, annotation: &str) -> bool {
    value["metadata"]["annotations"].get(annotation).is_some()
}

fn is_ours(kind: Kind, value: &Value) -> bool {
    points_here(reference(kind, value))
}

fn paused(world: &World) -> bool {
    let relevant = |kind: Kind, value: &Value| {
        kind == Kind::Template || kind == Kind::Data && is_ours(kind, value)
    };
    world.iter().any(|((kind, _), value)| relevant(*kind, value) && marked(value, PAUSED))
        || world
            .get(&(Kind::Cluster, "c".into()))
            .is_some_and(|cluster| cluster["spec"]["paused"] == true)
            && world.iter().any(|((kind, _), value)| relevant(*kind, value))
}

fn claim_is_there(world: &World, data: &Value) -> bool {
    let claim = &data["spec"]["claim"];
    let elsewhere = claim.get("namespace").is_some_and(|namespace| namespace != "prod");
    let name = claim["name"].as_str().unwrap_or_default().to_owned();
    !elsewhere && world.contains_key(&(Kind::Claim, name))
}

/// What has to go: falls with every write but a wake-up.
fn measure(world: &World) -> usize {
    world
        .values()
        .map(|value| {
            let indexes = match &value["status"]["indexes"] {
                Value::Array(list) => list.len(),
                Value::Object(map) => map.len(),
                _ => 0,
            };
            1 + usize::from(!terminating(value)) + finalizers(value).len() + indexes
        })
        .sum()
}

/// The API server's part: preconditions, and the end of a terminating object without finalizers.
fn write(world: &mut World, step: &Step, now: Timestamp) {
    let key = key(step);
    let target = step.write.target();
    let value = world.get_mut(&key).unwrap();
    assert_eq!(value["metadata"]["uid"], *target.uid);
    assert_eq!(value["metadata"]["resourceVersion"], *target.resource_version, "{step:?}");
    match step.write.change() {
        Change::Wake => {
            value["metadata"]["annotations"][WOKEN_ANNOTATION] = now.to_string().into();
        }
        Change::PruneIndexes(patch) => json_patch::patch(value, patch).unwrap(),
        Change::Delete => value["metadata"]["deletionTimestamp"] = now.to_string().into(),
        Change::Strip { kept, .. } => value["metadata"]["finalizers"] = json!(kept),
    }
    let version: u64 = target.resource_version.parse().unwrap();
    value["metadata"]["resourceVersion"] = (version + 1).to_string().into();
    if terminating(value) && finalizers(value).is_empty() {
        world.remove(&key);
    }
}

/// What the owners do by themselves once a finalizer's reason is gone.
fn owners_act(world: &mut World) {
    let there = world.clone();
    let template_there = there.contains_key(&(Kind::Template, TEMPLATE.into()));
    world.retain(|(kind, _), value| {
        let bound = has_finalizer(value, CLAIM_FINALIZER);
        let goes: &[&str] = match kind {
            _ if !terminating(value) => &[],
            Kind::IpClaim | Kind::IpAddressClaim => &[IPAM],
            Kind::Data if template_there && !bound && !claim_is_there(&there, value) => {
                &[DATA_FINALIZER]
            }
            Kind::Claim if template_there => &[CLAIM_FINALIZER],
            _ => &[],
        };
        if goes.is_empty() {
            return true;
        }
        let mut kept = finalizers(value);
        kept.retain(|it| !goes.contains(&it.as_str()));
        let left = !kept.is_empty();
        value["metadata"]["finalizers"] = json!(kept);
        left
    });
}

/// A stronger step on what is woken first: when was that, seen from `now`?
fn seconds_since_woken(world: &World, step: &Step, now: Timestamp) -> Option<i64> {
    let woken = world[&key(step)]["metadata"]["annotations"][WOKEN_ANNOTATION].as_str()?;
    Some(now.duration_since(woken.parse().unwrap()).as_secs())
}

/// Carries plans out, an hour apart, until none has anything but wake-ups; panics if that never
/// happens, or if an owner is passed over that was not woken and given its time.
fn carry_out(world: &mut World, scope: Scope, owners: bool) {
    let mut now = after(1_000_000);
    let mut rounds = 2 * measure(world) + 2;
    let mut only_woke = false;
    loop {
        if owners {
            owners_act(world);
        }
        let plan = make_plan(world, now, scope);
        let due: Vec<_> = plan.due(now).cloned().collect();
        let before = measure(world);
        let template_there = world.contains_key(&(Kind::Template, TEMPLATE.into()));
        for step in &due {
            let least = match step.action {
                Action::FreeOrphan if template_there => Some(5),
                Action::Release => Some(30),
                _ => None,
            };
            let woken = seconds_since_woken(world, step, now);
            assert!(woken >= least, "{woken:?} s after it was woken: {step:?}");
            write(world, step, now);
        }
        let changes = due.iter().filter(|step| step.action != Action::Wake).count();
        if changes == 0 {
            if plan.steps.iter().all(|step| step.action == Action::Wake) {
                return;
            }
            // What waits for a wake-up got it now, and its time is over when the next round comes.
            assert!(!only_woke, "twice nothing but wake-ups: {plan:?}");
            let woken: Vec<_> = due.iter().map(key).collect();
            assert!(plan.steps.iter().all(|step| woken.contains(&key(step))), "{plan:?}");
        } else {
            assert!(measure(world) < before, "{due:?}");
        }
        only_woke = changes == 0;
        rounds = rounds.checked_sub(1).unwrap();
        now += SignedDuration::from_hours(1);
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_plan_keeps_its_promises(
        world in a_world(),
        seconds in select(vec![0_i64, 4, 5, 59, 60, 89, 90, 100_000]),
        scope in select(vec![Scope::Controller, Scope::Person]),
    ) {
        let now = after(seconds);
        let plan = make_plan(&world, now, scope);
        for step in &plan.steps {
            let object = &world[&key(step)];
            prop_assert!(!marked(object, MOVE), "the mover owns it: {:?}", step);
            match step.write.change() {
                Change::Wake => {}
                Change::PruneIndexes(_) => prop_assert!(terminating(object)),
                Change::Strip { finalizer, kept } => {
                    prop_assert!(terminating(object), "{:?}", step);
                    let ours = [TEMPLATE_FINALIZER, CLAIM_FINALIZER, DATA_FINALIZER];
                    prop_assert!(ours.contains(&&**finalizer));
                    let left: Vec<_> =
                        finalizers(object).into_iter().filter(|it| **it != **finalizer).collect();
                    let kept: Vec<_> = kept.iter().map(ToString::to_string).collect();
                    prop_assert_eq!(kept, left);
                    if **finalizer == *DATA_FINALIZER {
                        prop_assert_eq!(scope, Scope::Person);
                        prop_assert!(!world.contains_key(&(Kind::Template, TEMPLATE.into())));
                    }
                }
                Change::Delete => {
                    prop_assert!(!terminating(object));
                    let orphan = step.action == Action::DeleteOrphan;
                    prop_assert_eq!(orphan, key(step).0 == Kind::Data);
                    prop_assert!(!orphan || !claim_is_there(&world, object));
                }
            }
            if step.action != Action::Wake {
                prop_assert!(!paused(&world), "{:?}", step);
            }
        }
        let mut due: Vec<_> = plan.due(now).map(key).collect();
        let all = due.len();
        due.sort();
        due.dedup();
        prop_assert_eq!(due.len(), all, "one due step for an object");
        prop_assert_eq!(plan.next_look.is_none(), plan.is_empty());
        prop_assert!(plan.next_look.is_none_or(|look| look > now));
    }

    #[test]
    fn plans_that_are_carried_out_come_to_an_end(
        mut world in a_world(),
        scope in select(vec![Scope::Controller, Scope::Person]),
        owners in any::<bool>(),
    ) {
        let before = world.clone();
        carry_out(&mut world, scope, owners);
        let bystanders = [Kind::Machine, Kind::MachineTemplate, Kind::Cluster];
        for (key, value) in before.iter().filter(|((kind, _), _)| bystanders.contains(kind)) {
            let now = world.get(key).unwrap();
            prop_assert_eq!(now, value, "no plan touches these");
        }
    }

    /// With a person's consent every Metal3Data whose claim and template are gone ends, and the
    /// controllers of others do their part.
    #[test]
    fn lost_data_ends_with_a_persons_consent(mut world in a_world()) {
        world.remove(&(Kind::Template, TEMPLATE.into()));
        settle(&mut world);
        carry_out(&mut world, Scope::Person, true);
        let left = world.iter().find(|((kind, _), value)| {
            *kind == Kind::Data && is_ours(*kind, value) && !claim_is_there(&world, value)
        });
        prop_assert_eq!(left, None);
    }

    /// With nobody alive to use it, a terminating template goes, and its Metal3Data with it.
    #[test]
    fn an_unused_template_goes(mut world in a_world()) {
        settle(&mut world);
        let Some(template) = world.get_mut(&(Kind::Template, TEMPLATE.into())) else { return Ok(()) };
        template["metadata"]["deletionTimestamp"] = DELETED.into();
        template["metadata"]["finalizers"] = json!([TEMPLATE_FINALIZER]);
        world.retain(|(kind, _), value| match kind {
            Kind::Machine => terminating(value) || !is_ours(*kind, value),
            // A claim on its way out takes its Metal3Data with it; that is CAPM3's work, not ours.
            Kind::Claim => false,
            _ => true,
        });
        carry_out(&mut world, Scope::Controller, true);
        prop_assert!(!world.contains_key(&(Kind::Template, TEMPLATE.into())), "{:?}", world);
        let left = world.iter().find(|((kind, _), it)| *kind == Kind::Data && is_ours(*kind, it));
        prop_assert_eq!(left, None);
    }
}

/// Takes away what a plan must wait for: pauses, moves and foreign finalizers.
fn settle(world: &mut World) {
    for ((kind, _), value) in world.iter_mut() {
        if let Some(meta) = value["metadata"].as_object_mut() {
            meta.remove("annotations");
        }
        if *kind == Kind::Cluster {
            value["spec"]["paused"] = false.into();
        }
        let mut kept = finalizers(value);
        kept.retain(|it| it != FOREIGN);
        if *kind == Kind::Data && kept.is_empty() {
            kept.push(DATA_FINALIZER.into());
        }
        value["metadata"]["finalizers"] = json!(kept);
    }
    world.retain(|_, value| !terminating(value) || !finalizers(value).is_empty());
}
