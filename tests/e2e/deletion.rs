//! Deleting a template (rule 4.1).

use http::Method;
use serde_json::json;

use super::{CLAIM_FINALIZER, MACHINE_FINALIZER, env, moment};
use crate::support::User;

#[tokio::test]
async fn a_template_used_by_a_live_machine_is_kept_with_all_holders_named() {
    let space = env().await.space("used").await;
    space.create(&space.template("workers")).await.unwrap();
    for n in 0..4 {
        space.create(&space.machine(&format!("w-{n}"), "workers")).await.unwrap();
    }
    let refused = space.delete("metal3datatemplates", "workers").await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (403, "Forbidden"));
    assert!(refused.message.contains("4 Metal3Machines"), "{}", refused.message);
    assert!(refused.message.contains("and 1 more"), "{}", refused.message);
    assert_eq!(refused.causes.len(), 4);
    assert!(
        space.get("metal3datatemplates", "workers").await.unwrap()["metadata"]
            .get("deletionTimestamp")
            .is_none()
    );
}

#[tokio::test]
async fn a_template_used_by_a_terminating_machine_is_kept() {
    let space = env().await.space("terminating").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.machine("w-0", "workers")).await.unwrap();
    space.delete("metal3machines", "w-0").await.unwrap();
    assert_eq!(space.delete("metal3datatemplates", "workers").await.unwrap_err().code, 403);
    space.finish("metal3machines", "w-0").await;
    space.gone("metal3machines", "w-0").await;
    space.delete("metal3datatemplates", "workers").await.unwrap();
}

#[tokio::test]
async fn a_machine_created_a_moment_ago_counts() {
    let space = env().await.space("moment").await;
    space.create(&space.template("workers")).await.unwrap();
    for n in 0..20 {
        let name = format!("w-{n}");
        space.create(&space.machine(&name, "workers")).await.unwrap();
        assert_eq!(space.delete("metal3datatemplates", "workers").await.unwrap_err().code, 403);
        space.delete("metal3machines", &name).await.unwrap();
        space.finish("metal3machines", &name).await;
    }
    space.delete("metal3datatemplates", "workers").await.unwrap();
}

#[tokio::test]
async fn kubectl_shows_the_reason() {
    let env = env().await;
    let space = env.space("kubectl").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.claim("w-0", "workers")).await.unwrap();
    let args = ["delete", "metal3datatemplate", "workers", "-n", space.ns(), "--wait=false"];
    let said = env.plane.kubectl(User::Admin, &args).await.refused();
    assert!(said.contains("is in use by 1 Metal3DataClaim: Metal3DataClaim/w-0"), "{said}");
    assert!(said.contains("(Forbidden)") || said.contains("Forbidden"), "{said}");
    moment().await;
    let _ = (Method::GET, json!({}), CLAIM_FINALIZER, MACHINE_FINALIZER);
}
