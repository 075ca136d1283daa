//! `tickhost next`: the next ticks of an expression. Speaks to no host.

use chrono::{DateTime, SecondsFormat, Utc};
use clap::Args;
use serde_json::json;
use tickhost_ledger::JobName;
use tickhost_schedule::{Definition, Dialect, Expression, ParseError, Schedule, Tick};

use super::{CliError, Format, print_json};

/// An expression and what it is read with.
#[derive(Debug, Args)]
pub(super) struct Reading {
    /// The expression, e.g. `0 2 * * *`.
    pub(super) expression: String,
    /// The zone in which it is read.
    #[arg(long, default_value = "UTC")]
    pub(super) zone: String,
    /// The job, NAMESPACE/NAME, by which `?` picks.
    #[arg(long)]
    pub(super) name: Option<JobName>,
    /// Read it as Quartz does: Sunday is 1, `?` is no value.
    #[arg(long)]
    pub(super) quartz: bool,
}

impl Reading {
    /// The expression, and its schedule if it were stored at `anchor`.
    pub(super) fn read(&self, anchor: DateTime<Utc>) -> Result<(Expression, Schedule), CliError> {
        let dialect = if self.quartz { Dialect::Quartz } else { Dialect::Cron };
        let definition = Definition { dialect, ..Definition::new(&self.expression, &self.zone) };
        let name = self.name.as_ref().map(ToString::to_string);
        let refuse = |e| refused(&self.expression, &e);
        let expression = Expression::parse(&self.expression, dialect, name.as_deref()).map_err(refuse)?;
        let schedule = Schedule::new(&definition, name.as_deref(), anchor).map_err(refuse)?;
        Ok((expression, schedule))
    }
}

#[derive(Debug, Args)]
pub(super) struct Next {
    #[command(flatten)]
    reading: Reading,
    /// Ticks after this instant (RFC 3339); now where absent.
    #[arg(long, value_parser = super::instant)]
    after: Option<DateTime<Utc>>,
    /// Ticks up to this instant.
    #[arg(long, value_parser = super::instant)]
    until: Option<DateTime<Utc>>,
    /// At most this many.
    #[arg(long, default_value_t = 10)]
    count: usize,
}

impl Next {
    pub(super) fn run(self, format: Format) -> Result<(), CliError> {
        let after = self.after.unwrap_or_else(Utc::now);
        let (expression, schedule) = self.reading.read(after)?;
        let preview = schedule.preview(after, self.until, self.count);
        let warnings = expression.warnings();
        if format == Format::Json {
            let ticks: Vec<String> = preview.ticks.iter().map(utc).collect();
            return print_json(&json!({
                "ticks": ticks,
                "never": preview.never,
                "horizon_reached": preview.horizon_reached,
                "warnings": warnings,
            }));
        }
        for tick in &preview.ticks {
            let note = schedule.note(tick).map_or(String::new(), |note| format!("  {note}"));
            say!("{}  {}  {}{note}", utc(tick), local(tick), tick.local.format("%a"));
        }
        if preview.never {
            say!("never{}", if preview.ticks.is_empty() { "" } else { " again" });
        }
        if preview.horizon_reached {
            say!("the bundled tz rules end with 2099; later ticks are not known");
        }
        for warning in warnings {
            eprintln!("warning: {warning}");
        }
        Ok(())
    }
}

/// The instant of a tick in UTC.
pub(super) fn utc(tick: &Tick) -> String {
    tick.at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// The same in its zone.
pub(super) fn local(tick: &Tick) -> String {
    tick.local.to_rfc3339_opts(SecondsFormat::Secs, false)
}

/// The text with a caret under what is wrong.
pub(super) fn refused(text: &str, error: &ParseError) -> CliError {
    if error.span.is_empty() {
        return CliError::refused(error.to_string());
    }
    let before = text.get(..error.span.start).map_or(0, |t| t.chars().count());
    let width = text.get(error.span.clone()).map_or(1, |t| t.chars().count().max(1));
    CliError::refused(format!("{error}\n  {text}\n  {}{}", " ".repeat(before), "^".repeat(width)))
}
