use super::*;
use crate::core::{
    objects::{FORCE_ANNOTATION, MOVE_ANNOTATION},
    testing::{
        Make, VERSIONS, bare_template, claim, data, machine, machine_template, outcome, review,
        template, usage,
    },
    verdict::Unverified,
};

fn dying() -> Make {
    template("workers").terminating()
}

fn released() -> Make {
    bare_template("workers").terminating()
}

fn decide(old: &Make, new: &Make) -> Preflight<Question> {
    let (old, new) = (old.text(), new.text());
    preflight(&review(Operation::Update, Kind::Template, Some(&new), Some(&old)))
}

fn decided(old: &Make, new: &Make) -> Ruling {
    match decide(old, new) {
        Preflight::Decided(ruling) => ruling,
        Preflight::Ask(question) => panic!("facts are not needed: {question:?}"),
    }
}

/// The whole rule for CAPM3's release in a namespace with these objects.
fn release(others: &[Make]) -> Ruling {
    let Preflight::Ask(question) = decide(&dying(), &released()) else {
        panic!("facts are needed")
    };
    judge(&question, &Answer::Verified(usage(others)))
}

/// Seen with CAPM3 1.8.1: the template released, three Metal3Data left that wait for it for ever.
#[test]
fn capm3_1994_a_release_with_data_left_is_refused() {
    for version in VERSIONS {
        let left = data("workers-0").version(version).uses("workers").for_claim("w-0", 0);
        for left in [left.clone(), left.terminating()] {
            let ruling = release(&[left]);
            assert_eq!(outcome(&ruling), ("release.needed", Some(403)));
            let message = &ruling.denial().unwrap().message;
            assert!(message.contains("1 Metal3Data: Metal3Data/workers-0."), "{message}");
            assert!(message.contains("prod/workers"), "{message}");
        }
    }
}

#[test]
fn a_release_with_a_finalized_claim_left_is_refused() {
    let held = claim("w-0").uses("workers").finalizers(&["a.io/x", CLAIM_FINALIZER]);
    for held in [held.clone(), held.terminating()] {
        assert_eq!(outcome(&release(&[held])), ("release.needed", Some(403)));
    }
}

#[test]
fn what_does_not_need_the_template_does_not_keep_it() {
    for other in [
        claim("w-0").uses("workers"),
        claim("w-0").uses("workers").terminating().finalizers(&["a.io/x"]),
        claim("w-0").uses("masters").finalizers(&[CLAIM_FINALIZER]),
        data("masters-0").uses("masters"),
        data("workers-0"),
        machine("w-0").uses("workers"),
        machine_template("md").uses("workers"),
    ] {
        assert_eq!(release(&[other]), Ruling::allow("release.free"));
    }
}

#[test]
fn may_release_is_what_the_hook_enforces() {
    let data = data("workers-0").uses("workers");
    let held = claim("w-0").uses("workers").finalizers(&[CLAIM_FINALIZER]);
    for (others, expected) in [
        (vec![], true),
        (vec![data.clone()], false),
        (vec![held.clone()], false),
        (vec![data, held], false),
    ] {
        assert_eq!(may_release(&usage(&others)), expected);
        assert_eq!(release(&others).denial().is_none(), expected);
    }
}

#[test]
fn the_denial_counts_by_kind_and_bounds_its_causes() {
    let mut left: Vec<_> =
        (0..150).map(|n| data(&format!("workers-{n:03}")).uses("workers")).collect();
    left.push(claim("w-0").uses("workers").finalizers(&[CLAIM_FINALIZER]));
    let ruling = release(&left);
    let denial = ruling.denial().unwrap();
    assert!(denial.message.contains("150 Metal3Data and 1 Metal3DataClaim"), "{}", denial.message);
    assert!(denial.message.contains("and 148 more"), "{}", denial.message);
    assert_eq!(denial.causes.len(), MAX_CAUSES);
    assert_eq!(denial.subject, Subject::template("prod", "workers", "uid-workers"));
}

#[test]
fn only_a_release_of_a_terminating_template_is_looked_at() {
    for (old, new, rule) in [
        (template("workers"), bare_template("workers"), "release.not_held"),
        (released(), released(), "release.not_held"),
        (released(), dying(), "release.not_held"),
        (dying(), dying(), "release.kept"),
        (dying(), dying().finalizers(&["a.io/x", TEMPLATE_FINALIZER]), "release.kept"),
    ] {
        assert_eq!(outcome(&decided(&old, &new)), (rule, None), "{old:?} {new:?}");
    }
    for version in VERSIONS {
        let old = template("workers").version(version).terminating();
        let others_kept = dying().finalizers(&["a.io/x"]);
        let Preflight::Ask(question) = decide(&old, &others_kept) else {
            panic!("facts are needed")
        };
        assert_eq!(
            (&*question.namespace, &*question.name, &*question.uid),
            ("prod", "workers", "uid-workers")
        );
    }
    let odd = dying().deleted_at("some day");
    assert!(matches!(decide(&odd, &released()), Preflight::Ask(_)));
}

/// Cluster API #11814: clusterctl strips after it has deleted, and must not be held up.
#[test]
fn capi_11814_a_move_and_a_reason_pass() {
    for (old, new) in [
        (dying().annotation(MOVE_ANNOTATION, ""), released()),
        (dying(), released().annotation(MOVE_ANNOTATION, "")),
    ] {
        let ruling = decided(&old, &new);
        assert_eq!(outcome(&ruling), ("release.moving", None));
        assert_eq!(ruling.audit.len(), 1);
    }
    for (old, new) in [
        (dying().annotation(FORCE_ANNOTATION, "INC-7"), released()),
        (dying(), released().annotation(FORCE_ANNOTATION, "INC-7")),
        (
            dying().annotation(FORCE_ANNOTATION, ""),
            released().annotation(FORCE_ANNOTATION, "INC-7"),
        ),
    ] {
        let ruling = decided(&old, &new);
        assert_eq!(outcome(&ruling), ("release.forced", None));
        assert_eq!(ruling.audit, [("force-delete-reason", "INC-7".to_owned())]);
        assert!(!ruling.warnings.is_empty());
    }
    for empty in ["", "  "] {
        let old = dying().annotation(FORCE_ANNOTATION, empty);
        assert!(matches!(decide(&old, &released()), Preflight::Ask(_)), "an empty reason is none");
    }
}

/// The hook is advisory: being down must not hold a template.
#[test]
fn unverified_is_allowed_with_a_warning() {
    let Preflight::Ask(question) = decide(&dying(), &released()) else {
        panic!("facts are needed")
    };
    let answer: Answer<std::sync::Arc<Usage>> =
        Answer::Unverified(Unverified { why: "no answer".into() });
    let ruling = judge(&question, &answer);
    assert_eq!(outcome(&ruling), ("release.unverified", None));
    assert!(ruling.warnings.sent()[0].starts_with("metal3-guard could not verify"));
}

#[test]
fn everything_else_is_allowed() {
    let (old, new) = (dying().text(), released().text());
    let sent = review(Operation::Update, Kind::Template, Some(&new), Some(&old));
    for (review, rule) in [
        (Review { operation: Operation::Delete, ..sent }, "release.not_ours"),
        (Review { operation: Operation::Create, ..sent }, "release.not_ours"),
        (Review { resource: "metal3datas", ..sent }, "release.not_ours"),
        (Review { subresource: "status", ..sent }, "release.subresource"),
        (Review { object: None, ..sent }, "release.no_object"),
        (Review { old_object: Some("[]"), ..sent }, "release.no_object"),
        (Review { old_object: None, ..sent }, "release.no_object"),
    ] {
        let Preflight::Decided(ruling) = preflight(&review) else { panic!("{review:?}") };
        assert_eq!(outcome(&ruling), (rule, None));
    }
}
