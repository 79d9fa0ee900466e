//! The rules catch what they are for: logs in which one thing is wrong.

use jiff::{Timestamp, ToSpan as _};
use serde_json::{Value, json};

use crate::{
    audit::{Audit, WOKEN},
    guards::Ended,
    lines::{self, Line},
    person::Rescue,
    rules,
    space::{
        CLAIM_FINALIZER, CLAIMS, DATAS, HOLD, IP_CLAIMS, MACHINE_FINALIZER, MACHINES,
        TEMPLATE_FINALIZER, TEMPLATES,
    },
};

const NS: &str = "seed-0-a-0";
const DATA_FINALIZER: &str = "metal3data.infrastructure.cluster.x-k8s.io";

/// A log that is being written, one event a second.
#[derive(Default)]
struct Log {
    audit: Audit,
    events: usize,
    revision: u64,
}

impl Log {
    fn now(&self) -> Timestamp {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        start + i64::try_from(self.events).unwrap().seconds()
    }

    /// A request and its answer; an answer that is an object gets the next revision.
    fn push(
        &mut self,
        [user, verb, resource, name]: [&str; 4],
        code: u16,
        request: &Value,
        mut answer: Value,
    ) -> u64 {
        self.revision += 1;
        if answer["metadata"].is_object() {
            answer["metadata"]["resourceVersion"] = self.revision.to_string().into();
        }
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let received = self.now();
        self.events += 1;
        let event = json!({
            "user": {"username": user}, "verb": verb,
            "objectRef": {
                "resource": resource, "subresource": subresource, "namespace": NS, "name": name,
            },
            "responseStatus": {"code": code}, "requestObject": request, "responseObject": answer,
            "requestReceivedTimestamp": received.to_string(),
            "stageTimestamp": (received + 10.milliseconds()).to_string(),
        });
        self.audit.push(self.events, &event, "seed-");
        self.revision
    }

    fn create(&mut self, resource: &str, object: Value) -> u64 {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.push(["capm3", "create", resource, &name], 201, &Value::Null, object)
    }

    /// A DELETE of what finalizers hold.
    fn delete(&mut self, user: &str, resource: &str, object: &Value) -> u64 {
        let name = object["metadata"]["name"].as_str().unwrap();
        self.push([user, "delete", resource, name], 200, &Value::Null, dying(object))
    }

    /// The last finalizer goes.
    fn end(&mut self, resource: &str, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let over = held_by(&dying(object), &[]);
        self.push(["capm3", "patch", resource, name], 200, &Value::Null, over);
    }

    /// The guard takes a finalizer off, leaving these.
    fn strip(&mut self, resource: &str, before: &Value, revision: u64, kept: &[&str]) {
        let metadata = &before["metadata"];
        let request = json!({"metadata": {
            "uid": metadata["uid"], "resourceVersion": revision.to_string(), "finalizers": kept,
        }});
        let name = metadata["name"].as_str().unwrap();
        self.push(["guard", "patch", resource, name], 200, &request, held_by(before, kept));
    }

    fn found(&mut self, rescues: &[Rescue]) -> Vec<String> {
        self.audit.sort();
        rules::check(&self.audit, rescues).into_iter().map(|it| it.what).collect()
    }

    /// The one thing that is wrong.
    fn wrong(&mut self, what: &str) {
        let found = self.found(&[]);
        assert!(found.len() == 1 && found[0].contains(what), "not {what}: {found:#?}");
    }

    fn right(&mut self) {
        assert_eq!(self.found(&[]), [""; 0]);
    }
}

fn object(kind: &str, name: &str, finalizers: &[&str], spec: &Value) -> Value {
    json!({
        "kind": kind, "metadata": {
            "name": name, "namespace": NS, "uid": format!("uid-{name}"), "finalizers": finalizers,
        },
        "spec": spec,
    })
}

fn template() -> Value {
    object("Metal3DataTemplate", "workers", &[TEMPLATE_FINALIZER], &json!({}))
}

fn claim() -> Value {
    let spec = json!({"template": {"name": "workers"}});
    object("Metal3DataClaim", "w-0", &[CLAIM_FINALIZER], &spec)
}

fn data() -> Value {
    let spec = json!({"template": {"name": "workers"}, "claim": {"name": "w-0"}});
    object("Metal3Data", "workers-0", &[CLAIM_FINALIZER, DATA_FINALIZER], &spec)
}

fn machine() -> Value {
    object("Metal3Machine", "w-0", &["m"], &json!({"dataTemplate": {"name": "workers"}}))
}

fn dying(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    object
}

fn held_by(object: &Value, finalizers: &[&str]) -> Value {
    let mut object = object.clone();
    object["metadata"]["finalizers"] = json!(finalizers);
    object
}

fn rescue(template: &str, object: Option<(&str, &str)>) -> Rescue {
    Rescue {
        namespace: NS.into(),
        template: template.into(),
        object: object.map(|(resource, name)| (resource.into(), name.into())),
        with: "help".into(),
    }
}

#[test]
fn a_finalizer_of_a_live_object() {
    let mut log = Log::default();
    let revision = log.create(DATAS, data());
    log.strip(DATAS, &data(), revision, &[DATA_FINALIZER]);
    let found = log.found(&[]);
    // By the rule for the guard, and by the one for all.
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found.iter().all(|it| it.contains("of a live object")), "{found:#?}");
}

#[test]
fn only_the_one_finalizer_that_is_its_own() {
    for (before, kept, right) in [
        (&[CLAIM_FINALIZER, DATA_FINALIZER][..], &[DATA_FINALIZER][..], true),
        (&[CLAIM_FINALIZER, DATA_FINALIZER], &[CLAIM_FINALIZER], false),
        (&[CLAIM_FINALIZER, HOLD], &[], false),
        (&[CLAIM_FINALIZER, HOLD], &[HOLD], true),
    ] {
        let mut log = Log::default();
        let data = held_by(&data(), before);
        log.create(DATAS, data.clone());
        let revision = log.delete("admin", DATAS, &data);
        log.strip(DATAS, &dying(&data), revision, kept);
        if right { log.right() } else { log.wrong("became") }
    }
}

#[test]
fn a_metal3data_whose_claim_is_there() {
    for end in [false, true] {
        let mut log = Log::default();
        log.create(CLAIMS, claim());
        log.create(DATAS, data());
        log.delete("admin", CLAIMS, &claim());
        let revision = log.delete("capm3", DATAS, &data());
        if end {
            log.end(CLAIMS, &claim());
        }
        log.strip(DATAS, &dying(&data()), revision, &[DATA_FINALIZER]);
        if end { log.right() } else { log.wrong("claim w-0 is there") }
    }
}

#[test]
fn a_metal3data_is_deleted_only_without_claim_and_under_a_dying_template() {
    for (claimed, dying_template, wrong) in [
        (false, true, None),
        (true, true, Some("claim w-0 is there")),
        (false, false, Some("of a live template")),
    ] {
        let mut log = Log::default();
        log.create(TEMPLATES, template());
        let revision = log.create(DATAS, data());
        if claimed {
            log.create(CLAIMS, claim());
        }
        if dying_template {
            log.delete("admin", TEMPLATES, &template());
        }
        log.events += 10;
        let request = json!({"preconditions": {
            "uid": "uid-workers-0", "resourceVersion": revision.to_string(),
        }});
        log.push(["guard", "delete", DATAS, "workers-0"], 200, &request, dying(&data()));
        match wrong {
            Some(what) => log.wrong(what),
            None => log.right(),
        }
    }
}

#[test]
fn a_template_that_is_needed() {
    for (resource, user, wrong) in [
        (DATAS, data(), Some("metal3datas/workers-0 needs the template")),
        (CLAIMS, claim(), Some("metal3dataclaims/w-0 needs the template")),
        (MACHINES, machine(), Some("live machine w-0 needs workers")),
        (MACHINES, dying(&machine()), None),
    ] {
        let mut log = Log::default();
        log.create(TEMPLATES, template());
        log.create(resource, user);
        let revision = log.delete("admin", TEMPLATES, &template());
        log.events += 10;
        log.strip(TEMPLATES, &dying(&template()), revision, &[]);
        match wrong {
            Some(what) => log.wrong(what),
            None => log.right(),
        }
    }
}

#[test]
fn a_paused_object() {
    let mut log = Log::default();
    let mut paused = template();
    paused["metadata"]["annotations"] = json!({"cluster.x-k8s.io/paused": ""});
    log.create(TEMPLATES, paused.clone());
    let revision = log.delete("admin", TEMPLATES, &paused);
    log.strip(TEMPLATES, &dying(&paused), revision, &[]);
    log.wrong("it is paused");
}

#[test]
fn a_wake_up_that_is_more_than_one() {
    for spec in [template()["spec"].clone(), json!({"clusterName": "other"})] {
        let mut log = Log::default();
        let revision = log.create(TEMPLATES, template());
        let annotations = json!({WOKEN: "2026-01-01T00:00:00Z"});
        let request = json!({"metadata": {
            "uid": "uid-workers", "resourceVersion": revision.to_string(),
            "annotations": annotations,
        }});
        let mut woken = template();
        woken["metadata"]["annotations"] = annotations;
        woken["spec"] = spec.clone();
        log.push(["guard", "patch", TEMPLATES, "workers"], 200, &request, woken);
        if spec == template()["spec"] { log.right() } else { log.wrong("more than a wake-up") }
    }
}

#[test]
fn a_write_that_is_no_step() {
    for (verb, resource, request) in [
        ("update", TEMPLATES, json!({})),
        ("patch", TEMPLATES, json!({"metadata": {"finalizers": []}})),
        ("patch", "metal3datatemplates/status", json!([{"op": "remove", "path": "/spec"}])),
        ("delete", DATAS, json!({})),
        ("deletecollection", DATAS, json!({})),
    ] {
        let mut log = Log::default();
        log.push(["guard", verb, resource, "workers"], 409, &request, json!({}));
        log.wrong("none of the guard's steps");
    }
}

#[test]
fn a_live_object_that_nobody_deleted() {
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    let mut owned = data();
    owned["metadata"]["ownerReferences"] = json!([{"uid": "uid-w-0"}]);
    for (user, right) in [("admin", true), ("capm3", false), (collector, false), ("capi", false)] {
        let mut log = Log::default();
        log.create(CLAIMS, claim());
        log.create(DATAS, owned.clone());
        log.delete(user, DATAS, &owned);
        if right { log.right() } else { log.wrong("a live object that nobody deleted") }
    }
    for user in ["capm3", collector] {
        let mut log = Log::default();
        log.create(CLAIMS, claim());
        log.create(DATAS, owned.clone());
        log.delete("admin", CLAIMS, &claim());
        log.delete(user, DATAS, &owned);
        log.right();
    }
    let mut log = Log::default();
    let controller = "system:serviceaccount:kube-system:namespace-controller";
    log.push([controller, "deletecollection", DATAS, ""], 200, &Value::Null, json!({}));
    log.wrong("a collection that nobody deleted");
}

#[test]
fn a_deletion_whose_answer_was_lost_may_have_been_done() {
    for (code, name, right) in [(504, "w-0", true), (409, "w-0", false), (504, "w-1", false)] {
        let mut log = Log::default();
        log.create(CLAIMS, claim());
        log.create(DATAS, data());
        log.push(["admin", "delete", CLAIMS, name], code, &Value::Null, json!({"code": code}));
        log.delete("capm3", DATAS, &data());
        if right { log.right() } else { log.wrong("a live object that nobody deleted") }
    }
}

#[test]
fn a_claim_that_capm3_made_and_did_not_see_has_an_excuse() {
    let mut owned = held_by(&claim(), &[MACHINE_FINALIZER]);
    owned["metadata"]["ownerReferences"] = json!([{"uid": "uid-machine"}]);
    for (kept, wait, excused) in [(true, 0, true), (true, 5, false), (false, 0, false)] {
        let mut log = Log::default();
        let mut machine = held_by(&machine(), &[MACHINE_FINALIZER]);
        machine["metadata"]["uid"] = "uid-machine".into();
        log.create(MACHINES, machine.clone());
        log.delete("admin", MACHINES, &machine);
        log.create(CLAIMS, if kept { owned.clone() } else { held_by(&owned, &[]) });
        log.events += wait;
        log.end(MACHINES, &machine);
        let rescue = rescue("workers", Some((CLAIMS, "w-0")));
        assert_eq!(log.found(&[rescue]).is_empty(), excused, "{kept} {wait}");
    }
}

#[test]
fn an_ip_claim_that_capm3_gives_back() {
    for (owners, dying, right) in [
        (&["uid-workers-0"][..], true, true),
        // Orphaned, or restored without its owners: the name says whose it is.
        (&[], true, true),
        (&[], false, false),
        (&["uid-workers-0"], false, false),
        // Another's, whatever its name.
        (&["uid-workers-1"], true, false),
    ] {
        let mut log = Log::default();
        log.create(DATAS, data());
        log.create(DATAS, object("Metal3Data", "workers-1", &[], &json!({})));
        let mut owned = object("IPClaim", "workers-0-pool", &["i"], &json!({}));
        owned["metadata"]["ownerReferences"] = owners.iter().map(|it| json!({"uid": it})).collect();
        log.create(IP_CLAIMS, owned.clone());
        if dying {
            log.delete("admin", DATAS, &data());
        }
        log.delete("capm3", IP_CLAIMS, &owned);
        if right { log.right() } else { log.wrong("a live object that nobody deleted") }
    }
}

#[test]
fn help_without_an_excuse() {
    let mut forced = template();
    forced["metadata"]["annotations"] = json!({"metal3-guard.io/force-delete": "a test"});
    for (template, excused) in [(template(), false), (forced, true)] {
        let mut log = Log::default();
        log.create(TEMPLATES, template);
        assert_eq!(log.found(&[rescue("workers", None)]).is_empty(), excused);
    }
    for (by, excused) in [("capm3", false), ("capi", true)] {
        let mut log = Log::default();
        log.create(CLAIMS, held_by(&claim(), &[]));
        log.push([by, "patch", CLAIMS, "w-0"], 200, &Value::Null, claim());
        assert_eq!(log.found(&[rescue("workers", Some((CLAIMS, "w-0")))]).is_empty(), excused);
    }
}

#[test]
fn an_ip_claim_that_another_template_knows_nothing_of_has_an_excuse() {
    let spec = json!({"metaData": {"ipAddressesFromPool": [{"key": "ip", "name": "pool"}]}});
    let mut owned = object("IPClaim", "workers-0-pool", &[DATA_FINALIZER], &json!({}));
    owned["metadata"]["ownerReferences"] = json!([{"uid": "uid-workers-0"}]);
    for (pools, excused) in [(true, false), (false, true)] {
        let mut log = Log::default();
        let mut template = template();
        if pools {
            template["spec"] = spec.clone();
        }
        log.create(TEMPLATES, template);
        log.create(DATAS, data());
        log.create(IP_CLAIMS, owned.clone());
        log.delete("admin", DATAS, &data());
        log.end(DATAS, &data());
        let rescue = rescue("", Some((IP_CLAIMS, "workers-0-pool")));
        assert_eq!(log.found(&[rescue]).is_empty(), excused, "{pools}");
    }
}

#[test]
fn each_write_has_one_line_and_each_line_its_write() {
    let mut log = Log::default();
    log.create(TEMPLATES, template());
    let revision = log.delete("admin", TEMPLATES, &template());
    let before = log.now();
    log.strip(TEMPLATES, &dying(&template()), revision, &[]);
    let line = |result: &str| {
        Line::parse(&json!({
            "message": "write", "step": "release", "kind": "Metal3DataTemplate", "namespace": NS,
            "name": "workers", "uid": "uid-workers", "resource_version": revision.to_string(),
            "result": result,
        }))
        .unwrap()
    };
    let check = |lines: &[Line], ended: &[Ended]| lines::check(&log.audit, lines, ended).len();
    assert_eq!(check(&[line("done")], &[]), 0);
    assert_eq!(check(&[], &[]), 1);
    assert_eq!(check(&[line("conflict")], &[]), 2);
    assert_eq!(check(&[line("done"), line("done")], &[]), 1);
    // It may have been done although no answer came.
    assert_eq!(check(&[line("failed")], &[]), 0);
    assert_eq!(check(&[line("done"), line("failed")], &[]), 0);
    let killed = |seconds: i64, gently| {
        check(&[], &[Ended { lived: before, gone: before + seconds.seconds(), gently }])
    };
    assert_eq!(killed(1, false), 0);
    assert_eq!(killed(1, true), 1);
    assert_eq!(killed(-9, false), 1);
}
