//! One field of an expression: its range, its names, and its text read into the set of values it stands for.

use std::{collections::BTreeSet, fmt, ops::Range};

use crate::ParseError;

/// The fields of an expression, in the order in which they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// 0–59; only where an expression has 6 or 7 fields.
    Second,
    /// 0–59.
    Minute,
    /// 0–23.
    Hour,
    /// 1–31.
    DayOfMonth,
    /// 1–12 or JAN–DEC.
    Month,
    /// 0–7 or SUN–SAT; 0 and 7 are Sunday.
    DayOfWeek,
    /// 1970–2099; only where an expression has 7 fields.
    Year,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day-of-month",
            Self::Month => "month",
            Self::DayOfWeek => "day-of-week",
            Self::Year => "year",
        })
    }
}

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl Field {
    /// The smallest and the largest value that may be written.
    pub(crate) fn bounds(self) -> (u32, u32) {
        match self {
            Self::Second | Self::Minute => (0, 59),
            Self::Hour => (0, 23),
            Self::DayOfMonth => (1, 31),
            Self::Month => (1, 12),
            Self::DayOfWeek => (0, 7),
            // Beyond 2099 the tz database as bundled has no rules.
            Self::Year => (1970, 2099),
        }
    }

    /// Where `*` and `N/step` end: 7 is a second name for Sunday, not a day of its own.
    fn last(self) -> u32 {
        if self == Self::DayOfWeek { 6 } else { self.bounds().1 }
    }

    fn names(self) -> (&'static [&'static str], u32) {
        match self {
            Self::Month => (&MONTHS, 1),
            Self::DayOfWeek => (&WEEKDAYS, 0),
            _ => (&[], 0),
        }
    }

    fn expected(self) -> String {
        let (lo, hi) = self.bounds();
        match self.names().0 {
            [first, .., last] => format!("{lo}–{hi} or {first}–{last}"),
            _ => format!("{lo}–{hi}"),
        }
    }
}

/// A field read: the values it stands for, and whether its text starts with `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) set: BTreeSet<u32>,
    /// By the text, not the values: `*/1` is a star and `0-59` is none. The day rule and the daylight rule
    /// go by it, as in cronie.
    pub(crate) star: bool,
}

impl Values {
    /// The field that is not written: one value, no star.
    pub(crate) fn only(value: u32) -> Self {
        Self { set: BTreeSet::from([value]), star: false }
    }

    /// Every value of `field`, as `*`.
    pub(crate) fn all(field: Field) -> Self {
        Self { set: (field.bounds().0..=field.last()).collect(), star: true }
    }

    /// Whether every value of `field` is in the set.
    pub(crate) fn is_full(&self, field: Field) -> bool {
        self.set.len() == (field.bounds().0..=field.last()).count()
    }
}

/// A piece of the expression's text and where it stands.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) text: &'a str,
    pub(crate) at: usize,
}

impl<'a> Piece<'a> {
    pub(crate) fn span(self) -> Range<usize> {
        self.at..self.at + self.text.len()
    }

    fn split(self, separator: char) -> impl Iterator<Item = Piece<'a>> {
        let mut at = self.at;
        self.text.split(separator).map(move |text| {
            let piece = Piece { text, at };
            at += text.len() + separator.len_utf8();
            piece
        })
    }

    fn split_once(self, separator: char) -> Option<(Piece<'a>, Piece<'a>)> {
        let (head, tail) = self.text.split_once(separator)?;
        let tail_at = self.at + head.len() + separator.len_utf8();
        Some((Piece { text: head, at: self.at }, Piece { text: tail, at: tail_at }))
    }
}

/// Reads one field. Warnings name what is accepted but is seldom meant.
pub(crate) fn parse(field: Field, piece: Piece<'_>, warnings: &mut Vec<String>) -> Result<Values, ParseError> {
    let mut set = BTreeSet::new();
    for element in piece.split(',') {
        if element.text.is_empty() {
            return Err(ParseError::new(
                Some(field),
                piece.span(),
                format!("`{}` has an empty element in its list", piece.text),
                "write the values with one comma between them, e.g. `1,2`",
            ));
        }
        set.extend(parse_element(field, element, warnings)?);
    }
    if field == Field::DayOfWeek && set.remove(&7) {
        set.insert(0);
    }
    Ok(Values { set, star: piece.text.starts_with('*') })
}

fn parse_element(
    field: Field,
    element: Piece<'_>,
    warnings: &mut Vec<String>,
) -> Result<impl Iterator<Item = u32>, ParseError> {
    refuse_unsupported(field, element)?;
    let (base, step) = match element.split_once('/') {
        Some((base, step)) => (base, Some(parse_step(field, step)?)),
        None => (element, None),
    };
    let (lo, hi) = if base.text == "*" {
        (field.bounds().0, field.last())
    } else if let Some((from, to)) = base.split_once('-') {
        parse_range(field, base, from, to)?
    } else {
        let value = parse_value(field, base)?;
        (value, if step.is_some() { field.last().max(value) } else { value })
    };
    let width = hi - lo + 1;
    if let Some(step) = step {
        if step > width {
            warnings.push(format!(
                "the {field} field's `{}` has a step larger than its range: only {lo} is left",
                element.text
            ));
        } else if base.text == "*" && field != Field::Year && width % step != 0 {
            warnings.push(format!(
                "the {field} field's `{}` is not every {step}: {width} is no multiple of it, so the last gap is shorter",
                element.text
            ));
        }
    }
    Ok((lo..=hi).step_by(step.unwrap_or(1) as usize))
}

/// `FRI-SUN` and `5-0` end in the Sunday after, so there 0 stands for 7. Every other reversed range is
/// refused: products disagree on whether it wraps, and silence would be a job that never runs.
fn parse_range(field: Field, whole: Piece<'_>, from: Piece<'_>, to: Piece<'_>) -> Result<(u32, u32), ParseError> {
    let lo = parse_value(field, from)?;
    let mut hi = parse_value(field, to)?;
    if field == Field::DayOfWeek && hi == 0 && lo > 0 {
        hi = 7;
    }
    if lo > hi {
        return Err(ParseError::new(
            Some(field),
            whole.span(),
            format!("`{}` runs backwards", whole.text),
            format!("write it as two, e.g. `{}-{},{}-{}`", from.text, field.last(), field.bounds().0, to.text),
        ));
    }
    Ok((lo, hi))
}

fn parse_step(field: Field, piece: Piece<'_>) -> Result<u32, ParseError> {
    match parse_number(piece.text) {
        Some(step) if step > 0 => Ok(step),
        _ => Err(ParseError::new(
            Some(field),
            piece.span(),
            format!("`{}` is no step; expected a whole number from 1", piece.text),
            "write e.g. `*/5`",
        )),
    }
}

fn parse_value(field: Field, piece: Piece<'_>) -> Result<u32, ParseError> {
    let (names, base) = field.names();
    if let Some(index) = names.iter().position(|name| piece.text.eq_ignore_ascii_case(name)) {
        return Ok(index as u32 + base);
    }
    let (lo, hi) = field.bounds();
    match parse_number(piece.text) {
        Some(value) if (lo..=hi).contains(&value) => Ok(value),
        Some(value) => Err(ParseError::new(
            Some(field),
            piece.span(),
            format!("`{value}` is out of range; expected {}", field.expected()),
            "numbers do not wrap: write one inside the range",
        )),
        None => Err(ParseError::new(
            Some(field),
            piece.span(),
            format!("`{}` is no value; expected {}", piece.text, field.expected()),
            "write `*`, a number, a range `a-b`, a list `a,b` or a step `*/n`",
        )),
    }
}

/// ASCII digits only: `str::parse` would take a `+`, and other scripts' digits are refused on purpose.
fn parse_number(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Parts of the dialect that are known and not yet built are refused by their names.
fn refuse_unsupported(field: Field, element: Piece<'_>) -> Result<(), ParseError> {
    let text = element.text.to_ascii_uppercase();
    let is_name = field.names().0.contains(&text.as_str());
    let what = if text.starts_with('?') || text == "H" || text.starts_with("H/") || text.starts_with("H(") {
        "spread (`?`, `H`)"
    } else if text.contains('#') {
        "the n-th weekday (`#`)"
    } else if matches!(field, Field::DayOfMonth | Field::DayOfWeek)
        && !is_name
        && (text.starts_with('L') || text.ends_with('L') && text.len() > 1)
    {
        "the last day (`L`)"
    } else if field == Field::DayOfMonth && text.ends_with('W') && text.len() > 1 {
        "the nearest weekday (`W`)"
    } else {
        return Ok(());
    };
    Err(ParseError::new(
        Some(field),
        element.span(),
        format!("`{}` uses {what}, which this version does not support", element.text),
        "write values, ranges, lists and steps",
    ))
}
