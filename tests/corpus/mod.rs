//! Reads the test corpus in `tests/data`; see the README there.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

pub(crate) mod crds;

/// One recorded or made review with the answers that are expected for it.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) review: Value,
    pub(crate) expect: Value,
}

impl Case {
    /// The expectation for each path that the review is asked on.
    pub(crate) fn checks(&self) -> impl Iterator<Item = &Value> {
        std::iter::once(&self.expect)
            .chain(self.expect.get("more").and_then(Value::as_array).into_iter().flatten())
    }

    /// The objects inside the review with the key they stand under.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        ["object", "oldObject"].into_iter().filter_map(|key| {
            Some((key, self.review.pointer(&format!("/request/{key}")).filter(|o| !o.is_null())?))
        })
    }

    /// Recorded from a real API server, and not to be changed.
    pub(crate) fn is_recorded(&self) -> bool {
        self.name.starts_with("recorded-")
    }
}

/// The folder with all data.
pub(crate) fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// All cases in the order of their names. Every folder must hold exactly the two files.
pub(crate) fn cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for folder in entries(&data().join("reviews"))? {
        let files: Vec<_> = entries(&folder)?.iter().map(|file| name_of(file)).collect();
        if files != ["expect.json", "review.json"] {
            bail!("{} must hold expect.json and review.json, not {files:?}", folder.display());
        }
        cases.push(Case {
            name: name_of(&folder),
            review: json(&folder.join("review.json"))?,
            expect: json(&folder.join("expect.json"))?,
        });
    }
    Ok(cases)
}

/// The names of all states, each with its objects and the files they are in.
pub(crate) fn states() -> Result<BTreeMap<String, Vec<(PathBuf, Value)>>> {
    let mut states = BTreeMap::new();
    for folder in entries(&data().join("states"))? {
        let mut objects = Vec::new();
        for file in files_below(&folder)? {
            objects.extend(yaml_objects(&file)?.into_iter().map(|object| (file.clone(), object)));
        }
        states.insert(name_of(&folder), objects);
    }
    Ok(states)
}

/// All objects of a YAML file: several documents, and the items of lists.
pub(crate) fn yaml_objects(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).with_context(|| file.display().to_string())?;
    let mut objects = Vec::new();
    for mut document in documents {
        match document.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => objects.extend(items),
            Some(other) => bail!("{}: items is {other}", file.display()),
            None => objects.push(document),
        }
    }
    Ok(objects)
}

/// A JSON file.
pub(crate) fn json(file: &Path) -> Result<Value> {
    let bytes = fs::read(file).with_context(|| file.display().to_string())?;
    serde_json::from_slice(&bytes).with_context(|| file.display().to_string())
}

/// The entries of a folder, sorted.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The last part of a path.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in entries(folder)? {
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}
