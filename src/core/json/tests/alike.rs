//! The same answers as `serde_json`, whatever the text.

use std::{collections::BTreeMap, fmt::Debug};

use proptest::{collection, prelude::*, sample};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, value::RawValue};

use crate::core::json::{Both, from_str, read};

/// Every kind of field that a type may have.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Typed<'a> {
    #[serde(borrow)]
    a: Option<&'a str>,
    b: Vec<Option<i64>>,
    #[serde(borrow)]
    c: Option<Box<Self>>,
    #[serde(borrow)]
    d: Option<Text<'a>>,
    e: BTreeMap<String, f64>,
    f: (u8, bool),
    g: String,
    h: (),
}

/// A value as its text: read as [`Both`], the value within must be what the text says.
#[derive(Debug)]
struct Text<'a>(&'a str);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Both { text, value } = Both::<'_, Value>::deserialize(deserializer)?;
        if value.is_some() {
            assert_eq!(value, serde_json::from_str(text).ok(), "{text}");
        }
        Ok(Self(text))
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        // The same part of the input, not only the same letters.
        std::ptr::eq(self.0, other.0)
    }
}

fn alike<'a, T: Deserialize<'a> + Debug + PartialEq>(text: &'a str) {
    let expected = serde_json::from_str::<T>(text);
    if let Ok(value) = read::<T>(text) {
        assert_eq!(Some(&value), expected.as_ref().ok(), "{text}");
    }
    let [ours, expected] =
        [from_str(text), expected].map(|result| result.map_err(|error| error.to_string()));
    assert_eq!(ours, expected, "{text}");
}

/// Read, passed over and taken as text, text within text too: all as `serde_json` does.
pub(super) fn agrees(text: &str) {
    alike::<Value>(text);
    alike::<Typed<'_>>(text);
    alike::<Vec<Typed<'_>>>(text);
    alike::<Text<'_>>(text);
    alike::<Vec<Text<'_>>>(text);
    alike::<BTreeMap<String, Text<'_>>>(text);
    let ignored = serde_json::from_str::<IgnoredAny>(text).is_ok();
    assert!(read::<IgnoredAny>(text).is_err() || ignored, "{text}");
    assert_eq!(from_str::<IgnoredAny>(text).is_ok(), ignored, "{text}");
    if let Ok(both) = read::<Both<'_, Vec<Both<'_, Value>>>>(text) {
        let raw: &RawValue = serde_json::from_str(text).unwrap();
        assert!(std::ptr::eq(both.text, raw.get()), "{text}");
        let raws = serde_json::from_str::<Vec<&RawValue>>(text);
        for (inner, raw) in both.value.iter().flatten().zip(raws.iter().flatten()) {
            assert!(std::ptr::eq(inner.text, raw.get()), "{text}");
        }
    }
}

fn documents() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<u8>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        "[ -~]{0,100}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        let key = prop_oneof!["[a-h]", "[a-z.:/-]{0,12}", ".{0,6}"];
        prop_oneof![
            collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            collection::btree_map(key, inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
    .prop_flat_map(|value| {
        let texts = [value.to_string(), serde_json::to_string_pretty(&value).unwrap()];
        sample::select(texts.to_vec())
    })
}

/// What JSON is made of, and what it is not made of.
fn pieces() -> impl Strategy<Value = &'static str> {
    let all = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\\u",
        "\\\"",
        "00e9",
        "d800",
        "\\ud83d\\ude00",
        "\\ude00",
        "0",
        "1",
        "-",
        "+",
        ".",
        "e",
        "E5",
        "255",
        "18446744073709551616",
        "-9223372036854775809",
        "1e999",
        "true",
        "false",
        "null",
        "nul",
        "NaN",
        " ",
        "\n",
        "\t",
        "\r",
        "\u{b}",
        "\u{0}",
        "\u{1f}",
        "\u{7f}",
        "\u{e9}",
        "\u{1f600}",
        "\u{feff}",
        "\u{2028}",
        "/",
        "'",
        "\"a\"",
        "\"b\":",
        "{\"d\":",
        "\"c\":{",
        "\"f\":[1,true]",
        "\"$serde_json::private::RawValue\":",
    ];
    sample::select(all.to_vec())
}

proptest! {
    #[test]
    fn documents_are_read_alike(text in documents()) {
        agrees(&text);
        prop_assert!(read::<IgnoredAny>(&text).is_ok());
    }

    #[test]
    fn damaged_documents_are_judged_alike(
        text in documents(),
        damages in collection::vec((any::<sample::Index>(), 0..3_usize, pieces()), 1..4),
    ) {
        let mut text: Vec<_> = text.chars().collect();
        for (at, cut, with) in damages {
            let at = at.index(text.len() + 1);
            let end = text.len().min(at + cut);
            text.splice(at..end, with.chars());
        }
        agrees(&text.into_iter().collect::<String>());
    }

    #[test]
    fn parts_that_are_said_twice_are_judged_alike(
        text in documents(),
        places in any::<[sample::Index; 3]>(),
    ) {
        let text: Vec<_> = text.chars().collect();
        let [from, to, at] = places.map(|it| it.index(text.len() + 1));
        let again = &text[from.min(to)..from.max(to)];
        agrees(&[&text[..at], again, &text[at..]].concat().into_iter().collect::<String>());
    }

    #[test]
    fn any_pieces_are_judged_alike(pieces in collection::vec(pieces(), 0..20)) {
        agrees(&pieces.concat());
    }

    #[test]
    fn any_text_is_judged_alike(text in any::<String>()) {
        agrees(&text);
    }
}
