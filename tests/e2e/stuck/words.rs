//! One line for each object, in the same words for recordings of the real CAPM3 and for what is
//! left of a stand.

use std::path::PathBuf;

use serde_json::Value;

use super::stand::is_terminating;

/// A recording of the real CAPM3.
pub(super) fn recorded(name: &str) -> Vec<String> {
    lines(&recording(name), Owners::Compared)
}

/// The same, comparable with objects of another API version.
pub(super) fn recorded_whoever_owns_it(name: &str) -> Vec<String> {
    lines(&recording(name), Owners::Any)
}

fn recording(name: &str) -> Vec<Value> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/capm3");
    let text = std::fs::read_to_string(file.join(format!("{name}.yaml"))).unwrap();
    let list: Value = serde_saphyr::from_str(&text).unwrap();
    list["items"].as_array().unwrap().clone()
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owners {
    Compared,
    /// Who owns what, and in which version, is a matter of the API version.
    Any,
}

/// One line for each object, sorted.
pub(super) fn lines(objects: &[Value], owners: Owners) -> Vec<String> {
    let mut lines: Vec<_> = objects.iter().map(|it| line(it, owners)).collect();
    lines.sort();
    lines
}

fn line(object: &Value, owners: Owners) -> String {
    let (kind, meta) = (object["kind"].as_str().unwrap(), &object["metadata"]);
    let name = meta["name"].as_str().unwrap();
    let state = if is_terminating(object) { "terminating" } else { "live" };
    let finalizers = meta["finalizers"].as_array().into_iter().flatten();
    let finalizers: Vec<_> = finalizers
        .filter_map(|it| it.as_str()?.strip_suffix(".infrastructure.cluster.x-k8s.io"))
        .collect();
    let mut parts = vec![format!("{kind} {name} {state}, finalizers {finalizers:?}")];
    if owners == Owners::Compared {
        let owners = meta["ownerReferences"].as_array().into_iter().flatten();
        let owners: Vec<_> = owners.map(owner).collect();
        parts.push(format!("owners {owners:?}"));
    }
    match &object["status"]["indexes"] {
        Value::Object(indexes) => parts.push(format!("indexes {:?}", entries(indexes.iter()))),
        Value::Array(indexes) => {
            let indexes = indexes.iter().map(|it| (it["name"].as_str().unwrap(), &it["index"]));
            parts.push(format!("indexes {:?}", entries(indexes)));
        }
        _ => {}
    }
    if kind == "Metal3DataClaim" {
        parts.push(format!("has {}", object["status"]["renderedData"]["name"]));
    }
    parts.join(", ")
}

fn owner(reference: &Value) -> String {
    let [version, kind, name] =
        ["apiVersion", "kind", "name"].map(|key| reference[key].as_str().unwrap());
    format!("{kind} {name} {version} controller={}", reference["controller"])
}

fn entries<'a, S: ToString>(indexes: impl Iterator<Item = (S, &'a Value)>) -> Vec<String> {
    let mut entries: Vec<_> =
        indexes.map(|(k, index)| format!("{}={index}", k.to_string())).collect();
    entries.sort();
    entries
}

/// Each object with its resourceVersion, which every write changes.
pub(super) fn revisions(objects: &[Value]) -> Vec<(String, String)> {
    let of = |it: &Value| {
        (line(it, Owners::Any), it["metadata"]["resourceVersion"].as_str().unwrap().to_owned())
    };
    objects.iter().map(of).collect()
}
