//! The next tick: ours beside the crates `cron` and `croner`, in the same process.

use std::{
    hint::black_box,
    str::FromStr,
    time::{Duration, Instant},
};

use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use tickhost_schedule::{Definition, Next, Schedule};

/// Each measurement runs for about this long.
const RUN: Duration = Duration::from_millis(300);
/// Walks begin again here, so that no engine gets to where its tables end.
const YEARS: TimeDelta = TimeDelta::days(20 * 365);
const MANY: usize = 1_000_000;
/// The other crates need more memory for each.
const FEWER: usize = 200_000;

pub(crate) fn run() {
    println!("\nthe next tick, in ns (a walk from tick to tick; the same zone for all three):");
    println!("  {:<28} {:>9} {:>9} {:>9}", "", "tickhost", "cron", "croner");
    let zone = "Europe/Paris";
    for (what, text, zone) in [
        ("plain, UTC", "30 2 * * *", "UTC"),
        ("plain", "30 2 * * *", zone),
        ("every five minutes", "*/5 * * * *", zone),
        ("weekdays", "0 9 * * MON-FRI", zone),
        ("29 February", "0 0 29 2 *", zone),
        ("never", "0 0 30 2 *", zone),
        ("last day (L)", "0 0 L * *", zone),
        ("third Friday (#)", "0 0 * * FRI#3", zone),
        ("nearest weekday (W)", "0 0 15W * *", zone),
    ] {
        let [ours, cron, croner] = [ours(text, zone), cron(text, zone), croner(text, zone)];
        let shown = |ns: Option<f64>| ns.map_or("-".into(), |ns| format!("{ns:.0}"));
        println!("  {what:<28} {:>9} {:>9} {:>9}", shown(ours), shown(cron), shown(croner));
    }
    if let Some(ns) = ours("* * * * * *", zone) {
        println!("  walked, every second: {:.1} million ticks per second", 1_000.0 / ns);
    }
    println!("\nmany schedules, parsed, each with its next tick found (time for one, resident memory for one):");
    many(MANY, "tickhost", |n| {
        let definition = Definition::new(EXPRESSIONS[n % EXPRESSIONS.len()], ZONES[n % ZONES.len()]);
        let schedule = Schedule::new(&definition, Some(&format!("bench/job-{n}")), start()).expect("a schedule");
        black_box(schedule.next(start()));
        schedule
    });
    many(FEWER, "cron", |n| {
        let schedule = cron::Schedule::from_str(&for_cron(EXPRESSIONS[n % EXPRESSIONS.len()])).expect("a schedule");
        black_box(schedule.after(&start().with_timezone(&tz(ZONES[n % ZONES.len()]))).next());
        schedule
    });
    many(FEWER, "croner", |n| {
        let schedule = croner::Cron::from_str(EXPRESSIONS[n % EXPRESSIONS.len()]).expect("a schedule");
        let _ = black_box(schedule.find_next_occurrence(&start().with_timezone(&tz(ZONES[n % ZONES.len()])), false));
        schedule
    });
}

/// What all three understand alike.
const EXPRESSIONS: [&str; 8] = [
    "30 2 * * *",
    "*/5 * * * *",
    "0 9 * * MON-FRI",
    "15 3 1 * *",
    "0 */4 * * *",
    "45 23 * * SAT",
    "0 0 1 1 *",
    "7,37 8-18 * * *",
];
const ZONES: [&str; 4] = ["UTC", "Europe/Paris", "America/New_York", "Asia/Kolkata"];

fn start() -> DateTime<Utc> {
    DateTime::from_timestamp(1_790_000_000, 0).expect("an instant")
}

fn tz(zone: &str) -> Tz {
    zone.parse().expect("a zone")
}

fn for_cron(text: &str) -> String {
    format!("0 {text}")
}

/// Nanoseconds for one step of a walk.
fn walk<T: Copy + Ord>(from: T, until: T, mut next: impl FnMut(T) -> Option<T>) -> f64 {
    let (mut at, mut steps) = (from, 0_u64);
    let began = Instant::now();
    while began.elapsed() < RUN {
        for _ in 0..16 {
            at = black_box(next(at)).filter(|at| *at < until).unwrap_or(from);
            steps += 1;
        }
    }
    began.elapsed().as_nanos() as f64 / steps as f64
}

fn ours(text: &str, zone: &str) -> Option<f64> {
    let schedule = Schedule::parse(text, zone, start()).ok()?;
    Some(walk(start(), start() + YEARS, |at| match schedule.next(at) {
        Next::Tick(tick) => Some(tick.at),
        Next::Never | Next::Horizon => None,
    }))
}

fn cron(text: &str, zone: &str) -> Option<f64> {
    let schedule = cron::Schedule::from_str(&for_cron(text)).ok()?;
    let zone = tz(zone);
    let from = start().with_timezone(&zone);
    Some(walk(from, from + YEARS, |at| schedule.after(&at).next()))
}

fn croner(text: &str, zone: &str) -> Option<f64> {
    let schedule = croner::Cron::from_str(text).ok()?;
    let zone = tz(zone);
    let from = start().with_timezone(&zone);
    Some(walk(from, from + YEARS, |at| schedule.find_next_occurrence(&at, false).ok()))
}

fn many<T>(count: usize, name: &str, make: impl Fn(usize) -> T) {
    // The tables of the zones are built once and are not what is measured.
    (0..EXPRESSIONS.len()).for_each(|n| drop(make(n)));
    let before = resident_bytes();
    let began = Instant::now();
    let all: Vec<T> = (0..count).map(make).collect();
    let took = began.elapsed();
    let bytes = resident_bytes().saturating_sub(before);
    println!("  {name:<9} {count:>9}: {:>6} ns, {:>5} bytes", took.as_nanos() / count as u128, bytes / count as u64);
    drop(black_box(all));
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("the process's memory");
    let pages: u64 = status.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("resident pages");
    // As everywhere that tickhost runs.
    pages * 4_096
}
