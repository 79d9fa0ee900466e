//! Commands for what only a person may do: the guard says what it waits for, and these end it.
//!
//! Never one that takes a finalizer of someone else off, and never one that deletes what is in use.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{
    contents::Contents,
    objects::{CLAIM_FINALIZER, Kind, MACHINE_FINALIZER, MOVE_ANNOTATION, Meta, PAUSED_ANNOTATION},
    plan::{Wait, WaitCause},
};

/// Most objects that one wait has commands for; after these, a new look names the next.
const MOST: usize = 5;

/// What a person can do about one wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ByHand {
    /// When it is right to do it: the end of "by hand, ...".
    pub when: &'static str,
    /// Commands for a shell.
    pub commands: Vec<String>,
}

/// The commands for these waits, in their order.
pub fn by_hand(contents: &Contents, waits: &[Wait]) -> Vec<ByHand> {
    // One command for each object: the next one is for the object as the first one left it.
    let mut had = BTreeSet::new();
    let mut all = Vec::new();
    for wait in waits {
        let Some(when) = when(wait.cause) else { continue };
        let objects = wait.names.iter().filter_map(|name| object(contents, name));
        let commands: Vec<_> = objects
            .filter_map(|(kind, meta)| Some(((kind, &meta.name), command(wait.cause, kind, meta)?)))
            .filter(|(object, _)| had.insert(*object))
            .map(|(_, command)| command)
            .take(MOST)
            .collect();
        if !commands.is_empty() {
            all.push(ByHand { when, commands });
        }
    }
    all
}

const fn when(cause: WaitCause) -> Option<&'static str> {
    match cause {
        WaitCause::Moving => Some("if no clusterctl move is running"),
        WaitCause::Paused => Some("once nothing needs the pause"),
        WaitCause::Machineless => Some("if the Metal3Machine does not come back"),
        WaitCause::Bound => Some("if no machine uses it any more"),
        WaitCause::NoTemplate => Some("if the template is not to be made again"),
        WaitCause::Unserved
        | WaitCause::Machines
        | WaitCause::Claims
        | WaitCause::Draining
        | WaitCause::Silent
        | WaitCause::IpClaims
        | WaitCause::ForeignFinalizers
        | WaitCause::Lost => None,
    }
}

fn command(cause: WaitCause, kind: Kind, meta: &Meta) -> Option<String> {
    let Meta { namespace, name, .. } = meta;
    let object = format!("-n {namespace} {}/{name}", resource(kind));
    match cause {
        WaitCause::Moving => Some(format!("kubectl annotate {object} {MOVE_ANNOTATION}-")),
        WaitCause::Paused if kind == Kind::Cluster => Some(format!(
            "kubectl patch {object} --type=merge -p '{{\"spec\":{{\"paused\":false}},\
             \"metadata\":{{\"annotations\":{{\"{PAUSED_ANNOTATION}\":null}}}}}}'"
        )),
        WaitCause::Paused => Some(format!("kubectl annotate {object} {PAUSED_ANNOTATION}-")),
        WaitCause::Machineless if !meta.terminating() => {
            Some(format!("kubectl delete --wait=false {object}"))
        }
        WaitCause::Machineless => strip(&object, meta, MACHINE_FINALIZER),
        WaitCause::Bound | WaitCause::NoTemplate => strip(&object, meta, CLAIM_FINALIZER),
        _ => None,
    }
}

/// Takes one finalizer off a terminating object, and nothing else if it has changed meanwhile.
fn strip(object: &str, meta: &Meta, finalizer: &str) -> Option<String> {
    let at = meta.finalizers.iter().position(|it| **it == *finalizer)?;
    let path = format!("\"path\":\"/metadata/finalizers/{at}\"");
    meta.terminating().then(|| {
        format!(
            "kubectl patch {object} --type=json -p '[{{\"op\":\"test\",{path},\
             \"value\":\"{finalizer}\"}},{{\"op\":\"remove\",{path}}}]'"
        )
    })
}

/// The object of a name like `Metal3Data/w-0`, when a shell would take its name as it is.
fn object<'a>(contents: &'a Contents, name: &str) -> Option<(Kind, &'a Meta)> {
    let (kind, name) = name.split_once('/')?;
    let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
    let meta = contents.meta(kind, name)?;
    let plain = |text: &str| {
        text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
    };
    (plain(&meta.name) && plain(&meta.namespace)).then_some((kind, meta))
}

/// As kubectl takes it; other groups have a Cluster too.
fn resource(kind: Kind) -> String {
    match kind {
        Kind::Cluster => format!("{}.{}", kind.resource(), kind.group()),
        _ => kind.name().to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        diagnosis,
        objects::{DATA_FINALIZER, TEMPLATE_FINALIZER},
        testing::{Make, claim, cluster, contents, data, machine, template},
    };

    /// Objects, and the commands for them with their conditions.
    type Row<'a> = (&'a [Make], &'a [(&'a str, String)]);

    const PATCH: &str = r#"[{"op":"test","path":"/metadata/finalizers/AT","value":"NAME"},{"op":"remove","path":"/metadata/finalizers/AT"}]"#;

    fn patch(object: &str, at: usize, finalizer: &str) -> String {
        let patch = PATCH.replace("AT", &at.to_string()).replace("NAME", finalizer);
        format!("kubectl patch -n prod {object} --type=json -p '{patch}'")
    }

    /// All commands for the template, years after.
    fn told(objects: &[Make]) -> Vec<(&'static str, String)> {
        let now = "2026-12-01T00:00:00Z".parse().unwrap();
        let told = diagnosis::template(&contents(objects), "workers", now).by_hand;
        let lines = |it: ByHand| it.commands.into_iter().map(move |command| (it.when, command));
        told.into_iter().flat_map(lines).collect()
    }

    fn dying() -> Make {
        template("workers").terminating()
    }

    fn attached() -> Make {
        data("workers-0").uses("workers").for_claim("w-0", 0)
    }

    /// A claim as CAPM3 makes it, whose machine has this name.
    fn of_machine(name: &str, finalizers: &[&str]) -> Make {
        let owner = serde_json::json!([{"kind": "Metal3Machine", "name": name, "uid": "u"}]);
        let made = claim("w-0").uses("workers").finalizers(finalizers);
        made.set(&["metadata", "ownerReferences"], owner)
    }

    #[test]
    fn each_wait_that_a_person_can_end_has_its_commands() {
        let marked = |object: Make| object.annotation(MOVE_ANNOTATION, "");
        let paused = |object: Make| object.annotation(PAUSED_ANNOTATION, "");
        let orphan = attached().terminating().finalizers(&[DATA_FINALIZER, CLAIM_FINALIZER]);
        let both = [MACHINE_FINALIZER, CLAIM_FINALIZER];
        let unmark = |object: &str| format!("kubectl annotate -n prod {object} {MOVE_ANNOTATION}-");
        let unpause = "kubectl patch -n prod clusters.cluster.x-k8s.io/c --type=merge -p \
                       '{\"spec\":{\"paused\":false},\"metadata\":{\"annotations\":\
                       {\"cluster.x-k8s.io/paused\":null}}}'";
        let table: &[Row<'_>] = &[
            (&[dying()], &[]),
            (
                &[marked(dying())],
                &[("if no clusterctl move is running", unmark("metal3datatemplate/workers"))],
            ),
            (
                &[dying(), marked(orphan.clone())],
                &[("if no clusterctl move is running", unmark("metal3data/workers-0"))],
            ),
            (
                &[paused(dying())],
                &[(
                    "once nothing needs the pause",
                    format!(
                        "kubectl annotate -n prod metal3datatemplate/workers {PAUSED_ANNOTATION}-"
                    ),
                )],
            ),
            (
                &[
                    dying().set(&["spec", "clusterName"], "c"),
                    cluster("c").set(&["spec", "paused"], true),
                ],
                &[("once nothing needs the pause", unpause.into())],
            ),
            (
                &[dying(), attached(), of_machine("w-0", &both)],
                &[(
                    "if the Metal3Machine does not come back",
                    "kubectl delete --wait=false -n prod metal3dataclaim/w-0".into(),
                )],
            ),
            (
                &[dying(), attached(), of_machine("w-0", &both).terminating()],
                &[(
                    "if the Metal3Machine does not come back",
                    patch("metal3dataclaim/w-0", 0, MACHINE_FINALIZER),
                )],
            ),
            (
                &[
                    dying(),
                    claim("w-0").uses("workers").terminating().finalizers(&[CLAIM_FINALIZER]),
                ],
                // The guard wakes the template for it.
                &[],
            ),
            (
                &[template("workers"), machine("w-1").uses("workers"), orphan],
                &[(
                    "if no machine uses it any more",
                    patch("metal3data/workers-0", 1, CLAIM_FINALIZER),
                )],
            ),
            // The next look has the next one.
            (
                &[of_machine("w-0", &both).terminating()],
                &[(
                    "if the Metal3Machine does not come back",
                    patch("metal3dataclaim/w-0", 0, MACHINE_FINALIZER),
                )],
            ),
            (
                &[claim("w-0").uses("workers").terminating().finalizers(&[CLAIM_FINALIZER])],
                &[(
                    "if the template is not to be made again",
                    patch("metal3dataclaim/w-0", 0, CLAIM_FINALIZER),
                )],
            ),
            // In use: nobody is told to take that away.
            (&[dying(), machine("w-0").uses("workers"), of_machine("w-0", &both), attached()], &[]),
            (&[machine("w-0").uses("workers"), of_machine("w-0", &both), attached()], &[]),
            // Not CAPM3's, and nobody's to take off.
            (&[dying().finalizers(&[TEMPLATE_FINALIZER, "a.io/x"])], &[]),
        ];
        for (objects, commands) in table {
            assert_eq!(told(objects), *commands, "{objects:?}");
        }
    }

    #[test]
    fn a_name_that_a_shell_would_take_for_more_is_left_out() {
        for name in ["$(reboot)", "a b", "-A", "a;b", ""] {
            let named = claim(name).uses("workers").terminating().finalizers(&[CLAIM_FINALIZER]);
            assert_eq!(told(&[named]), [], "{name}");
        }
    }

    #[test]
    fn no_more_than_a_screen_of_them() {
        let many: Vec<_> = (0..9)
            .map(|n| claim(&format!("w-{n}")).uses("workers").terminating())
            .map(|claim| claim.finalizers(&[CLAIM_FINALIZER]))
            .collect();
        assert_eq!(told(&many).len(), MOST);
    }
}
