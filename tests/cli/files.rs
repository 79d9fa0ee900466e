//! `certs`, and state directories that do not load.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::support::run;

#[test]
fn certs_are_never_replaced_unasked_and_the_key_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("made/for/it");
    let out = out.to_str().unwrap();
    let args = ["certs", "--out", out, "--dns", "localhost", "--ip", "127.0.0.1"];
    let done = run(&args);
    assert_eq!((done.code, &*done.stderr), (0, ""));
    let paths: Vec<_> = done.stdout.lines().collect();
    let wanted = ["ca.crt", "tls.crt", "tls.key"].map(|name| format!("{out}/{name}"));
    assert_eq!(paths, wanted);
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(wanted.each_ref().map(|path| mode(path)), [0o644, 0o644, 0o600]);

    let read = || wanted.each_ref().map(|path| fs::read_to_string(path).unwrap());
    let first = read();
    let again = run(&args);
    assert_eq!((again.code, &*again.stdout), (2, ""));
    let text = format!("error: {out}/ca.crt already exists; choose another --out, or replace it");
    assert!(
        again.stderr.starts_with(&text) && again.stderr.contains("--force"),
        "{}",
        again.stderr
    );
    assert_eq!(read(), first);

    let forced = run(&[&args[..], &["--force"]].concat());
    assert_eq!(forced.code, 0, "{}", forced.stderr);
    assert!(read().iter().zip(&first).all(|(new, old)| new != old));
    assert_eq!(mode(&wanted[2]), 0o600);
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let out = file.join("below");
    let done = run(&["certs", "--out", out.to_str().unwrap(), "--dns", "localhost"]);
    assert_ne!(done.code, 0);
    assert!(done.stderr.contains(&format!("cannot write {}", out.display())), "{}", done.stderr);
}

#[test]
fn a_state_that_does_not_load_is_named_by_file_line_and_column() {
    let template = "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\n\
                    kind: Metal3DataTemplate\nmetadata: {name: a, namespace: b}\n";
    for (name, content, place, what) in [
        ("broken.yaml", "kind: Pod\nmetadata: {name: a\nspec: 1\n", ":", ""),
        ("broken.yml", "a:\n  b: c\n d: e\n", ":3:", ""),
        ("broken.json", "{\"kind\": \"Pod\",\n  \"apiVersion\": ]", ":2:", ""),
        ("broken.yaml", &template.replace("name: a", "name: 1234"), ":3:", "name"),
        ("broken.yaml", &template.replace(", namespace: b", ""), "", "namespace"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("good.yaml"), template).unwrap();
        let file = dir.path().join("sub").join(name);
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, content).unwrap();
        let state = dir.path().to_str().unwrap();
        for args in [
            &["diagnose", "-A"][..],
            &["can-delete", "a", "-n", "b"],
            &["unstick", "a", "-n", "b"],
            &["review", "tests/data/reviews/delete-free/review.json"],
        ] {
            let done = run(&[args, &["--state", state]].concat());
            assert_eq!((done.code, &*done.stdout), (3, ""), "{content}");
            let start = format!("error: {}{place}", file.display());
            assert!(done.stderr.starts_with(&start), "{} for {content}", done.stderr);
            assert!(done.stderr.contains(what), "{} for {content}", done.stderr);
            if !place.is_empty() {
                let numbers = done.stderr.strip_prefix(&format!("error: {}:", file.display()));
                let mut numbers = numbers.unwrap().splitn(3, ':');
                for part in ["line", "column"] {
                    let number: u32 = numbers.next().unwrap().parse().expect(part);
                    assert!(number > 0);
                }
            }
        }
    }
}

#[test]
fn a_state_with_nothing_in_it_is_the_wrong_directory() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().to_str().unwrap().to_owned();
    let missing = dir.path().join("missing").to_str().unwrap().to_owned();
    for (state, what) in [(empty, "no *.yaml"), (missing, "No such file")] {
        let done = run(&["diagnose", "-A", "--state", &state]);
        assert_eq!((done.code, &*done.stdout), (3, ""));
        let start = format!("error: {state}: ");
        assert!(done.stderr.starts_with(&start) && done.stderr.contains(what), "{}", done.stderr);
    }
}
