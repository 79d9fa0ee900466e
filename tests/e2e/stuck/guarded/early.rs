//! Early releases: CAPM3 1.8.1 takes its finalizer off a template that Metal3Data still need, and so
//! do people. Both are refused, and CAPM3 is told when it may.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{
    super::stand::{CLAIMS, DATAS, MACHINES, Stand, TEMPLATE, TEMPLATES, is_terminating},
    guarded,
    ledger::only_woken,
    say,
};
use crate::{
    e2e::Crds,
    support::{
        Behaviour, User,
        capm3::{Point, Role},
    },
};

/// Without the rule, three Metal3Data are left that nothing ever frees.
#[tokio::test]
async fn capm3_1994_an_early_release_is_refused_to_capm3_and_to_people() {
    let env = guarded().await;
    let stand = Stand::by_hand(env.plane, "early", Behaviour::v1_8_1()).await;
    let ns = stand.space.ns();
    // The template is looked at when nothing but its Metal3Data and dying claims are left.
    let template = stand.capm3.hold(Point::TemplateLook);
    for machine in &stand.machines {
        stand.delete(MACHINES, machine).await;
    }
    stand.none(MACHINES).await;
    // The garbage collector's doing.
    stand.all(CLAIMS, "terminating", is_terminating).await;
    assert!(stand.delete(TEMPLATES, TEMPLATE).await);
    stand.capm3.current().await;
    let data = stand.capm3.hold(Point::DataLook);
    let release = stand.capm3.hold(Point::TemplateRelease);
    drop(template);
    release.reached().await;
    stand.none(CLAIMS).await;
    assert_eq!(stand.list(DATAS).await.len(), 3);
    drop(release);

    stand.settled(Role::Template).await;
    assert!(env.guard.judged(ns, "release.needed") > 0);
    let journal = stand.capm3.journal();
    let told =
        |line: &&String| line.contains("is still needed by 3 Metal3Data: Metal3Data/workers-0");
    assert!(journal.iter().any(|line| told(&line)), "{journal:#?}");
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    let args = ["patch", "metal3datatemplate", TEMPLATE, "-n", ns, "--type=merge", "-p", patch];
    let said = env.plane.kubectl(User::Admin, &args).await.refused();
    for told in ["3 Metal3Data", "Metal3Data/workers-0", "Metal3Data/workers-1"] {
        assert!(said.contains(told), "no {told} in {said}");
    }

    drop(data);
    stand.none(DATAS).await;
    let last = Instant::now();
    // 1.8.1 has forgotten that it was refused, and would not look again.
    stand.none(TEMPLATES).await;
    let after = last.elapsed();
    let woken = only_woken(env.plane, &env.guard, ns).await;
    assert!(woken > 0);
    say(&format!(
        "{ns} ({:?}): released {:.1} s after its last Metal3Data, {} early releases refused, \
         {woken} wake-ups",
        Crds::of_binary(),
        after.as_secs_f64(),
        env.guard.judged(ns, "release.needed"),
    ));
}

/// Later releases try again by themselves, after pauses that grow to minutes; here it is an hour.
#[tokio::test]
async fn capm3_1994_capm3_need_not_wait_for_its_own_pause() {
    let env = guarded().await;
    let behaviour = Behaviour { requeue: Duration::from_hours(1), ..Behaviour::default() };
    let stand = Stand::live(env.plane, "paused", behaviour, 3).await;
    let data = stand.capm3.hold(Point::DataLook);
    for machine in &stand.machines {
        stand.delete(MACHINES, machine).await;
    }
    stand.none(MACHINES).await;
    stand.none(CLAIMS).await;
    assert!(stand.delete(TEMPLATES, TEMPLATE).await);
    stand.capm3.idle(&[Role::Template]).await;
    let kept = |it: &Value| is_terminating(it) && it["metadata"]["finalizers"].is_array();
    stand.all(TEMPLATES, "kept", kept).await;
    drop(data);
    stand.none(TEMPLATES).await;
    assert!(only_woken(env.plane, &env.guard, stand.space.ns()).await > 0);
}
