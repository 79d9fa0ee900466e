//! An account that may read and not write: the role for repair was left out.

use serde_json::Value;
use tempfile::TempDir;

use super::{DATAS, TEMPLATES, events, quick, stuck};
use crate::{
    e2e::{commands::account, env},
    support::{Guard, User, eventually},
};

const ACCOUNT: &str = "reader";

/// It says which right is missing wherever it can, goes on, and heals once it has it. In a cluster
/// where no other controller acts, and where this one has rights in one namespace only.
#[tokio::test]
async fn a_missing_right_is_said_and_once_granted_all_is_healed() {
    let env = env().await;
    let space = env.space("rights").await;
    let folder = TempDir::new().unwrap();
    let config = account(&space, folder.path(), ACCOUNT).await;
    let who = format!("--serviceaccount={}:{ACCOUNT}", space.ns());
    let reads = format!("{}-reads", space.ns());
    let admin = async |args: &[&str]| env.plane.kubectl(User::Admin, args).await.ok();
    admin(&["create", "clusterrolebinding", &reads, "--clusterrole=metal3-guard", &who]).await;
    let events_only = ["--verb=create,patch", "--resource=events", "-n", space.ns()];
    admin(&[&["create", "role", "events"], &events_only[..]].concat()).await;
    admin(&["create", "rolebinding", "events", "--role=events", &who, "-n", space.ns()]).await;

    let guard = Guard::start(env.plane, &config, "127.0.0.1:0", &quick()).await.unwrap();
    guard.ready().await;
    stuck(&space, "workers", &[]).await;
    space.create(&space.data("workers", 0, "w-0")).await.unwrap();

    let refused = |words: &str| refusals(&guard, space.ns(), words);
    let missing = [
        format!("may not delete metal3datas {}/workers-0", space.ns()),
        format!("may not patch the status of metal3datatemplates {}/workers", space.ns()),
    ];
    for words in &missing {
        eventually(&format!("an audit line with {words:?}"), async || {
            // It does not give up either.
            (refused(words).len() > 1).then_some(())
        })
        .await;
        assert!(refused(words).iter().all(|line| line["result"] == "refused"));
        let said = eventually("an Event with the same words", async || {
            let said = events(&space).await;
            said.get("RepairFailed")?.iter().find(|it| it.contains(words)).cloned()
        })
        .await;
        assert!(said.contains("grant it in RBAC"), "{said}");
    }
    for step in ["delete-orphan", "prune"] {
        let labels = format!("step=\"{step}\",result=\"refused\"");
        assert!(guard.metric("metal3_guard_repair_steps_total", &labels).await >= 2.0, "{step}");
    }
    let data = space.get(DATAS, "workers-0").await.unwrap();
    assert_eq!(data["metadata"].get("deletionTimestamp"), None, "{data}");

    let repair = "--clusterrole=metal3-guard-repair";
    admin(&["create", "rolebinding", "repair", repair, &who, "-n", space.ns()]).await;
    eventually("the orphan to be deleted", async || {
        let data = space.get(DATAS, "workers-0").await?;
        data["metadata"].get("deletionTimestamp").map(drop)
    })
    .await;
    // As CAPM3 would, were it there.
    space.finish(DATAS, "workers-0").await;
    space.gone(TEMPLATES, "workers").await;
}

/// The audit lines of one namespace whose error has these words.
fn refusals(guard: &Guard, namespace: &str, words: &str) -> Vec<Value> {
    let mut log = guard.log();
    log.retain(|line| {
        line["message"] == "write"
            && line["namespace"] == namespace
            && line["error"].as_str().is_some_and(|error| error.contains(words))
    });
    log
}
