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

/// As text, in a zone whose clock changes and in one whose clock does not; with a reader that has had enough.
#[test]
fn next_as_text_has_utc_local_and_what_is_odd() {
    let arguments =
        ["next", "30 2 * * *", "--zone", "Europe/Berlin", "--after", "2027-03-26T12:00:00Z", "--count", "2"];
    let (code, out, _) = run(&arguments);
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "2027-03-27T01:30:00Z  2027-03-27T02:30:00+01:00  Sat");
    assert!(lines[1].starts_with("2027-03-28T01:00:00Z  2027-03-28T03:00:00+02:00  Sun  in place of 02:30"), "{out}");
    for zone in ["UTC", "Etc/GMT+5", "Asia/Kolkata"] {
        for verb in ["next", "explain"] {
            assert_eq!(run(&[verb, "0 2 * * *", "--zone", zone]).0, Some(0), "{verb} {zone}");
        }
    }
    let binary = support::host::binary();
    let piped = format!("{} next '* * * * *' --count 100000 | head -1", binary.display());
    let output = std::process::Command::new("sh").args(["-c", &piped]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn instants_beyond_all_time_are_refused_and_not_computed_with() {
    for verb in ["next", "explain"] {
        for after in ["+262142-12-31T23:59:59Z", "1066-10-14T00:00:00Z", "yesterday"] {
            let (code, _, err) = run(&[verb, "0 2 * * *", &format!("--after={after}")]);
            assert_eq!(code, Some(2), "{verb} {after}: {err}");
        }
    }
}
