//! Manifests from other schedulers' files. Nothing is dropped without a word: what does not carry over is told, line
//! by line.

mod call;
mod cronjob;
mod crontab;

use std::{collections::BTreeMap, fmt::Write};

pub(crate) use cronjob::cronjob;
pub(crate) use crontab::{Crontab, crontab};
use tickhost_ledger::{ids::check_name, spec::bounds};
use tickhost_schedule::{Definition, ParseError, Schedule};

/// What an import makes of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Imported {
    /// The jobs, in the order of the file.
    pub(crate) jobs: Vec<Draft>,
    /// What does not carry over.
    pub(crate) remarks: Vec<Remark>,
}

/// Something that does not carry over, or that its owner has to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remark {
    /// Where: `line 12`, or a path in a YAML document.
    pub(crate) place: String,
    /// What, and what to do.
    pub(crate) text: String,
}

/// A job as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Draft {
    /// Its name in the manifest.
    pub(crate) name: String,
    /// What stood above it in the file.
    pub(crate) comments: Vec<String>,
    /// The expression in our dialect.
    pub(crate) schedule: String,
    /// The zone, where the file says one.
    pub(crate) zone: Option<String>,
    /// What it ran.
    pub(crate) command: String,
    /// The same as a call of the ready-made job `http-call`, where it is a plain one.
    pub(crate) call: Option<call::Call>,
    /// Other fields of the manifest with their values in TOML.
    pub(crate) fields: Vec<(&'static str, String)>,
}

/// The choices of whoever imports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choices {
    /// The manifest's namespace.
    pub(crate) namespace: String,
    /// `on_unknown` of every job; where absent it is left to be written, since nobody but the owner can know.
    pub(crate) on_unknown: Option<String>,
    /// Where the component of `http-call` lies.
    pub(crate) http_call: String,
}

impl Imported {
    fn remark(&mut self, place: impl Into<String>, text: impl Into<String>) {
        self.remarks.push(Remark { place: place.into(), text: text.into() });
    }

    /// A name that no job has yet.
    fn unique(&self, wanted: &str) -> String {
        let names = std::iter::once(wanted.to_owned()).chain((2..).map(|n| format!("{wanted}-{n}")));
        let mut free = names.filter(|name| self.jobs.iter().all(|job| job.name != *name));
        free.next().unwrap_or_default()
    }

    /// A limit on wall time, where a job may have it.
    fn limit_wall(&mut self, draft: &mut Draft, place: impl Into<String>, seconds: u64) {
        if bounds::TIME_MS.contains(&seconds.saturating_mul(1_000)) {
            draft.fields.push(("limits", format!("{{ wall = \"{seconds}s\" }}")));
        } else {
            self.remark(place, format!("a run may not take {seconds} s: a day is the most; the default is a minute"));
        }
    }

    /// The manifest.
    pub(crate) fn manifest(&self, choices: &Choices) -> String {
        let mut out = format!("namespace = {}\n", quoted(&choices.namespace));
        for job in &self.jobs {
            out.push('\n');
            for comment in &job.comments {
                let _ = writeln!(out, "# {}", one_line(comment));
            }
            let component = match &job.call {
                Some(_) => choices.http_call.clone(),
                None => format!("{}.wasm", job.name),
            };
            if job.call.is_none() {
                let _ = writeln!(out, "# It ran: {}", one_line(&job.command));
            }
            let _ = writeln!(out, "[job.{}]", key(&job.name));
            let _ = writeln!(out, "component = {}", quoted(&component));
            let _ = writeln!(out, "schedule = {}", quoted(&job.schedule));
            if let Some(zone) = &job.zone {
                let _ = writeln!(out, "time_zone = {}", quoted(zone));
            }
            match &choices.on_unknown {
                Some(choice) => {
                    let _ = writeln!(out, "on_unknown = {}", quoted(choice));
                }
                None => out.push_str("# on_unknown = \"skip\" (twice is worse) or \"repeat\" (not at all is worse)\n"),
            }
            for (name, value) in &job.fields {
                let _ = writeln!(out, "{name} = {value}");
            }
            if let Some(call) = &job.call {
                let _ = writeln!(out, "allow = [{}]", quoted(&call.origin()));
                let _ = writeln!(out, "\n[job.{}.config]", key(&job.name));
                for (name, value) in call.config() {
                    let _ = writeln!(out, "{} = {}", key(&name), quoted(&value));
                }
            }
        }
        out
    }
}

/// A text for a comment, which takes no control characters.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A text as a value of TOML.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A key of TOML, in quotes where it has to be.
fn key(text: &str) -> String {
    let is_bare = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) && !text.is_empty();
    if is_bare { text.to_owned() } else { quoted(text) }
}

/// A job's name from any text.
fn name_from(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let words: String = text.chars().map(plain).collect();
    let mut name = words.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-");
    name.truncate(50);
    let name = name.trim_end_matches('-').to_owned();
    if check_name("job name", &name).is_ok() { name } else { "job".into() }
}

/// Whether an expression is one of ours, in a zone; the name stands for the job's, which is not final yet.
fn check(expression: &str, zone: &str) -> Result<(), ParseError> {
    Schedule::new(&Definition::new(expression, zone), Some("import/job"), chrono::DateTime::UNIX_EPOCH).map(|_| ())
}

type Config = BTreeMap<String, String>;
