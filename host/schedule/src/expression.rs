//! The text of a schedule: five, six or seven fields, a macro, or `@every`.

use std::{fmt, time::Duration};

use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use crate::{
    Field, ParseError,
    field::{FieldReader, Piece, Values},
    foreign, zone,
};

/// How an expression's text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// cron's, with seconds and years where there are more than five fields: Sunday is 0 or 7, `?` picks a value.
    #[default]
    Cron,
    /// Quartz's: six or seven fields, Sunday is 1, `?` is no value.
    Quartz,
}

/// A schedule's text, read and checked.
///
/// Five fields are minute, hour, day of month, month, day of week; six have seconds in front; seven have the year
/// behind. A prefix `TZ=` or `CRON_TZ=` names a zone. [`fmt::Display`] gives back the text as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    text: String,
    zone: Option<Tz>,
    pub(crate) kind: Kind,
    pub(crate) dialect: Dialect,
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
    /// The day rule: if either day field starts with `*`, both must match, and otherwise either.
    pub(crate) fn either_day(&self) -> bool {
        !self.day_of_month.star && !self.day_of_week.star
    }

    /// The fields in the order in which they are written.
    pub(crate) fn fields(&self) -> [(Field, &Values); 7] {
        [
            (Field::Second, &self.second),
            (Field::Minute, &self.minute),
            (Field::Hour, &self.hour),
            (Field::DayOfMonth, &self.day_of_month),
            (Field::Month, &self.month),
            (Field::DayOfWeek, &self.day_of_week),
            (Field::Year, &self.year),
        ]
    }

    /// cronie's rule: a job whose minute or hour field starts with `*` runs by elapsed time.
    pub(crate) fn by_elapsed_time(&self) -> bool {
        self.minute.star || self.hour.star
    }
}

/// Bytes of one expression. Arbitrary: all sixty minutes, written out, take less than two hundred.
const TEXT_BYTES_MAX: usize = 1_024;
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

/// The fields that a macro stands for.
pub(crate) fn macro_fields(name: &str) -> Option<&'static str> {
    MACROS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, fields)| *fields)
}

impl Expression {
    /// Reads an expression. `name` is the job, `namespace/name`, by which `?` picks.
    ///
    /// # Errors
    /// What the dialect refuses, by field and column.
    pub fn parse(text: &str, dialect: Dialect, name: Option<&str>) -> Result<Self, ParseError> {
        if text.len() > TEXT_BYTES_MAX {
            let message = format!("the text has {} bytes, {TEXT_BYTES_MAX} are the most", text.len());
            return Err(ParseError::new(None, 0..0, message, "write several expressions"));
        }
        let mut reader = Reader { dialect, name, warnings: Vec::new() };
        let mut pieces = words(text);
        let zone = take_zone(&mut pieces)?;
        if let Some(error) = foreign::recognise(text, &pieces) {
            return Err(error);
        }
        let kind = match pieces.as_slice() {
            [] => {
                return Err(ParseError::new(
                    None,
                    0..text.len(),
                    "there is no expression here",
                    "write five fields, e.g. `0 2 * * *` for 02:00 every day",
                ));
            }
            [word, rest @ ..] if word.text.starts_with('@') => reader.macro_(*word, rest)?,
            fields => Kind::Calendar(Box::new(reader.fields(text, fields)?)),
        };
        Ok(Self { text: text.trim().to_owned(), zone, kind, dialect, warnings: reader.warnings })
    }

    /// The zone named by a `TZ=` prefix.
    pub fn zone(&self) -> Option<Tz> {
        self.zone
    }

    /// What is accepted but is seldom what was meant, in sentences.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What was picked for each `?`: the field and its values.
    pub fn picks(&self) -> Vec<(Field, Vec<u32>)> {
        let Kind::Calendar(calendar) = &self.kind else { return Vec::new() };
        let picked = calendar.fields().into_iter().filter(|(_, values)| !values.picked.is_empty());
        picked.map(|(field, values)| (field, values.picked.clone())).collect()
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

struct Reader<'a> {
    dialect: Dialect,
    name: Option<&'a str>,
    warnings: Vec<String>,
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

impl Reader<'_> {
    fn macro_(&mut self, word: Piece<'_>, rest: &[Piece<'_>]) -> Result<Kind, ParseError> {
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
        let Some(fields) = macro_fields(&name) else {
            return Err(ParseError::new(
                None,
                word.span(),
                format!("`{}` is no macro that is known", word.text),
                foreign::macro_help(&name),
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
        // Macros mean the same in every dialect.
        let mut plain = Reader { dialect: Dialect::Cron, name: None, warnings: Vec::new() };
        Ok(Kind::Calendar(Box::new(plain.fields(fields, &words(fields))?)))
    }

    fn fields(&mut self, text: &str, pieces: &[Piece<'_>]) -> Result<Calendar, ParseError> {
        use Field::*;
        let layout: &[Field] = match (pieces.len(), self.dialect) {
            (5, Dialect::Cron) => &[Minute, Hour, DayOfMonth, Month, DayOfWeek],
            (6, _) => &[Second, Minute, Hour, DayOfMonth, Month, DayOfWeek],
            (7, _) => &[Second, Minute, Hour, DayOfMonth, Month, DayOfWeek, Year],
            (found, dialect) => return Err(wrong_count(text, found, dialect)),
        };
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
            let mut reader = FieldReader {
                field: *field,
                dialect: self.dialect,
                may_be_quartz: pieces.len() > 5,
                name: self.name,
                warnings: &mut self.warnings,
            };
            let values = reader.read(*piece)?;
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
        self.check_quartz_days(&calendar, pieces)?;
        Ok(calendar)
    }

    /// Quartz itself takes one day field only, and the other must be `?`.
    fn check_quartz_days(&self, calendar: &Calendar, pieces: &[Piece<'_>]) -> Result<(), ParseError> {
        let both = self.dialect == Dialect::Quartz
            && pieces.len() > 5
            && pieces[3].text != "?"
            && pieces[5].text != "?"
            && calendar.either_day();
        if !both {
            return Ok(());
        }
        Err(ParseError::new(
            Some(Field::DayOfWeek),
            pieces[5].span(),
            format!(
                "`{}` stands beside the day of month `{}`; Quartz takes only one of them",
                pieces[5].text, pieces[3].text
            ),
            "write `?` for the other one, or two expressions",
        ))
    }
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

fn wrong_count(text: &str, found: usize, dialect: Dialect) -> ParseError {
    let (expected, help) = match dialect {
        Dialect::Cron => ("5, 6 or 7", "write minute, hour, day of month, month, day of week, e.g. `0 2 * * *`"),
        Dialect::Quartz => (
            "6 or 7, as `dialect = \"quartz\"` has them",
            "write second, minute, hour, day of month, month, day of week, e.g. `0 0 2 * * ?`",
        ),
    };
    let plural = if found == 1 { "" } else { "s" };
    ParseError::new(None, 0..text.len(), format!("found {found} field{plural}, expected {expected}"), help)
}
