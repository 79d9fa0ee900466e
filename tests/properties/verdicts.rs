//! Deletion and release against a second, naive statement of their rules on bare JSON.

use metal3_guard::core::{
    deletion,
    objects::{CLAIM_FINALIZER, Kind, TEMPLATE_FINALIZER},
    release,
    review::Operation,
    verdict::{Answer, Preflight},
};
use proptest::prelude::*;
use serde_json::Value;

use crate::world::{
    MOVE, TEMPLATE, World, a_template, a_world, cases, contents, has_finalizer, points_here,
    reference, review, terminating,
};

fn holders(world: &World) -> impl Iterator<Item = (Kind, &Value)> {
    world
        .iter()
        .filter(|((kind, _), value)| points_here(reference(*kind, value)))
        .map(|((kind, _), value)| (*kind, value))
}

/// Rules 5 to 7, one holder at a time.
fn holds(kind: Kind, holder: &Value, template: &Value) -> bool {
    let finalized = has_finalizer(template, TEMPLATE_FINALIZER);
    match kind {
        Kind::Machine => true,
        Kind::Claim => !terminating(holder) || !finalized,
        Kind::Data => !finalized,
        _ => false,
    }
}

proptest! {
    #![proptest_config(cases(384))]

    #[test]
    fn a_deletion_is_denied_if_and_only_if_something_holds(
        world in a_world(),
        template in a_template(),
    ) {
        let text = template.to_string();
        let sent = review(Operation::Delete, Kind::Template, None, Some(&text));
        let usage = contents(&world).usage(TEMPLATE);
        let held = holders(&world).any(|(kind, holder)| holds(kind, holder, &template));
        let passes = terminating(&template) || template["metadata"]["annotations"].get(MOVE).is_some();
        match deletion::preflight(&sent) {
            Preflight::Decided(ruling) => {
                prop_assert!(passes);
                prop_assert!(ruling.denial().is_none());
            }
            Preflight::Ask(question) => {
                prop_assert!(!passes);
                let ruling = deletion::judge(&question, &Answer::Verified(&usage));
                prop_assert_eq!(ruling.denial().is_some(), held);
                if let Some(denial) = ruling.denial() {
                    let count = holders(&world)
                        .filter(|(kind, holder)| holds(*kind, holder, &template))
                        .count();
                    prop_assert_eq!(denial.causes.len(), count);
                }
            }
        }
    }

    #[test]
    fn nothing_is_released_while_data_or_a_finalized_claim_is_left(world in a_world()) {
        let needed = holders(&world).any(|(kind, holder)| {
            kind == Kind::Data || kind == Kind::Claim && has_finalizer(holder, CLAIM_FINALIZER)
        });
        let usage = contents(&world).usage(TEMPLATE);
        prop_assert_eq!(release::may_release(&usage), !needed);
        let question = release::Question {
            namespace: "prod".into(), name: TEMPLATE.into(), uid: "u".into(),
        };
        let ruling = release::judge(&question, &Answer::Verified(&usage));
        prop_assert_eq!(ruling.denial().is_some(), needed);
    }
}
