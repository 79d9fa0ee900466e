//! What the model knows of a namespace: a few bits for each object.

use std::hash::{Hash, Hasher};

use metal3_guard::core::plan::Action;

use crate::capm3::Pass;

/// Room for machines, claims and Metal3Data; a setup uses fewer.
pub(crate) const N: usize = 3;

/// A set of finalizers, of those that play a part here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Finalizers(pub(crate) u8);

impl Finalizers {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const TEMPLATE: Self = Self(1);
    pub(crate) const CLAIM: Self = Self(2);
    pub(crate) const DATA: Self = Self(4);
    pub(crate) const MACHINE: Self = Self(8);
    pub(crate) const CLUSTER: Self = Self(16);

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Meta {
    pub(crate) terminating: bool,
    /// Marked by `clusterctl move`.
    pub(crate) moving: bool,
    /// Woken by the guard since the last progress.
    pub(crate) woken: bool,
    pub(crate) finalizers: Finalizers,
}

impl Meta {
    pub(crate) fn held(finalizers: Finalizers) -> Self {
        Self { finalizers, ..Self::default() }
    }

    fn bits(self) -> u128 {
        let flags = [self.terminating, self.moving, self.woken];
        let flags = flags.into_iter().fold(0, |bits, flag| bits << 1 | u128::from(flag));
        flags << 5 | u128::from(self.finalizers.0)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Template {
    pub(crate) meta: Meta,
    /// `status.indexes`: the index of each claim.
    pub(crate) indexes: [Option<u8>; N],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) meta: Meta,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) meta: Meta,
    /// `status.renderedData`, by index.
    pub(crate) rendered: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) meta: Meta,
    /// Which claim it was made for.
    pub(crate) claim: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub(crate) meta: Meta,
}

/// Names an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Id {
    Template,
    Machine(usize),
    Claim(usize),
    Data(usize),
    Cluster,
}

impl Id {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let each = |make: fn(usize) -> Self| (0..N).map(make);
        each(Self::Data)
            .chain(each(Self::Claim))
            .chain(each(Self::Machine))
            .chain([Self::Template, Self::Cluster])
    }

    /// Its place in a set of objects that controllers keep copies of.
    const fn place(self) -> u16 {
        match self {
            Self::Template => 0,
            Self::Cluster => 1,
            Self::Claim(i) => 2 + i as u16,
            Self::Data(i) => 2 + (N + i) as u16,
            Self::Machine(i) => 2 + (2 * N + i) as u16,
        }
    }
}

/// A set of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ids(u16);

impl Ids {
    pub(crate) const fn has(self, id: Id) -> bool {
        self.0 >> id.place() & 1 == 1
    }

    pub(crate) const fn insert(&mut self, id: Id) {
        self.0 |= 1 << id.place();
    }

    pub(crate) const fn remove(&mut self, id: Id) {
        self.0 &= !(1 << id.place());
    }
}

/// The objects of the namespace, as the API server or a cache has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) template: Option<Template>,
    pub(crate) machines: [Option<Machine>; N],
    pub(crate) claims: [Option<Claim>; N],
    pub(crate) data: [Option<Data>; N],
    pub(crate) cluster: Option<Cluster>,
}

impl Objects {
    pub(crate) fn meta(&self, id: Id) -> Option<&Meta> {
        match id {
            Id::Template => self.template.as_ref().map(|it| &it.meta),
            Id::Machine(i) => self.machines[i].as_ref().map(|it| &it.meta),
            Id::Claim(i) => self.claims[i].as_ref().map(|it| &it.meta),
            Id::Data(i) => self.data[i].as_ref().map(|it| &it.meta),
            Id::Cluster => self.cluster.as_ref().map(|it| &it.meta),
        }
    }

    pub(crate) fn meta_mut(&mut self, id: Id) -> Option<&mut Meta> {
        match id {
            Id::Template => self.template.as_mut().map(|it| &mut it.meta),
            Id::Machine(i) => self.machines[i].as_mut().map(|it| &mut it.meta),
            Id::Claim(i) => self.claims[i].as_mut().map(|it| &mut it.meta),
            Id::Data(i) => self.data[i].as_mut().map(|it| &mut it.meta),
            Id::Cluster => self.cluster.as_mut().map(|it| &mut it.meta),
        }
    }

    pub(crate) fn remove(&mut self, id: Id) {
        match id {
            Id::Template => self.template = None,
            Id::Machine(i) => self.machines[i] = None,
            Id::Claim(i) => self.claims[i] = None,
            Id::Data(i) => self.data[i] = None,
            Id::Cluster => self.cluster = None,
        }
    }

    /// Takes one object over from `other`.
    pub(crate) fn copy(&mut self, id: Id, other: &Self) {
        match id {
            Id::Template => self.template = other.template,
            Id::Machine(i) => self.machines[i] = other.machines[i],
            Id::Claim(i) => self.claims[i] = other.claims[i],
            Id::Data(i) => self.data[i] = other.data[i],
            Id::Cluster => self.cluster = other.cluster,
        }
    }

    pub(crate) fn is(&self, id: Id) -> bool {
        self.meta(id).is_some()
    }

    pub(crate) fn is_live(&self, id: Id) -> bool {
        self.meta(id).is_some_and(|meta| !meta.terminating)
    }

    pub(crate) fn is_terminating(&self, id: Id) -> bool {
        self.meta(id).is_some_and(|meta| meta.terminating)
    }

    /// The objects that are there.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        Id::all().filter(|id| self.is(*id))
    }

    /// Everything that there is to know, in one number.
    pub(crate) fn bits(&self) -> u128 {
        let small = |index: Option<u8>| u128::from(index.map_or(0, |it| it + 1));
        let mut bits = 0;
        let mut push = |meta: Option<Meta>, more: u128, width: u32| {
            let there = meta.map_or(0, |meta| 1 << 8 | meta.bits());
            bits = (bits << 9 | there) << width | more;
        };
        let indexes = self.template.map_or([None; N], |it| it.indexes);
        let indexes = indexes.into_iter().fold(0, |bits, index| bits << 2 | small(index));
        push(self.template.map(|it| it.meta), indexes, 6);
        push(self.cluster.map(|it| it.meta), 0, 0);
        for i in 0..N {
            push(self.machines[i].map(|it| it.meta), 0, 0);
            let rendered = self.claims[i].and_then(|it| it.rendered);
            push(self.claims[i].map(|it| it.meta), small(rendered), 2);
            let claim = self.data[i].map_or(0, |it| it.claim);
            push(self.data[i].map(|it| it.meta), u128::from(claim), 2);
        }
        bits
    }

    /// The same with machine and claim `i` under number `new[i]`.
    fn renumbered(&self, new: &[usize; N]) -> Self {
        let mut it = *self;
        for (i, to) in new.iter().copied().enumerate() {
            it.machines[to] = self.machines[i];
            it.claims[to] = self.claims[i];
            if let (Some(its), Some(template)) = (&mut it.template, self.template) {
                its.indexes[to] = template.indexes[i];
            }
        }
        for data in it.data.iter_mut().flatten() {
            data.claim = new[usize::from(data.claim)] as u8;
        }
        it
    }
}

/// A step that a guard has planned and not yet carried out. Its precondition is that the object
/// has not changed: when it changes, the step can only end in a conflict and is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Step {
    pub(crate) action: Action,
    /// For a strip the finalizers that stay, for a prune the claims whose entries go.
    pub(crate) payload: u8,
}

/// What a guard holds between its look and its writes: for the template, then for each Metal3Data.
pub(crate) type Planned = [Option<Step>; 1 + N];

/// How far `clusterctl move` has come: which object, and which of its three requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Mover {
    pub(crate) object: u8,
    pub(crate) request: u8,
}

/// What must never happen and did, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Faults(pub(crate) u8);

impl Faults {
    /// The guard took a finalizer off something alive.
    pub(crate) const STRIPPED: Self = Self(1);
    /// The template went while something needed it.
    pub(crate) const RELEASED: Self = Self(2);
    /// A Metal3Data in use was deleted by the guard, or is gone.
    pub(crate) const DELETED: Self = Self(4);
    /// The guard dropped an entry of `status.indexes` that is in use.
    pub(crate) const DROPPED: Self = Self(8);
    /// An entry of `status.indexes` was stored that was stale already.
    pub(crate) const STALE: Self = Self(16);
    /// The guard refused something to `clusterctl move`.
    pub(crate) const REFUSED: Self = Self(32);

    pub(crate) const fn has(self, fault: Self) -> bool {
        self.0 & fault.0 != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(crate) struct State {
    /// What the API server has.
    pub(crate) live: Objects,
    /// What the managers' caches have.
    pub(crate) cache: Objects,
    /// Whose cached copy is behind, so that an event is on its way.
    pub(crate) behind: Ids,
    /// What CAPM3's template and data controllers have in their queues.
    pub(crate) queued: Ids,
    /// A pass of the template controller between two of its writes.
    pub(crate) pass: Option<Pass>,
    pub(crate) guards: [Planned; 2],
    /// Machines that may still be made.
    pub(crate) to_make: u8,
    pub(crate) namespace_going: bool,
    /// A user's DELETE of the template has passed its review and is not stored yet.
    pub(crate) reviewed: bool,
    /// The guard is at work.
    pub(crate) installed: bool,
    /// CAPM3 is gone for good.
    pub(crate) stopped: bool,
    pub(crate) mover: Option<Mover>,
    pub(crate) faults: Faults,
}

impl State {
    /// A namespace that everyone has seen.
    pub(crate) fn of(live: Objects) -> Self {
        Self {
            live,
            cache: live,
            behind: Ids::default(),
            queued: Ids::default(),
            pass: None,
            guards: [[None; 1 + N]; 2],
            to_make: 0,
            namespace_going: false,
            reviewed: false,
            installed: true,
            stopped: false,
            mover: None,
            faults: Faults::default(),
        }
    }

    fn renumbered(&self, new: &[usize; N]) -> Self {
        let mut it = Self {
            live: self.live.renumbered(new),
            cache: self.cache.renumbered(new),
            pass: self.pass.map(|pass| pass.renumbered(new)),
            ..*self
        };
        for (i, to) in new.iter().copied().enumerate() {
            for (sets, from) in [(&mut it.behind, self.behind), (&mut it.queued, self.queued)] {
                for make in [Id::Claim as fn(usize) -> Id, Id::Machine] {
                    if from.has(make(i)) {
                        sets.insert(make(to));
                    } else {
                        sets.remove(make(to));
                    }
                }
            }
            it.to_make = it.to_make & !(1 << to) | (self.to_make >> i & 1) << to;
        }
        for (guard, before) in it.guards.iter_mut().zip(self.guards) {
            // The payload of a prune counts claims.
            if let (Some(step), Some(old)) = (&mut guard[0], before[0])
                && step.action == Action::Prune
            {
                step.payload = (0..N).fold(0, |bits, i| bits | (old.payload >> i & 1) << new[i]);
            }
        }
        it
    }

    /// All that concerns machine `i`, but for its number.
    fn signature(&self, i: usize) -> u64 {
        let of = |objects: &Objects| {
            let bits = |meta: Option<Meta>| meta.map_or(0, |it| 1 << 8 | it.bits() as u64);
            let small = |index: Option<u8>| u64::from(index.map_or(0, |it| it + 1));
            let claim = objects.claims[i];
            let index = objects.template.and_then(|it| it.indexes[i]);
            let own = |data: &Option<Data>| data.is_some_and(|it| usize::from(it.claim) == i);
            let data = objects.data.iter().fold(0, |bits, it| bits << 1 | u64::from(own(it)));
            let machine = bits(objects.machines[i].map(|it| it.meta));
            let claimed =
                bits(claim.map(|it| it.meta)) << 2 | small(claim.and_then(|it| it.rendered));
            ((machine << 11 | claimed) << 2 | small(index)) << N | data
        };
        let flags = [self.to_make >> i & 1 == 1, self.behind.has(Id::Claim(i))];
        let flags = flags.into_iter().fold(0, |bits, flag| bits << 1 | u64::from(flag));
        (of(&self.live) << 27 | of(&self.cache)) << 2 | flags
    }
}

/// Machines differ by their numbers only, and so do guards: states that are the same but for that
/// have one hash, so that the checker looks at one of them. What holds for one holds for all:
/// nothing goes by the order of machines (a cache lists in any order).
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut order: [usize; N] = [0, 1, 2];
        let signatures = order.map(|i| self.signature(i));
        order.sort_by_key(|i| signatures[*i]);
        let mut new = [0; N];
        for (to, i) in order.into_iter().enumerate() {
            new[i] = to;
        }
        let it = if order == [0, 1, 2] { *self } else { self.renumbered(&new) };
        let mut guards = it.guards;
        guards.sort_unstable();
        it.live.bits().hash(hasher);
        it.cache.bits().hash(hasher);
        (it.behind, it.queued, it.pass, guards, it.to_make, it.mover, it.faults).hash(hasher);
        [it.namespace_going, it.reviewed, it.installed, it.stopped].hash(hasher);
    }
}
