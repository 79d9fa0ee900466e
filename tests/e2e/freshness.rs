//! Verdicts while the watches lag: the index proposes, the API server confirms.
//!
//! These tests share a control plane of their own, whose one guard reaches it through a proxy, and
//! run one at a time: what a proxy holds back, it holds back from all of them.

use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::{Crds, Env, Refused, Space, prepare, wait_registered};
use crate::support::{ControlPlane, Guard, Proxy, Reads, User, Verb, eventually};

const TEMPLATES: &str = "metal3datatemplates";
const MACHINES: &str = "metal3machines";
const CLAIMS: &str = "metal3dataclaims";

struct Lagging {
    env: Env,
    proxy: Proxy,
}

/// The control plane of this module, with nothing held back.
async fn lagging() -> MutexGuard<'static, Lagging> {
    static LAGGING: OnceCell<Mutex<Lagging>> = OnceCell::const_new();
    let start = async || {
        let plane: &ControlPlane = Box::leak(Box::new(ControlPlane::start().await));
        prepare(plane).await;
        let proxy = Proxy::start(plane, User::Guard).unwrap();
        let guard = Guard::start(plane, proxy.kubeconfig(), "127.0.0.1:0", &[]).await.unwrap();
        guard.register(plane).await.unwrap();
        plane.bind(User::Guard, "metal3-guard").await;
        let env = Env { plane, guard };
        wait_registered(&env.space("registered").await).await;
        Mutex::new(Lagging { env, proxy })
    };
    let lagging = LAGGING.get_or_init(start).await.lock().await;
    lagging.proxy.release_watches();
    lagging.proxy.set_reads(Reads::Pass);
    lagging.synced().await;
    lagging
}

impl Lagging {
    /// Waits until all five watches have synced once.
    async fn synced(&self) {
        eventually("the watches to sync", async || {
            (self.synced_watches().await > 4.5).then_some(())
        })
        .await;
    }

    async fn synced_watches(&self) -> f64 {
        self.env.guard.metric("metal3_guard_watch_synced{", "").await
    }

    /// Waits until the index knows that these templates are held: then a verdict takes no list.
    async fn knows_to_be_held(&self, space: &Space, templates: &[&str]) {
        for template in templates {
            eventually(&format!("the index to know what uses {template}"), async || {
                self.proxy.forget();
                let refused = try_delete(space, template).await.err()?;
                assert_eq!(refused.code, 403, "{refused:?}");
                (self.proxy.count(Verb::List, space.ns()) == 0).then_some(())
            })
            .await;
        }
        self.proxy.forget();
    }

    /// Kills the guard and starts another in its place.
    async fn restart_guard(&mut self) {
        self.env.guard.kill();
        let address = self.env.guard.address.clone();
        let started = Guard::start(self.env.plane, self.proxy.kubeconfig(), &address, &[]);
        self.env.guard = started.await.unwrap();
    }
}

#[tokio::test]
async fn a_holder_that_the_watch_did_not_show_yet_counts() {
    let lagging = lagging().await;
    let space = lagging.env.space("unknown").await;
    for (name, holder) in
        [("machined", space.machine("m", "machined")), ("claimed", space.claim("c", "claimed"))]
    {
        space.create(&space.template(name)).await.unwrap();
        lagging.proxy.hold_watches();
        space.create(&holder).await.unwrap();
        lagging.proxy.forget();
        let refused = space.delete(TEMPLATES, name).await.unwrap_err();
        assert_eq!(refused.code, 403, "{refused:?}");
        // By the index alone it was free: nothing but the list found the holder.
        for resource in [MACHINES, CLAIMS] {
            assert_eq!(lagging.proxy.count_of(Verb::Get, resource, space.ns()), 0, "{resource}");
            assert!(lagging.proxy.count_of(Verb::List, resource, space.ns()) > 0, "{resource}");
        }
        lagging.proxy.release_watches();
        lagging.knows_to_be_held(&space, &[name]).await;
    }
    assert_eq!(lagging.proxy.writes(), 0, "the guard only reads");
}

#[tokio::test]
async fn a_holder_that_is_gone_does_not_count() {
    let lagging = lagging().await;
    let space = lagging.env.space("gone").await;
    for (name, resource, holder) in [
        ("machined", MACHINES, space.machine("w", "machined")),
        ("claimed", CLAIMS, space.claim("w", "claimed")),
    ] {
        space.create(&space.template(name)).await.unwrap();
        space.create(&holder).await.unwrap();
        lagging.knows_to_be_held(&space, &[name]).await;
        lagging.proxy.hold_watches();
        space.delete(resource, "w").await.unwrap();
        space.finish(resource, "w").await;
        space.gone(resource, "w").await;
        space.delete(TEMPLATES, name).await.unwrap();
        // By the index alone it was held.
        assert_eq!(lagging.proxy.count_of(Verb::Get, resource, space.ns()), 1);
        lagging.proxy.release_watches();
    }
}

#[tokio::test]
async fn holders_that_changed_are_seen_as_they_are() {
    let lagging = lagging().await;
    let space = lagging.env.space("changed").await;
    for name in ["workers", "others"] {
        space.create(&space.template(name)).await.unwrap();
    }
    let before: Vec<_> = (0..5).map(|n| format!("w-{n}")).collect();
    for name in &before {
        space.create(&space.machine(name, "workers")).await.unwrap();
    }
    space.create(&space.machine("moves", "others")).await.unwrap();
    lagging.knows_to_be_held(&space, &["workers", "others"]).await;

    lagging.proxy.hold_watches();
    let point_to = |template: &str| json!({"spec": {"dataTemplate": {"name": template}}});
    space.patch(MACHINES, "moves", "", point_to("workers")).await.unwrap();
    for name in &before {
        space.delete(MACHINES, name).await.unwrap();
        space.finish(MACHINES, name).await;
    }
    // All that the index knows is gone, and what it knows of the other template is the one here.
    let refused = space.delete(TEMPLATES, "workers").await.unwrap_err();
    let expected = "in use by 1 Metal3Machine: Metal3Machine/moves.";
    assert!(refused.message.contains(expected), "{}", refused.message);
    assert_eq!(refused.causes.len(), 1);
    space.delete(TEMPLATES, "others").await.unwrap();
    lagging.proxy.release_watches();
}

#[tokio::test]
async fn a_guard_without_an_index_answers_from_live_reads() {
    let mut lagging = lagging().await;
    let space = lagging.env.space("unsynced").await;
    for name in ["machined", "claimed", "free"] {
        space.create(&space.template(name)).await.unwrap();
    }
    space.create(&space.machine("w", "machined")).await.unwrap();
    space.create(&space.claim("w", "claimed")).await.unwrap();

    lagging.proxy.hold_watches();
    lagging.proxy.set_reads(Reads::Hang);
    lagging.restart_guard().await;
    eventually("the guard to say why it is not ready", async || {
        let (status, body) = lagging.env.guard.get("/readyz").await.ok()?;
        (status == 503 && body.contains("did not answer in time")).then_some(())
    })
    .await;
    let refused = space.delete(TEMPLATES, "free").await.unwrap_err();
    assert_unverified(&refused);

    lagging.proxy.set_reads(Reads::Pass);
    lagging.env.guard.ready().await;
    for name in ["machined", "claimed"] {
        let refused = space.delete(TEMPLATES, name).await.unwrap_err();
        assert_eq!(refused.code, 403, "{refused:?}");
    }
    let stored = write_indexes(&space, "machined", &[("w", 0), ("nobody", 1)]).await;
    assert_eq!(stored, indexes(&[("w", 0)]), "from the lists of claims and data");
    space.delete(TEMPLATES, "free").await.unwrap();
    assert!(lagging.synced_watches().await < 1.0, "the watches were held from the start");

    lagging.proxy.release_watches();
    lagging.synced().await;
    lagging.knows_to_be_held(&space, &["machined", "claimed"]).await;
}

#[tokio::test]
async fn reads_that_hang_make_a_denial_with_a_reason() {
    let lagging = lagging().await;
    let space = lagging.env.space("hanging").await;
    for name in ["held", "free"] {
        space.create(&space.template(name)).await.unwrap();
    }
    space.create(&space.machine("w", "held")).await.unwrap();
    lagging.knows_to_be_held(&space, &["held"]).await;

    lagging.proxy.set_reads(Reads::Hang);
    let (held, free) =
        tokio::join!(space.delete(TEMPLATES, "held"), space.delete(TEMPLATES, "free"));
    assert_unverified(&held.unwrap_err());
    assert_unverified(&free.unwrap_err());

    // Slow is no reason to refuse: it is in time.
    lagging.proxy.set_reads(Reads::Slow(Duration::from_millis(500)));
    eventually("the reads to work again", async || match try_delete(&space, "free").await {
        Ok(_) => Some(()),
        Err(refused) => {
            assert_eq!(refused.code, 503, "{refused:?}");
            None
        }
    })
    .await;
    let refused = space.delete(TEMPLATES, "held").await.unwrap_err();
    assert_eq!(refused.code, 403, "{refused:?}");
    space.delete(TEMPLATES, "free").await.unwrap();
}

#[tokio::test]
async fn a_storm_of_deletes_is_no_storm_of_lists() {
    const DELETES: usize = 200;
    let lagging = lagging().await;
    let space = lagging.env.space("storm").await;
    let names: Vec<_> = (0..DELETES).map(|n| format!("t-{n:03}")).collect();
    let made = join_all(names.iter().map(async |name| space.create(&space.template(name)).await));
    made.await.into_iter().collect::<Result<Vec<_>, _>>().unwrap();

    // A list takes a while, so that many questions come meanwhile however slow this machine is.
    lagging.proxy.set_reads(Reads::Slow(Duration::from_millis(500)));
    lagging.proxy.forget();
    let free = join_all(names.iter().map(async |name| try_delete(&space, name).await)).await;
    lagging.proxy.set_reads(Reads::Pass);
    for (name, answer) in names.iter().zip(free) {
        assert!(answer.is_ok(), "{name}: {answer:?}");
    }
    let lists = lagging.proxy.count(Verb::List, space.ns());
    assert!((3..=3 * 30).contains(&lists), "{lists} lists for {DELETES} deletions");
    assert_eq!(lagging.proxy.count(Verb::Get, space.ns()), 0);

    let machines = names.iter().map(async |name| space.create(&space.machine(name, name)).await);
    join_all(machines).await.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    let all: Vec<_> = names.iter().map(String::as_str).collect();
    lagging.knows_to_be_held(&space, &all).await;
    let held = join_all(all.iter().map(async |name| try_delete(&space, name).await)).await;
    for (name, answer) in names.iter().zip(held) {
        let refused = answer.unwrap_err();
        let expected = format!("in use by 1 Metal3Machine: Metal3Machine/{name}.");
        assert!(refused.code == 403 && refused.message.contains(&expected), "{refused:?}");
    }
    assert_eq!(lagging.proxy.count(Verb::List, space.ns()), 0);
    assert_eq!(lagging.proxy.count(Verb::Get, space.ns()), DELETES, "the holder of each, once");
}

#[tokio::test]
async fn an_entry_of_a_claim_that_was_just_created_is_kept() {
    let lagging = lagging().await;
    let space = lagging.env.space("entries").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.claim("known", "workers")).await.unwrap();
    lagging.knows_to_be_held(&space, &["workers"]).await;

    lagging.proxy.hold_watches();
    space.create(&space.claim("new", "workers")).await.unwrap();
    space.create(&space.data("workers", 7, "gone")).await.unwrap();
    let all = [("known", 0), ("new", 1), ("gone", 7), ("nobody", 3)];
    let kept = [("known", 0), ("new", 1), ("gone", 7)];
    // By the index alone all but the first were stale.
    assert_eq!(write_indexes(&space, "workers", &all).await, indexes(&kept));
    // So many that both kinds are listed.
    let many: Vec<_> = (20..40).map(|n| (format!("nobody-{n}"), n)).collect();
    let mut written = all.to_vec();
    written.extend(many.iter().map(|(name, n)| (&**name, *n)));
    lagging.proxy.forget();
    assert_eq!(write_indexes(&space, "workers", &written).await, indexes(&kept));
    assert!(lagging.proxy.count_of(Verb::List, CLAIMS, space.ns()) > 0);
    lagging.proxy.release_watches();
}

#[tokio::test]
async fn kinds_that_are_installed_later_count_at_once() {
    // It asks every 10 s which kinds there are; in between it must not take "not served" for
    // "nothing there".
    let plane: &ControlPlane = Box::leak(Box::new(ControlPlane::start().await));
    let config = plane.kubeconfig(User::Guard);
    let guard = Guard::start(plane, &config, "127.0.0.1:0", &[]).await.unwrap();
    guard.register(plane).await.unwrap();
    plane.bind(User::Guard, "metal3-guard").await;
    guard.ready().await;
    for file in Crds::of_binary().files() {
        plane.install_crds(&file).await;
    }
    let env = Env { plane, guard };
    wait_registered(&env.space("registered").await).await;
    let space = env.space("installed").await;
    for (name, holder) in
        [("machined", space.machine("m", "machined")), ("claimed", space.claim("c", "claimed"))]
    {
        space.create(&space.template(name)).await.unwrap();
        space.create(&holder).await.unwrap();
        let refused = space.delete(TEMPLATES, name).await.unwrap_err();
        assert_eq!(refused.code, 403, "{refused:?}");
    }
}

/// A deletion without consequences.
async fn try_delete(space: &Space, template: &str) -> Result<Value, Refused> {
    let url = format!("{}?dryRun=All", space.url(TEMPLATES, template, ""));
    space.send(Method::DELETE, &url, None).await
}

/// The guard's own words, not those of an API server that waited in vain.
fn assert_unverified(refused: &Refused) {
    assert_eq!((refused.code, &*refused.reason), (503, "ServiceUnavailable"), "{refused:?}");
    assert!(refused.message.contains("could not verify"), "{refused:?}");
    assert!(refused.message.contains("in time. Nothing was deleted; retry"), "{refused:?}");
    assert_eq!(refused.retry_after, 5, "{refused:?}");
}

/// Writes `status.indexes` as CAPM3 does; what was stored.
async fn write_indexes(space: &Space, template: &str, entries: &[(&str, i64)]) -> Value {
    let patch = json!({"status": {"indexes": indexes(entries)}});
    let stored = space.patch(TEMPLATES, template, "status", patch).await.unwrap();
    stored["status"]["indexes"].clone()
}

/// In the shape of this binary's version.
fn indexes(entries: &[(&str, i64)]) -> Value {
    match Crds::of_binary() {
        Crds::V1beta1 => entries
            .iter()
            .map(|(name, index)| ((*name).into(), json!(index)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Crds::V1beta2 => {
            entries.iter().map(|(name, index)| json!({"index": index, "name": name})).collect()
        }
    }
}
