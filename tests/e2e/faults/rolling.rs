//! Guards are replaced one after the other, under load: no call fails.

use std::{io::Write as _, sync::Arc};

use super::{
    super::{Space, wait_registered},
    Own,
    load::Load,
};
use crate::support::{Forwarder, Guard, eventually};

#[tokio::test]
async fn a_rolling_restart_fails_no_call() {
    let own = Own::start().await;
    own.install_crds().await;
    let (mut first, mut second) = (own.guard().await, own.guard().await);
    let forwarder = Forwarder::start().await.unwrap();
    own.register(&first, &forwarder.address).await;
    for guard in [&first, &second] {
        guard.ready().await;
        forwarder.add(guard);
    }
    eventually("both guards to get calls", async || (forwarder.ready() == 2).then_some(())).await;
    let space = Arc::new(own.space("rolling").await);
    wait_registered(&space).await;

    let load = Load::start(&space).await;
    served(&first, &space).await;
    served(&second, &space).await;
    leaves(&mut first).await;
    let third = own.guard().await;
    third.ready().await;
    forwarder.add(&third);
    eventually("the successor to get calls", async || (forwarder.ready() == 2).then_some(())).await;
    leaves(&mut second).await;
    served(&third, &space).await;
    let (calls, failed) = load.stop().await;

    let shares = [&first, &second, &third].map(|guard| guard.reviews(space.ns()).len());
    let line = format!("rolling restart: {calls} calls, {} failed; {shares:?} each", failed.len());
    writeln!(std::io::stderr(), "{line}").ok();
    assert!(failed.is_empty(), "{} of {calls} failed: {failed:#?}", failed.len());
    assert_eq!(forwarder.lost(), 0, "connections that no guard took");
}

/// A guard that is told to leave does so by itself.
async fn leaves(guard: &mut Guard) {
    guard.signal("TERM").unwrap();
    eventually("the guard to drain and end", || {
        std::future::ready(guard.has_ended().then_some(()))
    })
    .await;
}

async fn served(guard: &Guard, space: &Space) {
    eventually("each guard to have its share", async || {
        (guard.reviews(space.ns()).len() >= 10).then_some(())
    })
    .await;
}
