use serde_json::{Value, json};

use super::*;
use crate::core::{
    objects::{CLUSTER_LABEL, MOVE_ANNOTATION, PAUSED_ANNOTATION, TEMPLATE_FINALIZER},
    testing::{
        Make, VERSIONS, claim, cluster, contents, data, machine, machine_template, outcome, review,
        template,
    },
    verdict::Unverified,
};

type MakeOne = fn(&str) -> Make;
const REFERRERS: [(Kind, MakeOne); 3] =
    [(Kind::Machine, machine), (Kind::Claim, claim), (Kind::MachineTemplate, machine_template)];

/// The whole rule for a write in a namespace with these objects, and whether it asked.
fn write(kind: Kind, old: Option<&Make>, new: &Make, others: &[Make]) -> (Ruling, bool) {
    let (old, new) = (old.map(Make::text), new.text());
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    match preflight(&review(operation, kind, Some(&new), old.as_deref())) {
        Preflight::Decided(ruling) => (ruling, false),
        Preflight::Ask(question) => {
            let contents = contents(others);
            let target = contents.target(&question.template, question.cluster.as_deref());
            (judge(&question, &Answer::Verified(target)), true)
        }
    }
}

fn dying() -> Make {
    template("workers").terminating()
}

#[test]
fn a_new_reference_to_a_terminating_template_is_refused() {
    for version in VERSIONS {
        for (kind, make) in REFERRERS {
            let new = make("w-0").version(version).uses("workers");
            let before = [
                None,
                Some(make("w-0").version(version)),
                Some(make("w-0").version(version).uses("masters")),
                Some(make("w-0").refers(json!({"name": "workers", "namespace": "elsewhere"}))),
                Some(make("w-0").refers(json!({"name": "workers", "kind": "Secret"}))),
            ];
            for old in before {
                let (ruling, _) = write(kind, old.as_ref(), &new, &[dying()]);
                if kind == Kind::MachineTemplate {
                    assert_eq!(outcome(&ruling), ("references.machine_template", None));
                    assert!(ruling.warnings.sent()[0].contains("being deleted"));
                } else {
                    assert_eq!(outcome(&ruling), ("references.terminating", Some(403)));
                }
            }
        }
    }
}

#[test]
fn the_denial_names_both_objects_and_what_to_do() {
    let (ruling, _) = write(Kind::Machine, None, &machine("w-0").uses("workers"), &[dying()]);
    let denial = ruling.denial().unwrap();
    for part in ["prod/workers", "2026-01-01T00:00:00Z", "Metal3Machine w-0", "Use another"] {
        assert!(denial.message.contains(part), "{}", denial.message);
    }
    assert_eq!(
        (denial.subject.kind.as_str(), denial.subject.name.as_str()),
        ("Metal3Machine", "w-0")
    );
    assert_eq!(denial.causes[0].field, "spec.dataTemplate");
    let (ruling, _) = write(Kind::Claim, None, &claim("w-0").uses("workers"), &[dying()]);
    assert_eq!(ruling.denial().unwrap().causes[0].field, "spec.template");
}

#[test]
fn a_missing_template_is_allowed_with_a_warning_and_a_live_one_without() {
    for (kind, make) in REFERRERS {
        let new = make("w-0").uses("workers");
        let (ruling, _) = write(kind, None, &new, &[]);
        assert_eq!(outcome(&ruling), ("references.missing", None));
        assert!(!ruling.warnings.is_empty());
        let (ruling, _) = write(kind, None, &new, &[template("workers")]);
        assert_eq!(ruling, Ruling::allow("references.live"));
    }
}

#[test]
fn an_update_that_keeps_the_reference_asks_nothing() {
    for (kind, make) in REFERRERS {
        let plain = make("w-0").uses("workers");
        let short = make("w-0").version("v1beta2").uses("workers");
        for (old, new) in [
            (&plain, &plain),
            // CAPM3 fills in the namespace; a conversion drops kind and apiVersion.
            (&short, &plain),
            (&plain, &short),
            (&plain, &plain.clone().terminating().finalizers(&[])),
        ] {
            let (ruling, asked) = write(kind, Some(old), new, &[dying()]);
            assert_eq!((outcome(&ruling), asked), (("references.unchanged", None), false));
        }
        let (ruling, asked) = write(kind, Some(&plain), &make("w-0"), &[dying()]);
        assert_eq!((outcome(&ruling), asked), (("references.none", None), false));
    }
}

/// CAPM3 #3603: on the target of a move the Cluster is paused while its objects come back.
#[test]
fn capm3_3603_a_moved_or_paused_owner_is_allowed() {
    let new = machine("w-0").uses("workers");
    for marked in [MOVE_ANNOTATION, PAUSED_ANNOTATION] {
        let (ruling, asked) =
            write(Kind::Machine, None, &new.clone().annotation(marked, ""), &[dying()]);
        assert_eq!((outcome(&ruling), asked), (("references.paused", None), false));
    }
    let of_cluster = new.clone().label(CLUSTER_LABEL, "c");
    for (clusters, expected) in [
        (vec![cluster("c").set(&["spec", "paused"], true)], None),
        (vec![cluster("c").annotation(PAUSED_ANNOTATION, "")], None),
        (vec![cluster("c")], Some(403)),
        (vec![cluster("c").set(&["spec", "paused"], "true")], Some(403)),
        (vec![cluster("other").set(&["spec", "paused"], true)], Some(403)),
        (vec![], Some(403)),
    ] {
        let others: Vec<_> = clusters.into_iter().chain([dying()]).collect();
        let (ruling, _) = write(Kind::Machine, None, &of_cluster, &others);
        assert_eq!(outcome(&ruling).1, expected, "{others:?}");
    }
    for moved in [dying(), template("workers")] {
        let (ruling, _) =
            write(Kind::Machine, None, &new, &[moved.annotation(MOVE_ANNOTATION, "")]);
        assert_eq!(outcome(&ruling), ("references.moving", None));
    }
}

/// CAPM3 #3322: never follow a namespace from user data.
#[test]
fn capm3_3322_a_reference_to_another_namespace_asks_nothing_and_warns() {
    for (kind, make) in REFERRERS {
        let new = make("w-0").refers(json!({"name": "workers", "namespace": "elsewhere"}));
        let (ruling, asked) = write(kind, None, &new, &[dying()]);
        assert_eq!((outcome(&ruling), asked), (("references.elsewhere", None), false));
        assert!(!ruling.warnings.is_empty());
    }
}

#[test]
fn what_names_no_template_is_allowed() {
    for reference in [
        json!({}),
        Value::Null,
        json!({"name": ""}),
        json!(["workers"]),
        json!({"kind": "X", "name": "workers"}),
    ] {
        for (kind, make) in REFERRERS {
            let (ruling, asked) =
                write(kind, None, &make("w-0").refers(reference.clone()), &[dying()]);
            assert_eq!((outcome(&ruling), asked), (("references.none", None), false));
        }
    }
}

#[test]
fn an_object_without_namespace_or_name_takes_them_from_the_request() {
    let text = r#"{"apiVersion":"infrastructure.cluster.x-k8s.io/v1beta2","kind":"Metal3Machine",
        "metadata":{"generateName":"w-"},"spec":{"dataTemplate":{"name":"workers","namespace":"prod"}}}"#;
    let sent = review(Operation::Create, Kind::Machine, Some(text), None);
    let Preflight::Ask(question) = preflight(&sent) else { panic!("facts are needed") };
    assert_eq!((&*question.namespace, &*question.template), ("prod", "workers"));
    assert_eq!(&*question.referrer_name, "");
}

#[test]
fn unverified_is_allowed_with_a_warning() {
    let text = machine("w-0").uses("workers").text();
    let sent = review(Operation::Create, Kind::Machine, Some(&text), None);
    let Preflight::Ask(question) = preflight(&sent) else { panic!("facts are needed") };
    let ruling = judge(&question, &Answer::Unverified(Unverified { why: "no answer".into() }));
    assert_eq!(outcome(&ruling), ("references.unverified", None));
    assert!(ruling.warnings.sent()[0].contains("no answer"));
}

#[test]
fn everything_else_is_not_ours() {
    let text = machine("w-0").uses("workers").text();
    let sent = review(Operation::Create, Kind::Machine, Some(&text), None);
    for (review, rule) in [
        (Review { operation: Operation::Delete, ..sent }, "references.not_ours"),
        (Review { operation: Operation::Other, ..sent }, "references.not_ours"),
        (Review { resource: "metal3datas", ..sent }, "references.not_ours"),
        (Review { resource: "metal3datatemplates", ..sent }, "references.not_ours"),
        (Review { group: "example.io", ..sent }, "references.not_ours"),
        (Review { subresource: "status", ..sent }, "references.subresource"),
        (Review { object: None, ..sent }, "references.no_object"),
        (Review { object: Some("{"), ..sent }, "references.no_object"),
    ] {
        let Preflight::Decided(ruling) = preflight(&review) else { panic!("{review:?}") };
        assert_eq!(outcome(&ruling), (rule, None));
    }
    // The body is not of the kind that the resource promises.
    let other = data("workers-0").uses("workers").finalizers(&[TEMPLATE_FINALIZER]).text();
    let Preflight::Decided(ruling) = preflight(&Review { object: Some(&other), ..sent }) else {
        panic!("decided")
    };
    assert_eq!(outcome(&ruling), ("references.none", None));
}
