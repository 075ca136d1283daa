//! `tickhost next`: the next ticks of an expression. Speaks to no host.

use chrono::{DateTime, SecondsFormat, Utc};
use clap::Args;
use serde_json::json;
use tickhost_ledger::JobName;
use tickhost_schedule::{ParseError, Schedule};

use super::{CliError, Format, print_json};

#[derive(Debug, Args)]
pub(super) struct Next {
    /// The expression, e.g. `0 2 * * *`.
    expression: String,
    /// The zone in which it is read.
    #[arg(long, default_value = "UTC")]
    zone: String,
    /// Ticks after this instant (RFC 3339); now where absent.
    #[arg(long)]
    after: Option<DateTime<Utc>>,
    /// Ticks up to this instant.
    #[arg(long)]
    until: Option<DateTime<Utc>>,
    /// At most this many.
    #[arg(long, default_value_t = 10)]
    count: usize,
    /// The job, NAMESPACE/NAME, for values that are picked by name.
    #[arg(long)]
    name: Option<JobName>,
}

impl Next {
    pub(super) fn run(self, format: Format) -> Result<(), CliError> {
        let after = self.after.unwrap_or_else(Utc::now);
        let schedule =
            Schedule::parse(&self.expression, &self.zone, after).map_err(|e| refused(&self.expression, &e))?;
        let preview = schedule.preview(after, self.until, self.count);
        let warnings = schedule.expression().warnings();
        if format == Format::Json {
            let ticks: Vec<String> =
                preview.ticks.iter().map(|t| t.at.to_rfc3339_opts(SecondsFormat::Secs, true)).collect();
            return print_json(&json!({
                "ticks": ticks,
                "never": preview.never,
                "horizon_reached": preview.horizon_reached,
                "warnings": warnings,
            }));
        }
        for tick in &preview.ticks {
            let utc = tick.at.to_rfc3339_opts(SecondsFormat::Secs, true);
            let local = tick.local.to_rfc3339_opts(SecondsFormat::Secs, false);
            println!("{utc}  {local}  {}", tick.local.format("%a"));
        }
        if preview.never {
            println!("never{}", if preview.ticks.is_empty() { "" } else { " again" });
        }
        if preview.horizon_reached {
            println!("the bundled tz rules end with 2099; later ticks are not known");
        }
        for warning in warnings {
            eprintln!("warning: {warning}");
        }
        Ok(())
    }
}

/// The text with a caret under what is wrong.
fn refused(text: &str, error: &ParseError) -> CliError {
    if error.span.is_empty() {
        return CliError::refused(error.to_string());
    }
    let before = text.get(..error.span.start).map_or(0, |t| t.chars().count());
    let width = text.get(error.span.clone()).map_or(1, |t| t.chars().count().max(1));
    CliError::refused(format!("{error}\n  {text}\n  {}{}", " ".repeat(before), "^".repeat(width)))
}
