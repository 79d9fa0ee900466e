//! What a source file of core may not do.

use std::collections::BTreeSet;

use crate::lexer::{is_name, path, tokens, use_tree};

/// Crates that only compute.
const CRATES: [&str; 5] = ["serde", "serde_json", "json_patch", "jiff", "wide"];
/// Modules of std that only compute.
const STD: [&str; 21] = [
    "any",
    "array",
    "borrow",
    "boxed",
    "cmp",
    "collections",
    "convert",
    "default",
    "error",
    "fmt",
    "hash",
    "iter",
    "marker",
    "mem",
    "num",
    "ops",
    "option",
    // Comparisons; what it could do besides is unsafe, which is forbidden everywhere.
    "ptr",
    "slice",
    "str",
    "string",
];
const PRIMITIVES: [&str; 17] = [
    "bool", "char", "str", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64",
    "i128", "isize", "f32", "f64",
];
/// Words that may not be there at all.
const WORDS: [&str; 17] = [
    "async",
    "await",
    "tokio",
    "tracing",
    "log",
    "println",
    "print",
    "eprintln",
    "eprint",
    "dbg",
    "SystemTime",
    "Instant",
    "unsafe",
    "extern",
    "include",
    "include_str",
    "include_bytes",
];
/// Functions that read a clock or the machine's settings, whatever type they are called on.
const CALLS: [&str; 2] = ["now", "system"];
const TEST_MODULES: [&str; 2] = ["tests", "testing"];

/// A file's place: how many `super` lead to `core`, and the names of core's own modules.
pub(crate) struct Place<'a> {
    pub(crate) depth: usize,
    pub(crate) is_test: bool,
    pub(crate) modules: &'a BTreeSet<String>,
}

/// What the source does that core may not.
pub(crate) fn violations(source: &str, place: &Place<'_>) -> Vec<String> {
    let tokens = tokens(source);
    let mut checker =
        Checker { place, bound: BTreeSet::new(), inline: Vec::new(), found: Vec::new() };
    // Names first: a `use` may stand after what relies on it.
    let mut at = 0;
    while at < tokens.len() {
        at = if tokens[at] == "use" { checker.bind(&tokens, at + 1) } else { at + 1 };
    }
    checker.walk(&tokens);
    checker.found
}

struct Checker<'a> {
    place: &'a Place<'a>,
    /// Names that a `use` or `mod` of this file brings in.
    bound: BTreeSet<String>,
    /// Open braces; true for those of an inline test module.
    inline: Vec<(bool, bool)>,
    found: Vec<String>,
}

impl Checker<'_> {
    fn walk(&mut self, tokens: &[String]) {
        let text = |at: usize| tokens.get(at).map_or("", String::as_str);
        let mut at = 0;
        while at < tokens.len() {
            let (token, before, next) = (text(at), text(at.wrapping_sub(1)), text(at + 1));
            match token {
                "{" => {
                    let module = text(at.wrapping_sub(2)) == "mod";
                    self.inline.push((module, module && TEST_MODULES.contains(&before)));
                }
                "}" => drop(self.inline.pop()),
                "mod" if TEST_MODULES.contains(&next) => {
                    let attribute: Vec<_> =
                        (1..=7).rev().map(|back| text(at.wrapping_sub(back))).collect();
                    if attribute != ["#", "[", "cfg", "(", "test", ")", "]"] {
                        self.found.push(format!("mod {next} without #[cfg(test)]"));
                    }
                }
                "use" => {
                    let mut paths = Vec::new();
                    at = use_tree(tokens, at + 1, &[], &mut paths);
                    for (path, _) in paths {
                        self.check(&path, false);
                    }
                    continue;
                }
                _ if WORDS.contains(&token) => self.found.push(format!("the word {token}")),
                "env" | "option_env" if next == "!" => {
                    self.found.push(format!("{token}! reads the environment"));
                }
                _ if before == "::" && CALLS.contains(&token) => {
                    self.found.push(format!("a call of {token}"));
                }
                _ if is_name(token) && before != "." && next == "::" => {
                    let before_that = text(at.wrapping_sub(2));
                    let absolute = before == "::" && !is_name(before_that) && before_that != ">";
                    if before != "::" || absolute {
                        let (path, _) = path(tokens, at);
                        self.check(&path, !absolute);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn bind(&mut self, tokens: &[String], at: usize) -> usize {
        let mut paths = Vec::new();
        let end = use_tree(tokens, at, &[], &mut paths);
        self.bound.extend(paths.into_iter().map(|(_, name)| name));
        end
    }

    /// Where a path leads; `relative` ones may begin with a name of this file.
    fn check(&mut self, path: &[String], relative: bool) {
        let text = path.join("::");
        let [root, rest @ ..] = path else { return };
        let second = rest.first().map(String::as_str);
        let supers = path.iter().take_while(|it| *it == "super").count();
        let modules = self.inline.iter().filter(|(module, _)| *module).count();
        let in_test = self.place.is_test || self.inline.iter().any(|(_, test)| *test);
        let fine = match root.as_str() {
            "crate" => second == Some("core"),
            "super" => supers <= self.place.depth + modules,
            "self" | "Self" | "clippy" => true,
            "std" | "core" | "alloc" => match second {
                Some("sync") => rest.get(1).is_some_and(|it| it == "Arc"),
                Some("time" | "env" | "fs" | "io" | "net" | "process" | "thread") | None => false,
                Some(module) => STD.contains(&module),
            },
            "proptest" => in_test,
            name if CRATES.contains(&name) => true,
            name if relative => {
                name.starts_with(char::is_uppercase)
                    || rest.is_empty()
                    || PRIMITIVES.contains(&name)
                    || self.bound.contains(name)
                    || self.place.modules.contains(name)
            }
            // A `use` may begin with a type or a module beside it.
            name => name.starts_with(char::is_uppercase) || self.place.modules.contains(name),
        };
        if !fine {
            self.found.push(format!("the path {text}"));
        }
    }
}
