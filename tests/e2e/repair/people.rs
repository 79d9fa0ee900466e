//! What people do to objects: the acting controllers repair what they may, say what they may not
//! touch, and leave it. In each scenario something happens that only a controller does, so each
//! fails without one.

use http::Method;
use serde_json::{Value, json};

use super::{
    CLAIMS, DATAS, MACHINES, TEMPLATES, acting, finalizers, leave, paste::by_hand, stuck,
    told_to_wait,
};
use crate::{
    e2e::{
        CLAIM_FINALIZER, DATA_FINALIZER, MACHINE_FINALIZER, Space, TEMPLATE_FINALIZER,
        commands::run,
    },
    support::{User, eventually},
};

const FOREIGN: &str = "ipam.example.com/lease";

#[tokio::test]
async fn a_foreign_finalizer_on_a_metal3data_is_reported_and_never_removed() {
    let acting = acting().await;
    let space = acting.env.space("foreign-data").await;
    let mut data = space.data("workers", 0, "w-0");
    data["metadata"]["finalizers"] = json!([CLAIM_FINALIZER, FOREIGN, DATA_FINALIZER]);
    stuck(&space, "workers", &[data]).await;

    eventually("the claim's finalizer to go, and no other", async || {
        let left = finalizers(&space, DATAS, "workers-0").await;
        (left == json!([FOREIGN, DATA_FINALIZER])).then_some(())
    })
    .await;
    let told = told_to_wait(&space, &format!("{FOREIGN} on Metal3Data/workers-0")).await;
    assert!(told.contains("the owners of other finalizers to remove them"), "{told}");
    // As CAPM3's data controller does: only what is not CAPM3's is left, and it stays.
    leave(&space, DATAS, "workers-0", &[FOREIGN]).await;
    // Longer than every step would take.
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    assert_eq!(finalizers(&space, DATAS, "workers-0").await, json!([FOREIGN]));
    assert_eq!(finalizers(&space, TEMPLATES, "workers").await, json!([TEMPLATE_FINALIZER]));

    space.finish(DATAS, "workers-0").await;
    space.gone(TEMPLATES, "workers").await;
    acting.did(space.ns(), "release Metal3DataTemplate/workers").await;
    acting.never_twice(space.ns());
}

/// The machine's finalizer was taken off by hand, so CAPM3's machine controller never ended its
/// claim. The garbage collector deletes the claim, CAPM3's template controller lets it go, and
/// CAPM3's data controller then waits for it to be gone: for ever.
#[tokio::test]
async fn a_claim_whose_machine_is_gone_is_told_with_the_command_that_ends_it() {
    let acting = acting().await;
    let space = acting.env.space("machine-gone").await;
    space.create(&space.template("workers")).await.unwrap();
    let machine = space.create(&space.machine("w-0", "workers")).await.unwrap();
    let mut claim = space.claim("w-0", "workers");
    claim["metadata"]["ownerReferences"] = owner(&machine);
    space.create(&claim).await.unwrap();
    space.create(&space.data("workers", 0, "w-0")).await.unwrap();

    space.delete(MACHINES, "w-0").await.unwrap();
    space.finish(MACHINES, "w-0").await;
    eventually("the garbage collector to delete the claim", async || {
        let claim = space.get(CLAIMS, "w-0").await.unwrap();
        claim["metadata"].get("deletionTimestamp").map(drop)
    })
    .await;
    space.delete(TEMPLATES, "workers").await.unwrap();
    // While the claim has CAPM3's claim finalizer, the template is woken for it.
    acting.did(space.ns(), "wake Metal3DataTemplate/workers").await;
    leave(&space, DATAS, "workers-0", &[DATA_FINALIZER]).await;
    space.delete(DATAS, "workers-0").await.unwrap();
    leave(&space, CLAIMS, "w-0", &[MACHINE_FINALIZER]).await;

    told_to_wait(&space, "claims whose Metal3Machine is gone: Metal3DataClaim/w-0").await;
    assert_eq!(finalizers(&space, CLAIMS, "w-0").await, json!([MACHINE_FINALIZER]));
    assert_eq!(finalizers(&space, DATAS, "workers-0").await, json!([DATA_FINALIZER]));
    let done = acting.done(space.ns());
    assert!(done.iter().all(|line| line == "wake Metal3DataTemplate/workers done"), "{done:#?}");

    let config = acting.env.plane.kubeconfig(User::Admin);
    let told = run(&config, &["diagnose", "-n", space.ns()]).await.ended(1);
    assert!(told.contains("its machine is gone and cannot let go of it"), "{told}");
    by_hand(acting.env.plane, &told).await;
    space.gone(CLAIMS, "w-0").await;
    acting.did(space.ns(), "wake Metal3Data/workers-0").await;
    space.finish(DATAS, "workers-0").await;
    space.gone(TEMPLATES, "workers").await;
    acting.never_twice(space.ns());
}

/// IP claims are CAPM3's to release while the template is there, and a person's decision when it
/// is not. The guard only makes the way free.
#[tokio::test]
async fn ip_claims_of_a_metal3data_are_left_to_capm3() {
    let acting = acting().await;
    let space = acting.env.space("ip-bound").await;
    let lost = space.create(&space.data("gone", 0, "w-1")).await.unwrap();
    ip_claim(&space, &lost).await;
    space.delete(DATAS, "gone-0").await.unwrap();
    space.create(&space.template("workers")).await.unwrap();
    let data = space.create(&space.data("workers", 0, "w-0")).await.unwrap();
    ip_claim(&space, &data).await;
    space.delete(TEMPLATES, "workers").await.unwrap();
    space.delete(DATAS, "workers-0").await.unwrap();

    told_to_wait(&space, "someone to run 'unstick --apply': the template of Metal3Data/gone-0")
        .await;
    told_to_wait(&space, "CAPM3 to react: it was woken and has done nothing").await;
    assert_eq!(finalizers(&space, DATAS, "workers-0").await, json!([DATA_FINALIZER]));
    assert_eq!(finalizers(&space, DATAS, "gone-0").await, json!([CLAIM_FINALIZER, DATA_FINALIZER]));
    for name in ["workers-0-pool", "gone-0-pool"] {
        let claim = space.get("ipclaims", name).await.unwrap();
        assert_eq!(claim["metadata"]["finalizers"], json!([DATA_FINALIZER]), "{claim}");
        assert_eq!(claim["metadata"].get("deletionTimestamp"), None, "{claim}");
    }
    // As CAPM3's data controller does, when it is back.
    space.delete("ipclaims", "workers-0-pool").await.unwrap();
    space.finish("ipclaims", "workers-0-pool").await;
    space.finish(DATAS, "workers-0").await;
    space.gone(TEMPLATES, "workers").await;
    let done = acting.done(space.ns());
    assert!(
        !done.iter().any(|line| line.contains("IPClaim") || line.contains("gone-0")),
        "{done:#?}"
    );
    acting.never_twice(space.ns());
    space.finish(DATAS, "gone-0").await;
}

#[tokio::test]
async fn of_two_templates_with_one_name_only_the_stuck_one_is_touched() {
    let acting = acting().await;
    let (dead, used) = (acting.env.space("same-name").await, acting.env.space("same-name").await);
    used.create(&used.template("workers")).await.unwrap();
    used.create(&used.machine("w-0", "workers")).await.unwrap();
    used.create(&used.claim("w-0", "workers")).await.unwrap();
    used.create(&used.data("workers", 0, "w-0")).await.unwrap();
    // An object of the same name, and no more than a name in common.
    let mut elsewhere = dead.machine("w-1", "workers");
    elsewhere["spec"]["dataTemplate"]["namespace"] = used.ns().into();
    dead.create(&elsewhere).await.unwrap();
    let before = everything(&used).await;

    stuck(&dead, "workers", &[dead.data("workers", 0, "w-0")]).await;
    eventually("the claim's finalizer to go", async || {
        let left = finalizers(&dead, DATAS, "workers-0").await;
        (left == json!([DATA_FINALIZER])).then_some(())
    })
    .await;
    dead.finish(DATAS, "workers-0").await;
    dead.gone(TEMPLATES, "workers").await;
    assert_eq!(everything(&used).await, before);
    assert_eq!(acting.writes(used.ns()), [""; 0]);
    acting.never_twice(dead.ns());
}

/// A controlling owner reference to an object that was read.
pub(super) fn owner(object: &Value) -> Value {
    let meta = &object["metadata"];
    json!([{
        "apiVersion": object["apiVersion"], "kind": object["kind"], "name": meta["name"],
        "uid": meta["uid"], "controller": true,
    }])
}

/// An IP claim as CAPM3 makes it for a Metal3Data.
pub(super) async fn ip_claim(space: &Space, data: &Value) -> String {
    let name = format!("{}-pool", data["metadata"]["name"].as_str().unwrap());
    let mut owner = owner(data);
    owner[0].as_object_mut().unwrap().remove("controller");
    let claim = json!({
        "apiVersion": "ipam.metal3.io/v1alpha1", "kind": "IPClaim",
        "metadata": {
            "name": name, "namespace": space.ns(), "finalizers": [DATA_FINALIZER],
            "ownerReferences": owner,
        },
        "spec": {"pool": {"name": "pool"}},
    });
    space.create(&claim).await.unwrap();
    name
}

/// All objects of a namespace that the guard could write to or read.
async fn everything(space: &Space) -> Vec<Value> {
    let mut all = Vec::new();
    for resource in [TEMPLATES, DATAS, CLAIMS, MACHINES] {
        let list = space.send(Method::GET, &space.url(resource, "", ""), None).await.unwrap();
        all.extend(list["items"].as_array().unwrap().clone());
    }
    all
}
