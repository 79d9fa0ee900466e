//! `serve`: starts with everything checked, reloads, leaves.

use std::{fs, net::TcpListener};

use crate::{
    guard::{Guard, bash, certificates, post},
    support::{run, settings},
};

const STATE: &str = "tests/data/states/v1beta1";

#[test]
fn a_bad_certificate_ends_the_start_before_a_port_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let [_, cert, key] = certificates(dir.path());
    let other = tempfile::tempdir().unwrap();
    let [_, _, other_key] = certificates(other.path());
    let garbage = dir.path().join("garbage.crt");
    fs::write(&garbage, "no certificate\n").unwrap();
    let garbage = garbage.to_str().unwrap();
    // Were the port tried first, it would be the error.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let serve = |cert: &str, key: &str| {
        run(&[
            "serve",
            "--state",
            STATE,
            "--listen",
            &port,
            "--admin-listen",
            "127.0.0.1:0",
            "--tls-cert",
            cert,
            "--tls-key",
            key,
        ])
    };
    for (cert, key, what) in [
        (garbage, &*key, garbage),
        (&*cert, garbage, garbage),
        (&*cert, &*other_key, "key"),
        ("no/such.crt", &*key, "no/such.crt"),
        (&*cert, "no/such.key", "no/such.key"),
    ] {
        let done = serve(cert, key);
        assert_eq!((done.code, &*done.stdout), (2, ""), "{}", done.stderr);
        let error = done.stderr.lines().last().unwrap();
        assert!(error.starts_with("error: ") && error.contains(what), "{}", done.stderr);
        assert!(!error.contains("cannot listen"), "{}", done.stderr);
    }
    let done = serve(&cert, &key);
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains(&format!("cannot listen on {port}")), "{}", done.stderr);
}

#[test]
fn a_state_that_does_not_load_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let [_, cert, key] = certificates(dir.path());
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("broken.yaml"), "a:\n  b: c\n d: e\n").unwrap();
    let done = run(&[
        "serve",
        "--state",
        state.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
    ]);
    assert_eq!(done.code, 3);
    let place = format!("{}/broken.yaml:3:", state.display());
    assert!(done.stderr.contains(&place), "{}", done.stderr);
}

#[test]
fn everything_may_come_from_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let [ca, cert, key] = certificates(dir.path());
    let mut guard = Guard::start(
        &[],
        &[
            ("METAL3_GUARD_STATE", STATE),
            ("METAL3_GUARD_TLS_CERT", &cert),
            ("METAL3_GUARD_TLS_KEY", &key),
            ("METAL3_GUARD_FINALIZER_ADDITIONS", "strip"),
            ("METAL3_GUARD_DRAIN_DELAY", "0"),
        ],
    );
    let stripped = post(&guard, &ca, "/mutate/finalizers", "finalizer-added-terminating-apply");
    assert_eq!((&stripped["allowed"], &stripped["patchType"]), (&true.into(), &"JSONPatch".into()));
    assert_eq!(bash(&format!("curl -sS http://{}/readyz", guard.admin)), "ok\n");
    let metrics = bash(&format!("curl -sS http://{}/metrics", guard.admin));
    let counted = "metal3_guard_reviews_total{path=\"/mutate/finalizers\",verdict=\"patch\"";
    assert!(metrics.contains(counted), "{metrics}");
    guard.signal("TERM");
    assert_eq!(guard.end().code(), Some(0));
}

#[test]
fn a_state_that_no_longer_loads_changes_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let [ca, cert, key] = certificates(dir.path());
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    let file = state.join("prod.yaml");
    fs::copy(crate::support::root().join(STATE).join("prod.yaml"), &file).unwrap();
    let state = state.to_str().unwrap();
    let mut guard = Guard::start(&["--state", state, "--tls-cert", &cert, "--tls-key", &key], &[]);
    let verdict = |guard: &Guard| post(guard, &ca, "/validate/deletion", "delete-in-use");
    let denied = verdict(&guard);
    assert_eq!(denied["status"]["code"], 403);

    fs::write(&file, "a:\n  b: c\n d: e\n").unwrap();
    guard.signal("HUP");
    let line = guard.until_message("the state stays as it was");
    assert_eq!(line["level"], "ERROR");
    let error = line["error"].as_str().unwrap();
    assert!(error.starts_with(&format!("{}:3:", file.display())), "{error}");
    assert_eq!(verdict(&guard), denied);

    fs::write(&file, "{apiVersion: v1, kind: List, items: []}").unwrap();
    guard.signal("HUP");
    guard.until_message("state reloaded");
    assert_eq!(verdict(&guard)["allowed"], true);
}

#[test]
fn the_first_sigterm_drains_and_the_second_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let [ca, cert, key] = certificates(dir.path());
    let args = ["--state", STATE, "--tls-cert", &cert, "--tls-key", &key, "--drain-delay"];

    let mut guard = Guard::start(&[&args[..], &["1"]].concat(), &[]);
    guard.signal("TERM");
    guard.until_message("draining");
    // Not ready, and still answering.
    assert_eq!(post(&guard, &ca, "/validate/deletion", "delete-in-use")["allowed"], false);
    assert_eq!(guard.end().code(), Some(0));

    let mut guard = Guard::start(&[&args[..], &["3600"]].concat(), &[]);
    guard.signal("TERM");
    guard.until_message("draining");
    let ready = bash(&format!("curl -sS -w '%{{http_code}}' http://{}/readyz", guard.admin));
    assert!(ready.ends_with("503"), "{ready}");
    guard.signal("TERM");
    assert_eq!(guard.end().code(), Some(3));
}

#[test]
fn every_review_has_its_line_when_the_end_comes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let [ca, cert, key] = certificates(dir.path());
    let args = ["--state", STATE, "--tls-cert", &cert, "--tls-key", &key, "--drain-delay", "3600"];
    let mut guard = Guard::start(&args, &[]);
    // The first signal only makes the guard leave, so that one more is the end.
    guard.signal("TERM");
    guard.until_message("draining");
    let url = format!("https://{}/validate/deletion?timeout=5s&n=[1-200]", guard.address);
    let answers = bash(&format!(
        "curl -sS --max-time 60 --cacert '{ca}' -H 'Content-Type: application/json' \
         --data-binary @tests/data/reviews/delete-in-use/review.json -w '\\n%{{http_code}}\\n' '{url}'"
    ));
    guard.signal("TERM");
    assert_eq!(guard.end().code(), Some(3));
    assert_eq!(answers.lines().filter(|line| *line == "200").count(), 200);
    let reviews = guard.seen().iter().filter(|line| line.contains(r#""message":"review""#));
    assert_eq!(reviews.count(), 200);
}

#[test]
fn the_tests_themselves_run_without_settings() {
    for name in settings() {
        let done = run(&["diagnose"]);
        assert_eq!(done.code, 2, "{name} reached the program");
    }
}
