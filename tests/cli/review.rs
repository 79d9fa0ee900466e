//! `review`: files in, verdicts out.

use std::{collections::BTreeMap, fs};

use serde_json::Value;

use crate::support::{check, root, run, run_with_stdin};

const STATE: &str = "tests/data/states/v1beta1";

fn case(name: &str) -> String {
    format!("tests/data/reviews/{name}/review.json")
}

#[test]
fn a_template_in_use_is_denied_with_its_holders_and_a_free_one_allowed() {
    let denied = run(&["review", &case("delete-in-use"), "--state", STATE]);
    assert_eq!(denied.code, 1);
    for holder in ["Metal3Machine/cp-0", "Metal3DataClaim/cp-0"] {
        assert!(denied.stdout.contains(holder), "{}", denied.stdout);
    }
    let free = run(&["review", &case("delete-free"), "--state", STATE]);
    assert_eq!(free.code, 0);
    assert!(free.stdout.starts_with("ALLOWED  DELETE Metal3DataTemplate prod/spare"));
    check("review-in-use", &denied);
    check("review-free", &free);
}

#[test]
fn every_form_of_output() {
    for (name, case_name, more) in [
        ("review-finalizer", "finalizer-added-terminating-apply", &[][..]),
        (
            "review-finalizer-strip",
            "finalizer-added-terminating-apply",
            &["--finalizer-additions", "strip"],
        ),
        ("review-indexes", "indexes-one-stale", &[]),
        ("review-indexes-json", "indexes-one-stale", &["-o", "json"]),
        ("review-in-use-json", "delete-in-use", &["-o", "json"]),
        ("review-warned", "delete-draining-allowed", &[]),
        ("review-path", "delete-in-use", &["--path", "/validate/finalizers"]),
        ("review-no-hook", "delete-machine-no-rule", &[]),
        ("review-wrong-path", "delete-in-use", &["--path", "/validate/deletion/"]),
    ] {
        let file = case(case_name);
        let mut args = vec!["review", &file, "--state", STATE];
        args.extend(more);
        check(name, &run(&args));
    }
}

#[test]
fn several_files_are_judged_in_order_and_one_denial_counts() {
    let (free, used) = (case("delete-free"), case("delete-in-use"));
    let done = run(&["review", &free, &used, &free, "--state", STATE]);
    assert_eq!(done.code, 1);
    let verdicts: Vec<_> = done
        .stdout
        .lines()
        .filter_map(|line| line.split_once("  ").map(|(word, _)| word))
        .filter(|word| word.ends_with("ED"))
        .collect();
    assert_eq!(verdicts, ["ALLOWED", "DENIED", "ALLOWED"]);
    let both = run(&["review", &free, &free, "--state", STATE, "-o", "json"]);
    assert_eq!((both.code, both.json().as_array().unwrap().len()), (0, 2));
}

#[test]
fn yaml_json_streams_and_standard_input_are_read_alike() {
    let text = fs::read_to_string(root().join(case("delete-in-use"))).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let yaml = serde_saphyr::to_string(&value).unwrap();
    assert!(!yaml.trim_start().starts_with('{'), "{yaml}");
    let documents = format!("---\n{yaml}---\n{yaml}");
    let stream = format!("{text}\n{text}");
    for (what, input, reviews) in [
        ("JSON", &text, 1),
        ("YAML", &yaml, 1),
        ("documents", &documents, 2),
        ("stream", &stream, 2),
    ] {
        let args = ["review", "-", "--state", STATE, "-o", "json"];
        let done = run_with_stdin(&args, input.as_str());
        assert_eq!(done.code, 1, "{what}: {}", done.stderr);
        let results = done.json();
        assert_eq!(results.as_array().unwrap().len(), reviews, "{what}");
        assert_eq!(results[0]["hooks"][0]["rule"], "deletion.in_use", "{what}");
        assert_eq!(results[0]["uid"], value["request"]["uid"], "{what}");
    }
}

#[test]
fn what_is_no_review_is_a_usage_error() {
    let args = ["review", "-", "--demo"];
    for (name, input) in [
        ("review-empty", ""),
        ("review-blank", " \n\n"),
        ("review-not-a-review", "kind: Pod\napiVersion: v1\n"),
        ("review-broken-json", "{\"kind\": "),
        ("review-broken-yaml", "a: [1\nb: }"),
        (
            "review-no-uid",
            r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}"#,
        ),
    ] {
        let done = run_with_stdin(&args, input);
        assert_eq!((done.code, &*done.stdout), (2, ""), "{name}");
        check(name, &done);
    }
    check("review-no-file", &run(&["review", "no/such/file.json", "--demo"]));
}

/// The whole corpus through the command: the same verdicts as the webhooks give.
#[test]
fn the_corpus_is_judged_as_expected() {
    // State and path, and for each its files with the verdicts.
    let mut questions: BTreeMap<_, Vec<(String, bool)>> = BTreeMap::new();
    for folder in fs::read_dir(root().join("tests/data/reviews")).unwrap() {
        let folder = folder.unwrap().path();
        let expect = fs::read_to_string(folder.join("expect.json")).unwrap();
        let expect: Value = serde_json::from_str(&expect).unwrap();
        let text = |key: &str| expect[key].as_str().unwrap().to_owned();
        let file = folder.join("review.json").to_str().unwrap().to_owned();
        let asked = questions.entry((text("state"), text("path"))).or_default();
        asked.push((file, expect["allowed"].as_bool().unwrap()));
    }
    for ((state, path), asked) in questions {
        let state = format!("tests/data/states/{state}");
        let mut args = vec!["review", "--state", &state, "--path", &path, "-o", "json"];
        args.extend(asked.iter().map(|(file, _)| &**file));
        let done = run(&args);
        let results = done.json();
        let verdicts: Vec<_> = results
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (it["file"].as_str().unwrap().to_owned(), it["allowed"].as_bool().unwrap()))
            .collect();
        assert_eq!(verdicts, asked, "{state} {path}");
        assert_eq!(done.code == 0, asked.iter().all(|(_, allowed)| *allowed));
    }
}
