//! `serve --demo`: one command, then lines to paste.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::guard::{Guard, bash};

#[test]
fn the_printed_lines_work_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("dev");
    // A relative path would only work in the right directory; the lines must not care.
    let certs = certs.to_str().unwrap();
    let mut guard = Guard::start(
        &[
            "--demo",
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
            "--demo-certs",
            certs,
        ],
        &[],
    );
    let printed = guard.printed_until("Ctrl-C");
    let lines: Vec<_> = printed.iter().filter(|line| line.starts_with("curl ")).collect();
    assert_eq!(lines.len(), 5, "{printed:#?}");
    for line in &lines {
        assert!(line.contains(&guard.address.to_string()), "{line}");
        assert!(line.contains(&format!("--cacert '{certs}/ca.crt'")), "{line}");
        assert!(!line.contains(" -k") && !line.contains("--insecure"), "{line}");
    }
    let answers: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str::<Value>(&bash(line)).unwrap()["response"].take())
        .collect();

    let status = &answers[0]["status"];
    assert_eq!((&answers[0]["allowed"], &status["code"]), (&json!(false), &json!(403)));
    let causes = status["details"]["causes"].as_array().unwrap();
    for machine in ["4xk2p", "9dq7z", "tn6wv"] {
        let machine = format!("Metal3Machine/prod-workers-{machine}");
        assert!(causes.iter().any(|cause| cause["message"] == *machine), "{status:#}");
    }
    assert!(status["message"].as_str().unwrap().contains("3 Metal3Machines"), "{status:#}");

    assert_eq!(answers[1]["allowed"], true);
    assert_eq!(answers[2]["allowed"], true);
    assert_eq!(answers[2]["auditAnnotations"]["allowed-by"], "clusterctl delete-for-move");
    assert_eq!(answers[3]["status"]["code"], 422);
    let patch = BASE64_STANDARD.decode(answers[4]["patch"].as_str().unwrap()).unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    assert_eq!(patch, json!([{"op": "remove", "path": "/status/indexes"}]));

    // Ctrl-C is enough; the second one need not wait.
    guard.signal("INT");
    guard.until_message("draining");
    guard.signal("INT");
    assert_eq!(guard.end().code(), Some(3));
}
