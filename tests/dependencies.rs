//! What is linked in: one TLS stack on ring, one JSON stack, and nothing that needs a C library of
//! the system. A second one usually comes in through a default feature of a new dependency.

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        ffi::OsString,
        process::Command,
    };

    use serde_json::Value;

    const BANNED: [(&str, &str); 15] = [
        ("aws-lc-rs", "rustls uses ring here"),
        ("aws-lc-sys", "rustls uses ring here"),
        ("aws-lc-fips-sys", "rustls uses ring here"),
        ("openssl", "TLS is rustls"),
        ("openssl-sys", "TLS is rustls"),
        ("native-tls", "TLS is rustls"),
        ("boring", "TLS is rustls"),
        ("s2n-tls", "TLS is rustls"),
        ("simd-json", "JSON is serde_json"),
        ("sonic-rs", "JSON is serde_json"),
        ("json", "JSON is serde_json"),
        ("serde_yaml", "unmaintained; YAML is serde-saphyr"),
        ("serde_yml", "unsound and unmaintained; YAML is serde-saphyr"),
        ("serde_norway", "YAML is serde-saphyr"),
        ("yaml-rust", "unmaintained; YAML is serde-saphyr"),
    ];

    /// Two versions of these would be two stacks.
    const ONCE: [&str; 9] = [
        "rustls",
        "ring",
        "tokio-rustls",
        "rustls-pki-types",
        "serde",
        "serde_json",
        "hyper",
        "tokio",
        "jiff",
    ];

    fn cargo(arguments: &[&str]) -> String {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from(env!("CARGO")));
        let output = Command::new(cargo)
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo {}: {errors}", arguments.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    struct Package {
        name: String,
        version: String,
        /// The way here from our own crate.
        way: Vec<String>,
    }

    /// Every package that ends up in the binary on this machine's platform, by package id.
    fn linked(metadata: &Value) -> BTreeMap<String, Package> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let names: BTreeMap<_, _> = metadata["packages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (text(&it["id"]), (text(&it["name"]), text(&it["version"]))))
            .collect();
        let nodes: BTreeMap<_, _> = metadata["resolve"]["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| (text(&node["id"]), node))
            .collect();
        let mut found = BTreeMap::new();
        let mut open = vec![(text(&metadata["resolve"]["root"]), Vec::new())];
        while let Some((id, way)) = open.pop() {
            if found.contains_key(&id) {
                continue;
            }
            let (name, version) = names[&id].clone();
            let here: Vec<_> = way.iter().cloned().chain([format!("{name} {version}")]).collect();
            for dependency in nodes[&id]["deps"].as_array().unwrap() {
                let kinds = dependency["dep_kinds"].as_array().unwrap();
                if kinds.iter().any(|kind| kind["kind"].is_null()) {
                    open.push((text(&dependency["pkg"]), here.clone()));
                }
            }
            found.insert(id, Package { name, version, way: here });
        }
        found
    }

    /// What is wrong, with the crate that pulls it in.
    fn findings(packages: &BTreeMap<String, Package>) -> Vec<String> {
        let mut findings = Vec::new();
        for Package { name, way, .. } in packages.values() {
            if let Some((_, reason)) = BANNED.iter().find(|(banned, _)| banned == name) {
                findings.push(format!("{name} ({reason}), through {}", way.join(" -> ")));
            }
        }
        for once in ONCE {
            let versions: BTreeSet<_> =
                packages.values().filter(|it| it.name == once).map(|it| &it.version).collect();
            if versions.len() > 1 {
                let ways: Vec<_> = packages
                    .values()
                    .filter(|it| it.name == once)
                    .map(|it| it.way.join(" -> "))
                    .collect();
                findings.push(format!(
                    "{once} in {} versions: {}",
                    versions.len(),
                    ways.join("; ")
                ));
            }
        }
        findings
    }

    #[test]
    fn one_tls_stack_one_json_stack_no_c_libraries() {
        let version = cargo(&["-vV"]);
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
        let metadata = cargo(&[
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--offline",
            "--filter-platform",
            host,
        ]);
        let packages = linked(&serde_json::from_str(&metadata).unwrap());
        for expected in ["rustls", "ring", "serde_json"] {
            assert!(packages.values().any(|it| it.name == expected), "{expected} is linked");
        }
        let findings = findings(&packages);
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }

    #[test]
    fn a_banned_or_doubled_crate_is_found_and_its_way_is_said() {
        let dependency = |id: &str, kind: Option<&str>| serde_json::json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let package = |id: &str, name: &str, version: &str| serde_json::json!({"id": id, "name": name, "version": version});
        let metadata = serde_json::json!({
            "packages": [package("us", "us", "0.1.0"), package("a", "a", "1.0.0"),
                package("tls", "openssl-sys", "0.9.0"), package("dev", "serde_yaml", "0.9.0"),
                package("r1", "rustls", "0.22.0"), package("r2", "rustls", "0.23.0")],
            "resolve": {"root": "us", "nodes": [
                {"id": "us", "deps": [dependency("a", None), dependency("dev", Some("dev")),
                    dependency("r2", None)]},
                {"id": "a", "deps": [dependency("tls", None), dependency("r1", None)]},
                {"id": "tls", "deps": []}, {"id": "dev", "deps": []},
                {"id": "r1", "deps": []}, {"id": "r2", "deps": []},
            ]},
        });
        let findings = findings(&linked(&metadata));
        let [banned, doubled] = findings.as_slice() else { panic!("{findings:?}") };
        assert!(banned.contains("us 0.1.0 -> a 1.0.0 -> openssl-sys 0.9.0"), "{banned}");
        assert!(doubled.starts_with("rustls in 2 versions"), "{doubled}");
        assert!(doubled.contains("a 1.0.0 -> rustls 0.22.0"), "{doubled}");
    }
}
