//! The slim reverse index: template -> what names it. A look-up costs the same however many
//! machines name other templates.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::core::{
    contents::Contents,
    indexes::{self, Occupancy},
    objects::{Kind, Meta, Object, Reference, Usage},
    progress::concerns,
    references::{self, Target},
};

/// All namespaces, each with its objects and the users of each template.
#[derive(Clone, Debug, Default)]
pub struct Index {
    namespaces: BTreeMap<Box<str>, Namespace>,
}

#[derive(Clone, Debug, Default)]
struct Namespace {
    contents: Arc<Contents>,
    usage: BTreeMap<Box<str>, Arc<Usage>>,
}

impl Index {
    /// Adds or replaces an object; false for a kind that no rule reads.
    pub fn apply(&mut self, object: Object) -> bool {
        let Some((kind, meta)) = identity(&object) else { return false };
        let (namespace, name) = (meta.namespace.clone(), meta.name.clone());
        let space = self.namespaces.entry(namespace).or_default();
        space.forget_reference(kind, &name);
        Arc::make_mut(&mut space.contents).insert(object);
        space.learn_reference(kind, &name);
        true
    }

    /// Removes an object, if it is there.
    pub fn remove(&mut self, kind: Kind, namespace: &str, name: &str) {
        let Some(space) = self.namespaces.get_mut(namespace) else { return };
        space.forget_reference(kind, name);
        let contents = Arc::make_mut(&mut space.contents);
        match kind {
            Kind::Cluster => drop(contents.clusters.remove(name)),
            Kind::IpAddressClaim | Kind::IpClaim => {
                drop(contents.ip_claims.remove(&(kind, name.into())));
            }
            Kind::Data => drop(contents.data.remove(name)),
            Kind::Claim => drop(contents.claims.remove(name)),
            Kind::Template => drop(contents.templates.remove(name)),
            Kind::Machine => drop(contents.machines.remove(name)),
            Kind::MachineTemplate => drop(contents.machine_templates.remove(name)),
        }
        if *contents == Contents::default() {
            self.namespaces.remove(namespace);
        }
    }

    /// Removes every object of a kind that is not there any more; the namespaces that lost one.
    pub fn keep_only(
        &mut self,
        kind: Kind,
        is_there: impl Fn(&str, &str) -> bool,
    ) -> BTreeSet<Box<str>> {
        let gone: Vec<(Box<str>, Box<str>)> = self
            .namespaces
            .iter()
            .flat_map(|(namespace, space)| {
                let names = space.contents.names(kind).into_iter();
                names.map(move |name| (namespace.clone(), name))
            })
            .filter(|(namespace, name)| !is_there(namespace, name))
            .collect();
        for (namespace, name) in &gone {
            self.remove(kind, namespace, name);
        }
        gone.into_iter().map(|(namespace, _)| namespace).collect()
    }

    /// Everything that names a template.
    pub fn usage(&self, namespace: &str, template: &str) -> Arc<Usage> {
        let space = self.namespaces.get(namespace);
        space.and_then(|it| it.usage.get(template)).cloned().unwrap_or_default()
    }

    /// Which entries of a template's indexes are true.
    pub fn occupancy(&self, question: &indexes::Question) -> Occupancy {
        let usage = self.usage(&question.namespace, &question.name);
        self.contents(&question.namespace).occupancy(&question.indexes, &usage)
    }

    /// The state of a template that something wants to reference.
    pub fn target(&self, question: &references::Question) -> Target {
        self.contents(&question.namespace).target(&question.template, question.cluster.as_deref())
    }

    /// All objects of a namespace.
    pub fn contents(&self, namespace: &str) -> Arc<Contents> {
        self.namespaces.get(namespace).map(|it| Arc::clone(&it.contents)).unwrap_or_default()
    }

    /// The templates of a namespace that need a look, each with what names it.
    pub fn concerns(&self, namespace: &str) -> Vec<(Box<str>, Arc<Usage>)> {
        let Some(space) = self.namespaces.get(namespace) else { return Vec::new() };
        let names: BTreeSet<_> =
            space.contents.templates.keys().chain(space.usage.keys()).collect();
        let asked = names.into_iter().map(|name| (name.clone(), self.usage(namespace, name)));
        asked.filter(|(name, usage)| concerns(&space.contents, name, usage)).collect()
    }

    /// The namespaces that hold an object, in order.
    pub fn namespaces(&self) -> impl Iterator<Item = &Box<str>> {
        self.namespaces.keys()
    }
}

/// The kind and identity of an object that the index keeps.
pub fn identity(object: &Object) -> Option<(Kind, &Meta)> {
    Some(match object {
        Object::Cluster(it) => (Kind::Cluster, &it.meta),
        Object::Data(it) => (Kind::Data, &it.meta),
        Object::Claim(it) => (Kind::Claim, &it.meta),
        Object::IpClaim(it) => (it.kind, &it.meta),
        Object::Template(it) => (Kind::Template, &it.meta),
        Object::Machine(it) => (Kind::Machine, &it.meta),
        Object::MachineTemplate(it) => (Kind::MachineTemplate, &it.meta),
        Object::List(_) | Object::Other(_) => return None,
    })
}

impl Namespace {
    /// The template that the object of this kind and name refers to now.
    fn reference(&self, kind: Kind, name: &str) -> Option<Box<str>> {
        fn local(meta: &Meta, reference: Option<&Reference>) -> Option<Box<str>> {
            reference?.local(&meta.namespace).map(Box::from)
        }
        let contents = &self.contents;
        match kind {
            Kind::Machine => {
                contents.machines.get(name).map(|it| local(&it.meta, it.template.as_ref()))
            }
            Kind::Claim => {
                contents.claims.get(name).map(|it| local(&it.meta, it.template.as_ref()))
            }
            Kind::Data => contents.data.get(name).map(|it| local(&it.meta, it.template.as_ref())),
            Kind::MachineTemplate => {
                contents.machine_templates.get(name).map(|it| local(&it.meta, it.template.as_ref()))
            }
            Kind::Cluster | Kind::IpAddressClaim | Kind::IpClaim | Kind::Template => None,
        }
        .flatten()
    }

    fn forget_reference(&mut self, kind: Kind, name: &str) {
        let Some(template) = self.reference(kind, name) else { return };
        let Some(shared) = self.usage.get_mut(&template) else { return };
        let usage = Arc::make_mut(shared);
        match kind {
            Kind::Machine => drop(usage.machines.remove(name)),
            Kind::Claim => drop(usage.claims.remove(name)),
            Kind::Data => drop(usage.data.remove(name)),
            Kind::MachineTemplate => drop(usage.machine_templates.remove(name)),
            Kind::Cluster | Kind::IpAddressClaim | Kind::IpClaim | Kind::Template => {}
        }
        if usage.is_empty() {
            self.usage.remove(&template);
        }
    }

    fn learn_reference(&mut self, kind: Kind, name: &str) {
        fn share<T>(
            from: &BTreeMap<Box<str>, Arc<T>>,
            to: &mut BTreeMap<Box<str>, Arc<T>>,
            name: &str,
        ) {
            if let Some((name, object)) = from.get_key_value(name) {
                to.insert(name.clone(), Arc::clone(object));
            }
        }
        let Some(template) = self.reference(kind, name) else { return };
        let usage = Arc::make_mut(self.usage.entry(template).or_default());
        let contents = &self.contents;
        match kind {
            Kind::Machine => share(&contents.machines, &mut usage.machines, name),
            Kind::Claim => share(&contents.claims, &mut usage.claims, name),
            Kind::Data => share(&contents.data, &mut usage.data, name),
            Kind::MachineTemplate => {
                share(&contents.machine_templates, &mut usage.machine_templates, name);
            }
            Kind::Cluster | Kind::IpAddressClaim | Kind::IpClaim | Kind::Template => {}
        }
    }
}
