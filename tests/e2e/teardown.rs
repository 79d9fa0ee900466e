//! Whole sets torn down: with kubectl, with a namespace, by the garbage collector, as Helm does it.
//! A stand-in for CAPM3 takes its finalizers off in its own order.

use std::{io::Write as _, time::Duration};

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use self::set::{HOLD, Owned, Set, delete_file_until_gone};
use super::{Crds, MACHINE_FINALIZER, Refused, Space, env, prepare};
use crate::support::{ControlPlane, User, eventually};

mod set;

const TEMPLATES: &str = "metal3datatemplates";
const MACHINES: &str = "metal3machines";

/// The namespace controller's pauses between its attempts grow up to this.
const NAMESPACE_RETRY: Duration = Duration::from_mins(1);

/// Without the rule the template terminates in the first run, before its machines.
#[tokio::test]
async fn kubectl_delete_of_a_whole_set_ends_clean_in_any_order() {
    const TEMPLATE: &str = "Metal3DataTemplate";
    const MACHINE: &str = "Metal3Machine";
    let orders = [
        // As people write them: what others need comes first.
        ["Cluster", TEMPLATE, "Metal3MachineTemplate", MACHINE, "Metal3DataClaim", "Metal3Data"],
        // By alphabet.
        ["Cluster", "Metal3Data", "Metal3DataClaim", TEMPLATE, MACHINE, "Metal3MachineTemplate"],
        // Upside down: the template follows its machines at once.
        ["Metal3MachineTemplate", MACHINE, TEMPLATE, "Metal3DataClaim", "Metal3Data", "Cluster"],
        // What depends on others goes first.
        ["Metal3Data", "Metal3DataClaim", MACHINE, TEMPLATE, "Metal3MachineTemplate", "Cluster"],
    ];
    let env = env().await;
    join_all(orders.map(async |order| {
        let set = Set::live(env.plane, env.space("files").await, 3, &Owned::None).await;
        let runs = delete_file_until_gone(env, &set.space, order).await;
        assert_eq!(set.space.left().await, [""; 0], "{order:?}");
        let at = |kind| order.iter().position(|it| *it == kind);
        if at(TEMPLATE) < at(MACHINE) {
            let refused = |run: &String| run.contains("is in use by 3 Metal3Machines");
            assert!(runs.first().is_some_and(refused), "{order:?}: {runs:?}");
        }
    }))
    .await;
}

/// Both at the same time, so that both meet the same machine. With the hooks, a template that is
/// refused costs the namespace controller a retry, whose pauses grow to a minute, and nothing else.
#[tokio::test]
async fn a_namespace_of_fifty_machines_goes_with_the_hooks_as_without() {
    const SLACK: Duration = Duration::from_secs(30);
    let env = env().await;
    let bare = ControlPlane::start().await;
    prepare(&bare).await;
    let unguarded = Space {
        client: bare.client(User::Admin).await,
        namespace: bare.namespace("unguarded").await,
    };
    let guarded = env.space("guarded").await;
    let ns = guarded.ns().to_owned();
    let (guarded, unguarded) = tokio::join!(
        Set::live(env.plane, guarded, 50, &Owned::None),
        Set::live(&bare, unguarded, 50, &Owned::None),
    );
    let (on, off) = tokio::join!(guarded.delete_namespace(), unguarded.delete_namespace());
    say(&format!(
        "namespace with 50 machines ({:?}): gone after {:.1} s with the hooks, {:.1} s without; \
         template refused {} times",
        Crds::of_binary(),
        on.as_secs_f64(),
        off.as_secs_f64(),
        env.guard.judged(&ns, "deletion.in_use"),
    ));
    assert!(env.guard.judged(&ns, "deletion.in_use") > 0, "the guard was never asked");
    assert!(on <= off + NAMESPACE_RETRY + SLACK, "{on:?} with the hooks, {off:?} without");
}

/// The collector takes the template and its machines in any order, and starts with all at once.
/// Without the rule the template terminates while its machines are there.
#[tokio::test]
async fn the_garbage_collector_takes_a_set_in_background() {
    let env = env().await;
    let set = Set::held(env, env.space("background").await).await;
    set.space.delete("clusters", "prod").await.unwrap();
    set.let_the_collector_try(env).await;
    set.release_hosts().await;
    set.space.nothing_left().await;
}

/// In foreground the collector and CAPM3 write finalizers from copies that the other has changed
/// meanwhile. These look like additions, and must not be taken for somebody's fault.
#[tokio::test]
async fn the_garbage_collector_takes_a_set_in_foreground() {
    let env = env().await;
    let set = Set::held(env, env.space("foreground").await).await;
    let (space, ns) = (&set.space, set.space.ns());
    let foreground = format!("{}?propagationPolicy=Foreground", space.url("clusters", "prod", ""));
    space.send(Method::DELETE, &foreground, None).await.unwrap();
    set.let_the_collector_try(env).await;

    // Such races come when they like; these two are brought about.
    eventually("CAPM3 and the collector to be done with a machine", async || {
        let machine = space.get(MACHINES, "w-0").await?;
        (machine["metadata"]["finalizers"] == json!([HOLD])).then_some(())
    })
    .await;
    for stale in [MACHINE_FINALIZER, "foregroundDeletion"] {
        let patch = json!({"metadata": {"finalizers": [stale, HOLD]}});
        let refused = space.patch(MACHINES, "w-0", "", patch).await.unwrap_err();
        assert_eq!((refused.code, &*refused.reason), (422, "Invalid"), "{refused:?}");
        assert!(refused.message.contains(stale), "{refused:?}");
    }
    set.release_hosts().await;
    space.nothing_left().await;

    let reviews = env.guard.reviews(ns);
    let refused = reviews.iter().filter(|it| {
        it["verdict"] == "deny" && it["path"].as_str().is_some_and(|it| it.ends_with("finalizers"))
    });
    let (stale, others): (Vec<_>, Vec<_>) =
        refused.partition(|it| it["rule"] == "finalizers.stale_copy");
    assert!(stale.len() >= 2, "{stale:?}");
    assert_eq!(others, [&Value::Null; 0], "stale copies taken for violations");
    say(&format!("foreground ({:?}): {} stale copies", Crds::of_binary(), stale.len()));
}

/// Helm sends each DELETE once, by the alphabet of kinds, and waits for nothing. Without the rule
/// the template terminates before its machines.
#[tokio::test]
async fn helm_is_told_what_it_could_not_delete_and_succeeds_the_next_time() {
    let env = env().await;
    let set = Set::live(env.plane, env.space("helm").await, 3, &Owned::Machines).await;
    let space = &set.space;
    let chart =
        [("clusters", "prod"), (TEMPLATES, "workers"), ("metal3machinetemplates", "workers")];
    let uninstall = async || {
        join_all(chart.map(async |(resource, name)| (resource, space.delete(resource, name).await)))
            .await
            .into_iter()
            .filter_map(|(resource, deleted)| Some((resource, deleted.err()?)))
            .filter(|(_, refused)| refused.code != 404)
            .collect::<Vec<(_, Refused)>>()
    };
    let refused = uninstall().await;
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!((refused[0].0, refused[0].1.code), (TEMPLATES, 403));
    assert!(refused[0].1.message.contains("is in use by 3 Metal3Machines"), "{refused:?}");

    for machine in &set.machines {
        space.gone(MACHINES, machine).await;
    }
    assert!(space.get(TEMPLATES, "workers").await.is_some_and(|it| !is_terminating(&it)));
    let refused = uninstall().await;
    assert!(refused.is_empty(), "{refused:?}");
    space.nothing_left().await;
}

#[tokio::test]
async fn a_template_whose_machines_were_moved_to_another_can_go() {
    let env = env().await;

    // Machines without claims, as when no host is free: at once, whatever the watches know.
    let waiting = env.space("waiting").await;
    for template in ["older", "newer"] {
        waiting.create(&waiting.template(template)).await.unwrap();
    }
    waiting.create(&waiting.machine("w-0", "older")).await.unwrap();
    assert_eq!(waiting.delete(TEMPLATES, "older").await.unwrap_err().code, 403);
    let to_newer = json!({"spec": {"dataTemplate": {"name": "newer"}}});
    waiting.patch(MACHINES, "w-0", "", to_newer.clone()).await.unwrap();
    waiting.delete(TEMPLATES, "older").await.unwrap();
    assert_eq!(waiting.delete(TEMPLATES, "newer").await.unwrap_err().code, 403);

    // Machines with claims, which name their template for as long as they live.
    let set = Set::live(env.plane, env.space("moved").await, 2, &Owned::None).await;
    let space = &set.space;
    space.create(&space.template("newer")).await.unwrap();
    for (machine, holders) in
        [("w-0", "1 Metal3Machine and 2 Metal3DataClaims: "), ("w-1", "2 Metal3DataClaims: ")]
    {
        space.patch(MACHINES, machine, "", to_newer.clone()).await.unwrap();
        // The verdict is live; what it names may lag a moment behind.
        eventually("the moved machine to be named no more", async || {
            let refused = space.delete(TEMPLATES, "workers").await.unwrap_err();
            refused.message.contains(&format!("in use by {holders}")).then_some(())
        })
        .await;
    }
    // Replaced by machines with names of their own, as Cluster API does it.
    for (old, new) in [("w-0", "n-0"), ("w-1", "n-1")] {
        space.create(&space.machine(new, "newer")).await.unwrap();
        space.delete(MACHINES, old).await.unwrap();
        space.gone(MACHINES, old).await;
        space.gone("metal3dataclaims", old).await;
    }
    space.indexed("newer", 2).await;
    space.delete(TEMPLATES, "workers").await.unwrap();
    space.gone(TEMPLATES, "workers").await;
    assert_eq!(space.delete(TEMPLATES, "newer").await.unwrap_err().code, 403);
}

fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Says it past the capture of the test harness: the numbers are for people.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").ok();
}
