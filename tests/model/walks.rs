//! What is too large to be searched through is walked through at random.

use crate::{
    search::{Reach, search, soak},
    setup::{Release, Setup},
};

/// Three machines, two guards, everything that people do, and anything between two writes.
#[test]
fn three_machines() {
    let (first, seeds, states) = match soak() {
        Some(first) => (first, 50, 100_000),
        None => (1, 2, 20_000),
    };
    for release in Release::ALL {
        for seed in first..first + seeds {
            let setup = Setup {
                interleaved: true,
                restarts: true,
                stamps: true,
                ..Setup::teardown(release, 3)
            };
            let found = search(setup, Reach::Walks { seed, states });
            found.assert_holds(&format!("{release}, three machines"));
        }
    }
}
