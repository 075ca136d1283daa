//! An expression in plain English.

use std::fmt::Write;

use crate::{
    Expression, Field,
    expression::{Calendar, Kind},
    field::Values,
    set::base,
};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
/// Times of a day that are written out one by one. Arbitrary.
const TIMES_MAX: usize = 6;

impl Expression {
    /// When it is due, as a sentence without its zone, e.g. `At 02:30 from Monday to Friday`.
    pub fn sentence(&self) -> String {
        match &self.kind {
            Kind::Every(period) => {
                format!("Every {}, counted from when the job was stored", duration(period.as_secs()))
            }
            Kind::Calendar(calendar) => {
                let mut text = times(calendar);
                let days = match days(calendar) {
                    // Times of a day want to be told of which.
                    every if every.is_empty() && text.contains(':') && !text.contains("every") => "every day".into(),
                    days => days,
                };
                if !days.is_empty() {
                    let comma = if text.contains(',') { "," } else { "" };
                    let _ = write!(text, "{comma} {days}");
                }
                if !calendar.month.is_full(Field::Month) {
                    let months = list(&calendar.month, Field::Month, |month| MONTHS[month as usize - 1].to_owned());
                    let _ = write!(text, " in {months}");
                }
                if !calendar.year.is_full(Field::Year) {
                    let _ = write!(text, " in {}", list(&calendar.year, Field::Year, |year| year.to_string()));
                }
                let first = text.remove(0).to_ascii_uppercase();
                text.insert(0, first);
                text
            }
        }
    }

    /// The fields that start with `*` by their text.
    pub fn stars(&self) -> Vec<Field> {
        let Kind::Calendar(calendar) = &self.kind else { return Vec::new() };
        // A year that is not written is every year, and no star.
        let has_year = self.to_string().split_ascii_whitespace().filter(|word| !word.contains("TZ=")).count() == 7;
        let stars = calendar.fields().into_iter().filter(|(_, values)| values.star).map(|(field, _)| field);
        stars.filter(|field| *field != Field::Year || has_year).collect()
    }

    /// Whether it runs by elapsed time: a missing hour has no ticks, a repeated one has them twice.
    pub fn is_by_elapsed_time(&self) -> bool {
        match &self.kind {
            Kind::Every(_) => true,
            Kind::Calendar(calendar) => calendar.by_elapsed_time(),
        }
    }

    /// How the two day fields go together, where both are restricted.
    pub fn day_rule(&self) -> Option<&'static str> {
        let Kind::Calendar(calendar) = &self.kind else { return None };
        if calendar.day_of_month.is_full(Field::DayOfMonth) || calendar.day_of_week.is_full(Field::DayOfWeek) {
            let every = "neither day field starts with `*`, and one of them is every day: every day is due";
            return calendar.either_day().then_some(every);
        }
        Some(if calendar.either_day() {
            "neither day field starts with `*`: a day that matches either is due"
        } else {
            "a day field starts with `*`: only a day that matches both is due"
        })
    }
}

fn times(calendar: &Calendar) -> String {
    let (hour, minute, second) = (&calendar.hour, &calendar.minute, &calendar.second);
    let every_hour = hour.is_full(Field::Hour);
    let on_the_minute = second.set.len() == 1 && second.set.contains(0);
    let count = (hour.set.len() * minute.set.len() * second.set.len()) as usize;
    if count <= TIMES_MAX {
        let mut times = Vec::new();
        for (h, m, s) in
            hour.set.iter().flat_map(|h| minute.set.iter().flat_map(move |m| second.set.iter().map(move |s| (h, m, s))))
        {
            times.push(if on_the_minute { format!("{h:02}:{m:02}") } else { format!("{h:02}:{m:02}:{s:02}") });
        }
        return format!("at {}", join(&times));
    }
    let mut text = String::new();
    if every_hour && !on_the_minute && second.set.len() == 1 && minute.set.len() == 1 {
        let only = |values: &Values| values.set.iter().next().unwrap_or_default();
        return format!("every hour, at :{:02}:{:02}", only(minute), only(second));
    }
    if !on_the_minute {
        text = match period(second, Field::Second) {
            Some(1) => "every second".into(),
            Some(n) => format!("every {n} seconds"),
            None => format!("at {} past the minute", counted("second", second, Field::Second)),
        };
        if !minute.is_full(Field::Minute) {
            let _ = write!(text, " of {}", counted("minute", minute, Field::Minute));
        }
    } else if let (1, Some(minute)) = (minute.set.len(), minute.set.iter().next()) {
        let past = match minute {
            0 => "on the hour".to_owned(),
            minute => format!("at {minute} minute{} past", if minute == 1 { "" } else { "s" }),
        };
        return match period(hour, Field::Hour) {
            Some(1) => format!("every hour, {past}"),
            Some(n) => format!("every {n} hours, {past}"),
            None => format!("{past}, in {}", counted("hour", hour, Field::Hour)),
        };
    } else {
        text.push_str(&match period(minute, Field::Minute) {
            Some(1) => "every minute".into(),
            Some(n) => format!("every {n} minutes"),
            None => format!("at {} past the hour", counted("minute", minute, Field::Minute)),
        });
    }
    if !every_hour {
        let hours = match period(hour, Field::Hour) {
            Some(n) => format!("of every {} hour", ordinal(n)),
            None => format!("of {}", counted("hour", hour, Field::Hour)),
        };
        let _ = write!(text, " {hours}");
    }
    text
}

fn days(calendar: &Calendar) -> String {
    let (dom, dow) = (&calendar.day_of_month, &calendar.day_of_week);
    if calendar.either_day() && (dom.is_full(Field::DayOfMonth) || dow.is_full(Field::DayOfWeek)) {
        return String::new();
    }
    let by_day = (!dom.is_full(Field::DayOfMonth)).then(|| days_of_month(dom));
    let by_weekday = (!dow.is_full(Field::DayOfWeek)).then(|| weekdays(dow, "and"));
    match (by_day, by_weekday) {
        (None, None) => String::new(),
        (Some(day), None) => format!("on {day} of the month"),
        (None, Some(weekday)) => format!("on {weekday}"),
        (Some(day), Some(weekday)) if calendar.either_day() => format!("on {day} of the month or on {weekday}"),
        (Some(day), Some(_)) => format!("on {day} of the month, if it is {}", weekdays(dow, "or")),
    }
}

fn days_of_month(values: &Values) -> String {
    let mut parts = Vec::new();
    if values.set.len() > 0 {
        parts.push(counted("day", values, Field::DayOfMonth));
    }
    for back in (0..32).filter(|n| values.last & 1 << n != 0) {
        parts.push(match back {
            0 => "the last day".into(),
            1 => "the day before the last".into(),
            n => format!("the day {n} days before the last"),
        });
    }
    for near in (0..32).filter(|n| values.nearest & 1 << n != 0) {
        parts.push(match near {
            0 => "the last weekday".into(),
            day => format!("the weekday nearest to day {day}"),
        });
    }
    join(&parts)
}

fn weekdays(values: &Values, last_word: &str) -> String {
    let mut parts = Vec::new();
    if values.set.len() > 0 {
        // The week begins on Monday here, so that Friday to Sunday is a run.
        let from_monday = (1..=7).filter(|day| values.set.contains(day % 7)).collect();
        parts.extend(runs(from_monday, |day| WEEKDAYS[day as usize % 7].to_owned()));
    }
    for day in (0..7).filter(|n| values.last & 1 << n != 0) {
        parts.push(format!("the last {} of the month", WEEKDAYS[day]));
    }
    for nth in (0..35_usize).filter(|n| values.nth & 1 << n != 0) {
        parts.push(format!("the {} {} of the month", ordinal(nth as u32 / 7 + 1), WEEKDAYS[nth % 7]));
    }
    join_with(&parts, last_word)
}

/// `n` where the values are every n-th of the whole field, without a shorter gap at its end.
fn period(values: &Values, field: Field) -> Option<u32> {
    let all: Vec<u32> = values.set.iter().collect();
    if all.len() < 2 {
        return None;
    }
    let width = field.last() - field.bounds().0 + 1;
    let step = width / all.len() as u32;
    let is_even = width.is_multiple_of(all.len() as u32) && all.windows(2).all(|pair| pair[1] - pair[0] == step);
    (is_even && all[0] == field.bounds().0).then_some(step)
}

/// `minute 5`, `minutes 0, 15 and 45`.
fn counted(unit: &str, values: &Values, field: Field) -> String {
    let plural = if values.set.len() == 1 { "" } else { "s" };
    format!("{unit}{plural} {}", list(values, field, |value| value.to_string()))
}

/// The values with runs of three and more as ranges.
fn list(values: &Values, field: Field, name: impl Fn(u32) -> String) -> String {
    join(&runs(values.set.iter().map(|value| value + base(field)).collect(), name))
}

fn runs(all: Vec<u32>, name: impl Fn(u32) -> String) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = all.as_slice();
    while let Some(first) = rest.first() {
        let run = rest.iter().zip(*first..).take_while(|(value, expected)| *value == expected).count();
        let run = if run >= 3 { run } else { 1 };
        parts.push(match run {
            1 => name(*first),
            _ => format!("{} to {}", name(*first), name(rest[run - 1])),
        });
        rest = &rest[run..];
    }
    parts
}

fn join(parts: &[String]) -> String {
    join_with(parts, "and")
}

fn join_with(parts: &[String], last_word: &str) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} {last_word} {last}", head.join(", ")),
    }
}

fn ordinal(n: u32) -> String {
    let suffix = match (n % 10, n % 100) {
        (1, 11) | (2, 12) | (3, 13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{suffix}")
}

/// `1 hour 30 minutes`.
fn duration(seconds: u64) -> String {
    let units = [
        ("day", seconds / 86_400),
        ("hour", seconds / 3_600 % 24),
        ("minute", seconds / 60 % 60),
        ("second", seconds % 60),
    ];
    let text = |(unit, n): &(&str, u64)| format!("{n} {unit}{}", if *n == 1 { "" } else { "s" });
    let parts: Vec<String> = units.iter().filter(|(_, n)| *n > 0).map(text).collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Dialect;

    #[test]
    fn expressions_read_as_sentences() {
        for (text, expected) in [
            ("30 2 * * *", "At 02:30 every day"),
            ("0 9,17 * * MON-FRI", "At 09:00 and 17:00 on Monday to Friday"),
            ("* * * * *", "Every minute"),
            ("*/15 * * * *", "Every 15 minutes"),
            ("*/45 * * * *", "At minutes 0 and 45 past the hour"),
            ("0 * * * *", "Every hour, on the hour"),
            ("5 * * * *", "Every hour, at 5 minutes past"),
            ("*/10 9-17 * * *", "Every 10 minutes of hours 9 to 17"),
            ("0 */2 * * *", "Every 2 hours, on the hour"),
            ("5 8-17 * * *", "At 5 minutes past, in hours 8 to 17"),
            ("0 0 1,15 * *", "At 00:00 on days 1 and 15 of the month"),
            ("0 0 13 * FRI", "At 00:00 on day 13 of the month or on Friday"),
            (
                "0 0 */2 * FRI",
                "At 00:00 on days 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29 and 31 of the month, if it is Friday",
            ),
            ("0 0 L * *", "At 00:00 on the last day of the month"),
            ("0 0 LW,15W * *", "At 00:00 on the last weekday and the weekday nearest to day 15 of the month"),
            ("0 0 * * FRIL", "At 00:00 on the last Friday of the month"),
            ("0 0 * 1-3,12 1#2", "At 00:00 on the 2nd Monday of the month in January to March and December"),
            ("*/5 * * * * *", "Every 5 seconds"),
            ("30 0 12 * * * 2027", "At 12:00:30 every day in 2027"),
            ("15,45 * * * *", "At minutes 15 and 45 past the hour"),
            ("0 1/2 * * *", "On the hour, in hours 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21 and 23"),
            ("0 0 13 * 0-6", "At 00:00 every day"),
            (
                "0 0 */5 * */2",
                "At 00:00 on days 1, 6, 11, 16, 21, 26 and 31 of the month, if it is Tuesday, Thursday, Saturday or Sunday",
            ),
            ("0 * * * FRI-SUN", "Every hour, on the hour, on Friday to Sunday"),
            ("30 0 * * * *", "Every hour, at :00:30"),
            ("@every 90m", "Every 1 hour 30 minutes, counted from when the job was stored"),
        ] {
            assert_eq!(Expression::parse(text, Dialect::Cron, None).unwrap().sentence(), expected, "{text}");
        }
    }
}
