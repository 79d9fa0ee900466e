//! The kinds that rules read: served, and in which versions.

use serde_json::Value;

use super::{Api, Check, State};
use crate::core::objects::{Kind, METAL3_GROUP};

/// The versions that the rules read.
const KNOWN: [&str; 2] = ["v1beta1", "v1beta2"];

pub(super) async fn check(api: &Api, checks: &mut Vec<Check>) {
    let about = format!("versions of {METAL3_GROUP}");
    let group = match api.get(&format!("/apis/{METAL3_GROUP}")).await {
        Ok(group) => group,
        Err(why) if why.code == 404 => {
            let text = "not served: there is no CAPM3 here yet";
            checks.push(Check::new(State::Warning, &about, text, "install CAPM3's CRDs"));
            return;
        }
        Err(why) => {
            checks.push(Check::unknown(&about, &why));
            return;
        }
    };
    let versions: Vec<&str> = group
        .get("versions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|it| it.get("version")?.as_str())
        .collect();
    checks.push(if versions.iter().any(|version| KNOWN.contains(version)) {
        Check::ok(&about, format!("serves {}", versions.join(", ")))
    } else {
        Check::new(
            State::Problem,
            &about,
            format!("serves only {}, which this version does not read", versions.join(", ")),
            "use a metal3-guard that knows it",
        )
    });
    let mut served = Vec::new();
    for version in &versions {
        if let Ok(list) = api.get(&format!("/apis/{METAL3_GROUP}/{version}")).await {
            let resources = list.get("resources").and_then(Value::as_array).into_iter().flatten();
            let names = resources.filter_map(|it| it.get("name")?.as_str()).map(str::to_owned);
            served.extend(names);
        }
    }
    for kind in Kind::ALL.into_iter().filter(|kind| kind.group() == METAL3_GROUP) {
        if !served.iter().any(|name| name == kind.resource()) {
            checks.push(Check::new(
                State::Warning,
                &format!("kind {kind}"),
                "not served: rules take it that there is none",
                "install all of CAPM3's CRDs",
            ));
        }
    }
}
