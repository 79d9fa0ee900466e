//! The webhook configurations: there, and as this binary expects them.

use serde_json::Value;

use super::{Api, Check, State};
use crate::{
    admission::{FINALIZER_GROUPS, Hook},
    cli::{args::Overlay, manifests},
    core::objects::METAL3_GROUP,
};

/// The two kinds of configuration, with their resource names.
const KINDS: [(&str, &str); 2] = [
    ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
    ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
];

/// The namespace of the shipped manifests.
const NAMESPACE: &str = "metal3-guard-system";

/// Settings of a webhook that must be as shipped.
const SETTINGS: [&str; 7] = [
    "rules",
    "failurePolicy",
    "matchPolicy",
    "sideEffects",
    "timeoutSeconds",
    "admissionReviewVersions",
    "reinvocationPolicy",
];

/// Where more than what is shipped may be.
const CONDITIONS: &str = "matchConditions";

/// What narrows a webhook; nothing is shipped.
const SELECTORS: [&str; 2] = ["namespaceSelector", "objectSelector"];

pub(super) async fn check(api: &Api, checks: &mut Vec<Check>) {
    for (kind, resource) in KINDS {
        let url = format!("/apis/admissionregistration.k8s.io/v1/{resource}");
        let list = match api.get(&url).await {
            Ok(list) => list,
            Err(why) => {
                checks.push(Check::unknown(kind, &why));
                continue;
            }
        };
        let live: Vec<&Value> = items(&list).collect();
        for expected in expected(kind) {
            for webhook in webhooks(&expected) {
                checks.push(compare(kind, webhook, &live));
            }
        }
        for configuration in live.iter().filter(|it| !is_ours(it)) {
            let of = configuration.pointer("/metadata/name").and_then(Value::as_str);
            let of = format!("{kind} {}", of.unwrap_or_default());
            checks.extend(webhooks(configuration).filter_map(|it| stranger(&of, it)));
        }
    }
}

/// The configurations of one kind that this binary ships.
fn expected(kind: &str) -> Vec<Value> {
    let shipped: Result<Vec<Value>, _> =
        serde_saphyr::from_multiple(manifests::rendered(Overlay::Base));
    // The text is part of the binary, and a test parses it.
    let mut shipped = shipped.unwrap_or_default();
    shipped.retain(|it| it.get("kind").and_then(Value::as_str) == Some(kind));
    shipped
}

pub(super) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("items").and_then(Value::as_array).into_iter().flatten()
}

pub(super) fn webhooks(configuration: &Value) -> impl Iterator<Item = &Value> {
    configuration.get("webhooks").and_then(Value::as_array).into_iter().flatten()
}

pub(super) fn name(object: &Value) -> &str {
    object.get("name").and_then(Value::as_str).unwrap_or_default()
}

/// A configuration that calls one of our hooks, under whatever name it was installed.
pub(super) fn is_ours(configuration: &Value) -> bool {
    webhooks(configuration).any(|it| name(it).ends_with(".metal3-guard.io"))
}

/// The path that a webhook calls, in a service or a URL.
pub(super) fn path(webhook: &Value) -> Option<&str> {
    let url = webhook.pointer("/clientConfig/url").and_then(Value::as_str);
    let of_url =
        url.and_then(|url| url.splitn(4, '/').nth(3)).map(|rest| rest.trim_start_matches('/'));
    let of_service = webhook.pointer("/clientConfig/service/path").and_then(Value::as_str);
    of_service.map(|path| path.trim_start_matches('/')).or(of_url)
}

fn compare(kind: &str, expected: &Value, live: &[&Value]) -> Check {
    let wanted = name(expected);
    let about = format!("webhook {wanted}");
    let found: Vec<&Value> =
        live.iter().flat_map(|it| webhooks(it)).filter(|it| name(it) == wanted).collect();
    // Not as a command to copy: applied as they are, they would point elsewhere and trust another.
    let advice = "apply the webhook configurations of this version, with your address and caBundle \
                  in them; 'metal3-guard manifests' prints them";
    let [found] = found.as_slice() else {
        return if found.is_empty() {
            Check::new(State::Problem, &about, format!("in no {kind}"), advice)
        } else {
            let text = format!("registered {} times", found.len());
            Check::new(State::Warning, &about, text, "remove the configurations that are left over")
        };
    };
    let mut wrong: Vec<String> = SETTINGS
        .into_iter()
        .filter(|key| {
            let (expected, found) = (expected.get(key), found.get(key));
            expected.is_some_and(|expected| !covers(found, expected))
        })
        .map(str::to_owned)
        .collect();
    let conditions = conditions(expected, found);
    if conditions.is_none() {
        wrong.push(CONDITIONS.into());
    }
    if path(found).and_then(|path| Hook::of_path(&format!("/{path}"))).is_none()
        || path(found) != path(expected)
    {
        wrong.push("path".into());
    }
    if !wrong.is_empty() {
        let text = format!("differs from what is shipped: {}", wrong.join(", "));
        return Check::new(State::Problem, &about, text, advice);
    }
    let selectors = SELECTORS.into_iter().filter(|key| {
        let selector = found.get(key).and_then(Value::as_object);
        selector.is_some_and(|selector| !selector.is_empty())
    });
    let more = conditions.into_iter().flatten().map(|name| format!("condition {name}"));
    let narrowed: Vec<_> = selectors.map(str::to_owned).chain(more).collect();
    if narrowed.is_empty() {
        return Check::ok(&about, "as shipped");
    }
    let by = narrowed.join(" and ");
    Check::new(
        State::Warning,
        &about,
        format!("narrowed by its {by}: what is left out is not protected"),
        format!("remove the {by} unless that is meant"),
    )
}

/// The names of the conditions that a webhook has besides the shipped ones; `None` when one of
/// those is not there, or not as shipped.
fn conditions<'a>(expected: &Value, found: &'a Value) -> Option<Vec<&'a str>> {
    let list = |of: &'a Value| of.get(CONDITIONS).and_then(Value::as_array).into_iter().flatten();
    // The guard stays out of its own namespace, which is where the Service is.
    let namespace = found.pointer("/clientConfig/service/namespace").and_then(Value::as_str);
    let own = format!("'{}'", namespace.unwrap_or(NAMESPACE));
    let shipped = expected.get(CONDITIONS).and_then(Value::as_array).into_iter().flatten();
    let mut shipped: Vec<Value> = shipped.cloned().collect();
    for condition in &mut shipped {
        if let Some(Value::String(expression)) = condition.get_mut("expression") {
            *expression = expression.replace(&format!("'{NAMESPACE}'"), &own);
        }
    }
    if !shipped.iter().all(|it| list(found).any(|found| covers(Some(found), it))) {
        return None;
    }
    let more = list(found).filter(|it| !shipped.iter().any(|shipped| covers(Some(it), shipped)));
    Some(more.map(name).collect())
}

/// Whether a live value holds all that is expected and lists nothing more; the API server adds
/// defaults, and the order of a list means nothing in a webhook.
fn covers(live: Option<&Value>, expected: &Value) -> bool {
    match (live, expected) {
        (Some(Value::Object(live)), Value::Object(expected)) => {
            expected.iter().all(|(key, value)| covers(live.get(key), value))
        }
        (Some(Value::Array(live)), Value::Array(expected)) => {
            live.len() == expected.len()
                && expected.iter().all(|it| live.iter().any(|live| covers(Some(live), it)))
        }
        (Some(live), expected) => live == expected,
        (None, _) => false,
    }
}

/// What another webhook, of the configuration `of`, could do to a rule of ours.
fn stranger(of: &str, webhook: &Value) -> Option<Check> {
    let about = format!("other webhook {} of {of}", name(webhook));
    let mutating = of.starts_with("Mutating");
    let rules = webhook.get("rules").and_then(Value::as_array).into_iter().flatten();
    let lists = |rule: &Value, key: &str, any: &[&str]| {
        let values = rule.get(key).and_then(Value::as_array).into_iter().flatten();
        values.filter_map(Value::as_str).any(|it| any.contains(&it))
    };
    for rule in rules {
        let metal3 = lists(rule, "apiGroups", &["*", METAL3_GROUP]);
        let finalizers = lists(rule, "apiGroups", &[&["*"], &FINALIZER_GROUPS[..]].concat());
        // `*` is every resource but no subresource, `*/*` is both.
        let wildcard = lists(rule, "resources", &["*", "*/*"]);
        let templates = wildcard || lists(rule, "resources", &["metal3datatemplates"]);
        let status = ["metal3datatemplates/status", "metal3datatemplates/*", "*/status", "*/*"];
        let status = lists(rule, "resources", &status);
        let update = lists(rule, "operations", &["*", "UPDATE"]);
        if metal3 && templates && lists(rule, "operations", &["*", "DELETE"]) && !mutating {
            return Some(Check::new(
                State::Warning,
                &about,
                "judges deletions of templates too: its refusals are not ours",
                "when a deletion is refused, look whose message it is",
            ));
        }
        if mutating && metal3 && status && update {
            return Some(Check::new(
                State::Warning,
                &about,
                "changes the status of templates: pruned indexes may come back",
                "make sure that it leaves status.indexes alone",
            ));
        }
        if mutating && finalizers && wildcard && update {
            return Some(Check::new(
                State::Warning,
                &about,
                "changes updates of all kinds that the finalizer rule guards",
                "make sure that it adds no finalizers; the validating hook refuses those only \
                 while an object is being moved",
            ));
        }
    }
    None
}
