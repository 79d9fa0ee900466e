use serde_json::json;

use super::*;
use crate::core::{
    objects::{FORCE_ANNOTATION, MOVE_ANNOTATION},
    testing::{DELETED, Make, claim, contents, data, machine, template},
};

fn report(objects: &[Make]) -> TemplateReport {
    let now = DELETED.parse::<Timestamp>().unwrap();
    super::template(&contents(objects), "workers", now)
}

fn moved(object: Make) -> Make {
    object.annotation(MOVE_ANNOTATION, "")
}

/// What clusterctl takes away follows its template; what stays behind waits for it for ever.
#[test]
fn a_missing_template_is_trouble_only_for_what_stays() {
    let machine = machine("w-0").uses("workers");
    let claim = claim("w-0").uses("workers");
    let data = data("workers-0").uses("workers").for_claim("w-0", 0);
    for (objects, health) in [
        (vec![machine.clone()], Health::Stuck),
        (vec![claim.clone()], Health::Stuck),
        (vec![moved(machine.clone())], Health::Ok),
        (vec![moved(claim.clone())], Health::Ok),
        (vec![moved(machine.clone()), moved(claim.clone())], Health::Ok),
        (vec![moved(machine.clone()), claim.clone()], Health::Stuck),
        (vec![machine, moved(claim.clone())], Health::Stuck),
        (vec![moved(claim), moved(data)], Health::Draining),
    ] {
        let told = report(&objects);
        assert_eq!((told.state, told.health), (State::Missing, health), "{objects:?}");
    }
}

#[test]
fn a_claim_that_capm3_has_let_go_is_no_hold() {
    let going = claim("w-0").uses("workers").terminating();
    for (claim, role) in [
        (claim("w-0").uses("workers"), "holds an index of it"),
        (going.clone().finalizers(&[CLAIM_FINALIZER]), "is draining"),
        (going.clone().finalizers(&["a.io/x"]), "is going, and CAPM3 is done with it (no hold)"),
    ] {
        assert_eq!(report(&[template("workers"), claim]).holders[0].role, role);
    }
    assert_eq!(report(&[template("workers").terminating(), going]).waits_for, [""; 0]);
}

#[test]
fn only_a_reason_forces_a_deletion() {
    let notes = |reason: &str| {
        let machine = machine("w-0").uses("workers");
        report(&[template("workers").annotation(FORCE_ANNOTATION, reason), machine]).notes
    };
    assert_eq!(notes("lost"), ["its deletion is forced by annotation: \"lost\""]);
    for empty in ["", " "] {
        let [note] = &*notes(empty) else { panic!("one note") };
        assert!(note.contains("forces nothing"), "{note}");
    }
}

/// v1beta2 allows it, and CAPM3 falls over it each time it looks. In v1beta1 it means 0.
#[test]
fn a_metal3data_without_an_index_is_told() {
    for (version, told) in [("v1beta1", false), ("v1beta2", true)] {
        let bare = data("workers-9").version(version).uses("workers");
        let whole = data("workers-1").version(version).uses("workers").for_claim("w-1", 1);
        let notes = report(&[template("workers"), bare, whole]).notes;
        assert_eq!(notes.iter().any(|it| it.ends_with("deleted: workers-9")), told, "{notes:?}");
    }
}

/// Programs read this: every key as in Kubernetes.
#[test]
fn keys_are_in_camel_case() {
    let away = json!({"name": "shared", "namespace": "elsewhere"});
    let objects = [template("workers"), machine("w-0").refers(away)];
    let now = DELETED.parse().unwrap();
    let told = serde_json::to_value(namespace("prod", &contents(&objects), None, now)).unwrap();
    let mut keys: Vec<_> = told.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["deadReferences", "namespace", "templates"]);
    assert_eq!(
        told["deadReferences"],
        json!([{"from": "Metal3Machine/w-0", "namespace": "elsewhere", "template": "shared"}])
    );
    let mut keys: Vec<_> =
        told["templates"][0].as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "byHand",
            "deletable",
            "finalizers",
            "health",
            "holders",
            "name",
            "nextLook",
            "notes",
            "since",
            "staleIndexes",
            "state",
            "steps",
            "waitsFor"
        ]
    );
}
