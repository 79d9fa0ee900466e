//! Finalizers added to what is going (rule 4.2).

use http::Method;
use serde_json::{Value, json};

use super::{
    Env, MACHINE_FINALIZER, Refused, Space, TEMPLATE_FINALIZER, env,
    moves::{MARK, cluster, mark},
    resource_of,
};
use crate::support::{Guard, User, eventually};

/// A finalizer that no controller of the objects knows.
const LATE: &str = "late.example.com/cleanup";

/// The API server refuses these by itself too, but after the guard and without a word about who
/// wrote them: "added by" is said by the guard alone.
#[tokio::test]
async fn an_addition_to_a_terminating_object_is_refused_however_it_is_written() {
    let env = env().await;
    let space = env.space("late").await;
    let objects = [
        space.template("workers"),
        space.machine("w-0", "others"),
        cluster(&space, "prod"),
        space.data("workers", 0, "w-0"),
    ];
    for object in objects {
        let (resource, name) = (resource_of(&object), object["metadata"]["name"].as_str().unwrap());
        space.create(&object).await.unwrap();
        space.delete(resource, name).await.unwrap();
        let before = space.get(resource, name).await.unwrap();
        let since = before["metadata"]["deletionTimestamp"].as_str().unwrap();
        let told = [LATE, since, "added by", "late-controller"];

        for write in Write::ALL {
            let mut finalizers = finalizers_of(&before);
            finalizers.push(LATE.into());
            let refused = write.send(&space, &before, &finalizers).await.unwrap_err();
            expect_refused(&refused, &told, &format!("{write:?} of {resource}"));
        }
        let applied = partial(&before, &[LATE.into()]).to_string();
        for server_side in [true, false] {
            let mut args = vec!["apply", "--field-manager=late-controller", "-f", "-"];
            if server_side {
                args.push("--server-side");
            }
            let said = env.plane.kubectl_with(User::Admin, &args, &applied).await.refused();
            // kubectl shows the causes of an invalid object only.
            for told in told {
                assert!(said.contains(told), "{args:?}: no {told} in {said}");
            }
        }
        assert_eq!(space.get(resource, name).await.unwrap(), before);
    }
    let by_mutating_hook = env.guard.reviews(space.ns()).into_iter().all(|review| {
        review["path"] != "/validate/finalizers" && review["rule"] != "finalizers.live"
    });
    assert!(by_mutating_hook, "only a mutating hook sees these");
}

#[tokio::test]
async fn removal_reorder_and_duplicates_pass() {
    let env = env().await;
    let space = env.space("removal").await;
    for write in [Write::Merge, Write::Json, Write::Put] {
        let name = format!("{write:?}").to_lowercase();
        let mut template = space.template(&name);
        template["metadata"]["finalizers"] =
            json!([TEMPLATE_FINALIZER, LATE, "z.example.com/last"]);
        space.create(&template).await.unwrap();
        space.delete("metal3datatemplates", &name).await.unwrap();
        for finalizers in [
            &[LATE, "z.example.com/last", TEMPLATE_FINALIZER][..],
            &[LATE, LATE, "z.example.com/last", TEMPLATE_FINALIZER],
            &["z.example.com/last", TEMPLATE_FINALIZER],
            &[TEMPLATE_FINALIZER],
        ] {
            let finalizers: Vec<_> = finalizers.iter().map(|it| (*it).to_owned()).collect();
            let before = space.get("metal3datatemplates", &name).await.unwrap();
            let stored = write.send(&space, &before, &finalizers).await.unwrap();
            assert_eq!(finalizers_of(&stored), finalizers, "{write:?}");
        }
        space.finish("metal3datatemplates", &name).await;
        space.gone("metal3datatemplates", &name).await;
    }
    assert_eq!(denied_rules(&env.guard, &space), [""; 0]);
}

#[tokio::test]
async fn a_live_object_takes_any_finalizer() {
    let env = env().await;
    let space = env.space("live").await;
    for object in [space.template("workers"), cluster(&space, "prod")] {
        space.create(&object).await.unwrap();
        for write in Write::ALL {
            let (resource, name) =
                (resource_of(&object), object["metadata"]["name"].as_str().unwrap());
            let before = space.get(resource, name).await.unwrap();
            let mut finalizers = finalizers_of(&before);
            finalizers.push(format!("{write:?}.example.com/cleanup").to_lowercase());
            let stored = write.send(&space, &before, &finalizers).await.unwrap();
            assert_eq!(finalizers_of(&stored), finalizers, "{write:?}");
        }
    }
    assert_eq!(denied_rules(&env.guard, &space), [""; 0]);
}

/// The object has no deletionTimestamp yet, so the API server itself would take them: without the
/// guard each of these writes goes through, and the object hangs on the source cluster.
#[tokio::test]
async fn no_finalizer_comes_back_to_an_object_that_is_moved_away() {
    let env = env().await;
    let space = env.space("marked").await;
    let told = [LATE, "moved away by clusterctl", MARK, "added by", "late-controller"];
    for object in [space.template("workers"), cluster(&space, "prod")] {
        let (resource, name) = (resource_of(&object), object["metadata"]["name"].as_str().unwrap());
        let own = finalizers_of(&object);
        space.create(&object).await.unwrap();
        mark(&space, resource, name).await;
        let marked = space.get(resource, name).await.unwrap();
        for write in Write::ALL {
            let with_late = [own.clone(), vec![LATE.into()]].concat();
            let refused = write.send(&space, &marked, &with_late).await.unwrap_err();
            expect_refused(&refused, &told, &format!("{write:?} of {resource}"));
        }
        // The last finalizer may go, and then its own controller may not put it back.
        space.finish(resource, name).await;
        let stripped = space.get(resource, name).await.unwrap();
        assert!(stripped["metadata"].get("deletionTimestamp").is_none());
        assert!(finalizers_of(&stripped).is_empty());
        for write in Write::ALL {
            let refused = write.send(&space, &stripped, &own).await.unwrap_err();
            expect_refused(&refused, &[&own[0], "moved away"], &format!("{write:?} of {resource}"));
        }
        // A move that was given up: without the mark it is an object like any other.
        let unmark = json!({"metadata": {"annotations": {MARK: null}}});
        let unmarked = space.patch(resource, name, "", unmark).await.unwrap();
        let stored = Write::Merge.send(&space, &unmarked, &own).await.unwrap();
        assert_eq!(finalizers_of(&stored), own);
    }
}

/// A controller writes its status from a copy that still has finalizers which are gone, or has more
/// than there are. The API server ignores them; a refusal would cost it the status.
#[tokio::test]
async fn a_status_write_with_other_finalizers_passes() {
    let env = env().await;
    let space = env.space("status").await;
    space.create(&space.template("workers")).await.unwrap();
    space.delete("metal3datatemplates", "workers").await.unwrap();
    let before = space.get("metal3datatemplates", "workers").await.unwrap();
    let mut stale = before.clone();
    stale["metadata"]["finalizers"] = json!([TEMPLATE_FINALIZER, LATE]);
    stale["status"] = json!({"lastUpdated": "2026-01-02T03:04:05Z"});
    let url = space.url("metal3datatemplates", "workers", "status");
    let stored = space.send(Method::PUT, &url, Some(("application/json", &stale))).await.unwrap();
    assert_eq!(stored["status"], stale["status"]);
    assert_eq!(stored["metadata"]["finalizers"], before["metadata"]["finalizers"]);
    assert_eq!(denied_rules(&env.guard, &space), [""; 0]);
}

/// A foreground deletion as it always goes: the garbage collector takes its finalizer off, and CAPM3
/// writes from the copy that it read before. The API server refuses that anyway and CAPM3 tries
/// again, so nobody should be alarmed by it.
#[tokio::test]
async fn a_write_from_a_stale_copy_is_classed_as_one() {
    const COUNTED: &str = r#"verdict="deny",rule="finalizers.stale_copy""#;
    let env = env().await;
    let mut space = env.space("stale-copy").await;
    space.create(&space.template("workers")).await.unwrap();
    let url = space.url("metal3datatemplates", "workers", "");
    let foreground = json!({"propagationPolicy": "Foreground"});
    let deleted = space.send(Method::DELETE, &url, Some(("application/json", &foreground))).await;
    let stale = finalizers_of(&deleted.unwrap());
    assert!(stale.contains(&"foregroundDeletion".into()), "{stale:?}");
    eventually("the garbage collector to take its finalizer off", async || {
        let now = space.get("metal3datatemplates", "workers").await.unwrap();
        (finalizers_of(&now) == [TEMPLATE_FINALIZER]).then_some(())
    })
    .await;

    let counted = env.guard.metric("metal3_guard_reviews_total", COUNTED).await;
    let seen = denied_rules(&env.guard, &space).len();
    space.client = env.plane.client(User::Capm3).await;
    let own_taken_off = json!({"metadata": {"finalizers": ["foregroundDeletion"]}});
    let refused =
        space.patch("metal3datatemplates", "workers", "", own_taken_off).await.unwrap_err();
    assert_eq!(refused.code, 422);
    assert!(refused.message.contains("foregroundDeletion"), "{}", refused.message);
    let foreign = json!({"metadata": {"finalizers": [TEMPLATE_FINALIZER, LATE]}});
    let refused = space.patch("metal3datatemplates", "workers", "", foreign).await.unwrap_err();
    assert_eq!(refused.code, 422);

    let rules = denied_rules(&env.guard, &space).split_off(seen);
    assert_eq!(rules, ["finalizers.stale_copy", "finalizers.terminating"]);
    let now = env.guard.metric("metal3_guard_reviews_total", COUNTED).await;
    assert!(now > counted, "{counted} before, {now} after");

    // CAPM3 reads again and goes on.
    space.finish("metal3datatemplates", "workers").await;
    space.gone("metal3datatemplates", "workers").await;
}

/// A guard that strips, for this namespace only and before the shared one: that one is then not even
/// asked, since nothing is added any more. With no guard the API server refuses the whole write to a
/// terminating object, and takes the finalizer on a marked one.
#[tokio::test]
async fn strip_mode_leaves_the_rest_of_the_write_intact() {
    let env = env().await;
    let space = env.space("strip").await;
    let kubeconfig = env.plane.kubeconfig(User::Guard);
    let args = ["--finalizer-additions", "strip"];
    let guard = Guard::start(env.plane, &kubeconfig, "127.0.0.1:0", &args).await.unwrap();
    guard.ready().await;
    let mut template = space.template("workers");
    template["metadata"]["finalizers"] = json!([TEMPLATE_FINALIZER, "z.example.com/last"]);
    space.create(&template).await.unwrap();
    space.delete("metal3datatemplates", "workers").await.unwrap();
    space.create(&cluster(&space, "prod")).await.unwrap();
    mark(&space, "clusters", "prod").await;
    space.create(&space.machine("w-0", "others")).await.unwrap();
    let configuration = put_in_front(env, &space, &guard).await;

    for (resource, name) in [("metal3datatemplates", "workers"), ("clusters", "prod")] {
        for write in Write::ALL {
            let before = space.get(resource, name).await.unwrap();
            let mut labelled = before.clone();
            labelled["metadata"]["labels"]["written-by"] = json!(format!("{write:?}"));
            let finalizers = [finalizers_of(&before), vec![LATE.into()]].concat();
            let stored = write.send(&space, &labelled, &finalizers).await.unwrap();
            assert_eq!(stored["metadata"]["labels"], labelled["metadata"]["labels"], "{write:?}");
            assert_eq!(finalizers_of(&stored), finalizers_of(&before), "{write:?}");
        }
        let shown = [
            "patch",
            resource,
            name,
            "-n",
            space.ns(),
            "--type=json",
            "-p",
            r#"[{"op":"add","path":"/metadata/finalizers/-","value":"late.example.com/cleanup"}]"#,
        ];
        let ran = env.plane.kubectl(User::Admin, &shown).await;
        let why = if resource == "clusters" { "moved away" } else { "deleted" };
        let warning = format!("Warning: not added, it is being {why}: {LATE}");
        assert!(ran.success && ran.stderr.contains(&warning), "{ran:?}");
    }
    // The last one is gone: what is added alone leaves an empty list.
    space.finish("clusters", "prod").await;
    for write in Write::ALL {
        let stripped = space.get("clusters", "prod").await.unwrap();
        let stored = write.send(&space, &stripped, &[LATE.into()]).await.unwrap();
        assert_eq!(finalizers_of(&stored), [""; 0], "{write:?}");
    }
    // What is live takes finalizers here as well.
    let machine = space.get("metal3machines", "w-0").await.unwrap();
    let both = [MACHINE_FINALIZER.into(), LATE.into()];
    let stored = Write::Merge.send(&space, &machine, &both).await.unwrap();
    assert_eq!(finalizers_of(&stored), both);

    let rules: Vec<_> = guard.reviews(space.ns()).iter().map(|it| it["rule"].clone()).collect();
    assert!(rules.contains(&json!("finalizers.stripped_terminating")), "{rules:?}");
    assert!(rules.contains(&json!("finalizers.stripped_moving")), "{rules:?}");
    space.send(Method::DELETE, &configuration, None).await.unwrap();
}

/// The ways to write finalizers.
#[derive(Clone, Copy, Debug)]
enum Write {
    Merge,
    Json,
    Put,
    Apply,
}

impl Write {
    const ALL: [Self; 4] = [Self::Merge, Self::Json, Self::Put, Self::Apply];

    /// Writes these finalizers, and the labels of `object`, as `late-controller`.
    async fn send(
        self,
        space: &Space,
        object: &Value,
        finalizers: &[String],
    ) -> Result<Value, Refused> {
        let name = object["metadata"]["name"].as_str().unwrap();
        let url = space.url(resource_of(object), name, "");
        let url = format!("{url}?fieldManager=late-controller");
        let labels = &object["metadata"]["labels"];
        let (method, url, content_type, body) = match self {
            Self::Merge => {
                let patch = json!({"metadata": {"finalizers": finalizers, "labels": labels}});
                (Method::PATCH, url, "application/merge-patch+json", patch)
            }
            Self::Json => {
                let set = |field: &str, value: Value| json!({"op": "add", "path": format!("/metadata/{field}"), "value": value});
                let labels = if labels.is_null() { json!({}) } else { labels.clone() };
                let patch = json!([set("finalizers", json!(finalizers)), set("labels", labels)]);
                (Method::PATCH, url, "application/json-patch+json", patch)
            }
            Self::Put => {
                let mut object = object.clone();
                object["metadata"]["finalizers"] = json!(finalizers);
                (Method::PUT, url, "application/json", object)
            }
            Self::Apply => {
                let url = format!("{url}&force=true");
                (Method::PATCH, url, "application/apply-patch+yaml", partial(object, finalizers))
            }
        };
        space.send(method, &url, Some((content_type, &body))).await
    }
}

/// What one applies to add finalizers to an object.
fn partial(object: &Value, finalizers: &[String]) -> Value {
    let metadata = &object["metadata"];
    let mut partial = json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"],
            "finalizers": finalizers,
        },
    });
    if metadata["labels"].is_object() {
        partial["metadata"]["labels"] = metadata["labels"].clone();
    }
    partial
}

fn finalizers_of(object: &Value) -> Vec<String> {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.into_iter().flatten().map(|it| it.as_str().unwrap().to_owned()).collect()
}

fn expect_refused(refused: &Refused, told: &[&str], what: &str) {
    assert_eq!((refused.code, &*refused.reason), (422, "Invalid"), "{what}: {refused:?}");
    for told in told {
        assert!(refused.message.contains(told), "{what}: no {told} in {}", refused.message);
    }
    let [cause] = &*refused.causes else { panic!("{what}: {:?}", refused.causes) };
    assert_eq!(cause["reason"], "FieldValueForbidden", "{what}");
    assert_eq!(cause["field"], "metadata.finalizers", "{what}");
}

/// The rules that refused something in this namespace, in order.
fn denied_rules(guard: &Guard, space: &Space) -> Vec<String> {
    let reviews = guard.reviews(space.ns());
    let denied = reviews.iter().filter(|review| review["verdict"] == "deny");
    denied.map(|review| review["rule"].as_str().unwrap().to_owned()).collect()
}

/// Has the API server ask `guard` about finalizers in this namespace before it asks the shared one:
/// the registered webhook under a name that comes first. Returns the URL of the configuration.
async fn put_in_front(env: &Env, space: &Space, guard: &Guard) -> String {
    let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let registered = format!("{configurations}/metal3-guard");
    let mut registered = space.send(Method::GET, &registered, None).await.unwrap();
    let mut webhooks = registered["webhooks"].take();
    webhooks
        .as_array_mut()
        .unwrap()
        .retain(|webhook| webhook["name"] == "finalizers.mutating.metal3-guard.io");
    let url = webhooks[0]["clientConfig"]["url"].as_str().unwrap();
    assert!(url.contains(&env.guard.address), "{url}");
    webhooks[0]["clientConfig"]["url"] = json!(url.replace(&env.guard.address, &guard.address));
    let only_here = json!({"matchLabels": {"kubernetes.io/metadata.name": space.ns()}});
    webhooks[0]["namespaceSelector"] = only_here;
    let name = "a-guard-that-strips";
    let configuration = json!({
        "apiVersion": registered["apiVersion"],
        "kind": registered["kind"],
        "metadata": {"name": name},
        "webhooks": webhooks,
    });
    let body = Some(("application/json", &configuration));
    space.send(Method::POST, configurations, body).await.unwrap();
    eventually("the API server to ask the guard that strips", async || {
        let probe = json!({"metadata": {"finalizers": [TEMPLATE_FINALIZER, LATE]}});
        let url = format!("{}?dryRun=All", space.url("metal3datatemplates", "workers", ""));
        let patch = Some(("application/merge-patch+json", &probe));
        space.send(Method::PATCH, &url, patch).await.ok()
    })
    .await;
    format!("{configurations}/{name}")
}
