//! Everything that rules read in one namespace: what a complete list of it holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    indexes::{Indexes, Occupancy},
    objects::{
        Claim, Cluster, Data, IpClaim, Kind, MACHINE_FINALIZER, Machine, MachineTemplate, Meta,
        Object, Owner, Reference, Template, Usage,
    },
    references::{Target, TargetTemplate},
};

/// The objects of one namespace, by kind and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Metal3DataTemplates.
    pub templates: BTreeMap<Box<str>, Arc<Template>>,
    /// Metal3Machines.
    pub machines: BTreeMap<Box<str>, Arc<Machine>>,
    /// Metal3DataClaims.
    pub claims: BTreeMap<Box<str>, Arc<Claim>>,
    /// Metal3Data.
    pub data: BTreeMap<Box<str>, Arc<Data>>,
    /// Metal3MachineTemplates.
    pub machine_templates: BTreeMap<Box<str>, Arc<MachineTemplate>>,
    /// Clusters.
    pub clusters: BTreeMap<Box<str>, Arc<Cluster>>,
    /// IP claims of both IPAMs, by kind and name.
    pub ip_claims: BTreeMap<(Kind, Box<str>), Arc<IpClaim>>,
    /// The kinds that the API server did not serve when it was asked.
    pub unserved: BTreeSet<Kind>,
}

impl Contents {
    /// Adds or replaces an object. A kind that no rule reads, or a list, is handed back.
    pub fn insert(&mut self, object: Object) -> Option<Object> {
        match object {
            Object::Template(it) => put(&mut self.templates, &it.meta.name.clone(), it),
            Object::Machine(it) => put(&mut self.machines, &it.meta.name.clone(), it),
            Object::Claim(it) => put(&mut self.claims, &it.meta.name.clone(), it),
            Object::Data(it) => put(&mut self.data, &it.meta.name.clone(), it),
            Object::MachineTemplate(it) => {
                put(&mut self.machine_templates, &it.meta.name.clone(), it);
            }
            Object::Cluster(it) => put(&mut self.clusters, &it.meta.name.clone(), it),
            Object::IpClaim(it) => {
                self.ip_claims.insert((it.kind, it.meta.name.clone()), Arc::new(it));
            }
            other @ (Object::List(_) | Object::Other(_)) => return Some(other),
        }
        None
    }

    /// The names of the objects of one kind.
    pub fn names(&self, kind: Kind) -> Vec<Box<str>> {
        match kind {
            Kind::Cluster => self.clusters.keys().cloned().collect(),
            Kind::Data => self.data.keys().cloned().collect(),
            Kind::Claim => self.claims.keys().cloned().collect(),
            Kind::Template => self.templates.keys().cloned().collect(),
            Kind::Machine => self.machines.keys().cloned().collect(),
            Kind::MachineTemplate => self.machine_templates.keys().cloned().collect(),
            Kind::IpClaim | Kind::IpAddressClaim => {
                let ours = self.ip_claims.keys().filter(|(known, _)| *known == kind);
                ours.map(|(_, name)| name.clone()).collect()
            }
        }
    }

    /// The identity of an object that plans and reports name.
    pub fn meta(&self, kind: Kind, name: &str) -> Option<&Meta> {
        match kind {
            Kind::Cluster => self.clusters.get(name).map(|it| &it.meta),
            Kind::Data => self.data.get(name).map(|it| &it.meta),
            Kind::Claim => self.claims.get(name).map(|it| &it.meta),
            Kind::Template => self.templates.get(name).map(|it| &it.meta),
            Kind::Machine => self.machines.get(name).map(|it| &it.meta),
            Kind::MachineTemplate => self.machine_templates.get(name).map(|it| &it.meta),
            Kind::IpClaim | Kind::IpAddressClaim => {
                self.ip_claims.get(&(kind, name.into())).map(|it| &it.meta)
            }
        }
    }

    /// Everything that names `template`. Looks at every object: keep an index where that matters.
    pub fn usage(&self, template: &str) -> Usage {
        Usage {
            machines: naming(&self.machines, |it| (&it.meta, it.template.as_ref()), template),
            claims: naming(&self.claims, |it| (&it.meta, it.template.as_ref()), template),
            data: naming(&self.data, |it| (&it.meta, it.template.as_ref()), template),
            machine_templates: naming(
                &self.machine_templates,
                |it| (&it.meta, it.template.as_ref()),
                template,
            ),
        }
    }

    /// Which entries of `indexes` are true, given what names the template.
    pub fn occupancy(&self, indexes: &Indexes, usage: &Usage) -> Occupancy {
        let entries = indexes.entries();
        Occupancy {
            claims: entries
                .iter()
                .filter(|entry| self.claims.contains_key(&entry.claim))
                .map(|entry| entry.claim.clone())
                .collect(),
            indexes: usage.data.values().filter_map(|data| data.index).collect(),
        }
    }

    /// The state of a template that something wants to reference.
    pub fn target(&self, template: &str, cluster: Option<&str>) -> Target {
        Target {
            template: self
                .templates
                .get(template)
                .map_or(TargetTemplate::Missing, |it| TargetTemplate::of(&it.meta)),
            cluster_paused: cluster.is_some_and(|name| self.cluster_paused(name)),
        }
    }

    /// Whether the Cluster of this name exists and is paused.
    pub fn cluster_paused(&self, name: &str) -> bool {
        self.clusters.get(name).is_some_and(|cluster| cluster.is_paused())
    }

    /// Whether the claim that a Metal3Data was made for is gone. A Metal3Data that names no claim,
    /// or one in another namespace, has none.
    pub fn is_orphan(&self, data: &Data) -> bool {
        let claim = data.claim.as_ref().and_then(|claim| claim.local(&data.meta.namespace));
        claim.is_none_or(|name| !self.claims.contains_key(name))
    }

    /// Whether nobody is left to end a claim: CAPM3's machine controller makes one for each machine,
    /// under its name, and takes its finalizer off it while it works for that machine. A live claim
    /// that someone made by hand names no machine, and is theirs to end.
    pub fn is_machineless(&self, claim: &Claim) -> bool {
        let meta = &claim.meta;
        let is_machine = |owner: &&Owner| *owner.kind == *Kind::Machine.name();
        let mut owners = meta.owners.iter().filter(is_machine).peekable();
        let is_capm3s = if meta.terminating() {
            meta.has_finalizer(MACHINE_FINALIZER)
        } else {
            owners.peek().is_some()
        };
        is_capm3s
            && !self.unserved.contains(&Kind::Machine)
            && !self.machines.contains_key(&meta.name)
            && !owners.any(|owner| self.machines.contains_key(&owner.name))
    }

    /// Whether a Metal3Data was made for a claim.
    pub fn has_data(&self, claim: &Claim) -> bool {
        self.data.values().any(|data| {
            let local = data.claim.as_ref().and_then(|it| it.local(&data.meta.namespace));
            local == Some(&*claim.meta.name)
        })
    }

    /// The names of all templates, and of those that something names although they are not there.
    pub fn template_names(&self) -> Vec<Box<str>> {
        let local = |meta: &Meta, reference: Option<&Reference>| {
            reference.and_then(|it| it.local(&meta.namespace)).map(Box::from)
        };
        let mut names: Vec<Box<str>> = self.templates.keys().cloned().collect();
        names.extend(self.machines.values().filter_map(|it| local(&it.meta, it.template.as_ref())));
        names.extend(self.claims.values().filter_map(|it| local(&it.meta, it.template.as_ref())));
        names.extend(self.data.values().filter_map(|it| local(&it.meta, it.template.as_ref())));
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn put<T>(map: &mut BTreeMap<Box<str>, Arc<T>>, name: &str, object: T) {
    map.insert(name.into(), Arc::new(object));
}

fn naming<T>(
    map: &BTreeMap<Box<str>, Arc<T>>,
    parts: impl Fn(&T) -> (&Meta, Option<&Reference>),
    template: &str,
) -> BTreeMap<Box<str>, Arc<T>> {
    map.iter()
        .filter(|(_, object)| {
            let (meta, reference) = parts(object);
            reference.is_some_and(|it| it.local(&meta.namespace) == Some(template))
        })
        .map(|(name, object)| (name.clone(), Arc::clone(object)))
        .collect()
}
