//! Keeps a guard's certificates without help: makes them, shares them between replicas in one
//! Secret, publishes what is to be trusted in the webhook configurations, and renews both in time.
//!
//! There is no leader. Every replica looks at the same three objects, in an order that makes an old
//! look harmless: the configurations first, then the Secret, then writes that fail when what they
//! were decided from has changed since. A bundle that was written is therefore never replaced by
//! an older one.

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use self::{
    api::{Api, Trouble, Written},
    published::Published,
};
use super::{
    Error, issue,
    rotation::{Change, Leaf, Rules, Seen, State, Steady, Stored, Why, Wish, decide, should_serve},
    secret::{Asked, Found, ROTATE_ANNOTATION, Secret},
    webhooks::{Callee, inherited, trust},
};
use crate::server::{Gate, Handover, Phase};

mod api;
mod metrics;
mod published;
mod settings;
#[cfg(test)]
mod tests;

pub use self::{
    metrics::KeeperMetrics,
    settings::{ObjectName, Settings},
};

/// Between looks while something is missing.
const RETRY: Duration = Duration::from_secs(2);
/// Looks without a pause: a rotation needs a few, and nothing needs more.
const AT_ONCE: u32 = 8;

/// Looks after the certificates of one replica.
#[derive(Debug)]
pub struct Keeper {
    api: Api,
    settings: Settings,
    callee: Callee,
    rules: Rules,
    handover: Handover,
    gate: Gate,
    metrics: KeeperMetrics,
    started: Instant,
    /// What the Secret held when it last held something.
    remembered: Option<State>,
    served: Option<Leaf>,
    steady: Steady,
    /// Open once, the gate stays open: a webhook that is changed or taken away must not take the
    /// guard from the others.
    was_ready: bool,
    /// What was complained of last, so that it is not said again.
    said: Option<String>,
}

/// When to look again.
enum Next {
    Now,
    In(Duration),
}

impl Keeper {
    /// A keeper that has seen nothing yet. `gate` opens once webhooks trust what is served.
    pub fn new(
        client: Client,
        settings: Settings,
        handover: Handover,
        gate: Gate,
        metrics: KeeperMetrics,
    ) -> Self {
        let names = settings.all_names();
        Self {
            api: Api::new(client, settings.secret.clone()),
            callee: Callee { service: settings.service.clone(), names: names.clone() },
            rules: Rules { names, dwell: settings.dwell },
            settings,
            handover,
            gate,
            metrics,
            started: Instant::now(),
            remembered: None,
            served: None,
            steady: Steady::default(),
            was_ready: false,
            said: None,
        }
    }

    /// Runs for ever; a change of `wake` makes it look at once. From the moment that `phase` says
    /// the server is leaving, it writes nothing any more: a Secret that is deleted along with the
    /// guards stays deleted. May be dropped at any time: every replica can carry on from what is
    /// written.
    pub async fn run(mut self, mut wake: watch::Receiver<u64>, phase: watch::Receiver<Phase>) {
        let mut at_once = 0;
        loop {
            let pause = match self.look(&phase).await {
                Ok(Next::Now) if at_once < AT_ONCE => {
                    at_once += 1;
                    continue;
                }
                Ok(Next::Now) => self.settings.poll(),
                Ok(Next::In(pause)) => pause,
                Err(trouble) => {
                    self.metrics.failed();
                    self.complain(Some(trouble.to_string()));
                    self.settings.poll().min(RETRY)
                }
            };
            at_once = 0;
            tokio::select! {
                () = sleep(pause) => {}
                Ok(()) = wake.changed() => {}
            }
        }
    }

    /// One look, and at most one step.
    async fn look(&mut self, phase: &watch::Receiver<Phase>) -> Result<Next, Trouble> {
        let mut published = Published::read(&self.api, &self.settings, &self.callee).await;
        let mut notes = std::mem::take(&mut published.missing);
        let retry = !notes.is_empty();
        let looked = self.look_at_secret(&published, phase, &mut notes).await;
        let trouble = published.trouble.clone().or_else(|| looked.as_ref().err().cloned());
        self.open_or_close(&published, trouble.as_ref(), &notes);
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        self.complain((!notes.is_empty()).then(|| notes.join("; ")));
        Ok(match looked? {
            Next::In(pause) if retry => Next::In(pause.min(RETRY)),
            next => next,
        })
    }

    async fn look_at_secret(
        &mut self,
        published: &Published,
        phase: &watch::Receiver<Phase>,
        notes: &mut Vec<String>,
    ) -> Result<Next, Trouble> {
        let secret = self.api.secret().await.inspect_err(|_| self.steady.lose())?;
        let now = Timestamp::now();
        let (state, asked) = self.found(secret.as_ref(), notes)?;
        if let Some(state) = &state {
            self.metrics.authority(state.signing.certificate.ends);
            self.serve(state, published, now)?;
        }
        // Asked after the Secret was read: if it is gone and the server is not leaving even now, it
        // went before.
        if *phase.borrow() != Phase::Serving {
            return Ok(Next::In(self.settings.poll()));
        }
        let step = {
            let in_order = state.as_ref().is_some_and(|it| published.is_in_order(&it.bundle()));
            let steady = match &state {
                Some(state) => {
                    let clock = self.started.elapsed();
                    self.steady.look(state, in_order, clock, self.settings.gap())
                }
                None => Duration::ZERO,
            };
            let told = || published.webhooks().filter(|it| !it.bundle.is_empty());
            let is_current = |it: &&State| trust(told(), &it.leaf.certificate, now);
            let seen = Seen {
                stored: state.as_ref().map_or(Stored::Nothing, |it| Stored::State(it, asked)),
                remembered: self.remembered.as_ref().filter(is_current),
                in_order,
                steady,
            };
            decide(&seen, &self.rules, now)
        };
        let changed = match step.change {
            Some(change) => self.change(change, secret, state.as_ref(), asked, published).await,
            None => Ok(false),
        };
        if let Some(state) = state {
            let bundle = state.bundle();
            self.remembered = Some(state);
            // Also when the Secret could not be written: what it holds must be trusted.
            if step.publish
                && !matches!(changed, Ok(true))
                && let Some(configurations) = published.write(&self.api, &bundle).await?
            {
                self.metrics.published(configurations);
                return Ok(Next::Now);
            }
        }
        if changed? {
            return Ok(Next::Now);
        }
        let namespace = &self.settings.service.namespace;
        match published.tie_to(&self.api, namespace).await {
            Ok(true) => return Ok(Next::Now),
            Ok(false) => {}
            // A comfort, without which everything works.
            Err(trouble) => notes.push(format!(
                "when namespace {namespace} is deleted, the webhooks stay and refuse deletions: \
                 {trouble}"
            )),
        }
        let poll = self.settings.poll();
        Ok(Next::In(step.due.map_or(poll, |due| due.min(poll))))
    }

    /// What the Secret holds, and what is asked for.
    fn found(
        &self,
        secret: Option<&Secret>,
        notes: &mut Vec<String>,
    ) -> Result<(Option<State>, Option<Wish>), Trouble> {
        let place = self.place();
        match secret.map_or(Found::Empty, Secret::read) {
            Found::Empty => Ok((None, None)),
            Found::State(state, Asked::Nothing) => Ok((Some(*state), None)),
            Found::State(state, Asked::Wish(wish)) => Ok((Some(*state), Some(wish))),
            Found::State(state, Asked::Unknown(what)) => {
                notes.push(format!(
                    "the annotation {ROTATE_ANNOTATION} of {place} says {what:?}, which is neither \
                     ca nor certificate"
                ));
                Ok((Some(*state), None))
            }
            Found::Unusable(why) => {
                notes.push(format!("{place} cannot be used and is replaced: {why}"));
                Ok((None, None))
            }
            Found::Foreign => Err(Trouble(format!(
                "{place} was not made by the guard, and it is not empty: remove it, or name \
                 another one with --certs-secret"
            ))),
        }
    }

    /// Serves what is stored, unless that would be worse than what is served.
    fn serve(
        &mut self,
        state: &State,
        published: &Published,
        now: Timestamp,
    ) -> Result<(), Trouble> {
        let stored = &state.leaf;
        if self.served.as_ref() == Some(stored) || stored.certificate.ends <= now {
            return Ok(());
        }
        let trusted = |leaf: &Leaf| trust(published.webhooks(), &leaf.certificate, now);
        if !should_serve(trusted(stored), self.served.as_ref().is_some_and(trusted)) {
            return Ok(());
        }
        let (pem, key) = (&stored.certificate.pem, stored.key.pem());
        let given = self.handover.give(pem, key, &self.place(), now);
        given.map_err(|error| Trouble(error.to_string()))?;
        tracing::info!(not_after = %stored.certificate.ends, "certificate in use");
        self.served = Some(stored.clone());
        Ok(())
    }

    /// Writes a change into the Secret. Whether it was written, or somebody else was first, all is
    /// to be seen anew.
    async fn change(
        &self,
        change: Change,
        secret: Option<Secret>,
        state: Option<&State>,
        asked: Option<Wish>,
        published: &Published,
    ) -> Result<bool, Trouble> {
        let made = self.made(change, state, published, Timestamp::now());
        let made = made.map_err(|error| Trouble(error.to_string()))?;
        let Some(new) = made else { return Ok(false) };
        let granted = match change {
            Change::Renew(_) => asked == Some(Wish::Certificate),
            Change::Introduce(_) => asked == Some(Wish::Authority),
            _ => false,
        };
        let written = if let Some(mut secret) = secret {
            secret.put(&new, granted);
            self.api.update(&secret).await?
        } else {
            let ObjectName { namespace, name } = &self.settings.secret;
            self.api.create(&Secret::new(namespace, name, &new)).await?
        };
        if written == Written::Done {
            self.metrics.changed(change);
            let (step, why) = metrics::words(change);
            tracing::info!(
                step, why, phase = ?new.phase(), not_after = %new.leaf.certificate.ends,
                ca_not_after = %new.signing.certificate.ends, "certificates changed"
            );
        }
        Ok(true)
    }

    /// The state after a change; `None` when there is nothing to make it from.
    fn made(
        &self,
        change: Change,
        state: Option<&State>,
        published: &Published,
        now: Timestamp,
    ) -> Result<Option<State>, Error> {
        let Settings { lifetime, ca_lifetime, .. } = self.settings;
        let authority = || issue::authority(now, ca_lifetime);
        // What other replicas were told stays, or two that were told differently would take turns.
        let with_theirs = |state: &State| &self.rules.names | &state.leaf.names;
        Ok(match (change, state) {
            (Change::Make, _) => {
                let signing = authority()?;
                let leaf = issue::leaf(&signing, &self.rules.names, now, lifetime)?;
                Some(State::new(signing, leaf, inherited(published.webhooks(), now)))
            }
            (Change::Restore, _) => self.remembered.clone(),
            (_, None) => None,
            (Change::Renew(why), Some(state)) => {
                let names = match why {
                    Why::Names => with_theirs(state),
                    Why::Age | Why::Asked => self.rules.names.clone(),
                };
                let leaf = issue::leaf(&state.signing, &names, now, lifetime)?;
                Some(state.clone().renewed(leaf))
            }
            (Change::Introduce(_), Some(state)) => Some(state.clone().introduced(authority()?)),
            (Change::Switch, Some(state)) => match &state.next {
                Some(next) => {
                    let leaf = issue::leaf(next, &with_theirs(state), now, lifetime)?;
                    Some(state.clone().switched(leaf))
                }
                None => None,
            },
            (Change::Settle, Some(state)) => Some(state.clone().settled()),
        })
    }

    fn open_or_close(
        &mut self,
        published: &Published,
        trouble: Option<&Trouble>,
        notes: &[String],
    ) {
        let distrust = published.distrust(self.served.as_ref(), Timestamp::now());
        self.metrics.trusted(distrust.is_none());
        if distrust.is_none() && published.trouble.is_none() {
            self.gate.open();
            self.was_ready = true;
        } else if !self.was_ready {
            let why = trouble.map(ToString::to_string).into_iter().chain(notes.iter().cloned());
            let why: Vec<_> = why.chain(distrust).collect();
            self.gate.close(why.join("; "));
        }
    }

    /// Says what is wrong, once until something else is, or nothing.
    fn complain(&mut self, what: Option<String>) {
        if what != self.said {
            if let Some(what) = &what {
                tracing::warn!(what, "certificates need attention");
            }
            self.said = what;
        }
    }

    fn place(&self) -> String {
        let ObjectName { namespace, name } = &self.settings.secret;
        format!("the Secret {namespace}/{name}")
    }
}
