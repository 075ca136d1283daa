//! Any text as an expression, and the next ticks of what is taken, from any instant: no panic, no overflow, and an
//! answer in bounded time, which libFuzzer's own `-timeout` watches.
#![no_main]

use chrono::{DateTime, NaiveDate, Utc};
use libfuzzer_sys::fuzz_target;
use tickhost_schedule::{ClosedDays, Definition, Dialect, Dst, Expression, Gap, Next, OnClosedDay, Overlap, Schedule};

const ZONES: [&str; 8] = [
    "UTC",
    "Europe/Paris",
    "America/New_York",
    "Pacific/Apia",
    "Australia/Lord_Howe",
    "Africa/Monrovia",
    "Antarctica/Troll",
    "Asia/Kathmandu",
];

fuzz_target!(|data: &[u8]| {
    let Some((head, text)) = data.split_at_checked(16) else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let instant = |bytes: &[u8]| -> DateTime<Utc> {
        let seconds = bytes.iter().fold(0_i64, |value, byte| value << 8 | i64::from(*byte));
        // Anything that chrono can hold, most of it in our time.
        DateTime::from_timestamp(seconds - (1 << 38), 0).unwrap_or_default()
    };
    let after = instant(&head[..5]);
    let flags = head[5];
    let dialect = if flags & 1 == 0 { Dialect::Cron } else { Dialect::Quartz };
    if let Ok(expression) = Expression::parse(text, dialect, Some("fuzz/job")) {
        let _ = (expression.sentence(), expression.spread(), expression.day_rule(), expression.picks());
    }
    let day = NaiveDate::from_num_days_from_ce_opt(719_163 + i32::from(head[6]) * 100).unwrap_or_default();
    let definition = Definition {
        schedule: text.split('|').map(ToOwned::to_owned).collect(),
        dialect,
        dst: Dst {
            gap: [None, Some(Gap::After), Some(Gap::Skip), Some(Gap::Shift)][usize::from(head[7] & 3)],
            overlap: [None, Some(Overlap::First), Some(Overlap::Second), Some(Overlap::Both)]
                [usize::from(head[7] >> 2 & 3)],
        },
        not_before: (flags & 2 != 0).then(|| instant(&head[8..13])),
        not_after: (flags & 4 != 0).then(|| instant(&head[9..14])),
        window_s: if flags & 8 != 0 { u32::from(head[14]) * 300 } else { 0 },
        closed: ClosedDays {
            ranges: if flags & 16 != 0 { vec![(day, day + chrono::Days::new(u64::from(head[15])))] } else { vec![] },
            every_year: if flags & 32 != 0 { vec![(2, 29), (12, 25)] } else { vec![] },
            weekdays: if flags & 64 != 0 { vec![0, 6] } else { vec![] },
        },
        on_closed_day: [OnClosedDay::Skip, OnClosedDay::NextOpen, OnClosedDay::PreviousOpen, OnClosedDay::Skip]
            [usize::from(head[7] >> 4 & 3)],
        ..Definition::new("", ZONES[usize::from(head[7] >> 5)])
    };
    let Ok(schedule) = Schedule::new(&definition, Some("fuzz/job"), after) else { return };
    let mut from = after;
    for _ in 0..4 {
        let Next::Tick(tick) = schedule.next(from) else { break };
        assert!(tick.at > from, "{tick:?} is not after {from}");
        assert!(schedule.names(tick.at), "{tick:?} is not named");
        assert_eq!(schedule.last_named(from, tick.at), Some(tick));
        let _ = schedule.note(&tick);
        from = tick.at;
    }
    if let Some(last) = schedule.last_due(after, from) {
        assert!(last.due <= from);
    }
});
