//! docs/runbook.md as pages and blocks.

use std::fs;

use crate::root;

/// From one heading to the next.
pub(crate) struct Page {
    title: String,
    pub(crate) blocks: Vec<Block>,
}

/// A fenced block.
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) text: String,
    /// What stands in the comment above it, such as `case: stuck`.
    pub(crate) given: Option<String>,
}

impl Block {
    /// The rest of its comment, if that begins with this word.
    pub(crate) fn given(&self, word: &str) -> Option<&str> {
        self.given.as_deref()?.strip_prefix(word)?.strip_prefix(": ")
    }
}

impl Page {
    /// The name that a link to the heading has.
    pub(crate) fn anchor(&self) -> String {
        self.title.to_lowercase().replace(' ', "-")
    }
}

pub(crate) fn text() -> String {
    fs::read_to_string(root().join("docs/runbook.md")).unwrap()
}

/// All pages, without what stands before the first.
pub(crate) fn pages() -> Vec<Page> {
    let text = text();
    let sections = text.split("\n## ").skip(1);
    sections.map(page).collect()
}

fn page(section: &str) -> Page {
    let (title, body) = section.split_once('\n').unwrap();
    let parts: Vec<_> = body.split("\n```").collect();
    assert_eq!(parts.len() % 2, 1, "a block of {title} does not end");
    let blocks = parts
        .chunks(2)
        .filter_map(|pair| {
            let [before, block] = pair else { return None };
            let comment = before.lines().last().unwrap_or_default();
            let given = comment.strip_prefix("<!-- ").and_then(|it| it.strip_suffix(" -->"));
            let (language, text) = block.split_once('\n').unwrap();
            Some(Block {
                language: language.to_owned(),
                text: format!("{text}\n"),
                given: given.map(str::to_owned),
            })
        })
        .collect();
    Page { title: title.to_owned(), blocks }
}
