//! What one model is made of: which CAPM3, which of the guard's rules, which users.

use std::{collections::HashSet, fmt};

use parking_lot::Mutex;

use crate::{
    machine::{MOVE, TEARDOWN},
    rules::Version,
};

/// A release of CAPM3, where it makes a difference here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The one of the public report: no requeue while Metal3Data or claims are left, and the
    /// count of what is left comes at the end of a pass.
    V1_8_1,
    /// Requeues after 30 s, and counts at the beginning of a pass.
    V1_8_2,
    /// Returns what a patch ran into, finds Metal3Data by the claim's status too, owns them by
    /// claim and machine only, and is not paused with the Cluster.
    V1_14,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1_8_1 => "CAPM3 1.8.1",
            Self::V1_8_2 => "CAPM3 1.8.2",
            Self::V1_14 => "CAPM3 1.14",
        })
    }
}

impl Release {
    pub(crate) const ALL: [Self; 3] = [Self::V1_8_1, Self::V1_8_2, Self::V1_14];

    pub(crate) const fn version(self) -> Version {
        match self {
            Self::V1_8_1 | Self::V1_8_2 => "v1beta1",
            Self::V1_14 => "v1beta2",
        }
    }

    pub(crate) fn requeues(self) -> bool {
        self != Self::V1_8_1
    }

    pub(crate) fn is_current(self) -> bool {
        self == Self::V1_14
    }
}

/// What the guard does. Each can be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// 4.1
    Deletion,
    /// 4.2
    Finalizers,
    /// 4.3, the webhook
    Indexes,
    /// 4.4
    References,
    /// 4.5, the webhook
    ReleaseGate,
    /// 4.5, step 1
    Wake,
    /// 4.5, step 2
    Prune,
    /// 4.5, step 3, for what nobody deleted
    DeleteOrphan,
    /// 4.5, step 3, for what is terminating
    FreeOrphan,
    /// 4.5, step 4
    ReleaseStep,
    /// 4.5, step 5
    FreeLost,
    /// uid and resourceVersion on every write
    Preconditions,
}

/// Some of the guard's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules(u16);

impl Rules {
    pub(crate) const ALL: Self = Self(u16::MAX);
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn without(self, rule: Rule) -> Self {
        Self(self.0 & !(1 << rule as u16))
    }

    pub(crate) const fn has(self, rule: Rule) -> bool {
        self.0 >> rule as u16 & 1 == 1
    }
}

/// What people do. Machines may always be deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(crate) struct Users {
    pub(crate) delete_template: bool,
    pub(crate) delete_claims: bool,
    pub(crate) delete_data: bool,
    pub(crate) delete_namespace: bool,
    /// Someone runs `unstick --apply` when a plan says so.
    pub(crate) unstick: bool,
}

impl Users {
    pub(crate) const ALL: Self = Self {
        delete_template: true,
        delete_claims: true,
        delete_data: true,
        delete_namespace: true,
        unstick: true,
    };
}

/// In which order clusterctl takes an object from the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Up to Cluster API 1.9.4: mark, strip, delete.
    StripFirst,
    /// Since 1.9.5: mark, delete, strip.
    DeleteFirst,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StripFirst => "finalizers stripped before the deletion",
            Self::DeleteFirst => "finalizers stripped after the deletion",
        })
    }
}

/// The namespace at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// A template that nobody uses and CAPM3 has not seen; the machines are made later.
    Empty,
    /// All machines have their Metal3Data.
    Full,
    /// All but one, which is made later.
    Growing,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(crate) struct Setup {
    pub(crate) release: Release,
    pub(crate) rules: Rules,
    pub(crate) users: Users,
    pub(crate) machines: u8,
    pub(crate) starts: Vec<Start>,
    /// How many controllers of the guard run side by side.
    pub(crate) guards: usize,
    /// CAPM3's template controller can be interrupted between any two of its writes.
    pub(crate) interleaved: bool,
    /// A pass may write another time to `status.lastUpdated`, which wakes it once more.
    pub(crate) stamps: bool,
    /// CAPM3 may start anew, and then looks at everything.
    pub(crate) restarts: bool,
    /// CAPM3 may go for good.
    pub(crate) stops: bool,
    /// Others may write between the review of a user's DELETE of the template and the deletion.
    pub(crate) slow_reviews: bool,
    /// The guard is installed at some time, not from the beginning.
    pub(crate) late: bool,
    /// `clusterctl move` takes the namespace away.
    pub(crate) mover: Option<Order>,
    /// What is checked.
    pub(crate) properties: Vec<&'static str>,
    /// Hashes of states from which everything ends well.
    pub(crate) known_good: KnownGood,
}

impl Setup {
    /// Everything that people do to a namespace, and both guards.
    pub(crate) fn teardown(release: Release, machines: u8) -> Self {
        Self {
            release,
            rules: Rules::ALL,
            users: Users::ALL,
            machines,
            starts: vec![Start::Empty, Start::Full, Start::Growing],
            guards: 2,
            interleaved: false,
            stamps: false,
            restarts: false,
            stops: false,
            slow_reviews: false,
            late: false,
            mover: None,
            properties: TEARDOWN.to_vec(),
            known_good: KnownGood::default(),
        }
    }

    /// Two machines that run; people delete machines and the template, and nothing else.
    pub(crate) fn templates_and_machines(release: Release) -> Self {
        Self {
            users: Users { delete_template: true, unstick: true, ..Users::default() },
            starts: vec![Start::Full],
            ..Self::teardown(release, 2)
        }
    }

    /// `clusterctl move` of a namespace with one machine.
    pub(crate) fn moving(release: Release, order: Order) -> Self {
        Self {
            starts: vec![Start::Full],
            mover: Some(order),
            properties: MOVE.to_vec(),
            ..Self::teardown(release, 1)
        }
    }

    pub(crate) fn has(&self, rule: Rule) -> bool {
        self.rules.has(rule)
    }
}

/// A set of hashes that threads share.
#[derive(Debug)]
pub(crate) struct KnownGood([Mutex<HashSet<u64>>; 64]);

impl Default for KnownGood {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl KnownGood {
    pub(crate) fn has(&self, hash: u64) -> bool {
        self.part(hash).lock().contains(&hash)
    }

    pub(crate) fn insert(&self, hash: u64) {
        self.part(hash).lock().insert(hash);
    }

    fn part(&self, hash: u64) -> &Mutex<HashSet<u64>> {
        &self.0[hash as usize % self.0.len()]
    }
}
