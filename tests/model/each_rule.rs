//! Each rule is needed: without it, and with all the others, what it is for does not hold.

use crate::{
    machine::{DATA_GONE, MOVED, RELEASED, SERVED, STALE, STRIPPED, TEMPLATE_GONE, TRUE},
    search::{Reach, search},
    setup::{Order, Release, Rule, Rules, Setup},
};

/// Searches what holds with all rules (see `holds`) without this one.
fn assert_needed(rule: Rule, property: &'static str, setup: Setup) {
    let setup = Setup { rules: Rules::ALL.without(rule), properties: vec![property], ..setup };
    let found = search(setup, Reach::Shortest);
    found.assert_breaks(&format!("{} without {rule:?}", Release::V1_8_1), property);
}

fn one_machine() -> Setup {
    Setup { guards: 1, ..Setup::teardown(Release::V1_8_1, 1) }
}

#[test]
fn deletion() {
    assert_needed(Rule::Deletion, SERVED, one_machine());
}

#[test]
fn finalizers() {
    assert_needed(Rule::Finalizers, MOVED, Setup::moving(Release::V1_8_1, Order::StripFirst));
}

#[test]
fn indexes() {
    assert_needed(Rule::Indexes, STALE, one_machine());
}

#[test]
fn references() {
    assert_needed(Rule::References, SERVED, one_machine());
}

#[test]
fn release_gate() {
    assert_needed(Rule::ReleaseGate, RELEASED, one_machine());
}

#[test]
fn wake() {
    assert_needed(Rule::Wake, TEMPLATE_GONE, one_machine());
    assert_needed(Rule::Wake, DATA_GONE, one_machine());
}

/// With CAPM3 gone, a claim holds the template, whose indexes name another that is gone.
#[test]
fn prune() {
    let two = Setup::templates_and_machines(Release::V1_8_1);
    assert_needed(Rule::Prune, TRUE, Setup { stops: true, guards: 1, ..two });
}

#[test]
fn delete_orphan() {
    assert_needed(Rule::DeleteOrphan, TEMPLATE_GONE, one_machine());
}

#[test]
fn free_orphan() {
    assert_needed(Rule::FreeOrphan, TEMPLATE_GONE, one_machine());
}

/// CAPM3 is gone.
#[test]
fn release_step() {
    assert_needed(Rule::ReleaseStep, TEMPLATE_GONE, Setup { stops: true, ..one_machine() });
}

#[test]
fn free_lost() {
    assert_needed(Rule::FreeLost, DATA_GONE, Setup { restarts: true, ..one_machine() });
}

/// What the other guard has planned is done to a new object of the same name.
#[test]
fn preconditions() {
    let two = Setup { guards: 2, restarts: true, ..one_machine() };
    assert_needed(Rule::Preconditions, STRIPPED, two);
}
