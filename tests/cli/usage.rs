//! Wrong calls, help, settings from the environment, pipes.

use std::process::{Command, Stdio};

use crate::support::{binary, check, command, finish, root, run};

#[test]
fn wrong_calls_say_what_is_wrong_and_end_with_2() {
    for (name, args) in [
        ("usage-nothing", &[][..]),
        ("usage-unknown-command", &["delete"]),
        ("usage-unknown-flag", &["diagnose", "--demo", "--apply"]),
        ("usage-two-states", &["diagnose", "--demo", "--state", "x"]),
        ("usage-state-and-cluster", &["serve", "--state", "x", "--context", "y"]),
        ("usage-no-name", &["can-delete", "--demo"]),
        ("usage-no-file", &["review", "--demo"]),
        ("usage-all-and-one", &["diagnose", "-A", "x", "--demo"]),
        ("usage-output", &["diagnose", "--demo", "-o", "yaml"]),
        ("usage-shell", &["completions", "tcsh"]),
        ("usage-certs-no-name", &["certs", "--out", "no-such-dir"]),
        ("usage-certs-bad-name", &["certs", "--out", "no-such-dir", "--dns", "two words"]),
        ("usage-serve-no-certificate", &["serve", "--state", "tests/data/states/v1beta1"]),
        ("usage-serve-half-a-pair", &["serve", "--demo", "--tls-key", "x"]),
        ("usage-serve-demo-certificate", &["serve", "--demo", "--tls-key", "x", "--tls-cert", "y"]),
        ("usage-serve-demo-open", &["serve", "--demo", "--listen", "0.0.0.0:0"]),
        ("usage-serve-demo-admin-open", &["serve", "--demo", "--admin-listen", "[::]:0"]),
        ("usage-serve-managed-demo", &["serve", "--demo", "--self-managed-certs"]),
        (
            "usage-serve-managed-files",
            &["serve", "--self-managed-certs", "--tls-key", "x", "--tls-cert", "y"],
        ),
        ("usage-serve-managed-alone", &["serve", "--certs-lifetime", "30d"]),
        ("usage-serve-managed-name", &["serve", "--self-managed-certs", "--certs-secret", "tls"]),
        (
            "usage-serve-managed-dwell",
            &[
                "serve",
                "--self-managed-certs",
                "--certs-ca-lifetime",
                "1h",
                "--certs-lifetime",
                "1h",
            ],
        ),
        (
            "usage-serve-managed-lifetime",
            &["serve", "--self-managed-certs", "--certs-lifetime", "366d"],
        ),
        ("usage-serve-log-level", &["serve", "--demo", "--log-level", "a=b=c"]),
        ("usage-serve-controller", &["serve", "--demo", "--controller", "act"]),
        ("usage-serve-wake-after", &["serve", "--demo", "--wake-after", "soon"]),
        ("usage-serve-grace", &["serve", "--demo", "--grace", "0s"]),
        ("usage-unstick-no-reason", &["unstick", "x", "--apply"]),
        ("usage-unstick-empty-reason", &["unstick", "x", "--apply", "--reason", " "]),
        ("usage-unstick-reason-alone", &["unstick", "x", "--reason", "y"]),
        ("usage-unstick-wait-alone", &["unstick", "x", "--wait"]),
        ("usage-unstick-demo", &["unstick", "x", "--demo", "--apply", "--reason", "y"]),
        ("usage-doctor-state", &["doctor", "--demo"]),
        ("usage-doctor-admin", &["doctor", "--admin", "localhost"]),
        ("usage-doctor-output", &["doctor", "-o", "yaml"]),
        ("usage-doctor-extra", &["doctor", "workers"]),
        ("usage-manifests-overlay", &["manifests", "--overlay", "production"]),
    ] {
        let done = run(args);
        assert_eq!((done.code, &*done.stdout), (2, ""), "{name}");
        check(name, &done);
    }
    assert!(!root().join("no-such-dir").exists());
}

#[test]
fn without_a_cluster_the_other_sources_are_named() {
    for args in [&["diagnose"][..], &["can-delete", "x"], &["diagnose", "--kubeconfig", "no/file"]]
    {
        let done = run(args);
        assert_eq!((done.code, &*done.stdout), (2, ""), "{args:?}: {}", done.stderr);
        assert!(done.stderr.starts_with("error: "), "{}", done.stderr);
        let what = if args.len() > 2 { "no/file" } else { "or read files with --state DIR" };
        assert!(done.stderr.contains(what), "{}", done.stderr);
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for command in [
        "serve",
        "review",
        "can-delete",
        "diagnose",
        "unstick",
        "certs",
        "doctor",
        "manifests",
        "completions",
    ] {
        let done = run(&[command, "--help"]);
        assert_eq!((done.code, &*done.stderr), (0, ""), "{command}");
        assert!(done.stdout.contains("Usage: metal3-guard"), "{}", done.stdout);
        assert!(!done.stdout.contains('`'), "Markdown in the help: {}", done.stdout);
    }
    let version = run(&["--version"]);
    assert_eq!(version.stdout, format!("metal3-guard {}\n", env!("CARGO_PKG_VERSION")));
    check("help", &run(&["--help"]));
}

#[test]
fn every_flag_of_serve_is_a_setting_too() {
    let help = run(&["serve", "--help"]).stdout;
    let flags: Vec<_> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--"))
        .map(|line| line.split([' ', '=']).next().unwrap())
        .collect();
    assert!(flags.len() > 10, "{help}");
    for flag in flags {
        let setting = format!("METAL3_GUARD_{}", flag.to_uppercase().replace('-', "_"));
        assert!(help.contains(&format!("[env: {setting}=")), "no {setting} in {help}");
    }
}

#[test]
fn settings_come_from_the_environment() {
    let with = |settings: &[(&str, &str)], args: &[&str]| {
        let mut command = command(args);
        command.envs(settings.iter().copied());
        finish(command, args)
    };
    let metal3 = ["diagnose", "-n", "metal3"];
    for yes in ["true", "1", "yes"] {
        let done = with(&[("METAL3_GUARD_DEMO", yes)], &metal3);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert!(done.stdout.contains("prod-workers"));
    }
    // A variable that says no must never become verdicts about made-up objects.
    for no in ["false", "0", "no"] {
        let done = with(&[("METAL3_GUARD_DEMO", no)], &metal3);
        assert_eq!(done.code, 2, "{}", done.stdout);
        assert!(done.stderr.contains("no cluster"), "{}", done.stderr);
        let state = ("METAL3_GUARD_STATE", "tests/data/states/v1beta1");
        let done = with(&[("METAL3_GUARD_DEMO", no), state], &["diagnose", "-n", "prod"]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert!(done.stdout.contains("prod/control-plane"));
    }
    let done = with(&[("METAL3_GUARD_DEMO", "1"), ("METAL3_GUARD_LISTEN", "1.2.3.4")], &["serve"]);
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains("1.2.3.4") && done.stderr.contains("--listen"), "{}", done.stderr);
}

#[test]
fn completions_are_made_for_each_shell() {
    for (shell, sign) in [
        ("bash", "complete -F"),
        ("elvish", "edit:completion"),
        ("fish", "complete -c metal3-guard"),
        ("powershell", "Register-ArgumentCompleter"),
        ("zsh", "#compdef metal3-guard"),
    ] {
        let done = run(&["completions", shell]);
        assert_eq!((done.code, &*done.stderr), (0, ""), "{shell}");
        assert!(done.stdout.contains(sign), "{shell}");
        for command in ["can-delete", "unstick", "--finalizer-additions"] {
            // Some shells want the dashes apart from the name.
            let word = command.trim_start_matches('-');
            assert!(done.stdout.contains(word), "{shell} does not know {command}");
        }
    }
}

/// `metal3-guard ... | head` is a success, however early the reader leaves.
#[test]
fn a_reader_that_leaves_is_no_failure() {
    let reviews = vec!["tests/data/reviews/delete-free/review.json"; 2000];
    for args in [
        vec!["completions", "zsh"],
        vec!["diagnose", "-A", "--state", "tests/data/states/v1beta1"],
        vec!["diagnose", "-A", "--state", "tests/data/states/v1beta1", "-o", "json"],
        vec!["can-delete", "fleet", "-n", "many", "--state", "tests/data/states/v1beta1"],
        vec!["unstick", "workers", "-n", "ending", "--state", "tests/data/states/v1beta1"],
        [vec!["review", "--state", "tests/data/states/v1beta1"], reviews].concat(),
    ] {
        let mut child = Command::new(binary())
            .args(&args)
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
    }
}
