//! Walking naive wall time: our sets of values, rendered for the `cron` crate.
//!
//! The crate walks calendar fields well. It does not get to see a zone (it drops ticks in a repeated hour) nor
//! our text (it counts 1 as Sunday and always joins the two day fields with AND).

use std::str::FromStr;

use chrono::NaiveDateTime;

use crate::{Field, ParseError, expression::Calendar, field::Values};

/// The wall times that an expression names, without a zone.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    /// Two where the day rule is OR: either day field, each with the other left open.
    schedules: Vec<cron::Schedule>,
}

impl Walk {
    pub(crate) fn new(calendar: &Calendar) -> Result<Self, ParseError> {
        let dom = &calendar.day_of_month;
        let dow = &calendar.day_of_week;
        let either = !dom.star && !dow.star;
        let pairs = if either {
            vec![(dom.clone(), Values::all(Field::DayOfWeek)), (Values::all(Field::DayOfMonth), dow.clone())]
        } else {
            vec![(dom.clone(), dow.clone())]
        };
        let schedules = pairs
            .iter()
            .map(|(dom, dow)| {
                let text = render(calendar, dom, dow);
                cron::Schedule::from_str(&text).map_err(|e| {
                    ParseError::new(
                        None,
                        0..0,
                        format!("the calendar engine refuses `{text}`: {e}"),
                        "this is a fault of tickhost, please report it",
                    )
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { schedules })
    }

    /// The first wall time after `after`, up to the horizon.
    pub(crate) fn next(&self, after: NaiveDateTime) -> Option<NaiveDateTime> {
        self.schedules.iter().filter_map(|s| s.after(&after.and_utc()).next()).min().map(|t| t.naive_utc())
    }
}

fn render(calendar: &Calendar, dom: &Values, dow: &Values) -> String {
    let list = |field, values: &Values, shift: u32| {
        if values.is_full(field) {
            return "*".to_owned();
        }
        values.set.iter().map(|v| (v + shift).to_string()).collect::<Vec<_>>().join(",")
    };
    [
        list(Field::Second, &calendar.second, 0),
        list(Field::Minute, &calendar.minute, 0),
        list(Field::Hour, &calendar.hour, 0),
        list(Field::DayOfMonth, dom, 0),
        list(Field::Month, &calendar.month, 0),
        // The crate counts Sunday as 1.
        list(Field::DayOfWeek, dow, 1),
        list(Field::Year, &calendar.year, 0),
    ]
    .join(" ")
}
