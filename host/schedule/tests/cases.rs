//! The public cases of `tests/data/cron.json`: what people reported against other schedulers, with the right
//! answers.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;

use chrono::{DateTime, Datelike, NaiveDate, TimeDelta, Timelike, Utc};
use serde::Deserialize;
use tickhost_schedule::{
    ClosedDays, Definition, Dialect, Dst, Gap, Next, Offsets, OnClosedDay, Overlap, Schedule, moved,
};

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
    under_other_rules: Option<serde_json::Map<String, serde_json::Value>>,
}

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
fn last_agrees_with_walking_to_the_end() {
    for case in cases().iter().filter(|c| c.kind == "next") {
        let after = case.after.unwrap();
        let schedule = Schedule::parse(&case.expr, &case.zone, after).unwrap();
        let walked = schedule.preview(after, None, 5).ticks;
        let Some(last) = walked.last() else { continue };
        for until in [last.at, last.at + chrono::TimeDelta::milliseconds(999)] {
            assert_eq!(schedule.last_named(after, until).as_ref(), Some(last), "{}", case.id);
        }
    }
}

/// What the other rules answer is what the `dst` options give.
#[test]
fn the_dst_options_give_what_other_rules_answer() {
    let mut tried = 0;
    for case in cases() {
        let (Some(other), Some(after)) = (case.under_other_rules, case.after) else { continue };
        let options = [
            ("skip", Dst { gap: Some(Gap::Skip), overlap: Some(Overlap::First) }),
            ("both", Dst { gap: Some(Gap::Skip), overlap: Some(Overlap::Both) }),
        ];
        for (name, dst) in options {
            let Some(expected) = other.get(name) else { continue };
            let expected: Vec<DateTime<Utc>> = serde_json::from_value(expected.clone()).unwrap();
            let definition = Definition { dst, ..Definition::new(&case.expr, &case.zone) };
            let schedule = Schedule::new(&definition, None, after).unwrap();
            let count = if case.kind == "next" { expected.len() } else { 100_000 };
            let found: Vec<_> = schedule.preview(after, case.until, count).ticks.iter().map(|t| t.at).collect();
            assert_eq!(found, expected, "{} {name}", case.id);
            tried += 1;
        }
    }
    assert!(tried > 40, "{tried}");
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
            "day-of-week field, column 9: `FRI-MON` runs backwards; write it as two ranges, `FRI-6` and `0-MON`",
        ),
        (
            "? * * * *",
            "minute field, column 1: `?` is picked by the job's name, and none is given; give it, e.g. `--name billing/nightly`",
        ),
        (
            "0 0 12 ? * MON",
            "day-of-month field, column 8: `?` can be read in two ways here: Quartz means \"no value\", tickhost picks one by the job's name; write `*` for no value, `H` for a pick, or set `dialect = \"quartz\"`",
        ),
        (
            "0 0 * * 2#6",
            "day-of-week field, column 9: `2#6` is no n-th weekday of a month: there are five at the most; write `#1` to `#5`, or e.g. `FRIL` for the last one",
        ),
        (
            "0 0 L-31 * *",
            "day-of-month field, column 5: `L-31` is no day before the last; write `L-1` (one day before the last) to `L-30`",
        ),
        (
            "0 21 * * * /opt/run.sh --all",
            "column 12: `/opt/run.sh --all` is the command of a crontab line; give the five fields alone; what runs is the job's `component`; `tickhost import crontab` takes whole files",
        ),
        (
            "0 21 * * * root run-parts --report /etc/cron.hourly",
            "column 12: `root run-parts --report /etc/cron.hourly` is the command of a crontab line; give the five fields alone; what runs is the job's `component`; `tickhost import crontab` takes whole files",
        ),
        (
            "Mon..Fri *-*-* 02:30:00",
            "column 1: `Mon..Fri *-*-* 02:30:00` is an `OnCalendar` value of systemd; write `30 2 * * MON-FRI`",
        ),
        ("daily", "column 1: `daily` is an `OnCalendar` value of systemd; write `0 0 * * *`"),
        (
            "schedule: \"*/5 * * * *\"",
            "column 1: this is a line of a Kubernetes CronJob; write the expression alone, `*/5 * * * *`, or take the whole file with `tickhost import cronjob`",
        ),
        ("'0 2 * * *'", "column 1: the expression stands in quotation marks; write `0 2 * * *`"),
        (
            "rate(5 minutes)",
            "column 1: `rate(5 minutes)` is an expression of Amazon EventBridge; write `@every`, e.g. `@every 5m`",
        ),
        ("@every_minute", "column 1: `@every_minute` is no macro that is known; write `* * * * *`"),
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
    for expr in [
        "@every 0s",
        "@every -5m",
        "@every 1s999ms",
        "@every",
        "@every 9999999h",
        "0 0 * * 2#0",
        "0 0 * * 2#",
        "0 0 * * L",
        "0 0 0W * *",
        "0 0 32W * *",
        "0 0 1-L * *",
        "0 0 * L *",
        "W * * * *",
        "0 ?(5-2) * * *",
        "0 ?(a) * * *",
        "0 ?? * * *",
    ] {
        assert!(Schedule::new(&Definition::new(expr, "UTC"), Some("a/b"), DateTime::UNIX_EPOCH).is_err(), "{expr}");
    }
}

fn named(expr: &str, name: &str) -> Schedule {
    Schedule::new(&Definition::new(expr, "UTC"), Some(name), DateTime::UNIX_EPOCH).unwrap()
}

/// Scenarios A-H1 to A-H4: what `?` and `H` pick stays inside its range and its step, and is the same for ever.
#[test]
fn picks_stay_in_their_ranges() {
    let start: DateTime<Utc> = "2026-02-01T00:00:00Z".parse().unwrap();
    let mut offsets = BTreeSet::new();
    for n in 0..1_000 {
        let name = format!("billing/job-{n}");
        let hour = start + TimeDelta::hours(1) - TimeDelta::seconds(1);
        let of_hour = |expr| named(expr, &name).preview(start - TimeDelta::seconds(1), Some(hour), 100).ticks;
        let five = of_hour("H/5 * * * *");
        assert_eq!(five.len(), 12, "{name}");
        let first = five[0].at.minute();
        assert!(first < 5 && five.windows(2).all(|pair| pair[1].at - pair[0].at == TimeDelta::minutes(5)), "{name}");
        offsets.insert(first);
        assert_eq!(five, of_hour("?/5 * * * *"), "`H` is `?`");

        let half = of_hour("?(0-29)/10 * * * *");
        assert!(half.len() == 3 && half[2].at.minute() < 30, "{name}");

        let night = named("H H(0-7) * * *", &name).preview(start, Some(start + TimeDelta::days(1)), 100).ticks;
        assert!(night.len() == 1 && night[0].at.hour() <= 7, "{name}");

        let year = named("0 0 H * *", &name).preview(start, Some(start + TimeDelta::days(365)), 100).ticks;
        assert!(year.len() == 12 && year[0].at.day() <= 28, "{name}");
    }
    assert_eq!(offsets.len(), 5);
}

/// Golden: what a job's name picks never changes.
#[test]
fn picks_are_what_they_were() {
    let start: DateTime<Utc> = "2026-01-01T00:00:00Z".parse().unwrap();
    for (name, expr, expected) in [
        ("billing/nightly", "? ? * * *", "2026-01-01T18:36:00+00:00"),
        ("billing/nightly", "? ? ? ? *", "2026-04-10T18:36:00+00:00"),
        ("ops/backup", "?/15 ?(1-5) * * ?(1-5)", "2026-01-07T05:07:00+00:00"),
        ("ops/backup", "? ? ?(0-5) * * *", "2026-01-01T05:30:46+00:00"),
    ] {
        let Next::Tick(tick) = named(expr, name).next(start) else { panic!("{expr}") };
        assert_eq!(tick.at.to_rfc3339(), expected, "{name} {expr}");
    }
}

#[test]
fn quartz_counts_sunday_as_one_and_question_marks_as_nothing() {
    let start: DateTime<Utc> = "2026-09-01T00:00:00Z".parse().unwrap();
    let next = |expr: &str| {
        let definition = Definition { dialect: Dialect::Quartz, ..Definition::new(expr, "UTC") };
        match Schedule::new(&definition, None, start).unwrap().next(start) {
            Next::Tick(tick) => tick.at.format("%a %F %T").to_string(),
            other => panic!("{expr}: {other:?}"),
        }
    };
    assert_eq!(next("0 15 10 ? * 6#3"), "Fri 2026-09-18 10:15:00");
    assert_eq!(next("0 15 10 ? * 6L"), "Fri 2026-09-25 10:15:00");
    assert_eq!(next("0 0 12 ? * 1"), "Sun 2026-09-06 12:00:00");
    assert_eq!(next("0 0 12 ? * L"), "Sat 2026-09-05 12:00:00");
    assert_eq!(next("0 0 12 ? * MON-FRI 2027"), "Fri 2027-01-01 12:00:00");
    assert_eq!(next("0 0 12 LW * ?"), "Wed 2026-09-30 12:00:00");
    for (refused, needle) in [
        ("0 2 * * *", "found 5 fields, expected 6 or 7"),
        ("0 0 12 1 * MON", "Quartz takes only one of them"),
        ("0 0 12 ? * 0", "`0` is out of range; expected 1–7"),
        ("? 0 12 ? * *", "`?` stands only in a day field"),
    ] {
        let definition = Definition { dialect: Dialect::Quartz, ..Definition::new(refused, "UTC") };
        let error = Schedule::new(&definition, None, start).unwrap_err().to_string();
        assert!(error.contains(needle), "{refused}: {error}");
    }
}

#[test]
fn expressions_join_and_bounds_cut() {
    let at = |text: &str| -> DateTime<Utc> { text.parse().unwrap() };
    let definition = Definition {
        schedule: vec!["0 9 * * *".into(), "0 */3 * * *".into()],
        not_before: Some(at("2026-01-01T06:00:00.5Z")),
        not_after: Some(at("2026-01-01T15:00:00Z")),
        ..Definition::new("", "UTC")
    };
    let schedule = Schedule::new(&definition, None, at("2025-01-01T00:00:00Z")).unwrap();
    let preview = schedule.preview(at("2025-06-01T00:00:00Z"), None, 100);
    let hours: Vec<u32> = preview.ticks.iter().map(|tick| tick.at.hour()).collect();
    assert_eq!(hours, [9, 12, 15], "09:00 is named twice and is one tick");
    assert!(preview.never);
    let wrong = Definition { schedule: vec!["0 9 * * *".into(), "0 99 * * *".into()], ..definition };
    assert_eq!(Schedule::new(&wrong, None, at("2025-01-01T00:00:00Z")).unwrap_err().expression, 1);
}

/// A closed day's tick keeps its name; it is left out, or launched on the day before or after that is open.
#[test]
fn closed_days_exclude_or_move() {
    let at = |text: &str| -> DateTime<Utc> { text.parse().unwrap() };
    let christmas = |day| NaiveDate::from_ymd_opt(2026, 12, day).unwrap();
    let closed =
        ClosedDays { ranges: vec![(christmas(24), christmas(24))], every_year: vec![(12, 25)], weekdays: vec![0, 6] };
    let with = |on_closed_day| Definition {
        closed: closed.clone(),
        on_closed_day,
        ..Definition::new("0 9 * * *", "Europe/Berlin")
    };
    let due = |on_closed_day| -> Vec<(u32, u32, bool)> {
        let schedule = Schedule::new(&with(on_closed_day), None, at("2026-01-01T00:00:00Z")).unwrap();
        let ticks = schedule.preview(at("2026-12-22T12:00:00Z"), Some(at("2026-12-28T12:00:00Z")), 10).ticks;
        assert!(ticks.iter().all(|tick| tick.due.hour() == 8), "{ticks:?}");
        for until in 23..=29 {
            // 08:30 UTC: after the day's due ones.
            let until = at(&format!("2026-12-{until}T08:30:00Z"));
            let walked = schedule.preview(at("2026-12-22T12:00:00Z"), None, 20).ticks;
            let expected = walked.iter().rfind(|tick| tick.due <= until);
            assert_eq!(schedule.last_due(at("2026-12-22T12:00:00Z"), until).as_ref(), expected);
        }
        ticks.iter().map(|tick| (tick.at.day(), tick.due.day(), tick.excluded)).collect()
    };
    // The 24th is a Thursday.
    let open = (23, 23, false);
    assert_eq!(
        due(OnClosedDay::Skip),
        [open, (24, 24, true), (25, 25, true), (26, 26, true), (27, 27, true), (28, 28, false)]
    );
    assert_eq!(
        due(OnClosedDay::NextOpen),
        [open, (24, 28, false), (25, 28, false), (26, 28, false), (27, 28, false), (28, 28, false)]
    );
    assert_eq!(
        due(OnClosedDay::PreviousOpen),
        [open, (24, 23, false), (25, 23, false), (26, 23, false), (27, 23, false), (28, 28, false)]
    );
    let twice = Definition { schedule: vec!["0 9,17 * * *".into()], ..with(OnClosedDay::NextOpen) };
    let error = Schedule::new(&twice, None, at("2026-01-01T00:00:00Z")).unwrap_err().to_string();
    assert!(error.contains("more than one time a day"), "{error}");
    let none = Definition { closed: ClosedDays::default(), ..with(OnClosedDay::NextOpen) };
    assert!(Schedule::new(&none, None, at("2026-01-01T00:00:00Z")).is_err());
}

/// Names fill a window evenly, and a name's place in it stays.
#[test]
fn a_window_places_the_launch_and_leaves_the_name() {
    let start = "2026-01-01T00:00:00Z".parse().unwrap();
    let definition = Definition { window_s: 1_800, ..Definition::new("0 2 * * *", "UTC") };
    let mut tenths = [0_u32; 10];
    for n in 0..10_000 {
        let schedule = Schedule::new(&definition, Some(&format!("ops/job-{n}")), start).unwrap();
        let ticks = schedule.preview(start, None, 2).ticks;
        let delay = (ticks[0].due - ticks[0].at).num_seconds();
        assert_eq!((ticks[0].at.hour(), ticks[1].due - ticks[1].at), (2, TimeDelta::seconds(delay)));
        tenths[usize::try_from(delay).unwrap() / 180] += 1;
    }
    let chi_square: f64 = tenths.iter().map(|n| (f64::from(*n) - 1_000.0).powi(2) / 1_000.0).sum();
    // Nine degrees of freedom: 40 is passed once in 130,000 draws.
    assert!(chi_square < 40.0, "{tenths:?}");
}

/// Lebanon postponed its summer time of 2023 four days ahead and took that back: with 2023b the ticks from 26 March on
/// were an hour later than with 2023c.
#[test]
fn what_a_tz_release_moves_is_told() {
    let at = |text: &str| -> DateTime<Utc> { text.parse().unwrap() };
    let schedule = Schedule::parse("0 9 * * *", "Asia/Beirut", at("2023-01-01T00:00:00Z")).unwrap();
    let postponed = Offsets::new(7_200, [(at("2023-04-20T22:00:00Z"), 10_800)]);
    let found = moved(&schedule, postponed.into(), at("2023-03-24T12:00:00Z"), at("2023-03-28T12:00:00Z"), 1_000);
    let shown: Vec<(String, String, String)> = found
        .iter()
        .map(|m| (m.wall.to_string(), m.was.unwrap().at.to_rfc3339(), m.is.unwrap().at.to_rfc3339()))
        .collect();
    let tick = |day, was, is| {
        (
            format!("2023-03-{day} 09:00:00"),
            format!("2023-03-{day}T0{was}:00:00+00:00"),
            format!("2023-03-{day}T0{is}:00:00+00:00"),
        )
    };
    assert_eq!(shown, [tick(26, 6, 7), tick(27, 6, 7), tick(28, 6, 7)]);
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

/// Two ticks that are too close are found however many sparse ones come before, and however late the schedule begins.
#[test]
fn a_gap_that_is_too_short_is_found_anywhere_in_the_year() {
    let after: DateTime<Utc> = "2026-07-01T00:00:00Z".parse().unwrap();
    let gap = |lines: &[&str], not_before: Option<&str>, least_s| {
        let schedule = lines.iter().map(|line| (*line).to_owned()).collect();
        let not_before = not_before.map(|at| at.parse().unwrap());
        let definition = Definition { schedule, not_before, ..Definition::new("", "UTC") };
        Schedule::new(&definition, Some("a/b"), after).unwrap().gap_below(after, least_s)
    };
    assert_eq!(gap(&["* * * * *"], None, 60), None);
    assert_eq!(gap(&["* * * * *"], None, 61), Some(60));
    assert_eq!(gap(&["0 0 * * *", "* 5 1 6 *"], None, 3_600), Some(60), "eleven months of single days come before");
    assert_eq!(gap(&["* * * * *"], Some("2031-01-01T00:00:00Z"), 3_600), Some(60), "it begins in years");
    assert_eq!(gap(&["0 0 1 1 *"], None, 3_600), None);
    assert_eq!(gap(&["0 0 31 2 *"], None, 3_600), None, "it never comes");
}
