//! Whole nodes, simulated: `simulation/main.rs` as a program of its own, as `cargo xtask simulate` runs it for longer.

use std::process::{Command, Output};

use support::host::program;

/// Simulations that are tried here; `cargo xtask simulate` tries thousands.
const SEEDS: &str = "200";

fn simulate(arguments: &[&str]) -> Output {
    Command::new(program("simulate")).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let dir = tempfile::tempdir().unwrap();
    for seed in ["1001", "1002", "1003"] {
        let history = |name: &str| {
            let path = dir.path().join(name);
            let output = simulate(&[seed, "--trace", path.to_str().unwrap()]);
            assert!(output.status.success(), "{}", said(&output));
            (std::fs::read(path).unwrap(), said(&output))
        };
        let (first, second) = (history("first"), history("second"));
        assert!(first.0.len() > 100_000, "{seed}: a history of {} bytes", first.0.len());
        assert!(first == second, "{seed}: {} and {}", first.1, second.1);
    }
}

#[test]
fn what_must_hold_holds_in_two_hundred_simulations() {
    let output = simulate(&["--from", "1", "--count", SEEDS]);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    let summary = said.lines().last().unwrap();
    assert!(summary.starts_with(SEEDS) && summary.contains(" 0 without any, 0 failed"), "{said}");
}

#[test]
fn every_planted_bug_is_found_by_what_should_find_it() {
    let output = simulate(&["--all-planted"]);
    assert!(output.status.success(), "{}", said(&output));
}
