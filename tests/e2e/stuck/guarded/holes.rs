//! The other holes of CAPM3 with the guard: closed, healed by waking, repaired, or told.

use futures_util::future::join_all;
use serde_json::json;

use super::{
    super::{
        setups::{
            all_releases, index_given_away, of_binary, orphaned, owner_gone, paused, without_claim,
            without_index,
        },
        stand::{CLAIMS, DATAS, MACHINES, Stand, TEMPLATE, TEMPLATES, is_terminating},
    },
    guarded,
    ledger::{done, only_woken},
};
use crate::{
    e2e::{Env, commands::run},
    support::{
        Behaviour, User,
        capm3::{ALL, Point, Release, Role},
        eventually,
    },
};

/// H1, closed: the machine holds the template before it has a claim.
#[tokio::test]
async fn capm3_1994_h1_a_machine_that_waits_for_its_host_holds_the_template() {
    let env = guarded().await;
    join_all(all_releases().map(async |behaviour| {
        let stand = Stand::empty(env.plane, "h1", behaviour).await;
        let hosts = stand.capm3.hold(Point::MachineLook);
        stand.create_machine("w-0").await;
        hosts.reached().await;
        let refused = stand.space.delete(TEMPLATES, TEMPLATE).await.unwrap_err();
        assert!(refused.message.contains("Metal3Machine/w-0"), "{refused:?}");
        drop(hosts);
        stand.exists(DATAS, "workers-0").await;
        only_woken(env.plane, &env.guard, stand.space.ns()).await;
    }))
    .await;
}

/// H2 and H3, told: while the only machine is being replaced, nothing but its machine template
/// names the template. That holds nothing, and is said in a warning.
#[tokio::test]
async fn capm3_1994_h2_h3_who_deletes_the_template_of_a_machine_template_is_warned() {
    let env = guarded().await;
    join_all(all_releases().map(async |behaviour| {
        let stand = Stand::live(env.plane, "h3", behaviour, 1).await;
        let ns = stand.space.ns();
        let machine_template = stand.space.machine_template("workers", TEMPLATE);
        stand.space.create(&machine_template).await.unwrap();
        let hosts = stand.delete_machines().await;
        assert!(!stand.delete(TEMPLATES, TEMPLATE).await, "its machine is still there");
        stand.release_hosts_one_by_one(hosts).await;
        stand.touch_all_until_gone(DATAS).await;
        let args = ["delete", "metal3datatemplate", TEMPLATE, "-n", ns, "--wait=false"];
        let ran = env.plane.kubectl(User::Admin, &args).await;
        let warned = "Warning: new machines of Metal3MachineTemplate workers will fail";
        assert!(ran.success && ran.stderr.contains(warned), "{ran:?}");
        stand.none(TEMPLATES).await;
        let machine = stand.space.machine("w-1", TEMPLATE).to_string();
        let ran =
            env.plane.kubectl_with(User::Admin, &["create", "-n", ns, "-f", "-"], &machine).await;
        let warned = format!("Metal3DataTemplate {TEMPLATE} does not exist yet");
        assert!(ran.success && ran.stderr.contains(&warned), "{ran:?}");
    }))
    .await;
}

/// H4, healed: the template is not released before its claim, and CAPM3 is woken for it.
#[tokio::test]
async fn capm3_1994_h4_a_claim_whose_write_is_lost_is_looked_at_again() {
    let env = guarded().await;
    join_all(all_releases().map(async |behaviour| {
        let stand = Stand::empty(env.plane, "h4", behaviour).await;
        let ns = stand.space.ns();
        stand.create_claim("w-0", None).await;
        stand.all(CLAIMS, "seen", |it| !it["metadata"]["finalizers"].is_null()).await;
        assert!(!stand.delete(TEMPLATES, TEMPLATE).await, "a live claim uses it");
        let write = stand.capm3.hold(Point::ClaimRelease);
        stand.delete(CLAIMS, "w-0").await;
        write.reached().await;
        write.lose_all();
        assert!(stand.delete(TEMPLATES, TEMPLATE).await);
        eventually("an early release to be refused", async || {
            (env.guard.judged(ns, "release.needed") > 0).then_some(())
        })
        .await;
        // No event is on its way any more that would heal it.
        stand.settled(Role::Template).await;
        drop(write);
        stand.none(CLAIMS).await;
        stand.none(TEMPLATES).await;
        let woken = only_woken(env.plane, &env.guard, ns).await;
        // The others try again by themselves.
        assert!(woken > 0 || behaviour.release != Release::V1_8_1);
    }))
    .await;
}

/// H5, H11, H12 and H16, repaired: one step each, and only after the grace period. All else is done
/// by CAPM3.
#[tokio::test]
async fn capm3_1994_h5_h11_h12_h16_metal3data_that_nobody_else_would_end_are_ended() {
    let env = guarded().await;
    tokio::join!(h5_h16(env), h11(env), h12(env));
}

/// H5 and H16, repaired: one finalizer, which nobody else would take off. All else is CAPM3's.
async fn h5_h16(env: &Env) {
    join_all(all_releases().map(async |behaviour| {
        let stand = orphaned(env.plane, behaviour).await;
        stand.delete(TEMPLATES, TEMPLATE).await;
        stand.delete_namespace().await;
        stand.all(DATAS, "terminating", is_terminating).await;
        stand.namespace_gone().await;
        assert_eq!(repaired(env, &stand).await, ["free-orphan Metal3Data/workers-0"]);
    }))
    .await;
}

/// H11, told and repaired: the Metal3Data over which CAPM3 falls was made for no claim, so it is deleted
/// after its template was. In v1beta1 CAPM3 carries on.
async fn h11(env: &Env) {
    let stand = without_index(env.plane, of_binary()).await;
    let config = env.plane.kubeconfig(User::Admin);
    let said = run(&config, &["diagnose", TEMPLATE, "-n", stand.space.ns()]).await;
    let flat = said.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = flat.contains("CAPM3 stops at Metal3Data without an index");
    assert_eq!(told, stand.behaviour.release == Release::Later, "{said:?}");
    stand.delete(MACHINES, "w-0").await;
    stand.none(MACHINES).await;
    assert!(stand.delete(TEMPLATES, TEMPLATE).await);
    stand.none(TEMPLATES).await;
    stand.none(DATAS).await;
    assert_eq!(repaired(env, &stand).await, ["delete-orphan Metal3Data/workers-9"]);
}

/// H12, closed: no release lets the template go before such a Metal3Data; and repaired: nobody
/// deletes it, whose template was.
async fn h12(env: &Env) {
    let behaviour = of_binary();
    let stand = without_claim(env.plane, behaviour).await;
    assert!(stand.delete(TEMPLATES, TEMPLATE).await);
    stand.none(DATAS).await;
    stand.none(TEMPLATES).await;
    assert_eq!(repaired(env, &stand).await, ["delete-orphan Metal3Data/workers-0"]);
    let refused = env.guard.judged(stand.space.ns(), "release.needed");
    assert_eq!(refused > 0, behaviour.release == Release::Later);
}

/// H6, told: the claim that stops all others is named, and its owner ends it. The template stays
/// for the machine that it stopped.
#[tokio::test]
async fn capm3_1994_h6_a_claim_without_a_machine_is_named_and_the_template_stays() {
    let env = guarded().await;
    join_all(all_releases().map(async |behaviour| {
        let stand = Stand::empty(env.plane, "h6", behaviour).await;
        stand.create_claim("a-claim", None).await;
        stand.all(CLAIMS, "seen", |it| !it["metadata"]["finalizers"].is_null()).await;
        stand.create_machine("w-0").await;
        stand.exists(CLAIMS, "w-0").await;
        let refused = stand.space.delete(TEMPLATES, TEMPLATE).await.unwrap_err();
        assert!(refused.message.contains("Metal3DataClaim/a-claim"), "{refused:?}");
        stand.stays_however_often_capm3_looks(Role::Template).await;
        stand.delete(CLAIMS, "a-claim").await;
        stand.exists(DATAS, "workers-0").await;
        only_woken(env.plane, &env.guard, stand.space.ns()).await;
    }))
    .await;
}

/// H7, healed: the old Metal3Data ends, whose index was given away.
#[tokio::test]
async fn capm3_1994_h7_metal3data_whose_index_was_given_away_end() {
    let env = guarded().await;
    join_all(all_releases().map(async |behaviour| {
        let stand = index_given_away(env.plane, behaviour).await;
        stand.space.gone(DATAS, "workers-0").await;
        let left = stand.list(DATAS).await;
        assert!(left.len() == 1 && !is_terminating(&left[0]), "{left:?}");
        let woken = only_woken(env.plane, &env.guard, stand.space.ns()).await;
        assert!(woken > 0 || behaviour.release != Release::V1_8_1);
    }))
    .await;
}

/// H8, closed: a template in use is not deleted, and one that is being deleted is not used anew.
#[tokio::test]
async fn capm3_1994_h8_no_new_machine_comes_to_a_template_that_is_being_deleted() {
    let env = guarded().await;
    join_all(all_releases().map(async |behaviour| {
        let stand = Stand::live(env.plane, "h8", behaviour, 1).await;
        assert!(!stand.delete(TEMPLATES, TEMPLATE).await);
        let data = stand.capm3.hold(Point::DataLook);
        stand.delete(MACHINES, "w-0").await;
        stand.none(MACHINES).await;
        stand.none(CLAIMS).await;
        assert!(stand.delete(TEMPLATES, TEMPLATE).await);
        for newcomer in [stand.space.machine("w-1", TEMPLATE), stand.space.claim("w-1", TEMPLATE)] {
            let refused = stand.space.create(&newcomer).await.unwrap_err();
            assert_eq!(refused.code, 403, "{refused:?}");
        }
        drop(data);
        stand.none(TEMPLATES).await;
        only_woken(env.plane, &env.guard, stand.space.ns()).await;
    }))
    .await;
}

/// H13, closed: the garbage collector is refused the template that others use.
#[tokio::test]
async fn capm3_1994_h13_a_shared_template_outlives_the_cluster_that_once_owned_it() {
    let env = guarded().await;
    let behaviour = of_binary();
    let stand = owner_gone(env.plane, behaviour).await;
    if behaviour.release == Release::Later {
        eventually("the collector to be refused the template", async || {
            (env.guard.judged(stand.space.ns(), "deletion.in_use") > 0).then_some(())
        })
        .await;
    }
    assert!(!stand.list(TEMPLATES).await.iter().any(is_terminating));
    // It is at work as before.
    stand.create_machine("w-1").await;
    stand.exists(DATAS, "workers-1").await;
    only_woken(env.plane, &env.guard, stand.space.ns()).await;
}

/// H14, left: whoever paused a claim does not want CAPM3 to look at it, so it is not woken.
#[tokio::test]
async fn capm3_1994_h14_nothing_is_woken_for_a_claim_that_is_paused() {
    let env = guarded().await;
    let stand = Stand::live(env.plane, "h14", Behaviour::default(), 1).await;
    let ns = stand.space.ns();
    let forced = json!({"metadata": {"annotations": {"metal3-guard.io/force-delete": "a test"}}});
    stand.space.patch(TEMPLATES, TEMPLATE, "", forced).await.unwrap();
    assert!(stand.delete(TEMPLATES, TEMPLATE).await);
    stand.capm3.settled(&ALL).await;
    stand.space.patch(CLAIMS, "w-0", "", paused(true)).await.unwrap();
    stand.delete(MACHINES, "w-0").await;
    stand.none(MACHINES).await;
    stand.capm3.settled(&ALL).await;
    let before = stand.left().await;
    // Longer than until a first wake-up.
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    assert_eq!(stand.left().await, before);
    assert_eq!(done(env.plane, &env.guard, ns).await, [""; 0]);
    let config = env.plane.kubeconfig(User::Admin);
    let diagnosed = run(&config, &["diagnose", TEMPLATE, "-n", ns]).await;
    assert!(diagnosed.stdout.contains("Metal3DataClaim/w-0"), "{diagnosed:?}");
    stand.space.patch(CLAIMS, "w-0", "", paused(false)).await.unwrap();
    stand.none(TEMPLATES).await;
    only_woken(env.plane, &env.guard, ns).await;
}

/// What the guard did beyond waking.
async fn repaired(env: &Env, stand: &Stand) -> Vec<String> {
    let mut done = done(env.plane, &env.guard, stand.space.ns()).await;
    done.retain(|step| !step.starts_with("wake "));
    done
}
