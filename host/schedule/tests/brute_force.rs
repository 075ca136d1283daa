//! Schedules against an independent reading of the rules, which walks every day, minute and second of local time
//! and looks up every instant.
//!
//! `TICKHOST_TRIPLES` says how many random (expression, zone, interval) triples are tried, and
//! `TICKHOST_TRIPLE_SEED` where they begin; `cargo xtask triples COUNT [SEED]` sets both.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;

use chrono::{DateTime, Datelike, Days, NaiveDate, NaiveDateTime, Offset, TimeDelta, TimeZone, Timelike, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};
use tickhost_schedule::{Definition, Dst, Gap, Offsets, Overlap, Schedule};

const TRIPLES: u64 = 20_000;

#[test]
fn random_triples_have_the_ticks_that_brute_force_finds() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (count, from) = (number("TICKHOST_TRIPLES", TRIPLES), number("TICKHOST_TRIPLE_SEED", 1_u64));
    let (mut ticks, mut odd) = (0, 0);
    for seed in from..from + count {
        let triple = Triple::new(seed);
        let found: Vec<i64> = triple.found();
        let expected: Vec<i64> = triple.expected().into_iter().collect();
        assert!(
            found == expected,
            "seed {seed}: {triple:?}\n  found    {}\n  expected {}\n  again: cargo xtask triples 1 {seed}",
            show(&found),
            show(&expected)
        );
        ticks += found.len();
        odd += usize::from(triple.is_near_a_change());
    }
    println!("{count} triples, {odd} of them over a change of offset, {ticks} ticks: no difference");
    assert!(count < 1_000 || ticks as u64 > count && odd as u64 > count / 2, "{ticks} ticks, {odd} odd days");
}

fn show(instants: &[i64]) -> String {
    let text = |at: &i64| DateTime::from_timestamp(*at, 0).unwrap().to_rfc3339();
    instants.iter().take(12).map(text).collect::<Vec<_>>().join(" ")
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn within(&mut self, lo: u32, hi: u32) -> u32 {
        lo + self.below(u64::from(hi - lo + 1)) as u32
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Debug, Clone)]
enum Element {
    Star,
    Value(u32),
    Range(u32, u32),
    Step(Box<Element>, u32),
    /// `N/s`
    From(u32, u32),
    Last,
    BeforeLast(u32),
    NearestTo(u32),
    LastWorkday,
    LastOf(u32),
    Nth(u32, u32),
}

/// A field as a list of elements: written as text, and read here once more in the plainest way.
#[derive(Debug, Clone)]
struct Column {
    elements: Vec<Element>,
    lo: u32,
    hi: u32,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = ["jan", "Feb", "MAR", "apr", "MAY", "jun", "Jul", "AUG", "sep", "OCT", "nov", "DEC"];
const WEEKDAYS: [&str; 7] = ["sun", "MON", "Tue", "wed", "THU", "fri", "SAT"];

impl Column {
    fn new(random: &mut Random, (lo, hi): (u32, u32), names: &'static [&'static str], special: u32) -> Self {
        let elements = match random.below(10) {
            0..=3 => vec![Element::Star],
            4..=8 => vec![Self::element(random, lo, hi, special)],
            _ => (0..random.within(2, 3)).map(|_| Self::element(random, lo, hi, special)).collect(),
        };
        Self { elements, lo, hi, names }
    }

    fn fixed(random: &mut Random, lo: u32, hi: u32) -> Self {
        Self { elements: vec![Element::Value(random.within(lo, hi))], lo, hi, names: &[] }
    }

    fn element(random: &mut Random, lo: u32, hi: u32, special: u32) -> Element {
        if special == 1 && random.one_in(4) {
            return match random.below(4) {
                0 => Element::Last,
                1 => Element::BeforeLast(random.within(1, 30)),
                2 => Element::NearestTo(random.within(1, 31)),
                _ => Element::LastWorkday,
            };
        }
        if special == 2 && random.one_in(4) {
            let weekday = random.within(0, 7);
            return if random.one_in(2) {
                Element::LastOf(weekday)
            } else {
                Element::Nth(weekday, random.within(1, 5))
            };
        }
        // 7 is a weekday that may be written; stars and open steps end at 6.
        let top = if special == 2 { 7 } else { hi };
        let range = |random: &mut Random| {
            let (a, b) = (random.within(lo, top), random.within(lo, top));
            Element::Range(a.min(b), a.max(b))
        };
        match random.below(6) {
            0 => Element::Star,
            1 => range(random),
            2 => Element::Step(Box::new(Element::Star), random.within(1, hi + 3)),
            3 => Element::Step(Box::new(range(random)), random.within(1, 9)),
            4 => Element::From(random.within(lo, hi), random.within(1, 20)),
            _ => Element::Value(random.within(lo, top)),
        }
    }

    fn text(&self, random: &mut Random) -> String {
        let texts: Vec<String> = self.elements.iter().map(|element| self.element_text(element, random)).collect();
        texts.join(",")
    }

    fn element_text(&self, element: &Element, random: &mut Random) -> String {
        let mut value = |v: u32| match self.names.get((v - self.lo) as usize) {
            Some(name) if random.one_in(2) => (*name).to_owned(),
            _ if random.one_in(9) => format!("0{v}"),
            _ => v.to_string(),
        };
        match element {
            Element::Star => "*".into(),
            Element::Value(v) => value(*v),
            Element::Range(a, b) => {
                // A name in front of a number would read as a reversed range where 7 stands for Sunday.
                format!("{}-{}", value(*a), value(*b))
            }
            Element::Step(base, step) => format!("{}/{step}", self.element_text(base, random)),
            Element::From(from, step) => format!("{}/{step}", value(*from)),
            Element::Last => "L".into(),
            Element::BeforeLast(n) => format!("l-{n}"),
            Element::NearestTo(n) => format!("{n}W"),
            Element::LastWorkday => "LW".into(),
            Element::LastOf(weekday) => format!("{}L", value(*weekday)),
            Element::Nth(weekday, k) => format!("{}#{k}", value(*weekday)),
        }
    }

    fn starts_with_a_star(&self) -> bool {
        match &self.elements[0] {
            Element::Star => true,
            Element::Step(base, _) => matches!(**base, Element::Star),
            _ => false,
        }
    }

    fn has(&self, value: u32) -> bool {
        self.elements.iter().any(|element| self.element_has(element, value))
    }

    fn element_has(&self, element: &Element, value: u32) -> bool {
        match element {
            Element::Star => true,
            Element::Value(v) => *v == value,
            Element::Range(a, b) => (*a..=*b).contains(&value),
            Element::Step(base, step) => match **base {
                Element::Star => (value - self.lo).is_multiple_of(*step),
                Element::Range(a, b) => (a..=b).contains(&value) && (value - a).is_multiple_of(*step),
                _ => unreachable!(),
            },
            Element::From(from, step) => (*from..=self.hi).contains(&value) && (value - from).is_multiple_of(*step),
            _ => false,
        }
    }

    fn has_day(&self, date: NaiveDate) -> bool {
        let last = last_of_month(date);
        self.has(date.day())
            || self.elements.iter().any(|element| match element {
                Element::Last => date == last,
                Element::BeforeLast(n) => date + Days::new(u64::from(*n)) == last,
                Element::LastWorkday => date == nearest_workday(last),
                Element::NearestTo(n) => date.with_day(*n).is_some_and(|target| date == nearest_workday(target)),
                _ => false,
            })
    }

    fn has_weekday(&self, date: NaiveDate) -> bool {
        let weekday = date.weekday().num_days_from_sunday();
        self.has(weekday)
            || weekday == 0 && self.has_seven()
            || self.elements.iter().any(|element| match element {
                Element::LastOf(w) => w % 7 == weekday && date.day() + 7 > last_of_month(date).day(),
                Element::Nth(w, k) => w % 7 == weekday && (date.day() - 1) / 7 + 1 == *k,
                _ => false,
            })
    }

    /// 7 is Sunday where it is written, not where a star or an open step ends.
    fn has_seven(&self) -> bool {
        self.elements.iter().any(|element| match element {
            Element::Value(7) | Element::Range(_, 7) => true,
            Element::Step(base, step) => match **base {
                Element::Range(a, 7) => (7 - a).is_multiple_of(*step),
                _ => false,
            },
            _ => false,
        })
    }
}

fn last_of_month(date: NaiveDate) -> NaiveDate {
    (28..=31).rev().find_map(|day| date.with_day(day)).unwrap()
}

/// The workday nearest to a day, in its month.
fn nearest_workday(day: NaiveDate) -> NaiveDate {
    let is_workday = |date: &NaiveDate| date.weekday().number_from_monday() <= 5;
    let around = [0_i64, -1, 1, -2, 2].map(|days| day + TimeDelta::days(days));
    around.into_iter().find(|date| is_workday(date) && date.month() == day.month()).unwrap()
}

#[derive(Debug, Clone)]
struct Line {
    text: String,
    second: Option<Column>,
    minute: Column,
    hour: Column,
    day: Column,
    month: Column,
    weekday: Column,
    /// First and last year.
    years: Option<(u32, u32)>,
}

impl Line {
    fn new(random: &mut Random, year: u32) -> Self {
        let years = random.one_in(8).then(|| {
            let first = random.within(year.saturating_sub(1), year);
            (first.max(1970), random.within(first, first + 1).max(1970))
        });
        let has_second = years.is_some() || random.one_in(4);
        let second = has_second.then(|| match random.one_in(2) {
            true => Column::new(random, (0, 59), &[], 0),
            false => Column::fixed(random, 0, 0),
        });
        // Many expressions have one time a day: intervals of weeks are walked for them.
        let (minute, hour) = if random.one_in(2) {
            (Column::fixed(random, 0, 59), Column::fixed(random, 0, 5))
        } else {
            (Column::new(random, (0, 59), &[], 0), Column::new(random, (0, 23), &[], 0))
        };
        let day = Column::new(random, (1, 31), &[], 1);
        let month = Column::new(random, (1, 12), &MONTHS, 0);
        let weekday = Column::new(random, (0, 6), &WEEKDAYS, 2);
        let columns = second.iter().chain([&minute, &hour, &day, &month, &weekday]);
        let mut text = columns.map(|column| column.text(random)).collect::<Vec<_>>().join(" ");
        if let Some((first, last)) = years {
            text += &format!(" {first}-{last}");
        }
        Self { text, second, minute, hour, day, month, weekday, years }
    }

    fn is_wild(&self) -> bool {
        self.minute.starts_with_a_star() || self.hour.starts_with_a_star()
    }

    fn names_day(&self, date: NaiveDate) -> bool {
        let (day, weekday) = (self.day.has_day(date), self.weekday.has_weekday(date));
        let both = self.day.starts_with_a_star() || self.weekday.starts_with_a_star();
        let year = self.years.is_none_or(|(first, last)| (first..=last).contains(&date.year().cast_unsigned()));
        year && self.month.has(date.month()) && if both { day && weekday } else { day || weekday }
    }

    fn names_time(&self, wall: NaiveDateTime) -> bool {
        let second = self.second.as_ref().map_or(wall.second() == 0, |column| column.has(wall.second()));
        second && self.minute.has(wall.minute()) && self.hour.has(wall.hour())
    }

    /// Every wall time in `[from, to)` that matches.
    fn walls(&self, from: NaiveDateTime, to: NaiveDateTime) -> Vec<NaiveDateTime> {
        let step = TimeDelta::seconds(if self.second.is_some() { 1 } else { 60 });
        let mut walls = Vec::new();
        let mut date = from.date();
        while date <= to.date() {
            if self.names_day(date) {
                let mut wall = date.and_hms_opt(0, 0, 0).unwrap();
                while wall.date() == date {
                    if (from..to).contains(&wall) && self.names_time(wall) {
                        walls.push(wall);
                    }
                    wall += step;
                }
            }
            date = date.succ_opt().unwrap();
        }
        walls
    }
}

/// A stretch of constant offset, as found by looking at every quarter of an hour.
struct Segment {
    begin: i64,
    end: i64,
    offset: i64,
}

#[derive(Debug)]
struct Triple {
    lines: Vec<Line>,
    dst: Dst,
    zone: Tz,
    after: DateTime<Utc>,
    until: DateTime<Utc>,
}

impl Triple {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let zone = TZ_VARIANTS[random.below(TZ_VARIANTS.len() as u64) as usize];
        let dst = Dst {
            gap: [None, None, None, Some(Gap::After), Some(Gap::Skip), Some(Gap::Shift)][random.below(6) as usize],
            overlap: [None, None, None, Some(Overlap::First), Some(Overlap::Second), Some(Overlap::Both)]
                [random.below(6) as usize],
        };
        let (from, to) = (-2_208_988_800_i64, 4_070_908_800_i64);
        let whole = |at| DateTime::from_timestamp(at, 0).unwrap();
        let changes = Offsets::of(zone).changes(whole(from), whole(to));
        let near = if changes.is_empty() || random.one_in(5) {
            from + random.below((to - from) as u64) as i64
        } else {
            changes[random.below(changes.len() as u64) as usize].0.timestamp()
        };
        let year = whole(near).year().cast_unsigned();
        let lines: Vec<Line> =
            (0..if random.one_in(5) { 2 } else { 1 }).map(|_| Line::new(&mut random, year)).collect();
        let has_seconds = lines.iter().any(|line| line.second.is_some());
        let is_dense = lines.iter().any(|line| !matches!(line.hour.elements[..], [Element::Value(_)]));
        let span = match (has_seconds, is_dense) {
            (true, _) => 3 * 3_600,
            (false, true) => 36 * 3_600,
            (false, false) => 20 * 86_400,
        };
        let after = near - random.below(span as u64) as i64;
        Self { lines, dst, zone, after: whole(after), until: whole(after + span) }
    }

    fn is_near_a_change(&self) -> bool {
        !Offsets::of(self.zone).changes(self.after, self.until).is_empty()
    }

    fn found(&self) -> Vec<i64> {
        let definition = Definition {
            schedule: self.lines.iter().map(|line| line.text.clone()).collect(),
            dst: self.dst,
            ..Definition::new("", self.zone.name())
        };
        let schedule =
            Schedule::new(&definition, None, DateTime::UNIX_EPOCH).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let preview = schedule.preview(self.after, Some(self.until), usize::MAX);
        preview.ticks.iter().map(|tick| tick.at.timestamp()).collect()
    }

    fn expected(&self) -> BTreeSet<i64> {
        // Wall time is at most a day off, and so is any jump.
        let margin = TimeDelta::days(2);
        let segments = self.segments(self.after - margin, self.until + margin);
        let mut ticks = BTreeSet::new();
        for line in &self.lines {
            let (gap, overlap) = match line.is_wild() {
                true => (Gap::Skip, Overlap::Both),
                false => (Gap::After, Overlap::First),
            };
            let (gap, overlap) = (self.dst.gap.unwrap_or(gap), self.dst.overlap.unwrap_or(overlap));
            let reach = TimeDelta::hours(30);
            for wall in line.walls(self.after.naive_utc() - reach, self.until.naive_utc() + reach) {
                ticks.extend(instants(wall.and_utc().timestamp(), &segments, gap, overlap));
            }
        }
        ticks.retain(|at| self.after.timestamp() < *at && *at <= self.until.timestamp());
        ticks
    }

    fn segments(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> Vec<Segment> {
        let offset = |at: i64| {
            let at = DateTime::from_timestamp(at, 0).unwrap();
            i64::from(self.zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc())
        };
        let (from, to) = (from.timestamp(), to.timestamp());
        let mut segments = vec![Segment { begin: from, end: to, offset: offset(from) }];
        let mut at = from;
        while at < to {
            let next = (at + 900).min(to);
            if offset(next) != offset(at) {
                let change = (at + 1..=next).find(|second| offset(*second) != offset(at)).unwrap();
                segments.last_mut().unwrap().end = change;
                segments.push(Segment { begin: change, end: to, offset: offset(change) });
            }
            at = next;
        }
        segments
    }
}

/// The instants of one wall time.
fn instants(wall: i64, segments: &[Segment], gap: Gap, overlap: Overlap) -> Vec<i64> {
    const JUMP_MAX: i64 = 3 * 3_600;
    let shown: Vec<i64> = segments
        .iter()
        .filter(|segment| (segment.begin..segment.end).contains(&(wall - segment.offset)))
        .map(|segment| wall - segment.offset)
        .collect();
    match shown[..] {
        [] => {}
        [first, .., last] if last - first <= JUMP_MAX => {
            return match overlap {
                Overlap::First => vec![first],
                Overlap::Second => vec![last],
                Overlap::Both => shown,
            };
        }
        _ => return shown,
    }
    for pair in segments.windows(2) {
        let (ends, begins) = (pair[0].end + pair[0].offset, pair[1].begin + pair[1].offset);
        if (ends..begins).contains(&wall) && begins - ends <= JUMP_MAX {
            return match gap {
                Gap::After => vec![pair[1].begin],
                Gap::Skip => vec![],
                Gap::Shift => vec![wall - pair[0].offset],
            };
        }
    }
    vec![]
}
