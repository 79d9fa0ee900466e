//! Does anything need a look, and does it move? (rule 4.5)
//!
//! Both are asked on every event, so neither makes a plan.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::{
    contents::Contents,
    objects::{Kind, Meta, TEMPLATE_FINALIZER, Usage},
};

/// Whether a plan for this template could have a step or something to wait for: it is terminating
/// or gone while something names it, a Metal3Data of it is on its way out, or it is in use without
/// CAPM3's finalizer.
pub fn concerns(contents: &Contents, template: &str, usage: &Usage) -> bool {
    let Some(template) = contents.templates.get(template) else {
        return !usage.data.is_empty();
    };
    let in_use = !usage.data.is_empty() || !usage.claims.is_empty();
    template.meta.terminating()
        || usage.data.values().any(|data| data.meta.terminating())
        || usage.claims.values().any(|claim| claim.meta.terminating())
        || (in_use && !template.meta.has_finalizer(TEMPLATE_FINALIZER))
}

/// A number that stays the same until a template, or something that uses it, makes progress:
/// comes or goes, begins to terminate, or gets or loses a finalizer.
///
/// Not the resourceVersion, which a wake-up changes too, and not the status: CAPM3 writes
/// `lastUpdated` and flapping indexes without getting anywhere.
pub fn fingerprint(contents: &Contents, template: &str, usage: &Usage) -> u64 {
    let mut hasher = DefaultHasher::new();
    let template = contents.templates.get(template).map(|it| (Kind::Template, &it.meta));
    let machines = usage.machines.values().map(|it| (Kind::Machine, &it.meta));
    let claims = usage.claims.values().map(|it| (Kind::Claim, &it.meta));
    let data = usage.data.values().map(|it| (Kind::Data, &it.meta));
    for (kind, meta) in template.into_iter().chain(machines).chain(claims).chain(data) {
        let Meta { name, uid, finalizers, .. } = meta;
        (kind, name, uid, meta.terminating(), finalizers).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::objects::Object;

    fn contents(objects: &[serde_json::Value]) -> Contents {
        let mut contents = Contents::default();
        for object in objects {
            assert_eq!(contents.insert(Object::from_json(&object.to_string()).unwrap()), None);
        }
        contents
    }

    fn object(kind: &str, name: &str, metadata: &serde_json::Value) -> serde_json::Value {
        let mut object = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": kind,
            "metadata": {"name": name, "namespace": "prod", "uid": format!("uid-{name}")},
            "spec": {"template": {"name": "workers"}, "claim": {"name": "w-0"},
                     "dataTemplate": {"name": "workers"}},
        });
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        object
    }

    fn template(metadata: &serde_json::Value) -> serde_json::Value {
        object("Metal3DataTemplate", "workers", metadata)
    }

    fn asked(objects: &[serde_json::Value]) -> (bool, u64) {
        let contents = contents(objects);
        let usage = contents.usage("workers");
        (concerns(&contents, "workers", &usage), fingerprint(&contents, "workers", &usage))
    }

    #[test]
    fn only_what_a_plan_could_be_for_is_looked_at() {
        let held = json!({"finalizers": [TEMPLATE_FINALIZER]});
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let claim = object("Metal3DataClaim", "w-0", &json!({}));
        let data = object("Metal3Data", "workers-0", &json!({}));
        let going_data = object("Metal3Data", "workers-0", &going);
        for (objects, wanted) in [
            (vec![template(&json!({}))], false),
            (vec![template(&held), claim.clone(), data.clone()], false),
            (vec![template(&json!({})), claim.clone()], true),
            (vec![template(&held), claim.clone(), going_data], true),
            (vec![template(&held), object("Metal3DataClaim", "w-0", &going)], true),
            (vec![template(&going)], true),
            (vec![claim], false),
            (vec![data], true),
        ] {
            assert_eq!(asked(&objects).0, wanted, "{objects:?}");
        }
    }

    #[test]
    fn progress_is_what_comes_goes_terminates_or_is_let_go() {
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a"]});
        let machine = object("Metal3Machine", "w-0", &json!({}));
        let start = asked(&[template(&going), machine.clone()]).1;

        let mut other = machine.clone();
        other["metadata"]["uid"] = "another".into();
        for moved in [
            vec![template(&going)],
            vec![template(&json!({"finalizers": ["a"]})), machine.clone()],
            vec![template(&going), object("Metal3Machine", "w-0", &going)],
            vec![template(&json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})), machine.clone()],
            vec![template(&going), other],
        ] {
            assert_ne!(asked(&moved).1, start, "{moved:?}");
        }

        let mut touched = template(&going);
        touched["metadata"]["resourceVersion"] = "99".into();
        touched["metadata"]["annotations"] =
            json!({"metal3-guard.io/woken-at": "2026-01-01T00:00:05Z"});
        touched["status"] = json!({"indexes": {"w-0": 0}, "lastUpdated": "2026-01-01T00:00:05Z"});
        assert_eq!(asked(&[touched, machine]).1, start);
    }
}
