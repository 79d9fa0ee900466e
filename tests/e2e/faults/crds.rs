//! Metal3's CRDs come after the guard, go, and come again.

use std::{path::Path, sync::Arc};

use super::{
    super::{Crds, Space, moment, wait_registered},
    Own, Probe, TEMPLATES, create_held, is_whole,
};
use crate::support::{Guard, User, eventually};

#[tokio::test]
async fn crds_may_come_and_go_under_a_running_guard() {
    let own = Own::start().await;
    let guard = Arc::new(own.guard().await);
    own.register(&guard, &guard.address).await;
    guard.ready().await; // with not one of its kinds served
    let ready = Probe::start(&guard);
    let space = own.space("crds").await;

    own.install_crds().await;
    rules_hold_at_once(&space).await;
    machines_synced_after(&guard, 0).await;
    wait_registered(&space).await;

    everything_goes(&space).await;
    remove_crds(&own).await;
    moment().await; // the watches find nothing to watch
    let before = machines_synced(&guard);
    own.install_crds().await;
    rules_hold_at_once(&space).await;
    machines_synced_after(&guard, before).await;
    ready.finish().await;
}

/// From the first object on: what the guard knew of the served kinds is old by now, and believing
/// it would mean that nothing uses a template. Until the API server serves them well, the verdict
/// may be that nothing could be verified; it is never that the template may go.
async fn rules_hold_at_once(space: &Space) {
    create_held(space, "held").await;
    space.create(&space.template("free")).await.unwrap();
    eventually("the verdict by the rule", async || {
        let refused = space.delete(TEMPLATES, "held").await.unwrap_err();
        assert!(matches!(refused.code, 403 | 503), "{refused:?}");
        refused.message.contains("is in use by 1 Metal3Machine").then_some(())
    })
    .await;
    assert!(is_whole(space, "held").await);
    eventually("a free template to go", async || space.delete(TEMPLATES, "free").await.ok()).await;
}

/// Not only live reads: the watch of machines fills the index again. A kind that is not served
/// never counts as synced in the log.
async fn machines_synced_after(guard: &Guard, times: usize) {
    eventually("the watch of machines to sync", async || {
        (machines_synced(guard) > times).then_some(())
    })
    .await;
}

fn machines_synced(guard: &Guard) -> usize {
    let log = guard.log();
    let synced = log.iter().filter(|line| line["message"] == "synced");
    synced.filter(|line| line["kind"] == "Metal3Machine").count()
}

async fn everything_goes(space: &Space) {
    space.delete("metal3machines", "held-0").await.unwrap();
    space.finish("metal3machines", "held-0").await;
    space.gone("metal3machines", "held-0").await;
    space.delete(TEMPLATES, "held").await.unwrap();
    for name in ["held", "free", "probe"] {
        space.finish(TEMPLATES, name).await;
    }
}

async fn remove_crds(own: &Own) {
    let wait = ["--ignore-not-found", "--wait=true", "--timeout=100s"];
    for file in Crds::of_binary().files() {
        let mut args = vec!["delete", "-f", path(&file)];
        args.extend(wait);
        own.plane.kubectl(User::Admin, &args).await.ok();
    }
}

fn path(file: &Path) -> &str {
    file.to_str().unwrap()
}
