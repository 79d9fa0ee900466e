//! JSON text, read fast where nobody asks for it.
//!
//! Most of a review is managedFields and annotations that no rule reads, and passing over them is
//! most of the work. This reader passes over them several times faster than `serde_json`, and knows
//! only what is usual: at anything else it is [`Unsure`] and `serde_json` reads the text anew, with
//! its own judgement and error texts. So it may refuse whatever it likes, but accepts nothing that
//! `serde_json` refuses, and reads what it accepts alike.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

mod blocks;
mod reader;
mod values;

use reader::Reader;

/// Reads one JSON value.
///
/// # Errors
/// As `serde_json::from_str`.
pub(crate) fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
    read(text).or_else(|Unsure| serde_json::from_str(text))
}

/// A JSON value as its text, borrowed from the input of [`from_str`], and as what it says.
#[derive(Clone, Debug)]
pub(crate) struct Both<'a, T> {
    pub(crate) text: &'a str,
    /// `None` when it was not read on the way; the text may still be good.
    pub(crate) value: Option<T>,
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Both<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(BOTH, BothVisitor(PhantomData))
    }
}

/// By this name [`Reader`] knows what is wanted; `serde_json` only has a type for the text.
const BOTH: &str = "metal3_guard::Both";

struct BothVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for BothVisitor<T> {
    type Value = Both<'de, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut both: A) -> Result<Self::Value, A::Error> {
        let value = both.next_element()?;
        let text = both.next_element()?.unwrap_or_default();
        Ok(Both { text, value })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, other: D) -> Result<Self::Value, D::Error> {
        <&RawValue>::deserialize(other).map(|raw| Both { text: raw.get(), value: None })
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Unsure> {
    let mut reader = Reader::new(text);
    let value = T::deserialize(&mut reader)?;
    match reader.peek() {
        None => Ok(value),
        Some(_) => Err(Unsure),
    }
}

/// Not usual, or not what the type wants.
#[derive(Debug)]
struct Unsure;

impl fmt::Display for Unsure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unusual JSON")
    }
}

impl std::error::Error for Unsure {}

impl de::Error for Unsure {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

#[cfg(test)]
mod tests;
