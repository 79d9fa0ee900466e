//! From bytes to a verdict and back: the wire format, the hooks, their paths.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use tokio::time::Instant;

use crate::{
    core::{
        finalizers::Additions,
        objects::Object,
        review::Review,
        verdict::{Code, Denial, Ruling},
    },
    inventory::Inventory,
};

mod answer;
mod hook;
mod metrics;
mod paths;
pub mod wire;

pub use self::{
    hook::{Answered, FINALIZER_GROUPS, Hook, Patience},
    metrics::ReviewMetrics,
    paths::Paths,
};
use wire::{BadReview, Envelope};

/// Everything that answering a review takes.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Where the facts come from.
    pub inventory: Arc<dyn Inventory>,
    /// What the mutating hook does with a finalizer that may not be added.
    pub additions: Additions,
    /// How much time a rule has.
    pub patience: Patience,
    /// What is counted.
    pub metrics: ReviewMetrics,
}

impl Admission {
    /// Reads a review, puts it to the hook's rule, writes the answer, one log line and the
    /// metrics. A panic in a rule becomes a denial with code 500.
    ///
    /// # Errors
    /// When the body holds no uid to answer to.
    pub async fn answer(
        &self,
        hook: Hook,
        body: &[u8],
        query: Option<&str>,
    ) -> Result<Vec<u8>, BadReview> {
        let started = Instant::now();
        let envelope = Envelope::read(body).inspect_err(|error| {
            self.metrics.refused(hook);
            tracing::warn!(path = hook.path(), %error, "not a review");
        })?;
        let review = envelope.review();
        let deadline = started + self.patience.budget(query);
        let judging = hook.judge(&review, &*self.inventory, self.additions, deadline);
        let answered = AssertUnwindSafe(judging)
            .catch_unwind()
            .await
            .unwrap_or_else(|_| Answered::Validating(panicked(&review)));
        let written = match &answered {
            Answered::Validating(ruling) => {
                self.record(hook, &envelope, &review, ruling, started);
                answer::write(&envelope, ruling)
            }
            Answered::Mutating(ruling) => {
                self.record(hook, &envelope, &review, ruling, started);
                answer::write(&envelope, ruling)
            }
        };
        // Our own types always serialize; were one not to, the API server would see a failed call.
        Ok(written.unwrap_or_default())
    }

    fn record<P>(
        &self,
        hook: Hook,
        envelope: &Envelope<'_>,
        review: &Review<'_>,
        ruling: &Ruling<P>,
        started: Instant,
    ) {
        let took = started.elapsed();
        self.metrics.judged(hook, ruling.word(), ruling.rule, took);
        let name = shown_name(review);
        tracing::info!(
            uid = short(envelope.uid()),
            path = hook.path(),
            operation = review.operation.name(),
            kind = short(review.kind),
            namespace = short(review.namespace),
            name = short(&name),
            dry_run = envelope.dry_run(),
            verdict = ruling.word(),
            rule = ruling.rule,
            code = ruling.denial().map(|denial| denial.code.number()),
            micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            "review"
        );
    }
}

/// The name for the log: a collection deletion has it only in the object.
fn shown_name<'a>(review: &Review<'a>) -> std::borrow::Cow<'a, str> {
    if !review.name.is_empty() {
        return review.name.into();
    }
    let body = review.old_object.or(review.object);
    let object = body.and_then(|json| Object::from_json(json).ok());
    object.and_then(|it| it.meta().map(|meta| String::from(&*meta.name))).unwrap_or_default().into()
}

/// At most the longest name that Kubernetes knows.
fn short(text: &str) -> &str {
    const LONGEST: usize = 253;
    // Nearly always, and without a look at each character.
    if text.len() <= LONGEST {
        return text;
    }
    text.char_indices().nth(LONGEST).map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

fn panicked(review: &Review<'_>) -> Ruling {
    let denial = Denial {
        code: Code::InternalError,
        message: format!(
            "metal3-guard failed on {} of {}: a rule ended in a panic. Nothing was changed; please \
             report it with the guard's log",
            review.operation.name(),
            review.subject()
        ),
        subject: review.subject(),
        causes: Vec::new(),
        retry_after: None,
    };
    Ruling::deny("panic", denial)
}
