//! `tickhost ticks`, `show`, `logs`, `trigger`.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use tickhost_sandbox::{OutputText, Stream};

use super::{CliError, Format, job_path, print_json, table};
use crate::{
    api::{Headroom, LaunchView},
    client::Client,
};

/// How often a followed run is looked at.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(super) struct Ticks {
    /// NAMESPACE/NAME
    job: String,
    /// Ticks from this instant on (RFC 3339).
    #[arg(long)]
    from: Option<String>,
    /// Ticks up to this instant; now where absent.
    #[arg(long)]
    to: Option<String>,
    /// The newest this many.
    #[arg(long, default_value_t = 20)]
    count: usize,
    /// Only ticks of the job's present schedule without a verdict though their time is over: there must be none.
    #[arg(long, conflicts_with = "count")]
    gaps: bool,
}

impl Ticks {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        let mut query = Vec::new();
        query.extend(self.from.map(|from| ("from", from)));
        query.extend(self.to.map(|to| ("to", to)));
        if self.gaps {
            let answer: Value = client.get(&format!("{}/gaps", job_path(&self.job)?), &query).await?;
            return show_gaps(&self.job, &answer, format);
        }
        query.push(("count", self.count.to_string()));
        let answer: Value = client.get(&format!("{}/ticks", job_path(&self.job)?), &query).await?;
        if format == Format::Json {
            return print_json(&answer);
        }
        let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let ticks = answer["ticks"].as_array().cloned().unwrap_or_default();
        let rows: Vec<Vec<String>> = ticks
            .iter()
            .map(|row| {
                let attempts = row["attempts"].as_u64().unwrap_or(0).to_string();
                vec![text(row, "tick"), text(row, "local"), text(row, "verdict"), attempts, text(row, "launch")]
            })
            .collect();
        table::print(&["TICK", "LOCAL", "VERDICT", "ATTEMPTS", "LAUNCH"], &rows);
        if let Some(older) = answer["folded"].as_object() {
            let count = |name: &str| older.get(name).and_then(Value::as_u64).unwrap_or(0);
            say!("and older ones: {} succeeded, {} did not", count("succeeded"), count("other"));
        }
        Ok(())
    }
}

fn show_gaps(job: &str, answer: &Value, format: Format) -> Result<(), CliError> {
    let gaps: Vec<&str> = answer["gaps"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match format {
        Format::Json => print_json(answer)?,
        Format::Text => gaps.iter().for_each(|tick| say!("{tick}  no verdict")),
    }
    match gaps.len() {
        0 if format == Format::Text => {
            say!("every tick of {job} has its verdict");
            Ok(())
        }
        0 => Ok(()),
        count => Err(CliError::failed(format!("{count} ticks of {job} have no verdict, and their time is over"))),
    }
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// NAMESPACE/NAME@INSTANT, and +ID for a re-run.
    launch: String,
}

impl Show {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        let view: LaunchView = client.get("/v1/launch", &[("id", self.launch)]).await?;
        if format == Format::Json {
            return print_json(&view);
        }
        say!("{}  {}", view.launch, view.verdict);
        say!("local     {}", view.local);
        say!("previous  {}", view.previous.as_deref().unwrap_or("none"));
        say!("origin    {}", view.origin);
        say!("decided   {}", view.decided_at);
        for (number, attempt) in (1..).zip(&view.attempts) {
            let started = attempt.started_at.map_or("not recorded".into(), |at| at.to_string());
            say!(
                "attempt {number}: node {}, revision {}, grant {}.{}, intended {}, started {started}",
                attempt.node,
                attempt.revision,
                attempt.grant.epoch,
                attempt.grant.index,
                attempt.intended_at
            );
            if let Some(ended) = &attempt.ended {
                say!("  ended {}: {}", ended.at, ended.outcome.to_string().replace('\n', "\n    "));
            }
        }
        if !view.limits.is_empty() {
            say!("");
            let suggested = |limit: &Headroom| limit.suggested.map_or(String::new(), |better| better.to_string());
            let row = |limit: &Headroom| {
                let Headroom { limit: name, unit, used, declared, headroom_percent, .. } = limit;
                let numbers = [used.to_string(), declared.to_string(), format!("{headroom_percent} %")];
                [vec![format!("{name} ({unit})")], numbers.to_vec(), vec![suggested(limit)]].concat()
            };
            let rows: Vec<Vec<String>> = view.limits.iter().map(row).collect();
            table::print(&["LIMIT", "USED", "DECLARED", "HEADROOM", "SUGGESTED"], &rows);
        }
        if !view.effects.is_empty() {
            say!("");
            let rows: Vec<Vec<String>> = view
                .effects
                .iter()
                .map(|e| vec![e.key.clone(), e.what.clone(), e.intents.to_string(), e.result.clone()])
                .collect();
            table::print(&["KEY", "EFFECT", "INTENTS", "RESULT"], &rows);
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(super) struct Logs {
    /// NAMESPACE/NAME@INSTANT, and +ID for a re-run.
    launch: String,
    /// Which attempt; the latest where absent.
    #[arg(long)]
    attempt: Option<u32>,
    /// Go on until the run is over, then print its verdict.
    #[arg(long)]
    follow: bool,
}

#[derive(Debug, Deserialize)]
struct LogsAnswer {
    verdict: String,
    live: bool,
    output: OutputText,
}

impl Logs {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        let mut from = 0;
        loop {
            let mut query = vec![("launch", self.launch.clone()), ("from", from.to_string())];
            query.extend(self.attempt.map(|attempt| ("attempt", attempt.to_string())));
            if format == Format::Json && !self.follow {
                let answer: Value = client.get("/v1/logs", &query).await?;
                return print_json(&answer);
            }
            let answer: LogsAnswer = client.get("/v1/logs", &query).await?;
            for line in &answer.output.lines {
                if from > 0 && line.number > from {
                    eprintln!("… {} lines dropped", line.number - from);
                }
                from = line.number + 1;
                match format {
                    Format::Json => print_json(line)?,
                    Format::Text => say!("{}{}", prefix(line.stream), line.text),
                }
            }
            if !answer.live || !self.follow {
                if answer.output.dropped_bytes > 0 && !self.follow {
                    eprintln!("… {} bytes were dropped between head and tail", answer.output.dropped_bytes);
                }
                eprintln!("{}", answer.verdict);
                return Ok(());
            }
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    }
}

fn prefix(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "out  ",
        Stream::Stderr => "err  ",
        Stream::Log => "log  ",
    }
}

#[derive(Debug, Args)]
pub(super) struct Trigger {
    /// NAMESPACE/NAME
    job: String,
    /// The tick to launch again (RFC 3339); absent for a launch outside of the schedule.
    #[arg(long)]
    tick: Option<String>,
    /// Effects carry the keys of the tick's own launch: what is done already is not done again, what is in doubt is
    /// sent again under the same key.
    #[arg(long, requires = "tick", conflicts_with = "new_key")]
    same_key: bool,
    /// Effects carry new keys: everything is done again.
    #[arg(long)]
    new_key: bool,
}

impl Trigger {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        if self.tick.is_some() && !self.same_key && !self.new_key {
            return Err(CliError::refused(
                "a tick is launched again either with --same-key (finish it: nothing is done twice) or with --new-key \
                 (do all of it again); say which",
            ));
        }
        let id = uuid::Uuid::new_v4();
        let body = json!({ "tick": self.tick, "same_key": self.same_key, "id": id });
        let answer = client.post(&format!("{}/trigger", job_path(&self.job)?), &body).await?;
        if format == Format::Json {
            return print_json(&answer);
        }
        say!("{}", answer["launch"].as_str().unwrap_or_default());
        Ok(())
    }
}
