//! Deleting a template (rule 4.1), with a guard that is up to date.

use std::fs;

use http::Method;
use serde_json::{Value, json};

use super::{Env, Refused, Space, env};
use crate::support::{User, eventually};

const TEMPLATES: &str = "metal3datatemplates";

#[tokio::test]
async fn a_template_used_by_a_live_machine_is_kept_with_all_holders_named() {
    let space = env().await.space("used").await;
    space.create(&space.template("workers")).await.unwrap();
    for n in 0..4 {
        space.create(&space.machine(&format!("w-{n}"), "workers")).await.unwrap();
    }
    // Refused at once; the list of holders is the index's, which hears of the last ones in a moment.
    let refused = eventually("all holders to be named", async || {
        let refused = space.delete("metal3datatemplates", "workers").await.unwrap_err();
        assert_eq!((refused.code, &*refused.reason), (403, "Forbidden"));
        refused.message.contains("4 Metal3Machines").then_some(refused)
    })
    .await;
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
    assert!(said.contains("Forbidden"), "{said}");
    assert!(said.contains("Delete the machines that own these claims"), "{said}");
}

#[tokio::test]
async fn a_template_used_only_by_a_claim_is_kept_until_the_claim_drains() {
    let env = env().await;
    let space = env.space("claim").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.claim("w-0", "workers")).await.unwrap();
    space.create(&space.data("workers", 0, "w-0")).await.unwrap();
    let refused = space.delete(TEMPLATES, "workers").await.unwrap_err();
    assert_in_use(&refused, "1 Metal3DataClaim: Metal3DataClaim/w-0");

    space.delete("metal3dataclaims", "w-0").await.unwrap();
    let said = delete_with_warnings(env, &space, "workers", &[]).await;
    assert!(said.contains("1 Metal3DataClaim and 1 Metal3Data still to drain"), "{said}");
    // CAPM3's finalizer holds it as long as there is something to drain.
    assert!(is_terminating(&space, "workers").await);
    for (resource, name) in [("metal3datas", "workers-0"), ("metal3dataclaims", "w-0")] {
        space.delete(resource, name).await.unwrap();
        space.finish(resource, name).await;
        space.gone(resource, name).await;
    }
    assert!(is_terminating(&space, "workers").await);
    space.finish(TEMPLATES, "workers").await;
    space.gone(TEMPLATES, "workers").await;
}

#[tokio::test]
async fn a_free_template_goes_without_a_word() {
    let env = env().await;
    let space = env.space("free").await;
    space.create(&space.template("workers")).await.unwrap();
    // A machine of another template, and one without any, are no reason.
    space.create(&space.template("others")).await.unwrap();
    space.create(&space.machine("o-0", "others")).await.unwrap();
    let mut plain = space.machine("p-0", "");
    plain["spec"].as_object_mut().unwrap().remove("dataTemplate");
    space.create(&plain).await.unwrap();
    let said = delete_with_warnings(env, &space, "workers", &[]).await;
    assert!(!said.contains("Warning"), "{said}");
    assert!(is_terminating(&space, "workers").await);
    space.finish(TEMPLATES, "workers").await;
    space.gone(TEMPLATES, "workers").await;
}

#[tokio::test]
async fn a_reason_overrides_and_is_told_and_kept() {
    let env = env().await;
    let space = env.space("forced").await;
    space
        .create(&annotated(&space, "metal3-guard.io/force-delete", "hardware is gone"))
        .await
        .unwrap();
    space.create(&space.machine("w-0", "workers")).await.unwrap();
    let said = delete_with_warnings(env, &space, "workers", &[]).await;
    assert!(said.contains("Warning: deleted by override"), "{said}");
    assert!(said.contains("hardware is gone"), "{said}");
    assert!(is_terminating(&space, "workers").await);
    let noted = audited(env, &space, "workers", "deletion.metal3-guard.io/force-delete-reason");
    assert_eq!(noted.await, "hardware is gone");
}

#[tokio::test]
async fn an_override_without_a_reason_is_refused() {
    let space = env().await.space("unreasoned").await;
    space.create(&annotated(&space, "metal3-guard.io/force-delete", "")).await.unwrap();
    // Nothing uses it: only the missing reason stands against it.
    let refused = space.delete(TEMPLATES, "workers").await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (403, "Forbidden"));
    assert!(refused.message.contains("force-delete without a reason"), "{}", refused.message);
    assert!(!is_terminating(&space, "workers").await);
    let given = json!({"metadata": {"annotations": {"metal3-guard.io/force-delete": "test"}}});
    space.patch(TEMPLATES, "workers", "", given).await.unwrap();
    space.delete(TEMPLATES, "workers").await.unwrap();
}

#[tokio::test]
async fn a_move_deletes_what_is_used_and_does_not_ask() {
    let env = env().await;
    let space = env.space("moved").await;
    let key = "clusterctl.cluster.x-k8s.io/delete-for-move";
    space.create(&annotated(&space, key, "")).await.unwrap();
    space.create(&space.machine("w-0", "workers")).await.unwrap();
    space.delete(TEMPLATES, "workers").await.unwrap();
    assert!(is_terminating(&space, "workers").await);
    // The guard may be moved itself: a question to it would end the move.
    let asked = env.guard.reviews(space.ns());
    assert!(asked.iter().all(|it| it["path"] != "/validate/deletion"), "{asked:?}");
}

#[tokio::test]
async fn a_dry_run_says_the_same_and_deletes_nothing() {
    let env = env().await;
    let space = env.space("dry").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.template("spare")).await.unwrap();
    space.create(&space.machine("w-0", "workers")).await.unwrap();
    let url = |name| format!("{}?dryRun=All", space.url(TEMPLATES, name, ""));
    let refused = space.send(Method::DELETE, &url("workers"), None).await.unwrap_err();
    let for_real = space.delete(TEMPLATES, "workers").await.unwrap_err();
    assert_in_use(&refused, "1 Metal3Machine: Metal3Machine/w-0");
    assert_eq!((refused.code, refused.message), (for_real.code, for_real.message));

    space.send(Method::DELETE, &url("spare"), None).await.unwrap();
    delete_with_warnings(env, &space, "spare", &["--dry-run=server"]).await;
    for name in ["workers", "spare"] {
        assert!(!is_terminating(&space, name).await, "{name}");
    }
    let answers = env.guard.reviews(space.ns());
    assert!(answers.iter().any(|it| it["dry_run"] == true && it["name"] == "spare"), "{answers:?}");
}

#[tokio::test]
async fn cascades_change_nothing_about_the_answer() {
    let env = env().await;
    let space = env.space("cascade").await;
    space.create(&space.template("used")).await.unwrap();
    space.create(&space.machine("w-0", "used")).await.unwrap();
    for (cascade, policy) in [("foreground", "Foreground"), ("orphan", "Orphan")] {
        let cascade_flag = format!("--cascade={cascade}");
        let delete = |name| ["delete", TEMPLATES, name, "-n", space.ns(), "--wait=false"];
        let args = [&delete("used")[..], &[&cascade_flag]].concat();
        let said = env.plane.kubectl(User::Admin, &args).await.refused();
        assert!(said.contains("is in use by 1 Metal3Machine"), "{said}");
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy,
        });
        let (url, body) = (space.url(TEMPLATES, "used", ""), ("application/json", &options));
        let refused = space.send(Method::DELETE, &url, Some(body)).await.unwrap_err();
        assert_in_use(&refused, "1 Metal3Machine: Metal3Machine/w-0");
        // Neither that nor the finalizer of a garbage collector is left behind.
        let kept = space.get(TEMPLATES, "used").await.unwrap();
        assert!(kept["metadata"].get("deletionTimestamp").is_none());
        assert_eq!(kept["metadata"]["finalizers"], json!([super::TEMPLATE_FINALIZER]));

        let free = format!("free-{cascade}");
        space.create(&space.template(&free)).await.unwrap();
        let said = delete_with_warnings(env, &space, &free, &[&cascade_flag]).await;
        assert!(!said.contains("Warning"), "{said}");
        // The garbage collector takes its own finalizer off, with the hooks on.
        eventually("the garbage collector to be done", async || {
            let template = space.get(TEMPLATES, &free).await?;
            let left = &template["metadata"]["finalizers"];
            (*left == json!([super::TEMPLATE_FINALIZER])).then_some(())
        })
        .await;
        assert!(is_terminating(&space, &free).await);
        space.finish(TEMPLATES, &free).await;
        space.gone(TEMPLATES, &free).await;
    }
}

#[tokio::test]
async fn a_terminating_template_may_be_deleted_again() {
    let env = env().await;
    let space = env.space("again").await;
    let key = "metal3-guard.io/force-delete";
    space.create(&annotated(&space, key, "test")).await.unwrap();
    space.create(&space.machine("w-0", "workers")).await.unwrap();
    space.delete(TEMPLATES, "workers").await.unwrap();
    // Without the override, what allows the second one is that the first was granted.
    let none = json!({"metadata": {"annotations": {key: null}}});
    space.patch(TEMPLATES, "workers", "", none).await.unwrap();
    for _ in 0..2 {
        space.delete(TEMPLATES, "workers").await.unwrap();
        delete_with_warnings(env, &space, "workers", &[]).await;
    }
    assert!(is_terminating(&space, "workers").await);
}

#[tokio::test]
async fn of_all_templates_the_used_one_stays() {
    let env = env().await;
    let space = env.space("all").await;
    for name in ["a", "b", "c"] {
        space.create(&space.template(name)).await.unwrap();
    }
    space.create(&space.machine("w-0", "b")).await.unwrap();
    let args = ["delete", TEMPLATES, "--all", "-n", space.ns(), "--wait=false"];
    let said = env.plane.kubectl(User::Admin, &args).await.refused();
    assert!(said.contains(&format!("Metal3DataTemplate {}/b is in use", space.ns())), "{said}");
    for (name, goes) in [("a", true), ("b", false), ("c", true)] {
        assert_eq!(is_terminating(&space, name).await, goes, "{name}");
    }
}

#[tokio::test]
async fn a_collection_is_judged_object_by_object() {
    let env = env().await;
    let space = env.space("collection").await;
    for name in ["a", "b", "c"] {
        space.create(&space.template(name)).await.unwrap();
    }
    space.create(&space.machine("w-0", "b")).await.unwrap();
    let all = space.url(TEMPLATES, "", "");
    let refused = space.send(Method::DELETE, &all, None).await.unwrap_err();
    assert_in_use(&refused, "1 Metal3Machine: Metal3Machine/w-0");
    // The API server goes through them in order and stops at the first refusal.
    assert!(is_terminating(&space, "a").await);
    assert!(!is_terminating(&space, "b").await);

    space.delete("metal3machines", "w-0").await.unwrap();
    space.finish("metal3machines", "w-0").await;
    space.send(Method::DELETE, &all, None).await.unwrap();
    for name in ["a", "b", "c"] {
        assert!(is_terminating(&space, name).await, "{name}");
    }
    // Nothing left to ask about in a namespace without templates.
    let empty = env.space("collection").await;
    empty.send(Method::DELETE, &empty.url(TEMPLATES, "", ""), None).await.unwrap();
}

#[tokio::test]
async fn without_the_finalizer_what_drains_holds_too() {
    let space = env().await.space("unfinalized").await;
    let mut template = space.template("workers");
    template["metadata"]["finalizers"] = json!([]);
    space.create(&template).await.unwrap();
    space.create(&space.data("workers", 0, "w-0")).await.unwrap();
    space.delete("metal3datas", "workers-0").await.unwrap();
    // It would be gone at once, and the Metal3Data wait for it for ever.
    let refused = space.delete(TEMPLATES, "workers").await.unwrap_err();
    assert_in_use(&refused, "1 Metal3Data: Metal3Data/workers-0");
    assert!(refused.message.contains("lacks CAPM3's finalizer"), "{}", refused.message);
    space.finish("metal3datas", "workers-0").await;
    space.gone("metal3datas", "workers-0").await;
    space.delete(TEMPLATES, "workers").await.unwrap();
    space.gone(TEMPLATES, "workers").await;
}

#[tokio::test]
async fn a_machine_template_is_warned_of_and_holds_nothing() {
    let env = env().await;
    let space = env.space("machinetemplate").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.machine_template("blueprint", "workers")).await.unwrap();
    // It comes from the watch, which may be a moment behind.
    let expected = "Warning: new machines of Metal3MachineTemplate blueprint will fail";
    eventually("the warning", async || {
        let said = delete_with_warnings(env, &space, "workers", &["--dry-run=server"]).await;
        said.contains(expected).then_some(())
    })
    .await;
    let said = delete_with_warnings(env, &space, "workers", &[]).await;
    assert!(said.contains(expected), "{said}");
    assert!(is_terminating(&space, "workers").await);
}

#[tokio::test]
async fn names_count_within_their_namespace() {
    let env = env().await;
    let (used, free) = (env.space("names").await, env.space("names").await);
    for space in [&used, &free] {
        space.create(&space.template("workers")).await.unwrap();
    }
    // Its own namespace, spelled out, is a reference like any other.
    let mut machine = used.machine("w-0", "workers");
    machine["spec"]["dataTemplate"]["namespace"] = json!(used.ns());
    used.create(&machine).await.unwrap();
    free.delete(TEMPLATES, "workers").await.unwrap();
    let refused = used.delete(TEMPLATES, "workers").await.unwrap_err();
    assert_in_use(&refused, "1 Metal3Machine: Metal3Machine/w-0");
}

#[tokio::test]
async fn a_reference_to_another_namespace_holds_nothing() {
    let env = env().await;
    let (here, there) = (env.space("across").await, env.space("across").await);
    for space in [&here, &there] {
        space.create(&space.template("workers")).await.unwrap();
    }
    // CAPM3 serves no reference to another namespace: neither side is used by these.
    let mut machine = here.machine("w-0", "workers");
    machine["spec"]["dataTemplate"]["namespace"] = json!(there.ns());
    here.create(&machine).await.unwrap();
    let mut claim = here.claim("w-0", "workers");
    claim["spec"]["template"]["namespace"] = json!(there.ns());
    here.create(&claim).await.unwrap();
    there.delete(TEMPLATES, "workers").await.unwrap();
    here.delete(TEMPLATES, "workers").await.unwrap();
}

fn annotated(space: &Space, key: &str, value: &str) -> Value {
    let mut template = space.template("workers");
    template["metadata"]["annotations"] = json!({key: value});
    template
}

fn assert_in_use(refused: &Refused, by: &str) {
    assert_eq!((refused.code, &*refused.reason), (403, "Forbidden"), "{refused:?}");
    let expected = format!("is in use by {by}. ");
    assert!(refused.message.contains(&expected), "{expected:?} is not in {refused:?}");
}

async fn is_terminating(space: &Space, template: &str) -> bool {
    let template = space.get(TEMPLATES, template).await.unwrap();
    template["metadata"].get("deletionTimestamp").is_some()
}

/// Deletes with kubectl, which must succeed; what it says on standard error.
async fn delete_with_warnings(env: &Env, space: &Space, template: &str, more: &[&str]) -> String {
    let args = ["delete", TEMPLATES, template, "-n", space.ns(), "--wait=false"];
    let ran = env.plane.kubectl(User::Admin, &[&args[..], more].concat()).await;
    assert!(ran.success, "{}: {}", ran.command, ran.stderr);
    ran.stderr
}

/// What a webhook noted in the audit log about the deletion of a template.
async fn audited(env: &Env, space: &Space, template: &str, key: &str) -> String {
    eventually(&format!("{key} in the audit log"), async || {
        let log = fs::read_to_string(env.plane.audit_log()).ok()?;
        log.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|event| event["verb"] == "delete")
            .filter(|event| {
                let object = &event["objectRef"];
                object["namespace"] == space.ns() && object["name"] == template
            })
            .find_map(|event| event["annotations"][key].as_str().map(Into::into))
    })
    .await
}
