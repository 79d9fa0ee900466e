//! New references to a template that is on its way out (rule 4.4). Without the guard each of these
//! machines and claims is made, and waits for ever for data that no template renders any more.

use http::Method;
use serde_json::{Value, json};

use super::{
    Env, Refused, Space, env,
    moves::{MARK, cluster, mark},
};
use crate::support::User;

#[tokio::test]
async fn new_machines_and_claims_are_refused() {
    let env = env().await;
    let space = env.space("references").await;
    let since = terminating(&space).await;
    space.create(&space.template("others")).await.unwrap();

    let refused = space.create(&space.machine("w-9", "workers")).await.unwrap_err();
    expect_refused(&refused, "Metal3Machine w-9", &since, "spec.dataTemplate");
    let refused = space.create(&space.claim("w-9", "workers")).await.unwrap_err();
    expect_refused(&refused, "Metal3DataClaim w-9", &since, "spec.template");
    let mut unnamed = space.machine("", "workers");
    unnamed["metadata"].as_object_mut().unwrap().remove("name");
    unnamed["metadata"]["generateName"] = json!("w-");
    assert_eq!(space.create(&unnamed).await.unwrap_err().code, 403);
    let machine = space.machine("w-9", "workers").to_string();
    let said = env.plane.kubectl_with(User::Admin, &["apply", "-f", "-"], &machine).await.refused();
    assert!(said.contains("may not start to use it"), "{said}");

    // One that used another template, or none.
    space.create(&space.machine("w-1", "others")).await.unwrap();
    space.create(&space.claim("w-1", "others")).await.unwrap();
    let switch = json!({"spec": {"dataTemplate": {"name": "workers"}}});
    let refused = space.patch("metal3machines", "w-1", "", switch.clone()).await.unwrap_err();
    expect_refused(&refused, "Metal3Machine w-1", &since, "spec.dataTemplate");
    let none = json!({"spec": {"dataTemplate": null}});
    space.patch("metal3machines", "w-1", "", none).await.unwrap();
    assert_eq!(space.patch("metal3machines", "w-1", "", switch).await.unwrap_err().code, 403);
    let switch = json!({"spec": {"template": {"name": "workers"}}});
    let refused = space.patch("metal3dataclaims", "w-1", "", switch).await.unwrap_err();
    expect_refused(&refused, "Metal3DataClaim w-1", &since, "spec.template");

    // Once it is gone and made again, all are welcome.
    finish_template(&space).await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.machine("w-9", "workers")).await.unwrap();
    space.create(&space.claim("w-9", "workers")).await.unwrap();
}

/// A refusal here would stop the machine's own deletion, and the template would wait for ever.
#[tokio::test]
async fn what_uses_it_already_is_updated_freely() {
    let env = env().await;
    let space = env.space("unchanged").await;
    space.create(&space.template("others")).await.unwrap();
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.machine("w-0", "workers")).await.unwrap();
    space.create(&space.machine("w-1", "workers")).await.unwrap();
    space.create(&space.claim("w-0", "workers")).await.unwrap();
    let force = json!({"metadata": {"annotations": {"metal3-guard.io/force-delete": "a test"}}});
    space.patch("metal3datatemplates", "workers", "", force).await.unwrap();
    space.delete("metal3datatemplates", "workers").await.unwrap();

    for resource in ["metal3machines", "metal3dataclaims"] {
        let labels = json!({"metadata": {"labels": {"touched": "yes"}}});
        let mut object = space.patch(resource, "w-0", "", labels).await.unwrap();
        // Written as a whole, with the reference in it.
        object["metadata"]["annotations"] = json!({"touched": "yes"});
        let url = space.url(resource, "w-0", "");
        space.send(Method::PUT, &url, Some(("application/json", &object))).await.unwrap();
        space.delete(resource, "w-0").await.unwrap();
        space.finish(resource, "w-0").await;
        space.gone(resource, "w-0").await;
    }
    // Away from it is always right.
    let switch = json!({"spec": {"dataTemplate": {"name": "others"}}});
    space.patch("metal3machines", "w-1", "", switch).await.unwrap();
    let denied = env.guard.reviews(space.ns()).into_iter().filter(|it| it["verdict"] == "deny");
    assert_eq!(denied.count(), 0);
}

#[tokio::test]
async fn warned_of_only() {
    let env = env().await;
    let space = env.space("warned").await;
    terminating(&space).await;
    for (object, warning) in [
        (
            space.machine_template("pool", "workers"),
            "Warning: Metal3DataTemplate workers is being deleted; new machines from pool will fail",
        ),
        (space.machine("w-0", "missing"), "Warning: Metal3DataTemplate missing does not exist yet"),
        (space.claim("w-0", "missing"), "Warning: Metal3DataTemplate missing does not exist yet"),
        (
            space.machine_template("other-pool", "missing"),
            "Warning: Metal3DataTemplate missing does not exist yet",
        ),
    ] {
        expect_warning(env, &object, warning).await;
    }
    // Nothing to say about a template that is there to stay.
    space.create(&space.template("others")).await.unwrap();
    for object in [space.machine("w-1", "others"), space.machine_template("third-pool", "others")] {
        let args = ["create", "-f", "-"];
        let ran = env.plane.kubectl_with(User::Admin, &args, &object.to_string()).await;
        assert!(ran.success && !ran.stderr.contains("Metal3DataTemplate"), "{ran:?}");
    }
}

/// `clusterctl move` makes objects again that are paused, or whose Cluster is, and in whatever order.
#[tokio::test]
async fn a_move_may_make_what_it_likes() {
    let env = env().await;
    let space = env.space("paused").await;
    terminating(&space).await;

    let mut paused = space.machine("paused", "workers");
    paused["metadata"]["annotations"] = json!({"cluster.x-k8s.io/paused": "true"});
    space.create(&paused).await.unwrap();

    // The Cluster that machines and claims of these tests name.
    space.create(&cluster(&space, "prod")).await.unwrap();
    assert_eq!(space.create(&space.machine("w-0", "workers")).await.unwrap_err().code, 403);
    let pause = |paused: bool| json!({"spec": {"paused": paused}});
    space.patch("clusters", "prod", "", pause(true)).await.unwrap();
    space.create(&space.machine("w-0", "workers")).await.unwrap();
    space.create(&space.claim("w-0", "workers")).await.unwrap();
    space.patch("clusters", "prod", "", pause(false)).await.unwrap();
    assert_eq!(space.create(&space.machine("w-1", "workers")).await.unwrap_err().code, 403);

    // A template that is moved away, terminating or not, and a machine that is.
    let mut moved = space.machine("moved", "workers");
    moved["metadata"]["annotations"] = json!({MARK: ""});
    space.create(&moved).await.unwrap();
    mark(&space, "metal3datatemplates", "workers").await;
    space.create(&space.machine("w-1", "workers")).await.unwrap();
    space.create(&space.claim("w-1", "workers")).await.unwrap();
}

/// Makes template `workers` terminating; since when.
async fn terminating(space: &Space) -> String {
    space.create(&space.template("workers")).await.unwrap();
    let deleted = space.delete("metal3datatemplates", "workers").await.unwrap();
    deleted["metadata"]["deletionTimestamp"].as_str().unwrap().to_owned()
}

async fn finish_template(space: &Space) {
    space.finish("metal3datatemplates", "workers").await;
    space.gone("metal3datatemplates", "workers").await;
}

fn expect_refused(refused: &Refused, who: &str, since: &str, field: &str) {
    assert_eq!((refused.code, &*refused.reason), (403, "Forbidden"), "{refused:?}");
    for told in [who, "workers is being deleted since", since] {
        assert!(refused.message.contains(told), "no {told} in {}", refused.message);
    }
    let [cause] = &*refused.causes else { panic!("{:?}", refused.causes) };
    assert_eq!(cause["field"], field);
}

async fn expect_warning(env: &Env, object: &Value, warning: &str) {
    let ran =
        env.plane.kubectl_with(User::Admin, &["create", "-f", "-"], &object.to_string()).await;
    assert!(ran.success && ran.stderr.contains(warning), "{warning}: {ran:?}");
}
