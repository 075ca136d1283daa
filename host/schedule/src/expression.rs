//! The text of a schedule: five, six or seven fields, a macro, or `@every`.

use std::{fmt, str::FromStr, time::Duration};

use chrono_tz::Tz;

use crate::{
    Field, ParseError,
    field::{self, Piece, Values},
    zone,
};

/// A schedule's text, read and checked.
///
/// Five fields are minute, hour, day of month, month, day of week; six have seconds in front; seven have the
/// year behind. A prefix `TZ=` or `CRON_TZ=` names a zone. [`fmt::Display`] gives back the text as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    text: String,
    zone: Option<Tz>,
    pub(crate) kind: Kind,
    warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Calendar(Box<Calendar>),
    /// `@every`: a fixed distance from the instant the job was stored.
    Every(Duration),
}

/// The fields of a calendar expression as sets of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Calendar {
    pub(crate) second: Values,
    pub(crate) minute: Values,
    pub(crate) hour: Values,
    pub(crate) day_of_month: Values,
    pub(crate) month: Values,
    pub(crate) day_of_week: Values,
    pub(crate) year: Values,
}

impl Calendar {
    /// cronie's rule: a job whose minute or hour field starts with `*` runs by elapsed time.
    pub(crate) fn by_elapsed_time(&self) -> bool {
        self.minute.star || self.hour.star
    }
}

const EVERY_MIN: Duration = Duration::from_secs(1);
/// A year: what is rarer has a date, and a date is what an expression is for.
const EVERY_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

const MACROS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

impl Expression {
    /// The zone named by a `TZ=` prefix.
    pub fn zone(&self) -> Option<Tz> {
        self.zone
    }

    /// What is accepted but is seldom what was meant, in sentences.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Expression {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut warnings = Vec::new();
        let mut pieces = words(text);
        let zone = take_zone(&mut pieces)?;
        let kind = match pieces.as_slice() {
            [] => {
                return Err(ParseError::new(
                    None,
                    0..text.len(),
                    "there is no expression here",
                    "write five fields, e.g. `0 2 * * *` for 02:00 every day",
                ));
            }
            [word, rest @ ..] if word.text.starts_with('@') => parse_macro(*word, rest, &mut warnings)?,
            fields => Kind::Calendar(Box::new(parse_fields(text, fields, &mut warnings)?)),
        };
        Ok(Self { text: text.trim().to_owned(), zone, kind, warnings })
    }
}

fn words(text: &str) -> Vec<Piece<'_>> {
    let base = text.as_ptr() as usize;
    text.split_ascii_whitespace().map(|word| Piece { text: word, at: word.as_ptr() as usize - base }).collect()
}

fn take_zone(pieces: &mut Vec<Piece<'_>>) -> Result<Option<Tz>, ParseError> {
    let Some(first) = pieces.first().copied() else { return Ok(None) };
    let Some(name) = first.text.strip_prefix("CRON_TZ=").or_else(|| first.text.strip_prefix("TZ=")) else {
        return Ok(None);
    };
    let zone = zone::parse(name).map_err(|e| ParseError { span: first.span(), ..e })?;
    pieces.remove(0);
    Ok(Some(zone))
}

fn parse_macro(word: Piece<'_>, rest: &[Piece<'_>], warnings: &mut Vec<String>) -> Result<Kind, ParseError> {
    let name = word.text.to_ascii_lowercase();
    if name == "@every" {
        return parse_every(word, rest);
    }
    if name == "@reboot" {
        return Err(ParseError::new(
            None,
            word.span(),
            "`@reboot` has no meaning here: hosts come and go, the schedule stays",
            "write when it is due, or trigger it with `tickhost trigger`",
        ));
    }
    let Some((_, fields)) = MACROS.iter().find(|(known, _)| *known == name) else {
        return Err(ParseError::new(
            None,
            word.span(),
            format!("`{}` is no macro that is known", word.text),
            "write one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, @every DURATION",
        ));
    };
    if let Some(extra) = rest.first() {
        return Err(ParseError::new(
            None,
            extra.span(),
            format!("`{}` stands behind `{}`, which takes nothing", extra.text, word.text),
            "remove it",
        ));
    }
    Ok(Kind::Calendar(Box::new(parse_fields(fields, &words(fields), warnings)?)))
}

fn parse_every(word: Piece<'_>, rest: &[Piece<'_>]) -> Result<Kind, ParseError> {
    let help =
        "write `@every` and a whole number of seconds or more, e.g. `@every 90m`, `@every 1h30m`; from 1s to 8784h";
    let [duration] = rest else {
        let span = rest.get(1).map_or(word.span(), |extra| extra.span());
        return Err(ParseError::new(None, span, "`@every` takes one duration", help));
    };
    let refuse = |message: String| ParseError::new(None, duration.span(), message, help);
    let period = parse_duration(duration.text)
        .ok_or_else(|| refuse(format!("`{}` is no duration in whole units of h, m and s", duration.text)))?;
    if !(EVERY_MIN..=EVERY_MAX).contains(&period) {
        return Err(refuse(format!("`{}` is outside of 1s to 8784h", duration.text)));
    }
    Ok(Kind::Every(period))
}

/// `1h30m`, `90s`: units `d`, `h`, `m`, `s` in that order, whole numbers.
fn parse_duration(text: &str) -> Option<Duration> {
    const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];
    let mut rest = text;
    let mut seconds = 0_u64;
    for (unit, factor) in UNITS {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 && rest[digits..].starts_with(unit) {
            let number: u64 = rest[..digits].parse().ok()?;
            seconds = seconds.checked_add(number.checked_mul(factor)?)?;
            rest = &rest[digits + 1..];
        }
    }
    (rest.is_empty() && !text.is_empty()).then(|| Duration::from_secs(seconds))
}

fn parse_fields(text: &str, pieces: &[Piece<'_>], warnings: &mut Vec<String>) -> Result<Calendar, ParseError> {
    use Field::*;
    let layout: &[Field] = match pieces.len() {
        5 => &[Minute, Hour, DayOfMonth, Month, DayOfWeek],
        6 => &[Second, Minute, Hour, DayOfMonth, Month, DayOfWeek],
        7 => &[Second, Minute, Hour, DayOfMonth, Month, DayOfWeek, Year],
        found => return Err(wrong_count(text, pieces, found)),
    };
    // Before the fields are read one by one: a command in the sixth place would shift them all, and the
    // message would be about a minute that is right.
    if let Some(command) = pieces.iter().skip(5).find(|p| looks_like_a_command(p.text)) {
        return Err(pasted_line(text, command));
    }
    let mut calendar = Calendar {
        second: Values::only(0),
        minute: Values::only(0),
        hour: Values::only(0),
        day_of_month: Values::only(1),
        month: Values::only(1),
        day_of_week: Values::all(DayOfWeek),
        year: Values::all(Year),
    };
    for (field, piece) in layout.iter().zip(pieces) {
        let values = field::parse(*field, *piece, warnings)?;
        *match field {
            Second => &mut calendar.second,
            Minute => &mut calendar.minute,
            Hour => &mut calendar.hour,
            DayOfMonth => &mut calendar.day_of_month,
            Month => &mut calendar.month,
            DayOfWeek => &mut calendar.day_of_week,
            Year => &mut calendar.year,
        } = values;
    }
    Ok(calendar)
}

fn looks_like_a_command(word: &str) -> bool {
    word.starts_with(['/', '.', '~', '$', '"', '\'']) || word.contains(".sh")
}

fn pasted_line(text: &str, command: &Piece<'_>) -> ParseError {
    ParseError::new(
        None,
        command.at..text.trim_end().len(),
        format!("`{}` is the command of a crontab line", text[command.at..].trim_end()),
        "give the five fields alone; what runs is the job's `component`",
    )
}

fn wrong_count(text: &str, pieces: &[Piece<'_>], found: usize) -> ParseError {
    match pieces.get(5) {
        Some(command) if looks_like_a_command(command.text) || found > 7 => pasted_line(text, command),
        _ => ParseError::new(
            None,
            0..text.len(),
            format!("found {found} field{}, expected 5, 6 or 7", if found == 1 { "" } else { "s" }),
            "write minute, hour, day of month, month, day of week, e.g. `0 2 * * *`",
        ),
    }
}
