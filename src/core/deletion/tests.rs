use serde_json::json;

use super::*;
use crate::core::{
    objects::{CLAIM_FINALIZER, FORCE_ANNOTATION, MOVE_ANNOTATION},
    testing::{
        Make, VERSIONS, bare_template, claim, data, machine, machine_template, outcome, review,
        template, usage,
    },
};

const FREE: (&str, Option<u16>) = ("deletion.free", None);
const IN_USE: (&str, Option<u16>) = ("deletion.in_use", Some(403));

/// What `oldObject` alone decides; `None` when facts are needed.
fn decided(old: Option<&str>) -> Option<Ruling> {
    match preflight(&review(Operation::Delete, Kind::Template, None, old)) {
        Preflight::Decided(ruling) => Some(ruling),
        Preflight::Ask(_) => None,
    }
}

fn decided_for(template: &Make) -> Option<Ruling> {
    decided(Some(&template.text()))
}

fn asked(template: &Make) -> Question {
    let old = template.text();
    match preflight(&review(Operation::Delete, Kind::Template, None, Some(&old))) {
        Preflight::Ask(question) => question,
        Preflight::Decided(ruling) => panic!("decided without facts: {ruling:?}"),
    }
}

/// The whole rule for a template in a namespace with these objects.
fn rule(template: &Make, others: &[Make]) -> Ruling {
    judge(&asked(template), &Answer::Verified(usage(others)))
}

fn message(ruling: &Ruling) -> &str {
    &ruling.denial().unwrap().message
}

#[test]
fn step_1_no_object_is_allowed_with_a_warning() {
    for old in [None, Some("{}"), Some(r#"{"metadata":{}}"#), Some(r#"{"metadata":null}"#)] {
        let ruling = decided(old).unwrap();
        assert_eq!(outcome(&ruling), ("deletion.no_object", None), "{old:?}");
        assert!(!ruling.warnings.is_empty(), "{old:?}");
    }
}

#[test]
fn step_2_a_terminating_template_is_allowed_whatever_else_it_carries() {
    let dying = template("workers").terminating();
    for old in [
        dying.clone(),
        dying.clone().annotation(FORCE_ANNOTATION, ""),
        dying.clone().annotation(MOVE_ANNOTATION, ""),
        dying.clone().finalizers(&["foregroundDeletion"]),
        dying.deleted_at("some day"),
    ] {
        assert_eq!(outcome(&decided_for(&old).unwrap()), ("deletion.terminating", None));
    }
}

/// A denial aborts `clusterctl move` (IP address manager #137, in-cluster IPAM #140, Cluster API
/// #10300, #8109): the key counts, its value is empty.
#[test]
fn step_3_ipam_140_a_template_that_is_moved_is_allowed_without_a_look() {
    for version in VERSIONS {
        for value in [json!(""), json!("true"), json!(null), json!(7)] {
            let old = bare_template("workers").version(version).annotation(MOVE_ANNOTATION, value);
            let ruling = decided_for(&old).unwrap();
            assert_eq!(outcome(&ruling), ("deletion.moving", None));
            assert_eq!(ruling.audit.len(), 1);
            let forced = decided_for(&old.annotation(FORCE_ANNOTATION, "")).unwrap();
            assert_eq!(outcome(&forced), ("deletion.moving", None), "step 3 is before step 4");
        }
    }
}

#[test]
fn step_4_a_forced_deletion_needs_a_reason() {
    let forced = |reason: &str| template("workers").annotation(FORCE_ANNOTATION, reason);
    let ruling = decided_for(&forced("host burnt down, INC-7")).unwrap();
    assert_eq!(outcome(&ruling), ("deletion.forced", None));
    assert_eq!(ruling.audit, [("force-delete-reason", "host burnt down, INC-7".to_owned())]);
    assert!(ruling.warnings.sent()[0].contains("INC-7"));

    for empty in ["", " ", "\t\n"] {
        let ruling = decided_for(&forced(empty)).unwrap();
        assert_eq!(outcome(&ruling), ("deletion.force_without_reason", Some(403)));
        assert!(message(&ruling).contains("reason"), "{}", message(&ruling));
        assert!(message(&ruling).contains("prod/workers"));
    }
    // Not a text, so not an override either.
    assert_eq!(decided_for(&template("workers").annotation(FORCE_ANNOTATION, 5)), None);
}

/// Cluster API #5176, CAPM3 #1994: a template must not start to go while machines need it, and a
/// terminating machine still does: without its template its data could not be released.
#[test]
fn step_5_capm3_1994_every_machine_holds_terminating_or_not() {
    for version in VERSIONS {
        for holder in
            [machine("w-0").version(version), machine("w-0").version(version).terminating()]
        {
            for held in [template("workers"), bare_template("workers")] {
                let ruling = rule(&held, &[holder.clone().uses("workers")]);
                assert_eq!(outcome(&ruling), IN_USE, "{holder:?}");
                assert!(message(&ruling).contains("1 Metal3Machine: Metal3Machine/w-0."));
            }
        }
    }
}

#[test]
fn step_6_a_live_claim_holds_a_terminating_one_drains() {
    for version in VERSIONS {
        let live = claim("w-0").version(version).uses("workers");
        assert_eq!(outcome(&rule(&template("workers"), std::slice::from_ref(&live))), IN_USE);
        let draining = rule(&template("workers"), &[live.terminating()]);
        assert_eq!(outcome(&draining), FREE);
        assert!(draining.warnings.sent()[0].contains("1 Metal3DataClaim"));
    }
}

/// Seen once in 46: a template made right after its Cluster has no finalizer.
#[test]
fn step_7_without_capm3s_finalizer_claims_and_data_hold() {
    let unheld = [bare_template("workers"), bare_template("workers").finalizers(&["a.io/x"])];
    let dying_claim = claim("w-0").uses("workers").terminating().finalizers(&[CLAIM_FINALIZER]);
    for unheld in unheld {
        for version in VERSIONS {
            let live = data("workers-0").version(version).uses("workers").for_claim("w-0", 0);
            for holder in [live.clone(), live.terminating(), dying_claim.clone()] {
                let ruling = rule(&unheld, std::slice::from_ref(&holder));
                assert_eq!(outcome(&ruling), IN_USE, "{holder:?}");
                assert!(message(&ruling).contains("lacks CAPM3's finalizer"));
                assert_eq!(outcome(&rule(&template("workers"), &[holder])), FREE);
            }
        }
        assert_eq!(outcome(&rule(&unheld, &[])), FREE);
    }
}

#[test]
fn step_8_warns_of_what_drains_and_of_each_machine_template() {
    let ruling = rule(
        &template("workers"),
        &[
            claim("w-0").uses("workers").terminating(),
            data("workers-0").uses("workers"),
            data("workers-1").uses("workers").terminating(),
            machine_template("md-a").uses("workers"),
            machine_template("md-b").version("v1beta2").uses("workers"),
            machine_template("other").uses("masters"),
        ],
    );
    assert_eq!(outcome(&ruling), FREE);
    let warnings = ruling.warnings.sent();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].contains("1 Metal3DataClaim and 2 Metal3Data"));
    assert!(warnings[1].contains("md-a") && warnings[2].contains("md-b"));
    assert_eq!(rule(&template("workers"), &[]), Ruling::allow("deletion.free"));
}

/// Helm deletes Metal3DataTemplate before Metal3MachineTemplate, and so does `clusterctl move` at
/// random (Cluster API #11649): blocking on it would break every uninstall.
#[test]
fn a_machine_template_never_holds() {
    for version in VERSIONS {
        for held in [template("workers"), bare_template("workers")] {
            let user = machine_template("md").version(version).uses("workers");
            assert_eq!(outcome(&rule(&held, &[user])), FREE);
        }
    }
}

/// CAPM3 #3322: a reference to another namespace is never served, so it must not pin a template.
#[test]
fn references_that_do_not_count() {
    for reference in [
        json!({"name": "workers", "namespace": "elsewhere"}),
        json!({"name": "masters", "namespace": "prod"}),
        json!({"kind": "Secret", "name": "workers"}),
        json!({"namespace": "prod"}),
        json!({}),
        json!(null),
        json!("workers"),
    ] {
        let holders = [
            machine("w-0").refers(reference.clone()),
            claim("w-0").refers(reference.clone()),
            data("d-0").refers(reference.clone()),
        ];
        let ruling = rule(&bare_template("workers"), &holders);
        assert_eq!(ruling, Ruling::allow("deletion.free"), "{reference}");
    }
}

/// CAPM3 #3520: templates may be shared; the other cluster's machines count as well.
#[test]
fn capm3_3520_machines_of_another_cluster_hold_a_shared_template() {
    let theirs = machine("b-0").label("cluster.x-k8s.io/cluster-name", "b").uses("workers");
    let held = template("workers").set(&["spec", "clusterName"], "a");
    assert_eq!(outcome(&rule(&held, &[theirs])), IN_USE);
}

/// Kubernetes #63529: a collection deletion names nothing in the request.
#[test]
fn kubernetes_63529_identity_comes_from_the_old_object() {
    for version in VERSIONS {
        let question = asked(&template("workers").version(version));
        let Question { namespace, name, uid, finalized } = question;
        assert_eq!(
            (&*namespace, &*name, &*uid, finalized),
            ("prod", "workers", "uid-workers", true)
        );
    }
    assert!(!asked(&bare_template("workers")).finalized);

    let misnamed = template("workers").text();
    let sent = Review {
        name: "another",
        namespace: "elsewhere",
        ..review(Operation::Delete, Kind::Template, None, Some(&misnamed))
    };
    let Preflight::Ask(question) = preflight(&sent) else { panic!("facts are needed") };
    assert_eq!((&*question.namespace, &*question.name), ("prod", "workers"));
}

#[test]
fn a_template_without_a_name_is_looked_up_by_the_requests_or_not_at_all() {
    let nameless = r#"{"metadata":{"uid":"u"}}"#;
    let ruling = decided(Some(nameless)).unwrap();
    assert_eq!(outcome(&ruling), ("deletion.unreadable", Some(500)));
    let named = Review {
        name: "workers",
        ..review(Operation::Delete, Kind::Template, None, Some(nameless))
    };
    let Preflight::Ask(question) = preflight(&named) else { panic!("facts are needed") };
    assert_eq!((&*question.namespace, &*question.name), ("prod", "workers"));
}

#[test]
fn every_caller_gets_the_same_answer() {
    let old = template("workers").text();
    for user in [
        "system:serviceaccount:kube-system:namespace-controller",
        "system:serviceaccount:kube-system:generic-garbage-collector",
        "system:kube-controller-manager",
        "kubernetes-admin",
        "",
    ] {
        let sent = Review { user, ..review(Operation::Delete, Kind::Template, None, Some(&old)) };
        assert_eq!(preflight(&sent), Preflight::Ask(asked(&template("workers"))), "{user}");
    }
}

/// Cluster API #12060: a denial that names nobody is useless; one that names 5000 is no better.
#[test]
fn capi_12060_a_denial_names_the_first_three_and_counts_the_rest() {
    let users = |count: usize| -> Vec<_> {
        (0..count).rev().map(|n| machine(&format!("w-{n:04}")).uses("workers")).collect()
    };
    for (count, named) in [
        (1, "1 Metal3Machine: Metal3Machine/w-0000."),
        (3, "3 Metal3Machines: Metal3Machine/w-0000, Metal3Machine/w-0001, Metal3Machine/w-0002."),
        (
            4,
            "4 Metal3Machines: Metal3Machine/w-0000, Metal3Machine/w-0001, Metal3Machine/w-0002 \
             and 1 more.",
        ),
        (
            5000,
            "5000 Metal3Machines: Metal3Machine/w-0000, Metal3Machine/w-0001, Metal3Machine/w-0002 \
             and 4997 more.",
        ),
    ] {
        let ruling = rule(&template("workers"), &users(count));
        let denial = ruling.denial().unwrap();
        assert!(denial.message.contains(named), "{}", denial.message);
        assert!(denial.message.starts_with("Metal3DataTemplate prod/workers is in use by "));
        assert!(denial.message.len() < 1024);
        assert_eq!(denial.causes.len(), count.min(MAX_CAUSES));
        assert_eq!(denial.subject, Subject::template("prod", "workers", "uid-workers"));
        assert_eq!((denial.code.reason(), denial.retry_after), ("Forbidden", None));
    }
}

#[test]
fn holders_are_sorted_by_kind_and_name_and_causes_say_which_field() {
    let ruling = rule(
        &bare_template("workers"),
        &[
            machine("a").uses("workers").terminating(),
            claim("z").uses("workers"),
            claim("b").uses("workers").terminating(),
            data("c").uses("workers"),
        ],
    );
    let denial = ruling.denial().unwrap();
    assert!(
        denial.message.contains(
            "1 Metal3Machine, 2 Metal3DataClaims and 1 Metal3Data: Metal3Data/c, \
             Metal3DataClaim/b, Metal3DataClaim/z and 1 more."
        ),
        "{}",
        denial.message
    );
    let causes: Vec<_> =
        denial.causes.iter().map(|it| (it.reason, it.message.as_str(), it.field)).collect();
    assert_eq!(
        causes,
        [
            ("InUse", "Metal3Data/c", "spec.template"),
            ("InUse", "Metal3DataClaim/b, terminating since 2026-01-01T00:00:00Z", "spec.template"),
            ("InUse", "Metal3DataClaim/z", "spec.template"),
            (
                "InUse",
                "Metal3Machine/a, terminating since 2026-01-01T00:00:00Z",
                "spec.dataTemplate"
            ),
        ]
    );
}

/// CAPM3 #705: what a caller may retry must look like it, and never like 404 or 409.
#[test]
fn unverified_is_a_503_that_says_to_retry() {
    let why = "the API server did not answer within 3.5 s".to_owned();
    let answer: Answer<std::sync::Arc<Usage>> = Answer::Unverified(Unverified { why });
    let ruling = judge(&asked(&template("workers")), &answer);
    assert_eq!(outcome(&ruling), ("deletion.unverified", Some(503)));
    let denial = ruling.denial().unwrap();
    assert_eq!(denial.code.reason(), "ServiceUnavailable");
    assert!(denial.retry_after.is_some_and(|seconds| seconds > 0));
    for part in ["could not verify", "did not answer within 3.5 s", "retry"] {
        assert!(denial.message.contains(part), "{}", denial.message);
    }
}

/// shipper #113: what cannot be read is our failure, not a policy.
#[test]
fn what_is_not_an_object_is_a_500() {
    for old in ["[]", "7", "\"workers\"", "{", "", r#"{"metadata":{},"metadata":{}}"#] {
        let ruling = decided(Some(old)).unwrap();
        assert_eq!(outcome(&ruling), ("deletion.unreadable", Some(500)), "{old}");
        assert!(message(&ruling).contains("oldObject"));
    }
    let list = r#"{"kind":"Metal3DataTemplateList","items":[]}"#;
    assert_eq!(outcome(&decided(Some(list)).unwrap()), ("deletion.unreadable", Some(500)));
}

/// Kyverno #10576, Cluster API #7423: an object that today's schema refuses is judged all the same.
#[test]
fn an_object_that_is_odd_is_still_protected() {
    let odd = template("workers")
        .set(&["spec"], 5)
        .set(&["status"], json!({"indexes": "none", "lastUpdated": []}))
        .set(&["metadata", "labels"], json!([1]))
        .set(&["metadata", "ownerReferences"], "me");
    assert_eq!(outcome(&rule(&odd, &[machine("w-0").uses("workers")])), IN_USE);
}

#[test]
fn reviews_of_something_else_are_allowed_with_a_warning() {
    let old = template("workers").text();
    let ours = review(Operation::Delete, Kind::Template, None, Some(&old));
    for sent in [
        Review { operation: Operation::Update, ..ours },
        Review { operation: Operation::Create, ..ours },
        Review { operation: Operation::Other, ..ours },
        Review { resource: "metal3datas", ..ours },
        Review { group: "example.io", ..ours },
        Review { subresource: "status", ..ours },
    ] {
        let Preflight::Decided(ruling) = preflight(&sent) else { panic!("{sent:?}") };
        assert_eq!(outcome(&ruling), ("deletion.not_ours", None));
        assert!(!ruling.warnings.is_empty());
    }
}
