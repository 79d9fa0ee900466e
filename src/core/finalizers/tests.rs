use serde_json::{Value, json};

use super::*;
use crate::core::{
    objects::{CLAIM_FINALIZER, DATA_FINALIZER, Kind, MOVE_ANNOTATION, TEMPLATE_FINALIZER},
    testing::{DELETED, Make, VERSIONS, bare_template, cluster, outcome, review},
};

const CLUSTER_FINALIZER: &str = "cluster.cluster.x-k8s.io";
const NONE_ADDED: (&str, Option<u16>) = ("finalizers.none_added", None);

/// One update, through both hooks; they must agree.
fn update(kind: Kind, old: &Make, new: &Make) -> Ruling {
    let (old, new) = (old.text(), new.text());
    let sent = review(Operation::Update, kind, Some(&new), Some(&old));
    let ruling = validate(&sent);
    assert_eq!(mutate(&sent, Additions::Deny), ruling.clone().widen());
    ruling
}

fn strip(kind: Kind, old: &Make, new: &Make) -> (Ruling<Patch>, Value) {
    let (old, text) = (old.text(), new.text());
    let sent = review(Operation::Update, kind, Some(&text), Some(&old));
    let ruling = mutate(&sent, Additions::Strip);
    let mut value = new.value();
    if let Verdict::Patch(patch) = &ruling.verdict {
        json_patch::patch(&mut value, patch).unwrap();
    }
    (ruling, value)
}

/// The old objects that refuse additions.
fn closed() -> [Make; 2] {
    [
        bare_template("workers").terminating(),
        bare_template("workers").annotation(MOVE_ANNOTATION, ""),
    ]
}

/// Cluster API #7423, machine-api-operator #996 and many more: a hook that keeps a finalizer from
/// being removed makes the object immortal.
#[test]
fn capi_11814_removal_reorder_and_duplicates_are_always_allowed() {
    for old in closed() {
        let old = old.finalizers(&["a.io/x", "b.io/y", "foregroundDeletion"]);
        for new in [
            &["a.io/x", "b.io/y", "foregroundDeletion"][..],
            &["foregroundDeletion", "b.io/y", "a.io/x"],
            &["a.io/x", "a.io/x", "b.io/y"],
            &["b.io/y"],
            &[],
        ] {
            let new = old.clone().finalizers(new).set(&["spec"], "of no known schema");
            assert_eq!(outcome(&update(Kind::Template, &old, &new)), NONE_ADDED, "{new:?}");
        }
        let without_key = bare_template("workers");
        assert_eq!(outcome(&update(Kind::Template, &old, &without_key)), NONE_ADDED);
        let null = old.clone().set(&["metadata", "finalizers"], Value::Null);
        assert_eq!(outcome(&update(Kind::Template, &old, &null)), NONE_ADDED);
    }
}

#[test]
fn a_live_object_takes_any_finalizer() {
    let old = bare_template("workers");
    let new = old.clone().finalizers(&["a.io/x", TEMPLATE_FINALIZER]);
    assert_eq!(outcome(&update(Kind::Template, &old, &new)), ("finalizers.live", None));
}

/// Cluster API #8949: a controller that does not look at deletionTimestamp.
#[test]
fn capi_8949_an_addition_to_a_terminating_object_is_invalid() {
    for version in VERSIONS {
        let old =
            bare_template("workers").version(version).terminating().finalizers(&["kept.io/k"]);
        let new = old.clone().finalizers(&["kept.io/k", "a.io/x", "b.io/y", "a.io/x"]);
        let ruling = update(Kind::Template, &old, &new);
        assert_eq!(outcome(&ruling), ("finalizers.terminating", Some(422)));
        let denial = ruling.denial().unwrap();
        assert_eq!(denial.code.reason(), "Invalid");
        for part in ["prod/workers", DELETED, "finalizers a.io/x and b.io/y", "someone"] {
            assert!(denial.message.contains(part), "{part}: {}", denial.message);
        }
        assert!(!denial.message.contains("kept.io/k"));
        let [cause] = denial.causes.as_slice() else { panic!("{:?}", denial.causes) };
        assert_eq!((cause.reason, cause.field), ("FieldValueForbidden", "metadata.finalizers"));
        // For an Invalid status this is all that kubectl shows, after the object's name.
        let text = format!(
            "the object is being deleted since {DELETED}: finalizers a.io/x and b.io/y, added by \
             someone, would keep it from going. A controller must look at deletionTimestamp before \
             it adds a finalizer"
        );
        assert_eq!(cause.message, text);
        assert_eq!(denial.subject.uid, "uid-workers");
    }
}

/// Cluster API #11812: the Cluster controller puts its finalizer back between strip and delete.
#[test]
fn capi_11812_an_addition_to_an_object_that_is_moved_away_is_invalid() {
    for value in [json!(""), json!("true"), json!(null)] {
        let old = cluster("prod").annotation(MOVE_ANNOTATION, value);
        let new = old.clone().finalizers(&[CLUSTER_FINALIZER]);
        let ruling = update(Kind::Cluster, &old, &new);
        assert_eq!(outcome(&ruling), ("finalizers.moving", Some(422)));
        let denial = ruling.denial().unwrap();
        assert!(denial.message.contains("moved away"), "{}", denial.message);
        assert!(denial.message.contains(CLUSTER_FINALIZER));
        let [cause] = denial.causes.as_slice() else { panic!("{:?}", denial.causes) };
        assert_eq!((cause.reason, cause.field), ("FieldValueForbidden", "metadata.finalizers"));
        let text = format!(
            "the object is being moved away by clusterctl (annotation {MOVE_ANNOTATION}): finalizer \
             {CLUSTER_FINALIZER}, added by someone, would leave it terminating here for ever. If \
             no move is running, remove that annotation first"
        );
        assert_eq!(cause.message, text);
    }
}

/// `object` is what the client sent: a PUT may leave the deletionTimestamp out or make one up.
#[test]
fn the_old_object_alone_says_whether_it_is_going() {
    let live = bare_template("workers");
    for new in [live.clone().terminating(), live.clone().annotation(MOVE_ANNOTATION, "")] {
        let new = new.finalizers(&["a.io/x"]);
        assert_eq!(outcome(&update(Kind::Template, &live, &new)), ("finalizers.live", None));
    }
    for old in closed() {
        let new = live.clone().finalizers(&["a.io/x"]);
        assert_eq!(outcome(&update(Kind::Template, &old, &new)).1, Some(422));
    }
    let unreadable = bare_template("workers").deleted_at("some day");
    let ruling = update(Kind::Template, &unreadable, &live.finalizers(&["a.io/x"]));
    assert_eq!(outcome(&ruling), ("finalizers.terminating", Some(422)));
    assert!(ruling.denial().unwrap().message.contains("unreadable"));
}

/// The server drops metadata changes of a status write: a stale copy there means nothing.
#[test]
fn subresource_requests_are_allowed() {
    for old in closed() {
        let new = old.clone().finalizers(&["a.io/x"]).text();
        let old = old.text();
        for subresource in ["status", "scale"] {
            let sent = Review {
                subresource,
                ..review(Operation::Update, Kind::Template, Some(&new), Some(&old))
            };
            assert_eq!(outcome(&validate(&sent)), ("finalizers.subresource", None));
            let stripped = mutate(&sent, Additions::Strip);
            assert_eq!(outcome(&stripped), ("finalizers.subresource", None));
        }
    }
}

/// Seen in every foreground delete: the garbage collector and CAPM3 write from stale copies.
#[test]
fn own_and_built_in_finalizers_count_as_a_stale_copy() {
    const STALE: &str = "finalizers.stale_copy";
    const REFUSED: &str = "finalizers.terminating";
    let infra = "infrastructure.cluster.x-k8s.io";
    for (group, added, rule) in [
        (infra, &[TEMPLATE_FINALIZER][..], STALE),
        (infra, &["foregroundDeletion"], STALE),
        (infra, &["orphan", CLAIM_FINALIZER, DATA_FINALIZER], STALE),
        (infra, &[TEMPLATE_FINALIZER, "a.io/x"], REFUSED),
        (infra, &[CLUSTER_FINALIZER], REFUSED),
        (infra, &["infrastructure.cluster.x-k8s.io/old-style"], STALE),
        (infra, &["x.evilinfrastructure.cluster.x-k8s.io"], REFUSED),
        ("cluster.x-k8s.io", &[CLUSTER_FINALIZER], STALE),
        ("cluster.x-k8s.io", &["machine.cluster.x-k8s.io"], STALE),
        ("cluster.x-k8s.io", &[TEMPLATE_FINALIZER], REFUSED),
        ("controlplane.cluster.x-k8s.io", &["kubeadm.controlplane.cluster.x-k8s.io"], STALE),
        ("controlplane.cluster.x-k8s.io", &[CLUSTER_FINALIZER], REFUSED),
        ("ipam.metal3.io", &["ippool.ipam.metal3.io"], STALE),
        ("ipam.metal3.io", &[DATA_FINALIZER], REFUSED),
        ("metal3.io", &["baremetalhost.metal3.io"], STALE),
        ("metal3.io", &["ippool.ipam.metal3.io"], REFUSED),
        ("", &["x"], REFUSED),
    ] {
        let old = bare_template("workers").terminating().text();
        let new = bare_template("workers").finalizers(added).text();
        let sent =
            Review { group, ..review(Operation::Update, Kind::Template, Some(&new), Some(&old)) };
        assert_eq!(outcome(&validate(&sent)), (rule, Some(422)), "{group} {added:?}");
    }
    // In a move nobody but the guard refuses it: that is the race itself, not noise.
    let old = cluster("prod").annotation(MOVE_ANNOTATION, "");
    let ruling = update(Kind::Cluster, &old, &old.clone().finalizers(&["foregroundDeletion"]));
    assert_eq!(ruling.rule, "finalizers.moving");
}

#[test]
fn strip_removes_exactly_what_was_added() {
    for old in closed() {
        let old = old.finalizers(&["kept.io/a", "gone.io/b"]);
        let new = old
            .clone()
            .finalizers(&["a.io/x", "kept.io/a", "b.io/~/y", "kept.io/a", "a.io/x"])
            .set(&["spec", "unknown"], json!({"field": [1, null]}));
        let (ruling, patched) = strip(Kind::Template, &old, &new);
        assert!(matches!(ruling.verdict, Verdict::Patch(_)), "{ruling:?}");
        assert!(ruling.rule.starts_with("finalizers.stripped_"));
        assert_eq!(patched, new.clone().finalizers(&["kept.io/a", "kept.io/a"]).value());
        assert!(ruling.warnings.sent()[0].contains("a.io/x and b.io/~/y"));
        assert_eq!(ruling.audit.len(), 1);
    }
    let old = bare_template("workers").terminating();
    let (_, patched) = strip(Kind::Template, &old, &old.clone().finalizers(&["a.io/x"]));
    assert_eq!(patched["metadata"]["finalizers"], json!([]));
}

#[test]
fn strip_changes_nothing_that_is_allowed() {
    for (old, new) in [
        (bare_template("workers"), bare_template("workers").finalizers(&["a.io/x"])),
        (closed()[0].clone().finalizers(&["a.io/x"]), closed()[0].clone()),
    ] {
        let (ruling, _) = strip(Kind::Template, &old, &new);
        assert_eq!(ruling.verdict, Verdict::Allow);
    }
}

#[test]
fn other_operations_and_unreadable_objects_are_allowed() {
    let old = closed()[0].clone().text();
    let new = closed()[0].clone().finalizers(&["a.io/x"]).text();
    let sent = review(Operation::Update, Kind::Template, Some(&new), Some(&old));
    for operation in [Operation::Create, Operation::Delete, Operation::Other] {
        let ruling = validate(&Review { operation, ..sent });
        assert_eq!(outcome(&ruling), ("finalizers.not_ours", None));
        assert!(!ruling.warnings.is_empty());
        let mutating = mutate(&Review { operation, ..sent }, Additions::Strip);
        assert_eq!(outcome(&mutating), ("finalizers.not_ours", None));
    }
    for (object, old_object) in [
        (None, Some(old.as_str())),
        (Some(new.as_str()), None),
        (Some("{"), Some(old.as_str())),
        (Some(new.as_str()), Some("[]")),
        (Some(r#"{"kind":"List","items":[]}"#), Some(old.as_str())),
    ] {
        let ruling = validate(&Review { object, old_object, ..sent });
        assert_eq!(outcome(&ruling), ("finalizers.no_object", None), "{object:?} {old_object:?}");
    }
}

#[test]
fn any_kind_of_any_group_is_judged() {
    let json = |finalizers: &str| {
        format!(
            r#"{{"apiVersion":"bootstrap.cluster.x-k8s.io/v1beta2","kind":"KubeadmConfig","metadata":
            {{"name":"k","deletionTimestamp":"{DELETED}","finalizers":[{finalizers}]}}}}"#
        )
    };
    let (old, new) = (json(""), json(r#""a.io/x", 5, null"#));
    let sent = Review {
        operation: Operation::Update,
        group: "bootstrap.cluster.x-k8s.io",
        resource: "kubeadmconfigs",
        kind: "KubeadmConfig",
        object: Some(&new),
        old_object: Some(&old),
        ..Review::default()
    };
    let ruling = validate(&sent);
    assert_eq!(outcome(&ruling), ("finalizers.terminating", Some(422)));
    assert!(ruling.denial().unwrap().message.starts_with("KubeadmConfig k is being deleted"));
}

/// The writer is the newest field manager that owns an added finalizer, not the newest of all.
#[test]
fn the_field_manager_that_added_it_is_named() {
    let entry = |manager: &str, time: &str, finalizer: &str| {
        json!({"manager": manager, "operation": "Update", "time": time, "fieldsV1":
            {"f:metadata": {"f:finalizers": {".": {}, format!("v:\"{finalizer}\""): {}}}}})
    };
    let old = closed()[0].clone();
    let new = old.clone().finalizers(&["a.io/x"]).set(
        &["metadata", "managedFields"],
        json!([
            entry("older", "2026-01-01T00:00:01Z", "a.io/x"),
            entry("culprit", "2026-01-01T00:00:02Z", "a.io/x"),
            entry("bystander", "2026-01-01T00:00:09Z", "a.io/other"),
            {"manager": "odd", "time": 5, "fieldsV1": []},
            7,
        ]),
    );
    let message = update(Kind::Template, &old, &new).denial().unwrap().message.clone();
    assert!(message.contains("added by field manager culprit (someone)"), "{message}");

    let unmanaged = old.clone().finalizers(&["a.io/x"]);
    let message = update(Kind::Template, &old, &unmanaged).denial().unwrap().message.clone();
    assert!(message.contains("added by someone"), "{message}");
}

#[test]
fn many_finalizers_are_counted_not_listed() {
    let many: Vec<_> = (0..40).map(|n| format!("a.io/{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let old = closed()[0].clone();
    let ruling = update(Kind::Template, &old, &old.clone().finalizers(&many));
    let message = &ruling.denial().unwrap().message;
    assert!(message.contains("a.io/4 and 35 more"), "{message}");
    assert!(!message.contains("a.io/5"), "{message}");
}
