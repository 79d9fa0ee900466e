//! Each stuck state, made by hand in a cluster where neither CAPM3 nor a controller acts: what
//! `diagnose` says of it, how `unstick --apply` heals it, or what a person has to do, and that a
//! second run finds nothing to do. Where CAPM3 itself has to act in between, the test does.

use serde_json::json;

use super::{
    CLAIMS, DATAS, MACHINES, TEMPLATES, annotated, finalizers, leave, paste::by_hand,
    people::ip_claim, stuck,
};
use crate::{
    e2e::{
        CLAIM_FINALIZER, DATA_FINALIZER, MACHINE_FINALIZER, Space, TEMPLATE_FINALIZER,
        commands::{Ran, run},
        env,
    },
    support::User,
};

const MARK: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";
const MOVE_BY_HAND: &str = "by hand, if no clusterctl move is running";
const SILENT: &str = "CAPM3 to react: it was woken and has done nothing; see whether it runs";

#[tokio::test]
async fn a_template_alone_with_stale_indexes() {
    let space = env().await.space("state-indexes").await;
    stuck(&space, "workers", &[]).await;
    let told = diagnosed(&space).await;
    says(
        &told,
        &[
            "STUCK  Metal3DataTemplate",
            "stale indexes: w-9=9",
            "wake Metal3DataTemplate/workers     nothing needs the template any more",
            "prune Metal3DataTemplate/workers",
            "release Metal3DataTemplate/workers",
            "plan: metal3-guard unstick workers",
        ],
    );
    let applied = to_the_end(&space).await;
    let workers = |step: &str| format!("{step} Metal3DataTemplate/workers");
    did(&applied, &[&workers("wake"), &workers("prune"), &workers("release")]);
    nothing_to_do(&space).await;
}

#[tokio::test]
async fn a_terminating_metal3data_whose_claim_is_gone() {
    let space = env().await.space("state-orphan").await;
    stuck(&space, "workers", &[space.data("workers", 0, "w-0")]).await;
    let told = diagnosed(&space).await;
    says(
        &told,
        &[
            "is draining, but its claim is gone: CAPM3 missed its event",
            "wake Metal3Data/workers-0",
            "free-orphan Metal3Data/workers-0",
        ],
    );
    capm3_finishes_what_was_freed(&space).await;
}

#[tokio::test]
async fn a_live_metal3data_that_nobody_deleted() {
    let space = env().await.space("state-live-orphan").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.data("workers", 0, "w-0")).await.unwrap();
    space.delete(TEMPLATES, "workers").await.unwrap();
    let told = diagnosed_after(&space, 1).await;
    says(
        &told,
        &["its claim is gone, and nobody deleted it", "delete-orphan Metal3Data/workers-0"],
    );
    let applied = capm3_finishes_what_was_freed(&space).await;
    says(&applied, &["delete-orphan Metal3Data/workers-0: done"]);
}

/// The first run goes as far as it may and says who is next; then CAPM3's data controller is back.
async fn capm3_finishes_what_was_freed(space: &Space) -> String {
    let applied = unstick(space, &[]).await.ended(1);
    did(&applied, &["wake Metal3Data/workers-0", "free-orphan Metal3Data/workers-0"]);
    says(
        &applied,
        &["(takes off metal3dataclaim.infr", &format!("waits for {SILENT}: Metal3Data/workers-0")],
    );
    assert_eq!(finalizers(space, DATAS, "workers-0").await, json!([DATA_FINALIZER]));
    says(&diagnosed(space).await, &[SILENT]);
    space.finish(DATAS, "workers-0").await;
    to_the_end(space).await;
    nothing_to_do(space).await;
    applied
}

/// With IP claims they are in `person.rs`.
#[tokio::test]
async fn metal3data_without_a_template_and_an_address_that_is_not_released() {
    let space = env().await.space("state-lost").await;
    for index in 0..2 {
        space.create(&space.data("workers", index, &format!("w-{index}"))).await.unwrap();
    }
    let held = space.create(&space.data("workers", 2, "w-2")).await.unwrap();
    let pool = ip_claim(&space, &held).await;
    leave(&space, "ipclaims", &pool, &[DATA_FINALIZER, "ipclaim.ipam.metal3.io"]).await;
    for index in 0..3 {
        space.delete(DATAS, &format!("workers-{index}")).await.unwrap();
    }
    let told = diagnosed(&space).await;
    says(
        &told,
        &[
            "the template does not exist; what names it waits for it",
            "free-orphan Metal3Data/workers-0  its claim and its template are gone",
        ],
    );
    let applied = unstick(&space, &[]).await.ended(1);
    did(&applied, &["free-orphan Metal3Data/workers-1", "free-lost Metal3Data/workers-1"]);
    let of_pool = |step: &str| format!("{step} IPClaim/{pool}");
    did(&applied, &[&of_pool("delete-ip-claim"), &of_pool("free-ip-claim")]);
    says(&applied, &[&format!("waits for IP claims to be released: IPClaim/{pool}")]);
    assert!(space.get(DATAS, "workers-2").await.is_some(), "its address is not free yet");
    says(&diagnosed_after(&space, 0).await, &["waits for IP claims to be released"]);
    // As the IP address manager does, when it is back.
    space.finish("ipclaims", &pool).await;
    to_the_end(&space).await;
    nothing_to_do(&space).await;
}

#[tokio::test]
async fn a_claim_that_capm3_has_not_let_go() {
    let space = env().await.space("state-claim").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.claim("w-0", "workers")).await.unwrap();
    leave(&space, CLAIMS, "w-0", &[CLAIM_FINALIZER]).await;
    space.delete(CLAIMS, "w-0").await.unwrap();
    space.delete(TEMPLATES, "workers").await.unwrap();
    let told = diagnosed(&space).await;
    says(
        &told,
        &[
            "waits for CAPM3 to finish Metal3DataClaim/w-0",
            "wake Metal3DataTemplate/workers  a claim is being deleted",
        ],
    );
    let applied = unstick(&space, &[]).await.ended(1);
    says(&applied, &["wake Metal3DataTemplate/workers: done", SILENT]);
    assert_eq!(finalizers(&space, CLAIMS, "w-0").await, json!([CLAIM_FINALIZER]));
    space.finish(CLAIMS, "w-0").await;
    to_the_end(&space).await;
    nothing_to_do(&space).await;
}

/// CAPM3 1.8.1 can release a template while a claim still needs it.
#[tokio::test]
async fn a_claim_whose_template_is_gone() {
    let space = env().await.space("state-lost-claim").await;
    space.create(&space.claim("w-0", "workers")).await.unwrap();
    space.delete(CLAIMS, "w-0").await.unwrap();
    let told = diagnosed(&space).await;
    let waits = "waits for the template to be made again, for what needs it: Metal3DataClaim/w-0";
    says(&told, &[waits, "by hand, if the Metal3Machine does not come back"]);
    let applied = unstick(&space, &[]).await.ended(1);
    says(&applied, &[waits, "claims whose Metal3Machine is gone"]);
    let both = json!([MACHINE_FINALIZER, CLAIM_FINALIZER]);
    assert_eq!(finalizers(&space, CLAIMS, "w-0").await, both);
    // Its machine is gone too; one finalizer after the other.
    by_hand(env().await.plane, &applied).await;
    by_hand(env().await.plane, &unstick(&space, &[]).await.ended(1)).await;
    nothing_to_do(&space).await;
}

#[tokio::test]
async fn a_paused_template() {
    let space = env().await.space("state-paused").await;
    let paused = annotated(space.template("workers"), "cluster.x-k8s.io/paused");
    space.create(&paused).await.unwrap();
    space.delete(TEMPLATES, "workers").await.unwrap();
    let waits = "waits for Metal3DataTemplate/workers to be unpaused";
    let told = diagnosed(&space).await;
    says(&told, &[waits, "by hand, once nothing needs the pause"]);
    says(&unstick(&space, &[]).await.ended(1), &["wake Metal3DataTemplate/workers: done", waits]);
    assert!(space.get(TEMPLATES, "workers").await.is_some());
    by_hand(env().await.plane, &told).await;
    to_the_end(&space).await;
    nothing_to_do(&space).await;
}

#[tokio::test]
async fn a_template_with_a_finalizer_of_others() {
    const HOLD: &str = "backup.example.com/hold";
    let space = env().await.space("state-foreign").await;
    let mut template = space.template("workers");
    template["metadata"]["finalizers"] = json!([HOLD, TEMPLATE_FINALIZER]);
    space.create(&template).await.unwrap();
    space.delete(TEMPLATES, "workers").await.unwrap();
    let waits = format!("waits for the owners of other finalizers to remove them: {HOLD}");
    says(&diagnosed(&space).await, &[&waits, "not CAPM3's: whoever put it there"]);
    let applied = unstick(&space, &[]).await.ended(1);
    says(&applied, &["release Metal3DataTemplate/workers (takes off metal3datatemplate", &waits]);
    assert_eq!(finalizers(&space, TEMPLATES, "workers").await, json!([HOLD]));
    assert!(!applied.contains("by hand"), "nobody is told to take it off: {applied}");
    space.finish(TEMPLATES, "workers").await;
    nothing_to_do(&space).await;
}

/// Made right after its Cluster, which CAPM3 did not see yet; `clusterctl move` leaves such a one.
#[tokio::test]
async fn a_template_in_use_without_capm3s_finalizer() {
    let space = env().await.space("state-no-finalizer").await;
    let mut template = space.template("workers");
    template["metadata"]["finalizers"] = json!([]);
    space.create(&template).await.unwrap();
    space.create(&space.machine("w-0", "workers")).await.unwrap();
    space.create(&space.claim("w-0", "workers")).await.unwrap();
    let told = diagnosed_after(&space, 1).await;
    says(&told, &["wake Metal3DataTemplate/workers  the template is in use but CAPM3 has not put"]);
    let applied = unstick(&space, &[]).await.ended(1);
    says(&applied, &["wake Metal3DataTemplate/workers: done", SILENT]);
    leave(&space, TEMPLATES, "workers", &[TEMPLATE_FINALIZER]).await;
    let again = unstick(&space, &[]).await.ended(0);
    says(&again, &["Metal3DataTemplate", "is live", "there is nothing to do"]);
    says(&diagnosed_after(&space, 0).await, &["0 stuck", "1 ok"]);
}

/// Steps that only a mover may take, until a person says that there is none.
#[tokio::test]
async fn what_clusterctl_move_has_left_behind() {
    let env = env().await;
    let (template, data) = (env.space("state-moved").await, env.space("state-moved-data").await);
    template.create(&annotated(template.template("workers"), MARK)).await.unwrap();
    template.delete(TEMPLATES, "workers").await.unwrap();
    data.create(&annotated(data.data("workers", 0, "w-0"), MARK)).await.unwrap();
    data.delete(DATAS, "workers-0").await.unwrap();
    for (space, left) in
        [(&template, "Metal3DataTemplate/workers"), (&data, "Metal3Data/workers-0")]
    {
        let waits = format!("waits for clusterctl move to finish with {left}; if none is running");
        let told = diagnosed_after(space, 0).await;
        says(&told, &["DRAINING", &waits, MOVE_BY_HAND]);
        let applied = unstick(space, &[]).await.ended(1);
        says(&applied, &[&waits, MOVE_BY_HAND]);
        assert!(!applied.contains(": done"), "{applied}");
        by_hand(env.plane, &told).await;
        to_the_end(space).await;
        nothing_to_do(space).await;
    }
}

/// CAPM3 #2868 lets the claim go and keeps its finalizer on the Metal3Data. While other machines
/// use the template, only a person can say that this one is not used.
#[tokio::test]
async fn a_metal3data_that_kept_its_claims_finalizer_under_a_template_in_use() {
    let space = env().await.space("state-bound").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.machine("w-1", "workers")).await.unwrap();
    space.create(&space.data("workers", 0, "w-0")).await.unwrap();
    space.delete(DATAS, "workers-0").await.unwrap();
    let told = diagnosed(&space).await;
    let waits = "waits for someone to free what kept its claim's finalizer";
    says(&told, &[waits, "by hand, if no machine uses it any more"]);
    says(&unstick(&space, &[]).await.ended(1), &["wake Metal3Data/workers-0: done", waits]);
    by_hand(env().await.plane, &told).await;
    assert_eq!(finalizers(&space, DATAS, "workers-0").await, json!([DATA_FINALIZER]));
    space.finish(DATAS, "workers-0").await;
    says(&unstick(&space, &[]).await.ended(0), &["is live", "there is nothing to do"]);
    says(&diagnosed_after(&space, 0).await, &["0 stuck", "1 ok"]);
    assert!(space.get(MACHINES, "w-1").await.is_some());
}

/// What `diagnose` says when something is stuck.
async fn diagnosed(space: &Space) -> String {
    diagnosed_after(space, 1).await
}

/// What `diagnose` says once it ends with that code: some things are stuck only after a moment.
async fn diagnosed_after(space: &Space, code: i32) -> String {
    let config = env().await.plane.kubeconfig(User::Admin);
    crate::support::eventually(&format!("diagnose to end with {code}"), async || {
        let ran = run(&config, &["diagnose", "-n", space.ns()]).await;
        (ran.code == code).then_some(ran.stdout)
    })
    .await
}

async fn unstick(space: &Space, more: &[&str]) -> Ran {
    let config = env().await.plane.kubeconfig(User::Admin);
    let apply = ["unstick", "workers", "-n", space.ns(), "--apply", "--reason", "a test"];
    let quick = ["--wake-after", "1s", "--grace", "2s", "--release-after", "2s"];
    run(&config, &[&apply[..], &quick, more].concat()).await
}

/// `unstick --apply --wait`, which has to end with nothing left.
async fn to_the_end(space: &Space) -> String {
    let applied = unstick(space, &["--wait"]).await.ended(0);
    says(&applied, &["it is gone, and nothing names it any more"]);
    applied
}

/// Nothing is stuck any more, and a second run says so.
async fn nothing_to_do(space: &Space) {
    let again = unstick(space, &[]).await.ended(0);
    says(&again, &["nothing names it, so there is nothing to do"]);
    says(&diagnosed_after(space, 0).await, &["no Metal3DataTemplate in namespace"]);
}

/// Each of these stands in the text.
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} here: {text}");
    }
}

/// These steps were done, in this order.
fn did(text: &str, steps: &[&str]) {
    let mut rest = text;
    for step in steps {
        let found = rest.find(step).unwrap_or_else(|| panic!("no {step:?} there: {text}"));
        rest = &rest[found..];
        let line = rest.lines().next().unwrap_or_default();
        assert!(line.contains(": done; "), "{line}");
    }
}
