//! The other holes of CAPM3, by the numbers that the notes on its behaviour give them (H1 and on).
//! Three cannot be shown here: H9 (a limit of 200 claims) was only in 1.11.0 to 1.11.2, H10 only in
//! pre-releases of 1.14, and H15 is one of the address manager.

use serde_json::Value;

use super::{
    setups::{
        all_releases, index_given_away, of_binary, orphaned, owner_gone, paused, without_claim,
        without_index,
    },
    stand::{CLAIMS, DATAS, MACHINES, Stand, TEMPLATE, TEMPLATES, is_terminating},
    unguarded,
};
use crate::support::{
    Behaviour,
    capm3::{ALL, Point, Release, Role},
};

/// H1: a machine that waits for its host has no claim yet, and nothing else holds the template.
#[tokio::test]
async fn capm3_1994_h1_a_template_goes_from_under_a_machine_that_waits_for_its_host() {
    for behaviour in all_releases() {
        let stand = Stand::empty(unguarded().await, "h1", behaviour).await;
        let hosts = stand.capm3.hold(Point::MachineLook);
        stand.create_machine("w-0").await;
        hosts.reached().await;
        stand.delete(TEMPLATES, TEMPLATE).await;
        stand.none(TEMPLATES).await;
        drop(hosts);
        stand.stays().await;
        let left = ["Metal3DataClaim w-0 live, finalizers [\"metal3machine\"], has null", MACHINE];
        assert_eq!(stand.left_whoever_owns_it().await, left);
    }
}

/// H2: machine templates are not looked at. H3: while the only machine is being replaced, nothing
/// else names the template.
#[tokio::test]
async fn capm3_1994_h2_h3_a_template_goes_while_the_only_machine_is_being_replaced() {
    for behaviour in all_releases() {
        let stand = Stand::live(unguarded().await, "h3", behaviour, 1).await;
        let machine_template = stand.space.machine_template("workers", TEMPLATE);
        stand.space.create(&machine_template).await.unwrap();
        let hosts = stand.delete_machines().await;
        stand.release_hosts_one_by_one(hosts).await;
        stand.touch_all_until_gone(DATAS).await;
        stand.delete(TEMPLATES, TEMPLATE).await;
        stand.none(TEMPLATES).await;
        stand.create_machine("w-1").await;
        stand.stays().await;
        let left = ["Metal3DataClaim w-1 live, finalizers [\"metal3machine\"], has null"];
        assert_eq!(stand.left_whoever_owns_it().await[..1], left);
    }
}

/// H4: that the claim was not written is forgotten, and with the template goes whoever would take
/// the finalizer off the claim.
#[tokio::test]
async fn capm3_1994_h4_a_claim_keeps_its_finalizer_when_the_write_is_lost() {
    for behaviour in all_releases() {
        let stand = Stand::empty(unguarded().await, "h4", behaviour).await;
        // Without a machine it gets its finalizer and nothing else.
        stand.create_claim("w-0", None).await;
        stand.all(CLAIMS, "seen", |it| !it["metadata"]["finalizers"].is_null()).await;
        stand.delete(TEMPLATES, TEMPLATE).await;
        let write = stand.capm3.hold(Point::ClaimRelease);
        stand.delete(CLAIMS, "w-0").await;
        write.reached().await;
        write.lose();
        stand.none(TEMPLATES).await;
        stand.stays().await;
        let left = ["Metal3DataClaim w-0 terminating, finalizers [\"metal3dataclaim\"], has null"];
        assert_eq!(stand.left_whoever_owns_it().await, left);
    }
}

/// H5 and H16: a claim that goes before CAPM3 knows its Metal3Data leaves it behind, with a
/// finalizer that only the claim's end would have taken off.
#[tokio::test]
async fn capm3_1994_h5_h16_metal3data_that_were_not_known_yet_outlive_their_claim() {
    for behaviour in all_releases() {
        let stand = orphaned(unguarded().await, behaviour).await;
        stand.delete(TEMPLATES, TEMPLATE).await;
        stand.delete_namespace().await;
        stand.all(DATAS, "terminating", is_terminating).await;
        stand.stays_in_any_release().await;
        let left = [
            format!("Metal3Data {TEMPLATE}-0 terminating, finalizers [\"metal3dataclaim\"]"),
            format!(
                "Metal3DataTemplate {TEMPLATE} terminating, \
                 finalizers [\"metal3datatemplate\"], indexes [\"w-0=0\"]"
            ),
        ];
        assert_eq!(stand.left_whoever_owns_it().await, left);
        stand.namespace_hangs().await;
    }
}

/// H6: a claim that fails ends the look, so nothing that follows is served or ended.
#[tokio::test]
async fn capm3_1994_h6_a_claim_without_a_machine_stops_all_others() {
    for behaviour in all_releases() {
        let stand = Stand::empty(unguarded().await, "h6", behaviour).await;
        stand.create_claim("a-claim", None).await;
        stand.all(CLAIMS, "seen", |it| !it["metadata"]["finalizers"].is_null()).await;
        stand.create_machine("w-0").await;
        stand.exists(CLAIMS, "w-0").await;
        stand.delete(TEMPLATES, TEMPLATE).await;
        stand.stays_however_often_capm3_looks(Role::Template).await;
        let left = [
            "Metal3DataClaim a-claim live, finalizers [\"metal3dataclaim\"], has null",
            "Metal3DataClaim w-0 live, finalizers [\"metal3machine\"], has null",
            TERMINATING,
            MACHINE,
        ];
        assert_eq!(stand.left_whoever_owns_it().await, left);
    }
}

/// H7: the index of a claim that has just gone is given to the next one while its Metal3Data is
/// still there. After 30 s CAPM3 takes another index; 1.8.1 never ends the old one.
#[tokio::test]
async fn capm3_1994_h7_an_index_is_given_away_while_its_metal3data_is_there() {
    for (behaviour, old) in [
        (
            Behaviour::v1_8_1(),
            &["Metal3Data workers-0 terminating, finalizers [\"metal3data\"]"][..],
        ),
        (Behaviour::default(), &[]),
    ] {
        let stand = index_given_away(unguarded().await, behaviour).await;
        let data = stand.left_whoever_owns_it().await;
        let data: Vec<_> = data.iter().filter(|it| it.starts_with("Metal3Data ")).collect();
        let new = "Metal3Data workers-1 live, finalizers [\"metal3dataclaim\", \"metal3data\"]";
        assert_eq!(data, [old, &[new]].concat());
    }
}

/// H8: a template that is being deleted goes on making Metal3Data.
#[tokio::test]
async fn capm3_1994_h8_a_template_that_is_being_deleted_serves_new_machines() {
    for behaviour in all_releases() {
        let stand = Stand::live(unguarded().await, "h8", behaviour, 1).await;
        stand.delete(TEMPLATES, TEMPLATE).await;
        stand.create_machine("w-1").await;
        stand.exists(DATAS, "workers-1").await;
        assert!(stand.list(TEMPLATES).await.iter().all(is_terminating));
    }
}

/// H11: v1beta2 allows a Metal3Data without an index, over which CAPM3 falls each time it looks. In
/// v1beta1 it has index 0, and 1.8.1 carries on.
#[tokio::test]
async fn capm3_1994_h11_a_metal3data_without_an_index_stops_the_template() {
    let behaviour = of_binary();
    let stand = without_index(unguarded().await, behaviour).await;
    stand.delete(MACHINES, "w-0").await;
    stand.none(MACHINES).await;
    if behaviour.release == Release::V1_8_1 {
        stand.none(CLAIMS).await;
        return;
    }
    stand.delete(TEMPLATES, TEMPLATE).await;
    stand.stays_however_often_capm3_looks(Role::Template).await;
    let left = stand.left_whoever_owns_it().await;
    let claim = "Metal3DataClaim w-0 terminating, finalizers [\"metal3dataclaim\"], ";
    assert!(left.iter().any(|line| line.starts_with(claim)), "{left:?}");
}

/// H12: later releases do not see a Metal3Data without a claim, and let its template go. 1.8.1
/// counts it.
#[tokio::test]
async fn capm3_1994_h12_a_template_goes_before_a_metal3data_without_a_claim() {
    let behaviour = of_binary();
    let stand = without_claim(unguarded().await, behaviour).await;
    stand.delete(TEMPLATES, TEMPLATE).await;
    if behaviour.release == Release::V1_8_1 {
        stand.stays().await;
        assert_eq!(stand.list(TEMPLATES).await.len(), 1);
        return;
    }
    stand.none(TEMPLATES).await;
    stand.delete(DATAS, "workers-0").await;
    stand.stays_however_often_capm3_looks(Role::Data).await;
    let left = ["Metal3Data workers-0 terminating, finalizers [\"metal3data\"]"];
    assert_eq!(stand.left_whoever_owns_it().await, left);
}

/// H13: up to 1.13 a template was owned by its Cluster, and an upgrade leaves it so. When that
/// Cluster goes, the garbage collector deletes the template that others use; with 1.8.1 the
/// others' Cluster owns it, too.
#[tokio::test]
async fn capm3_1994_h13_a_shared_template_goes_with_the_cluster_that_once_owned_it() {
    let behaviour = of_binary();
    let stand = owner_gone(unguarded().await, behaviour).await;
    if behaviour.release == Release::V1_8_1 {
        let only_one = |it: &Value| {
            it["metadata"]["ownerReferences"].as_array().is_some_and(|it| it.len() == 1)
        };
        stand.all(TEMPLATES, "owned by one Cluster", only_one).await;
        assert!(!stand.list(TEMPLATES).await.iter().any(is_terminating));
        return;
    }
    stand.all(TEMPLATES, "terminating", is_terminating).await;
    assert!(!stand.list(MACHINES).await.iter().any(is_terminating));
}

/// H14: events of paused objects are dropped and never told again, so nobody ends a claim that was
/// paused when it was deleted.
#[tokio::test]
async fn capm3_1994_h14_a_claim_deleted_while_paused_waits_for_the_end_of_the_pause() {
    let stand = Stand::live(unguarded().await, "h14", Behaviour::default(), 1).await;
    stand.delete(TEMPLATES, TEMPLATE).await;
    stand.capm3.settled(&ALL).await;
    stand.space.patch(CLAIMS, "w-0", "", paused(true)).await.unwrap();
    stand.delete(MACHINES, "w-0").await;
    stand.none(MACHINES).await;
    stand.stays().await;
    let left = [
        "Metal3Data workers-0 live, finalizers [\"metal3dataclaim\", \"metal3data\"]",
        "Metal3DataClaim w-0 terminating, finalizers [\"metal3dataclaim\"], has \"workers-0\"",
        "Metal3DataTemplate workers terminating, finalizers [\"metal3datatemplate\"], \
         indexes [\"w-0=0\"]",
    ];
    assert_eq!(stand.left_whoever_owns_it().await, left);
    stand.space.patch(CLAIMS, "w-0", "", paused(false)).await.unwrap();
    stand.none(TEMPLATES).await;
}

const MACHINE: &str = "Metal3Machine w-0 live, finalizers [\"metal3machine\"]";
const TERMINATING: &str =
    "Metal3DataTemplate workers terminating, finalizers [\"metal3datatemplate\"]";
