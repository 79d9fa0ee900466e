//! The guard's rules, asked as its webhooks and its controller ask them. Nothing is decided here:
//! every answer comes from `metal3_guard::core`, for objects that went through its parser, and is
//! remembered, since a search asks the same again and again.

#![expect(clippy::disallowed_types, reason = "what is remembered is only looked up, and often")]

use std::{cell::RefCell, collections::HashMap, fmt};

use jiff::{SignedDuration, Timestamp};
use json_patch::Patch;
use metal3_guard::core::{
    deletion, diagnosis,
    finalizers::{self, Additions},
    indexes, plan,
    plan::{Scope, Situation, Timing, WaitCause},
    progress, references, release,
    review::{Operation, Review},
    teardown::Change,
    verdict::{Answer, Preflight, Verdict},
};

use crate::{
    text::{DELETED, NS, TEMPLATE, contents, json, read_indexes},
    world::{Finalizers, Id, N, Objects, Planned, Step},
};

/// The value that belongs to a key, made once in each thread.
macro_rules! memo {
    ($name:ident: $key:ty => $value:ty, $with:expr, $make:block) => {{
        thread_local! {
            static $name: RefCell<HashMap<$key, $value>> = RefCell::default();
        }
        let key: $key = $with;
        let known = $name.with_borrow(|known| known.get(&key).copied());
        known.unwrap_or_else(|| {
            let make = || -> $value { $make };
            let value = make();
            $name.with_borrow_mut(|known| known.insert(key, value));
            value
        })
    }};
}

/// The API version in which objects reach the rules.
pub(crate) type Version = &'static str;

/// How long ago the last change was, as far as it makes a difference to a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Age {
    /// Long enough for wake-ups, the first and repeated ones.
    Wake,
    /// Beyond the grace period.
    Grace,
    /// Beyond the second one.
    Release,
}

impl Age {
    pub(crate) const ALL: [Self; 3] = [Self::Wake, Self::Grace, Self::Release];

    fn seconds(self) -> SignedDuration {
        let Timing { wake, grace, release, .. } = Timing::default();
        match self {
            Self::Wake => grace - SignedDuration::from_secs(1),
            Self::Grace => grace + 3 * wake,
            Self::Release => grace + 2 * release,
        }
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wake => "after some seconds",
            Self::Grace => "after the grace period",
            Self::Release => "after both grace periods",
        })
    }
}

/// What a plan says to do now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) steps: Planned,
    /// It waits for a person to run `unstick`.
    pub(crate) lost: bool,
}

/// The plan for the template, as far as it is due.
pub(crate) fn due(version: Version, live: &Objects, age: Age, scope: Scope) -> Due {
    let person = scope == Scope::Person;
    memo!(DUE: (Version, u128, Age, bool) => Due, (version, live.bits(), age, person), {
        let contents = contents(version, live);
        let usage = contents.usage(TEMPLATE);
        if !progress::concerns(&contents, TEMPLATE, &usage) {
            return Due::default();
        }
        let since: Timestamp = DELETED.parse().unwrap();
        let now = since + age.seconds();
        let plan = plan::plan(&Situation {
            contents: &contents,
            template: TEMPLATE,
            now,
            unchanged_since: Some(since),
            timing: Timing::default(),
            scope,
        });
        let mut due = Due {
            lost: plan.waits.iter().any(|wait| wait.cause == WaitCause::Lost),
            ..Due::default()
        };
        for step in plan.due(now) {
            let target = step.write.target();
            let id = Id::named(target.kind, &target.name);
            let precondition = (&*target.uid, &*target.resource_version);
            assert_eq!(precondition, (&*format!("uid-{id}"), "1"), "as read");
            let payload = match step.write.change() {
                Change::Wake | Change::Delete => 0,
                Change::Strip { finalizer, kept } => {
                    let before = live.meta(id).unwrap().finalizers;
                    let kept = Finalizers::of(kept.iter().map(|it| &**it));
                    assert_eq!(before.without(Finalizers::of([&**finalizer])), kept);
                    kept.0
                }
                Change::PruneIndexes(patch) => {
                    let mut value = json(version, id, live);
                    json_patch::patch(&mut value, patch).unwrap();
                    let (before, after) = (live.template.unwrap().indexes, read_indexes(&value));
                    (0..N).filter(|i| before[*i] != after[*i]).fold(0, |bits, i| bits | 1 << i)
                }
            };
            let place = match id {
                Id::Template => 0,
                Id::Data(i) => 1 + i,
                other => panic!("a step on {other}"),
            };
            let before = due.steps[place].replace(Step { action: step.action, payload });
            assert_eq!(before, None, "one due step for each object");
        }
        due
    })
}

/// What a person is told to do by hand once nobody makes the template again, or once waking did
/// not help a Metal3Data whose machine is gone: on which object, and the finalizers that stay.
pub(crate) fn by_hand(version: Version, live: &Objects) -> Option<(Id, Finalizers)> {
    memo!(BY_HAND: (Version, u128) => Option<(Id, Finalizers)>, (version, live.bits()), {
        let now = DELETED.parse::<Timestamp>().unwrap() + Age::Release.seconds();
        let told = diagnosis::template(&contents(version, live), TEMPLATE, now).by_hand;
        told.iter().flat_map(|it| it.commands.iter().map(|command| (it.when, command))).find_map(
            |(when, command)| {
                let (id, kept) = patched(version, live, command)?;
                let unused = match id {
                    Id::Data(i) => live.data[i].is_some_and(|data| {
                        data.meta.woken && !live.is(Id::Machine(data.claim.into()))
                    }),
                    _ => false,
                };
                let right = match when {
                    "if the template is not to be made again" => true,
                    "if no machine uses it any more" => unused,
                    _ => false,
                };
                right.then_some((id, kept))
            },
        )
    })
}

/// What a `kubectl patch` leaves of the finalizers of which object.
fn patched(version: Version, live: &Objects, command: &str) -> Option<(Id, Finalizers)> {
    let words = command.strip_prefix(&format!("kubectl patch -n {NS} "))?;
    let (name, patch) = words.split_once(" --type=json -p ")?;
    let named = |id: &Id| format!("{}/{}", id.kind().name().to_lowercase(), id.name()) == name;
    let id = live.ids().find(named).unwrap();
    let patch: Patch = serde_json::from_str(patch.trim_matches('\'')).unwrap();
    let mut value = json(version, id, live);
    json_patch::patch(&mut value, &patch).unwrap();
    let kept = value["metadata"]["finalizers"].as_array().unwrap();
    Some((id, Finalizers::of(kept.iter().map(|it| it.as_str().unwrap()))))
}

/// Stays the same until something gets on.
pub(crate) fn progress(version: Version, live: &Objects) -> u64 {
    memo!(PROGRESS: (Version, u128) => u64, (version, live.bits()), {
        let contents = contents(version, live);
        progress::fingerprint(&contents, TEMPLATE, &contents.usage(TEMPLATE))
    })
}

/// `/validate/deletion` of the template.
pub(crate) fn may_delete(version: Version, live: &Objects) -> bool {
    memo!(DELETION: (Version, u128) => bool, (version, live.bits()), {
        let old = json(version, Id::Template, live).to_string();
        let review = Review { old_object: Some(&old), ..review(Operation::Delete, Id::Template) };
        let ruling = match deletion::preflight(&review) {
            Preflight::Decided(ruling) => ruling,
            Preflight::Ask(question) => {
                let usage = contents(version, live).usage(&question.name);
                deletion::judge(&question, &Answer::Verified(usage))
            }
        };
        ruling.denial().is_none()
    })
}

/// `/validate/references` of a machine or claim that is about to be made in `after`.
pub(crate) fn may_create(version: Version, id: Id, after: &Objects) -> bool {
    memo!(CREATION: (Version, Id, u128) => bool, (version, id, after.bits()), {
        let object = json(version, id, after).to_string();
        let review = Review { object: Some(&object), ..review(Operation::Create, id) };
        let ruling = match references::preflight(&review) {
            Preflight::Decided(ruling) => ruling,
            Preflight::Ask(question) => {
                let cluster = question.cluster.as_deref();
                let target = contents(version, after).target(&question.template, cluster);
                references::judge(&question, &Answer::Verified(target))
            }
        };
        ruling.denial().is_none()
    })
}

/// `/mutate/finalizers` and, once the API server has had its own say, `/validate/finalizers`.
pub(crate) fn may_add(version: Version, id: Id, before: &Objects, after: &Objects) -> bool {
    let key = (version, id, before.bits(), after.bits());
    memo!(ADDITION: (Version, Id, u128, u128) => bool, key, {
        let (old, object) = (json(version, id, before), json(version, id, after));
        let (old, object) = (old.to_string(), object.to_string());
        let review = updated(id, "", &old, &object);
        let mutated = finalizers::mutate(&review, Additions::Deny);
        let validated = finalizers::validate(&review);
        assert_eq!(mutated.denial(), validated.denial(), "the twins agree");
        mutated.denial().is_none()
    })
}

/// `/validate/release` of a write that turns `before` into `after`.
pub(crate) fn may_release(version: Version, before: &Objects, after: &Objects) -> bool {
    let key = (version, before.bits(), after.bits());
    memo!(RELEASE: (Version, u128, u128) => bool, key, {
        let (old, object) =
            (json(version, Id::Template, before), json(version, Id::Template, after));
        let (old, object) = (old.to_string(), object.to_string());
        let ruling = match release::preflight(&updated(Id::Template, "", &old, &object)) {
            Preflight::Decided(ruling) => ruling,
            Preflight::Ask(question) => {
                let usage = contents(version, before).usage(&question.name);
                release::judge(&question, &Answer::Verified(usage))
            }
        };
        ruling.denial().is_none()
    })
}

/// `/mutate/indexes`: the indexes that are stored when someone writes those of `after`.
pub(crate) fn stored_indexes(version: Version, after: &Objects) -> [Option<u8>; N] {
    memo!(INDEXES: (Version, u128) => [Option<u8>; N], (version, after.bits()), {
        let mut value = json(version, Id::Template, after);
        let object = value.to_string();
        let review = updated(Id::Template, "status", &object, &object);
        let ruling = match indexes::preflight(&review) {
            Preflight::Decided(ruling) => ruling,
            Preflight::Ask(question) => {
                let contents = contents(version, after);
                let usage = contents.usage(&question.name);
                let occupancy = contents.occupancy(&question.indexes, &usage);
                indexes::judge(&review, &question, &Answer::Verified(occupancy))
            }
        };
        if let Verdict::Patch(patch) = &ruling.verdict {
            json_patch::patch(&mut value, patch).unwrap();
        }
        read_indexes(&value)
    })
}

fn updated<'a>(id: Id, subresource: &'a str, old: &'a str, object: &'a str) -> Review<'a> {
    Review {
        subresource,
        object: Some(object),
        old_object: Some(old),
        ..review(Operation::Update, id)
    }
}

fn review(operation: Operation, id: Id) -> Review<'static> {
    let kind = id.kind();
    Review {
        operation,
        group: kind.group(),
        resource: kind.resource(),
        kind: kind.name(),
        namespace: NS,
        user: "someone",
        ..Review::default()
    }
}
