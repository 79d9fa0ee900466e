//! A cluster where only some of the kinds exist. Each step is one that only the controller takes.

use serde_json::json;

use super::{DATAS, TEMPLATES, finalizers, quick, stuck, told_to_wait, writes};
use crate::{
    e2e::{
        CLAIM_FINALIZER, Crds, DATA_FINALIZER, Space, TEMPLATE_FINALIZER, commands::run, faults,
        prepare,
    },
    support::{ControlPlane, Guard, User, eventually},
};

#[tokio::test]
async fn without_some_kinds_it_works_says_so_and_takes_no_risk() {
    let _alone = faults::alone().await;
    let plane = ControlPlane::start().await;
    prepare(&plane).await;
    remove(&plane, &["clusters.cluster.x-k8s.io", "ipclaims.ipam.metal3.io"]).await;
    let config = plane.kubeconfig(User::Guard);
    let guard = Guard::start(&plane, &config, "127.0.0.1:0", &quick()).await.unwrap();
    guard.register(&plane).await.unwrap();
    plane.bind(User::Guard, "metal3-guard").await;
    plane.bind(User::Guard, "metal3-guard-repair").await;
    guard.ready().await;

    // Nothing can be paused, and nothing can hold an address: no reason to stop.
    let space = space(&plane, "no-clusters").await;
    stuck(&space, "workers", &[]).await;
    let admin = plane.kubeconfig(User::Admin);
    let told = run(&admin, &["diagnose", "-n", space.ns()]).await;
    assert!(
        told.stdout.contains("does not serve clusters: told as if there were none"),
        "{told:?}"
    );
    space.gone(TEMPLATES, "workers").await;
    assert_eq!(unserved(&guard), ["clusters, ipaddressclaims, ipclaims"]);

    // But without claims every Metal3Data looks like an orphan.
    remove(&plane, &["metal3dataclaims.infrastructure.cluster.x-k8s.io"]).await;
    without_claims_it_waits(&plane, &guard).await;
}

/// Until a person says that there are none, or the kind is back.
async fn without_claims_it_waits(plane: &ControlPlane, guard: &Guard) {
    let (person, later) = (space(plane, "no-claims").await, space(plane, "no-claims-yet").await);
    for space in [&person, &later] {
        space.create(&space.template("workers")).await.unwrap();
        space.create(&space.data("workers", 0, "w-0")).await.unwrap();
        space.delete(TEMPLATES, "workers").await.unwrap();
        space.delete(DATAS, "workers-0").await.unwrap();
    }
    for space in [&person, &later] {
        let words =
            "the API server to serve metal3dataclaims: until then nothing shows what is in use";
        let told = told_to_wait(space, words).await;
        assert!(told.contains("run 'unstick --apply'"), "{told}");
    }
    // Longer than the repair would take.
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    for space in [&person, &later] {
        let whole = json!([CLAIM_FINALIZER, DATA_FINALIZER]);
        assert_eq!(finalizers(space, DATAS, "workers-0").await, whole);
        assert_eq!(finalizers(space, TEMPLATES, "workers").await, json!([TEMPLATE_FINALIZER]));
        let wrote = writes(guard, space.ns());
        assert!(wrote.iter().all(|(_, line)| line.starts_with("wake Metal3Data/")), "{wrote:?}");
    }
    assert_eq!(
        unserved(guard).last().map(String::as_str),
        Some("clusters, ipaddressclaims, ipclaims, metal3dataclaims")
    );

    let admin = plane.kubeconfig(User::Admin);
    let told = run(&admin, &["diagnose", "-n", person.ns()]).await.stdout;
    assert!(told.contains("does not serve clusters, metal3dataclaims"), "{told}");
    let apply = ["unstick", "workers", "-n", person.ns(), "--apply", "--reason", "uninstalled"];
    run(&admin, &[&apply[..], &["--grace", "1s"]].concat()).await.ended(1);
    assert_eq!(finalizers(&person, DATAS, "workers-0").await, json!([DATA_FINALIZER]));

    for file in Crds::of_binary().files() {
        plane.install_crds(&file).await;
    }
    eventually("the orphan to be freed, now that claims can be seen", async || {
        let left = finalizers(&later, DATAS, "workers-0").await;
        (left == json!([DATA_FINALIZER])).then_some(())
    })
    .await;
    for space in [&person, &later] {
        space.finish(DATAS, "workers-0").await;
        space.gone(TEMPLATES, "workers").await;
    }
}

async fn space(plane: &ControlPlane, hint: &str) -> Space {
    Space { namespace: plane.namespace(hint).await, client: plane.client(User::Admin).await }
}

async fn remove(plane: &ControlPlane, crds: &[&str]) {
    let args = [&["delete", "crd", "--wait", "--timeout=100s"], crds].concat();
    plane.kubectl(User::Admin, &args).await.ok();
}

/// What the guard has said of kinds that are not served, in order.
fn unserved(guard: &Guard) -> Vec<String> {
    let log = guard.log();
    let said = log.iter().filter(|line| {
        line["message"].as_str().is_some_and(|it| it.contains("the API server does not serve"))
    });
    said.map(|line| line["kinds"].as_str().unwrap_or_default().to_owned()).collect()
}
