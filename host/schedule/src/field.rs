//! One field of an expression: its range, its names, and its text read into the values it stands for.

use std::{fmt, ops::Range};

use crate::{
    Dialect, ParseError,
    set::{Set, base},
    spread,
};

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
    pub(crate) fn last(self) -> u32 {
        if self == Self::DayOfWeek { 6 } else { self.bounds().1 }
    }

    pub(crate) fn names(self) -> (&'static [&'static str], u32) {
        match self {
            Self::Month => (&MONTHS, 1),
            Self::DayOfWeek => (&WEEKDAYS, 0),
            _ => (&[], 0),
        }
    }

    fn expected(self, lo: u32, hi: u32) -> String {
        match self.names().0 {
            [first, .., last] => format!("{lo}–{hi} or {first}–{last}"),
            _ => format!("{lo}–{hi}"),
        }
    }

    fn forms(self) -> &'static str {
        match self {
            Self::DayOfMonth => {
                "write `*`, a number, a range `a-b`, a list `a,b`, a step `*/n`, `?`, `L`, `L-n`, `LW` or `nW`"
            }
            Self::DayOfWeek => {
                "write `*`, a number or name, a range `a-b`, a list `a,b`, a step `*/n`, `?`, `nL` or `n#k`"
            }
            Self::Year => "write `*`, a number, a range `a-b`, a list `a,b` or a step `*/n`",
            _ => "write `*`, a number, a range `a-b`, a list `a,b`, a step `*/n` or `?`",
        }
    }
}

/// A field read: the values it stands for, and whether its text starts with `*`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Values {
    /// Plain values; a year counts from 1970.
    pub(crate) set: Set,
    /// By the text, not the values: `*/1` is a star and `0-59` is none. The day rule and the daylight rule go by
    /// it, as in cronie.
    pub(crate) star: bool,
    /// Day of month, bit n: n days before the last. Day of week, bit n: the last weekday n of the month.
    pub(crate) last: u32,
    /// Day of month, bit n: the weekday nearest to day n; bit 0: the last weekday of the month.
    pub(crate) nearest: u32,
    /// Day of week, bit 7(k − 1) + n: the k-th weekday n of the month.
    pub(crate) nth: u64,
    /// It goes on to the field's end, whatever that is: `*`, `*/2`, `2020/2`.
    pub(crate) open: bool,
    /// What was picked for a `?`, in the field's own numbers.
    pub(crate) picked: Vec<u32>,
}

impl Values {
    /// The field that is not written: one value, no star.
    pub(crate) fn only(value: u32) -> Self {
        Self { set: Set::from_iter([value]), ..Self::default() }
    }

    /// Every value of `field`, as `*`.
    pub(crate) fn all(field: Field) -> Self {
        let set = (field.bounds().0..=field.last()).map(|value| value - base(field)).collect();
        Self { set, star: true, open: true, ..Self::default() }
    }

    /// Whether every value of `field` is in the set.
    pub(crate) fn is_full(&self, field: Field) -> bool {
        self.set.len() == field.last() - field.bounds().0 + 1
    }

    fn add(&mut self, other: Self) {
        self.set.union(&other.set);
        self.last |= other.last;
        self.nearest |= other.nearest;
        self.nth |= other.nth;
        self.open |= other.open;
        self.picked.extend(other.picked);
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

    /// Without its last `bytes`.
    fn without_end(self, bytes: usize) -> Self {
        Piece { text: &self.text[..self.text.len() - bytes], at: self.at }
    }

    /// Without its first `bytes`.
    fn without_start(self, bytes: usize) -> Self {
        Piece { text: &self.text[bytes..], at: self.at + bytes }
    }
}

/// Reads one field.
pub(crate) struct FieldReader<'a> {
    pub(crate) field: Field,
    pub(crate) dialect: Dialect,
    /// A bare `?` could be meant as Quartz means it.
    pub(crate) may_be_quartz: bool,
    /// The job, `namespace/name`, by which values are picked.
    pub(crate) name: Option<&'a str>,
    /// What is accepted but is seldom what was meant.
    pub(crate) warnings: &'a mut Vec<String>,
}

impl FieldReader<'_> {
    pub(crate) fn read(&mut self, piece: Piece<'_>) -> Result<Values, ParseError> {
        let is_day = matches!(self.field, Field::DayOfMonth | Field::DayOfWeek);
        if self.dialect == Dialect::Quartz && piece.text == "?" {
            if is_day {
                return Ok(Values::all(self.field));
            }
            let help = "write `*`, or read the job in the default dialect, where `?` picks a value";
            return Err(self.refuse(piece, "`?` stands only in a day field of Quartz's dialect", help));
        }
        if is_day && self.may_be_quartz && piece.text == "?" {
            return Err(self.refuse(
                piece,
                "`?` can be read in two ways here: Quartz means \"no value\", tickhost picks one by the job's name",
                "write `*` for no value, `H` for a pick, or set `dialect = \"quartz\"`",
            ));
        }
        let mut values = Values { star: piece.text.starts_with('*'), ..Values::default() };
        for (index, element) in piece.split(',').enumerate() {
            if element.text.is_empty() {
                return Err(self.refuse(
                    piece,
                    &format!("`{}` has an empty element in its list", piece.text),
                    "write the values with one comma between them, e.g. `1,2`",
                ));
            }
            values.add(self.element(element, index)?);
        }
        if self.field == Field::DayOfWeek && values.set.contains(7) {
            values.set.remove(7);
            values.set.insert(0);
        }
        Ok(values)
    }

    fn refuse(&self, piece: Piece<'_>, message: &str, help: &str) -> ParseError {
        ParseError::new(Some(self.field), piece.span(), message, help)
    }

    fn element(&mut self, element: Piece<'_>, index: usize) -> Result<Values, ParseError> {
        if let Some(values) = self.special(element)? {
            return Ok(values);
        }
        let (base_piece, step) = match element.split_once('/') {
            Some((base, step)) => (base, Some(self.step(step)?)),
            None => (element, None),
        };
        if let Some(rest) = spread_of(base_piece) {
            return self.spread(element, rest, step, index);
        }
        let (lo, hi) = if base_piece.text == "*" {
            (self.field.bounds().0, self.field.last())
        } else if let Some((from, to)) = base_piece.split_once('-') {
            self.range(base_piece, from, to)?
        } else {
            let value = self.value(base_piece)?;
            (value, if step.is_some() { self.field.last().max(value) } else { value })
        };
        if let Some(step) = step {
            self.warn_of_step(element, (lo, hi), step);
        }
        let open = base_piece.text == "*" || step.is_some() && !base_piece.text.contains('-');
        Ok(Values { open, ..self.every(lo, hi, step.unwrap_or(1)) })
    }

    fn every(&self, lo: u32, hi: u32, step: u32) -> Values {
        let set = (lo..=hi).step_by(step as usize).map(|value| value - base(self.field)).collect();
        Values { set, ..Values::default() }
    }

    fn warn_of_step(&mut self, element: Piece<'_>, (lo, hi): (u32, u32), step: u32) {
        let field = self.field;
        let (first, last) = (field.bounds().0, field.last());
        let newest = lo + (hi - lo) / step * step;
        // From the last value of one round to the first of the next.
        let wrap = last - newest.min(last) + lo - first + 1;
        if step > hi - lo {
            self.warnings.push(format!(
                "the {field} field's `{}` has a step larger than its range: only {lo} is left",
                element.text
            ));
        } else if hi >= last && field != Field::Year && wrap != step {
            self.warnings.push(format!(
                "the {field} field's `{}` is not every {step}: after {newest} comes {lo}, {wrap} later",
                element.text
            ));
        }
    }

    /// `?`, `?(a-b)`, `?/n`, `?(a-b)/n`, and the same with `H`. The pick goes by the job's name and the field.
    fn spread(
        &mut self,
        element: Piece<'_>,
        rest: Piece<'_>,
        step: Option<u32>,
        index: usize,
    ) -> Result<Values, ParseError> {
        let field = self.field;
        if field == Field::Year {
            return Err(self.refuse(element, "a year cannot be picked", "write the years"));
        }
        let (lo, hi) = match rest.text {
            // Every month has 28 days.
            "" if field == Field::DayOfMonth => (1, 28),
            "" => (field.bounds().0, field.last()),
            text if text.starts_with('(') && text.ends_with(')') => {
                let inner = rest.without_start(1).without_end(1);
                let Some((from, to)) = inner.split_once('-') else {
                    let help = "write e.g. `?(0-29)`";
                    return Err(self.refuse(rest, &format!("`{text}` is no range to pick from"), help));
                };
                self.range(inner, from, to)?
            }
            _ => {
                let help = "write `?`, `?(a-b)`, `?/n` or `?(a-b)/n`";
                return Err(self.refuse(element, &format!("`{}` is no way to pick a value", element.text), help));
            }
        };
        let Some(name) = self.name else {
            let message = format!("`{}` is picked by the job's name, and none is given", element.text);
            return Err(self.refuse(element, &message, "give it, e.g. `--name billing/nightly`"));
        };
        let purpose = if index == 0 { field.to_string() } else { format!("{field}/{index}") };
        let choices = step.map_or(hi - lo + 1, |step| step.min(hi - lo + 1));
        let first = lo + spread::pick(name, &purpose, choices);
        if let Some(step) = step {
            self.warn_of_step(element, (first, hi), step);
        }
        let mut values = match step {
            Some(step) => self.every(first, hi, step),
            None => self.every(first, first, 1),
        };
        values.picked = values.set.iter().map(|value| value + base(field)).collect();
        Ok(values)
    }

    /// What stands for days that differ from month to month.
    fn special(&self, element: Piece<'_>) -> Result<Option<Values>, ParseError> {
        match self.field {
            Field::DayOfMonth => self.special_day(element),
            Field::DayOfWeek => self.special_weekday(element),
            _ => Ok(None),
        }
    }

    /// `L`, `L-n`, `LW`, `nW`.
    fn special_day(&self, element: Piece<'_>) -> Result<Option<Values>, ParseError> {
        let text = element.text.to_ascii_uppercase();
        let last = |back: u32| Ok(Some(Values { last: 1 << back, ..Values::default() }));
        if text == "L" {
            return last(0);
        }
        if text == "LW" {
            return Ok(Some(Values { nearest: 1, ..Values::default() }));
        }
        if let Some(back) = text.strip_prefix("L-") {
            return match parse_number(back) {
                Some(back) if (1..=30).contains(&back) => last(back),
                _ => Err(self.refuse(
                    element,
                    &format!("`{}` is no day before the last", element.text),
                    "write `L-1` (one day before the last) to `L-30`",
                )),
            };
        }
        if let Some(day) = text.strip_suffix('W') {
            return match parse_number(day) {
                Some(day) if (1..=31).contains(&day) => Ok(Some(Values { nearest: 1 << day, ..Values::default() })),
                _ => Err(self.refuse(
                    element,
                    &format!("`{}` is no weekday nearest to a day", element.text),
                    "write `1W` to `31W`, or `LW` for the last weekday of the month",
                )),
            };
        }
        if text.contains('L') && !text.starts_with("JUL") {
            let help = "write `L`, `L-n` or `LW` by itself or as one element of a list";
            return Err(self.refuse(element, &format!("`{}` is no last day", element.text), help));
        }
        Ok(None)
    }

    /// `nL`, `n#k`; a bare `L` only as Quartz means it, where it is Saturday.
    fn special_weekday(&self, element: Piece<'_>) -> Result<Option<Values>, ParseError> {
        if let Some((day, k)) = element.split_once('#') {
            let weekday = self.weekday(day)?;
            return match parse_number(k.text) {
                Some(k) if (1..=5).contains(&k) => {
                    Ok(Some(Values { nth: 1 << (7 * (k - 1) + weekday), ..Values::default() }))
                }
                _ => Err(self.refuse(
                    element,
                    &format!("`{}` is no n-th weekday of a month: there are five at the most", element.text),
                    "write `#1` to `#5`, or e.g. `FRIL` for the last one",
                )),
            };
        }
        let text = element.text.to_ascii_uppercase();
        if text == "L" {
            if self.dialect == Dialect::Quartz {
                return Ok(Some(self.every(6, 6, 1)));
            }
            let help = "write e.g. `FRIL` for the last Friday of the month, or `SAT` for Saturday";
            return Err(self.refuse(element, "`L` needs the weekday of which it is the last", help));
        }
        match text.strip_suffix('L') {
            Some(day) if !day.is_empty() => {
                let weekday = self.weekday(element.without_end(1))?;
                Ok(Some(Values { last: 1 << weekday, ..Values::default() }))
            }
            _ => Ok(None),
        }
    }

    /// A single weekday, 7 as 0.
    fn weekday(&self, piece: Piece<'_>) -> Result<u32, ParseError> {
        Ok(self.value(piece)? % 7)
    }

    /// `FRI-SUN` and `5-0` end in the Sunday after, so there 0 stands for 7. Every other reversed range is
    /// refused: products disagree on whether it wraps, and silence would be a job that never runs.
    fn range(&self, whole: Piece<'_>, from: Piece<'_>, to: Piece<'_>) -> Result<(u32, u32), ParseError> {
        let lo = self.value(from)?;
        let mut hi = self.value(to)?;
        if self.field == Field::DayOfWeek && hi == 0 && lo > 0 {
            hi = 7;
        }
        if lo > hi {
            let (first, last) = match self.dialect {
                Dialect::Quartz if self.field == Field::DayOfWeek => (1, 7),
                _ => (self.field.bounds().0, self.field.last()),
            };
            return Err(self.refuse(
                whole,
                &format!("`{}` runs backwards", whole.text),
                &format!("write it as two ranges, `{}-{last}` and `{first}-{}`", from.text, to.text),
            ));
        }
        Ok((lo, hi))
    }

    fn step(&self, piece: Piece<'_>) -> Result<u32, ParseError> {
        match parse_number(piece.text) {
            Some(step) if step > 0 => Ok(step),
            _ => Err(self.refuse(
                piece,
                &format!("`{}` is no step; expected a whole number from 1", piece.text),
                "write e.g. `*/5`",
            )),
        }
    }

    fn value(&self, piece: Piece<'_>) -> Result<u32, ParseError> {
        let (names, base) = self.field.names();
        if let Some(index) = names.iter().position(|name| piece.text.eq_ignore_ascii_case(name)) {
            return Ok(index as u32 + base);
        }
        // Quartz counts Sunday as 1; everything behind this line counts it as 0.
        let quartz_weekday = self.dialect == Dialect::Quartz && self.field == Field::DayOfWeek;
        let ((lo, hi), shift) = if quartz_weekday { ((1, 7), 1) } else { (self.field.bounds(), 0) };
        match parse_number(piece.text) {
            Some(value) if (lo..=hi).contains(&value) => Ok(value - shift),
            Some(value) => Err(self.refuse(
                piece,
                &format!("`{value}` is out of range; expected {}", self.field.expected(lo, hi)),
                "numbers do not wrap: write one inside the range",
            )),
            None if !piece.text.is_empty() && piece.text.bytes().all(|b| b.is_ascii_digit()) => Err(self.refuse(
                piece,
                &format!("`{}` is out of range; expected {}", piece.text, self.field.expected(lo, hi)),
                "numbers do not wrap: write one inside the range",
            )),
            None => Err(self.refuse(
                piece,
                &format!("`{}` is no value; expected {}", piece.text, self.field.expected(lo, hi)),
                self.field.forms(),
            )),
        }
    }
}

/// What stands behind `?` or `H`, where an element picks.
fn spread_of(piece: Piece<'_>) -> Option<Piece<'_>> {
    let first = piece.text.chars().next()?;
    let is_h = first.eq_ignore_ascii_case(&'H') && matches!(piece.text.as_bytes().get(1), None | Some(b'('));
    (first == '?' || is_h).then(|| piece.without_start(1))
}

/// ASCII digits only: `str::parse` would take a `+`, and other scripts' digits are refused on purpose.
fn parse_number(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}
