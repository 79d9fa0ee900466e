//! Who can talk to the control plane, and with what rights.

use std::{fmt::Write as _, fs, io::Read as _, path::Path};

use anyhow::{Context as _, Result};
use serde_json::json;

/// A user with a token of its own. The API server reads the tokens at its start only, so
/// the list is fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum User {
    /// May do everything (`system:masters`).
    Admin,
    /// The guard. Has no rights until a test binds a role, normally the one in `manifests`:
    /// a missing permission must show.
    Guard,
    /// The CAPM3 controllers, with rights like those of their manager role.
    Capm3,
    /// The Cluster API controllers, with the same rights.
    Capi,
    /// A person without any rights, until a test binds a role.
    Person,
    /// kube-controller-manager, with the rights Kubernetes gives it under this name. Its
    /// controllers act under their own service accounts, as in a real cluster.
    ControllerManager,
}

impl User {
    /// All of them.
    pub(crate) const ALL: [Self; 6] =
        [Self::Admin, Self::Guard, Self::Capm3, Self::Capi, Self::Person, Self::ControllerManager];

    /// The name that RBAC, admission and the audit log see.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Guard => "guard",
            Self::Capm3 => "capm3",
            Self::Capi => "capi",
            Self::Person => "person",
            Self::ControllerManager => "system:kube-controller-manager",
        }
    }

    /// The name of its kubeconfig file.
    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::ControllerManager => "controller-manager",
            _ => self.name(),
        }
    }
}

/// Rights of CAPM3 and CAPI, and who has them. Wider than the real roles where those list
/// kinds one by one, and no wider than the groups they work on.
pub(crate) const RBAC: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: cluster-api-managers
rules:
- apiGroups:
  - addons.cluster.x-k8s.io
  - bootstrap.cluster.x-k8s.io
  - cluster.x-k8s.io
  - controlplane.cluster.x-k8s.io
  - infrastructure.cluster.x-k8s.io
  - ipam.cluster.x-k8s.io
  - ipam.metal3.io
  - metal3.io
  - runtime.cluster.x-k8s.io
  resources: ["*"]
  verbs: ["*"]
- apiGroups: [""]
  resources: [configmaps, events, nodes, secrets]
  verbs: ["*"]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: ["*"]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: ["*"]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions, customresourcedefinitions/status]
  verbs: [get, list, watch, patch, update]
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: cluster-api-managers
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-api-managers}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: capm3}
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: capi}
"#;

/// Writes tokens.csv for the API server and a kubeconfig per user.
pub(crate) fn write(url: &str, ca: &Path, tokens: &Path, kubeconfigs: &Path) -> Result<()> {
    let mut csv = String::new();
    for user in User::ALL {
        let token = random_token()?;
        let groups = if user == User::Admin { "system:masters" } else { "" };
        writeln!(csv, "{token},{name},{name},\"{groups}\"", name = user.name())?;
        // JSON is YAML, and needs no quoting by hand.
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority": ca}}],
            "users": [{"name": user.name(), "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user.name()}}],
        });
        fs::write(kubeconfigs.join(user.file()), kubeconfig.to_string())?;
    }
    fs::write(tokens, csv)?;
    Ok(())
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("no random numbers for tokens")?;
    Ok(bytes.iter().fold(String::new(), |token, byte| format!("{token}{byte:02x}")))
}
