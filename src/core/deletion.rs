//! May this Metal3DataTemplate be deleted? (rule 4.1)
//!
//! CAPM3's finalizer keeps a terminating template only while claims or Metal3Data exist; a machine
//! that has no claim yet, or whose replacement is on its way, is not looked at (CAPM3 #1994 and the
//! gaps around it). So a template that a machine or a live claim names must not start to terminate.

use super::{
    objects::{Kind, Meta, TEMPLATE_FINALIZER, Usage},
    review::{Operation, Parsed, Review},
    verdict::{
        Answer, Cause, Code, Denial, MAX_CAUSES, Preflight, Ruling, Subject, Unverified, count,
        first_three, join_and,
    },
};

/// What must be known before a deletion may go on: everything that names this template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The template's namespace.
    pub namespace: Box<str>,
    /// The template's name.
    pub name: Box<str>,
    /// The template's uid, for the answer.
    pub uid: Box<str>,
    /// Whether CAPM3's finalizer would hold the template after the deletion.
    pub finalized: bool,
}

impl Question {
    /// The question for a template that is there.
    pub fn about(meta: &Meta) -> Self {
        Self {
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            finalized: meta.has_finalizer(TEMPLATE_FINALIZER),
        }
    }

    /// Of what names the template, what stands against its deletion (steps 5 to 7), sorted by kind
    /// and name.
    pub fn holders<'a>(&self, usage: &'a Usage) -> Vec<(Kind, &'a Meta)> {
        holders(self, usage).all
    }

    fn subject(&self) -> Subject {
        Subject::template(&self.namespace, &self.name, &self.uid)
    }
}

/// Steps 1 to 4: what the review alone decides.
pub fn preflight(review: &Review<'_>) -> Preflight<Question> {
    if review.operation != Operation::Delete
        || review.known_kind() != Some(Kind::Template)
        || !review.subresource.is_empty()
    {
        return Preflight::Decided(review.not_ours("deletion.not_ours", "/validate/deletion"));
    }
    let object = match review.parse_old() {
        Parsed::Object(object) => object,
        // An API server older than 1.15, or one that found nothing in a collection.
        Parsed::Missing => {
            let ruling = Ruling::allow("deletion.no_object")
                .warn("metal3-guard was sent no object to protect; nothing was checked");
            return Preflight::Decided(ruling);
        }
        Parsed::Unreadable(denial) => {
            return Preflight::Decided(Ruling::deny("deletion.unreadable", denial));
        }
    };
    let Some(meta) = object.meta() else {
        return Preflight::Decided(unnamed(review));
    };
    if let Some(ruling) = decided_by(meta) {
        return Preflight::Decided(ruling);
    }
    let (namespace, name) = review.or_named(&meta.namespace, &meta.name);
    if name.is_empty() {
        return Preflight::Decided(unnamed(review));
    }
    Preflight::Ask(Question {
        namespace: namespace.into(),
        name: name.into(),
        uid: meta.uid.clone(),
        finalized: meta.has_finalizer(TEMPLATE_FINALIZER),
    })
}

/// Steps 2 to 4: what the template itself decides.
pub fn decided_by(meta: &Meta) -> Option<Ruling> {
    if meta.terminating() {
        return Some(Ruling::allow("deletion.terminating"));
    }
    if meta.moving {
        // clusterctl deletes the source after the target holds a copy; a denial breaks the move.
        return Some(
            Ruling::allow("deletion.moving").note("allowed-by", "clusterctl delete-for-move"),
        );
    }
    match meta.force_reason() {
        Some("") => Some(Ruling::deny(
            "deletion.force_without_reason",
            Denial {
                code: Code::Forbidden,
                message: format!(
                    "Metal3DataTemplate {}/{} has annotation metal3-guard.io/force-delete without \
                     a reason. Set its value to the reason for the override, or remove it",
                    meta.namespace, meta.name
                ),
                subject: Subject::template(&meta.namespace, &meta.name, &meta.uid),
                causes: Vec::new(),
                retry_after: None,
            },
        )),
        Some(reason) => Some(
            Ruling::allow("deletion.forced")
                .warn(format!("deleted by override, without looking at what uses it: {reason}"))
                .note("force-delete-reason", reason),
        ),
        None => None,
    }
}

/// Steps 5 to 8: what the holders decide.
pub fn judge(question: &Question, answer: &Answer<impl AsRef<Usage>>) -> Ruling {
    let usage = match answer {
        Answer::Verified(usage) => usage.as_ref(),
        Answer::Unverified(unverified) => return unverified_denial(question, unverified),
    };
    let holders = holders(question, usage);
    if holders.total() > 0 {
        return Ruling::deny("deletion.in_use", in_use(question, &holders));
    }
    draining(usage)
}

/// What holds a template, sorted by kind and name.
struct Holders<'a> {
    /// (kind, name, when it is terminating).
    all: Vec<(Kind, &'a Meta)>,
    /// Nothing but the guard stands between the template and its end.
    unfinalized: bool,
}

impl Holders<'_> {
    fn total(&self) -> usize {
        self.all.len()
    }

    fn of(&self, kind: Kind) -> usize {
        self.all.iter().filter(|(held_by, _)| *held_by == kind).count()
    }
}

fn holders<'a>(question: &Question, usage: &'a Usage) -> Holders<'a> {
    let data = usage.data.values().map(|it| (Kind::Data, &it.meta));
    let claims = usage.claims.values().map(|it| (Kind::Claim, &it.meta));
    let machines = usage.machines.values().map(|it| (Kind::Machine, &it.meta));
    let unfinalized = !question.finalized;
    let all = data
        .filter(|_| unfinalized)
        .chain(claims.filter(|(_, meta)| unfinalized || !meta.terminating()))
        .chain(machines)
        .collect();
    Holders { all, unfinalized }
}

fn in_use(question: &Question, holders: &Holders<'_>) -> Denial {
    let counts: Vec<_> = [Kind::Machine, Kind::Claim, Kind::Data]
        .into_iter()
        .filter_map(|kind| match holders.of(kind) {
            0 => None,
            number => Some(count(number, kind)),
        })
        .collect();
    let names: Vec<_> = holders.all.iter().map(|(kind, meta)| named(*kind, meta)).collect();
    let advice = if holders.of(Kind::Machine) > 0 {
        "Delete these machines or point them at another template, wait until they are gone, then \
         delete again"
    } else if holders.unfinalized {
        "It lacks CAPM3's finalizer, so it would be gone at once and they could never finish. Wait \
         until they are gone, then delete again"
    } else {
        "Delete the machines that own these claims, wait until they are gone, then delete again"
    };
    Denial {
        code: Code::Forbidden,
        message: format!(
            "Metal3DataTemplate {}/{} is in use by {}: {}. {advice}",
            question.namespace,
            question.name,
            join_and(&counts),
            first_three(names.iter().map(String::as_str)),
        ),
        subject: question.subject(),
        causes: holders
            .all
            .iter()
            .take(MAX_CAUSES)
            .map(|(kind, meta)| cause(*kind, meta))
            .collect(),
        retry_after: None,
    }
}

/// A holder as one entry of `status.details.causes`.
pub(super) fn cause(kind: Kind, meta: &Meta) -> Cause {
    let message = match meta.deletion {
        Some(deletion) => format!("{kind}/{}, terminating since {deletion}", meta.name),
        None => named(kind, meta),
    };
    let field = if kind == Kind::Machine { "spec.dataTemplate" } else { "spec.template" };
    Cause { reason: "InUse", message, field }
}

fn named(kind: Kind, meta: &Meta) -> String {
    format!("{kind}/{}", meta.name)
}

/// Step 8: nothing holds it; say what is still on its way out and what would break.
fn draining(usage: &Usage) -> Ruling {
    let mut ruling = Ruling::allow("deletion.free");
    let draining: Vec<_> = [(usage.claims.len(), Kind::Claim), (usage.data.len(), Kind::Data)]
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, kind)| count(number, kind))
        .collect();
    if !draining.is_empty() {
        ruling = ruling.warn(format!(
            "{} still to drain; CAPM3 keeps the template until they are gone",
            join_and(&draining)
        ));
    }
    for template in usage.machine_templates.values().filter(|it| !it.meta.terminating()) {
        ruling = ruling.warn(format!(
            "new machines of Metal3MachineTemplate {} will fail: it still names this template",
            template.meta.name
        ));
    }
    ruling
}

fn unverified_denial(question: &Question, unverified: &Unverified) -> Ruling {
    let denial = Denial {
        code: Code::ServiceUnavailable,
        message: format!(
            "metal3-guard could not verify that Metal3DataTemplate {}/{} is unused: {}. Nothing was \
             deleted; retry",
            question.namespace, question.name, unverified.why
        ),
        subject: question.subject(),
        causes: Vec::new(),
        retry_after: Some(5),
    };
    Ruling::deny("deletion.unverified", denial)
}

fn unnamed(review: &Review<'_>) -> Ruling {
    let denial = Denial {
        code: Code::InternalError,
        message: "metal3-guard was sent a Metal3DataTemplate without a name, so it cannot tell \
                  what uses it. Delete it by name"
            .into(),
        subject: review.subject(),
        causes: Vec::new(),
        retry_after: None,
    };
    Ruling::deny("deletion.unreadable", denial)
}

#[cfg(test)]
mod tests;
