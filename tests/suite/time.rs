//! What the command line says about time: `explain`, `check`, `forecast`, `import`. No host is asked.

use std::{
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

use chrono::{DateTime, Utc};
use serde_json::Value;
use support::host::{cli, write_manifest};

fn tickhost(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = cli("http://127.0.0.1:9", arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn json(arguments: &[&str]) -> Value {
    let (code, out, err) = tickhost(&[&["--format", "json"], arguments].concat());
    assert_eq!(code, Some(0), "{arguments:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn explain_says_what_happens_on_the_next_odd_day() {
    let after = ["--after", "2027-01-01T00:00:00Z", "--zone", "Europe/Berlin"];
    let said = |expression: &str| json(&[&["explain", expression], &after[..]].concat());
    let fixed = said("30 2 * * *");
    assert_eq!(fixed["sentence"], "At 02:30 every day, Europe/Berlin time.");
    assert_eq!(fixed["odd_day"]["date"], "2027-03-28");
    assert_eq!(fixed["odd_day"]["change"], "the clock goes from 02:00 to 03:00");
    assert!(fixed["odd_day"]["what"].as_str().unwrap().starts_with("due at 03:00, in place of 02:30"), "{fixed}");
    let wild = said("0 * * * *");
    assert_eq!(wild["odd_day"]["what"], "due 23 times instead of 24");
    let uneven = said("*/45 * * * *");
    assert!(uneven["warnings"][0]["message"].as_str().unwrap().contains("is not every 45"), "{uneven}");
    let sunday = said("0 9 * * 1");
    assert!(sunday["elsewhere"].as_str().unwrap().contains("is due on Sun"), "{sunday}");
    assert_eq!(said("0 9 * * MON")["elsewhere"], Value::Null);
    let picked = json(&["explain", "? ? * * *", "--name", "billing/nightly"]);
    assert_eq!((&picked["picked"]["minute"][0], &picked["picked"]["hour"][0]), (&36.into(), &18.into()));
}

const HERD: &str = r#"
namespace = "t"
[job.gap]
component = "a.wasm"
schedule = "30 2 * * *"
time_zone = "Europe/Berlin"
on_unknown = "skip"
[job.herd]
component = "a.wasm"
schedule = "0 4 31 * *"
on_unknown = "repeat"
catch_up = "none"
[job.also]
component = "a.wasm"
schedule = ["0 4 * * *", "@hourly"]
on_unknown = "repeat"
"#;

#[test]
fn check_finds_what_is_seldom_meant_and_forecast_shows_the_load() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = write_manifest(dir.path(), HERD);
    let path = manifest.to_str().unwrap();
    let found = json(&["check", path, "--after", "2027-01-01T00:00:00Z"]);
    let kinds: Vec<(String, String)> = found["found"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| (f["job"].as_str().unwrap().to_owned(), f["kind"].as_str().unwrap().to_owned()))
        .collect();
    let has = |job: &str, kind: &str| kinds.contains(&(job.into(), kind.into()));
    assert!(has("t/gap", "odd-day") && has("t/herd", "herd") && has("t/herd", "short-month"), "{kinds:?}");
    assert!(has("t/herd", "policy") && has("t/also", "herd") && !has("t/gap", "herd"), "{kinds:?}");
    assert_eq!(tickhost(&["check", path, "--strict"]).0, Some(1));

    let forecast = ["forecast", path, "--from", "2027-01-31T00:00:00Z", "--for", "1d", "--spread"];
    let load = json(&forecast);
    // Every hour, 02:30, and 04:00 of the 31st, which two jobs name and one of them twice.
    assert_eq!((&load["before"]["total"], &load["before"]["peak"]), (&26.into(), &2.into()));
    assert_eq!(load["before"]["busiest"][0]["at"], "2027-01-31T04:00:00Z");
    assert_eq!(load["after"]["peak"], 1, "{load}");
    let (code, text, _) = tickhost(&forecast);
    assert_eq!((code, text.matches('█').count() > 0), (Some(0), true), "{text}");
}

#[test]
fn calendars_beside_the_manifest_close_days() {
    let dir = tempfile::tempdir().unwrap();
    let text = HERD.replace("on_unknown = \"skip\"", "on_unknown = \"skip\"\nexclude = [\"holidays/de\"]");
    let manifest = write_manifest(dir.path(), &text);
    let path = manifest.to_str().unwrap();
    let (code, _, err) = tickhost(&["check", path]);
    assert_eq!(code, Some(2));
    assert!(err.contains("calendar `holidays/de`: read") && err.contains("line 8, column 12"), "{err}");
    std::fs::create_dir_all(dir.path().join("calendars/holidays")).unwrap();
    std::fs::write(dir.path().join("calendars/holidays/de.toml"), "days = [\"2027-01-02..2027-01-04\"]").unwrap();
    let total = |for_days: &str| {
        let load = json(&["forecast", path, "--from", "2027-01-01T00:00:00Z", "--for", for_days]);
        load["before"]["total"].as_u64().unwrap()
    };
    // Hourly, and 02:30 of Berlin on the 1st and the 5th of January alone.
    assert_eq!(total("5d"), 5 * 24 + 2);
}

/// The crontabs that Debian's packages bring: imported whole, and due when `croner` says so.
#[test]
fn debians_crontabs_import_whole() {
    let crontabs = crontabs();
    assert!(crontabs.len() >= 10, "{crontabs:?}");
    let dir = tempfile::tempdir().unwrap();
    let mut jobs_in_all = 0;
    for crontab in &crontabs {
        let text = std::fs::read_to_string(crontab).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(is_job).collect();
        let reboots = lines.iter().filter(|line| line.starts_with("@reboot")).count();
        let arguments = ["import", "crontab", "--system", "--on-unknown", "repeat", "--namespace", "debian"];
        let imported = json(&[&arguments[..], &[crontab.to_str().unwrap()]].concat());
        assert_eq!(imported["jobs"], lines.len() - reboots, "{crontab:?}: {imported:#}");
        let remarks = imported["not_carried_over"].as_array().unwrap();
        assert!(remarks.len() >= lines.len(), "every command needs a component: {imported:#}");
        if lines.len() == reboots {
            continue;
        }
        let manifest = write_manifest(dir.path(), imported["manifest"].as_str().unwrap());
        let checked = json(&["check", manifest.to_str().unwrap()]);
        assert_eq!(checked["jobs"], imported["jobs"], "{crontab:?}");
        let parsed: toml::Table = toml::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
        for job in parsed["job"].as_table().unwrap().values() {
            same_as_croner(job["schedule"].as_str().unwrap());
            jobs_in_all += 1;
        }
    }
    println!("{} crontabs, {jobs_in_all} jobs", crontabs.len());
}

fn same_as_croner(schedule: &str) {
    let after: DateTime<Utc> = "2026-01-01T00:00:00Z".parse().unwrap();
    let ours = json(&["next", schedule, "--after", &after.to_rfc3339(), "--count", "50"]);
    let ours: Vec<DateTime<Utc>> = serde_json::from_value(ours["ticks"].clone()).unwrap();
    let theirs: Vec<DateTime<Utc>> = croner::Cron::from_str(schedule).unwrap().iter_after(after).take(50).collect();
    assert_eq!(ours, theirs, "{schedule}");
}

fn is_job(line: &&str) -> bool {
    let is_variable = line
        .split_once('=')
        .is_some_and(|(name, _)| name.trim().bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
    !line.is_empty() && !line.starts_with('#') && !is_variable
}

/// Fetched once into the target folder.
fn crontabs() -> Vec<PathBuf> {
    let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debian-crontabs");
    let script = support::root().join("tests/suite/debian-crontabs.sh");
    let fetched = Command::new("sh").arg(script).arg(&into).status().unwrap();
    assert!(fetched.success(), "fetch Debian's crontabs");
    let packages = std::fs::read_dir(&into).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let mut files: Vec<PathBuf> = packages
        .flat_map(|package| std::fs::read_dir(package.path()).unwrap().flatten().map(|file| file.path()))
        .collect();
    files.sort();
    files
}
