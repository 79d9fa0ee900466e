//! What a rule answers: a verdict, the rule that gave it, warnings and audit annotations.
//!
//! The limits are the API server's: a warning with a control character is dropped whole, and an
//! audit key may hold no `/` (apiserver `pkg/admission/plugin/webhook`).

use std::{convert::Infallible, fmt};

use super::objects::Kind;

/// Longest warning, in characters; the API server asks for at most 120.
pub const WARNING_CHARS: usize = 120;
/// Most warnings in one answer.
pub const MAX_WARNINGS: usize = 5;
/// Most causes in one denial; the message still gives the full count.
pub const MAX_CAUSES: usize = 100;

/// A rule's answer to one review.
///
/// `P` is what the rule may change: nothing by default, so that a validating path cannot send a
/// patch.
#[derive(Clone, Debug, PartialEq)]
pub struct Ruling<P = Infallible> {
    /// The decision.
    pub verdict: Verdict<P>,
    /// Which rule decided: a bounded set of words for logs and metrics.
    pub rule: &'static str,
    /// Shown to the user, also when allowed.
    pub warnings: Warnings,
    /// Audit annotations as (key, value).
    pub audit: Vec<(&'static str, String)>,
}

/// The decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict<P = Infallible> {
    /// The write goes on as it is.
    Allow,
    /// The write is refused.
    Deny(Box<Denial>),
    /// The write goes on, changed.
    Patch(P),
}

impl<P> Ruling<P> {
    /// Allows the write.
    pub const fn allow(rule: &'static str) -> Self {
        Self { verdict: Verdict::Allow, rule, warnings: Warnings(Vec::new()), audit: Vec::new() }
    }

    /// Refuses the write.
    pub fn deny(rule: &'static str, denial: Denial) -> Self {
        Self { verdict: Verdict::Deny(Box::new(denial)), ..Self::allow(rule) }
    }

    /// Lets the write go on, changed.
    pub fn patch(rule: &'static str, patch: P) -> Self {
        Self { verdict: Verdict::Patch(patch), ..Self::allow(rule) }
    }

    /// Adds a warning.
    #[must_use]
    pub fn warn(mut self, text: impl AsRef<str>) -> Self {
        self.warnings.push(text.as_ref());
        self
    }

    /// Adds an audit annotation. The key may hold letters, digits, `-`, `_` and `.` only.
    #[must_use]
    pub fn note(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.audit.push((key, value.into()));
        self
    }

    /// The denial, if it is one.
    pub fn denial(&self) -> Option<&Denial> {
        match &self.verdict {
            Verdict::Deny(denial) => Some(denial),
            Verdict::Allow | Verdict::Patch(_) => None,
        }
    }

    /// One word for logs and metrics.
    pub const fn word(&self) -> &'static str {
        match &self.verdict {
            Verdict::Allow => "allow",
            Verdict::Deny(_) => "deny",
            Verdict::Patch(_) => "patch",
        }
    }
}

impl Ruling {
    /// The same ruling where a patch would have been possible.
    pub fn widen<P>(self) -> Ruling<P> {
        let Self { verdict, rule, warnings, audit } = self;
        let verdict = match verdict {
            Verdict::Allow => Verdict::Allow,
            Verdict::Deny(denial) => Verdict::Deny(denial),
            Verdict::Patch(never) => match never {},
        };
        Ruling { verdict, rule, warnings, audit }
    }
}

/// Why a write is refused, in the shape of the API server's `Status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// HTTP code and machine-readable reason.
    pub code: Code,
    /// What happened, to which object, what to do.
    pub message: String,
    /// The object that the message is about.
    pub subject: Subject,
    /// The holders or fields, at most [`MAX_CAUSES`].
    pub causes: Vec<Cause>,
    /// Seconds after which trying again makes sense.
    pub retry_after: Option<u32>,
}

/// The code and reason pairs that the guard uses. Never 404 (Helm takes it for success) and never
/// 409 (controllers retry a conflict at once).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// 403: refused by a rule.
    Forbidden,
    /// 422: the object as written is not valid.
    Invalid,
    /// 500: the guard could not do its work.
    InternalError,
    /// 503: the guard could not verify; trying again may help.
    ServiceUnavailable,
}

impl Code {
    /// The HTTP status code.
    pub const fn number(self) -> u16 {
        match self {
            Self::Forbidden => 403,
            Self::Invalid => 422,
            Self::InternalError => 500,
            Self::ServiceUnavailable => 503,
        }
    }

    /// `metav1.StatusReason`.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Forbidden => "Forbidden",
            Self::Invalid => "Invalid",
            Self::InternalError => "InternalError",
            Self::ServiceUnavailable => "ServiceUnavailable",
        }
    }
}

/// The object that a denial is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The API group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The namespace, empty for a cluster-scoped object.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The uid, when known.
    pub uid: String,
}

impl Subject {
    /// A template by name.
    pub fn template(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            group: Kind::Template.group().into(),
            kind: Kind::Template.name().into(),
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.kind.is_empty() { "object" } else { &self.kind })?;
        match (self.namespace.as_str(), self.name.as_str()) {
            (_, "") => Ok(()),
            ("", name) => write!(f, " {name}"),
            (namespace, name) => write!(f, " {namespace}/{name}"),
        }
    }
}

/// One entry of `status.details.causes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// `metav1.CauseType`: `FieldValueForbidden`, or `InUse` for a holder.
    pub reason: &'static str,
    /// What it says to a person.
    pub message: String,
    /// The field it is about: of the object for an invalid field, of the holder for a holder.
    pub field: &'static str,
}

/// Why the facts could not be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unverified {
    /// The cause as part of a sentence, such as "the API server did not answer within 3.5 s".
    pub why: String,
}

/// Facts from an inventory, or why there are none.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer<F> {
    /// Complete, and true at some moment after the question was put.
    Verified(F),
    /// Nothing may be concluded.
    Unverified(Unverified),
}

/// A rule's first step.
#[derive(Clone, Debug, PartialEq)]
pub enum Preflight<Q, P = Infallible> {
    /// Decided from the review alone.
    Decided(Ruling<P>),
    /// Facts are needed.
    Ask(Q),
}

/// Warnings that the API server passes on whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings(Vec<String>);

impl Warnings {
    /// Adds a warning: control characters become spaces, long text is cut, repeats are dropped.
    pub fn push(&mut self, text: &str) {
        let clean: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(WARNING_CHARS)
            .collect();
        if !clean.trim().is_empty() && !self.0.contains(&clean) {
            self.0.push(clean);
        }
    }

    /// The warnings as sent: at most [`MAX_WARNINGS`], the last one counting what is left out.
    pub fn sent(&self) -> Vec<String> {
        if self.0.len() <= MAX_WARNINGS {
            return self.0.clone();
        }
        let mut sent: Vec<_> = self.0.iter().take(MAX_WARNINGS - 1).cloned().collect();
        sent.push(format!("and {} more warnings", self.0.len() - sent.len()));
        sent
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `1 Metal3Machine`, `2 Metal3Machines`; the plural of Metal3Data is Metal3Data.
pub fn count(number: usize, kind: Kind) -> String {
    let plural = if number == 1 || kind == Kind::Data { "" } else { "s" };
    format!("{number} {kind}{plural}")
}

/// `a`, `a and b`, `a, b and c`.
pub fn join_and(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// The first three, then how many are left out.
pub fn first_three<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let total = names.len();
    let text = names.take(3).collect::<Vec<_>>().join(", ");
    if total > 3 { format!("{text} and {} more", total - 3) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_keep_the_limits_of_the_api_server() {
        let mut warnings = Warnings::default();
        warnings.push("line\nbreak\tand\u{1b}[0m escape");
        warnings.push(&"ä".repeat(500));
        warnings.push("");
        warnings.push("line\nbreak\tand\u{1b}[0m escape");
        let sent = warnings.sent();
        assert_eq!(sent.len(), 2, "empty and repeated ones are dropped");
        assert!(sent.iter().all(|w| !w.chars().any(char::is_control)));
        assert!(sent.iter().all(|w| w.chars().count() <= WARNING_CHARS));
        for n in 0..10 {
            warnings.push(&format!("warning {n}"));
        }
        let sent = warnings.sent();
        assert_eq!(sent.len(), MAX_WARNINGS);
        assert_eq!(sent.last().unwrap(), "and 8 more warnings");
    }

    #[test]
    fn lists_of_names_stay_short() {
        assert_eq!(first_three(["a", "b"].into_iter()), "a, b");
        assert_eq!(first_three(["a", "b", "c", "d", "e"].into_iter()), "a, b, c and 2 more");
        assert_eq!(join_and(&["1 x".into(), "2 y".into()]), "1 x and 2 y");
        assert_eq!(count(2, Kind::Data), "2 Metal3Data");
        assert_eq!(count(2, Kind::Claim), "2 Metal3DataClaims");
    }
}
