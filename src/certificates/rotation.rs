//! When certificates are made anew, and in which order, so that no call breaks. Plain functions of
//! what was seen and the time: the [keeper](super::keeper) does what they say.
//!
//! ```text
//!                 introduce              switch                settle
//!   settled ------------------> introducing -----> retiring ------------> settled
//!   bundle: A                   bundle: A, B        bundle: A, B           bundle: B
//!   signed by: A                signed by: A        signed by: B           signed by: B
//! ```
//!
//! The state lies in one Secret, so that any replica can carry on. What a replica serves is what
//! the Secret holds; a step that API servers or other replicas must have heard of is taken only
//! after a dwell, which every replica counts on its own clock from what it saw itself. So no two
//! clocks are compared, and a replica that starts in the middle waits longer, never shorter.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;

use super::x509::{Certificate, PrivateKey};

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

/// Who signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// What clients trust.
    pub certificate: Certificate,
    /// What signs.
    pub key: PrivateKey,
}

/// What is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Shown to clients.
    pub certificate: Certificate,
    /// Its key.
    pub key: PrivateKey,
    /// The DNS names and IP addresses that it is for.
    pub names: BTreeSet<String>,
}

/// Everything that the replicas share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Has signed `leaf`, and signs what is made next.
    pub signing: Authority,
    /// Trusted already, to sign later.
    pub next: Option<Authority>,
    /// Signs no more, and is trusted until everybody shows something newer.
    pub retired: Vec<Certificate>,
    /// What every replica serves.
    pub leaf: Leaf,
}

/// Where a change of the authority stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// One authority.
    Settled,
    /// The next one is trusted, or about to be.
    Introducing,
    /// The next one signs, the old one is still trusted.
    Retiring,
}

impl State {
    /// A start: one authority. `retired` is what clients trusted until now.
    pub const fn new(signing: Authority, leaf: Leaf, retired: Vec<Certificate>) -> Self {
        Self { signing, next: None, retired, leaf }
    }

    /// Where a change of the authority stands.
    pub const fn phase(&self) -> Phase {
        match (&self.next, self.retired.is_empty()) {
            (Some(_), _) => Phase::Introducing,
            (None, false) => Phase::Retiring,
            (None, true) => Phase::Settled,
        }
    }

    /// All that is to be trusted, PEM. The same set is the same text.
    pub fn bundle(&self) -> String {
        let next = self.next.iter().map(|it| &it.certificate);
        let all = [&self.signing.certificate].into_iter().chain(next).chain(&self.retired);
        let all: BTreeSet<_> = all.map(|it| &*it.pem).collect();
        all.into_iter().collect()
    }

    /// Another certificate to serve, by the same authority.
    #[must_use]
    pub fn renewed(self, leaf: Leaf) -> Self {
        Self { leaf, ..self }
    }

    /// An authority to trust from now on. One that was to be next never signed, and is forgotten.
    #[must_use]
    pub fn introduced(self, next: Authority) -> Self {
        Self { next: Some(next), ..self }
    }

    /// The next authority signs, and has signed `leaf`. Without a next one there is no change.
    #[must_use]
    pub fn switched(mut self, leaf: Leaf) -> Self {
        if let Some(next) = self.next.take() {
            let old = std::mem::replace(&mut self.signing, next);
            self.retired.push(old.certificate);
            self.leaf = leaf;
        }
        self
    }

    /// Nobody shows what a retired authority has signed any more.
    #[must_use]
    pub fn settled(self) -> Self {
        Self { retired: Vec::new(), ..self }
    }
}

/// What the Secret holds.
#[derive(Clone, Copy, Debug)]
pub enum Stored<'a> {
    /// Nothing, or nothing that can be used.
    Nothing,
    /// A state, and what a person asked for.
    State(&'a State, Option<Wish>),
}

/// What a person can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Another certificate to serve.
    Certificate,
    /// Another authority, and so another certificate too.
    Authority,
}

/// What a replica has seen in one look.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// In the Secret.
    pub stored: Stored<'a>,
    /// What this replica saw in the Secret before, unless clients trust something else by now.
    pub remembered: Option<&'a State>,
    /// Clients trust exactly the bundle of the stored state, all of them.
    pub in_order: bool,
    /// For how long that was so without a gap, while the same authority signed ([`Steady`]).
    pub steady: Duration,
}

/// What the replicas are told alike.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The names that the certificate must have.
    pub names: BTreeSet<String>,
    /// How long to wait for others to have heard of a change.
    pub dwell: Duration,
}

/// What to write into the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new authority with a new certificate.
    Make,
    /// What this replica remembers.
    Restore,
    /// Another certificate by the same authority.
    Renew(Why),
    /// The next authority.
    Introduce(Why),
    /// The next authority signs.
    Switch,
    /// Old authorities are trusted no longer.
    Settle,
}

/// Why something is made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Less than a third of its lifetime is left.
    Age,
    /// A name is missing in it.
    Names,
    /// A person asked for it.
    Asked,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to write into the Secret. After that everything is to be seen anew.
    pub change: Option<Change>,
    /// Clients are to be told the stored bundle.
    pub publish: bool,
    /// The time until something is due although nothing changes; `None` when nothing is.
    pub due: Option<Duration>,
}

/// Decides what comes next.
pub fn decide(seen: &Seen<'_>, rules: &Rules, now: Timestamp) -> Step {
    let Stored::State(state, wish) = seen.stored else {
        let known = seen.remembered.is_some_and(|it| it.signing.certificate.ends > now);
        let change = if known { Change::Restore } else { Change::Make };
        return Step { change: Some(change), publish: false, due: None };
    };
    let change = change(state, wish, seen, rules, now);
    let waits = change.is_none() && seen.in_order && state.phase() != Phase::Settled;
    Step {
        change,
        publish: !seen.in_order,
        due: waits.then(|| rules.dwell.saturating_sub(seen.steady)),
    }
}

fn change(
    state: &State,
    wish: Option<Wish>,
    seen: &Seen<'_>,
    rules: &Rules,
    now: Timestamp,
) -> Option<Change> {
    let signing = &state.signing.certificate;
    if signing.ends <= now {
        // Nobody can be told of a successor by what nobody trusts any more.
        return Some(Change::Make);
    }
    // The signing authority is trusted already: this needs nobody to hear of it first.
    let leaf = &state.leaf.certificate;
    // One that ends with its authority cannot be replaced by one that lives longer.
    let old = is_old(leaf, now) && leaf.ends < signing.ends;
    if !rules.names.is_subset(&state.leaf.names) {
        return Some(Change::Renew(Why::Names));
    } else if old {
        return Some(Change::Renew(Why::Age));
    } else if wish == Some(Wish::Certificate) {
        return Some(Change::Renew(Why::Asked));
    }
    let waited = seen.in_order && seen.steady >= rules.dwell;
    match (state.phase(), &state.next) {
        (_, Some(next)) if is_old(&next.certificate, now) => Some(Change::Introduce(Why::Age)),
        (Phase::Introducing, _) => waited.then_some(Change::Switch),
        (Phase::Retiring, _) => waited.then_some(Change::Settle),
        (Phase::Settled, _) if is_old(signing, now) => Some(Change::Introduce(Why::Age)),
        (Phase::Settled, _) => {
            (wish == Some(Wish::Authority)).then_some(Change::Introduce(Why::Asked))
        }
    }
}

/// Less than a third of the lifetime is left.
fn is_old(certificate: &Certificate, now: Timestamp) -> bool {
    certificate.ends.duration_since(now) * 3 < certificate.lifetime()
}

/// Whether to serve what is stored: clients trust it, or not what is served now either. So nothing
/// good is ever given up for something that is not known yet.
pub const fn should_serve(stored_is_trusted: bool, served_is_trusted: bool) -> bool {
    stored_is_trusted || !served_is_trusted
}

/// For how long a replica has seen the same authorities in order. Times are those of its own
/// monotonic clock.
#[derive(Debug, Default)]
pub struct Steady(Option<Sighting>);

#[derive(Debug)]
struct Sighting {
    bundle: String,
    signing: Arc<str>,
    first: Duration,
    last: Duration,
}

impl Steady {
    /// Adds a look at `clock`; returns for how long it was so. A look that comes more than `gap`
    /// after the one before begins anew: nobody knows what was in between.
    pub fn look(
        &mut self,
        state: &State,
        in_order: bool,
        clock: Duration,
        gap: Duration,
    ) -> Duration {
        if !in_order {
            self.lose();
            return Duration::ZERO;
        }
        let (bundle, signing) = (state.bundle(), &state.signing.certificate.pem);
        let goes_on = |it: &&mut Sighting| {
            it.bundle == bundle && it.signing == *signing && clock.saturating_sub(it.last) <= gap
        };
        if let Some(sighting) = self.0.as_mut().filter(goes_on) {
            sighting.last = clock;
            return clock.saturating_sub(sighting.first);
        }
        let signing = Arc::clone(signing);
        self.0 = Some(Sighting { bundle, signing, first: clock, last: clock });
        Duration::ZERO
    }

    /// A look that failed: begins anew.
    pub fn lose(&mut self) {
        self.0 = None;
    }
}
