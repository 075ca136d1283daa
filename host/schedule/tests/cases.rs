//! The public cases of `tests/data/cron.json`: what people reported against other schedulers, with the right
//! answers.
#![allow(missing_docs, clippy::unwrap_used)]

use chrono::{DateTime, Utc};
use serde::Deserialize;
use tickhost_schedule::{Next, Schedule};

#[derive(Deserialize)]
struct Case {
    id: String,
    expr: String,
    zone: String,
    kind: String,
    after: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
    expected: serde_json::Value,
    same_as: Option<String>,
}

/// Cases whose expression uses a part of the dialect that is refused by name.
const NOT_SUPPORTED: [&str; 7] = ["A57", "A58", "A60", "A64", "A66", "A67", "B69"];

fn cases() -> Vec<Case> {
    // As cargo says it when the test runs: it may have been built from another checkout.
    let path = std::env::var("CARGO_MANIFEST_DIR").unwrap() + "/../../tests/data/cron.json";
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn ticks(case: &Case, expr: &str, count: usize) -> Vec<DateTime<Utc>> {
    let after = case.after.unwrap();
    let schedule = Schedule::parse(expr, &case.zone, after).unwrap_or_else(|e| panic!("{}: {e}", case.id));
    schedule.preview(after, case.until, count).ticks.iter().map(|t| t.at).collect()
}

fn check(case: &Case) -> Result<(), String> {
    let parsed = Schedule::parse(&case.expr, &case.zone, DateTime::UNIX_EPOCH);
    if NOT_SUPPORTED.contains(&case.id.as_str()) {
        return match parsed {
            Err(e) if e.message.contains("does not support") => Ok(()),
            other => Err(format!("expected a refusal by name, got {other:?}")),
        };
    }
    if case.kind == "error" {
        return parsed.map_or(Ok(()), |_| Err("was accepted".into()));
    }
    let schedule = parsed.map_err(|e| e.to_string())?;
    let after = case.after.unwrap();
    let agree = |found: &dyn std::fmt::Debug, expected: &dyn std::fmt::Debug, equal: bool| {
        if equal { Ok(()) } else { Err(format!("\n  found    {found:?}\n  expected {expected:?}")) }
    };
    match case.kind.as_str() {
        "next" | "range" | "count" => {
            let expected: Vec<DateTime<Utc>> = serde_json::from_value(case.expected.clone()).unwrap();
            let count = if case.kind == "next" { expected.len() } else { 100_000 };
            let found = ticks(case, &case.expr, count);
            agree(&found, &expected, found == expected)
        }
        "same" => {
            let found = ticks(case, &case.expr, 50);
            let expected = ticks(case, case.same_as.as_deref().unwrap(), 50);
            agree(&found, &expected, found == expected && !found.is_empty())
        }
        "never" => agree(&schedule.next(after), &Next::Never, schedule.next(after) == Next::Never),
        "beyond" => agree(&schedule.next(after), &Next::Horizon, schedule.next(after) == Next::Horizon),
        other => Err(format!("unknown kind {other}")),
    }
}

#[test]
fn public_cases_have_the_right_answers() {
    let cases = cases();
    assert_eq!(cases.len(), 117);
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| check(case).err().map(|e| format!("{} `{}` {}: {e}", case.id, case.expr, case.zone)))
        .collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn last_in_agrees_with_walking_to_the_end() {
    for case in cases().iter().filter(|c| c.kind == "next" && !NOT_SUPPORTED.contains(&c.id.as_str())) {
        let after = case.after.unwrap();
        let schedule = Schedule::parse(&case.expr, &case.zone, after).unwrap();
        let walked = schedule.preview(after, None, 5).ticks;
        let Some(last) = walked.last() else { continue };
        for until in [last.at, last.at + chrono::TimeDelta::milliseconds(999)] {
            assert_eq!(schedule.last_in(after, until).as_ref(), Some(last), "{}", case.id);
        }
    }
}

#[test]
fn refusals_name_the_field_the_column_and_what_to_write() {
    for (expr, expected) in [
        (
            "0 60 * * *",
            "hour field, column 3: `60` is out of range; expected 0–23; numbers do not wrap: write one inside the range",
        ),
        ("*/0 * * * *", "minute field, column 3: `0` is no step; expected a whole number from 1; write e.g. `*/5`"),
        (
            "0 8 * * FRI-MON",
            "day-of-week field, column 9: `FRI-MON` runs backwards; write it as two, e.g. `FRI-6,0-MON`",
        ),
        (
            "0 0 ? * *",
            "day-of-month field, column 5: `?` uses spread (`?`, `H`), which this version does not support; write values, ranges, lists and steps",
        ),
        (
            "0 21 * * * /opt/run.sh --all",
            "column 12: `/opt/run.sh --all` is the command of a crontab line; give the five fields alone; what runs is the job's `component`",
        ),
        (
            "@every 100ms",
            "column 8: `100ms` is no duration in whole units of h, m and s; write `@every` and a whole number of seconds or more, e.g. `@every 90m`, `@every 1h30m`; from 1s to 8784h",
        ),
        (
            "@reboot",
            "column 1: `@reboot` has no meaning here: hosts come and go, the schedule stays; write when it is due, or trigger it with `tickhost trigger`",
        ),
    ] {
        let error = Schedule::parse(expr, "UTC", DateTime::UNIX_EPOCH).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    for expr in ["@every 0s", "@every -5m", "@every 1s999ms", "@every", "@every 9999999h"] {
        assert!(Schedule::parse(expr, "UTC", DateTime::UNIX_EPOCH).is_err(), "{expr}");
    }
}

#[test]
fn every_counts_from_the_instant_the_job_was_stored() {
    let anchor = "2026-01-01T10:07:13Z".parse().unwrap();
    let schedule = Schedule::parse("@every 90m", "UTC", anchor).unwrap();
    let ticks: Vec<String> = schedule.preview(anchor, None, 2).ticks.iter().map(|t| t.at.to_rfc3339()).collect();
    assert_eq!(ticks, ["2026-01-01T11:37:13+00:00", "2026-01-01T13:07:13+00:00"]);
}

proptest::proptest! {
    /// Any text is read or refused, never a panic; what is read walks forward.
    #[test]
    fn any_text_is_safe(text in "[-*/,0-9A-Za-z@?#LW ²]{0,24}", start in 0_i64..4_000_000_000) {
        let after = DateTime::from_timestamp(start, 0).unwrap();
        if let Ok(schedule) = Schedule::parse(&text, "America/New_York", after)
            && let Next::Tick(tick) = schedule.next(after)
        {
            proptest::prop_assert!(tick.at > after);
        }
    }
}
