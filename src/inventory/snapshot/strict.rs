//! Reads objects as the core does, but does not let a scalar of the wrong type vanish.
//!
//! The core reads what does not fit as missing, which is right for objects that an API server
//! holds. In a file written by hand or by another tool, `name: 1234` or `name: on` is a name that
//! YAML takes for a number or a boolean, and missing it could turn "in use" into "free". The fields
//! checked here are text in every Kubernetes object, of whatever kind.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
        value::MapAccessDeserializer,
    },
    forward_to_deserialize_any,
};

use crate::core::objects::{CLUSTER_LABEL, FORCE_ANNOTATION, Object, WOKEN_ANNOTATION};

/// One document: an object, or a list of objects without the `List` around it.
pub(super) struct Document(pub(super) Object);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor).map(Self)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object or a list of them")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object, A::Error> {
        Object::deserialize(MapAccessDeserializer::new(StrictMap { map, field: Field::Other }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Object, A::Error> {
        let mut items = Vec::new();
        while let Some(Item(item)) = list.next_element()? {
            items.push(item);
        }
        Ok(Object::List(items))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Object, E> {
        let start: String = text.chars().take(40).collect();
        let more = if start.len() < text.len() { "..." } else { "" };
        Err(E::custom(format_args!(
            "a document that is text ({start:?}{more}), not a Kubernetes object or a list of them"
        )))
    }
}

/// An element of a bare list; one that is no object counts as an object without kind.
struct Item(Object);

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor).map(Self)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object, A::Error> {
        DocumentVisitor.visit_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Object, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Object::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Object, E> {
        Ok(Object::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Object, E> {
        Ok(Object::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Object, E> {
        Ok(Object::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Object, E> {
        Ok(Object::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Object, E> {
        Ok(Object::default())
    }

    fn visit_unit<E>(self) -> Result<Object, E> {
        Ok(Object::default())
    }
}

/// What a value belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    /// Text, and never null.
    Name,
    /// Text or null.
    Text(&'static str),
    /// A list of texts.
    Texts(&'static str),
    /// Anything.
    Other,
}

impl Field {
    fn of(key: &str) -> Self {
        const TEXTS: [&str; 10] = [
            "apiVersion",
            "kind",
            "namespace",
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "deletionTimestamp",
            CLUSTER_LABEL,
            FORCE_ANNOTATION,
            WOKEN_ANNOTATION,
        ];
        match key {
            "name" => Self::Name,
            "finalizers" => Self::Texts("finalizers"),
            _ => TEXTS.into_iter().find(|text| *text == key).map_or(Self::Other, Self::Text),
        }
    }

    const fn text(self) -> Option<&'static str> {
        match self {
            Self::Name => Some("name"),
            Self::Text(field) => Some(field),
            Self::Texts(_) | Self::Other => None,
        }
    }

    /// Refuses a value that is not text where text is meant.
    fn no_text<E: Error>(self, what: fmt::Arguments<'_>) -> Result<(), E> {
        self.text().map_or(Ok(()), |field| {
            Err(E::custom(format_args!("`{field}` is {what}, not text; put it in quotes")))
        })
    }
}

/// Hands on what `inner` reads, checked against the field that it belongs to.
struct Strict<T> {
    inner: T,
    field: Field,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Strict { inner: visitor, field: self.field })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<V::Value, E> {
        self.field.no_text(format_args!("the boolean {value}"))?;
        self.inner.visit_bool(value)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<V::Value, E> {
        self.field.no_text(format_args!("the number {number}"))?;
        self.inner.visit_i64(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<V::Value, E> {
        self.field.no_text(format_args!("the number {number}"))?;
        self.inner.visit_u64(number)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<V::Value, E> {
        self.field.no_text(format_args!("the number {number}"))?;
        self.inner.visit_f64(number)
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        if self.field == Field::Name {
            self.field.no_text(format_args!("null"))?;
        }
        self.inner.visit_unit()
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<V::Value, E> {
        self.inner.visit_str(text)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<V::Value, E> {
        self.inner.visit_borrowed_str(text)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(StrictMap { map, field: Field::Other })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        let field = match self.field {
            Field::Texts(name) => Field::Text(name),
            _ => Field::Other,
        };
        self.inner.visit_seq(Strict { inner: list, field })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        self.inner.next_element_seed(Strict { inner: seed, field: self.field })
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        self.inner.deserialize(Strict { inner: deserializer, field: self.field })
    }
}

/// A map that remembers the key of the value to come.
struct StrictMap<A> {
    map: A,
    field: Field,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for StrictMap<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        self.field = Field::Other;
        self.map.next_key_seed(Key { inner: seed, field: &mut self.field })
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.map.next_value_seed(Strict { inner: seed, field: self.field })
    }
}

/// Hands on a key and tells which field it opens.
struct Key<'a, T> {
    inner: T,
    field: &'a mut Field,
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Key<'_, T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        self.inner.deserialize(Key { inner: deserializer, field: self.field })
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Key<'_, D> {
    type Error = D::Error;

    /// A key is text whatever it looks like: `1234: 0` in `status.indexes` names a claim.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_str(Key { inner: visitor, field: self.field })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Key<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<V::Value, E> {
        *self.field = Field::of(key);
        self.inner.visit_str(key)
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<V::Value, E> {
        *self.field = Field::of(key);
        self.inner.visit_borrowed_str(key)
    }
}
