//! The steps of a walk, as requests.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    clusterctl,
    random::Random,
    space::{
        CLAIMS, CLUSTERS, DATAS, HOLD, MACHINE_TEMPLATES, MACHINES, PAUSED, RESOURCES, Refused,
        Sent, Space, TEMPLATE_FINALIZER, TEMPLATES,
    },
    walk::{self, Propagation, Step, What},
};

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Came {
    /// All that was asked for.
    Done,
    /// Something was refused, by the guard or by the API server.
    Refused,
    /// There was nothing to do it to, or it was there already.
    Nothing,
}

/// Takes a step. Those that concern managers and guards are not for users.
pub(crate) async fn take(
    spaces: &[Space; 2],
    random: &mut Random,
    step: Step,
) -> (Came, Option<Refused>) {
    let taken = match step {
        Step::Cluster(at) => create(&spaces[at], CLUSTERS, &spaces[at].cluster()).await,
        Step::Template { at, name, finalizer, owned, addresses } => {
            let mut template = spaces[at].template(name, addresses);
            if finalizer {
                template["metadata"]["finalizers"] = json!([TEMPLATE_FINALIZER]);
            }
            own(&spaces[at], &mut template, owned).await;
            create(&spaces[at], TEMPLATES, &template).await
        }
        Step::MachineSet { at, template, first, count, owned } => {
            machine_set(&spaces[at], template, &walk::MACHINES[at][first..], count, owned).await
        }
        Step::ScaleDown { at, first, count, how } => {
            let names = walk::MACHINES[at].iter().skip(first).take(count);
            let mut came = Vec::new();
            for name in names {
                came.push(delete(&spaces[at], What::Machine(name), how).await);
            }
            all(came)
        }
        Step::Delete { at, what, how } => delete(&spaces[at], what, how).await,
        Step::ForceDelete { at, template } => force_delete(&spaces[at], template).await,
        Step::DeleteAll { at, resource } => {
            let url = spaces[at].url(resource, "");
            spaces[at].send(Method::DELETE, &url, &Value::Null).await.map(drop)
        }
        Step::DeleteNamespace { at } => spaces[at].delete_namespace().await,
        Step::Pause { at, what, on } => pause(&spaces[at], what, on).await,
        Step::Hold { at, what } => hold(&spaces[at], what).await,
        Step::Move { from, order, stale_controller } => {
            let (from, to) = (&spaces[from], &spaces[1 - from]);
            clusterctl::Move { from, to, order, stale_controller }.run(random).await
        }
        Step::StaleWrite { at, what, age } => stale_write(&spaces[at], what, age).await,
        Step::Retarget { at, machine, template } => {
            let spec = json!({"spec": {"dataTemplate": {"name": template}}});
            spaces[at].patch(MACHINES, machine, &spec).await.map(drop)
        }
        Step::Capm3 { .. } | Step::KillGuard | Step::Wait(_) => Ok(()),
    };
    match taken {
        Ok(()) => (Came::Done, None),
        Err(refused @ Refused { code: 404 | 409, .. }) => (Came::Nothing, Some(refused)),
        Err(refused) => (Came::Refused, Some(refused)),
    }
}

/// Users are done: nothing stays paused or held.
pub(crate) async fn lift_everything(space: &Space) -> Sent<()> {
    for resource in RESOURCES {
        for object in space.list(resource).await? {
            let name = name(&object);
            let mut metadata = json!({});
            if !object["metadata"]["annotations"][PAUSED].is_null() {
                metadata["annotations"] = json!({PAUSED: null});
            }
            let mut finalizers = finalizers(&object);
            if finalizers.contains(&HOLD.into()) {
                finalizers.retain(|it| it != HOLD);
                metadata["finalizers"] = finalizers.into();
                metadata["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
            }
            let mut patch = json!({});
            if metadata != json!({}) {
                patch["metadata"] = metadata;
            }
            if object["spec"]["paused"] == true {
                patch["spec"] = json!({"paused": false});
            }
            if patch != json!({}) {
                match space.patch(resource, name, &patch).await {
                    // Gone meanwhile.
                    Err(Refused { code: 404, .. }) => {}
                    other => drop(other?),
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub(crate) fn finalizers(object: &Value) -> Vec<Value> {
    object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default()
}

impl What {
    /// Its resource and name.
    pub(crate) fn object(self) -> (&'static str, String) {
        match self {
            Self::Cluster => (CLUSTERS, "prod".into()),
            Self::Template(name) => (TEMPLATES, name.into()),
            Self::Machine(name) => (MACHINES, name.into()),
            Self::Claim(name) => (CLAIMS, name.into()),
            Self::Data(template, index) => (DATAS, format!("{template}-{index}")),
        }
    }
}

async fn create(space: &Space, resource: &str, object: &Value) -> Sent<()> {
    space.create(resource, object).await.map(drop)
}

/// Of several requests: what is refused counts most, and one that is done more than none.
fn all(sent: Vec<Sent<()>>) -> Sent<()> {
    let nothing = |refused: &Refused| [404, 409].contains(&refused.code);
    let done = sent.iter().any(Result::is_ok);
    let mut refused: Vec<_> = sent.into_iter().filter_map(Result::err).collect();
    refused.sort_by_key(nothing);
    match refused.into_iter().next() {
        Some(refused) if !done || !nothing(&refused) => Err(refused),
        _ => Ok(()),
    }
}

async fn own(space: &Space, object: &mut Value, owned: bool) {
    if let Ok(Some(cluster)) = space.get(CLUSTERS, "prod").await
        && owned
    {
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": cluster["apiVersion"], "kind": "Cluster", "name": "prod",
            "uid": cluster["metadata"]["uid"],
            "blockOwnerDeletion": object["kind"] == "Metal3Machine",
        }]);
    }
}

async fn machine_set(
    space: &Space,
    template: &str,
    names: &[&str],
    count: usize,
    owned: bool,
) -> Sent<()> {
    let mut came = vec![create(space, MACHINE_TEMPLATES, &space.machine_template(template)).await];
    for name in names.iter().take(count) {
        let mut machine = space.machine(name, template);
        own(space, &mut machine, owned).await;
        came.push(create(space, MACHINES, &machine).await);
    }
    all(came)
}

async fn delete(space: &Space, what: What, how: Propagation) -> Sent<()> {
    let (resource, name) = what.object();
    let options = json!({"propagationPolicy": format!("{how:?}")});
    space.delete(resource, &name, &options).await.map(drop)
}

async fn force_delete(space: &Space, template: &str) -> Sent<()> {
    let reason = json!({"metadata": {"annotations": {"metal3-guard.io/force-delete": "a test"}}});
    space.patch(TEMPLATES, template, &reason).await?;
    space.delete(TEMPLATES, template, &Value::Null).await.map(drop)
}

async fn pause(space: &Space, what: What, on: bool) -> Sent<()> {
    let (resource, name) = what.object();
    let patch = match what {
        What::Cluster => json!({"spec": {"paused": on}}),
        _ if on => json!({"metadata": {"annotations": {PAUSED: ""}}}),
        _ => json!({"metadata": {"annotations": {PAUSED: null}}}),
    };
    space.patch(resource, &name, &patch).await.map(drop)
}

async fn hold(space: &Space, what: What) -> Sent<()> {
    let (resource, name) = what.object();
    let Some(object) = space.get(resource, &name).await? else { return nothing() };
    let mut finalizers = finalizers(&object);
    finalizers.retain(|it| it != HOLD);
    finalizers.push(HOLD.into());
    let version = &object["metadata"]["resourceVersion"];
    let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
    space.patch(resource, &name, &patch).await.map(drop)
}

/// The whole list, as controllers write it: it puts back what others took off meanwhile.
async fn stale_write(space: &Space, what: What, age: Duration) -> Sent<()> {
    let (resource, name) = what.object();
    let Some(object) = space.get(resource, &name).await? else { return nothing() };
    sleep(age).await;
    let stale = json!({"metadata": {"finalizers": finalizers(&object)}});
    space.patch_as_controller(resource, &name, &stale).await.map(drop)
}

fn nothing() -> Sent<()> {
    Err(Refused { code: 404, message: "not found".into() })
}
