//! Sources, committed renderings and binary say the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::PathBuf,
    process::Command,
};

use serde_json::Value;

use crate::documents::{NAMES, id, manifests, parse, text};

#[test]
fn the_committed_renderings_are_what_kustomize_makes_of_the_sources() {
    let kubectl = kubectl();
    for name in NAMES {
        let folder = match name {
            "base" => manifests().join("base"),
            overlay => manifests().join("overlays").join(overlay),
        };
        let output = Command::new(&kubectl).arg("kustomize").arg(&folder).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} kustomize {name}: {errors}", kubectl.display());
        let made = by_id(&String::from_utf8(output.stdout).unwrap());
        let committed = by_id(&text(name));
        let stale = "run manifests/render.sh and commit manifests/rendered";
        let ids =
            |objects: &BTreeMap<String, Value>| -> Vec<_> { objects.keys().cloned().collect() };
        assert_eq!(ids(&made), ids(&committed), "{name}: {stale}");
        for (id, object) in &made {
            assert_eq!(object, &committed[id], "{name}, {id}: {stale}");
        }
    }
}

/// By kind, namespace and name, each of which must be there once.
fn by_id(text: &str) -> BTreeMap<String, Value> {
    let mut objects = BTreeMap::new();
    for object in parse(text) {
        let twice = objects.insert(id(&object), object);
        assert!(twice.is_none(), "{twice:?} is there twice");
    }
    objects
}

#[test]
fn the_binary_prints_each_rendering() {
    for name in NAMES {
        assert_eq!(print(&["--overlay", name]), text(name), "{name}");
    }
    assert_eq!(print(&[]), text("base"));
}

fn print(args: &[&str]) -> String {
    let mut guard = Command::new(env!("CARGO_BIN_EXE_metal3-guard"));
    let output = guard.arg("manifests").args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_overlay_is_rendered() {
    let names = |folder: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(manifests().join(folder)).unwrap();
        entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
    };
    let mut sources = names("overlays");
    sources.insert("base".to_owned());
    assert_eq!(sources, NAMES.map(str::to_owned).into());
    assert_eq!(names("rendered"), NAMES.map(|name| format!("{name}.yaml")).into());
}

/// kubectl from `$KUBECTL`, `$KUBEBUILDER_ASSETS`, PATH, or the control plane built for tests.
fn kubectl() -> PathBuf {
    let given = env::var_os("KUBECTL").map(PathBuf::from);
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let cache = env::var_os("XDG_CACHE_HOME")
        .filter(|it| !it.is_empty())
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let built = cache.and_then(|it| fs::read_dir(it.join("metal3-guard/controlplane")).ok());
    let built = built.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let folders = assets.into_iter().chain(env::split_paths(&path)).chain(built);
    given
        .into_iter()
        .chain(folders.map(|folder| folder.join("kubectl")))
        .find(|candidate| candidate.is_file())
        .expect(
            "no kubectl to render the manifests with: install one, set KUBECTL to it, or build the \
             control plane of the tests (tests/controlplane/build.sh)",
        )
}
