//! Objects of a rendering, by what they are.

use std::collections::BTreeMap;

use serde_json::Value;

/// Objects by `kind/namespace/name`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Objects(pub(crate) BTreeMap<String, Value>);

impl Objects {
    /// The objects of a YAML text, of which two with one name may only be hooks.
    pub(crate) fn parse(text: &str) -> Self {
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let mut objects = BTreeMap::new();
        for object in documents.into_iter().filter(|object| !object.is_null()) {
            let hook = object["metadata"]["annotations"]["helm.sh/hook"].as_str();
            let hook = hook.map(|hook| format!("{hook} ")).unwrap_or_default();
            let twice = objects.insert(hook + &id(&object), object);
            assert!(twice.is_none(), "{twice:?} is there twice");
        }
        Self(objects)
    }

    /// A rendering by kustomize.
    pub(crate) fn kustomized(name: &str) -> Self {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/rendered");
        Self::parse(&std::fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap())
    }

    pub(crate) fn ids(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Value) -> bool) {
        self.0.retain(|_, object| keep(object));
    }

    /// Those to keep as a text to apply; JSON is YAML.
    pub(crate) fn yaml(&self, keep: impl Fn(&Value) -> bool) -> String {
        let kept = self.0.values().filter(|object| keep(object));
        kept.map(ToString::to_string).collect::<Vec<_>>().join("\n---\n")
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// The object with this id; panics when there is none.
    #[track_caller]
    pub(crate) fn get(&self, id: &str) -> &Value {
        self.0.get(id).unwrap_or_else(|| panic!("no {id} in {:?}", self.ids()))
    }

    /// Every webhook of both configurations, by name.
    pub(crate) fn webhooks(&self) -> BTreeMap<&str, &Value> {
        let kinds = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
        let configurations = kinds.map(|kind| self.get(&format!("{kind}/-/metal3-guard")));
        configurations
            .into_iter()
            .flat_map(|it| it["webhooks"].as_array().unwrap())
            .map(|it| (it["name"].as_str().unwrap(), it))
            .collect()
    }

    /// The arguments of the guard's container.
    pub(crate) fn args(&self) -> Vec<&str> {
        let deployment = self.get("Deployment/metal3-guard-system/metal3-guard");
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        container["args"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
    }
}

fn id(object: &Value) -> String {
    let meta = |key: &str| object["metadata"][key].as_str().unwrap_or("-");
    format!("{}/{}/{}", object["kind"].as_str().unwrap_or("?"), meta("namespace"), meta("name"))
}
