//! What the README shows is what happens.

use std::fs;

use serde_json::Value;

use crate::{
    guard::{Guard, bash},
    support::{ageless, root, run},
};

/// A fenced block.
struct Block {
    language: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut blocks = Vec::new();
    let mut parts = readme.split("\n```");
    parts.next();
    while let (Some(block), Some(_prose)) = (parts.next(), parts.next()) {
        let (language, text) = block.split_once('\n').unwrap();
        blocks.push(Block { language: language.to_owned(), text: format!("{text}\n") });
    }
    blocks
}

#[test]
fn the_sample_output_is_real() {
    let mut checked = 0;
    for block in blocks().iter().filter(|block| block.language == "console") {
        for sample in format!("\n{}", block.text).split("\n$ metal3-guard ").skip(1) {
            let (line, shown) = sample.split_once('\n').unwrap();
            let done = run(&line.split(' ').collect::<Vec<_>>());
            assert_eq!(ageless(shown).trim_end(), ageless(&done.stdout).trim_end(), "{line}");
            checked += 1;
        }
    }
    assert!(checked >= 4, "{checked} samples only");
}

#[test]
fn the_curl_lines_get_the_answers_shown() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().to_str().unwrap();
    let guard = Guard::start(&["--demo", "--demo-certs", certs], &[]);
    let blocks = blocks();
    let mut checked = 0;
    for pair in blocks.windows(2).filter(|pair| pair[0].text.starts_with("curl ")) {
        let [asked, shown] = pair else { unreachable!() };
        assert!(asked.text.contains("--cacert certs/dev/ca.crt"), "{}", asked.text);
        let line = asked
            .text
            .replace("127.0.0.1:8443", &guard.address.to_string())
            .replace("certs/dev", certs);
        let answer: Value = serde_json::from_str(&bash(&line)).unwrap();
        assert_eq!(shown.language, "json", "{}", asked.text);
        let shown: Value = serde_json::from_str(&shown.text).unwrap();
        assert_eq!(answer, shown, "{line}");
        checked += 1;
    }
    assert_eq!(checked, 3);
}

/// These are the ones that are tried on a node.
#[test]
fn the_install_commands_are_those_of_the_manifests() {
    let manifests = fs::read_to_string(root().join("manifests/README.md")).unwrap();
    let there: Vec<_> = manifests.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let blocks = blocks();
    let install: Vec<_> = blocks.iter().filter(|it| it.text.contains("rollout status")).collect();
    assert_eq!(install.len(), 2);
    for block in install {
        let lines: Vec<_> = block.text.lines().collect();
        assert!(there.windows(lines.len()).any(|part| part == lines), "{}", block.text);
    }
}

#[test]
fn the_set_up_is_two_commands() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let set_up: Vec<_> = blocks().into_iter().filter(|it| it.text.starts_with("make ")).collect();
    let commands: Vec<_> = set_up
        .iter()
        .flat_map(|block| block.text.lines())
        .map(|line| line.split('#').next().unwrap().trim())
        .collect();
    assert_eq!(commands, ["make demo", "make test"]);
    for command in commands {
        let target = command.strip_prefix("make ").unwrap();
        assert!(makefile.contains(&format!("\n{target}:")), "no target {target}");
    }
}
