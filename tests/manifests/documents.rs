//! The rendered manifests as data.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// What is rendered: the base, and each overlay.
pub(crate) const NAMES: [&str; 4] = ["base", "self-managed", "cert-manager", "local-url"];

/// The folder with the sources.
pub(crate) fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests")
}

/// The committed text of a rendering.
pub(crate) fn text(name: &str) -> String {
    let file = manifests().join("rendered").join(format!("{name}.yaml"));
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The objects in a YAML text.
pub(crate) fn parse(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}"))
}

/// The objects of a rendering.
pub(crate) fn objects(name: &str) -> Vec<Value> {
    parse(&text(name))
}

/// All objects of a kind.
pub(crate) fn all<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// The only object of a kind.
pub(crate) fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    match all(objects, kind)[..] {
        [object] => object,
        ref other => panic!("{} objects of kind {kind} instead of one", other.len()),
    }
}

/// `kind/namespace/name`.
pub(crate) fn id(object: &Value) -> String {
    let meta = |key: &str| object["metadata"][key].as_str().unwrap_or("-");
    format!("{}/{}/{}", object["kind"].as_str().unwrap_or("?"), meta("namespace"), meta("name"))
}

/// The texts of a list.
pub(crate) fn texts(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap_or_else(|| panic!("{list} is no list"));
    list.iter().map(|it| it.as_str().unwrap_or_else(|| panic!("{it} is no text"))).collect()
}
