//! What is read, what is left to `serde_json`, and what is refused.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::*;

mod alike;

use alike::agrees;

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

#[test]
fn backslashes_without_end_are_read_once() {
    for length in [(1 << 22) - 1, 1 << 22, (1 << 22) + 1] {
        agrees(&format!("[\"{}\"]", "\\".repeat(length)));
    }
    // The last byte of one block escapes the first of the next, at each place of a run.
    for before in 0..140 {
        for length in 0..6 {
            for after in ["\"", "n\"", "\", 1", "x\""] {
                agrees(&format!("[\"{}{}{after}]", "y".repeat(before), "\\".repeat(length)));
            }
        }
    }
}

#[test]
fn depth_counts_for_what_is_read_and_for_nothing_else() {
    for depth in 1..200 {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            agrees(&format!("{}1{}", open.repeat(depth), close.repeat(depth)));
            agrees(&format!("{}1{}", open.repeat(depth), close.repeat(depth - 1)));
        }
    }
}

#[test]
fn of_equal_keys_each_type_takes_what_it_takes_elsewhere() {
    for text in [
        r#"{"a":"x","a":"y"}"#,
        r#"{"d":1,"d":2}"#,
        r#"{"z":1,"z":2}"#,
        r#"{"a":"x","\u0061":"y"}"#,
    ] {
        agrees(text);
    }
}
