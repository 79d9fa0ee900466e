//! What the API server asks, free of its wire format.

use std::borrow::Cow;

use super::{
    objects::{Kind, Object},
    verdict::{Code, Denial, Ruling, Subject},
};

/// The verb of a review.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// A change by PUT, PATCH or apply.
    Update,
    /// A deletion; a collection deletion asks once for each object.
    Delete,
    /// CONNECT, or a verb that is not known.
    #[default]
    Other,
}

impl Operation {
    /// The word in the review.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Other => "other",
        }
    }
}

/// One question of the API server. Object bodies are JSON text, parsed only by a rule that reads
/// them; `None` stands for missing and for null.
#[derive(Clone, Copy, Debug, Default)]
pub struct Review<'a> {
    /// The verb.
    pub operation: Operation,
    /// Group of the resource as the hook matched it.
    pub group: &'a str,
    /// Plural resource name.
    pub resource: &'a str,
    /// Kind of the object.
    pub kind: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    /// From the URL; empty in a collection deletion.
    pub name: &'a str,
    /// Empty for a cluster-scoped object.
    pub namespace: &'a str,
    /// Who asks.
    pub user: &'a str,
    /// The object after the write.
    pub object: Option<&'a str>,
    /// The object before the write.
    pub old_object: Option<&'a str>,
    /// Of these objects, those that are parsed already.
    pub known: Known<'a>,
}

/// Objects that were parsed together with the request around them, so that a rule need not do it
/// again. They are found by their text: the same place in memory, not an equal text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a>([Option<(&'a str, &'a Object)>; 2]);

impl<'a> Known<'a> {
    /// Texts and what they say.
    pub const fn of(objects: [Option<(&'a str, &'a Object)>; 2]) -> Self {
        Self(objects)
    }

    /// What this text says, if it is one of those.
    pub(crate) fn get(self, text: &str) -> Option<&'a Object> {
        let known = self.0.into_iter().flatten().find(|(known, _)| std::ptr::eq(*known, text));
        known.map(|(_, object)| object)
    }
}

impl<'a> Review<'a> {
    /// The kind, when it is one that rules know. Judged by the resource, which a hook matches.
    pub fn known_kind(&self) -> Option<Kind> {
        Kind::of_resource(self.group, self.resource)
    }

    /// The object as far as the request itself names it.
    pub fn subject(&self) -> Subject {
        Subject {
            group: self.group.into(),
            kind: self.kind.into(),
            namespace: self.namespace.into(),
            name: self.name.into(),
            uid: String::new(),
        }
    }

    /// Parses the object after the write; missing parts come from the request.
    pub(super) fn parse_object(&self) -> Parsed<'a> {
        self.parse(self.object, "object")
    }

    /// Parses the object before the write.
    pub(super) fn parse_old(&self) -> Parsed<'a> {
        self.parse(self.old_object, "oldObject")
    }

    fn parse(&self, json: Option<&str>, field: &'static str) -> Parsed<'a> {
        let Some(json) = json else { return Parsed::Missing };
        let object = match self.known.get(json) {
            Some(object) => Ok(Cow::Borrowed(object)),
            None => Object::from_json(json).map(Cow::Owned),
        };
        match object {
            Ok(object) if *object == Object::default() => Parsed::Missing,
            Ok(object) => Parsed::Object(object),
            Err(error) => Parsed::Unreadable(Denial {
                code: Code::InternalError,
                message: format!(
                    "metal3-guard could not read request.{field} of {}: {error}. The API server \
                     sent something that is not a Kubernetes object; try again, and look at the \
                     other webhooks if it stays",
                    self.subject()
                ),
                subject: self.subject(),
                causes: Vec::new(),
                retry_after: None,
            }),
        }
    }

    /// Fills what an object on its way in may lack.
    pub(super) fn or_named<'b>(&'b self, namespace: &'b str, name: &'b str) -> (&'b str, &'b str) {
        (
            if namespace.is_empty() { self.namespace } else { namespace },
            if name.is_empty() { self.name } else { name },
        )
    }

    /// The answer to a review that reached a path whose rule is not about it.
    pub(super) fn not_ours<P>(&self, rule: &'static str, path: &str) -> Ruling<P> {
        let what = if self.resource.is_empty() { "an unnamed resource" } else { self.resource };
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        Ruling::allow(rule).warn(format!(
            "metal3-guard has no rule for {} of {what}{slash}{} on {path}; check the webhook's rules",
            self.operation.name(),
            self.subresource,
        ))
    }
}

/// An object body after parsing.
#[derive(Debug)]
pub(super) enum Parsed<'a> {
    /// Missing, null or without any field that says what it is.
    Missing,
    /// Readable.
    Object(Cow<'a, Object>),
    /// Not a Kubernetes object: the answer to give.
    Unreadable(Denial),
}
