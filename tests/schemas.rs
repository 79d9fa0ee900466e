//! The test corpus is sound: every sample object fits the CRD of its kind, every case is complete,
//! and every path of the guard is asked for both of its answers.

mod corpus;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::Result;
use serde_json::{Value, json};

use corpus::{crds::Schemas, data, entries, name_of};

/// Every path, and whether its second answer is a denial or a patch.
const PATHS: [(&str, &str); 6] = [
    ("/validate/deletion", "deny"),
    ("/validate/references", "deny"),
    ("/validate/finalizers", "deny"),
    ("/mutate/finalizers", "deny"),
    ("/validate/release", "deny"),
    ("/mutate/indexes", "patch"),
];

/// What an expectation may say; anything else is a spelling mistake that would never be compared.
const KEYS: [&str; 17] = [
    "about",
    "state",
    "path",
    "http",
    "allowed",
    "code",
    "reason",
    "message_has",
    "causes",
    "causes_count",
    "warnings_have",
    "warnings_count",
    "audit_has",
    "patched",
    "any_patch",
    "schema",
    "more",
];

#[test]
fn every_object_of_a_state_fits_its_crd() -> Result<()> {
    let schemas = schemas()?;
    let mut problems = Vec::new();
    let mut count = 0;
    for (state, objects) in corpus::states()? {
        let mut names = BTreeSet::new();
        for (file, object) in objects {
            let id = |key: &str| object.pointer(key).and_then(Value::as_str).map(str::to_owned);
            let mut found = schemas.problems(&object);
            for key in ["uid", "resourceVersion", "creationTimestamp"] {
                if id(&format!("/metadata/{key}")).is_none() {
                    found.push(format!("/metadata/{key}: missing"));
                }
            }
            if !names.insert((id("/kind"), id("/metadata/namespace"), id("/metadata/name"))) {
                found.push("the same object twice in one state".to_owned());
            }
            let name = id("/metadata/name").unwrap_or_default();
            problems
                .extend(found.iter().map(|p| format!("{state} {}: {name}: {p}", file.display())));
            count += 1;
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count > 100, "only {count} objects were read");
    Ok(())
}

#[test]
fn every_object_of_a_review_fits_its_crd() -> Result<()> {
    let schemas = schemas()?;
    let mut problems = Vec::new();
    let mut wrong_on_purpose = 0;
    for case in corpus::cases()? {
        let found: Vec<_> = case
            .objects()
            .flat_map(|(key, object)| {
                schemas.problems(object).into_iter().map(move |p| format!("{key}{p}"))
            })
            .collect();
        if case.expect.get("schema") == Some(&json!(false)) {
            assert!(!found.is_empty(), "{}: `schema: false`, but the objects are valid", case.name);
            wrong_on_purpose += 1;
        } else {
            problems.extend(found.iter().map(|p| format!("{}: {p}", case.name)));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(wrong_on_purpose < 10, "{wrong_on_purpose} cases opt out of the schemas");
    Ok(())
}

#[test]
fn invalid_objects_are_found() -> Result<()> {
    let mut schemas = Schemas::default();
    for file in entries(&data().join("crds"))? {
        schemas.add(&file)?;
    }
    let object = |version: &str, kind: &str, rest: Value| {
        let mut object = json!({"apiVersion": format!("{}/{version}", corpus::crds::METAL3_GROUP),
            "kind": kind, "metadata": {"name": "a", "namespace": "b"}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    let template =
        |status: Value| object("v1beta2", "Metal3DataTemplate", json!({"status": status}));
    assert_eq!(
        schemas.problems(&template(json!({"indexes": [{"index": 0, "name": "w"}]}))),
        [""; 0]
    );
    let wrong = [
        ("an unknown Metal3 kind", object("v1beta1", "Metal3Rack", json!({}))),
        ("a version that nobody serves", object("v1alpha5", "Metal3Data", json!({}))),
        ("an empty list of indexes", template(json!({"indexes": []}))),
        ("the map of v1beta1", template(json!({"indexes": {"w": 0}}))),
        ("a negative index", template(json!({"indexes": [{"index": -1, "name": "w"}]}))),
        ("an entry without index", template(json!({"indexes": [{"name": "w"}]}))),
        (
            "an index twice",
            template(json!({"indexes": [{"index": 1, "name": "w"}, {"index": 1, "name": "x"}]})),
        ),
        ("a time that is none", template(json!({"lastUpdated": "yesterday"}))),
        ("an unknown field", template(json!({"claims": 3}))),
        (
            "a field of the other version",
            object(
                "v1beta2",
                "Metal3Machine",
                json!({"spec": {"image": {"url": "x", "format": "raw"}}}),
            ),
        ),
        (
            "a template without cluster",
            object("v1beta1", "Metal3DataTemplate", json!({"spec": {}})),
        ),
        ("a claim without template", object("v1beta1", "Metal3DataClaim", json!({"spec": {}}))),
    ];
    for (what, object) in wrong {
        assert!(!schemas.problems(&object).is_empty(), "{what} passes: {object}");
    }
    Ok(())
}

#[test]
fn own_crds_are_structural() -> Result<()> {
    let mut schemas = Schemas::default();
    for file in entries(&data().join("crds"))? {
        assert!(schemas.add(&file)? > 0, "{} defines nothing", file.display());
    }
    assert_eq!(schemas.not_structural(), [""; 0]);
    Ok(())
}

#[test]
fn every_case_is_complete() -> Result<()> {
    let states = corpus::states()?;
    let mut uids = BTreeMap::new();
    let mut problems = Vec::new();
    let cases = corpus::cases()?;
    for case in &cases {
        let mut problem = |text: String| problems.push(format!("{}: {text}", case.name));
        let about = case.expect.get("about").and_then(Value::as_str).unwrap_or_default();
        if !about.ends_with('.') {
            problem("`about` is no sentence".to_owned());
        }
        for check in case.checks() {
            for key in check.as_object().into_iter().flat_map(|check| check.keys()) {
                if !KEYS.contains(&key.as_str()) {
                    problem(format!("unknown key {key}"));
                }
            }
            let path = check.get("path").and_then(Value::as_str).unwrap_or_default();
            if !PATHS.iter().any(|(known, _)| *known == path) {
                problem(format!("unknown path {path}"));
            }
            let state = check.get("state").or_else(|| case.expect.get("state"));
            if !state.and_then(Value::as_str).is_some_and(|state| states.contains_key(state)) {
                problem(format!("no state {state:?}"));
            }
            match check.get("allowed") {
                Some(Value::Bool(true)) => {
                    if ["code", "reason", "message_has"].iter().any(|key| check.get(key).is_some())
                    {
                        problem("an allowed case cannot expect a denial's text".to_owned());
                    }
                }
                Some(Value::Bool(false)) => {
                    if ["code", "reason", "message_has"].iter().any(|key| check.get(key).is_none())
                    {
                        problem("a denial needs code, reason and message_has".to_owned());
                    }
                }
                other => problem(format!("allowed is {other:?}")),
            }
        }
        let uid = case.review.pointer("/request/uid").and_then(Value::as_str).unwrap_or_default();
        if uid.len() != 36 {
            problem(format!("the uid is {uid:?}"));
        }
        if let Some(other) = uids.insert(uid, &case.name)
            && !case.is_recorded()
        {
            problem(format!("the uid is also that of {other}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let recorded = cases.iter().filter(|case| case.is_recorded()).count();
    assert_eq!(recorded, 49, "recorded reviews");
    assert!(cases.len() >= 110, "only {} reviews", cases.len());
    Ok(())
}

#[test]
fn every_path_is_asked_for_both_answers() -> Result<()> {
    let mut seen = BTreeSet::new();
    for case in corpus::cases()? {
        for check in case.checks() {
            let path = check.get("path").and_then(Value::as_str).unwrap_or_default().to_owned();
            seen.insert((path.clone(), if check["allowed"] == true { "allow" } else { "deny" }));
            if check.get("patched").is_some() {
                seen.insert((path, "patch"));
            }
        }
    }
    for (path, second) in PATHS {
        for answer in ["allow", second] {
            assert!(seen.contains(&(path.to_owned(), answer)), "no case for {path}: {answer}");
        }
    }
    Ok(())
}

#[test]
fn every_malformed_body_has_an_expectation() -> Result<()> {
    let folder = data().join("malformed");
    let mut listed: Vec<_> = corpus::json(&folder.join("expect.json"))?
        .as_array()
        .into_iter()
        .flatten()
        .map(|case| {
            let http = case["http"].as_u64();
            assert!(http == Some(400) || http == Some(200), "{case}");
            assert!(PATHS.iter().any(|(path, _)| case["path"] == *path), "{case}");
            case["file"].as_str().unwrap_or_default().to_owned()
        })
        .collect();
    listed.sort();
    let mut files: Vec<_> = entries(&folder)?.iter().map(|file| name_of(file)).collect();
    files.retain(|file| file != "expect.json");
    assert_eq!(listed, files);
    Ok(())
}

/// The project's CRDs always; those of the releases too where they lie beside the checkout.
#[expect(clippy::print_stdout, reason = "says which schemas were used when a test fails")]
fn schemas() -> Result<Schemas> {
    let mut schemas = Schemas::default();
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/crds");
    let mut folders = vec![data().join("crds")];
    if beside.is_dir() {
        folders.extend(entries(&beside)?);
    }
    for folder in folders {
        let mut count = 0;
        for file in entries(&folder)? {
            count += schemas.add(&file)?;
        }
        println!("{count} schemas from {}", folder.display());
    }
    Ok(schemas)
}
