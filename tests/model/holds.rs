//! With the guard everything holds, whatever CAPM3, clusterctl and people do.

use crate::{
    machine::{RELEASED, SERVED},
    search::{Reach, search, soak},
    setup::{Order, Release, Setup, Start, Users},
};

/// Two guards side by side.
#[test]
fn one_machine() {
    for release in Release::ALL {
        let setup = Setup::teardown(release, 1);
        search(setup, Reach::All).assert_holds(&format!("{release}, one machine, two guards"));
    }
}

/// CAPM3 may start anew at any time, and its writes may wake it once more.
#[test]
fn one_machine_and_restarts() {
    let long = soak().is_some();
    for release in Release::ALL {
        let two = long || release == Release::V1_8_1;
        let setup = Setup {
            restarts: true,
            stamps: long,
            guards: if two { 2 } else { 1 },
            ..Setup::teardown(release, 1)
        };
        let title = format!("{release} restarted at any time, one machine");
        search(setup, Reach::All).assert_holds(&title);
    }
}

/// Between any two writes of CAPM3's template controller anything else may happen.
#[test]
fn one_machine_between_the_writes_of_a_pass() {
    for release in Release::ALL {
        let mut setup = Setup { interleaved: true, guards: 1, ..Setup::teardown(release, 1) };
        if soak().is_none() {
            setup.starts = vec![Start::Full];
        }
        let title = format!("{release}, one machine, write by write");
        search(setup, Reach::All).assert_holds(&title);
    }
}

/// What was stuck before the guard came is healed too. A machine whose template was deleted by
/// then is not served again.
#[test]
fn installed_at_any_time() {
    for release in Release::ALL {
        let restarts = soak().is_some();
        let mut setup = Setup { late: true, guards: 1, restarts, ..Setup::teardown(release, 1) };
        setup.properties.retain(|name| *name != SERVED);
        let title = format!("{release}, one machine, guard installed at any time");
        search(setup, Reach::All).assert_holds(&title);
    }
}

/// What no webhook can see: a machine that is made between the review of a DELETE and its write.
/// It is not served; everything that is deleted ends all the same.
#[test]
fn between_review_and_deletion() {
    for release in Release::ALL {
        let setup = || Setup { slow_reviews: true, guards: 1, ..Setup::teardown(release, 1) };
        let title = format!("{release}, one machine, slow reviews of deletions");
        let served = Setup { properties: vec![SERVED], ..setup() };
        search(served, Reach::Shortest).assert_breaks(&title, SERVED);
        let mut rest = setup();
        rest.properties.retain(|name| ![SERVED, RELEASED].contains(name));
        search(rest, Reach::All).assert_holds(&title);
    }
}

/// CAPM3 may go for good at any time: what does not need it is finished without it.
#[test]
fn without_capm3() {
    for release in Release::ALL {
        let restarts = soak().is_some();
        let mut one = Setup { stops: true, guards: 1, restarts, ..Setup::teardown(release, 1) };
        one.properties.retain(|name| *name != SERVED);
        let mut two = Setup { stops: true, guards: 1, ..Setup::templates_and_machines(release) };
        two.properties.retain(|name| *name != SERVED);
        let title = format!("{release} stopped at any time");
        search(one, Reach::All).assert_holds(&format!("{title}, one machine"));
        search(two, Reach::All).assert_holds(&format!("{title}, two machines"));
    }
}

/// The public report: machines and their template are deleted in any order.
#[test]
fn two_machines() {
    for release in Release::ALL {
        let setup = Setup::templates_and_machines(release);
        let title = format!("{release}, two machines and their template, two guards");
        search(setup, Reach::All).assert_holds(&title);
        if soak().is_some() {
            let starts = vec![Start::Full, Start::Growing];
            let setup = Setup { starts, guards: 1, ..Setup::templates_and_machines(release) };
            let title = format!("{release}, one of two machines is made in between");
            search(setup, Reach::All).assert_holds(&title);
            let users = Users { delete_template: true, delete_claims: true, ..Users::default() };
            let setup = Setup { users, guards: 1, ..Setup::templates_and_machines(release) };
            let title = format!("{release}, two machines, their claims and their template");
            search(setup, Reach::All).assert_holds(&title);
        }
    }
}

/// Everything at once, as far as it goes.
#[test]
fn two_machines_and_everything() {
    for release in Release::ALL {
        let setup = Setup { restarts: true, stamps: true, ..Setup::teardown(release, 2) };
        let depth = if soak().is_some() { 15 } else { 12 };
        let title = format!("{release}, two machines, two guards, everything that people do");
        search(setup, Reach::Depth(depth)).assert_holds(&title);
    }
}

/// Both orders of clusterctl.
#[test]
fn moves() {
    for release in Release::ALL {
        for order in [Order::StripFirst, Order::DeleteFirst] {
            let title = format!("clusterctl move, {order}, {release}");
            search(Setup::moving(release, order), Reach::All).assert_holds(&title);
        }
    }
}
