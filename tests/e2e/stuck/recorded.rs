//! The stand-in ends up where the real CAPM3 did: with the same objects, finalizers, owners and
//! indexes. Each recording is compared where the binary has the CRDs that it was made with.

use std::time::Duration;

use super::{
    orders::{self, ByHand},
    stand::{DATAS, MACHINES, Stand, TEMPLATE, TEMPLATES},
    unguarded,
    words::recorded,
};
use crate::{
    e2e::Crds,
    support::{
        Behaviour,
        capm3::{ALL, Point, Role},
    },
};

#[tokio::test]
async fn capm3_1994_the_stand_in_passes_through_the_recorded_states() {
    match Crds::of_binary() {
        Crds::V1beta1 => full_1_8_1().await,
        Crds::V1beta2 => full_1_14().await,
    }
}

#[tokio::test]
async fn capm3_1994_the_stand_in_passes_through_the_recorded_states_of_claims_by_hand() {
    match Crds::of_binary() {
        Crds::V1beta1 => by_hand_1_8_1().await,
        Crds::V1beta2 => by_hand_1_14().await,
    }
}

/// Recorded with machines on simulated hosts, and addresses from a pool.
async fn full_1_8_1() {
    let stand = Stand::live(unguarded().await, "recorded", Behaviour::v1_8_1(), 3).await;
    assert_eq!(stand.left().await, recorded("v1.8.1/full-1live"));
    orders::template_then_machines(&stand, async || {
        assert_eq!(stand.left().await, recorded("v1.8.1/full-2deleting"));
    })
    .await;
    assert_eq!(stand.left().await, recorded("v1.8.1/full-3stuck"));
    stand.stays().await;
}

/// The same with 1.14, in the 30 s after which it looks again.
async fn full_1_14() {
    // Nobody waits for it here.
    let behaviour = Behaviour { requeue: Duration::from_hours(1), ..Behaviour::default() };
    let mut stand = Stand::live(unguarded().await, "recorded", behaviour, 3).await;
    assert_eq!(stand.left().await, recorded("v1.14.0-rc.0/full-1live"));
    stand.delete(TEMPLATES, TEMPLATE).await;
    let claims = stand.capm3.hold(Point::ClaimRelease);
    for machine in &stand.machines {
        // Its host is released long after.
        let hosts = stand.capm3.hold(Point::MachineRelease);
        stand.delete(MACHINES, machine).await;
        claims.reached().await;
        stand.settled(Role::Data).await;
        stand.heard_by_the_collector().await;
        claims.step();
        drop(hosts);
        stand.space.gone(MACHINES, machine).await;
    }
    drop(claims);
    stand.capm3.idle(&ALL).await;
    assert_eq!(stand.left().await, recorded("v1.14.0-rc.0/full-2deleting"));

    // Like the end of the 30 s.
    let template = stand.capm3.hold(Point::TemplateLook);
    stand.capm3.restart().await;
    stand.none(DATAS).await;
    drop(template);
    stand.none(TEMPLATES).await;
}

/// Recorded without hosts; at last the Metal3Data were touched and the machines deleted.
async fn by_hand_1_8_1() {
    let stand = Stand::by_hand(unguarded().await, "recorded", Behaviour::v1_8_1()).await;
    assert_eq!(stand.left().await, recorded("v1.8.1/hand-1live"));
    orders::by_hand(&stand, ByHand::TemplateThenClaims).await;
    assert_eq!(stand.left().await, recorded("v1.8.1/hand-2stuck"));
    stand.stays().await;
    for data in ["workers-0", "workers-1", "workers-2"] {
        stand.touch(DATAS, data).await;
    }
    stand.none(DATAS).await;
    for machine in &stand.machines {
        stand.delete(MACHINES, machine).await;
    }
    stand.none(MACHINES).await;
    assert_eq!(stand.left().await, recorded("v1.8.1/hand-3stuck"));
    stand.stays().await;
}

async fn by_hand_1_14() {
    let stand = Stand::by_hand(unguarded().await, "recorded", Behaviour::default()).await;
    // The name that the template had there.
    let recorded = recorded("v1.14.0-rc.0/hand-1live").join("\n").replace("t-one", TEMPLATE);
    assert_eq!(stand.left().await.join("\n"), recorded);
}
