//! What a large cluster costs the guard: time to sync, memory, latency of verdicts, watch lag.
//!
//! `cargo bench --bench cluster` fills a real API server with 10 000 machines, or with as many as
//! `METAL3_GUARD_BENCH_MACHINES` says, and prints; nothing is asserted about times. The inventory
//! runs in a process of its own, so that its memory is not mixed with that of the filling.
#![expect(clippy::print_stdout, reason = "a benchmark prints its numbers")]

use std::{env, ffi::OsString, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::stream::{self, TryStreamExt as _};
use http::Request;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use metal3_guard::{
    core::{deletion, objects::METAL3_GROUP, verdict::Answer},
    inventory::{Inventory as _, Need, cluster::Cluster},
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};
use tokio::{process::Command, runtime, time::Instant};

#[path = "../tests/support/mod.rs"]
mod support;

use support::{ControlPlane, User};

const MACHINES: usize = 10_000;
const TEMPLATES: usize = 100;
/// Half of the machines are in this namespace, the others are spread over the small ones.
const BIG: &str = "big";
const SMALL: usize = 20;
/// One machine in so many also has its claim and its data.
const FULL: usize = 10;
/// In each namespace a template that nothing names, and one that machines do.
const FREE: &str = "free";
const HELD: &str = "workers-0";
/// Objects that are created at the same time.
const AT_ONCE: usize = 32;

fn main() -> Result<()> {
    let args: Vec<OsString> = env::args_os().collect();
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    if let [_, flag, guard, writer, machines] = args.as_slice()
        && flag == "--measure"
    {
        let machines = machines.to_string_lossy().parse()?;
        return runtime.block_on(measure(guard.as_ref(), writer.as_ref(), machines));
    }
    if !args.iter().any(|it| it == "--bench") {
        println!("a large cluster takes minutes: run it with `cargo bench --bench cluster`");
        return Ok(());
    }
    let machines = match env::var_os("METAL3_GUARD_BENCH_MACHINES") {
        Some(text) => {
            text.to_string_lossy().parse().context("METAL3_GUARD_BENCH_MACHINES is no number")?
        }
        None => MACHINES,
    };
    // Fewer would leave a namespace without a machine.
    ensure!(machines >= 2 * TEMPLATES, "at least {} machines", 2 * TEMPLATES);
    runtime.block_on(fill_and_measure(machines))
}

async fn fill_and_measure(machines: usize) -> Result<()> {
    let plane = ControlPlane::start().await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in ["v1beta1.yaml", "others.yaml"] {
        plane.install_crds(&root.join("tests/data/crds").join(file)).await;
    }
    let account = root.join("manifests/base/account");
    plane.kubectl(User::Admin, &["apply", "-k", &account.to_string_lossy()]).await.ok();
    plane.bind(User::Guard, "metal3-guard").await;

    let client = plane.client(User::Admin).await;
    let start = Instant::now();
    create(&client, namespaces()).await?;
    let objects: Vec<_> = objects(machines).collect();
    let total = objects.len();
    create(&client, objects).await?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{total} objects, {machines} of them machines, created in {seconds:.1} s");

    let status = Command::new(env::current_exe()?)
        .arg("--measure")
        .args([plane.kubeconfig(User::Guard), plane.kubeconfig(User::Admin)])
        .arg(machines.to_string())
        .kill_on_drop(true)
        .status();
    let status = tokio::time::timeout(Duration::from_mins(10), status).await??;
    ensure!(status.success(), "measuring: {status}");
    Ok(())
}

/// Everything that is measured, under the guard's own account.
async fn measure(guard: &Path, writer: &Path, machines: usize) -> Result<()> {
    let (guard, writer) = (client(guard).await?, client(writer).await?);
    let before = resident()?;
    let start = Instant::now();
    let cluster = Cluster::watched(guard);
    tokio::time::timeout(Duration::from_mins(5), cluster.health().wait_synced()).await?;
    let seconds = start.elapsed().as_secs_f64();
    let held = resident()?.saturating_sub(before);
    println!(
        "synced in {seconds:.2} s; resident memory grew by {} KiB, {} bytes per machine",
        held,
        held * 1024 / machines
    );
    for (what, namespace, template, allowed, rounds) in [
        ("held, confirmed by a GET", BIG, HELD, false, 500),
        ("free, confirmed by lists of a small namespace", "small-0", FREE, true, 200),
        ("free, confirmed by lists of the big namespace", BIG, FREE, true, 50),
    ] {
        let mut times = Vec::new();
        for _ in 0..rounds {
            let start = Instant::now();
            let is_allowed = verdict(&cluster, namespace, template).await?;
            times.push(start.elapsed());
            ensure!(is_allowed == allowed, "wrong verdict for {namespace}/{template}");
        }
        print(&format!("verdict: {what}"), times);
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(cluster.health().clone()));
    let mut lags = Vec::new();
    for number in 0..50 {
        lags.push(lag(&writer, &registry, number).await?);
    }
    print("watch: from the start of a create to its event", lags);
    Ok(())
}

/// Whether a template may be deleted; what could not be verified is an error.
async fn verdict(cluster: &Cluster, namespace: &str, template: &str) -> Result<bool> {
    let question = deletion::Question {
        namespace: namespace.into(),
        name: template.into(),
        uid: "".into(),
        finalized: true,
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    let answer = cluster.usage(Need::Deletion(&question), deadline).await;
    if let Answer::Unverified(unverified) = answer {
        bail!("{}", unverified.why);
    }
    Ok(deletion::judge(&question, &answer).denial().is_none())
}

/// How long after the start of a create the watch of machines heard something.
async fn lag(writer: &Client, registry: &Registry, number: usize) -> Result<Duration> {
    let machine = machine("small-0", &format!("late-{number}"), HELD, number);
    let start = Instant::now();
    create(writer, [machine]).await?;
    let patience = start + Duration::from_mins(1);
    while Instant::now() < patience {
        // The metric is the age of what was heard, so it does not matter when it is read.
        let mut text = String::new();
        encode(&mut text, registry)?;
        let age = text.lines().find_map(|line| {
            line.strip_prefix("watch_age_seconds{kind=\"Metal3Machine\"} ")?.parse::<f64>().ok()
        });
        let heard = start.elapsed().as_secs_f64() - age.context("no age of the watch")?;
        if heard > 0.0 {
            return Ok(Duration::from_secs_f64(heard));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    bail!("the watch of machines heard nothing of a new one")
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| {
        let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(place).copied().unwrap_or_default().as_secs_f64() * 1000.0
    };
    println!("{what}: p50 {:.2} ms, p99 {:.2} ms ({} times)", at(50), at(99), times.len());
}

async fn client(kubeconfig: &Path) -> Result<Client> {
    // Another part may have been first; whoever was, it is ring.
    rustls::crypto::ring::default_provider().install_default().ok();
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Resident memory of this process in KiB.
fn resident() -> Result<usize> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|it| it.split_whitespace().next()?.parse().ok());
    number.context("no VmRSS in /proc/self/status")
}

/// An object and the URL to create it at.
type Creation = (String, Value);

async fn create(client: &Client, objects: impl IntoIterator<Item = Creation>) -> Result<()> {
    stream::iter(objects.into_iter().map(Ok))
        .try_for_each_concurrent(AT_ONCE, async |(url, object): Creation| {
            let request = Request::post(&url).header("Content-Type", "application/json");
            let request = request.body(serde_json::to_vec(&object)?)?;
            client.request::<Value>(request).await.with_context(|| url)?;
            anyhow::Ok(())
        })
        .await
}

fn namespaces() -> impl Iterator<Item = Creation> {
    let names = (0..SMALL).map(|at| format!("small-{at}")).chain([BIG.to_owned()]);
    names.map(|name| {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        ("/api/v1/namespaces".to_owned(), object)
    })
}

/// Templates first, then machines, some with claim and data.
fn objects(machines: usize) -> impl Iterator<Item = Creation> {
    // In each small namespace one used and one free, in the big one all others.
    let in_big = TEMPLATES - 2 * SMALL;
    let small =
        (0..SMALL).flat_map(|at| [HELD, FREE].map(|name| (format!("small-{at}"), name.to_owned())));
    let big = (0..in_big - 1).map(|at| (BIG.to_owned(), format!("workers-{at}")));
    let templates = small.chain(big).chain([(BIG.to_owned(), FREE.to_owned())]);
    let templates = templates.map(|(namespace, name)| {
        let finalizers = ["metal3datatemplate"];
        let spec = json!({"clusterName": "prod"});
        object("Metal3DataTemplate", &namespace, &name, &finalizers, &spec)
    });
    let used = (0..machines).flat_map(move |at| {
        let (namespace, template) = if at % 2 == 0 {
            (BIG.to_owned(), format!("workers-{}", at / 2 % (in_big - 1)))
        } else {
            (format!("small-{}", at / 2 % SMALL), HELD.to_owned())
        };
        let name = format!("{template}-{at}");
        let mut objects = vec![machine(&namespace, &name, &template, at)];
        if at / 2 % FULL == 0 {
            let spec = json!({"template": {"name": template}});
            let finalizers = ["metal3machine", "metal3dataclaim"];
            objects.push(object("Metal3DataClaim", &namespace, &name, &finalizers, &spec));
            let spec = json!({
                "template": {"name": template}, "claim": {"name": name}, "index": at,
            });
            let finalizers = ["metal3dataclaim", "metal3data"];
            objects.push(object("Metal3Data", &namespace, &name, &finalizers, &spec));
        }
        objects
    });
    templates.chain(used)
}

fn machine(namespace: &str, name: &str, template: &str, number: usize) -> Creation {
    let spec = json!({
        "dataTemplate": {"name": template},
        "image": {
            "url": "http://192.0.2.1/images/node.qcow2",
            "checksum": "http://192.0.2.1/images/node.qcow2.sha256sum",
            "checksumType": "sha256", "format": "qcow2",
        },
        "providerID": format!("metal3://{namespace}/host-{number}/{name}"),
    });
    object("Metal3Machine", namespace, name, &["metal3machine"], &spec)
}

fn object(kind: &str, namespace: &str, name: &str, finalizers: &[&str], spec: &Value) -> Creation {
    let finalizers: Vec<_> = finalizers.iter().map(|it| format!("{it}.{METAL3_GROUP}")).collect();
    let object = json!({
        "apiVersion": format!("{METAL3_GROUP}/v1beta1"),
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "finalizers": finalizers,
            "labels": {
                "cluster.x-k8s.io/cluster-name": "prod", "cluster.x-k8s.io/set-name": "workers",
            },
            "annotations": {"metal3.io/BareMetalHost": format!("{namespace}/{name}")},
        },
        "spec": spec,
    });
    let resource = format!("{}s", kind.to_lowercase());
    (format!("/apis/{METAL3_GROUP}/v1beta1/namespaces/{namespace}/{resource}"), object)
}
