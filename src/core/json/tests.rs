use std::collections::BTreeMap;

use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    sample::{Index, select},
};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::*;

/// Read, passed over and taken as text: all as `serde_json` does, or not at all.
fn agrees(text: &str) {
    if let Ok(value) = read::<Value>(text) {
        assert_eq!(Some(value), serde_json::from_str(text).ok(), "{text}");
    }
    let ignored = serde_json::from_str::<IgnoredAny>(text).is_ok();
    assert!(read::<IgnoredAny>(text).is_err() || ignored, "{text}");
    if let Ok(both) = read::<Both<'_, Value>>(text) {
        let raw: Option<&RawValue> = serde_json::from_str(text).ok();
        assert_eq!(Some(both.text), raw.map(RawValue::get), "{text}");
        assert_eq!(both.value, read(text).ok(), "{text}");
    }
}

#[test]
fn what_is_usual_is_read_without_help() {
    for text in [
        "null",
        " true ",
        "[]",
        "{}",
        "[1,-2,[{}],{\"a\":[null,false]}]",
        "{\"a\" : {\"b\":\"c\"} ,\n\t\"d\":18446744073709551615}",
        "\"longer than eight bytes, \u{e4}\u{1f600} and all\"",
    ] {
        assert_eq!(read::<Value>(text).ok(), serde_json::from_str(text).ok(), "{text}");
        agrees(text);
    }
    for text in [r#""\u00e9\n\"\\""#, "1.5e+10", "-0", "[0.1,1E5]", r#"{"a\tb":["\ud800"]}"#] {
        assert!(read::<IgnoredAny>(text).is_ok(), "{text}");
        agrees(text);
    }
}

#[test]
fn what_is_wrong_is_not_accepted() {
    for text in [
        "",
        " ",
        "{",
        "[",
        "\"",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" 1}",
        "{,}",
        "[1 2]",
        "[}",
        "{]",
        "[[]}",
        "{\"a\":[}]",
        "1 1",
        "nul",
        "nulll",
        "truefalse",
        "01",
        "-",
        "-a",
        "1.",
        ".5",
        "1e",
        "1e+",
        "+1",
        "\"\n\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u123",
        "\"\\",
        "'a'",
        "\u{feff}1",
        "[1]]",
        "NaN",
        "0x1",
    ] {
        assert!(read::<IgnoredAny>(text).is_err(), "{text}");
        assert!(read::<Value>(text).is_err(), "{text}");
        assert!(from_str::<Value>(text).is_err(), "{text}");
    }
}

#[test]
fn the_rest_is_left_to_serde_json() {
    for text in ["-0", "1.5", "-9223372036854775809", r#"{"a\"b":"\u00e9"}"#] {
        assert!(read::<Value>(text).is_err(), "{text}");
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(from_str::<Value>(text).unwrap(), expected);
    }
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    assert!(read::<IgnoredAny>(&deep).is_err());
    assert!(from_str::<IgnoredAny>(&deep).is_ok());
    assert!(from_str::<Value>(&deep).is_err());
    let fits = "[".repeat(60) + "{\"a\":[1]}" + &"]".repeat(60);
    assert!(read::<IgnoredAny>(&fits).is_ok() && read::<Value>(&fits).is_ok());
}

#[test]
fn a_value_that_is_not_read_still_has_its_text() {
    type Pair<'a> = BTreeMap<&'a str, Both<'a, BTreeMap<String, bool>>>;
    let text = r#"{"a": {"b":true} ,"c": {"d":[1.5,{"e":"\""}]}, "f":"\n"}"#;
    let pair: Pair<'_> = read(text).unwrap();
    let texts: Vec<_> = pair.values().map(|both| both.text).collect();
    assert_eq!(texts, [r#"{"b":true}"#, r#"{"d":[1.5,{"e":"\""}]}"#, r#""\n""#]);
    assert_eq!(pair["a"].value, Some(BTreeMap::from([("b".to_owned(), true)])));
    assert_eq!(pair["c"].value, None);
    let other: Pair<'_> = serde_json::from_str(text).unwrap();
    let other: Vec<_> = other.values().map(|both| both.text).collect();
    assert_eq!(texts, other);
}

#[test]
fn every_byte_is_told_apart_at_every_place() {
    for byte in 0..=127_u8 {
        for at in 0..20 {
            let text = format!("\"{}{}{}\"", "x".repeat(at), char::from(byte), "y".repeat(9));
            agrees(&text);
            let plain = !matches!(byte, 0..0x20 | b'"' | b'\\');
            assert_eq!(read::<Value>(&text).is_ok(), plain, "{text:?}");
        }
    }
}

fn documents() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        let key = prop_oneof!["[a-z.:/-]{0,12}", ".{0,6}"];
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            btree_map(key, inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
    .prop_flat_map(|value| {
        let texts = [value.to_string(), serde_json::to_string_pretty(&value).unwrap()];
        select(texts.to_vec())
    })
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
        at in any::<Index>(),
        with in select(vec!["", "\"", "\\", "{", "}", "[", "]", ",", ":", "0", "-", "e", "\n", "\u{0}", "n", "\u{e9}"]),
        cut in 0..3_usize,
    ) {
        let mut text: Vec<_> = text.chars().collect();
        let at = at.index(text.len());
        let end = text.len().min(at + cut);
        text.splice(at..end, with.chars());
        agrees(&text.into_iter().collect::<String>());
    }
}
