//! `src/core` decides and does nothing else: it reaches no file, clock, log, runtime or other
//! module. This reads its source and fails on whatever would change that.

#[cfg(test)]
mod checker;
#[cfg(test)]
mod lexer;

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fs,
        path::{Path, PathBuf},
    };

    use crate::checker::{Place, violations};

    fn files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, found);
            } else {
                found.push(path);
            }
        }
    }

    fn stem(path: &Path) -> String {
        path.file_stem().unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn core_reaches_nothing_outside() {
        let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/core");
        let mut paths = Vec::new();
        files(&core, &mut paths);
        paths.sort();
        let modules: BTreeSet<String> = paths.iter().map(|path| stem(path)).collect();
        assert!(modules.contains("deletion") && modules.contains("plan"), "{modules:?}");
        let mut found = Vec::new();
        for path in &paths {
            let inside = path.strip_prefix(&core).unwrap();
            assert_eq!(path.extension().unwrap(), "rs", "{}", path.display());
            let place = Place {
                depth: inside.components().count() - usize::from(stem(path) == "mod"),
                is_test: inside.iter().any(|part| {
                    ["tests", "tests.rs", "testing.rs"].map(Some).contains(&part.to_str())
                }),
                modules: &modules,
            };
            let source = fs::read_to_string(path).unwrap();
            let name = inside.display();
            found.extend(violations(&source, &place).into_iter().map(|it| format!("{name}: {it}")));
        }
        assert!(found.is_empty(), "src/core does what only the outside may:\n{}", found.join("\n"));
    }

    fn check(source: &str, is_test: bool) -> Vec<String> {
        let modules = ["objects", "indexes"].map(String::from).into();
        violations(source, &Place { depth: 1, is_test, modules: &modules })
    }

    #[test]
    fn what_reaches_outside_is_found() {
        for (source, part) in [
            ("use std::fs;", "std::fs"),
            ("use ::std::fs;", "std::fs"),
            ("use std::{collections::BTreeMap, io::{self, Read}};", "std::io"),
            ("use std::{time::Duration};", "std::time::Duration"),
            ("use std::*;", "std"),
            ("use std as s;", "std"),
            ("use std::sync::Mutex;", "std::sync::Mutex"),
            ("use std::sync::{Arc, atomic::AtomicBool};", "std::sync::atomic"),
            ("use kube::Client;", "kube::Client"),
            ("use {serde::Deserialize, kube::Client};", "kube::Client"),
            ("use crate::inventory::Inventory;", "crate::inventory"),
            ("use crate::{core::plan, server};", "crate::server"),
            ("use crate as root;", "crate"),
            ("use super::super::inventory;", "super::super"),
            ("fn f() { use std::env; }", "std::env"),
            ("fn f() { let x = std::fs::read(\"a\"); }", "std::fs::read"),
            ("fn f() { ::std::process::exit(1) }", "std::process"),
            ("fn f() { core::arch::x() }", "core::arch"),
            ("fn f() -> crate::server::Server { todo() }", "crate::server"),
            ("fn f() { anyhow::bail!(\"x\") }", "anyhow::bail"),
            ("fn f(x: Vec<arc_swap::ArcSwap<u8>>) {}", "arc_swap::ArcSwap"),
            ("fn f() { <kube::Client as X>::y() }", "kube::Client"),
            ("mod a { fn f() { super::super::super::x() } }", "super::super::super"),
            ("async fn f() {}", "async"),
            ("fn f() { x.await }", "await"),
            ("fn f() { tokio::spawn(x) }", "tokio"),
            ("fn f() { tracing::info!(\"x\") }", "tracing"),
            ("fn f() { println!(\"x\") }", "println"),
            ("fn f() { Instant::elapsed(x) }", "Instant"),
            ("fn f(x: SystemTime) {}", "SystemTime"),
            ("fn f() { Timestamp::now() }", "now"),
            ("fn f() { jiff::Timestamp::now() }", "now"),
            ("fn f() { let clock = Timestamp::now; }", "now"),
            ("fn f() { TimeZone::system() }", "system"),
            ("const A: &str = env!(\"HOME\");", "env!"),
            ("const A: &str = include_str!(\"x\");", "include_str"),
            ("extern crate kube;", "extern"),
            ("mod tests;", "mod tests"),
            ("use proptest::prelude::*;", "proptest"),
            ("/* a /* b */ c */ use std::fs; // d", "std::fs"),
            ("const Q: char = '\"'; use std::fs; const R: &str = \"\\\"\";", "std::fs"),
            ("fn f<'a>(x: &'a str) { std::fs::read(x); }", "std::fs::read"),
            ("const R: &str = r#\"\"\"#; use std::fs;", "std::fs"),
        ] {
            let found = check(source, false);
            assert!(found.iter().any(|it| it.contains(part)), "{source}: {found:?}");
        }
    }

    #[test]
    fn what_only_computes_is_let_through() {
        for source in [
            "use std::{collections::{BTreeMap, btree_map::Entry}, fmt::{self, Write as _}, sync::Arc};",
            "use serde::{Deserialize, de::{IgnoredAny, value::MapAccessDeserializer}};",
            "use super::{indexes::Indexes, objects::{Kind, Object}};",
            "use super::objects::Kind; fn f() { let x = Kind::ALL; }",
            "use crate::core::objects::Kind;",
            "use std::fmt; fn f() -> fmt::Result { objects::read(); str::trim(x) }",
            "use jiff::{SignedDuration, Timestamp}; fn f(now: Timestamp) { situation.now.min(now) }",
            "fn f() { x.iter().map(str::trim).collect::<Vec<_>>(); i64::try_from(1); parse::<u8>() }",
            "// use std::fs; println!()\nconst A: &str = \"std::fs::read async\";",
            "/// let x = std::fs::read(); tokio\nfn f<'a>() { 'a'; '\\''; b\"tokio\"; r\"tokio\" }",
            "#[cfg(test)]\nmod tests;",
            "#[cfg(test)]\nmod tests { use super::*; use super::super::objects; use proptest::x; }",
            "#[expect(clippy::panic, reason = \"x\")] fn f() { Self::x(); self::y() }",
        ] {
            assert_eq!(check(source, false), Vec::<String>::new(), "{source}");
        }
        assert_eq!(check("use proptest::prelude::*;", true), Vec::<String>::new());
        assert_ne!(check("use std::fs;", true), Vec::<String>::new(), "in tests too");
    }
}
