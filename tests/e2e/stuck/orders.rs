//! The orders in which people delete things, each with the race that the real CAPM3 1.8.1 showed.
//!
//! Every step waits for what makes the race certain. Where a guard keeps a template that is still
//! in use, the order goes on as it would, and the template is left to the end of the namespace.

use serde_json::Value;

use super::stand::{CLAIMS, DATAS, MACHINES, Stand, TEMPLATE, TEMPLATES, is_terminating};
use crate::support::capm3::{Point, Role};

/// The template, then machines. Metal3Data end late, one long before the others, and their machines
/// are gone for a while before the template is looked at. `before_data_ends` is called when only the
/// Metal3Data are left to end.
pub(super) async fn template_then_machines(stand: &Stand, before_data_ends: impl AsyncFnOnce()) {
    let [first, rest @ ..] = &stand.machines[..] else { panic!("no machines") };
    stand.delete(TEMPLATES, TEMPLATE).await;

    let data = stand.capm3.hold(Point::DataLook);
    stand.delete(MACHINES, first).await;
    stand.space.gone(MACHINES, first).await;
    stand.space.gone(CLAIMS, first).await;
    stand.settled(Role::Template).await;
    drop(data);
    stand.space.gone(DATAS, &format!("{TEMPLATE}-0")).await;

    let data = stand.capm3.hold(Point::DataLook);
    for (machine, index) in rest.iter().zip(1..) {
        let template = stand.capm3.hold(Point::TemplateLook);
        stand.delete(MACHINES, machine).await;
        stand.space.gone(MACHINES, machine).await;
        // The garbage collector's doing.
        let mine = format!("{TEMPLATE}-{index}");
        stand
            .all(DATAS, "without a machine that is gone", |it| {
                it["metadata"]["name"] != *mine || !is_owned_by_machine(it)
            })
            .await;
        drop(template);
        stand.space.gone(CLAIMS, machine).await;
        stand.settled(Role::Template).await;
    }
    before_data_ends().await;
    drop(data);
    stand.none(DATAS).await;
}

/// The machines, and the template while their hosts are being released. Metal3Data end late.
pub(super) async fn machines_then_template_at_once(stand: &Stand) {
    let data = stand.capm3.hold(Point::DataLook);
    let hosts = stand.delete_machines().await;
    stand.delete(TEMPLATES, TEMPLATE).await;
    stand.release_hosts_one_by_one(hosts).await;
    drop(data);
    stand.none(DATAS).await;
}

/// The machines, and the template long after. Metal3Data end late.
pub(super) async fn machines_then_template_later(stand: &Stand) {
    let data = stand.capm3.hold(Point::DataLook);
    let hosts = stand.delete_machines().await;
    stand.release_hosts_one_by_one(hosts).await;
    stand.delete(TEMPLATES, TEMPLATE).await;
    stand.settled(Role::Template).await;
    drop(data);
    stand.none(DATAS).await;
}

/// Only the namespace. The template controller hears of the template's deletion when all claims are
/// gone, and Metal3Data end late.
pub(super) async fn namespace_with_a_late_template(stand: &Stand) {
    let data = stand.capm3.hold(Point::DataLook);
    let template = stand.capm3.hold(Point::Stale(TEMPLATES));
    stand.delete_namespace().await;
    stand.none(MACHINES).await;
    stand.none(CLAIMS).await;
    // At once, unless a guard has kept it from its machines.
    stand.all(TEMPLATES, "terminating", is_terminating).await;
    drop(template);
    stand.settled(Role::Template).await;
    drop(data);
    stand.none(DATAS).await;
}

/// Only the namespace. The template controller finds all claims deleted when it looks first, so it
/// gives up all Metal3Data in one look.
pub(super) async fn namespace_in_one_look(stand: &Stand) {
    let template = stand.capm3.hold(Point::TemplateLook);
    let hosts = stand.capm3.hold(Point::MachineLook);
    stand.delete_namespace().await;
    for resource in [CLAIMS, DATAS] {
        stand.all(resource, "terminating", is_terminating).await;
    }
    template.reached().await;
    // What it does not know yet it would look at later.
    stand.capm3.current().await;
    drop(template);
    stand.settled(Role::Template).await;
    // They have seen their end, and wait for that of their claims.
    stand.settled(Role::Data).await;
    drop(hosts);
    stand.none(MACHINES).await;
    stand.none(CLAIMS).await;
}

/// The template, then its only machine. The Metal3Data is looked at while its claim is still there.
pub(super) async fn template_then_its_only_machine(stand: &Stand) {
    stand.delete(TEMPLATES, TEMPLATE).await;
    let claims = stand.capm3.hold(Point::ClaimRelease);
    stand.delete(MACHINES, "w-0").await;
    claims.reached().await;
    stand.settled(Role::Data).await;
    stand.heard_by_the_collector().await;
    drop(claims);
    stand.none(CLAIMS).await;
}

/// Claims that a person made, in three orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByHand {
    TemplateThenClaims,
    ClaimsThenTemplate,
    ClaimsThenMachinesThenTemplate,
}

impl ByHand {
    pub(super) const ALL: [Self; 3] =
        [Self::TemplateThenClaims, Self::ClaimsThenTemplate, Self::ClaimsThenMachinesThenTemplate];
}

/// Metal3Data are looked at while their claims are still there.
pub(super) async fn by_hand(stand: &Stand, order: ByHand) {
    if order == ByHand::TemplateThenClaims {
        stand.delete(TEMPLATES, TEMPLATE).await;
    }
    let claims = stand.capm3.hold(Point::ClaimRelease);
    for claim in &stand.machines {
        stand.delete(CLAIMS, claim).await;
        claims.reached().await;
        // It has seen the end of the Metal3Data, and waits for that of the claim.
        stand.settled(Role::Data).await;
        stand.heard_by_the_collector().await;
        claims.step();
        stand.space.gone(CLAIMS, claim).await;
    }
    drop(claims);
    stand.settled(Role::Template).await;
    if order == ByHand::ClaimsThenMachinesThenTemplate {
        for machine in &stand.machines {
            stand.delete(MACHINES, machine).await;
        }
        stand.none(MACHINES).await;
    }
    if order != ByHand::TemplateThenClaims {
        stand.delete(TEMPLATES, TEMPLATE).await;
        stand.settled(Role::Template).await;
    }
}

fn is_owned_by_machine(object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.into_iter().any(|it| it["kind"] == "Metal3Machine")
}
