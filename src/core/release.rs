//! May CAPM3's finalizer go from a terminating template? (rule 4.5)
//!
//! Metal3Data and claims need their template to finish: a Metal3Data whose template is gone waits
//! for it for ever, and only the template's controller takes the claim finalizer off. CAPM3 1.8.1
//! releases a template too early when the last claim goes in the same pass.

use super::{
    deletion::cause,
    objects::{CLAIM_FINALIZER, Kind, Meta, TEMPLATE_FINALIZER, Usage},
    review::{Operation, Parsed, Review},
    verdict::{
        Answer, Code, Denial, MAX_CAUSES, Preflight, Ruling, Subject, count, first_three, join_and,
    },
};

/// Everything that names this template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The template's namespace.
    pub namespace: Box<str>,
    /// The template's name.
    pub name: Box<str>,
    /// The template's uid, for the answer.
    pub uid: Box<str>,
}

/// What still needs the template to finish: every Metal3Data, and every claim with CAPM3's claim
/// finalizer. The finalizer may go when there is none.
pub fn blockers(usage: &Usage) -> Vec<(Kind, &Meta)> {
    let data = usage.data.values().map(|it| (Kind::Data, &it.meta));
    let claims = usage.claims.values().map(|it| (Kind::Claim, &it.meta));
    data.chain(claims.filter(|(_, meta)| meta.has_finalizer(CLAIM_FINALIZER))).collect()
}

/// Whether CAPM3's finalizer may go from a terminating template that is used like this.
pub fn may_release(usage: &Usage) -> bool {
    blockers(usage).is_empty()
}

/// Decides what needs no facts: every update that does not release a terminating template.
pub fn preflight(review: &Review<'_>) -> Preflight<Question> {
    let decided = |rule| Preflight::Decided(Ruling::allow(rule));
    if review.operation != Operation::Update || review.known_kind() != Some(Kind::Template) {
        return Preflight::Decided(review.not_ours("release.not_ours", "/validate/release"));
    }
    if !review.subresource.is_empty() {
        return decided("release.subresource");
    }
    let (Parsed::Object(object), Parsed::Object(old)) = (review.parse_object(), review.parse_old())
    else {
        return decided("release.no_object");
    };
    let (Some(new_meta), Some(meta)) = (object.meta(), old.meta()) else {
        return decided("release.no_object");
    };
    if !meta.terminating() || !meta.has_finalizer(TEMPLATE_FINALIZER) {
        return decided("release.not_held");
    }
    if new_meta.has_finalizer(TEMPLATE_FINALIZER) {
        return decided("release.kept");
    }
    if meta.moving || new_meta.moving {
        return Preflight::Decided(
            Ruling::allow("release.moving").note("allowed-by", "clusterctl delete-for-move"),
        );
    }
    let reason =
        [meta, new_meta].into_iter().filter_map(Meta::force_reason).find(|it| !it.is_empty());
    if let Some(reason) = reason {
        return Preflight::Decided(
            Ruling::allow("release.forced")
                .warn(format!("released by override, without looking at what needs it: {reason}"))
                .note("force-delete-reason", reason),
        );
    }
    let (namespace, name) = review.or_named(&meta.namespace, &meta.name);
    Preflight::Ask(Question {
        namespace: namespace.into(),
        name: name.into(),
        uid: meta.uid.clone(),
    })
}

/// Refuses an early release. Advisory: a guard that cannot verify must not hold a template.
pub fn judge(question: &Question, answer: &Answer<impl AsRef<Usage>>) -> Ruling {
    let Question { namespace, name, uid } = question;
    let usage = match answer {
        Answer::Verified(usage) => usage.as_ref(),
        Answer::Unverified(unverified) => {
            return Ruling::allow("release.unverified").warn(format!(
                "metal3-guard could not verify that nothing needs this template: {}",
                unverified.why
            ));
        }
    };
    let blockers = blockers(usage);
    if blockers.is_empty() {
        return Ruling::allow("release.free");
    }
    let of = |kind| blockers.iter().filter(|(blocked_by, _)| *blocked_by == kind).count();
    let counts: Vec<_> = [Kind::Data, Kind::Claim]
        .into_iter()
        .filter(|kind| of(*kind) > 0)
        .map(|kind| count(of(kind), kind))
        .collect();
    let names: Vec<_> =
        blockers.iter().map(|(kind, meta)| format!("{kind}/{}", meta.name)).collect();
    let denial = Denial {
        code: Code::Forbidden,
        message: format!(
            "Metal3DataTemplate {namespace}/{name} is still needed by {}: {}. Without it they could \
             never finish. Leave its finalizer until they are gone; 'metal3-guard diagnose {name} \
             -n {namespace}' says what each waits for",
            join_and(&counts),
            first_three(names.iter().map(String::as_str)),
        ),
        subject: Subject::template(namespace, name, uid),
        causes: blockers.iter().take(MAX_CAUSES).map(|(kind, meta)| cause(*kind, meta)).collect(),
        retry_after: None,
    };
    Ruling::deny("release.needed", denial)
}

#[cfg(test)]
mod tests;
