//! Reading that cannot fail on a wrong type: what does not fit reads as missing.
//!
//! A schema may have been tightened after an object was stored, and a mutating webhook sees
//! objects before the schema does. Neither may keep a rule from seeing the fields that are right.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData, str::FromStr};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

/// A type that can be read from some JSON types and is missing in all others.
pub(crate) trait Lenient<'de>: Default {
    fn from_text(_text: &str) -> Self {
        Self::default()
    }

    /// Text without escapes, which lives as long as the input.
    fn from_borrowed(text: &'de str) -> Self {
        Self::from_text(text)
    }

    fn from_integer(_number: i64) -> Self {
        Self::default()
    }

    fn from_bool(_value: bool) -> Self {
        Self::default()
    }

    fn from_map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

/// Any non-empty text.
#[derive(Debug, Default)]
pub(crate) struct Text(pub(crate) Option<Box<str>>);

impl Lenient<'_> for Text {
    fn from_text(text: &str) -> Self {
        Self((!text.is_empty()).then(|| text.into()))
    }
}

impl Text {
    pub(crate) fn or_empty(self) -> Box<str> {
        self.0.unwrap_or_default()
    }
}

/// Text, borrowed when the input has it as it is; anything else reads as empty.
#[derive(Debug, Default)]
pub(crate) struct Word<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Lenient<'de> for Word<'a> {
    fn from_text(text: &str) -> Self {
        Self(Cow::Owned(text.into()))
    }

    fn from_borrowed(text: &'de str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

/// What any non-empty text says, when it can be read.
pub(crate) struct Said<T: FromStr>(pub(crate) Option<Result<T, T::Err>>);

impl<T: FromStr> Default for Said<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: FromStr> Lenient<'_> for Said<T> {
    fn from_text(text: &str) -> Self {
        Self((!text.is_empty()).then(|| text.parse()))
    }
}

/// A text that is there, empty or not: an annotation's key counts even with an empty value.
#[derive(Debug, Default)]
pub(crate) struct AnyText(pub(crate) Option<Box<str>>);

impl Lenient<'_> for AnyText {
    fn from_text(text: &str) -> Self {
        Self(Some(text.into()))
    }
}

/// A whole number that fits 64 bits.
#[derive(Debug, Default)]
pub(crate) struct Int(pub(crate) Option<i64>);

impl Lenient<'_> for Int {
    fn from_integer(number: i64) -> Self {
        Self(Some(number))
    }
}

/// `true`; everything else is false.
#[derive(Debug, Default)]
pub(crate) struct Flag(pub(crate) bool);

impl Lenient<'_> for Flag {
    fn from_bool(value: bool) -> Self {
        Self(value)
    }
}

/// An object read by `T`'s own derive.
#[derive(Debug, Default)]
pub(crate) struct Obj<T>(pub(crate) T);

impl<'de, T: Deserialize<'de> + Default> Lenient<'de> for Obj<T> {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Self)
    }
}

/// As [`Obj`], but knowing whether there was an object.
#[derive(Debug)]
pub(crate) struct Maybe<T>(pub(crate) Option<T>);

impl<T> Default for Maybe<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Lenient<'de> for Maybe<T> {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|object| Self(Some(object)))
    }
}

/// A list, each element read on its own.
#[derive(Debug)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Lenient<'de>> Lenient<'de> for List<T> {
    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut items = Vec::new();
        while let Some(Read(item)) = list.next_element()? {
            items.push(item);
        }
        Ok(Self(items))
    }
}

/// A map with keys that are not known beforehand. The last of two equal keys wins.
#[derive(Debug)]
pub(crate) struct Map<T>(pub(crate) BTreeMap<Box<str>, T>);

impl<T> Default for Map<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, T: Lenient<'de>> Lenient<'de> for Map<T> {
    fn from_map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some((key, Read(value))) = map.next_entry()? {
            entries.insert(key, value);
        }
        Ok(Self(entries))
    }
}

/// Deserializes a [`Lenient`] type from whatever is there; use as a field's type.
#[derive(Debug, Default)]
pub(crate) struct Read<T>(pub(crate) T);

impl<'de, T: Lenient<'de>> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyType(PhantomData)).map(Self)
    }
}

struct AnyType<T>(PhantomData<T>);

impl<'de, T: Lenient<'de>> Visitor<'de> for AnyType<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::from_text(text))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<T, E> {
        Ok(T::from_borrowed(text))
    }

    fn visit_i64<E>(self, number: i64) -> Result<T, E> {
        Ok(T::from_integer(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<T, E> {
        Ok(i64::try_from(number).map_or_else(|_| T::default(), T::from_integer))
    }

    fn visit_f64<E>(self, _number: f64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_bool<E>(self, value: bool) -> Result<T, E> {
        Ok(T::from_bool(value))
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_none<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::from_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::from_list(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_types_read_as_missing() {
        for wrong in ["null", "5", "true", "[1,{\"a\":[2]}]", "{\"a\":{\"b\":1}}", "1.5", "\"\""] {
            let Read(Text(text)) = serde_json::from_str(wrong).unwrap();
            assert_eq!(text, None, "{wrong}");
        }
        for wrong in ["null", "\"5\"", "1.0", "18446744073709551615", "[]", "{}"] {
            let Read(Int(number)) = serde_json::from_str(wrong).unwrap();
            assert_eq!(number, None, "{wrong}");
        }
        let Read(List(items)): Read<List<Int>> = serde_json::from_str("[1,\"x\",3]").unwrap();
        let numbers: Vec<_> = items.into_iter().map(|Int(number)| number).collect();
        assert_eq!(numbers, [Some(1), None, Some(3)]);
    }

    #[test]
    fn the_last_of_two_equal_keys_wins() {
        let Read(Map(map)): Read<Map<Int>> = serde_json::from_str(r#"{"a":1,"a":2}"#).unwrap();
        assert_eq!(map["a"].0, Some(2));
    }
}
