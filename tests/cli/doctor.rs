//! `doctor` where there is no cluster to look at.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    thread,
};

use serde_json::json;

use crate::support::{Done, run};

/// Runs `doctor` with a kubeconfig that names this server.
fn doctor(server: &str, more: &[&str]) -> Done {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "one", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {"token": "abc"}}],
        "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
    });
    fs::write(&path, kubeconfig.to_string()).unwrap();
    run(&[&["doctor", "--kubeconfig", path.to_str().unwrap()], more].concat())
}

/// A server that gives each of its first connections this answer to its first request, and is gone.
fn answering(connections: usize, answer: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().take(connections) {
            let mut stream = stream.unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while request.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn an_api_server_that_cannot_be_reached_is_no_finding() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for form in ["text", "json"] {
        for scheme in ["http", "https"] {
            let done = doctor(&format!("{scheme}://{closed}"), &["-o", form]);
            assert_eq!((done.code, &*done.stdout), (3, ""), "{}", done.stderr);
            let start = "error: the API server cannot be asked: Connection refused";
            assert!(done.stderr.starts_with(start), "{}", done.stderr);
            assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        }
    }
}

#[test]
fn an_api_server_that_refuses_says_why() {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized",
        "message": "who are you?", "code": 401,
    });
    let body = status.to_string();
    let answer = format!(
        "HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let done = doctor(&format!("http://{}", answering(1, answer)), &[]);
    assert_eq!((done.code, &*done.stdout), (3, ""), "{}", done.stderr);
    assert_eq!(done.stderr, "error: the API server cannot be asked: 401 who are you?\n");
}

#[test]
fn what_speaks_no_http_is_no_api_server() {
    let address = answering(1, "SSH-2.0-OpenSSH_9.9\r\n".into());
    let done = doctor(&format!("http://{address}"), &[]);
    assert_eq!((done.code, &*done.stdout), (3, ""), "{}", done.stderr);
    assert!(done.stderr.starts_with("error: the API server cannot be asked: "), "{}", done.stderr);
}

#[test]
fn a_kubeconfig_that_is_not_there_is_a_wrong_call() {
    let done = run(&["doctor", "--kubeconfig", "no/such/file"]);
    assert_eq!((done.code, &*done.stdout), (2, ""), "{}", done.stderr);
    assert!(
        done.stderr.starts_with("error: cannot use kubeconfig no/such/file: "),
        "{}",
        done.stderr
    );

    let done = doctor("http://127.0.0.1:1", &["--context", "elsewhere"]);
    assert_eq!((done.code, &*done.stdout), (2, ""), "{}", done.stderr);
    assert!(done.stderr.contains("elsewhere"), "{}", done.stderr);
}

/// It looks at a cluster and at nothing else: no word of other sources.
#[test]
fn without_a_cluster_a_kubeconfig_is_asked_for() {
    let done = run(&["doctor"]);
    assert_eq!((done.code, &*done.stdout), (2, ""), "{}", done.stderr);
    assert!(done.stderr.starts_with("error: no cluster: "), "{}", done.stderr);
    assert!(done.stderr.ends_with(". Name one with --kubeconfig\n"), "{}", done.stderr);
    assert!(!done.stderr.contains("--state"), "{}", done.stderr);
}
