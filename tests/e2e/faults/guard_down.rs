//! The guard is gone: deletions of templates wait for it, nothing else does.

use futures_util::future::join_all;
use serde_json::json;

use super::{
    super::{Space, TEMPLATE_FINALIZER, moment, rules_off::indexes, wait_registered},
    Own, TEMPLATES, create_held, is_whole,
};
use crate::support::{Guard, User, eventually};

const HOOK: &str = r#"failed calling webhook "deletion.metal3-guard.io""#;

#[tokio::test]
async fn a_guard_that_is_killed_fails_deletions_and_holds_up_nothing_else() {
    let own = Own::start().await;
    own.install_crds().await;
    let mut guard = own.guard().await;
    own.register(&guard, &guard.address).await;
    guard.ready().await;
    let space = own.space("killed").await;
    wait_registered(&space).await;
    create_held(&space, "held").await;
    space.create(&space.template("free")).await.unwrap();
    let draining = space.template("draining");
    space.create(&draining).await.unwrap();
    space.create(&space.data("draining", 0, "gone")).await.unwrap();
    space.delete(TEMPLATES, "draining").await.unwrap();
    advice_is_taken(&space).await;

    killed_in_the_middle(&mut guard, &space).await;
    // With nobody on the port the API server knows at once.
    let refused = space.delete(TEMPLATES, "free").await.unwrap_err();
    assert!(refused.message.contains(HOOK), "{}", refused.message);
    nothing_else_waits(&space).await;

    let kubeconfig = own.plane.kubeconfig(User::Guard);
    let successor = eventually("another guard to listen on the address", async || {
        Guard::start(&own.plane, &kubeconfig, &guard.address, &[]).await.ok()
    })
    .await;
    successor.ready().await;
    let refused = space.delete(TEMPLATES, "held").await.unwrap_err();
    assert_eq!(refused.code, 403, "{}", refused.message);
    space.delete(TEMPLATES, "free").await.unwrap();
    assert!(!is_whole(&space, "free").await);
}

/// With the guard up, each of the writes of [`nothing_else_waits`] meets a rule.
async fn advice_is_taken(space: &Space) {
    let release = json!({"metadata": {"finalizers": null}});
    assert_eq!(space.patch(TEMPLATES, "draining", "", release).await.unwrap_err().code, 403);
    let machine = space.machine("newcomer", "draining");
    assert_eq!(space.create(&machine).await.unwrap_err().code, 403);
    let stored = space.patch(TEMPLATES, "free", "status", indexes(&[("gone", 3)])).await.unwrap();
    assert!(stored["status"].get("indexes").is_none(), "{stored}");
    space.create(&marked(space, "marked")).await.unwrap();
    let back = json!({"metadata": {"finalizers": [TEMPLATE_FINALIZER]}});
    assert_eq!(space.patch(TEMPLATES, "marked", "", back).await.unwrap_err().code, 422);
}

/// The hooks behind them are advisory.
async fn nothing_else_waits(space: &Space) {
    space.create(&space.machine("newcomer", "draining")).await.unwrap();
    let release = json!({"metadata": {"finalizers": null}});
    space.patch(TEMPLATES, "draining", "", release).await.unwrap();
    space.gone(TEMPLATES, "draining").await;
    let stored = space.patch(TEMPLATES, "free", "status", indexes(&[("gone", 3)])).await.unwrap();
    assert_eq!(stored["status"]["indexes"], indexes(&[("gone", 3)])["status"]["indexes"]);
    let back = json!({"metadata": {"finalizers": [TEMPLATE_FINALIZER]}});
    space.patch(TEMPLATES, "marked", "", back).await.unwrap();
}

/// The guard has the reviews and does not answer any more.
async fn killed_in_the_middle(guard: &mut Guard, space: &Space) {
    guard.signal("STOP").unwrap();
    let names = ["held", "free", "held", "free", "held", "free"];
    let deleting = join_all(names.iter().map(|name| space.delete(TEMPLATES, name)));
    let killing = async {
        moment().await;
        guard.kill();
    };
    let (outcomes, ()) = tokio::join!(deleting, killing);
    for outcome in outcomes {
        let refused = outcome.unwrap_err();
        assert_eq!((refused.code, &*refused.reason), (500, "InternalError"));
        assert!(refused.message.contains(HOOK), "{}", refused.message);
    }
    for name in ["held", "free"] {
        assert!(is_whole(space, name).await, "{name} was deleted without a verdict");
    }
}

fn marked(space: &Space, name: &str) -> serde_json::Value {
    let mut template = space.template(name);
    template["metadata"]["finalizers"] = json!([]);
    template["metadata"]["annotations"] =
        json!({"clusterctl.cluster.x-k8s.io/delete-for-move": ""});
    template
}
