//! The objects that rules read, both served API versions parsed into one model.
//!
//! Only what a rule needs is kept. Fields: CAPM3 `api/v1beta1` and `api/v1beta2`; the two differ in
//! the shape of `status.indexes` (see [`crate::core::indexes`]) and in the meaning of a missing
//! `spec.index` on a Metal3Data.

use std::{collections::BTreeMap, fmt, sync::Arc};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    indexes::Indexes,
    json,
    lenient::{AnyText, Flag, Int, Lenient, List, Obj, Read, Said, Text, Word},
};

/// API group of CAPM3's kinds.
pub const METAL3_GROUP: &str = "infrastructure.cluster.x-k8s.io";
/// CAPM3's finalizer on a template, put there and taken off by its template controller.
pub const TEMPLATE_FINALIZER: &str = "metal3datatemplate.infrastructure.cluster.x-k8s.io";
/// On claims and on Metal3Data; taken off by CAPM3's template controller only.
pub const CLAIM_FINALIZER: &str = "metal3dataclaim.infrastructure.cluster.x-k8s.io";
/// On a Metal3Data until its IP claims are released; taken off by CAPM3's data controller.
pub const DATA_FINALIZER: &str = "metal3data.infrastructure.cluster.x-k8s.io";
/// On machines, and on claims until CAPM3's machine controller lets go of them.
pub const MACHINE_FINALIZER: &str = "metal3machine.infrastructure.cluster.x-k8s.io";
/// `clusterctl move` sets this key, with an empty value, on objects it is about to delete.
pub const MOVE_ANNOTATION: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";
/// Pauses one object for every Cluster API controller.
pub const PAUSED_ANNOTATION: &str = "cluster.x-k8s.io/paused";
/// An operator's override: its value is the reason.
pub const FORCE_ANNOTATION: &str = "metal3-guard.io/force-delete";
/// Written by the guard to make an object's own controller look at it again.
pub const WOKEN_ANNOTATION: &str = "metal3-guard.io/woken-at";
/// The Cluster that an object belongs to.
pub const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// The kinds that rules know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `Cluster` of Cluster API.
    Cluster,
    /// `IPAddressClaim` of Cluster API's IPAM contract.
    IpAddressClaim,
    /// `IPClaim` of Metal3's IP address manager.
    IpClaim,
    /// `Metal3Data`.
    Data,
    /// `Metal3DataClaim`.
    Claim,
    /// `Metal3DataTemplate`.
    Template,
    /// `Metal3Machine`.
    Machine,
    /// `Metal3MachineTemplate`.
    MachineTemplate,
}

impl Kind {
    /// All kinds, in the order of their names.
    pub const ALL: [Self; 8] = [
        Self::Cluster,
        Self::IpAddressClaim,
        Self::IpClaim,
        Self::Data,
        Self::Claim,
        Self::Template,
        Self::Machine,
        Self::MachineTemplate,
    ];

    /// The kind of an object with this `apiVersion` (or bare group) and `kind`.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        let group = api_version.split('/').next().unwrap_or_default();
        Self::ALL.into_iter().find(|known| known.name() == kind && known.group() == group)
    }

    /// The kind that a group and a plural resource name stand for.
    pub fn of_resource(group: &str, resource: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.resource() == resource && known.group() == group)
    }

    /// `kind` as objects carry it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::IpAddressClaim => "IPAddressClaim",
            Self::IpClaim => "IPClaim",
            Self::Data => "Metal3Data",
            Self::Claim => "Metal3DataClaim",
            Self::Template => "Metal3DataTemplate",
            Self::Machine => "Metal3Machine",
            Self::MachineTemplate => "Metal3MachineTemplate",
        }
    }

    /// The API group.
    pub const fn group(self) -> &'static str {
        match self {
            Self::Cluster => "cluster.x-k8s.io",
            Self::IpAddressClaim => "ipam.cluster.x-k8s.io",
            Self::IpClaim => "ipam.metal3.io",
            _ => METAL3_GROUP,
        }
    }

    /// The plural name in URLs and webhook rules.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Cluster => "clusters",
            Self::IpAddressClaim => "ipaddressclaims",
            Self::IpClaim => "ipclaims",
            Self::Data => "metal3datas",
            Self::Claim => "metal3dataclaims",
            Self::Template => "metal3datatemplates",
            Self::Machine => "metal3machines",
            Self::MachineTemplate => "metal3machinetemplates",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What every object has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Empty for an object that is not namespaced or not yet placed.
    pub namespace: Box<str>,
    /// Empty only on a CREATE with `generateName`.
    pub name: Box<str>,
    /// Empty before the API server has given one.
    pub uid: Box<str>,
    /// Opaque; a write's precondition.
    pub resource_version: Box<str>,
    /// When the object was created.
    pub created: Option<Timestamp>,
    /// Set once the object is being deleted.
    pub deletion: Option<Deletion>,
    /// In the order of the object, duplicates kept.
    pub finalizers: Box<[Box<str>]>,
    /// `cluster.x-k8s.io/cluster-name`.
    pub cluster: Option<Box<str>>,
    /// [`PAUSED_ANNOTATION`] is present.
    pub paused: bool,
    /// [`MOVE_ANNOTATION`] is present, whatever its value.
    pub moving: bool,
    /// [`FORCE_ANNOTATION`], possibly empty.
    pub force_delete: Option<Box<str>>,
    /// [`WOKEN_ANNOTATION`], when readable.
    pub woken: Option<Timestamp>,
    /// Owner references, as (kind, name).
    pub owners: Box<[Owner]>,
}

impl Meta {
    /// Whether the object is being deleted.
    pub const fn terminating(&self) -> bool {
        self.deletion.is_some()
    }

    /// Whether the object carries `finalizer`.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|have| &**have == finalizer)
    }

    /// The reason given for a forced deletion: `Some("")` when the annotation has none.
    pub fn force_reason(&self) -> Option<&str> {
        self.force_delete.as_deref().map(str::trim)
    }
}

/// An object's deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// `None` when the timestamp is there but cannot be read.
    pub at: Option<Timestamp>,
}

impl fmt::Display for Deletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "{at}"),
            None => f.write_str("an unreadable time"),
        }
    }
}

/// One owner reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The owner's kind.
    pub kind: Box<str>,
    /// The owner's name.
    pub name: Box<str>,
    /// The owner's uid.
    pub uid: Box<str>,
}

/// A reference as written; an empty namespace means the referrer's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The referenced object's name, never empty.
    pub name: Box<str>,
    /// As written.
    pub namespace: Option<Box<str>>,
}

impl Reference {
    /// The name when the reference stays in `own` namespace. A reference to another namespace is
    /// dead: CAPM3 never serves it, so it must not hold anything.
    pub fn local(&self, own: &str) -> Option<&str> {
        match &self.namespace {
            Some(namespace) if **namespace != *own => None,
            _ => Some(&self.name),
        }
    }
}

/// A Metal3DataTemplate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Identity, finalizers, deletion.
    pub meta: Meta,
    /// `status.indexes`.
    pub indexes: Indexes,
    /// `spec.clusterName`: required up to CAPM3 1.13, deprecated after.
    pub cluster_name: Option<Box<str>>,
}

impl Template {
    /// The Cluster whose pause also pauses this template (CAPM3 up to 1.13).
    pub fn cluster(&self) -> Option<&str> {
        self.cluster_name.as_deref().or(self.meta.cluster.as_deref())
    }
}

/// A Metal3Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Identity, finalizers, deletion.
    pub meta: Meta,
    /// `spec.dataTemplate`.
    pub template: Option<Reference>,
}

/// A Metal3DataClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Identity, finalizers, deletion.
    pub meta: Meta,
    /// `spec.template`.
    pub template: Option<Reference>,
}

/// A Metal3Data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// Identity, finalizers, deletion.
    pub meta: Meta,
    /// `spec.template`.
    pub template: Option<Reference>,
    /// `spec.claim`.
    pub claim: Option<Reference>,
    /// `spec.index`; missing means 0 in v1beta1 and nothing in v1beta2.
    pub index: Option<i64>,
    /// `status.errorMessage`.
    pub error: Option<Box<str>>,
}

/// A Metal3MachineTemplate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineTemplate {
    /// Identity.
    pub meta: Meta,
    /// `spec.template.spec.dataTemplate`.
    pub template: Option<Reference>,
}

/// A Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Identity, pause annotation.
    pub meta: Meta,
    /// `spec.paused`.
    pub paused: bool,
}

impl Cluster {
    /// Paused by its spec or by annotation.
    pub const fn is_paused(&self) -> bool {
        self.paused || self.meta.paused
    }
}

/// An IP claim of either IPAM, held by a Metal3Data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpClaim {
    /// Which of the two kinds.
    pub kind: Kind,
    /// Identity, owners.
    pub meta: Meta,
}

/// An object that went through [`Object::from_json`] or a YAML reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A Cluster.
    Cluster(Cluster),
    /// A Metal3Data.
    Data(Data),
    /// A Metal3DataClaim.
    Claim(Claim),
    /// An IP claim of either kind.
    IpClaim(IpClaim),
    /// A Metal3DataTemplate.
    Template(Template),
    /// A Metal3Machine.
    Machine(Machine),
    /// A Metal3MachineTemplate.
    MachineTemplate(MachineTemplate),
    /// A `kind: List` with its items.
    List(Vec<Self>),
    /// A kind that no rule reads.
    Other(OtherKind),
}

/// An object whose kind no rule reads by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherKind {
    /// `apiVersion`, possibly empty.
    pub api_version: Box<str>,
    /// `kind`, possibly empty.
    pub kind: Box<str>,
    /// Identity, finalizers, deletion.
    pub meta: Meta,
}

impl Object {
    /// Parses one JSON object. Unknown fields are ignored, null and wrong types mean missing.
    ///
    /// # Errors
    /// Text that is not JSON, a JSON value that is not an object, or a key given twice.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        json::from_str(text)
    }

    /// Identity, finalizers and deletion; `None` for a list.
    pub const fn meta(&self) -> Option<&Meta> {
        Some(match self {
            Self::Cluster(it) => &it.meta,
            Self::Data(it) => &it.meta,
            Self::Claim(it) => &it.meta,
            Self::IpClaim(it) => &it.meta,
            Self::Template(it) => &it.meta,
            Self::Machine(it) => &it.meta,
            Self::MachineTemplate(it) => &it.meta,
            Self::Other(it) => &it.meta,
            Self::List(_) => return None,
        })
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

impl Default for Object {
    fn default() -> Self {
        Self::Other(OtherKind::default())
    }
}

/// The holders of one template: everything in its namespace that names it, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Metal3Machines by `spec.dataTemplate`.
    pub machines: BTreeMap<Box<str>, Arc<Machine>>,
    /// Metal3DataClaims by `spec.template`.
    pub claims: BTreeMap<Box<str>, Arc<Claim>>,
    /// Metal3Data by `spec.template`.
    pub data: BTreeMap<Box<str>, Arc<Data>>,
    /// Metal3MachineTemplates by `spec.template.spec.dataTemplate`.
    pub machine_templates: BTreeMap<Box<str>, Arc<MachineTemplate>>,
}

impl Usage {
    /// Whether nothing names the template.
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty()
            && self.claims.is_empty()
            && self.data.is_empty()
            && self.machine_templates.is_empty()
    }
}

impl AsRef<Self> for Usage {
    fn as_ref(&self) -> &Self {
        self
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawObject<'a> {
    #[serde(borrow)]
    api_version: Read<Word<'a>>,
    #[serde(borrow)]
    kind: Read<Word<'a>>,
    metadata: Read<Obj<RawMeta>>,
    spec: Read<Obj<RawSpec>>,
    status: Read<Obj<RawStatus>>,
    items: Read<List<Object>>,
}

/// Takes a map and nothing else: a derived struct would also take a list.
struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object, A::Error> {
        RawObject::deserialize(MapAccessDeserializer::new(map)).map(Object::from)
    }
}

impl<'de> Lenient<'de> for Object {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        ObjectVisitor.visit_map(map)
    }
}

impl From<RawObject<'_>> for Object {
    fn from(raw: RawObject<'_>) -> Self {
        let Read(Word(api_version)) = raw.api_version;
        let Read(Word(kind)) = raw.kind;
        let meta = Meta::from(raw.metadata.0.0);
        let spec = raw.spec.0.0;
        let status = raw.status.0.0;
        match Kind::of(&api_version, &kind) {
            Some(Kind::Cluster) => Self::Cluster(Cluster { meta, paused: spec.paused.0.0 }),
            Some(kind @ (Kind::IpClaim | Kind::IpAddressClaim)) => {
                Self::IpClaim(IpClaim { kind, meta })
            }
            Some(Kind::Data) => Self::Data(Data {
                meta,
                template: spec.template.0.0.template_reference(),
                claim: spec.claim.0.0.reference(),
                index: spec.index.0.0.or_else(|| (!api_version.ends_with("/v1beta2")).then_some(0)),
                error: status.error_message.0.0,
            }),
            Some(Kind::Claim) => {
                Self::Claim(Claim { meta, template: spec.template.0.0.template_reference() })
            }
            Some(Kind::Template) => Self::Template(Template {
                meta,
                indexes: status.indexes.0,
                cluster_name: spec.cluster_name.0.0,
            }),
            Some(Kind::Machine) => Self::Machine(Machine {
                meta,
                template: spec.data_template.0.0.template_reference(),
            }),
            Some(Kind::MachineTemplate) => Self::MachineTemplate(MachineTemplate {
                meta,
                template: spec.template.0.0.spec.0.0.data_template.0.0.template_reference(),
            }),
            None if kind.ends_with("List") && meta.name.is_empty() => Self::List(raw.items.0.0),
            None => {
                Self::Other(OtherKind { api_version: api_version.into(), kind: kind.into(), meta })
            }
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawMeta {
    name: Read<Text>,
    namespace: Read<Text>,
    uid: Read<Text>,
    resource_version: Read<Text>,
    creation_timestamp: Read<Said<Timestamp>>,
    deletion_timestamp: Read<Said<Timestamp>>,
    finalizers: Read<List<Text>>,
    labels: Read<Obj<RawLabels>>,
    annotations: Read<Obj<RawAnnotations>>,
    owner_references: Read<List<Obj<RawOwner>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawLabels {
    #[serde(rename = "cluster.x-k8s.io/cluster-name")]
    cluster: Read<Text>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawAnnotations {
    #[serde(rename = "clusterctl.cluster.x-k8s.io/delete-for-move")]
    delete_for_move: Present,
    #[serde(rename = "cluster.x-k8s.io/paused")]
    paused: Present,
    #[serde(rename = "metal3-guard.io/force-delete")]
    force_delete: Read<AnyText>,
    #[serde(rename = "metal3-guard.io/woken-at")]
    woken_at: Read<Said<Timestamp>>,
}

/// An annotation whose key alone counts.
#[derive(Default)]
struct Present(bool);

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self(true))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawOwner {
    kind: Read<Text>,
    name: Read<Text>,
    uid: Read<Text>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawSpec {
    data_template: Read<Obj<RawReference>>,
    template: Read<Obj<RawReference>>,
    claim: Read<Obj<RawReference>>,
    index: Read<Int>,
    cluster_name: Read<Text>,
    paused: Read<Flag>,
}

/// An ObjectReference (v1beta1), a name with a namespace (v1beta2), or a pod-template-like
/// `template` with a spec of its own (Metal3MachineTemplate).
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawReference {
    kind: Read<Text>,
    name: Read<Text>,
    namespace: Read<Text>,
    spec: Read<Obj<RawMachineSpec>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawMachineSpec {
    data_template: Read<Obj<RawBareReference>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawBareReference {
    kind: Read<Text>,
    name: Read<Text>,
    namespace: Read<Text>,
}

impl RawReference {
    fn reference(self) -> Option<Reference> {
        let Read(Text(name)) = self.name;
        let Read(Text(namespace)) = self.namespace;
        name.map(|name| Reference { name, namespace })
    }

    fn template_reference(self) -> Option<Reference> {
        let Self { kind, name, namespace, .. } = self;
        RawBareReference { kind, name, namespace }.template_reference()
    }
}

impl RawBareReference {
    /// A v1beta1 reference may name no kind or another one; another one is not ours.
    fn template_reference(self) -> Option<Reference> {
        let Self { kind: Read(Text(kind)), name: Read(Text(name)), namespace } = self;
        let ours = kind.is_none_or(|kind| &*kind == Kind::Template.name());
        name.filter(|_| ours).map(|name| Reference { name, namespace: namespace.0.0 })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawStatus {
    indexes: Read<Indexes>,
    error_message: Read<Text>,
}

impl From<RawMeta> for Meta {
    fn from(raw: RawMeta) -> Self {
        let annotations = raw.annotations.0.0;
        let Read(Said(deletion)) = raw.deletion_timestamp;
        Self {
            namespace: raw.namespace.0.or_empty(),
            name: raw.name.0.or_empty(),
            uid: raw.uid.0.or_empty(),
            resource_version: raw.resource_version.0.or_empty(),
            created: raw.creation_timestamp.0.0.and_then(Result::ok),
            deletion: deletion.map(|said| Deletion { at: said.ok() }),
            finalizers: raw.finalizers.0.0.into_iter().filter_map(|Text(text)| text).collect(),
            cluster: raw.labels.0.0.cluster.0.0,
            paused: annotations.paused.0,
            moving: annotations.delete_for_move.0,
            force_delete: annotations.force_delete.0.0,
            woken: annotations.woken_at.0.0.and_then(Result::ok),
            owners: raw.owner_references.0.0.into_iter().map(|Obj(raw)| Owner::from(raw)).collect(),
        }
    }
}

impl From<RawOwner> for Owner {
    fn from(raw: RawOwner) -> Self {
        Self { kind: raw.kind.0.or_empty(), name: raw.name.0.or_empty(), uid: raw.uid.0.or_empty() }
    }
}

#[cfg(test)]
mod tests;
