//! The guard's account can read what verdicts need, and nothing more.

use std::collections::{BTreeMap, BTreeSet};

use metal3_guard::core::objects::Kind;
use serde_json::json;

use crate::documents::{NAMES, objects, one, texts};

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
        let role = one(&objects, "ClusterRole");
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
        assert_eq!(granted, expected, "{name}");
    }
}

#[test]
fn the_role_is_bound_to_the_account_of_the_pods_alone() {
    for name in NAMES {
        let objects = objects(name);
        let account = one(&objects, "ServiceAccount");
        let (own, namespace) = (&account["metadata"]["name"], &account["metadata"]["namespace"]);
        assert_eq!(*namespace, one(&objects, "Namespace")["metadata"]["name"]);
        // A pod that somebody else starts in the namespace gets no token by itself.
        assert_eq!(account["automountServiceAccountToken"], false);
        let binding = one(&objects, "ClusterRoleBinding");
        let subjects = json!([{"kind": "ServiceAccount", "name": own, "namespace": namespace}]);
        assert_eq!(binding["subjects"], subjects);
        let role = &one(&objects, "ClusterRole")["metadata"]["name"];
        let expected =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
        assert_eq!(binding["roleRef"], expected);
        if name != "local-url" {
            let pod = &one(&objects, "Deployment")["spec"]["template"]["spec"];
            assert_eq!(pod["serviceAccountName"], *own);
            assert_eq!(pod["automountServiceAccountToken"], true);
        }
    }
}
