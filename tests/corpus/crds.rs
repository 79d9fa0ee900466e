//! Validates objects as an API server with given `CustomResourceDefinitions` would.
//!
//! The schemas of a CRD are `OpenAPI` v3, so they are rewritten to JSON Schema first. Stricter than a
//! server in one point: a field that the schema does not know is an error, because a server would
//! have pruned it and no real object has it. CEL rules are not evaluated.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow};
use jsonschema::{Draft, Validator};
use serde_json::{Map, Value, json};

use super::yaml_objects;

/// The group of the five kinds; an unknown kind in it is always an error.
pub(crate) const METAL3_GROUP: &str = "infrastructure.cluster.x-k8s.io";

/// Kinds in the samples that are not worth a schema: only their metadata matters.
const WITHOUT_SCHEMA: [&str; 2] = ["BareMetalHost", "KubeadmControlPlane"];

/// Schemas by (apiVersion, kind); several files may define the same kind.
#[derive(Default)]
pub(crate) struct Schemas(BTreeMap<(String, String), Vec<Schema>>);

struct Schema {
    file: PathBuf,
    open_api: Value,
    validator: Validator,
}

impl Schemas {
    /// Adds every CRD of a file and returns how many schemas that were.
    pub(crate) fn add(&mut self, file: &Path) -> Result<usize> {
        let mut count = 0;
        for crd in yaml_objects(file)? {
            let text = |pointer| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let (group, kind) = (text("/spec/group"), text("/spec/names/kind"));
            for version in
                crd.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten()
            {
                let name = version.get("name").and_then(Value::as_str).unwrap_or_default();
                let open_api = version
                    .pointer("/schema/openAPIV3Schema")
                    .with_context(|| format!("{}: {kind} {name} has no schema", file.display()))?;
                let validator = jsonschema::options()
                    .with_draft(Draft::Draft202012)
                    .should_validate_formats(true)
                    .build(&root(open_api))
                    .map_err(|error| anyhow!("{}: {kind} {name}: {error}", file.display()))?;
                let schema =
                    Schema { file: file.to_owned(), open_api: open_api.clone(), validator };
                self.0
                    .entry((format!("{group}/{name}"), kind.to_owned()))
                    .or_default()
                    .push(schema);
                count += 1;
            }
        }
        Ok(count)
    }

    /// What is wrong with an object, a line each.
    pub(crate) fn problems(&self, object: &Value) -> Vec<String> {
        let text = |key| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let Some(schemas) = self.0.get(&(api_version.clone(), kind.clone())) else {
            let free = !api_version.starts_with(&format!("{METAL3_GROUP}/"))
                && WITHOUT_SCHEMA.contains(&kind.as_str());
            return if free { vec![] } else { vec![format!("no schema for {api_version} {kind}")] };
        };
        schemas
            .iter()
            .flat_map(|schema| {
                let mut found = duplicates(&schema.open_api, object, "");
                found.extend(
                    schema
                        .validator
                        .iter_errors(object)
                        .map(|error| format!("{}: {error}", error.instance_path())),
                );
                found.into_iter().map(|line| format!("{line} ({})", schema.file.display()))
            })
            .collect()
    }

    /// Where a schema is not structural, so that an API server would refuse the CRD.
    pub(crate) fn not_structural(&self) -> Vec<String> {
        self.0
            .iter()
            .flat_map(|((version, kind), schemas)| {
                schemas.iter().flat_map(move |schema| {
                    structure(&schema.open_api, &format!("{version} {kind}"))
                })
            })
            .collect()
    }
}

/// The root: metadata is checked by the server itself, not by the schema.
fn root(open_api: &Value) -> Value {
    let mut schema = rewrite(open_api);
    if let Some(metadata) = schema.pointer_mut("/properties/metadata") {
        *metadata = json!({"type": "object", "required": ["name", "namespace"]});
    }
    schema
}

fn rewrite(open_api: &Value) -> Value {
    let Value::Object(node) = open_api else { return open_api.clone() };
    let set = |key: &str| node.get(key) == Some(&Value::Bool(true));
    let mut schema = Map::new();
    for (key, value) in node {
        let value = match key.as_str() {
            "description" | "default" | "nullable" | "example" | "title" => continue,
            key if key.starts_with("x-kubernetes-") => continue,
            "format" if value == "int32" => {
                schema.entry("minimum").or_insert_with(|| i32::MIN.into());
                schema.entry("maximum").or_insert_with(|| i32::MAX.into());
                continue;
            }
            "format" if value != "date-time" => continue,
            "properties" => Value::Object(
                value
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, child)| (name.clone(), rewrite(child)))
                    .collect(),
            ),
            "items" | "additionalProperties" => rewrite(value),
            _ => value.clone(),
        };
        schema.insert(key.clone(), value);
    }
    if set("x-kubernetes-int-or-string") {
        schema.insert("type".to_owned(), json!(["integer", "string"]));
        schema.remove("anyOf");
    }
    let closed = node.get("type").is_some_and(|kind| kind == "object")
        && !set("x-kubernetes-preserve-unknown-fields");
    if closed {
        schema.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    if set("nullable") {
        json!({"anyOf": [{"type": "null"}, schema]})
    } else {
        Value::Object(schema)
    }
}

/// Entries of a list-map with the same keys, which JSON Schema cannot say.
fn duplicates(open_api: &Value, value: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    match value {
        Value::Object(fields) => {
            for (name, child) in fields {
                let schema = open_api
                    .get("properties")
                    .and_then(|properties| properties.get(name))
                    .or_else(|| open_api.get("additionalProperties"));
                if let Some(schema) = schema {
                    found.extend(duplicates(schema, child, &format!("{path}/{name}")));
                }
            }
        }
        Value::Array(items) => {
            let keys = open_api.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
            let mut seen = Vec::new();
            for item in items {
                if let Some(keys) = keys {
                    let key: Vec<_> =
                        keys.iter().filter_map(Value::as_str).map(|key| item.get(key)).collect();
                    if seen.contains(&key) {
                        found.push(format!("{path}: two entries with {keys:?} = {key:?}"));
                    }
                    seen.push(key);
                }
                if let Some(schema) = open_api.get("items") {
                    found.extend(duplicates(schema, item, &format!("{path}/-")));
                }
            }
        }
        _ => {}
    }
    found
}

/// The rules for structural schemas that a plain file can break: every node has a type unless it is
/// int-or-string or open, fields are named or free but not both, and there are no references.
fn structure(node: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    let set = |key: &str| node.get(key) == Some(&Value::Bool(true));
    let open = set("x-kubernetes-int-or-string") || set("x-kubernetes-preserve-unknown-fields");
    match node.get("type").and_then(Value::as_str) {
        Some("object" | "array" | "string" | "integer" | "number" | "boolean") => {}
        None if open => {}
        other => found.push(format!("{path}: type is {other:?}")),
    }
    if node.get("properties").is_some() && node.get("additionalProperties").is_some() {
        found.push(format!("{path}: both properties and additionalProperties"));
    }
    for key in ["$ref", "definitions", "patternProperties", "deprecated", "uniqueItems"] {
        if node.get(key).is_some() {
            found.push(format!("{path}: {key} is not allowed"));
        }
    }
    let properties = node.get("properties").and_then(Value::as_object);
    for required in node.get("required").and_then(Value::as_array).into_iter().flatten() {
        let known =
            properties.is_some_and(|p| required.as_str().is_some_and(|r| p.contains_key(r)));
        if !known {
            found.push(format!("{path}: required {required} is not defined"));
        }
    }
    for (name, child) in properties.into_iter().flatten() {
        found.extend(structure(child, &format!("{path}/{name}")));
    }
    let array = node.get("type").is_some_and(|kind| kind == "array");
    match node.get("items") {
        Some(items) => found.extend(structure(items, &format!("{path}/-"))),
        None if array => found.push(format!("{path}: an array without items")),
        None => {}
    }
    if let Some(values) = node.get("additionalProperties") {
        found.extend(structure(values, &format!("{path}/*")));
    }
    found
}
