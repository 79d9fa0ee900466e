//! The controller at work on states that nobody else would free: CAPM3 is not there, so every step
//! that follows a wake-up must be taken in the end (rule 4.5). Two controllers run side by side in
//! a control plane of their own, as two replicas do; without them each of these states stays as it
//! is for ever.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{
    CLAIM_FINALIZER, Crds, DATA_FINALIZER, Env, Space, TEMPLATE_FINALIZER, env, prepare, rules_off,
    wait_registered,
};
use crate::support::{ControlPlane, Guard, User, eventually};

mod crds;
mod hooks;
mod paste;
mod pauses;
mod people;
mod person;
mod replicas;
mod rights;
mod states;

const TEMPLATES: &str = "metal3datatemplates";
const DATAS: &str = "metal3datas";
const CLAIMS: &str = "metal3dataclaims";
const MACHINES: &str = "metal3machines";

/// Quick enough for a test, and in the order that the defaults have too.
pub(super) const QUICK: [&str; 8] =
    ["--controller", "act", "--wake-after", "1s", "--grace", "4s", "--release-after", "3s"];

/// The flags of a controller that acts, unless this run is without.
fn quick() -> [&'static str; 8] {
    let mut flags = QUICK;
    if rules_off::is_off(rules_off::CONTROLLER) {
        flags[1] = "off";
    }
    flags
}

/// A control plane with hooks, and two guards whose controllers act.
struct Acting {
    env: Env,
    second: Guard,
}

async fn acting() -> &'static Acting {
    static ACTING: OnceCell<Acting> = OnceCell::const_new();
    ACTING
        .get_or_init(async || {
            let plane: &'static ControlPlane = Box::leak(Box::new(ControlPlane::start().await));
            prepare(plane).await;
            let kubeconfig = plane.kubeconfig(User::Guard);
            let start = async || Guard::start(plane, &kubeconfig, "127.0.0.1:0", &quick()).await;
            let (guard, second) = tokio::join!(start(), start());
            let (guard, second) = (guard.unwrap(), second.unwrap());
            guard.register(plane).await.unwrap();
            plane.bind(User::Guard, "metal3-guard").await;
            plane.bind(User::Guard, "metal3-guard-repair").await;
            guard.ready().await;
            second.ready().await;
            let env = Env { plane, guard };
            wait_registered(&env.space("registered").await).await;
            Acting { env, second }
        })
        .await
}

impl Acting {
    /// What both controllers wrote in a namespace, in order of time: `step kind/name result`.
    ///
    /// When two take the last finalizers off the same version of an object, the API server removes
    /// it once and tells both that it was done (`deleteWithoutFinalizers` in its generic store).
    fn writes(&self, namespace: &str) -> Vec<String> {
        let guards = [&self.env.guard, &self.second].into_iter();
        let mut lines: Vec<_> = guards.flat_map(|guard| audit_lines(guard, namespace)).collect();
        lines.sort_by(|one, other| one.at.cmp(&other.at));
        let mut seen = BTreeSet::new();
        lines.retain(|it| {
            let removes = ["release ", "free-"].iter().any(|step| it.text.starts_with(step));
            let done = removes && it.text.ends_with(" done");
            !done || seen.insert((it.text.clone(), it.version.clone()))
        });
        lines.into_iter().map(|it| it.text).collect()
    }

    /// The same, without what came to nothing.
    fn done(&self, namespace: &str) -> Vec<String> {
        let mut lines = self.writes(namespace);
        lines.retain(|line| line.ends_with(" done"));
        lines
    }

    /// Waits for the audit line of a step: it follows what it is about.
    async fn did(&self, namespace: &str, step: &str) {
        let line = format!("{step} done");
        eventually(&line, async || self.done(namespace).contains(&line).then_some(())).await;
    }

    /// No step was done twice, and nothing went wrong but lost races.
    fn never_twice(&self, namespace: &str) {
        let writes = self.writes(namespace);
        let mut times: BTreeMap<&str, u32> = BTreeMap::new();
        for write in &writes {
            let result = write.rsplit(' ').next().unwrap_or_default();
            assert!(["done", "conflict", "gone"].contains(&result), "{write}\n{writes:#?}");
            if result == "done" && !write.starts_with("wake ") {
                *times.entry(write).or_default() += 1;
            }
        }
        assert!(times.values().all(|times| *times == 1), "{writes:#?}");
    }
}

/// The audit lines of one guard: time, and `step kind/name result`.
pub(super) fn writes(guard: &Guard, namespace: &str) -> Vec<(String, String)> {
    audit_lines(guard, namespace).into_iter().map(|it| (it.at, it.text)).collect()
}

/// What a guard says of one write.
struct AuditLine {
    at: String,
    /// `step kind/name result`.
    text: String,
    /// The uid and the resourceVersion that it was for.
    version: [String; 2],
}

fn audit_lines(guard: &Guard, namespace: &str) -> Vec<AuditLine> {
    let log = guard.log();
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let ours = log.iter().filter(|it| it["message"] == "write" && it["namespace"] == namespace);
    ours.map(|it| {
        for field in ["uid", "resource_version", "reason", "on_behalf_of"] {
            assert_ne!(text(it, field), "", "no {field}: {it}");
        }
        let [step, kind, name, result] =
            ["step", "kind", "name", "result"].map(|key| text(it, key));
        AuditLine {
            at: text(it, "timestamp"),
            text: format!("{step} {kind}/{name} {result}"),
            version: ["uid", "resource_version"].map(|key| text(it, key)),
        }
    })
    .collect()
}

/// A terminating template without claims, and what is terminating with it.
pub(super) async fn stuck(space: &Space, template: &str, data: &[Value]) {
    space.create(&space.template(template)).await.unwrap();
    for data in data {
        space.create(data).await.unwrap();
    }
    // A stale entry: the hook lets none in, so its claim must still be there.
    let mut claim = space.claim("w-9", template);
    claim["metadata"]["finalizers"] = json!([]);
    space.create(&claim).await.unwrap();
    let indexes = match Crds::of_binary() {
        Crds::V1beta1 => json!({"w-9": 9}),
        Crds::V1beta2 => json!([{"name": "w-9", "index": 9}]),
    };
    let status = json!({"status": {"indexes": indexes}});
    space.patch(TEMPLATES, template, "status", status).await.unwrap();
    space.delete("metal3dataclaims", "w-9").await.unwrap();
    space.gone("metal3dataclaims", "w-9").await;
    space.delete(TEMPLATES, template).await.unwrap();
    for data in data {
        let name = data["metadata"]["name"].as_str().unwrap();
        space.delete(DATAS, name).await.unwrap();
    }
}

#[tokio::test]
async fn what_nobody_frees_is_woken_then_repaired_then_released() {
    let acting = acting().await;
    let space = acting.env.space("abandoned").await;
    stuck(&space, "workers", &[space.data("workers", 0, "w-0")]).await;

    // The claim's finalizer goes; CAPM3's own on the Metal3Data, and with it the template, stay.
    eventually("the orphan to be freed from its claim", async || {
        let data = space.get(DATAS, "workers-0").await.unwrap();
        (data["metadata"]["finalizers"] == json!([DATA_FINALIZER])).then_some(())
    })
    .await;
    let template = space.get(TEMPLATES, "workers").await.unwrap();
    assert_eq!(template["metadata"]["finalizers"], json!([TEMPLATE_FINALIZER]));
    space.finish(DATAS, "workers-0").await;
    space.gone(TEMPLATES, "workers").await;

    acting.did(space.ns(), "release Metal3DataTemplate/workers").await;
    let done = acting.done(space.ns());
    let first = |step: &str| done.iter().position(|line| *line == format!("{step} done"));
    let order = [
        first("wake Metal3Data/workers-0"),
        first("free-orphan Metal3Data/workers-0"),
        first("wake Metal3DataTemplate/workers"),
        first("release Metal3DataTemplate/workers"),
    ];
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{order:?}: {done:#?}");
    assert!(first("prune Metal3DataTemplate/workers").is_some(), "{done:#?}");
    acting.never_twice(space.ns());
    let steps = acting.env.guard.metric("metal3_guard_repair_steps_total", "step=\"wake\"").await
        + acting.second.metric("metal3_guard_repair_steps_total", "step=\"wake\"").await;
    assert!(steps >= 2.0, "{steps}");

    let said = events(&space).await;
    for reason in ["Woken", "OrphanFreed", "IndexesPruned", "Released"] {
        assert!(said.contains_key(reason), "no Event {reason}: {said:#?}");
    }
    assert!(said["OrphanFreed"][0].contains("nobody is left to take the claim finalizer off"));
}

/// Steps that the plan may not take: foreign finalizers, live machines, a pause.
#[tokio::test]
async fn what_others_hold_is_reported_and_left() {
    let acting = acting().await;
    let space = acting.env.space("held-by-others").await;
    let mut foreign = space.template("foreign");
    foreign["metadata"]["finalizers"] = json!([TEMPLATE_FINALIZER, "backup.example.com/hold"]);
    space.create(&foreign).await.unwrap();
    space.delete(TEMPLATES, "foreign").await.unwrap();
    let mut paused = space.template("paused");
    paused["metadata"]["annotations"] = json!({"cluster.x-k8s.io/paused": ""});
    space.create(&paused).await.unwrap();
    space.delete(TEMPLATES, "paused").await.unwrap();

    eventually("CAPM3's own finalizer to be released", async || {
        let template = space.get(TEMPLATES, "foreign").await.unwrap();
        (template["metadata"]["finalizers"] == json!(["backup.example.com/hold"])).then_some(())
    })
    .await;
    let said = eventually("both waits to be told", async || {
        let said = events(&space).await;
        let waits = said.get("Waiting").cloned().unwrap_or_default();
        let told = |text: &str| waits.iter().any(|it| it.contains(text));
        (told("backup.example.com/hold") && told("Metal3DataTemplate/paused to be unpaused"))
            .then_some(waits)
    })
    .await;
    assert!(said.iter().all(|note| note.contains("the next look is at 20")), "{said:#?}");
    // Longer than the release would take.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let template = space.get(TEMPLATES, "paused").await.unwrap();
    assert_eq!(template["metadata"]["finalizers"], json!([TEMPLATE_FINALIZER]));
    let done = acting.done(space.ns());
    let about_paused = done.iter().filter(|line| line.contains("/paused "));
    assert!(about_paused.clone().all(|line| line.starts_with("wake ")), "{done:#?}");
    assert!(about_paused.count() > 0, "a wake-up is harmless: {done:#?}");
    acting.never_twice(space.ns());

    let unpause = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": null}}});
    space.patch(TEMPLATES, "paused", "", unpause).await.unwrap();
    space.gone(TEMPLATES, "paused").await;
    assert!(space.get(TEMPLATES, "foreign").await.is_some());
    space.finish(TEMPLATES, "foreign").await;
}

/// Metal3Data without a template are a person's decision.
#[tokio::test]
async fn lost_metal3data_are_reported_and_left() {
    let acting = acting().await;
    let space = acting.env.space("lost").await;
    space.create(&space.data("gone", 0, "w-0")).await.unwrap();
    space.delete(DATAS, "gone-0").await.unwrap();
    eventually("the loss to be told", async || {
        let said = events(&space).await;
        said.get("Waiting")?.iter().find(|it| it.contains("unstick --apply")).cloned()
    })
    .await;
    let data = space.get(DATAS, "gone-0").await.unwrap();
    assert_eq!(data["metadata"]["finalizers"], json!([CLAIM_FINALIZER, DATA_FINALIZER]));
    assert_eq!(acting.writes(space.ns()), [""; 0]);
    let stuck = acting.env.guard.metric("metal3_guard_stuck_objects", "Metal3Data\"").await;
    assert!(stuck >= 1.0, "{stuck}");
    space.finish(DATAS, "gone-0").await;
}

/// A guard that observes says the same and writes nothing but Events.
#[tokio::test]
async fn an_observing_controller_only_says_what_it_would_do() {
    let env = env().await;
    let mut args = QUICK.to_vec();
    args[1] = "observe";
    let kubeconfig = env.plane.kubeconfig(User::Guard);
    let observer = Guard::start(env.plane, &kubeconfig, "127.0.0.1:0", &args).await.unwrap();
    observer.ready().await;
    let space = env.space("observed").await;
    stuck(&space, "workers", &[]).await;
    let before = space.get(TEMPLATES, "workers").await.unwrap();

    // And never more than the first step: what follows it depends on what it does.
    eventually("the wake-up to be said", async || {
        let said = events(&space).await;
        said.get("WouldRepair")?.iter().find(|it| it.contains("has not looked again")).cloned()
    })
    .await;
    assert_eq!(space.get(TEMPLATES, "workers").await.unwrap(), before);
    assert_eq!(writes(&observer, space.ns()), []);
    assert!(observer.metric("metal3_guard_repair_steps_total", "observed").await >= 1.0);
    space.finish(TEMPLATES, "workers").await;
}

/// The messages of the Events in a namespace, by reason.
pub(super) async fn events(space: &Space) -> BTreeMap<String, Vec<String>> {
    let url = format!("/api/v1/namespaces/{}/events", space.ns());
    let list = space.send(http::Method::GET, &url, None).await.unwrap();
    let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for event in list["items"].as_array().unwrap() {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        said.entry(text("reason")).or_default().push(text("message"));
    }
    said
}

/// Waits until an Event says that something is waited for, in these words.
async fn told_to_wait(space: &Space, words: &str) -> String {
    eventually(&format!("an Event that waits for {words:?}"), async || {
        let said = events(space).await;
        said.get("Waiting")?.iter().find(|it| it.contains(words)).cloned()
    })
    .await
}

/// The finalizers of an object that is there.
async fn finalizers(space: &Space, resource: &str, name: &str) -> Value {
    space.get(resource, name).await.unwrap()["metadata"]["finalizers"].clone()
}

/// Leaves an object these finalizers, as the controllers would that took the others off.
async fn leave(space: &Space, resource: &str, name: &str, finalizers: &[&str]) {
    let left = json!({"metadata": {"finalizers": finalizers}});
    space.patch(resource, name, "", left).await.unwrap();
}

/// The annotation that marks an object as paused, or as moved away.
fn annotated(mut object: Value, annotation: &str) -> Value {
    object["metadata"]["annotations"] = json!({annotation: ""});
    object
}
