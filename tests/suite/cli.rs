//! The command line as people and scripts use it.

use serde_json::{Value, json};
use support::host::cli;

/// Nobody answers here: port 9 of the loopback interface is never open on a test machine.
const NOBODY: &str = "http://127.0.0.1:9";

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = cli(NOBODY, arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn next_prints_ticks_as_json() {
    let arguments = ["next", "0 0 * * *", "--after", "2025-12-31T12:00:00Z", "--count", "2", "--format", "json"];
    let (code, out, _) = run(&arguments);
    let found: Value = serde_json::from_str(&out).unwrap();
    let expected = json!({
        "ticks": ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"],
        "never": false, "horizon_reached": false, "warnings": [],
    });
    assert_eq!((code, found), (Some(0), expected));
}

#[test]
fn next_says_never_and_where_the_rules_end() {
    let (_, out, _) = run(&["next", "0 0 30 2 *", "--format", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["never"], true);
    let (_, out, _) = run(&["next", "0 0 * * *", "--after", "2099-12-31T12:00:00Z", "--format", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["horizon_reached"], true);
}

#[test]
fn a_refused_expression_exits_2_with_a_caret_under_it() {
    let (code, out, err) = run(&["next", "0 61 * * *"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains("hour field, column 3"), "{err}");
    assert!(err.contains("\n  0 61 * * *\n    ^^\n"), "{err}");
}

#[test]
fn a_host_that_is_not_there_exits_3_and_says_what_to_do() {
    for arguments in [&["jobs"][..], &["status"], &["ticks", "a/b"]] {
        let (code, _, err) = run(arguments);
        assert_eq!(code, Some(3), "{arguments:?}: {err}");
        assert!(err.contains("tickhost dev"), "{err}");
    }
}

#[test]
fn a_re_run_says_which_keys_it_wants() {
    let (code, _, err) = run(&["trigger", "a/b", "--tick", "2026-01-01T00:00:00Z"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("--same-key") && err.contains("--new-key"), "{err}");
}
