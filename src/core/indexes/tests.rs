use serde_json::{Value, json};

use super::*;
use crate::core::{
    testing::{Make, VERSIONS, claim, contents, data, outcome, review, template},
    verdict::{Unverified, Verdict},
};

/// The whole rule for a status write in a namespace with these objects: what is stored.
fn write(template: &Make, others: &[Make]) -> (Ruling<Patch>, Value) {
    let text = template.text();
    let sent = Review {
        subresource: "status",
        ..review(Operation::Update, Kind::Template, Some(&text), Some(&text))
    };
    let mut value = template.value();
    let ruling = match preflight(&sent) {
        Preflight::Decided(ruling) => ruling,
        Preflight::Ask(question) => {
            let contents = contents(others);
            let usage = contents.usage(&question.name);
            let occupancy = contents.occupancy(&question.indexes, &usage);
            judge(&sent, &question, &Answer::Verified(occupancy))
        }
    };
    if let Verdict::Patch(patch) = &ruling.verdict {
        json_patch::patch(&mut value, patch).unwrap();
    }
    (ruling, value)
}

fn status(indexes: &Value) -> Make {
    template("workers").set(&["status", "indexes"], indexes.clone())
}

/// CAPM3 counts Metal3Data, not claims: an entry with a Metal3Data behind it is true, and comes
/// back in the same second when it is pruned.
#[test]
fn an_entry_is_stale_only_without_claim_and_without_data() {
    for version in VERSIONS {
        let made = template("workers").version(version).indexes(&[("w-0", 0), ("w-1", 1)]);
        let pruned = template("workers").version(version).indexes(&[("w-0", 0)]);
        let keeper = claim("w-0").version(version).uses("workers");
        let the_claim = claim("w-1").version(version).uses("workers");
        let the_data = data("workers-1").version(version).uses("workers").for_claim("w-1", 1);
        for (others, kept) in [
            (vec![], false),
            (vec![the_claim.clone()], true),
            (vec![the_claim.clone().terminating()], true),
            (vec![the_data.clone()], true),
            (vec![the_data.clone().terminating()], true),
            (vec![the_claim, the_data], true),
            // Of another template, of no template, at another index.
            (vec![data("x").version(version).uses("masters").for_claim("w-1", 1)], false),
            (vec![data("x").version(version).for_claim("w-1", 1)], false),
            (vec![data("x").version(version).uses("workers").for_claim("w-1", 2)], false),
        ] {
            let others: Vec<_> = others.into_iter().chain([keeper.clone()]).collect();
            let (ruling, stored) = write(&made, &others);
            let (rule, stored_as) =
                if kept { ("indexes.current", &made) } else { ("indexes.pruned", &pruned) };
            assert_eq!(ruling.rule, rule, "{version} {others:?}");
            assert_eq!(stored, stored_as.value());
            assert!(!kept || ruling.verdict == Verdict::Allow, "no patch key at all");
        }
    }
}

/// v1beta1 does not write index 0; v1beta2 does, and there a missing index is none.
#[test]
fn index_0_is_missing_in_v1beta1_and_written_in_v1beta2() {
    let entry = template("workers").indexes(&[("w-0", 0)]);
    let old = data("workers-0").uses("workers").for_claim("gone", 0);
    assert!(old.value()["spec"].get("index").is_none(), "as CAPM3 writes it");
    assert_eq!(write(&entry, &[old]).0.rule, "indexes.current");

    let entry = template("workers").version("v1beta2").indexes(&[("w-0", 0)]);
    let new = data("workers-0").version("v1beta2").uses("workers").for_claim("gone", 0);
    assert_eq!(write(&entry, std::slice::from_ref(&new)).0.rule, "indexes.current");
    let without = new.set(&["spec", "index"], Value::Null);
    assert_eq!(write(&entry, &[without]).0.rule, "indexes.pruned");
}

/// CAPM3 #3209: the list may not be empty (minItems 1), so the last entry takes the key with it.
#[test]
fn capm3_3209_the_last_entry_takes_the_key_with_it() {
    for version in VERSIONS {
        let made = template("workers")
            .version(version)
            .indexes(&[("w-0", 0), ("w-1", 1)])
            .set(&["status", "lastUpdated"], "2026-01-01T00:00:00Z");
        let (ruling, stored) = write(&made, &[]);
        assert_eq!(ruling.rule, "indexes.pruned");
        assert_eq!(ruling.audit, [("indexes-pruned", "2".to_owned())]);
        assert_eq!(stored["status"], json!({"lastUpdated": "2026-01-01T00:00:00Z"}));
    }
}

#[test]
fn keys_are_escaped() {
    let made = status(&json!({"a/b": 1, "a~b": 2, "~1": 3, "": 4, "w-0": 5, "ä \"": 6}));
    let (ruling, stored) = write(&made, &[claim("w-0").uses("workers")]);
    assert_eq!(ruling.rule, "indexes.pruned");
    assert_eq!(stored["status"]["indexes"], json!({"w-0": 5}));
    let Verdict::Patch(patch) = ruling.verdict else { panic!("a patch") };
    let paths: Vec<_> = patch.0.iter().map(|it| it.path().to_string()).collect();
    for path in ["/status/indexes/a~1b", "/status/indexes/a~0b", "/status/indexes/~01"] {
        assert!(paths.iter().any(|it| it == path), "{path} {paths:?}");
    }
}

#[test]
fn a_list_is_pruned_by_position_whatever_lies_between() {
    let made = template("workers").version("v1beta2").set(
        &["status", "indexes"],
        json!([
            {"index": 0, "name": "gone"},
            {"index": 1, "name": "w-0", "note": "kept as it is"},
            {"index": 2},
            {"index": 3, "name": "gone"},
            "odd",
            {"index": "4", "name": "gone"},
            {"index": 5, "name": ""},
            {"index": 6, "name": "w-0"},
        ]),
    );
    let (ruling, stored) = write(&made, &[claim("w-0").uses("workers")]);
    assert_eq!(ruling.audit, [("indexes-pruned", "3".to_owned())]);
    assert_eq!(
        stored["status"]["indexes"],
        json!([
            {"index": 1, "name": "w-0", "note": "kept as it is"},
            {"index": 2},
            "odd",
            {"index": "4", "name": "gone"},
            {"index": 6, "name": "w-0"},
        ])
    );
}

#[test]
fn what_cannot_be_read_is_kept() {
    for odd in [json!({"gone": 1, "odd": "x"}), json!({"gone": 1, "odd": null})] {
        let (_, stored) = write(&status(&odd), &[]);
        assert_eq!(stored["status"]["indexes"], json!({"odd": odd["odd"]}));
    }
    for unreadable in [json!("x"), json!(7), json!(null), json!({}), json!([]), json!({"a": "x"})] {
        let (ruling, _) = write(&status(&unreadable), &[]);
        assert_eq!(outcome(&ruling), ("indexes.empty", None), "{unreadable}");
    }
    let (ruling, _) = write(&template("workers"), &[]);
    assert_eq!(ruling, Ruling::allow("indexes.empty"), "a status just restored by a move");
}

/// The server keeps the last of two equal keys, so that is the one to judge.
#[test]
fn the_last_of_two_equal_keys_is_judged() {
    for (indexes, stale) in [
        (r#"{"a":1,"a":2}"#, Some(2)),
        (r#"{"a":"x","a":2}"#, Some(2)),
        (r#"{"a":1,"a":"x"}"#, None),
    ] {
        let text = format!(
            r#"{{"apiVersion":"infrastructure.cluster.x-k8s.io/v1beta1","kind":"Metal3DataTemplate",
            "metadata":{{"name":"workers"}},"status":{{"indexes":{indexes}}}}}"#
        );
        let Object::Template(template) = Object::from_json(&text).unwrap() else {
            panic!("{text}")
        };
        let found = template.indexes.stale(&Occupancy::default());
        assert_eq!(found.first().map(|entry| entry.index), stale, "{indexes}");
        assert!(found.len() < 2);
    }
}

/// IP address manager #13, CAPM3 #3328: a write without a difference loops for ever.
#[test]
fn our_own_output_yields_no_patch() {
    for version in VERSIONS {
        let made = template("workers").version(version).indexes(&[("a", 0), ("b", 1), ("c", 2)]);
        let others = [claim("b").version(version).uses("workers")];
        let (first, stored) = write(&made, &others);
        assert_eq!(first.rule, "indexes.pruned");
        let again = template("workers")
            .version(version)
            .set(&["status", "indexes"], stored["status"]["indexes"].clone());
        assert_eq!(write(&again, &others).0.rule, "indexes.current");
    }
}

#[test]
fn unknown_means_keep() {
    let text = template("workers").indexes(&[("gone", 0)]).text();
    let sent = Review {
        subresource: "status",
        ..review(Operation::Update, Kind::Template, Some(&text), None)
    };
    let Preflight::Ask(question) = preflight(&sent) else { panic!("facts are needed") };
    let answer = Answer::Unverified(Unverified { why: "no answer".into() });
    assert_eq!(judge(&sent, &question, &answer), Ruling::allow("indexes.unverified"));
}

/// A patch that does not apply fails the whole write, even under failurePolicy Ignore.
#[test]
fn a_patch_that_does_not_apply_is_not_sent() {
    let text = template("workers").indexes(&[("gone", 0), ("w-0", 1)]).text();
    let sent = Review {
        subresource: "status",
        ..review(Operation::Update, Kind::Template, Some(&text), None)
    };
    let Preflight::Ask(question) = preflight(&sent) else { panic!("facts are needed") };
    let other = template("workers").text();
    for object in [Some(other.as_str()), Some("{"), None] {
        let ruling =
            judge(&Review { object, ..sent }, &question, &Answer::Verified(Occupancy::default()));
        assert_eq!(outcome(&ruling), ("indexes.patch_failed", None));
        assert!(!ruling.warnings.is_empty());
    }
}

/// Kubernetes #70084: on the main resource the server drops a status patch without a word.
#[test]
fn kubernetes_70084_only_status_writes_of_templates_are_touched() {
    let text = template("workers").indexes(&[("gone", 0)]).text();
    let sent = Review {
        subresource: "status",
        ..review(Operation::Update, Kind::Template, Some(&text), Some(&text))
    };
    for (review, rule) in [
        (Review { subresource: "", ..sent }, "indexes.not_status"),
        (Review { subresource: "scale", ..sent }, "indexes.not_status"),
        (Review { operation: Operation::Create, ..sent }, "indexes.not_ours"),
        (Review { operation: Operation::Delete, ..sent }, "indexes.not_ours"),
        (Review { resource: "metal3datas", ..sent }, "indexes.not_ours"),
        (Review { object: None, ..sent }, "indexes.no_object"),
        (Review { object: Some("7"), ..sent }, "indexes.no_object"),
        (Review { object: Some("{}"), ..sent }, "indexes.no_object"),
    ] {
        let Preflight::Decided(ruling) = preflight(&review) else { panic!("{review:?}") };
        assert_eq!(outcome(&ruling), (rule, None));
    }
}

#[test]
fn the_question_names_the_template() {
    let text = template("workers").indexes(&[("a", 3)]).text();
    let sent = Review {
        subresource: "status",
        ..review(Operation::Update, Kind::Template, Some(&text), None)
    };
    let Preflight::Ask(question) = preflight(&sent) else { panic!("facts are needed") };
    assert_eq!((&*question.namespace, &*question.name), ("prod", "workers"));
    assert_eq!(question.indexes.entries().len(), 1);
    assert_eq!(
        (&*question.indexes.entries()[0].claim, question.indexes.entries()[0].index),
        ("a", 3)
    );
}
