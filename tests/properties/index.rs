//! The reverse index says what a full scan says, whatever came before.

use std::{collections::BTreeMap, sync::Arc};

use metal3_guard::{
    core::{
        contents::Contents,
        objects::{Kind, Object, Usage},
    },
    inventory::index::Index,
};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use crate::world::cases;

const NAMESPACES: [&str; 2] = ["prod", "test"];
const NAMES: [&str; 3] = ["a", "b", "c"];
const TEMPLATES: [&str; 2] = ["t", "u"];

type Key = (Kind, &'static str, &'static str);

#[derive(Clone, Debug)]
enum Event {
    Apply(Key, Value),
    Remove(Key),
}

fn event() -> impl Strategy<Value = Event> {
    let key = (select(Kind::ALL.to_vec()), select(NAMESPACES.to_vec()), select(NAMES.to_vec()));
    let template = prop_oneof![
        4 => select(TEMPLATES.to_vec()).prop_map(|name| json!({"name": name})),
        1 => select(NAMESPACES.to_vec()).prop_map(|ns| json!({"name": "t", "namespace": ns})),
        1 => Just(json!(null)),
    ];
    (key, template, any::<u8>()).prop_map(|(key, template, dice)| {
        let (kind, namespace, name) = key;
        if dice % 4 == 0 {
            return Event::Remove(key);
        }
        let mut value = json!({
            "apiVersion": format!("{}/v1beta1", kind.group()), "kind": kind.name(),
            "metadata": {"namespace": namespace, "name": name, "uid": dice.to_string()},
        });
        match kind {
            Kind::Machine => value["spec"]["dataTemplate"] = template,
            Kind::Claim | Kind::Data => value["spec"]["template"] = template,
            Kind::MachineTemplate => value["spec"]["template"]["spec"]["dataTemplate"] = template,
            _ => {}
        }
        Event::Apply(key, value)
    })
}

fn scan(objects: &BTreeMap<Key, Value>, namespace: &str) -> Contents {
    let mut contents = Contents::default();
    for ((_, of, _), value) in objects {
        if *of == namespace {
            contents.insert(Object::from_json(&value.to_string()).unwrap());
        }
    }
    contents
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn the_index_equals_a_full_scan(events in vec(event(), 1..40)) {
        let mut index = Index::default();
        let mut objects: BTreeMap<Key, Value> = BTreeMap::new();
        let mut handed_out: Vec<(Arc<Usage>, Usage)> = Vec::new();
        for event in events {
            match event {
                Event::Apply(key, value) => {
                    prop_assert!(index.apply(Object::from_json(&value.to_string()).unwrap()));
                    objects.insert(key, value);
                }
                Event::Remove(key) => {
                    index.remove(key.0, key.1, key.2);
                    objects.remove(&key);
                }
            }
            let mut filled = Vec::new();
            for namespace in NAMESPACES {
                let scanned = scan(&objects, namespace);
                prop_assert_eq!(&*index.contents(namespace), &scanned);
                for template in TEMPLATES {
                    let usage = index.usage(namespace, template);
                    prop_assert_eq!(&*usage, &scanned.usage(template));
                    handed_out.push((Arc::clone(&usage), (*usage).clone()));
                }
                if scanned != Contents::default() {
                    filled.push(namespace);
                }
            }
            let known: Vec<_> = index.namespaces().map(|it| &**it).collect();
            prop_assert_eq!(known, filled);
        }
        for (shared, copy) in &handed_out {
            prop_assert_eq!(&**shared, copy, "an answer given does not change later");
        }
    }

    #[test]
    fn objects_that_no_rule_reads_are_refused(name in "[a-z]{1,8}") {
        let mut index = Index::default();
        for json in [
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}),
            json!({"apiVersion": "v1", "kind": "List", "items": []}),
        ] {
            prop_assert!(!index.apply(Object::from_json(&json.to_string()).unwrap()));
        }
        prop_assert_eq!(index.namespaces().count(), 0);
    }
}
