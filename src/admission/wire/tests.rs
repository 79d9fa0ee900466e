//! The fast reader and `serde_json` on whole reviews: the same question, or the same error.

use std::{fs, path::Path, sync::LazyLock};

use proptest::{prelude::*, sample};

use super::*;

/// The reviews of the corpus, as one line and as they are.
static REVIEWS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reviews");
    let mut reviews = Vec::new();
    for case in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(case.unwrap().path().join("review.json")).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        reviews.extend([value.to_string(), text]);
    }
    reviews.sort();
    reviews
});

fn alike(text: &str) {
    let ours = json::from_str::<Document<'_>>(text).map_err(|error| error.to_string());
    let expected = serde_json::from_str::<Document<'_>>(text).map_err(|error| error.to_string());
    let (ours, expected) = match (ours, expected) {
        (Ok(ours), Ok(expected)) => (ours.0, expected.0),
        (ours, expected) => return assert_eq!(ours.err(), expected.err(), "{text}"),
    };
    assert_eq!(ours.api_version.text(), expected.api_version.text());
    assert_eq!(ours.kind.text(), expected.kind.text());
    let [ours, expected] = [ours, expected]
        .map(|raw| raw.request.0.0.map(|request| Envelope { version: Version::V1, request }));
    assert_eq!(ours.is_some(), expected.is_some(), "{text}");
    let (Some(ours), Some(expected)) = (ours, expected) else { return };
    assert_eq!((ours.uid(), ours.dry_run()), (expected.uid(), expected.dry_run()), "{text}");
    let (ours, expected) = (ours.review(), expected.review());
    let unknown =
        |review: Review<'_>| format!("{:?}", Review { known: Known::default(), ..review });
    assert_eq!(unknown(ours), unknown(expected), "{text}");
    for object in [ours.object, ours.old_object].into_iter().flatten() {
        let expected = serde_json::from_str::<Object>(object).map_err(|error| error.to_string());
        assert_eq!(
            Object::from_json(object).map_err(|error| error.to_string()),
            expected,
            "{text}"
        );
        if let Some(known) = ours.known.get(object) {
            assert_eq!(Ok(known), expected.as_ref(), "{text}");
        }
    }
}

#[test]
fn recorded_reviews_are_read_alike_and_in_one_pass() {
    for text in &*REVIEWS {
        alike(text);
        let Ok(Document(raw)) = json::from_str(text) else { continue };
        let Read(Maybe(Some(request))) = raw.request else { continue };
        for both in [&request.object, &request.old_object].into_iter().flatten() {
            assert!(both.value.is_some() || Object::from_json(both.text).is_err(), "{text}");
        }
    }
}

#[test]
fn what_is_no_utf8_is_refused_wherever_it_stands() {
    let text = REVIEWS.first().unwrap();
    for at in 0..=text.len() {
        let bytes = [&text.as_bytes()[..at], b"\xff", &text.as_bytes()[at..]].concat();
        assert!(matches!(Envelope::read(&bytes), Err(BadReview::NotJson(_))), "{at}");
    }
}

proptest! {
    #[test]
    fn damaged_reviews_are_judged_alike(
        text in sample::select(REVIEWS.clone()),
        damages in prop::collection::vec((any::<sample::Index>(), 0..40_usize, pieces()), 1..4),
    ) {
        let mut text: Vec<_> = text.chars().collect();
        for (at, cut, with) in damages {
            let at = at.index(text.len() + 1);
            let end = text.len().min(at + cut);
            text.splice(at..end, with.chars());
        }
        alike(&text.into_iter().collect::<String>());
    }

    #[test]
    fn reviews_with_parts_said_twice_are_judged_alike(
        text in sample::select(REVIEWS.clone()),
        line in any::<sample::Index>(),
        at in any::<sample::Index>(),
    ) {
        // Whole lines, so that what comes twice is often a key with its value.
        let mut lines: Vec<_> = text.lines().collect();
        let again = lines[line.index(lines.len())];
        lines.insert(at.index(lines.len() + 1), again);
        alike(&lines.join("\n"));
    }
}

fn pieces() -> impl Strategy<Value = &'static str> {
    let all = [
        "",
        "",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\\u00e9",
        "\\ud800",
        "null",
        "true",
        "0",
        "-1.5e3",
        "1e999",
        "\n",
        "\u{0}",
        "\u{1f600}",
        "\"uid\":\"x\",",
        "\"object\":null,",
        "\"oldObject\":{},",
        "\"name\":5,",
        "\"metadata\":[],",
        "\"\\u0075id\":\"y\",",
    ];
    sample::select(all.to_vec())
}
