//! A template that is deleted while it, or its Cluster, is paused: only woken until the pause ends.

use serde_json::{Value, json};

use super::{DATAS, TEMPLATES, acting, annotated, finalizers, paste::by_hand, told_to_wait};
use crate::{
    e2e::{CLAIM_FINALIZER, DATA_FINALIZER, Space, TEMPLATE_FINALIZER, commands::run},
    support::User,
};

const PAUSED: &str = "cluster.x-k8s.io/paused";

#[tokio::test]
async fn a_template_deleted_while_paused_goes_when_it_is_unpaused() {
    let space = acting().await.env.space("paused").await;
    let template = annotated(space.template("workers"), PAUSED);
    goes_when_unpaused(&space, &template, "Metal3DataTemplate/workers").await;
}

#[tokio::test]
async fn a_template_whose_cluster_is_paused_goes_when_the_cluster_is_unpaused() {
    let space = acting().await.env.space("paused-cluster").await;
    space.create(&cluster(&space, true)).await.unwrap();
    let template = space.template("workers");
    goes_when_unpaused(&space, &template, "Cluster/prod").await;
    let cluster = space.get("clusters", "prod").await.unwrap();
    assert_eq!(cluster["spec"]["paused"], false);
}

/// As `clusterctl move` never does, and people do.
#[tokio::test]
async fn a_template_whose_cluster_is_paused_by_annotation_goes_too() {
    let space = acting().await.env.space("paused-annotated").await;
    space.create(&annotated(cluster(&space, false), PAUSED)).await.unwrap();
    let template = space.template("workers");
    goes_when_unpaused(&space, &template, "Cluster/prod").await;
}

/// Deletes the template and an orphan of it; `paused` is what the plan then waits for.
async fn goes_when_unpaused(space: &Space, template: &Value, paused: &str) {
    let acting = acting().await;
    space.create(template).await.unwrap();
    space.create(&space.data("workers", 0, "w-0")).await.unwrap();
    space.delete(TEMPLATES, "workers").await.unwrap();
    space.delete(DATAS, "workers-0").await.unwrap();

    // Told only after the grace period, when every other repair would have begun.
    let told = told_to_wait(space, &format!("{paused} to be unpaused")).await;
    assert!(told.contains("the next look is at 20"), "{told}");
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let all = json!([CLAIM_FINALIZER, DATA_FINALIZER]);
    assert_eq!(finalizers(space, DATAS, "workers-0").await, all);
    assert_eq!(finalizers(space, TEMPLATES, "workers").await, json!([TEMPLATE_FINALIZER]));
    let done = acting.done(space.ns());
    assert!(done.iter().all(|line| line == "wake Metal3Data/workers-0 done"), "{done:#?}");
    assert!(!done.is_empty(), "a wake-up is harmless");

    let config = acting.env.plane.kubeconfig(User::Admin);
    let told = run(&config, &["diagnose", "-n", space.ns()]).await.ended(1);
    assert!(told.contains(&format!("waits for {paused} to be unpaused")), "{told}");
    by_hand(acting.env.plane, &told).await;
    // Nobody tells the guard of a Cluster: it looks again by itself.
    crate::support::eventually("the orphan to be freed", async || {
        let left = finalizers(space, DATAS, "workers-0").await;
        (left == json!([DATA_FINALIZER])).then_some(())
    })
    .await;
    space.finish(DATAS, "workers-0").await;
    space.gone(TEMPLATES, "workers").await;
    acting.never_twice(space.ns());
}

fn cluster(space: &Space, paused: bool) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster",
        "metadata": {"name": "prod", "namespace": space.ns()},
        "spec": {"paused": paused},
    })
}
