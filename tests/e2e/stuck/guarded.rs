//! The same orders and holes with the hooks and an acting guard: what is prevented, what is healed
//! by waking its owner, and where more than that is done.
//!
//! The guard waits as long as it does by default, so that in the time that CAPM3 takes to react
//! nothing but wake-ups can come from it.

use std::{cell::Cell, io::Write as _, time::Duration};

use futures_util::future::join_all;
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep},
};

use super::{
    orders::{self, ByHand},
    stand::{self, CLAIMS, DATAS, IP_CLAIMS, MACHINES, Stand, TEMPLATE, TEMPLATES, new_space},
};
use crate::{
    e2e::{Crds, Env, prepare, wait_registered},
    support::{Behaviour, ControlPlane, Guard, User, capm3::ALL},
};

mod already;
mod early;
mod holes;
mod ledger;

use self::ledger::only_woken;

/// A guard that acts, with the periods that are the default.
const ACT: [&str; 8] =
    ["--controller", "act", "--wake-after", "5s", "--grace", "60s", "--release-after", "30s"];

/// A control plane with hooks and an acting guard, one for all of these scenarios.
async fn guarded() -> &'static Env {
    static GUARDED: OnceCell<Env> = OnceCell::const_new();
    GUARDED
        .get_or_init(async || {
            let plane: &'static ControlPlane = Box::leak(Box::new(ControlPlane::start().await));
            prepare(plane).await;
            Env { plane, guard: install(plane, &ACT).await }
        })
        .await
}

/// Installs the guard in a cluster: rights, hooks and all.
async fn install(plane: &ControlPlane, args: &[&str]) -> Guard {
    let kubeconfig = plane.kubeconfig(User::Guard);
    let guard = Guard::start(plane, &kubeconfig, "127.0.0.1:0", args).await.unwrap();
    guard.register(plane).await.unwrap();
    plane.bind(User::Guard, "metal3-guard").await;
    plane.bind(User::Guard, "metal3-guard-repair").await;
    guard.ready().await;
    wait_registered(&new_space(plane, "registered").await).await;
    guard
}

/// Measured without a guard: stuck in 7 of 7 runs.
#[tokio::test]
async fn capm3_1994_template_then_machines_then_namespace() {
    let (env, stand) = live("template-first", 3).await;
    ends_clean(env, &stand, async || {
        orders::template_then_machines(&stand, async || {}).await;
        stand.delete_namespace().await;
    })
    .await;
    refused_at_first(env, &stand);
}

/// Measured without a guard: stuck in 4 of 4 runs.
#[tokio::test]
async fn capm3_1994_machines_and_a_second_later_the_template() {
    let (env, stand) = live("machines-first", 3).await;
    ends_clean(env, &stand, async || {
        orders::machines_then_template_at_once(&stand).await;
        stand.delete_namespace().await;
    })
    .await;
    refused_at_first(env, &stand);
}

/// Measured without a guard: stuck in 1 of 1 run. Nothing uses the template when it is deleted, so
/// its deletion is not refused.
#[tokio::test]
async fn capm3_1994_machines_and_much_later_the_template() {
    let (env, stand) = live("machines-only", 3).await;
    let woken = ends_clean(env, &stand, async || {
        orders::machines_then_template_later(&stand).await;
        stand.delete_namespace().await;
    });
    assert!(woken.await > 0);
    assert_eq!(env.guard.judged(stand.space.ns(), "deletion.in_use"), 0);
}

/// Measured without a guard: the template was left in 1 of 3 runs.
#[tokio::test]
async fn capm3_1994_only_the_namespace_and_the_template_goes_late() {
    let (env, stand) = live("only-namespace", 3).await;
    let woken = ends_clean(env, &stand, async || {
        orders::namespace_with_a_late_template(&stand).await;
    });
    assert!(woken.await > 0);
}

/// Measured without a guard: in 1 of 3 runs three Metal3Data without a template were left.
#[tokio::test]
async fn capm3_1994_only_the_namespace_and_no_metal3data_loses_its_template() {
    let (env, stand) = live("in-one-look", 3).await;
    let woken = ends_clean(env, &stand, async || orders::namespace_in_one_look(&stand).await);
    // All three, unless the namespace controller's next look wakes some of them first.
    assert!(woken.await > 0);
    refused_at_first(env, &stand);
}

/// To refuse the deletion of the template alone would not help: its Metal3Data hangs.
#[tokio::test]
async fn capm3_1994_a_template_of_one_machine_is_never_released_too_early() {
    let (env, stand) = live("one-machine", 1).await;
    let woken = ends_clean(env, &stand, async || {
        orders::template_then_its_only_machine(&stand).await;
        // The namespace controller's next look might wake it as well.
        stand.none(DATAS).await;
        stand.delete_namespace().await;
    });
    assert!(woken.await > 0);
    refused_at_first(env, &stand);
}

/// Measured without a guard: stuck in 8 of 8 runs.
#[tokio::test]
async fn capm3_1994_claims_by_hand_in_any_order() {
    let env = guarded().await;
    join_all(ByHand::ALL.map(async |order| {
        let stand = Stand::by_hand(env.plane, "by-hand", Behaviour::v1_8_1()).await;
        let woken = ends_clean(env, &stand, async || {
            orders::by_hand(&stand, order).await;
            // The namespace controller's next look might wake them as well.
            stand.none(DATAS).await;
            stand.delete_namespace().await;
        });
        assert!(woken.await >= 3, "{order:?}");
    }))
    .await;
}

/// Measured without a guard: 1 of 46 templates was left alone, with nothing to hold it.
#[tokio::test]
async fn capm3_1994_a_template_that_missed_its_cluster_is_woken() {
    let env = guarded().await;
    let stand = Stand::without_cluster(env.plane, "no-cluster", Behaviour::v1_8_1()).await;
    stand.create_machine("w-0").await;
    stand.capm3.settled(&ALL).await;
    assert!(!stand.delete(TEMPLATES, TEMPLATE).await, "it went from under its claim");
    stand::create_cluster(&stand.space).await;
    stand.exists(DATAS, "workers-0").await;
    assert!(only_woken(env.plane, &env.guard, stand.space.ns()).await > 0);
}

/// A guard in front of the later releases changes nothing for the worse.
#[tokio::test]
async fn capm3_1994_later_releases_end_clean_in_every_order() {
    let env = guarded().await;
    let live = async |hint| Stand::live(env.plane, hint, Behaviour::default(), 3).await;
    tokio::join!(
        async {
            let stand = live("later-1").await;
            ends_clean(env, &stand, async || {
                orders::template_then_machines(&stand, async || {}).await;
                stand.delete_namespace().await;
            })
            .await;
        },
        async {
            let stand = live("later-2").await;
            ends_clean(env, &stand, async || {
                orders::machines_then_template_at_once(&stand).await;
                stand.delete_namespace().await;
            })
            .await;
        },
        async {
            let stand = live("later-3").await;
            ends_clean(env, &stand, async || {
                orders::machines_then_template_later(&stand).await;
                stand.delete_namespace().await;
            })
            .await;
        },
        async {
            let stand = live("later-4").await;
            ends_clean(env, &stand, async || {
                orders::namespace_with_a_late_template(&stand).await;
            })
            .await;
        },
        async {
            let stand = live("later-5").await;
            ends_clean(env, &stand, async || orders::namespace_in_one_look(&stand).await).await;
        },
    );
}

/// CAPM3 1.8.1 with machines that have all that they need.
async fn live(hint: &str, machines: usize) -> (&'static Env, Stand) {
    let env = guarded().await;
    (env, Stand::live(env.plane, hint, Behaviour::v1_8_1(), machines).await)
}

/// Someone, or the namespace controller, wanted the template while it was in use.
fn refused_at_first(env: &Env, stand: &Stand) {
    assert!(env.guard.judged(stand.space.ns(), "deletion.in_use") > 0);
}

/// Tears all down; the namespace ends, and the guard has done no more than wake. Returns how often.
async fn ends_clean(env: &Env, stand: &Stand, teardown: impl AsyncFnOnce()) -> usize {
    let ns = stand.space.ns();
    let (began, namespace) = (Instant::now(), async || {
        teardown().await;
        stand.namespace_gone().await;
    });
    let after = after_the_last_machine(stand, namespace()).await;
    let woken = only_woken(env.plane, &env.guard, ns).await;
    let refused = env.guard.judged(ns, "deletion.in_use");
    say(&format!(
        "{ns} ({:?}, {:?}): clean {:.1} s after the last machine, namespace gone {:.1} s after the \
         first deletion; {refused} deletions of the template refused, {woken} wake-ups, nothing else",
        Crds::of_binary(),
        stand.behaviour.release,
        after.as_secs_f64(),
        began.elapsed().as_secs_f64(),
    ));
    woken
}

/// For how long anything of CAPM3's was there after the last machine, to some tenths of a second.
async fn after_the_last_machine(stand: &Stand, teardown: impl Future<Output = ()>) -> Duration {
    let now = Instant::now();
    let (machine, other) = (Cell::new(now), Cell::new(now));
    let look = async {
        loop {
            let now = Instant::now();
            if !stand.list(MACHINES).await.is_empty() {
                machine.set(now);
            }
            for resource in [TEMPLATES, DATAS, CLAIMS, IP_CLAIMS] {
                if !stand.list(resource).await.is_empty() {
                    other.set(now);
                    break;
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        () = teardown => {}
        () = look => {}
    }
    other.get().saturating_duration_since(machine.get())
}

/// Past the test harness, which shows what was printed only when a test fails.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").ok();
}
