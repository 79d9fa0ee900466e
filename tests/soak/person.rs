//! The person who looks after what does not go by itself, with nothing but what the guard tells.

use std::{fmt, path::Path, process::Stdio};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    space::{RESOURCES, Space, TEMPLATES},
    support::{BINARY, ControlPlane, User},
    user::{finalizers, name},
};

/// Something that did not go by itself.
#[derive(Clone, Debug)]
pub(crate) struct Rescue {
    pub(crate) namespace: String,
    /// The template that it was about, where it is known.
    pub(crate) template: String,
    /// The object, where it was about one.
    pub(crate) object: Option<(String, String)>,
    /// What the person did.
    pub(crate) with: String,
}

impl fmt::Display for Rescue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.namespace, self.template, self.with)
    }
}

/// The objects of a namespace, by resource. None when the API server does not say.
pub(crate) type Left = Vec<(&'static str, Value)>;

/// What is left in a namespace.
pub(crate) async fn left(space: &Space) -> Left {
    let mut left = Vec::new();
    for resource in RESOURCES {
        let listed = space.list(resource).await.unwrap_or_default();
        left.extend(listed.into_iter().map(|object| (resource, object)));
    }
    left
}

/// Asks `diagnose`, and does what it says that only a person may do: `unstick --apply` where the
/// template is lost, and the commands that it prints.
pub(crate) async fn follow_advice(plane: &ControlPlane, space: &Space) -> Vec<Rescue> {
    let namespace = space.ns();
    let said = run(plane, BINARY.as_ref(), &["diagnose", "-n", namespace, "-o", "json"]).await;
    let diagnosis: Value = serde_json::from_str(&said.1).unwrap_or_default();
    let templates = diagnosis["namespaces"][0]["templates"].as_array();
    let mut rescues = Vec::new();
    for report in templates.into_iter().flatten() {
        let template = report["name"].as_str().unwrap_or_default();
        let rescue = |object, with: &str| Rescue {
            namespace: namespace.to_owned(),
            template: template.to_owned(),
            object,
            with: with.to_owned(),
        };
        let steps = report["steps"].as_array().is_some_and(|steps| !steps.is_empty());
        if report["state"] == "missing" && steps {
            let reason = ["--apply", "--reason", "it is lost"];
            let unstick = [&["unstick", template, "-n", namespace][..], &reason].concat();
            let (_, said) = run(plane, BINARY.as_ref(), &unstick).await;
            rescues.push(rescue(None, &format!("unstick: {}", said.replace('\n', "; "))));
        }
        let by_hand = report["byHand"].as_array().into_iter().flatten();
        for command in by_hand.flat_map(|it| it["commands"].as_array().into_iter().flatten()) {
            let command = command.as_str().unwrap_or_default();
            let (done, said) = run(plane, "sh".as_ref(), &["-c", command]).await;
            let object = command.split(' ').find_map(|word| word.split_once('/'));
            let object = object.map(|(kind, name)| (format!("{kind}s"), name.to_owned()));
            let said = said.replace('\n', "; ");
            rescues.push(rescue(object, &format!("{command} ({done}: {said})")));
        }
    }
    rescues
}

/// The last resort, which nobody is told to take: all finalizers, of what is terminating.
pub(crate) async fn free_by_force(space: &Space, left: &Left) -> Vec<Rescue> {
    let mut rescues = Vec::new();
    for (resource, object) in left {
        if !object["metadata"]["deletionTimestamp"].is_string() {
            continue;
        }
        let none = json!({"metadata": {"finalizers": []}});
        if space.patch(resource, name(object), &none).await.is_ok() {
            let template = match *resource {
                TEMPLATES => name(object),
                _ => object["spec"]["template"]["name"].as_str().unwrap_or_default(),
            };
            rescues.push(Rescue {
                namespace: space.ns().to_owned(),
                template: template.to_owned(),
                object: Some(((*resource).to_owned(), name(object).to_owned())),
                with: format!("BY FORCE: {}/{} {:?}", resource, name(object), finalizers(object)),
            });
        }
    }
    rescues
}

/// Runs a program that finds the cluster of these tests, and says whether it succeeded and what it
/// printed.
async fn run(plane: &ControlPlane, program: &Path, args: &[&str]) -> (bool, String) {
    let kubectl = plane.binary("kubectl");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = kubectl.parent().map(Into::into).into_iter().collect();
    folders.extend(std::env::split_paths(&path));
    let ran = Command::new(program)
        .args(args)
        .env("PATH", std::env::join_paths(folders).unwrap())
        .env("KUBECONFIG", plane.kubeconfig(User::Admin))
        .env("HOME", plane.folder())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    (ran.status.success(), String::from_utf8_lossy(&ran.stdout).trim().to_owned())
}
