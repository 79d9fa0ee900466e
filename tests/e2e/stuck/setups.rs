//! The states in which the holes of CAPM3 show.

use serde_json::{Value, json};

use super::{
    super::Crds,
    stand::{CLAIMS, DATAS, MACHINES, Stand, TEMPLATE, TEMPLATES},
};
use crate::support::{
    Behaviour, ControlPlane,
    capm3::{ALL, Point, Release, Role},
};

/// Those that are the same in all releases.
pub(super) fn all_releases() -> [Behaviour; 2] {
    [Behaviour::v1_8_1(), Behaviour::default()]
}

/// The release that the CRDs of this binary come from, for what differs in the objects.
pub(super) fn of_binary() -> Behaviour {
    match Crds::of_binary() {
        Crds::V1beta1 => Behaviour::v1_8_1(),
        Crds::V1beta2 => Behaviour::default(),
    }
}

/// A live template, and a Metal3Data that has outlived its claim.
pub(super) async fn orphaned(plane: &ControlPlane, behaviour: Behaviour) -> Stand {
    let stand = Stand::empty(plane, "orphaned", behaviour).await;
    let stale = stand.capm3.hold(Point::Stale(DATAS));
    stand.create_machine("w-0").await;
    stand.exists(DATAS, "workers-0").await;
    stand.all(CLAIMS, "served", |it| it["status"]["renderedData"]["name"].is_string()).await;
    stand.delete(MACHINES, "w-0").await;
    stand.none(MACHINES).await;
    stand.none(CLAIMS).await;
    drop(stale);
    stand.capm3.settled(&ALL).await;
    stand
}

/// The index of a claim that has gone was given to the next one while its Metal3Data was there.
pub(super) async fn index_given_away(plane: &ControlPlane, behaviour: Behaviour) -> Stand {
    let stand = Stand::live(plane, "h7", behaviour, 1).await;
    let template = stand.capm3.hold(Point::TemplateLook);
    stand.delete(MACHINES, "w-0").await;
    stand.space.gone(MACHINES, "w-0").await;
    stand.create_machine("w-1").await;
    stand.exists(CLAIMS, "w-1").await;
    stand.capm3.current().await;
    let claims = stand.capm3.hold(Point::ClaimRelease);
    drop(template);
    claims.reached().await;
    stand.capm3.idle(&[Role::Data]).await;
    // Else it may free the Metal3Data of its claim, and that event would heal it.
    stand.heard_by_the_collector().await;
    drop(claims);
    stand.all(CLAIMS, "served", |it| it["status"]["renderedData"]["name"].is_string()).await;
    stand.capm3.settled(&ALL).await;
    assert!(
        stand.capm3.journal().iter().any(|line| line.contains("already exists")),
        "{:?}",
        stand.capm3.journal()
    );
    stand
}

/// A template that has a machine, and a Metal3Data without an index.
pub(super) async fn without_index(plane: &ControlPlane, behaviour: Behaviour) -> Stand {
    let stand = Stand::live(plane, "h11", behaviour, 1).await;
    let mut data = stand.space.data(TEMPLATE, 9, "w-9");
    data["metadata"]["finalizers"] = json!([]);
    data["spec"].as_object_mut().unwrap().remove("index");
    stand.space.create(&data).await.unwrap();
    stand.capm3.settled(&ALL).await;
    stand
}

/// A template, and a Metal3Data that was made for no claim.
pub(super) async fn without_claim(plane: &ControlPlane, behaviour: Behaviour) -> Stand {
    let stand = Stand::empty(plane, "h12", behaviour).await;
    let mut data = stand.space.data(TEMPLATE, 0, "w-0");
    data["metadata"]["finalizers"] = json!([]);
    match behaviour.release {
        Release::V1_8_1 => data["spec"]["claim"] = json!({}),
        Release::Later => drop(data["spec"].as_object_mut().unwrap().remove("claim")),
    }
    stand.space.create(&data).await.unwrap();
    stand.capm3.settled(&ALL).await;
    stand
}

/// A template of a machine, which a Cluster owned that has gone.
pub(super) async fn owner_gone(plane: &ControlPlane, behaviour: Behaviour) -> Stand {
    let stand = Stand::live(plane, "h13", behaviour, 1).await;
    let mut cluster = stand.space.object("Cluster", "older", &[], &json!({}));
    cluster["apiVersion"] = "cluster.x-k8s.io/v1beta1".into();
    let cluster = stand.space.create(&cluster).await.unwrap();
    let template = stand.space.get(TEMPLATES, TEMPLATE).await.unwrap();
    let mut owners =
        template["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    owners.push(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "name": "older",
        "uid": cluster["metadata"]["uid"],
    }));
    let owned = json!({"metadata": {"ownerReferences": owners}});
    stand.space.patch(TEMPLATES, TEMPLATE, "", owned).await.unwrap();
    stand.space.delete("clusters", "older").await.unwrap();
    stand
}

/// A patch that begins or ends a pause.
pub(super) fn paused(paused: bool) -> Value {
    let value = if paused { json!("") } else { Value::Null };
    json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": value}}})
}
