//! How long a state of 100 000 machines takes to load, and how much memory it then holds.
//!
//! `cargo bench --bench load` prints one line per layout; nothing is asserted. Each layout is loaded
//! by a process of its own, so that none profits from memory that another one has freed.
#![expect(clippy::print_stdout, reason = "a benchmark prints its numbers")]

use std::{
    env, fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::Command,
};

use metal3_guard::inventory::snapshot::Snapshot;
use tokio::time::Instant;

const MACHINES: usize = 100_000;
const TEMPLATES: usize = 1_000;
const NAMESPACES: usize = 50;
/// One machine in so many also has its claim and its data.
const FULL: usize = 1_000;
const GROUP: &str = "infrastructure.cluster.x-k8s.io";

fn main() -> io::Result<()> {
    if let Some(path) = env::args().skip_while(|it| it != "--load").nth(1) {
        return load(Path::new(&path));
    }
    if !env::args().any(|it| it == "--bench") {
        println!("100 000 machines take a while: run it with `cargo bench --bench load`");
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    for layout in ["list.yaml", "list.json", "files.yaml"] {
        let path = directory.path().join(layout);
        let bytes = if layout == "files.yaml" { files(&path)? } else { list(&path)? };
        print!("{layout:<10} {:>5} MB  ", bytes / 1_000_000);
        io::stdout().flush()?;
        let status = Command::new(env::current_exe()?).arg("--load").arg(&path).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("loading {layout}: {status}")));
        }
        // 100 000 files are room that the next layout needs.
        if path.is_dir() {
            fs::remove_dir_all(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn load(path: &Path) -> io::Result<()> {
    let before = memory("VmRSS")?;
    let start = Instant::now();
    let snapshot = Snapshot::load(path).map_err(io::Error::other)?;
    let seconds = start.elapsed().as_secs_f64();
    let held = memory("VmRSS")?.saturating_sub(before);
    let start = Instant::now();
    let loaded = snapshot.reload().map_err(io::Error::other)?;
    let again = start.elapsed().as_secs_f64();
    let objects = loaded.total();
    #[expect(clippy::cast_precision_loss, reason = "an approximate rate")]
    let rate = objects as f64 / seconds;
    println!(
        "{objects} objects in {seconds:.2} s ({rate:.0}/s), {} bytes resident per machine; reload \
         {again:.2} s; peak {} MB",
        held * 1024 / MACHINES,
        memory("VmHWM")? / 1024,
    );
    Ok(())
}

/// A field of this process's status, in KiB.
fn memory(field: &str) -> io::Result<usize> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|it| it.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("no {field} in /proc/self/status")))
}

/// One file per object, sorted into directories like a must-gather; returns the bytes written.
fn files(root: &Path) -> io::Result<usize> {
    let mut bytes = 0;
    for object in objects() {
        let directory: PathBuf =
            [root, "namespaces".as_ref(), object.namespace.as_ref(), object.kind.as_ref()]
                .iter()
                .collect();
        fs::create_dir_all(&directory)?;
        let text = object.yaml();
        bytes += text.len();
        fs::write(directory.join(format!("{}.yaml", object.name)), text)?;
    }
    Ok(bytes)
}

/// One `kind: List`, as YAML or JSON by the file's ending; returns the bytes written.
fn list(path: &Path) -> io::Result<usize> {
    let json = path.extension().is_some_and(|it| it == "json");
    let mut file = BufWriter::new(fs::File::create(path)?);
    file.write_all(if json {
        b"{\"apiVersion\":\"v1\",\"items\":["
    } else {
        b"apiVersion: v1\nitems:\n"
    })?;
    for (at, object) in objects().enumerate() {
        let text = object.yaml();
        if json {
            let value: serde_json::Value =
                serde_saphyr::from_str(&text).map_err(io::Error::other)?;
            write!(file, "{}{value:#}", if at == 0 { "" } else { ",\n" })?;
        } else {
            for (at, line) in text.lines().enumerate() {
                writeln!(file, "{}{line}", if at == 0 { "- " } else { "  " })?;
            }
        }
    }
    file.write_all(if json { b"],\"kind\":\"List\"}\n" } else { b"kind: List\n" })?;
    file.flush()?;
    Ok(usize::try_from(fs::metadata(path)?.len()).unwrap_or(usize::MAX))
}

/// An object to write.
struct Object {
    kind: &'static str,
    name: String,
    namespace: String,
    number: usize,
    finalizers: &'static [&'static str],
    rest: String,
}

impl Object {
    /// As `kubectl get -o yaml` shows it.
    fn yaml(&self) -> String {
        let Self { kind, name, namespace, number, finalizers, rest } = self;
        let finalizers: Vec<_> =
            finalizers.iter().map(|it| format!("  - {it}.{GROUP}\n")).collect();
        let finalizers = finalizers.concat();
        format!(
            "apiVersion: {GROUP}/v1beta1\nkind: {kind}\nmetadata:\n  annotations:\n    \
             metal3.io/BareMetalHost: {namespace}/host-{number}\n  creationTimestamp: \
             \"2026-12-01T05:01:30Z\"\n  finalizers:\n{finalizers}  generation: 2\n  labels:\n    \
             cluster.x-k8s.io/cluster-name: cluster-{}\n    cluster.x-k8s.io/set-name: workers\n  \
             name: {name}\n  namespace: {namespace}\n  ownerReferences:\n  - apiVersion: \
             cluster.x-k8s.io/v1beta1\n    controller: true\n    kind: Machine\n    name: {name}\n    \
             uid: 0c4cd83f-30a7-4be1-9e5f-{number:012x}\n  resourceVersion: \"{number}\"\n  uid: \
             f4c20a9c-d7ef-487e-a9f2-{number:012x}\n{rest}",
            number % TEMPLATES
        )
    }
}

fn objects() -> impl Iterator<Item = Object> {
    let place =
        |at: usize| (format!("ns-{:02}", at % NAMESPACES), format!("workers-{}", at % TEMPLATES));
    let templates = (0..TEMPLATES).map(move |at| {
        let (namespace, name) = place(at);
        let rest = format!(
            "spec:\n  clusterName: cluster-{at}\nstatus:\n  indexes:\n    {name}-{at}: 0\n"
        );
        let finalizers = &["metal3datatemplate"];
        Object { kind: "Metal3DataTemplate", name, namespace, number: at, finalizers, rest }
    });
    let machines = (0..MACHINES).map(move |at| {
        let (namespace, template) = place(at);
        let rest = format!(
            "spec:\n  automatedCleaningMode: metadata\n  dataTemplate:\n    name: {template}\n    \
             namespace: {namespace}\n  image:\n    checksum: \
             http://192.0.2.1/images/node.qcow2.sha256sum\n    checksumType: sha256\n    format: \
             qcow2\n    url: http://192.0.2.1/images/node.qcow2\n  providerID: \
             metal3://{namespace}/host-{at}/{template}-{at}\nstatus:\n  conditions:\n  - \
             lastTransitionTime: \"2026-12-01T05:01:30Z\"\n    status: \"True\"\n    type: Ready\n  \
             - lastTransitionTime: \"2026-12-01T05:01:30Z\"\n    status: \"True\"\n    type: \
             AssociateBMH\n  ready: true\n"
        );
        let name = format!("{template}-{at}");
        Object { kind: "Metal3Machine", name, namespace, number: at, finalizers: &["metal3machine"], rest }
    });
    let used = (0..MACHINES).step_by(FULL).flat_map(move |at| {
        let (namespace, template) = place(at);
        let name = format!("{template}-{at}");
        let reference = format!("  template:\n    name: {template}\n    namespace: {namespace}\n");
        let claim = Object {
            kind: "Metal3DataClaim",
            name: name.clone(),
            namespace: namespace.clone(),
            number: MACHINES + at,
            finalizers: &["metal3machine", "metal3dataclaim"],
            rest: format!("spec:\n{reference}"),
        };
        let data = Object {
            kind: "Metal3Data",
            name: format!("{name}-data"),
            namespace,
            number: 2 * MACHINES + at,
            finalizers: &["metal3dataclaim", "metal3data"],
            rest: format!("spec:\n  claim:\n    name: {name}\n  index: {}\n{reference}", at / FULL),
        };
        [claim, data]
    });
    templates.chain(machines).chain(used)
}
