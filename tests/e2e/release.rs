//! Taking CAPM3's finalizer off a terminating template (rule 4.5). Without the guard each early
//! release here goes through, and what still needs the template waits for it for ever.

use serde_json::{Value, json};

use super::{MACHINE_FINALIZER, Refused, Space, TEMPLATE_FINALIZER, env, moves::mark};
use crate::support::{User, eventually};

const TEMPLATES: &str = "metal3datatemplates";

/// CAPM3 1.8.1 does this when the last claim goes in the same pass; people do it to get on.
#[tokio::test]
async fn refused_as_long_as_metal3data_is_left() {
    let env = env().await;
    let mut space = env.space("release").await;
    ending(&space, &[space.data("workers", 0, "w-0"), space.data("workers", 1, "w-1")]).await;
    let admin = space.client.clone();

    let patch = r#"{"metadata":{"finalizers":null}}"#;
    let args =
        ["patch", "metal3datatemplate", "workers", "-n", space.ns(), "--type=merge", "-p", patch];
    let said = env.plane.kubectl(User::Admin, &args).await.refused();
    for told in ["Forbidden", "2 Metal3Data", "Metal3Data/workers-0", "Metal3Data/workers-1"] {
        assert!(said.contains(told), "no {told} in {said}");
    }
    space.client = env.plane.client(User::Capm3).await;
    expect_refused(&release(&space).await, &["Metal3Data/workers-0", "Metal3Data/workers-1"]);

    // Deleted is not gone: its own controller needs the template to finish it.
    space.client = admin;
    space.delete("metal3datas", "workers-0").await.unwrap();
    expect_refused(&release(&space).await, &["Metal3Data/workers-0", "Metal3Data/workers-1"]);
    space.finish("metal3datas", "workers-0").await;
    // Refused all the time; that one of them is gone is heard of a moment later.
    let refused = eventually("the refusal to name one", async || {
        let refused = release(&space).await;
        let causes = refused.as_ref().unwrap_err().causes.len();
        (causes == 1).then_some(refused)
    })
    .await;
    expect_refused(&refused, &["Metal3Data/workers-1"]);
    space.delete("metal3datas", "workers-1").await.unwrap();
    expect_refused(&release(&space).await, &["Metal3Data/workers-1"]);
    space.finish("metal3datas", "workers-1").await;
    space.client = env.plane.client(User::Capm3).await;
    release(&space).await.unwrap();
    assert!(space.get(TEMPLATES, "workers").await.is_none());
}

/// Only the template's controller takes that finalizer off a claim.
#[tokio::test]
async fn a_claim_holds_with_its_finalizer_only() {
    let env = env().await;
    let mut space = env.space("release-claim").await;
    // A live claim would hold the template's deletion too; this one ends with the template.
    ending(&space, &[]).await;
    space.client = env.plane.client(User::Capm3).await;
    let paused = json!({"cluster.x-k8s.io/paused": ""});
    let mut claim = space.claim("w-0", "workers");
    claim["metadata"]["annotations"] = paused.clone();
    space.create(&claim).await.unwrap();
    expect_refused(&release(&space).await, &["Metal3DataClaim/w-0"]);
    space.delete("metal3dataclaims", "w-0").await.unwrap();
    expect_refused(&release(&space).await, &["Metal3DataClaim/w-0"]);
    let machine_only = json!({"metadata": {"finalizers": [MACHINE_FINALIZER]}});
    space.patch("metal3dataclaims", "w-0", "", machine_only).await.unwrap();
    // Nor does a machine need it.
    let mut machine = space.machine("w-0", "workers");
    machine["metadata"]["annotations"] = paused;
    space.create(&machine).await.unwrap();
    release(&space).await.unwrap();
    assert!(space.get(TEMPLATES, "workers").await.is_none());
}

#[tokio::test]
async fn a_mark_of_clusterctl_or_a_reason_lets_it_go() {
    let env = env().await;
    let space = env.space("override").await;
    let data = [space.data("workers", 0, "w-0")];

    ending(&space, &data).await;
    mark(&space, TEMPLATES, "workers").await;
    release(&space).await.unwrap();
    assert!(space.get(TEMPLATES, "workers").await.is_none());

    // A reason must be one.
    ending(&space, &[]).await;
    let forced = |reason: &str| json!({"metadata": {"annotations": {"metal3-guard.io/force-delete": reason}}});
    space.patch(TEMPLATES, "workers", "", forced(" ")).await.unwrap();
    expect_refused(&release(&space).await, &["Metal3Data/workers-0"]);
    space.patch(TEMPLATES, "workers", "", forced("host is scrap")).await.unwrap();
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    let args =
        ["patch", "metal3datatemplate", "workers", "-n", space.ns(), "--type=merge", "-p", patch];
    let ran = env.plane.kubectl(User::Admin, &args).await;
    assert!(ran.success && ran.stderr.contains("Warning: released by override"), "{ran:?}");
    assert!(ran.stderr.contains("host is scrap"), "{ran:?}");
    assert!(space.get(TEMPLATES, "workers").await.is_none());

    // In the same write.
    ending(&space, &[]).await;
    let mut both = forced("host is scrap");
    both["metadata"]["finalizers"] = json!(null);
    space.patch(TEMPLATES, "workers", "", both).await.unwrap();
    assert!(space.get(TEMPLATES, "workers").await.is_none());
    assert!(space.get("metal3datas", "workers-0").await.is_some());
}

#[tokio::test]
async fn other_writes_are_free() {
    let env = env().await;
    let space = env.space("foreign").await;
    let foreign = "z.example.com/last";
    // As long as it is not deleted, even CAPM3's own finalizer may go.
    space.create(&space.template("live")).await.unwrap();
    space.create(&space.data("live", 0, "w-0")).await.unwrap();
    space.finish(TEMPLATES, "live").await;

    ending(&space, &[space.data("workers", 0, "w-0")]).await;
    let mut all = space.get(TEMPLATES, "workers").await.unwrap();
    assert_eq!(all["metadata"]["finalizers"], json!([TEMPLATE_FINALIZER, foreign]));
    all["metadata"]["labels"]["touched"] = json!("yes");
    let labels = json!({"metadata": {"labels": all["metadata"]["labels"]}});
    space.patch(TEMPLATES, "workers", "", labels).await.unwrap();
    let own_only = json!({"metadata": {"finalizers": [TEMPLATE_FINALIZER]}});
    let stored = space.patch(TEMPLATES, "workers", "", own_only).await.unwrap();
    assert_eq!(stored["metadata"]["finalizers"], json!([TEMPLATE_FINALIZER]));
    let denied = env.guard.reviews(space.ns()).into_iter().filter(|it| it["verdict"] == "deny");
    assert_eq!(denied.count(), 0);
    expect_refused(&release(&space).await, &["Metal3Data/workers-0"]);
}

/// Template `workers`, terminating, with a finalizer of somebody else beside CAPM3's, and what uses
/// it.
async fn ending(space: &Space, users: &[Value]) {
    let mut template = space.template("workers");
    template["metadata"]["finalizers"] = json!([TEMPLATE_FINALIZER, "z.example.com/last"]);
    space.create(&template).await.unwrap();
    for user in users {
        space.create(user).await.unwrap();
    }
    space.delete(TEMPLATES, "workers").await.unwrap();
}

/// Takes all finalizers off the template.
async fn release(space: &Space) -> Result<Value, Refused> {
    space.patch(TEMPLATES, "workers", "", json!({"metadata": {"finalizers": null}})).await
}

fn expect_refused(released: &Result<Value, Refused>, blockers: &[&str]) {
    let refused = released.as_ref().unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (403, "Forbidden"), "{refused:?}");
    assert!(refused.message.contains("is still needed by"), "{}", refused.message);
    for blocker in blockers {
        assert!(refused.message.contains(blocker), "no {blocker} in {}", refused.message);
    }
    assert_eq!(refused.causes.len(), blockers.len(), "{:?}", refused.causes);
}
