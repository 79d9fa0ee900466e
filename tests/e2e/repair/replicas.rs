//! Two controllers at once, and more stuck objects than either looks at side by side.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use super::{DATAS, TEMPLATES, acting};
use crate::{
    e2e::{DATA_FINALIZER, Space, rules_off::indexes},
    support::eventually,
};

const NAMESPACES: usize = 4;
const TEMPLATES_EACH: usize = 6;

/// No step is done twice, and none goes wrong but by losing against the other controller.
#[tokio::test]
async fn two_controllers_do_each_step_once() {
    let acting = acting().await;
    let spaces = join_all((0..NAMESPACES).map(|_| acting.env.space("replicas"))).await;
    let made = join_all(spaces.iter().map(make)).await;
    let objects: usize = made.iter().sum();
    assert_eq!(objects, 40);

    let ends = spaces.iter().map(async |space| {
        eventually("everything to be gone", async || {
            capm3_finishes_metal3data(space).await;
            list(space, TEMPLATES).await.is_empty().then_some(())
        })
        .await;
    });
    join_all(ends).await;

    let mut results: BTreeMap<String, usize> = BTreeMap::new();
    for space in &spaces {
        acting.never_twice(space.ns());
        let mut done = acting.done(space.ns());
        done.retain(|line| !line.starts_with("wake "));
        done.sort();
        assert_eq!(done, expected(), "in {}", space.ns());
        for write in acting.writes(space.ns()) {
            let words: Vec<_> = write.split(' ').collect();
            *results.entry(format!("{} {}", words[0], words[2])).or_default() += 1;
        }
    }
    println!("{objects} stuck objects, two controllers, writes by step and result: {results:#?}");
    for guard in [&acting.env.guard, &acting.second] {
        let wrote = spaces.iter().map(|space| super::writes(guard, space.ns()).len());
        assert!(wrote.sum::<usize>() > 0, "one of the two did nothing: {results:#?}");
        let errors: Vec<_> = guard.log().into_iter().filter(|it| it["level"] == "ERROR").collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
}

/// Two templates each alone with a stale index, with a terminating orphan, and with a live one.
async fn make(space: &Space) -> usize {
    for index in 0..TEMPLATES_EACH {
        let name = format!("t-{index}");
        space.create(&space.template(&name)).await.unwrap();
        match index % 3 {
            0 => {
                let mut claim = space.claim(&name, &name);
                claim["metadata"]["finalizers"] = json!([]);
                space.create(&claim).await.unwrap();
                space.patch(TEMPLATES, &name, "status", indexes(&[(&name, 0)])).await.unwrap();
                space.delete("metal3dataclaims", &name).await.unwrap();
                space.gone("metal3dataclaims", &name).await;
            }
            _ => drop(space.create(&space.data(&name, 0, "no-claim")).await.unwrap()),
        }
        space.delete(TEMPLATES, &name).await.unwrap();
        if index % 3 == 1 {
            space.delete(DATAS, &format!("{name}-0")).await.unwrap();
        }
    }
    list(space, TEMPLATES).await.len() + list(space, DATAS).await.len()
}

/// Every step that takes something away, in order, for one namespace.
fn expected() -> Vec<String> {
    let mut steps: Vec<_> = (0..TEMPLATES_EACH)
        .flat_map(|index| {
            let template = format!("Metal3DataTemplate/t-{index} done");
            let data = format!("Metal3Data/t-{index}-0 done");
            let of_its_own: Vec<String> = match index % 3 {
                0 => vec![format!("prune {template}")],
                1 => vec![format!("free-orphan {data}")],
                _ => vec![format!("delete-orphan {data}"), format!("free-orphan {data}")],
            };
            of_its_own.into_iter().chain([format!("release {template}")])
        })
        .collect();
    steps.sort();
    steps
}

/// CAPM3's data controller, the only part of it that is there.
async fn capm3_finishes_metal3data(space: &Space) {
    for data in list(space, DATAS).await {
        if data["metadata"]["finalizers"] == json!([DATA_FINALIZER]) {
            space.finish(DATAS, data["metadata"]["name"].as_str().unwrap()).await;
        }
    }
}

async fn list(space: &Space, resource: &str) -> Vec<Value> {
    let list = space.send(Method::GET, &space.url(resource, "", ""), None).await.unwrap();
    list["items"].as_array().unwrap().clone()
}
