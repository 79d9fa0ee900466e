//! What was stuck before there was a guard: it is installed, and heals it. Each of these has a
//! control plane of its own, which has no guard at first.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{
    super::{
        orders::{self, ByHand},
        setups::orphaned,
        stand::{self, DATAS, IP_CLAIMS, Stand, TEMPLATE, TEMPLATES},
    },
    ACT, after_the_last_machine, install,
    ledger::{done, only_woken},
    say,
};
use crate::{
    e2e::{
        CLAIM_FINALIZER, Crds, DATA_FINALIZER, TEMPLATE_FINALIZER,
        commands::run,
        faults, prepare,
        repair::{QUICK, events},
    },
    support::{Behaviour, ControlPlane, Guard, User, capm3::ALL, eventually},
};

/// By wake-ups alone, each by CAPM3 itself: the guard touches no finalizer.
#[tokio::test]
async fn capm3_1994_what_was_stuck_before_is_healed_by_waking_its_owner() {
    let _alone = faults::alone().await;
    let plane = ControlPlane::start().await;
    prepare(&plane).await;
    let live = async |hint| Stand::live(&plane, hint, v1_8_1(), 3).await;
    let (first, second, third, fourth, by_hand, missed) = tokio::join!(
        async {
            let stand = live("template-first").await;
            orders::template_then_machines(&stand, async || {}).await;
            stand.delete_namespace().await;
            stand
        },
        async {
            let stand = live("machines-first").await;
            orders::machines_then_template_at_once(&stand).await;
            stand.delete_namespace().await;
            stand
        },
        async {
            let stand = live("machines-only").await;
            orders::machines_then_template_later(&stand).await;
            stand.delete_namespace().await;
            stand
        },
        async {
            let stand = live("only-namespace").await;
            orders::namespace_with_a_late_template(&stand).await;
            stand
        },
        join_all(ByHand::ALL.map(async |order| {
            let stand = Stand::by_hand(&plane, "by-hand", v1_8_1()).await;
            orders::by_hand(&stand, order).await;
            stand
        })),
        async {
            let stand = Stand::without_cluster(&plane, "no-cluster", v1_8_1()).await;
            stand.create_machine("w-0").await;
            stand.capm3.settled(&ALL).await;
            stand::create_cluster(&stand.space).await;
            stand
        },
    );
    let mut stuck = vec![first, second, third, fourth];
    stuck.extend(by_hand);
    for stand in stuck.iter().chain([&missed]) {
        stand.stays().await;
        assert_eq!(stand.list(TEMPLATES).await.len(), 1);
    }

    let guard = install(&plane, &ACT).await;
    join_all(stuck.iter().map(async |stand| {
        let ns = stand.space.ns();
        let after = after_the_last_machine(stand, async {
            stand.none(DATAS).await;
            // Those of claims by hand have machines, which use the template to the end.
            stand.delete_namespace().await;
            stand.namespace_gone().await;
        });
        let after = after.await.as_secs_f64();
        let woken = only_woken(&plane, &guard, ns).await;
        assert!(woken > 0, "{ns} was not stuck");
        say(&format!(
            "{ns} ({:?}), stuck before: clean {after:.1} s after the guard was there and the last \
             machine gone, by {woken} wake-ups",
            Crds::of_binary(),
        ));
    }))
    .await;
    missed.exists(DATAS, "workers-0").await;
    assert!(only_woken(&plane, &guard, missed.space.ns()).await > 0);
}

/// Nothing wakes these: their template is gone. The guard says so, and a person frees them, their
/// addresses first. CAPM3 runs, and is of no help.
#[tokio::test]
async fn capm3_1994_metal3data_without_a_template_are_reported_and_freed_by_a_person() {
    let _alone = faults::alone().await;
    let plane = ControlPlane::start().await;
    prepare(&plane).await;
    let stand = Stand::live(&plane, "lost", v1_8_1(), 3).await;
    orders::namespace_in_one_look(&stand).await;
    stand.none(TEMPLATES).await;
    assert_eq!(stand.list(DATAS).await.len(), 3);
    assert_eq!(stand.list(IP_CLAIMS).await.len(), 3);
    let guard = install(&plane, &QUICK).await;
    let ns = stand.space.ns();

    eventually("the loss to be told", async || {
        let stuck = guard.metric("metal3_guard_stuck_objects", "Metal3Data\"").await;
        (stuck >= 3.0).then_some(())
    })
    .await;
    let config = plane.kubeconfig(User::Admin);
    let diagnosed = run(&config, &["diagnose", "-n", ns]).await.ended(1);
    for told in ["1 stuck", "workers-0", "workers-1", "workers-2", "unstick workers"] {
        assert!(diagnosed.contains(told), "no {told} in {diagnosed}");
    }
    assert_eq!(done(&plane, &guard, ns).await, [""; 0]);

    let args = ["unstick", TEMPLATE, "-n", ns, "--apply", "--reason", "released too early"];
    let freed = run(&config, &args).await.ended(0);
    let at = |step: String| freed.find(&step).unwrap_or_else(|| panic!("no {step}: {freed}"));
    for index in 0..3 {
        let address = format!("{TEMPLATE}-{index}-pool");
        let freed = at(format!("free-lost Metal3Data/{TEMPLATE}-{index}"));
        assert!(at(format!("free-ip-claim IPClaim/{address}")) < freed);
    }
    assert_eq!(stand.list(IP_CLAIMS).await, [""; 0]);
    stand.namespace_gone().await;
    assert_eq!(done(&plane, &guard, ns).await, [""; 0]);
}

/// With CAPM3 stopped nobody reacts to a wake-up. What only CAPM3 can end is left to it.
#[tokio::test]
async fn capm3_1994_what_is_stuck_while_capm3_is_stopped_is_released() {
    let _alone = faults::alone().await;
    let plane = ControlPlane::start().await;
    prepare(&plane).await;
    let (mut alone, mut deleted, mut forgotten, mut waiting) = tokio::join!(
        // The template alone.
        async {
            let stand = Stand::live(&plane, "alone", v1_8_1(), 3).await;
            orders::machines_then_template_later(&stand).await;
            stand
        },
        // With a Metal3Data that has outlived its claim and was deleted.
        async {
            let stand = orphaned(&plane, v1_8_1()).await;
            stand.delete(TEMPLATES, TEMPLATE).await;
            stand.delete(DATAS, "workers-0").await;
            stand
        },
        // With one that was brought back without its claim, as from a backup, and that nobody
        // deleted. Its addresses only CAPM3 can give back.
        async {
            let stand = Stand::empty(&plane, "forgotten", v1_8_1()).await;
            let mut data = stand.space.data(TEMPLATE, 0, "w-0");
            data["metadata"]["finalizers"] = json!([CLAIM_FINALIZER]);
            stand.space.create(&data).await.unwrap();
            stand.exists(IP_CLAIMS, "workers-0-pool").await;
            stand.capm3.settled(&ALL).await;
            stand.delete(TEMPLATES, TEMPLATE).await;
            stand
        },
        // With some whose claims CAPM3 has ended.
        async {
            let stand = Stand::by_hand(&plane, "by-hand", v1_8_1()).await;
            orders::by_hand(&stand, ByHand::ClaimsThenMachinesThenTemplate).await;
            stand
        },
    );
    for stand in [&mut alone, &mut deleted, &mut forgotten, &mut waiting] {
        stand.capm3.settled(&ALL).await;
        stand.capm3.stop();
        assert_eq!(stand.list(TEMPLATES).await.len(), 1);
    }

    let guard = install(&plane, &QUICK).await;
    let template = |step: &str| format!("{step} Metal3DataTemplate/{TEMPLATE}");
    let data = |step: &str| format!("{step} Metal3Data/{TEMPLATE}-0");
    let last = [template("wake"), template("prune"), template("release")];
    let first = [data("wake"), data("free-orphan")];
    for (stand, steps, taken_off) in [
        (&alone, last.to_vec(), &[TEMPLATE_FINALIZER][..]),
        (&deleted, [&first[..], &last].concat(), &[CLAIM_FINALIZER, TEMPLATE_FINALIZER]),
    ] {
        stand.none(TEMPLATES).await;
        let mut done = done(&plane, &guard, stand.space.ns()).await;
        // How often it is woken depends on how long the steps take.
        let mut seen = BTreeSet::new();
        done.retain(|step| seen.insert(step.clone()) || !step.starts_with("wake "));
        assert_eq!(done, steps, "{}", stand.space.ns());
        assert_eq!(removed(&guard, stand), taken_off);
    }
    for stand in [&mut forgotten, &mut waiting] {
        stand.all(DATAS, "held by CAPM3 alone", held_by_capm3).await;
        eventually("the wait for CAPM3 to be told", async || {
            let said = events(&stand.space).await;
            let told = |it: &String| it.contains("it was woken and has done nothing");
            said.get("Waiting")?.iter().any(told).then_some(())
        })
        .await;
        stand.all(DATAS, "held by CAPM3 alone", held_by_capm3).await;
        stand.capm3.restart().await;
        stand.none(TEMPLATES).await;
    }
    assert_eq!(removed(&guard, &forgotten), [CLAIM_FINALIZER]);
    let done = done(&plane, &guard, forgotten.space.ns()).await;
    let at = |step: &str| done.iter().position(|it| *it == data(step)).unwrap();
    assert!(at("delete-orphan") < at("free-orphan"), "{done:#?}");
    assert_eq!(removed(&guard, &waiting), [""; 0]);
}

fn held_by_capm3(data: &Value) -> bool {
    data["metadata"]["finalizers"] == json!([DATA_FINALIZER])
}

fn v1_8_1() -> Behaviour {
    Behaviour::v1_8_1()
}

/// The finalizers that the guard has taken off, in order of time.
fn removed(guard: &Guard, stand: &Stand) -> Vec<String> {
    let mut log = guard.log();
    log.retain(|it| it["message"] == "write" && it["namespace"] == stand.space.ns());
    log.sort_by_key(|it| it["timestamp"].as_str().map(str::to_owned));
    let removed = log.iter().filter(|it| it["result"] == "done");
    let removed = removed.filter_map(|it| it["removed"].as_str().map(str::to_owned));
    removed.filter(|it| !it.is_empty()).collect()
}
