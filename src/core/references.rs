//! May this object start to reference that template? (rule 4.4)
//!
//! A terminating template still serves the claims it has, but it goes when they go: a machine that
//! starts to use it now waits for ever. Advisory: when the facts cannot be had the write goes on.

use super::{
    objects::{Deletion, Kind, Meta, Object, Reference},
    review::{Operation, Parsed, Review},
    verdict::{Answer, Cause, Code, Denial, Preflight, Ruling, Subject},
};

/// What is known about the template and about the referrer's Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The template.
    pub template: TargetTemplate,
    /// The referrer's Cluster is paused: `clusterctl move` is putting objects back.
    pub cluster_paused: bool,
}

/// The template that a reference points to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetTemplate {
    /// There is none.
    #[default]
    Missing,
    /// It is there to stay.
    Live,
    /// It is on its way out.
    Terminating(Deletion),
    /// It is being moved away.
    Moving,
}

impl TargetTemplate {
    /// The state of a template that exists.
    pub const fn of(meta: &Meta) -> Self {
        match meta.deletion {
            _ if meta.moving => Self::Moving,
            Some(deletion) => Self::Terminating(deletion),
            None => Self::Live,
        }
    }
}

/// In which state is the template that the reference points to?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Namespace of the referrer and of the template.
    pub namespace: Box<str>,
    /// The template's name.
    pub template: Box<str>,
    /// The referrer's Cluster, when it names one.
    pub cluster: Option<Box<str>>,
    /// The referrer's kind.
    pub referrer: Kind,
    /// The referrer's name, possibly empty.
    pub referrer_name: Box<str>,
}

/// Decides what needs no facts: every write that does not bring a new reference.
pub fn preflight(review: &Review<'_>) -> Preflight<Question> {
    let decided = |rule| Preflight::Decided(Ruling::allow(rule));
    let referrer = match review.known_kind() {
        Some(kind @ (Kind::Machine | Kind::Claim | Kind::MachineTemplate))
            if matches!(review.operation, Operation::Create | Operation::Update) =>
        {
            kind
        }
        _ => {
            let ruling = review.not_ours("references.not_ours", "/validate/references");
            return Preflight::Decided(ruling);
        }
    };
    if !review.subresource.is_empty() {
        return decided("references.subresource");
    }
    let Parsed::Object(object) = review.parse_object() else {
        return decided("references.no_object");
    };
    let (Some(meta), Some(reference)) = (object.meta(), referenced(&object)) else {
        return decided("references.none");
    };
    let (namespace, name) = review.or_named(&meta.namespace, &meta.name);
    let Some(template) = reference.local(namespace) else {
        return Preflight::Decided(Ruling::allow("references.elsewhere").warn(format!(
            "{referrer} {name} names a Metal3DataTemplate in another namespace: CAPM3 ignores it"
        )));
    };
    if let Parsed::Object(old) = review.parse_old() {
        let before = old.meta().zip(referenced(&old));
        let unchanged = before.is_some_and(|(old_meta, old_reference)| {
            let (old_namespace, _) = review.or_named(&old_meta.namespace, &old_meta.name);
            old_reference.local(old_namespace) == Some(template)
        });
        if unchanged {
            return decided("references.unchanged");
        }
    }
    if meta.moving || meta.paused {
        return decided("references.paused");
    }
    Preflight::Ask(Question {
        namespace: namespace.into(),
        template: template.into(),
        cluster: meta.cluster.clone(),
        referrer,
        referrer_name: name.into(),
    })
}

/// Refuses a new reference to a template on its way out.
pub fn judge(question: &Question, answer: &Answer<Target>) -> Ruling {
    let Question { namespace, template, referrer, referrer_name, .. } = question;
    let target = match answer {
        Answer::Verified(target) => target,
        Answer::Unverified(unverified) => {
            return Ruling::allow("references.unverified").warn(format!(
                "metal3-guard could not look at Metal3DataTemplate {template}: {}",
                unverified.why
            ));
        }
    };
    let deletion = match target.template {
        TargetTemplate::Live => return Ruling::allow("references.live"),
        TargetTemplate::Moving => return Ruling::allow("references.moving"),
        TargetTemplate::Missing => {
            return Ruling::allow("references.missing").warn(format!(
                "Metal3DataTemplate {template} does not exist yet; {referrer} {referrer_name} waits \
                 for it"
            ));
        }
        TargetTemplate::Terminating(_) if target.cluster_paused => {
            return Ruling::allow("references.paused");
        }
        TargetTemplate::Terminating(deletion) => deletion,
    };
    if *referrer == Kind::MachineTemplate {
        return Ruling::allow("references.machine_template").warn(format!(
            "Metal3DataTemplate {template} is being deleted; new machines from {referrer_name} will \
             fail"
        ));
    }
    let denial = Denial {
        code: Code::Forbidden,
        message: format!(
            "Metal3DataTemplate {namespace}/{template} is being deleted since {deletion}: {referrer} \
             {referrer_name} may not start to use it, it would wait for ever. Use another template, \
             or wait until this one is gone and create it again"
        ),
        subject: Subject {
            group: referrer.group().into(),
            kind: referrer.name().into(),
            namespace: namespace.as_ref().into(),
            name: referrer_name.as_ref().into(),
            uid: String::new(),
        },
        causes: vec![Cause {
            reason: "FieldValueForbidden",
            message: format!("Metal3DataTemplate/{template}, terminating since {deletion}"),
            field: if *referrer == Kind::Machine { "spec.dataTemplate" } else { "spec.template" },
        }],
        retry_after: None,
    };
    Ruling::deny("references.terminating", denial)
}

fn referenced(object: &Object) -> Option<&Reference> {
    match object {
        Object::Machine(it) => it.template.as_ref(),
        Object::Claim(it) => it.template.as_ref(),
        Object::MachineTemplate(it) => it.template.as_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
