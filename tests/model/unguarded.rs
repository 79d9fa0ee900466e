//! Without the guard the model has the public bugs, and the early release: it is not the model
//! that makes everything hold.

use crate::{
    machine::{DATA_GONE, MOVED, RELEASED, TEMPLATE_GONE},
    search::{Found, Reach, search},
    setup::{Order, Release, Rules, Setup},
};

/// One machine and its template are deleted in any order, and nobody looks after it.
fn without(release: Release, property: &'static str) -> Found {
    let setup = Setup {
        machines: 1,
        guards: 0,
        rules: Rules::NONE,
        properties: vec![property],
        ..Setup::templates_and_machines(release)
    };
    search(setup, Reach::Shortest)
}

fn last(story: &str) -> &str {
    story.lines().last().unwrap().trim()
}

/// CAPM3 #1994: the template alone is left.
#[test]
fn a_template_is_stuck() {
    let found = without(Release::V1_8_1, TEMPLATE_GONE);
    let story = found.assert_breaks("CAPM3 1.8.1 without the guard", TEMPLATE_GONE);
    let left = "Metal3DataTemplate workers (terminating, held by metal3datatemplate)";
    assert_eq!(last(&story), format!("in the end there is {left}"));
}

/// CAPM3 looks again after 30 s since 1.8.2.
#[test]
fn a_template_is_not_stuck_where_it_is_looked_at_again() {
    for release in [Release::V1_8_2, Release::V1_14] {
        without(release, TEMPLATE_GONE).assert_holds(&format!("{release} without the guard"));
    }
}

/// Seen with CAPM3 1.8.1: Metal3Data without a template, which nothing ever frees.
#[test]
fn a_template_is_released_too_early() {
    let found = without(Release::V1_8_1, RELEASED);
    let story = found.assert_breaks("CAPM3 1.8.1 without the guard", RELEASED);
    let left = "Metal3Data workers-0 (terminating, held by metal3data)";
    assert_eq!(last(&story), format!("in the end there is {left}"));

    let found = without(Release::V1_8_1, DATA_GONE);
    let story = found.assert_breaks("CAPM3 1.8.1 without the guard", DATA_GONE);
    assert!(last(&story).contains("Metal3Data workers-0 (terminating"), "{story}");
}

/// Cluster API #11812: the Cluster is left on the source.
#[test]
fn a_move_leaves_its_cluster_behind() {
    for release in Release::ALL {
        let moving = |order| Setup { rules: Rules::NONE, ..Setup::moving(release, order) };
        let found = search(moving(Order::StripFirst), Reach::Shortest);
        let story = found.assert_breaks(&format!("clusterctl move, {release}, no guard"), MOVED);
        let left = "Cluster prod (terminating, marked for the move, held by cluster)";
        assert_eq!(last(&story), format!("in the end there is {left}"));

        // The newer order is the fix.
        let found = search(moving(Order::DeleteFirst), Reach::All);
        found.assert_holds(&format!("clusterctl move since 1.9.5, {release}, no guard"));
    }
}
