//! The archive of the image: what `image/oci.py` packs, what it refuses, and that it is the image of
//! the Dockerfile. What `make image` makes of the program itself, it checks in the same way.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::TempDir;

const VERSION: &str = "9.8.7";

/// Runs it, and gives back whether it went well, and what it said.
fn oci(args: &[&str]) -> (bool, String) {
    let script = root().join("image/oci.py");
    let output = Command::new("python3").arg(script).args(args).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Packs a program, and gives back the archive.
fn pack(folder: &TempDir, program: &[u8], name: &str) -> Result<PathBuf, String> {
    let (binary, archive) = (folder.path().join("program"), folder.path().join(name));
    fs::write(&binary, program).unwrap();
    let (archive_, binary) = (archive.to_str().unwrap(), binary.to_str().unwrap());
    let args = ["pack", archive_, "--name", "example.org/guard:1", "--version", VERSION];
    let (done, said) = oci(&[&args[..], &["--binary", binary, "--revision", "abc"]].concat());
    if done { Ok(archive) } else { Err(said) }
}

fn check(archive: &Path, more: &[&str]) -> (bool, String) {
    oci(&[&["check", archive.to_str().unwrap()], more].concat())
}

/// The smallest program for x86-64 Linux that prints its version, with its program headers.
fn program(kinds: &[u32]) -> Vec<u8> {
    let text = format!("metal3-guard {VERSION}\n");
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    let code = [
        &[0xb8, 1, 0, 0, 0, 0xbf, 1, 0, 0, 0][..], // mov eax, write; mov edi, stdout
        &[0x48, 0x8d, 0x35, 16, 0, 0, 0],          // lea rsi, [rip + 16]
        &[0xba],                                   // mov edx, length
        &length,
        &[0x0f, 0x05, 0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05], // syscall; exit(0)
        text.as_bytes(),
    ]
    .concat();
    let count = u16::try_from(kinds.len()).unwrap();
    let headers = 64 + 56 * u64::from(count);
    let base = 0x40_0000;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]); // an executable, for x86-64
    elf.extend([base + headers, 64, 0].iter().flat_map(|it: &u64| it.to_le_bytes()));
    elf.extend([0; 4]);
    elf.extend([64, 56, count, 0, 0, 0].iter().flat_map(|it: &u16| it.to_le_bytes()));
    let size = headers + code.len() as u64;
    for kind in kinds {
        elf.extend([*kind, 5].iter().flat_map(|it: &u32| it.to_le_bytes()));
        elf.extend([0, base, base, size, size, 4096].iter().flat_map(|it: &u64| it.to_le_bytes()));
    }
    elf.extend(code);
    elf
}

/// Kinds of program headers: what is loaded, and the name of a dynamic linker.
const LOAD: u32 = 1;
const INTERP: u32 = 3;

/// The JSON files of an archive by their names.
fn json_of(archive: &Path, name: &str) -> Value {
    let output = Command::new("tar").arg("-xOf").arg(archive).arg(name).output().unwrap();
    assert!(output.status.success(), "no {name} in {}", archive.display());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn blob(archive: &Path, entry: &Value) -> Value {
    let digest = entry["digest"].as_str().unwrap();
    json_of(archive, &format!("blobs/{}", digest.replace(':', "/")))
}

#[test]
fn an_archive_is_an_image_that_runs_where_there_is_nothing_else() {
    let folder = TempDir::new().unwrap();
    let archive = pack(&folder, &program(&[LOAD]), "a.tar").unwrap();
    let (good, said) = check(&archive, &[]);
    assert!(good, "{said}");
    let ran = said.contains(&format!("metal3-guard {VERSION}"));
    assert!(ran || said.contains("not run here"), "{said}");

    let index = json_of(&archive, "index.json");
    let entry = &index["manifests"][0];
    assert_eq!(entry["annotations"]["io.containerd.image.name"], "example.org/guard:1");
    let manifest = blob(&archive, entry);
    let config = blob(&archive, &manifest["config"]);
    assert_eq!(config["architecture"], "amd64");
    assert_eq!(config["config"]["Labels"]["org.opencontainers.image.revision"], "abc");
}

#[test]
fn the_same_program_makes_the_same_bytes() {
    let folder = TempDir::new().unwrap();
    let [one, other] = ["one.tar", "other.tar"].map(|name| pack(&folder, &program(&[LOAD]), name));
    assert_eq!(fs::read(one.unwrap()).unwrap(), fs::read(other.unwrap()).unwrap());
}

#[test]
fn a_program_that_needs_others_is_refused() {
    let folder = TempDir::new().unwrap();
    let said = pack(&folder, &program(&[LOAD, INTERP]), "a.tar").unwrap_err();
    assert!(said.contains("linked dynamically"), "{said}");
    let said = pack(&folder, b"#!/bin/sh\nexit 0\n# and more than a header is long\n", "a.tar");
    assert!(said.unwrap_err().contains("no ELF"));
    assert!(!folder.path().join("a.tar").exists());
}

#[test]
fn a_wrong_archive_is_refused() {
    let folder = TempDir::new().unwrap();
    let archive = pack(&folder, &program(&[LOAD]), "a.tar").unwrap();
    let whole = fs::read(&archive).unwrap();
    let with = |find: &str, put: &str| {
        assert_eq!(find.len(), put.len());
        let at = whole.windows(find.len()).position(|it| it == find.as_bytes()).unwrap();
        let mut changed = whole.clone();
        changed[at..at + put.len()].copy_from_slice(put.as_bytes());
        fs::write(&archive, changed).unwrap();
        let (good, said) = check(&archive, &[]);
        assert!(!good, "{said}");
        said
    };
    assert!(with("65532:65532", "65532:00000").contains("is not what its name says"));
    assert!(with("index.json", "other.json").contains("is no OCI archive"));
    fs::write(&archive, &whole).unwrap();
    let (good, said) = check(&archive, &["--limit", "1000"]);
    assert!(!good && said.contains("the limit is 1000"), "{said}");
    assert!(check(&archive, &[]).0);
}

/// Both ways of making it say the same about it.
#[test]
fn the_archive_is_what_the_dockerfile_makes() {
    let folder = TempDir::new().unwrap();
    let archive = pack(&folder, &program(&[LOAD]), "a.tar").unwrap();
    let manifest = blob(&archive, &json_of(&archive, "index.json")["manifests"][0]);
    let config = blob(&archive, &manifest["config"])["config"].clone();
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let (_, last) = dockerfile.rsplit_once("\nFROM ").unwrap();
    let of = |word: &str| {
        let found: Vec<_> = last.lines().filter_map(|it| it.strip_prefix(word)).collect();
        assert_eq!(found.len(), 1, "{word}");
        found[0].trim().to_owned()
    };
    assert_eq!(config["User"], of("USER "));
    assert_eq!(config["WorkingDir"], of("WORKDIR "));
    let entry: Value = serde_json::from_str(&of("ENTRYPOINT ")).unwrap();
    assert_eq!(config["Entrypoint"], entry);
    assert!(of("COPY --from=build ").ends_with(" /metal3-guard"));
    let ports: Vec<_> = of("EXPOSE ").split(' ').map(|port| json!(format!("{port}/tcp"))).collect();
    let exposed = config["ExposedPorts"].as_object().unwrap();
    assert_eq!(exposed.len(), ports.len());
    for (label, value) in config["Labels"].as_object().unwrap() {
        let value = value.as_str().unwrap();
        let value = match value {
            VERSION => "${VERSION}",
            "abc" => "${REVISION}",
            fixed => fixed,
        };
        assert!(last.contains(&format!("{label}=\"{value}\"")), "{label}={value}");
    }
    for port in ports {
        assert!(exposed.contains_key(port.as_str().unwrap()), "{port}");
    }
    // The account that the manifests run it as.
    let base = fs::read_to_string(root().join("manifests/rendered/base.yaml")).unwrap();
    let user = of("USER ");
    let (user, group) = user.split_once(':').unwrap();
    assert!(base.contains(&format!("runAsUser: {user}\n")), "{user}");
    assert!(base.contains(&format!("runAsGroup: {group}\n")), "{group}");
}
