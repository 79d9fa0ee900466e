//! The webhook configurations send to each path exactly what the binary answers there.

use std::collections::BTreeSet;

use metal3_guard::{
    admission::{FINALIZER_GROUPS, Hook, Patience},
    core::{
        objects::{Kind, MOVE_ANNOTATION, TEMPLATE_FINALIZER},
        review::{Operation, Review},
    },
};
use serde_json::Value;

use crate::documents::{NAMES, all, manifests, objects, one, parse, texts};

const MUTATING: &str = "MutatingWebhookConfiguration";
const VALIDATING: &str = "ValidatingWebhookConfiguration";

/// One webhook of a rendering, with the kind of configuration that it is in.
struct Webhook {
    configuration: &'static str,
    json: Value,
}

impl Webhook {
    fn path(&self) -> &str {
        let client = &self.json["clientConfig"];
        match client["url"].as_str() {
            Some(url) => &url[url.rfind(":8443").unwrap() + 5..],
            None => client["service"]["path"].as_str().unwrap(),
        }
    }

    fn rules(&self) -> &[Value] {
        self.json["rules"].as_array().unwrap()
    }

    fn conditions(&self) -> Vec<(&str, &str)> {
        let conditions = self.json["matchConditions"].as_array().unwrap().iter();
        conditions
            .map(|it| (it["name"].as_str().unwrap(), it["expression"].as_str().unwrap()))
            .collect()
    }

    /// Whether the API server would send such a review here, conditions aside.
    fn gets(&self, review: &Review<'_>) -> bool {
        self.rules().iter().any(|rule| matches(rule, review))
    }
}

fn webhooks(name: &str) -> Vec<Webhook> {
    let objects = objects(name);
    let of = |configuration| {
        let webhooks = one(&objects, configuration)["webhooks"].as_array().unwrap().clone();
        webhooks.into_iter().map(move |json| Webhook { configuration, json })
    };
    of(MUTATING).chain(of(VALIDATING)).collect()
}

fn of_hook(webhooks: &[Webhook], hook: Hook) -> &Webhook {
    let found: Vec<_> = webhooks.iter().filter(|it| it.path() == hook.path()).collect();
    assert_eq!(found.len(), 1, "webhooks for {}", hook.path());
    found[0]
}

/// The API server's own comparison (k8s.io/apiserver `pkg/admission/plugin/webhook/predicates/rules`).
fn matches(rule: &Value, review: &Review<'_>) -> bool {
    let any = |field: &str, what: &str| {
        texts(&rule[field]).iter().any(|it| matches!(*it, "*") || *it == what)
    };
    let resource = texts(&rule["resources"]).into_iter().any(|it| {
        let (resource, subresource) = it.split_once('/').unwrap_or((it, ""));
        let sub = match (it.contains('/'), subresource) {
            (true, "*") => true,
            _ => subresource == review.subresource,
        };
        sub && (resource == "*" || resource == review.resource)
    });
    any("apiGroups", review.group) && any("operations", review.operation.name()) && resource
}

const OPERATIONS: [Operation; 3] = [Operation::Create, Operation::Update, Operation::Delete];

/// Every combination of what the rules, and the rules of others, are about.
fn probes() -> Vec<Review<'static>> {
    let known = Kind::ALL.into_iter().map(|kind| (kind.group(), kind.resource()));
    let others = FINALIZER_GROUPS.into_iter().map(|group| (group, "somethings"));
    let foreign = [
        ("", "pods"),
        ("", "nodes"),
        ("", "namespaces"),
        ("", "secrets"),
        ("", "metal3datatemplates"),
        ("coordination.k8s.io", "leases"),
        ("apps", "deployments"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("addons.cluster.x-k8s.io", "clusterresourcesets"),
    ];
    let mut probes = Vec::new();
    for (group, resource) in known.chain(others).chain(foreign) {
        for subresource in ["", "status", "scale"] {
            for operation in OPERATIONS {
                probes.push(Review {
                    operation,
                    group,
                    resource,
                    subresource,
                    ..Review::default()
                });
            }
        }
    }
    probes
}

/// Every resource that a rule names, in each of its groups.
fn named(rule: &Value) -> Vec<Review<'_>> {
    let mut probes = Vec::new();
    for name in texts(&rule["resources"]) {
        let (resource, subresource) = name.split_once('/').unwrap_or((name, ""));
        for group in texts(&rule["apiGroups"]) {
            for operation in OPERATIONS {
                probes.push(Review {
                    operation,
                    group,
                    resource,
                    subresource,
                    ..Review::default()
                });
            }
        }
    }
    probes
}

#[test]
fn each_hook_gets_what_it_answers_and_nothing_else() {
    for name in NAMES {
        let webhooks = webhooks(name);
        assert_eq!(webhooks.len(), Hook::ALL.len(), "{name}: a webhook without a hook");
        for hook in Hook::ALL {
            let webhook = of_hook(&webhooks, hook);
            let mut sent = 0;
            let named = webhook.rules().iter().flat_map(named);
            for probe in probes().into_iter().chain(named) {
                assert_eq!(webhook.gets(&probe), hook.gets(&probe), "{name}, {hook:?}: {probe:?}");
                sent += usize::from(webhook.gets(&probe));
            }
            assert!(sent > 0, "{name}, {hook:?}: no probe reaches it");
        }
    }
}

#[test]
fn what_keeps_a_cluster_alive_never_gets_here() {
    for name in NAMES {
        for webhook in webhooks(name) {
            for rule in webhook.rules() {
                let groups = texts(&rule["apiGroups"]);
                let ours = groups.iter().all(|group| FINALIZER_GROUPS.contains(group));
                assert!(ours && !groups.is_empty(), "{name}: {rule}");
                let operations = texts(&rule["operations"]);
                assert!(
                    operations.iter().all(|it| *it != "*" && *it != "CONNECT"),
                    "{name}: {rule}"
                );
            }
            let own = "!has(request.namespace) || request.namespace != 'metal3-guard-system'";
            let conditions = webhook.conditions();
            assert!(conditions.contains(&("not-own-namespace", own)), "{name}: {}", webhook.path());
        }
    }
}

#[test]
fn each_webhook_is_of_the_right_kind_and_patient_enough() {
    for name in NAMES {
        let webhooks = webhooks(name);
        for hook in Hook::ALL {
            let webhook = of_hook(&webhooks, hook);
            let mutating = matches!(hook, Hook::MutateFinalizers | Hook::Indexes);
            assert_eq!(webhook.configuration, if mutating { MUTATING } else { VALIDATING });
            let policy = if hook == Hook::Deletion { "Fail" } else { "Ignore" };
            let json = &webhook.json;
            assert_eq!(json["failurePolicy"], policy, "{name}, {hook:?}");
            assert_eq!(json["matchPolicy"], "Equivalent", "{name}, {hook:?}");
            assert_eq!(json["sideEffects"], "None", "{name}, {hook:?}");
            assert_eq!(texts(&json["admissionReviewVersions"]), ["v1"], "{name}, {hook:?}");
            let timeout = Patience::default().default.as_secs();
            assert_eq!(json["timeoutSeconds"], timeout, "{name}, {hook:?}");
            let again = match hook {
                Hook::MutateFinalizers => Some("IfNeeded"),
                Hook::Indexes => Some("Never"),
                _ => None,
            };
            assert_eq!(json["reinvocationPolicy"].as_str(), again, "{name}, {hook:?}");
            for selector in ["namespaceSelector", "objectSelector"] {
                assert_eq!(json[selector], Value::Null, "{name}, {hook:?}");
            }
        }
    }
}

#[test]
fn every_served_version_is_listed() {
    let data = manifests().join("../tests/data/crds");
    let mut compared = 0;
    for file in ["v1beta1.yaml", "v1beta2.yaml"] {
        let crds = parse(&std::fs::read_to_string(data.join(file)).unwrap());
        for crd in all(&crds, "CustomResourceDefinition") {
            let versions = crd["spec"]["versions"].as_array().unwrap();
            let served: BTreeSet<_> = versions
                .iter()
                .filter(|it| it["served"] == true)
                .map(|it| it["name"].as_str().unwrap())
                .collect();
            let resource = crd["spec"]["names"]["plural"].as_str().unwrap();
            for webhook in webhooks("base") {
                for rule in webhook.rules() {
                    let scope = if texts(&rule["resources"]) == ["*"] { "*" } else { "Namespaced" };
                    assert_eq!(rule["scope"], scope, "{rule}");
                    let named = |it: &&str| it.split('/').next() == Some(resource);
                    if texts(&rule["resources"]).iter().any(named) {
                        let listed: BTreeSet<_> = texts(&rule["apiVersions"]).into_iter().collect();
                        assert!(listed.is_superset(&served), "{resource} of {file}: {rule}");
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared >= 12, "only {compared} rules were compared");
}

/// The API server evaluates every condition, whatever the others say, and an error refuses the
/// request under failurePolicy Fail.
#[test]
fn conditions_are_safe_by_themselves() {
    for webhook in webhooks("base") {
        let operations: BTreeSet<_> =
            webhook.rules().iter().flat_map(|rule| texts(&rule["operations"])).collect();
        let mut names = BTreeSet::new();
        for (name, expression) in webhook.conditions() {
            let at = format!("{}, {name}: {expression}", webhook.path());
            assert!(names.insert(name), "{at}: the name is there twice");
            let reads_old = expression.contains("oldObject.");
            let may_lack_old = operations.contains("CREATE") || operations.contains("DELETE");
            assert!(
                !(reads_old && may_lack_old) || expression.contains("oldObject == null"),
                "{at}"
            );
            let reads_new = expression.replace("oldObject.", "").contains("object.");
            assert!(!(reads_new && operations.contains("DELETE")), "{at}");
            for field in ["finalizers", "annotations", "deletionTimestamp"] {
                for object in ["object", "oldObject"] {
                    let path = format!("{object}.metadata.{field}");
                    if uses(expression, &path) {
                        assert!(expression.contains(&format!("has({path})")), "{at}");
                    }
                }
            }
        }
    }
}

/// Whether an expression has this path, and not only as the end of a longer word.
fn uses(expression: &str, path: &str) -> bool {
    expression
        .match_indices(path)
        .any(|(at, _)| !expression[..at].ends_with(|c: char| c.is_ascii_alphanumeric()))
}

#[test]
fn conditions_name_what_the_rules_name() {
    let webhooks = webhooks("base");
    let expressions = |hook| {
        let conditions = of_hook(&webhooks, hook).conditions();
        conditions.into_iter().map(|(_, expression)| expression).collect::<Vec<_>>().join("\n")
    };
    for hook in [Hook::Deletion, Hook::ValidateFinalizers, Hook::Release] {
        let quoted = format!("'{MOVE_ANNOTATION}' in oldObject.metadata.annotations");
        assert!(expressions(hook).contains(&quoted), "{hook:?}");
    }
    for object in ["object", "oldObject"] {
        let quoted = format!("'{TEMPLATE_FINALIZER}' in {object}.metadata.finalizers");
        assert!(expressions(Hook::Release).contains(&quoted), "{object}");
    }
    // The validating twin is asked about whatever the mutating one is.
    let [mutate, validate] = [Hook::MutateFinalizers, Hook::ValidateFinalizers].map(|hook| {
        let json = &of_hook(&webhooks, hook).json;
        (json["rules"].clone(), json["matchConditions"].clone())
    });
    assert_eq!(mutate, validate);
}
