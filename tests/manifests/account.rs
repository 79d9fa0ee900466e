//! The guard's account can read what verdicts need, and nothing more.

use std::collections::{BTreeMap, BTreeSet};

use metal3_guard::core::objects::Kind;
use serde_json::{Value, json};

use crate::documents::{NAMES, all, objects, one, texts};

#[test]
fn the_role_reads_what_rules_read_and_writes_nothing() {
    let expected: BTreeMap<_, BTreeSet<_>> = Kind::ALL
        .into_iter()
        .map(|kind| {
            let verbs: &[&str] = match kind {
                // Fed into the index by watches.
                Kind::Template
                | Kind::Machine
                | Kind::MachineTemplate
                | Kind::Claim
                | Kind::Data => &["get", "list", "watch"],
                Kind::Cluster => &["get", "list"],
                Kind::IpClaim | Kind::IpAddressClaim => &["list"],
            };
            ((kind.group(), kind.resource()), verbs.iter().copied().collect())
        })
        .collect();
    for name in NAMES {
        let objects = objects(name);
        assert_eq!(granted(role(&objects, "metal3-guard")), expected, "{name}");
    }
}

#[test]
fn the_role_for_repair_writes_what_steps_write() {
    let group = Kind::Template.group();
    let (template, data) = (Kind::Template.resource(), Kind::Data.resource());
    let status = format!("{template}/status");
    let expected = BTreeMap::from([
        // Woken, and in the end released.
        ((group, template), BTreeSet::from(["patch"])),
        // Pruned.
        ((group, &*status), BTreeSet::from(["patch"])),
        // Woken or freed, and deleted when an orphan.
        ((group, data), BTreeSet::from(["patch", "delete"])),
        (("", "events"), BTreeSet::from(["create", "patch"])),
    ]);
    for name in NAMES {
        let objects = objects(name);
        assert_eq!(granted(role(&objects, "metal3-guard-repair")), expected, "{name}");
    }
}

/// What a guard that makes its certificates may do: with one Secret and two configurations.
#[test]
fn the_roles_for_certificates_reach_the_guards_own_objects_only() {
    let objects = objects("self-managed");
    let configurations = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        assert_eq!(one(&objects, kind)["metadata"]["name"], "metal3-guard");
    }
    let expected = json!([{
        "apiGroups": ["admissionregistration.k8s.io"], "resources": configurations,
        "resourceNames": ["metal3-guard"], "verbs": ["get", "patch"],
    }]);
    assert_eq!(role(&objects, CERTIFICATES)["rules"], expected);
    let expected = json!([
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["metal3-guard-tls"],
         "verbs": ["get", "update"]},
        {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["metal3-guard-system"],
         "verbs": ["get"]},
    ]);
    let local = one(&objects, "Role");
    assert_eq!(local["rules"], expected);
    assert_eq!(local["metadata"]["name"], CERTIFICATES);
    for name in NAMES.into_iter().filter(|name| *name != "self-managed") {
        let others = crate::documents::objects(name);
        let roles = others.iter().filter(|it| it["metadata"]["name"] == CERTIFICATES);
        assert_eq!(roles.count(), 0, "{name}");
    }
}

const CERTIFICATES: &str = "metal3-guard-certificates";

fn role<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    let roles = all(objects, "ClusterRole");
    roles.into_iter().find(|role| role["metadata"]["name"] == name).unwrap()
}

/// The verbs by group and resource.
fn granted(role: &Value) -> BTreeMap<(&str, &str), BTreeSet<&str>> {
    assert_eq!(role["aggregationRule"], json!(null));
    let mut granted: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for rule in role["rules"].as_array().unwrap() {
        let keys: Vec<_> = rule.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["apiGroups", "resources", "verbs"], "{rule}");
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                granted.entry((group, resource)).or_default().extend(texts(&rule["verbs"]));
            }
        }
    }
    granted
}

#[test]
fn the_roles_are_bound_to_the_account_of_the_pods_alone() {
    for name in NAMES {
        let objects = objects(name);
        let account = one(&objects, "ServiceAccount");
        let (own, namespace) = (&account["metadata"]["name"], &account["metadata"]["namespace"]);
        assert_eq!(*namespace, one(&objects, "Namespace")["metadata"]["name"]);
        // A pod that somebody else starts in the namespace gets no token by itself.
        assert_eq!(account["automountServiceAccountToken"], false);
        let subjects = json!([{"kind": "ServiceAccount", "name": own, "namespace": namespace}]);
        let bindings = all(&objects, "ClusterRoleBinding");
        let mut bound: Vec<_> = bindings.iter().map(|it| &it["roleRef"]).collect();
        bound.sort_by_key(|role| role["name"].as_str());
        let role = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
        let mut expected = vec![role("ClusterRole", "metal3-guard")];
        if name == "self-managed" {
            expected.push(role("ClusterRole", CERTIFICATES));
            let binding = one(&objects, "RoleBinding");
            assert_eq!(binding["roleRef"], role("Role", CERTIFICATES));
            assert_eq!(binding["subjects"], subjects);
        }
        expected.push(role("ClusterRole", "metal3-guard-repair"));
        assert_eq!(bound, expected.iter().collect::<Vec<_>>());
        assert_eq!(all(&objects, "ClusterRole").len(), bindings.len(), "{name}");
        for binding in bindings {
            assert_eq!(binding["subjects"], subjects);
        }
        if name != "local-url" {
            let pod = &one(&objects, "Deployment")["spec"]["template"]["spec"];
            assert_eq!(pod["serviceAccountName"], *own);
            assert_eq!(pod["automountServiceAccountToken"], true);
        }
    }
}
