//! A state from files: every layout, and what is said about files that cannot be used.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::format_collect,
    reason = "helpers of tests fail by panicking, and may allocate"
)]

use std::{
    fs,
    os::unix::{fs::PermissionsExt, fs::symlink},
    path::Path,
};

use metal3_guard::{
    core::{
        objects::{Kind, Object, Usage},
        release,
        verdict::Answer,
    },
    inventory::{
        Inventory, Need,
        snapshot::{LoadError, MAX_SKIPPED_KINDS, Snapshot},
    },
};
use tempfile::TempDir;
use tokio::time::Instant;

const GROUP: &str = "infrastructure.cluster.x-k8s.io";

/// A Metal3Machine of namespace `ns` that needs `template`, as `kubectl get -o yaml` shows it.
fn machine(name: &str, template: &str) -> String {
    format!(
        "apiVersion: {GROUP}/v1beta1\nkind: Metal3Machine\nmetadata:\n  creationTimestamp: \
         2026-12-01T05:01:30Z\n  name: {name}\n  namespace: ns\nspec:\n  dataTemplate:\n    name: \
         {template}\n"
    )
}

fn machine_json(name: &str, template: &str) -> String {
    format!(
        r#"{{"apiVersion":"{GROUP}/v1beta1","kind":"Metal3Machine","metadata":{{"name":"{name}","namespace":"ns"}},"spec":{{"dataTemplate":{{"name":"{template}"}}}}}}"#
    )
}

/// The objects as a YAML list of `kind`.
fn list(kind: &str, objects: &[String]) -> String {
    let items: String = objects
        .iter()
        .flat_map(|object| object.lines().enumerate())
        .map(|(at, line)| format!("{}{line}\n", if at == 0 { "- " } else { "  " }))
        .collect();
    format!("apiVersion: v1\nitems:\n{items}kind: {kind}\nmetadata:\n  resourceVersion: \"\"\n")
}

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = TempDir::new().unwrap();
    for (name, text) in files {
        put(directory.path(), name, text);
    }
    directory
}

fn put(directory: &Path, name: &str, text: impl AsRef<[u8]>) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn load(files: &[(&str, &str)]) -> Snapshot {
    let directory = directory(files);
    Snapshot::load(directory.path()).unwrap_or_else(|error| panic!("{error}"))
}

/// What a load says, with paths relative to the directory.
fn complaint(files: &[(&str, &str)]) -> String {
    complaint_of(directory(files).path())
}

fn complaint_of(path: &Path) -> String {
    let error = Snapshot::load(path).expect_err("the load must fail");
    let text = error.to_string();
    text.replace(&format!("{}/", path.display()), "").replace(&path.display().to_string(), "DIR")
}

/// Everything that names a template of namespace `ns`.
fn usage(snapshot: &Snapshot, template: &str) -> Usage {
    usage_in(snapshot, "ns", template)
}

fn usage_in(snapshot: &Snapshot, namespace: &str, template: &str) -> Usage {
    let question =
        release::Question { namespace: namespace.into(), name: template.into(), uid: "".into() };
    (*verified(snapshot.usage(Need::Release(&question), Instant::now()))).clone()
}

/// An answer that is there at once: nothing drives the future but this one poll.
fn verified<F>(answering: metal3_guard::inventory::Answering<'_, F>) -> F {
    let answer = futures_util::FutureExt::now_or_never(answering);
    let Some(Answer::Verified(facts)) = answer else { panic!("not verified at once") };
    facts
}

fn machines(snapshot: &Snapshot, template: &str) -> Vec<String> {
    usage(snapshot, template).machines.keys().map(ToString::to_string).collect()
}

#[test]
fn every_layout_is_read() {
    let one = machine("one", "t");
    let two = machine("two", "t");
    let three = machine_json("three", "t");
    let layouts: [(&str, &str, String); 9] = [
        ("one object", "m.yaml", one.clone()),
        ("short ending", "m.yml", one.clone()),
        ("ending in capitals", "M.YAML", one.clone()),
        ("documents", "all.yaml", format!("---\n{one}---\n# nothing\n---\n{two}...\n")),
        ("list", "list.yaml", list("List", &[one.clone(), two])),
        (
            "typed list",
            "list.yaml",
            format!("---\n{}", list("Metal3MachineList", std::slice::from_ref(&one))),
        ),
        ("bare list", "list.json", format!("[{three}, 5, null, [{{}}]]")),
        ("JSON documents", "lines.json", format!("{three}\n{}\n", machine_json("four", "t"))),
        ("JSON in YAML", "three.yaml", three),
    ];
    let names = [
        vec!["one"],
        vec!["one"],
        vec!["one"],
        vec!["one", "two"],
        vec!["one", "two"],
        vec!["one"],
        vec!["three"],
        vec!["four", "three"],
        vec!["three"],
    ];
    for ((layout, file, text), names) in layouts.iter().zip(names) {
        let snapshot = load(&[(file, text)]);
        assert_eq!(machines(&snapshot, "t"), names, "{layout}");
        assert_eq!(snapshot.loaded().objects, [(Kind::Machine, names.len())].into(), "{layout}");
    }
}

#[test]
fn a_must_gather_is_read() {
    let base = format!("quay-io-x/namespaces/ns/{GROUP}");
    let snapshot = load(&[
        (&format!("{base}/metal3machines/one.yaml"), &format!("---\n{}", machine("one", "t"))),
        (&format!("{base}/metal3machines/two.yaml"), &machine("two", "t")),
        (
            &format!("{base}/metal3datatemplates.yaml"),
            &list(
                "Metal3DataTemplateList",
                &[format!(
                    "apiVersion: {GROUP}/v1beta1\nkind: Metal3DataTemplate\nmetadata:\n  name: \
                     t\n  namespace: ns\n"
                )],
            ),
        ),
        (
            "quay-io-x/namespaces/ns/core/pods.yaml",
            &list("PodList", &["apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n".to_owned()]),
        ),
        ("quay-io-x/namespaces/ns/pods/p/p/logs/current.log", "{{{ not for us"),
        ("quay-io-x/etcd_info/endpoint_status.json", r#"[{"Endpoint":"https://192.0.2.1:2379"}]"#),
        ("quay-io-x/timestamp", "2026-12-01"),
    ]);
    assert_eq!(machines(&snapshot, "t"), ["one", "two"]);
    let loaded = snapshot.loaded();
    assert_eq!(loaded.files, 5);
    assert_eq!(loaded.objects, [(Kind::Template, 1), (Kind::Machine, 2)].into());
    assert_eq!(loaded.skipped, [("Pod".into(), 1), ("(no kind)".into(), 1)].into());
    assert_eq!(
        loaded.to_string(),
        "3 objects from 5 files (1 Metal3DataTemplate, 2 Metal3Machine), 2 objects of other kinds \
         skipped"
    );
}

#[test]
fn one_file_is_a_state_whatever_its_ending() {
    let directory = directory(&[("dump", &machine("one", "t")), ("bad.yaml", "}")]);
    let snapshot = Snapshot::load(&directory.path().join("dump")).unwrap();
    assert_eq!(machines(&snapshot, "t"), ["one"]);
    assert_eq!(snapshot.loaded().files, 1);
}

#[test]
fn editors_leave_their_marks() {
    let one = machine("one", "t");
    for text in [format!("\u{feff}{one}"), one.replace('\n', "\r\n"), format!("\u{feff}---\n{one}")]
    {
        assert_eq!(machines(&load(&[("a.yaml", &text)]), "t"), ["one"], "{text:?}");
    }
    let json = format!("\u{feff}{}\r\n", machine_json("one", "t"));
    assert_eq!(machines(&load(&[("a.json", &json)]), "t"), ["one"]);
}

#[test]
fn hidden_files_and_other_endings_are_left_out() {
    let snapshot = load(&[
        ("a.yaml", &machine("one", "t")),
        (".b.yaml", &machine("two", "t")),
        (".git/c.yaml", "}"),
        ("notes.txt", "}"),
        ("d.yaml.bak", "}"),
    ]);
    assert_eq!(machines(&snapshot, "t"), ["one"]);
    assert_eq!(snapshot.loaded().files, 1);
}

#[test]
fn links_are_followed_once() {
    let elsewhere = directory(&[("two.yaml", &machine("two", "t")), ("sub/three.yaml", "}")]);
    let state = directory(&[("deep/one.yaml", &machine("one", "t"))]);
    let linked = state.path().join("linked");
    fs::create_dir(&linked).unwrap();
    fs::remove_file(elsewhere.path().join("sub/three.yaml")).unwrap();
    put(elsewhere.path(), "sub/three.yaml", machine("three", "t"));
    symlink(elsewhere.path().join("two.yaml"), linked.join("two.yaml")).unwrap();
    symlink(elsewhere.path().join("sub"), linked.join("sub")).unwrap();
    symlink(elsewhere.path().join("sub"), linked.join("again")).unwrap();
    symlink(state.path(), state.path().join("deep/loop")).unwrap();
    symlink("/", state.path().join("deep/top")).unwrap();
    symlink("nowhere.txt", linked.join("broken.txt")).unwrap();
    let snapshot = Snapshot::load(state.path()).unwrap();
    assert_eq!(machines(&snapshot, "t"), ["one", "three", "two"]);
    assert_eq!(snapshot.loaded().files, 3);
    symlink("nowhere", linked.join("broken")).unwrap();
    symlink("nowhere.yaml", linked.join("broken.yaml")).unwrap();
    let text = complaint_of(state.path());
    assert!(text.contains("\n  linked/broken: No such file"), "{text}");
    assert!(text.contains("\n  linked/broken.yaml: No such file"), "{text}");
}

#[test]
fn quoted_names_that_look_like_something_else_stay_names() {
    let names = ["1234", "null", "on", "1e3", "0x1f", "2026-12-01", "~", "true", ".inf"];
    for name in names {
        let snapshot = load(&[("a.yaml", &machine("one", &format!("{name:?}")))]);
        assert_eq!(machines(&snapshot, name), ["one"], "{name}");
    }
    // Not quoted, and still no number to anybody.
    for name in ["2026-12-01", "1-2", "0a", "1.2.3"] {
        assert_eq!(machines(&load(&[("a.yaml", &machine("one", name))]), name), ["one"], "{name}");
    }
}

#[test]
fn names_that_yaml_takes_for_something_else_are_refused() {
    for (name, what) in [
        ("1234", "the number 1234"),
        ("1e3", "the number 1000"),
        ("-5", "the number -5"),
        ("on", "the boolean true"),
        ("n", "the boolean false"),
        ("null", "null"),
        ("~", "null"),
    ] {
        assert_eq!(
            complaint(&[("a.yaml", &machine("one", name))]),
            format!("a.yaml:9:11: `name` is {what}, not text; put it in quotes")
        );
    }
    let json = machine_json("one", "t").replace("\"t\"", "7");
    let text = complaint(&[("a.json", &json)]);
    assert!(text.starts_with("a.json:1:1") && text.contains("`name` is the number 7"), "{text}");
}

#[test]
fn keys_times_and_indexes_arrive_as_they_are_written() {
    let snapshot = load(&[(
        "a.yaml",
        &format!(
            "apiVersion: {GROUP}/v1beta1\nkind: Metal3DataTemplate\nmetadata:\n  name: t\n  \
             namespace: ns\n  creationTimestamp: 2026-12-01T05:01:30Z\n  deletionTimestamp: \
             '2026-12-01T06:00:00Z'\nstatus:\n  indexes:\n    1234: 0\n    null: 1\n    on: 2\n    \
             w-0: 3\n"
        ),
    )]);
    let contents = verified(snapshot.contents("ns", Instant::now()));
    let template = &contents.templates["t"];
    let claims: Vec<_> =
        template.indexes.entries().iter().map(|it| (&*it.claim, it.index)).collect();
    assert_eq!(claims, [("1234", 0), ("null", 1), ("on", 2), ("w-0", 3)]);
    assert_eq!(template.meta.created, Some("2026-12-01T05:01:30Z".parse().unwrap()));
    let deleted = template.meta.deletion.and_then(|it| it.at);
    assert_eq!(deleted, Some("2026-12-01T06:00:00Z".parse().unwrap()));
}

#[test]
fn a_file_that_does_not_parse_is_named_with_its_place() {
    let one = machine("one", "t");
    assert!(complaint(&[("sub/a.yaml", "a: 1\nb: [1, 2\nc: 3\n")]).starts_with("sub/a.yaml:3:"));
    assert!(complaint(&[("a.json", "{\"a\": 1,\n  \"b\": }")]).starts_with("a.json:2:8: expected"));
    assert!(complaint(&[("a.json", "{\"a\": 1")]).starts_with("a.json:1:7: EOF"));
    let twice = format!("{one}spec: {{}}\n");
    let text = complaint(&[("a.yaml", &twice)]);
    assert!(text.starts_with("a.yaml:10:1:") && text.contains("duplicate"), "{text}");
    let text = complaint(&[("a.yaml", "No resources found in ns namespace.\n")]);
    assert_eq!(
        text,
        "a.yaml: a document that is text (\"No resources found in ns namespace.\"), not a \
         Kubernetes object or a list of them"
    );
    let text = complaint(&[("a.yaml", &"many words ".repeat(10_000))]);
    assert!(text.contains("many words") && text.len() < 200, "{text}");
    assert!(complaint(&[("a.json", "5")]).contains("a Kubernetes object or a list of them"));
    // One line each: no excerpt of the file.
    for text in ["a: 'secret\n", "{secret: 1]", "a: &secret [*b]"] {
        let text = complaint(&[("a.yaml", text)]);
        assert!(!text.contains('\n') && !text.contains("secret"), "{text}");
    }
}

#[test]
fn all_faults_are_collected_and_ten_are_shown() {
    let files: Vec<_> = (10..22).map(|at| format!("{at}.json")).collect();
    let files: Vec<_> = files.iter().map(|name| (&**name, "{")).collect();
    let directory = directory(&files);
    let text = complaint_of(directory.path());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 12);
    assert_eq!(lines[0], "DIR: 12 faults:");
    assert!(lines[1].starts_with("  10.json:1:1: EOF"), "{text}");
    assert!(lines[10].starts_with("  19.json:1:1: EOF"), "{text}");
    assert_eq!(lines[11], "  and 2 more");
    let Err(LoadError::Files { failures, .. }) = Snapshot::load(directory.path()) else { panic!() };
    assert_eq!(failures.len(), 12);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let state = directory(&[("b.yaml", &machine("one", "t"))]);
    put(state.path(), "a.yaml", b"one: 1\ntw\xc3\xb6: \xff\n");
    assert_eq!(
        complaint_of(state.path()),
        "a.yaml:2:6: not UTF-8 from here on; save the file as UTF-8"
    );
    fs::remove_file(state.path().join("a.yaml")).unwrap();
    let secret = state.path().join("b.yaml");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    // Root may read everything.
    if fs::read(&secret).is_err() {
        assert!(complaint_of(state.path()).starts_with("b.yaml: Permission denied"));
    }
    let _socket = std::os::unix::net::UnixListener::bind(state.path().join("c.yaml")).unwrap();
    assert!(complaint_of(state.path()).contains("c.yaml: not a regular file"));
}

#[test]
fn a_wrong_path_is_an_error() {
    let empty = TempDir::new().unwrap();
    assert_eq!(
        complaint_of(empty.path()),
        "DIR: no *.yaml, *.yml or *.json file in there; is this the right directory?"
    );
    let missing = empty.path().join("missing");
    let text = Snapshot::load(&missing).unwrap_err().to_string();
    assert!(text.starts_with(&format!("{}: No such file", missing.display())), "{text}");
    for nothing in ["", "---\n---\n", "# a comment\n", "---\nnull\n---\n~\n"] {
        let text = complaint(&[("a.yaml", nothing)]);
        assert!(text.starts_with("DIR: no object in 1 file(s)"), "{nothing:?}: {text}");
    }
}

#[test]
fn an_empty_list_is_a_state_without_objects() {
    for empty in ["kind: List\napiVersion: v1\nitems: []\n", "[]"] {
        let snapshot = load(&[("a.yaml", empty)]);
        assert_eq!(snapshot.loaded().total(), 0);
        assert!(usage(&snapshot, "t").is_empty());
        assert!(verified(snapshot.namespaces(Instant::now())).is_empty());
    }
}

#[test]
fn objects_that_cannot_be_placed_are_refused() {
    let lost = machine("one", "t").replace("  namespace: ns\n", "");
    assert_eq!(
        complaint(&[("namespaces/ns/a.yaml", &lost)]),
        "namespaces/ns/a.yaml: Metal3Machine \"one\" has no metadata.namespace; add the namespace \
         that it is in"
    );
    let nameless = machine("one", "t").replace("  name: one\n", "");
    let text = complaint(&[("a.yaml", &nameless)]);
    assert!(text.starts_with("a.yaml: a Metal3Machine without metadata.name"), "{text}");
    // A kind that nobody reads may lie anywhere.
    let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n";
    assert_eq!(load(&[("a.yaml", pod)]).loaded().skipped, [("Pod".into(), 1)].into());
}

#[test]
fn a_dump_that_was_cut_off_is_refused() {
    let whole = list("List", &[machine("one", "t"), machine("two", "t")]);
    let mut refused = 0;
    for (end, _) in whole.match_indices('\n') {
        let text = &whole[..=end];
        if text.contains("\nkind: List") {
            break;
        }
        let text = complaint(&[("a.yaml", text)]);
        assert!(text.starts_with("a.yaml:"), "{text}");
        refused += 1;
    }
    assert_eq!(refused, 20);
}

#[test]
fn the_same_object_twice_must_be_the_same() {
    let one = machine("one", "t");
    let snapshot =
        load(&[("a.yaml", &one), ("b.yaml", &list("List", &[one.clone(), one.clone()]))]);
    assert_eq!(snapshot.loaded().objects, [(Kind::Machine, 1)].into());
    assert_eq!(
        complaint(&[("a.yaml", &one), ("sub/b.yaml", &machine("one", "other"))]),
        "sub/b.yaml: Metal3Machine ns/one is here and in a.yaml, with different content; keep the \
         one that is true"
    );
    let text = complaint(&[("a.yaml", &format!("{one}---\n{}", machine("one", "other")))]);
    assert!(text.starts_with("a.yaml: Metal3Machine ns/one is twice in this file"), "{text}");
    // The same name in another namespace, or of another kind, is another object.
    let other = one.replace("namespace: ns", "namespace: other");
    let kind = one.replace("kind: Metal3Machine", "kind: Metal3DataClaim");
    assert_eq!(
        load(&[("a.yaml", &one), ("b.yaml", &other), ("c.yaml", &kind)]).loaded().total(),
        3
    );
}

#[test]
fn skipped_kinds_are_counted_within_bounds() {
    let kinds = MAX_SKIPPED_KINDS + 6;
    let text: String = (0..kinds)
        .map(|at| format!("apiVersion: g.example/v1\nkind: K{at:03}\nmetadata: {{name: 7}}\n---\n"))
        .collect();
    let text = text.replace("name: 7", "name: x");
    let loaded = load(&[("a.yaml", &format!("{text}{text}"))]).loaded();
    assert_eq!(loaded.skipped.len(), MAX_SKIPPED_KINDS);
    assert_eq!(loaded.skipped["K000.g.example"], 2);
    assert_eq!(loaded.skipped_more, 12);
    assert_eq!(loaded.total_skipped(), 2 * kinds);
    assert_eq!(loaded.total(), 0);
}

#[test]
fn a_failed_reload_keeps_the_old_state() {
    let state = directory(&[("a.yaml", &machine("one", "t"))]);
    let snapshot = Snapshot::load(state.path()).unwrap();
    let before = snapshot.loaded();
    put(state.path(), "b.yaml", machine("two", "t"));
    put(state.path(), "c.yaml", "}");
    let text = snapshot.reload().unwrap_err().to_string();
    assert!(text.contains("c.yaml:1:1:"), "{text}");
    assert_eq!(machines(&snapshot, "t"), ["one"]);
    assert_eq!(snapshot.loaded(), before);
    put(state.path(), "c.yaml", machine("three", "other"));
    let loaded = snapshot.reload().unwrap();
    assert_eq!((loaded.files, loaded.total()), (3, 3));
    assert_eq!(loaded, snapshot.loaded());
    assert_eq!(machines(&snapshot, "t"), ["one", "two"]);
    fs::remove_dir_all(state.path()).unwrap();
    assert!(snapshot.reload().is_err());
    assert_eq!(machines(&snapshot, "t"), ["one", "two"]);
}

#[test]
fn aliases_are_followed_but_bombs_are_not() {
    let shared = format!(
        "apiVersion: v1\nkind: List\nitems:\n{}",
        (0..300)
            .map(|at| format!(
                "- apiVersion: {GROUP}/v1beta1\n  kind: Metal3Machine\n  metadata: {{name: m{at}, \
                 namespace: ns}}\n  spec: {}\n",
                if at == 0 { "&s {dataTemplate: {name: t}}" } else { "*s" }
            ))
            .collect::<String>()
    );
    assert_eq!(machines(&load(&[("a.yaml", &shared)]), "t").len(), 300);
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for at in 1..12 {
        let alias = format!("*a{}", at - 1);
        bomb.extend(["a", &at.to_string(), ": &a", &at.to_string(), " ["]);
        bomb.extend([&*vec![alias; 10].join(", "), "]\n"]);
    }
    let text = complaint(&[("a.yaml", &format!("{bomb}items: *a11\n"))]);
    assert!(text.starts_with("a.yaml:") && text.contains("too complex"), "{text}");
    // Few nodes, much text.
    let text = format!(
        "long: &long {}\nitems:\n{}",
        "x".repeat(1 << 18),
        "- {kind: Metal3Machine, metadata: {name: *long}}\n".repeat(1000)
    );
    let text = complaint(&[("a.yaml", &text)]);
    assert!(text.contains("limits breached: ScalarBytes"), "{text}");
    // The same where objects are expected.
    let items = bomb.replace("[x, x, x, x, x, x, x, x, x, x]", "[{kind: Pod}]");
    let text = complaint(&[("a.yaml", &format!("{items}items: *a11\n"))]);
    assert!(text.starts_with("a.yaml:") && text.contains("too complex"), "{text}");
}

#[test]
fn deep_nesting_is_refused_without_harm() {
    for deep in [20_usize, 90, 1000, 100_000] {
        let flow = format!("a: {}{}", "[".repeat(deep), "]".repeat(deep));
        let block: String =
            (0..deep.min(2000)).map(|at| format!("{}k:\n", " ".repeat(at))).collect();
        let lists = format!("{}{}", "{kind: List, items: [".repeat(deep), "]}".repeat(deep));
        let json = format!("{}{}", r#"{"items": ["#.repeat(deep), "]}".repeat(deep));
        for (file, text) in
            [("a.yaml", &flow), ("a.yaml", &block), ("a.yaml", &lists), ("a.json", &json)]
        {
            let directory = directory(&[(file, text)]);
            match Snapshot::load(directory.path()) {
                Ok(_) => assert!(deep <= 90, "{file} {deep}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(deep >= 90, "{text}");
                    assert!(text.contains(&format!("{file}:")) && text.len() < 400, "{text}");
                }
            }
        }
    }
}

#[test]
fn a_state_can_come_from_memory() {
    let object = |text: &str| Object::from_json(text).unwrap();
    let items = vec![object(&machine_json("one", "t")), object(r#"{"kind":"Pod"}"#)];
    let snapshot = Snapshot::from_objects([Object::List(items), object(&machine_json("two", "t"))]);
    assert_eq!(machines(&snapshot, "t"), ["one", "two"]);
    assert_eq!(snapshot.loaded().skipped, [("Pod".into(), 1)].into());
    assert_eq!(snapshot.path(), None);
    assert_eq!(snapshot.reload().unwrap(), snapshot.loaded());
    assert!(Snapshot::from_yaml("stdin", "}").unwrap_err().to_string().starts_with("stdin:1:1:"));
}

#[test]
fn the_states_of_the_corpus_are_read() {
    let mut read = 0;
    for entry in fs::read_dir("tests/data/states").unwrap() {
        let path = entry.unwrap().path();
        let loaded = Snapshot::load(&path).unwrap_or_else(|error| panic!("{error}")).loaded();
        assert!(loaded.objects[&Kind::Template] > 0, "{}", path.display());
        assert_eq!(loaded.skipped.get("(no kind)"), None, "{}", path.display());
        read += 1;
    }
    assert!(read >= 5, "{read}");
}

#[test]
fn recorded_dumps_are_read() {
    let captures = Path::new("../shared/captures");
    if !captures.is_dir() {
        return;
    }
    let mut read = 0;
    for directory in [captures.join("v1.8.1"), captures.join("v1.14.0-rc.0")] {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let loaded = Snapshot::load(&path).unwrap_or_else(|error| panic!("{error}")).loaded();
            assert!(loaded.total() > 0, "{}", path.display());
            read += 1;
        }
    }
    assert!(read > 5, "{read}");
    let stuck = Snapshot::load(&captures.join("v1.8.1/02-stuck-template-and-data.yaml")).unwrap();
    let usage = usage_in(&stuck, "m3", "workers");
    assert_eq!((usage.machines.len(), usage.data.len(), usage.claims.len()), (3, 3, 0));
}
