//! `status.indexes` of a template (rule 4.3), in the shape of this binary's version.

use http::Method;
use serde_json::{Value, json};

use super::{Crds, Refused, Space, env};
use crate::support::{User, eventually};

const UPDATED: &str = "2026-01-02T03:04:05Z";

#[tokio::test]
async fn stale_entries_go_and_true_ones_stay() {
    let env = env().await;
    let mut space = env.space("indexes").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.claim("live", "workers")).await.unwrap();
    space.create(&space.claim("draining", "workers")).await.unwrap();
    space.delete("metal3dataclaims", "draining").await.unwrap();
    // Its claim is gone; CAPM3 writes the entry for as long as the Metal3Data exists.
    space.create(&space.data("workers", 2, "orphaned")).await.unwrap();
    // The Metal3Data of another template occupies nothing here.
    space.create(&space.data("others", 3, "elsewhere")).await.unwrap();

    space.client = env.plane.client(User::Capm3).await;
    let all = [("live", 0), ("draining", 1), ("orphaned", 2), ("elsewhere", 3), ("never-there", 4)];
    let stored =
        put(&space, json!({"indexes": indexes(&all), "lastUpdated": UPDATED})).await.unwrap();
    assert_eq!(stored["status"]["indexes"], indexes(&all[..3]));
    assert_eq!(stored["status"]["lastUpdated"], UPDATED);

    // The writer goes on from what it got back.
    let mut next = stored;
    next["status"] = json!({"indexes": indexes(&all[1..]), "lastUpdated": "2026-01-02T03:04:06Z"});
    let stored = put_object(&space, &next).await.unwrap();
    assert_eq!(stored["status"]["indexes"], indexes(&all[1..3]));
    assert_eq!(stored["status"]["lastUpdated"], "2026-01-02T03:04:06Z");
    assert_eq!(space.get("metal3datatemplates", "workers").await.unwrap(), stored);
}

/// In v1beta2 an empty list would be refused by the schema, and the writer's status with it.
#[tokio::test]
async fn the_last_entry_takes_the_key_with_it() {
    let space = env().await.space("last-entry").await;
    space.create(&space.template("workers")).await.unwrap();
    let status = json!({"indexes": indexes(&[("gone", 0)]), "lastUpdated": UPDATED});
    let stored = put(&space, status).await.unwrap();
    assert_eq!(stored["status"], json!({"lastUpdated": UPDATED}));
    let status = json!({"indexes": indexes(&[("gone", 0), ("gone-too", 1)])});
    let stored = put(&space, status).await.unwrap();
    assert!(stored["status"].get("indexes").is_none(), "{stored}");
    // And the writer may go on.
    space.create(&space.claim("w-0", "workers")).await.unwrap();
    let status = json!({"indexes": indexes(&[("w-0", 0)])});
    assert_eq!(put(&space, status.clone()).await.unwrap()["status"], status);
}

/// An entry that was true when it was written goes with the next write to the status, whatever that
/// write is about, and with no other write: there the API server would drop the change.
#[tokio::test]
async fn an_entry_goes_after_its_claim() {
    let space = env().await.space("after-its-claim").await;
    space.create(&space.template("workers")).await.unwrap();
    for name in ["w-0", "w-1"] {
        space.create(&space.claim(name, "workers")).await.unwrap();
    }
    let both = indexes(&[("w-0", 0), ("w-1", 1)]);
    put(&space, json!({"indexes": both})).await.unwrap();
    space.finish("metal3dataclaims", "w-0").await;
    space.delete("metal3dataclaims", "w-0").await.unwrap();

    let label = json!({"metadata": {"labels": {"touched": "yes"}}, "status": {"indexes": null}});
    let labelled = space.patch("metal3datatemplates", "workers", "", label).await.unwrap();
    assert_eq!(labelled["status"]["indexes"], both);

    // The watch may not have said yet that the claim is gone: until then the entry is kept.
    eventually("the entry to go", async || {
        let touched = json!({"status": {"lastUpdated": UPDATED}});
        let stored =
            space.patch("metal3datatemplates", "workers", "status", touched).await.unwrap();
        (stored["status"]["indexes"] == indexes(&[("w-1", 1)])).then_some(())
    })
    .await;
}

/// CAPM3 writes the same status at every pass. If each of them changed the object, each would call
/// CAPM3 again, for ever.
#[tokio::test]
async fn the_same_write_again_and_again_settles() {
    let space = env().await.space("settles").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.claim("live", "workers")).await.unwrap();
    let live = indexes(&[("live", 0)]);
    for (entries, kept) in [(&[("live", 0), ("gone", 1)][..], Some(live)), (&[("gone", 1)], None)] {
        let status = json!({"indexes": indexes(entries), "lastUpdated": UPDATED});
        for way in Way::ALL {
            let mut versions = Vec::new();
            for _ in 0..5 {
                let stored = way.send(&space, &status).await.unwrap();
                assert_eq!(stored["status"].get("indexes"), kept.as_ref(), "{way:?}");
                versions.push(stored["metadata"]["resourceVersion"].clone());
            }
            assert_eq!(versions[1..], vec![versions[1].clone(); 4], "{way:?} of {entries:?}");
        }
    }
}

/// More than the guard looks at one by one, and names that need escaping in a JSON pointer.
#[tokio::test]
async fn many_entries_and_names_that_no_claim_can_have() {
    let space = env().await.space("odd-names").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.claim("live", "workers")).await.unwrap();
    space.create(&space.data("workers", 40, "orphaned")).await.unwrap();
    let odd = [
        "a/b",
        "~",
        "~1",
        "a~0b/~1c",
        "with space",
        "\"quoted\"",
        "näme",
        "-",
        "0",
        "\\",
        "%2F",
        ".",
        "..",
        "../workers",
        "?limit=1",
        "#",
        "live/status",
    ];
    let more: Vec<_> = (0..10).map(|n| format!("gone-{n}")).collect();
    let names = odd.into_iter().chain(more.iter().map(|name| &**name));
    let mut entries: Vec<_> = names.zip(1_i64..).collect();
    entries.push(("orphaned", 40));
    let is_true = |entry: &&(&str, i64)| ["live", "orphaned"].contains(&entry.0);

    // All at once, then a few of them, each of which is looked at by its name.
    for some in std::iter::once(&*entries).chain(entries.chunks(6)) {
        let written = [some, &[("live", 0)]].concat();
        let stored = put(&space, json!({"indexes": indexes(&written)})).await.unwrap();
        let kept: Vec<_> = written.iter().filter(is_true).copied().collect();
        assert_eq!(stored["status"]["indexes"], indexes(&kept), "{written:?}");
    }
}

/// This is what frees a stuck template: CAPM3 counts the entry of a claim that is gone, and waits.
#[tokio::test]
async fn a_terminating_template_is_pruned_too() {
    let env = env().await;
    let mut space = env.space("ending").await;
    space.create(&space.template("workers")).await.unwrap();
    space.create(&space.data("workers", 1, "orphaned")).await.unwrap();
    space.delete("metal3datatemplates", "workers").await.unwrap();
    space.client = env.plane.client(User::Capm3).await;
    let entries = [("gone", 0), ("orphaned", 1)];
    let stored = put(&space, json!({"indexes": indexes(&entries)})).await.unwrap();
    assert!(stored["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(stored["status"]["indexes"], indexes(&entries[1..]));
}

#[tokio::test]
async fn patches_and_applies_are_pruned_too() {
    let space = env().await.space("ways").await;
    space.create(&space.claim("live", "workers")).await.unwrap();
    let status = json!({"indexes": indexes(&[("gone", 0), ("live", 1), ("gone-too", 2)])});
    for way in Way::ALL {
        space.create(&space.template("workers")).await.unwrap();
        let stored = way.send(&space, &status).await.unwrap();
        assert_eq!(stored["status"]["indexes"], indexes(&[("live", 1)]), "{way:?}");
        // One entry more, as a controller adds it.
        let (position, value) = match Crds::of_binary() {
            Crds::V1beta1 => ("gone-again", json!(3)),
            Crds::V1beta2 => ("-", json!({"name": "gone-again", "index": 3})),
        };
        let place = format!("/status/indexes/{position}");
        let patch = json!([{"op": "add", "path": place, "value": value}]);
        let url = space.url("metal3datatemplates", "workers", "status");
        let patch = Some(("application/json-patch+json", &patch));
        let stored = space.send(Method::PATCH, &url, patch).await.unwrap();
        assert_eq!(stored["status"]["indexes"], indexes(&[("live", 1)]), "{way:?}");
        space.finish("metal3datatemplates", "workers").await;
        space.patch("metal3datatemplates", "workers", "", force()).await.unwrap();
        space.delete("metal3datatemplates", "workers").await.unwrap();
    }
}

/// Lets a template go that a claim still names.
fn force() -> Value {
    json!({"metadata": {"annotations": {"metal3-guard.io/force-delete": "made anew"}}})
}

/// The ways to write a status.
#[derive(Clone, Copy, Debug)]
enum Way {
    Put,
    Merge,
    Json,
    Apply,
}

impl Way {
    const ALL: [Self; 4] = [Self::Put, Self::Merge, Self::Json, Self::Apply];

    /// Writes this status to template `workers`; all but `Apply` as the manager that made it. With
    /// several, managedFields would be sorted anew when the second changes, which is a write too.
    async fn send(self, space: &Space, status: &Value) -> Result<Value, Refused> {
        let url = space.url("metal3datatemplates", "workers", "status");
        let (url, content_type, body) = match self {
            Self::Put => return put(space, status.clone()).await,
            Self::Merge => (url, "application/merge-patch+json", json!({"status": status})),
            Self::Json => {
                let patch = json!([{"op": "add", "path": "/status", "value": status}]);
                (url, "application/json-patch+json", patch)
            }
            Self::Apply => {
                let template = space.template("workers");
                let applied = json!({
                    "apiVersion": template["apiVersion"],
                    "kind": template["kind"],
                    "metadata": {"name": "workers"},
                    "status": status,
                });
                let url = format!("{url}?fieldManager=applier&force=true");
                (url, "application/apply-patch+yaml", applied)
            }
        };
        space.send(Method::PATCH, &url, Some((content_type, &body))).await
    }
}

/// Replaces the status of template `workers`, as a controller that has just read it.
async fn put(space: &Space, status: Value) -> Result<Value, Refused> {
    let mut object = space.get("metal3datatemplates", "workers").await.unwrap();
    object["status"] = status;
    put_object(space, &object).await
}

async fn put_object(space: &Space, object: &Value) -> Result<Value, Refused> {
    let url = space.url("metal3datatemplates", "workers", "status");
    space.send(Method::PUT, &url, Some(("application/json", object))).await
}

/// `status.indexes` with these entries.
fn indexes(entries: &[(&str, i64)]) -> Value {
    match Crds::of_binary() {
        Crds::V1beta1 => {
            entries.iter().map(|(claim, index)| ((*claim).to_owned(), json!(index))).collect()
        }
        Crds::V1beta2 => {
            entries.iter().map(|(claim, index)| json!({"name": claim, "index": index})).collect()
        }
    }
}
