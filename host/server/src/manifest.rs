//! `tickhost.toml`: what the owner of jobs writes. Everything that is wrong with a file is told at once, each
//! with its line and column.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
};

use miette::{Diagnostic, LabeledSpan, NamedSource};
use tickhost_ledger::{
    Digest, JobName, JobSpec,
    ids::check_name,
    spec::{CatchUp, Limits, OnUnknown, Overlap, Retry, RetryWhen, bounds, check_argument, check_variable},
};
use tickhost_sandbox::AllowRule;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

mod calendar;
mod quota;
mod timing;

pub use quota::parse_quotas;
use timing::Timing;

/// A manifest, read and checked; components are not looked up yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The jobs, by name.
    pub jobs: Vec<(JobName, JobDraft)>,
    /// What is accepted but seldom meant: job and sentence.
    pub warnings: Vec<(JobName, String)>,
}

/// A job whose component may still be a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobDraft {
    /// Where the component is.
    pub component: ComponentRef,
    /// Everything else; its `component` is filled in once the bytes are known.
    pub spec: JobSpec,
}

/// Where a component is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ComponentRef {
    /// A file, relative to the manifest's folder.
    Path(PathBuf),
    /// Stored already.
    Digest(Digest),
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// What was found and what was expected.
    pub message: String,
    /// What to write.
    pub help: Option<String>,
    /// Where, in bytes.
    pub span: Range<usize>,
    /// Counted from 1.
    pub line: usize,
    /// In bytes, counted from 1.
    pub column: usize,
}

/// Everything that is wrong with a manifest.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {} problem{}", .problems.len(), if .problems.len() == 1 { "" } else { "s" })]
pub struct Refused {
    /// The file's name, for people.
    pub path: String,
    text: String,
    /// In the order of the file.
    pub problems: Vec<Problem>,
}

impl Refused {
    /// The problems as a report with the lines they are about.
    pub fn report(&self) -> String {
        let handler = miette::GraphicalReportHandler::new();
        let mut out = format!("{self}\n");
        for problem in &self.problems {
            let shown = Shown { problem, named: NamedSource::new(&self.path, self.text.clone()) };
            // Writing to a String cannot fail.
            let _ = handler.render_report(&mut out, &shown);
        }
        out
    }
}

#[derive(Debug, thiserror::Error)]
#[error("line {}, column {}: {}", problem.line, problem.column, problem.message)]
struct Shown<'a> {
    problem: &'a Problem,
    named: NamedSource<String>,
}

impl Diagnostic for Shown<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        self.problem.help.as_ref().map(|help| Box::new(help) as Box<dyn std::fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(&self.named)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(None, self.problem.span.clone()))))
    }
}

/// Reads a manifest. Its calendars lie in the folder `calendars` beside it.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(path: &Path, text: &str) -> Result<Manifest, Refused> {
    let manifest = Manifest { jobs: Vec::new(), warnings: Vec::new() };
    let dir = path.parent().unwrap_or(Path::new(""));
    read_toml(path, text, manifest, |reader, table, manifest| reader.manifest(table, dir, manifest))
}

/// What a reader makes of a file, or everything that is wrong with it.
fn read_toml<T>(
    path: &Path,
    text: &str,
    mut made: T,
    read: impl FnOnce(&mut Reader<'_>, &Spanned<Table<'_>>, &mut T),
) -> Result<T, Refused> {
    let mut reader = Reader { text, problems: Vec::new() };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        reader.problem(error.span().unwrap_or(0..0), error.message(), None);
    }
    let broken: BTreeSet<usize> = reader.problems.iter().map(|problem| problem.line).collect();
    read(&mut reader, &table, &mut made);
    // What the parser made of a broken line is a guess; its syntax is what is wrong with it.
    let syntax = errors.len();
    let mut index = 0;
    reader.problems.retain(|problem| {
        index += 1;
        index <= syntax || !broken.contains(&problem.line)
    });
    if reader.problems.is_empty() {
        return Ok(made);
    }
    reader.problems.sort_by_key(|problem| problem.span.start);
    Err(Refused { path: path.display().to_string(), text: text.to_owned(), problems: reader.problems })
}

/// What is to happen at least once is tried again by itself. Arbitrary.
const REPEAT_RETRY: Retry = Retry { attempts: 5, backoff_ms: 1_000, backoff_max_ms: 60_000, when: RetryWhen::Failed };
/// Missed ticks that `catch_up = "all"` makes up. Arbitrary.
const CATCH_UP_DEFAULT: u32 = 100;
const START_DEADLINE_S: u32 = 3_600;

const ON_UNKNOWN_HELP: &str = "nobody but the owner can choose what happens to a run of which it is unknown whether it happened: \
     \"skip\" does it at most once (charging, mailing: doing it twice is worse), \
     \"repeat\" at least once (recomputing, syncing: not doing it is worse)";

type Table<'a> = DeTable<'a>;

struct Reader<'a> {
    text: &'a str,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, span: Range<usize>, message: impl Into<String>, help: Option<String>) {
        let before = &self.text[..span.start.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |newline| newline + 1) + 1;
        self.problems.push(Problem { message: message.into(), help, span, line, column });
    }

    fn manifest(&mut self, table: &Spanned<Table<'_>>, dir: &Path, manifest: &mut Manifest) {
        let mut fields = Fields::new(self, "the manifest", table.get_ref(), table.span(), &["namespace", "job"]);
        let namespace = fields.required("namespace", "write e.g. `namespace = \"billing\"`", |r, v| {
            let text = r.string(v)?;
            r.checked(v, check_name("namespace", &text).map(|()| text))
        });
        let Some(jobs) = fields.required("job", "write a table `[job.NAME]` for each job", |r, v| r.table(v, "job"))
        else {
            return;
        };
        for (key, value) in jobs.iter() {
            let name = self.checked_span(key.span(), check_name("job name", key.get_ref()));
            let Some(table) = self.table(value, key.get_ref()) else { continue };
            // What is missing in a table is said at its header.
            let span = key.span();
            let mut warnings = Vec::new();
            let job = format!("{}/{}", namespace.as_deref().unwrap_or("?"), key.get_ref());
            let draft = self.job(&job, table, span, dir, &mut warnings);
            if let (Some(namespace), Some(()), Some(draft)) = (&namespace, name, draft) {
                let name = JobName { namespace: namespace.clone(), name: key.get_ref().to_string() };
                manifest.warnings.extend(warnings.into_iter().map(|w| (name.clone(), w)));
                manifest.jobs.push((name, draft));
            }
        }
    }

    fn job(
        &mut self,
        job: &str,
        table: &Table<'_>,
        span: Range<usize>,
        dir: &Path,
        warnings: &mut Vec<String>,
    ) -> Option<JobDraft> {
        let what = format!("[job.{}]", job.rsplit('/').next().unwrap_or(job));
        let own = [
            "component",
            "on_unknown",
            "overlap",
            "catch_up",
            "start_deadline",
            "limits",
            "allow",
            "config",
            "args",
            "env",
            "retry",
        ];
        let known: Vec<&str> = own.into_iter().chain(timing::FIELDS).collect();
        let problems_before = self.problems.len();
        let mut f = Fields::new(self, &what, table, span, &known);
        let component = f.required("component", "write a path or `sha256:…`", |r, v| {
            let text = r.string(v)?;
            if text.starts_with("sha256:") {
                return r.checked(v, text.parse().map(ComponentRef::Digest));
            }
            Some(ComponentRef::Path(PathBuf::from(text)))
        });
        let timing = timing::read(&mut f, job, dir, warnings);
        let on_unknown = f.required("on_unknown", ON_UNKNOWN_HELP, |r, v| {
            r.choice(v, &[("skip", OnUnknown::Skip), ("repeat", OnUnknown::Repeat)])
        });
        let overlap = f.optional("overlap", Overlap::Skip, |r, v| {
            let all = [
                ("skip", Overlap::Skip),
                ("queue-one", Overlap::QueueOne),
                ("replace", Overlap::Replace),
                ("allow", Overlap::Allow),
            ];
            r.choice(v, &all)
        });
        let catch_up = f.optional("catch_up", CatchUp::Latest, Reader::catch_up);
        let start_deadline_ms = f.optional("start_deadline", u64::from(START_DEADLINE_S) * 1_000, |r, v| {
            r.duration_ms(v, &bounds::START_DEADLINE_MS)
        });
        let start_deadline_s = start_deadline_ms.and_then(|ms| timing::whole_seconds(&mut f, "start_deadline", ms));
        let allow_http = f.optional("allow", Vec::new(), Reader::allow);
        let config = f.optional("config", BTreeMap::new(), |r, v| r.texts(v, "config", |_, _| Ok(())));
        let args = f.optional("args", Vec::new(), Reader::args);
        let env = f.optional("env", BTreeMap::new(), |r, v| r.texts(v, "env", check_variable));
        let limits = f.optional("limits", Limits::default(), Reader::limits);
        let default_retry = match on_unknown {
            // What is to happen at least once is tried again by itself.
            Some(OnUnknown::Repeat) => REPEAT_RETRY,
            Some(OnUnknown::Skip) | None => Retry::NEVER,
        };
        let retry = f.optional("retry", default_retry, |r, v| r.retry(v, on_unknown));
        if self.problems.len() > problems_before {
            return None;
        }
        let Timing { definition, calendars, max_launches } = timing?;
        Some(JobDraft {
            component: component?,
            spec: JobSpec {
                component: Digest([0; 32]),
                timing: definition,
                calendars,
                max_launches,
                on_unknown: on_unknown?,
                overlap: overlap?,
                catch_up: catch_up?,
                start_deadline_s: start_deadline_s?,
                limits: limits?,
                allow_http: allow_http?,
                config: config?,
                retry: retry?,
                args: args?,
                env: env?,
            },
        })
    }

    fn catch_up(&mut self, value: &Spanned<DeValue<'_>>) -> Option<CatchUp> {
        if let Some(table) = value.get_ref().as_table() {
            let mut f = Fields::new(self, "catch_up", table, value.span(), &["all"]);
            return f.required("all", "write `catch_up = { all = 10 }`", |r, v| {
                r.number(v, &bounds::CATCH_UP).map(|n| CatchUp::All(u32::try_from(n).unwrap_or(CATCH_UP_DEFAULT)))
            });
        }
        let all = [("none", CatchUp::None), ("latest", CatchUp::Latest), ("all", CatchUp::All(CATCH_UP_DEFAULT))];
        self.choice(value, &all)
    }

    fn allow(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Vec<String>> {
        let Some(rules) = value.get_ref().as_array() else {
            return self.wrong_type(value, "a list of destinations, e.g. [\"https://api.example.com\"]");
        };
        let mut texts = Vec::new();
        for rule in rules.iter() {
            let text = self.string(rule)?;
            self.checked(rule, text.parse::<AllowRule>())?;
            texts.push(text);
        }
        Some(texts)
    }

    fn args(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Vec<String>> {
        let Some(args) = value.get_ref().as_array() else {
            return self.wrong_type(value, "a list of texts, e.g. [\"--verbose\"]");
        };
        let mut texts = Vec::new();
        for argument in args.iter() {
            let text = self.string(argument)?;
            self.checked(argument, check_argument(&text))?;
            texts.push(text);
        }
        Some(texts)
    }

    /// A table of texts, each of which is checked with its name.
    fn texts(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        what: &str,
        check: impl Fn(&str, &str) -> Result<(), String>,
    ) -> Option<BTreeMap<String, String>> {
        let table = self.table(value, what)?;
        let mut texts = BTreeMap::new();
        for (key, value) in table.iter() {
            let text = match value.get_ref() {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) => number.as_str().to_owned(),
                DeValue::Float(number) => number.as_str().to_owned(),
                DeValue::Boolean(flag) => flag.to_string(),
                _ => {
                    self.wrong_type::<()>(value, "a text, a number or a truth value")?;
                    continue;
                }
            };
            self.checked_span(key.span(), check(key.get_ref(), &text))?;
            texts.insert(key.get_ref().to_string(), text);
        }
        Some(texts)
    }

    fn limits(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Limits> {
        let table = self.table(value, "limits")?;
        let known = [
            "memory",
            "cpu",
            "wall",
            "log",
            "http_calls",
            "request_body",
            "response_body",
            "table_elements",
            "keys",
            "effects",
            "kv_bytes",
        ];
        let mut f = Fields::new(self, "limits", table, value.span(), &known);
        let default = Limits::default();
        let memory = f.optional("memory", default.memory_bytes, |r, v| r.bytes(v, &bounds::MEMORY_BYTES));
        let cpu = f.optional("cpu", default.cpu_ms, |r, v| r.duration_ms(v, &bounds::TIME_MS));
        let wall = f.optional("wall", default.wall_ms, |r, v| r.duration_ms(v, &bounds::TIME_MS));
        let log = f.optional("log", default.log_bytes, |r, v| r.bytes(v, &bounds::LOG_BYTES));
        let http_calls = f.optional("http_calls", default.http_calls, |r, v| r.number(v, &bounds::HTTP_CALLS));
        let request = f.optional("request_body", default.request_bytes, |r, v| r.bytes(v, &bounds::BODY_BYTES));
        let response = f.optional("response_body", default.response_bytes, |r, v| r.bytes(v, &bounds::BODY_BYTES));
        let tables = f.optional("table_elements", default.table_elements, |r, v| r.number(v, &bounds::TABLE_ELEMENTS));
        let keys = f.optional("keys", default.keys, |r, v| r.number(v, &bounds::KEYS));
        let effects = f.optional("effects", default.effects, |r, v| r.number(v, &bounds::EFFECTS));
        let kv_bytes = f.optional("kv_bytes", default.kv_bytes, |r, v| r.bytes(v, &bounds::KV_BYTES));
        Some(Limits {
            memory_bytes: memory?,
            cpu_ms: cpu?,
            wall_ms: wall?,
            log_bytes: log?,
            http_calls: http_calls?,
            request_bytes: request?,
            response_bytes: response?,
            table_elements: tables?,
            keys: keys?,
            effects: effects?,
            kv_bytes: kv_bytes?,
        })
    }

    fn retry(&mut self, value: &Spanned<DeValue<'_>>, on_unknown: Option<OnUnknown>) -> Option<Retry> {
        let table = self.table(value, "retry")?;
        let known = ["attempts", "backoff", "backoff_max", "when"];
        let mut f = Fields::new(self, "retry", table, value.span(), &known);
        let attempts =
            f.required("attempts", "write how many attempts there are in all, e.g. `attempts = 3`", |r, v| {
                r.number(v, &bounds::ATTEMPTS)
            });
        let backoff = f.optional("backoff", REPEAT_RETRY.backoff_ms, |r, v| r.duration_ms(v, &bounds::BACKOFF_MS));
        let backoff_max = f.optional("backoff_max", None, |r, v| r.duration_ms(v, &bounds::BACKOFF_MS).map(Some));
        let when = f.optional("when", None, |r, v| {
            r.choice(v, &[("asked", Some(RetryWhen::Asked)), ("failed", Some(RetryWhen::Failed))])
        });
        if on_unknown == Some(OnUnknown::Skip) && when.is_some_and(|when| when != Some(RetryWhen::Asked)) {
            self.problem(
                value.span(),
                "a job with `on_unknown = \"skip\"` is repeated only where the guest itself asks for it",
                Some("write `when = \"asked\"` in its [retry], or leave [retry] out".into()),
            );
            return None;
        }
        let (backoff_ms, longest) = (backoff?, backoff_max?);
        if let Some(longest) = longest.filter(|longest| *longest < backoff_ms) {
            let message = format!("`backoff_max` is {longest} ms, shorter than `backoff`, which is {backoff_ms} ms");
            self.problem(value.span(), message, Some("the wait doubles from `backoff` up to `backoff_max`".into()));
            return None;
        }
        Some(Retry {
            attempts: u32::try_from(attempts?).unwrap_or(1),
            backoff_ms,
            backoff_max_ms: longest.unwrap_or(REPEAT_RETRY.backoff_max_ms.max(backoff_ms)),
            when: when?.unwrap_or(REPEAT_RETRY.when),
        })
    }

    fn table<'v>(&mut self, value: &'v Spanned<DeValue<'v>>, what: &str) -> Option<&'v Table<'v>> {
        match value.get_ref().as_table() {
            Some(table) => Some(table),
            None => self.wrong_type(value, &format!("a table `[{what}]`")),
        }
    }

    fn string(&mut self, value: &Spanned<DeValue<'_>>) -> Option<String> {
        match value.get_ref().as_str() {
            Some(text) => Some(text.to_owned()),
            None => self.wrong_type(value, "a text in quotes"),
        }
    }

    fn number(&mut self, value: &Spanned<DeValue<'_>>, bounds: &RangeInclusive<u64>) -> Option<u64> {
        let expected = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        let number = value.get_ref().as_integer().and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok());
        match number {
            Some(number) if bounds.contains(&number) => Some(number),
            _ => self.wrong_type(value, &expected),
        }
    }

    /// A duration with its unit: a bare number would be read as whatever its reader hopes.
    fn duration_ms(&mut self, value: &Spanned<DeValue<'_>>, bounds: &RangeInclusive<u64>) -> Option<u64> {
        const UNITS: [(&str, u64); 5] =
            [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 24 * 3_600_000)];
        let expected = format!(
            "a duration in quotes with a unit of ms, s, m, h or d, from {} ms to {} ms, e.g. \"10s\"",
            bounds.start(),
            bounds.end()
        );
        self.quantity(value, &UNITS, bounds, &expected)
    }

    fn bytes(&mut self, value: &Spanned<DeValue<'_>>, bounds: &RangeInclusive<u64>) -> Option<u64> {
        const UNITS: [(&str, u64); 7] = [
            ("B", 1),
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("kB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
        ];
        let expected = format!(
            "a size in quotes with a unit of B, KiB, MiB, GiB, kB, MB or GB, from {} B to {} B, e.g. \"64MiB\"",
            bounds.start(),
            bounds.end()
        );
        self.quantity(value, &UNITS, bounds, &expected)
    }

    fn quantity(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        units: &[(&str, u64)],
        bounds: &RangeInclusive<u64>,
        expected: &str,
    ) -> Option<u64> {
        let read = |text: &str| -> Option<u64> {
            let digits = text.bytes().take_while(u8::is_ascii_digit).count();
            let (number, unit) = text.split_at(digits);
            let factor = units.iter().find(|(name, _)| *name == unit.trim_start()).map(|(_, factor)| *factor)?;
            number.parse::<u64>().ok()?.checked_mul(factor)
        };
        match value.get_ref().as_str().and_then(read) {
            Some(number) if bounds.contains(&number) => Some(number),
            _ => self.wrong_type(value, expected),
        }
    }

    fn choice<T: Clone>(&mut self, value: &Spanned<DeValue<'_>>, all: &[(&str, T)]) -> Option<T> {
        let found = value.get_ref().as_str();
        if let Some((_, choice)) = all.iter().find(|(name, _)| Some(*name) == found) {
            return Some(choice.clone());
        }
        let names: Vec<String> = all.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        self.wrong_type(value, &format!("one of {}", names.join(", ")))
    }

    fn wrong_type<T>(&mut self, value: &Spanned<DeValue<'_>>, expected: &str) -> Option<T> {
        let found = self.text.get(value.span()).unwrap_or_default();
        let found = found.lines().next().unwrap_or_default();
        self.problem(value.span(), format!("found `{found}`, expected {expected}"), None);
        None
    }

    fn checked<T, E: std::fmt::Display>(&mut self, value: &Spanned<DeValue<'_>>, result: Result<T, E>) -> Option<T> {
        self.checked_span(value.span(), result)
    }

    fn checked_span<T, E: std::fmt::Display>(&mut self, span: Range<usize>, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.problem(span, error.to_string(), None);
                None
            }
        }
    }
}

/// The fields of one table.
struct Fields<'r, 'a, 't> {
    reader: &'r mut Reader<'a>,
    what: &'r str,
    table: &'t Table<'t>,
    span: Range<usize>,
}

impl<'r, 'a, 't> Fields<'r, 'a, 't> {
    /// Says of every field that is not known what it may have been meant to be.
    fn new(
        reader: &'r mut Reader<'a>,
        what: &'r str,
        table: &'t Table<'t>,
        span: Range<usize>,
        known: &[&str],
    ) -> Self {
        for (key, _) in table.iter() {
            if !known.contains(&key.get_ref().as_ref()) {
                let help = format!("the fields are {}", known.join(", "));
                reader.problem(key.span(), format!("{what} has no field `{}`", key.get_ref()), Some(help));
            }
        }
        Self { reader, what, table, span }
    }

    /// Something is wrong with what that field says together with others.
    fn problem(&mut self, name: &str, message: impl Into<String>, help: Option<String>) {
        let span = self.value(name).map_or(self.span.clone(), Spanned::span);
        self.reader.problem(span, message, help);
    }

    fn value(&self, name: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
    }

    fn required<T>(
        &mut self,
        name: &str,
        help: &str,
        read: impl FnOnce(&mut Reader<'a>, &'t Spanned<DeValue<'t>>) -> Option<T>,
    ) -> Option<T> {
        match self.value(name) {
            Some(value) => read(self.reader, value),
            None => {
                let message = format!("{} lacks `{name}`, which has no default", self.what);
                self.reader.problem(self.span.clone(), message, Some(help.to_owned()));
                None
            }
        }
    }

    /// `None` only where the field is there and wrong.
    fn optional<T>(
        &mut self,
        name: &str,
        default: T,
        read: impl FnOnce(&mut Reader<'a>, &'t Spanned<DeValue<'t>>) -> Option<T>,
    ) -> Option<T> {
        match self.value(name) {
            Some(value) => read(self.reader, value),
            None => Some(default),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const GOOD: &str = r#"
namespace = "billing"

[job.charge]
component = "charge.wasm"
schedule = "0 2 1 * *"
time_zone = "Europe/Paris"
on_unknown = "skip"
allow = ["https://api.example.com"]
limits = { memory = "32MiB", cpu = "500ms" }
config = { api = "https://api.example.com", batch = 20 }

[job.report]
component = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
schedule = "@every 90m"
on_unknown = "repeat"
catch_up = { all = 10 }
retry = { attempts = 3, backoff = "2s" }
"#;

    fn problems(text: &str) -> Vec<(usize, usize, String)> {
        let refused = parse(Path::new("tickhost.toml"), text).unwrap_err();
        refused.problems.into_iter().map(|p| (p.line, p.column, p.message)).collect()
    }

    #[test]
    fn a_manifest_reads_with_every_default_written_out() {
        let manifest = parse(Path::new("tickhost.toml"), GOOD).unwrap();
        let names: Vec<String> = manifest.jobs.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(names, ["billing/charge", "billing/report"]);
        let charge = &manifest.jobs[0].1;
        assert_eq!(charge.component, ComponentRef::Path("charge.wasm".into()));
        assert_eq!(charge.spec.limits, Limits { memory_bytes: 32 << 20, cpu_ms: 500, ..Limits::default() });
        assert_eq!(charge.spec.retry, Retry::NEVER);
        assert_eq!(charge.spec.config["batch"], "20");
        let report = &manifest.jobs[1].1.spec;
        assert_eq!((report.timing.zone.as_str(), report.catch_up), ("UTC", CatchUp::All(10)));
        assert_eq!(
            report.retry,
            Retry { attempts: 3, backoff_ms: 2_000, backoff_max_ms: 60_000, when: RetryWhen::Failed }
        );
    }

    #[test]
    fn everything_that_is_wrong_is_told_with_its_line_and_column() {
        let text = r#"
namespace = "Billing"

[job.charge]
component = "charge.wasm"
schedule = "0 61 * * *"
colour = "red"
limits = { memory = 64, cpu = "5 parsecs", disk = "1GiB" }

[job.report]
schedule = "@daily"
on_unknown = "maybe"
time_zone = "Mars/Olympus"
allow = ["api.example.com"]
retry = { attempts = 0 }
"#;
        let found = problems(text);
        let lines: Vec<(usize, usize)> = found.iter().map(|(line, column, _)| (*line, *column)).collect();
        let expected = [
            (2, 13),
            (4, 6),
            (6, 15),
            (7, 1),
            (8, 21),
            (8, 31),
            (8, 44),
            (10, 6),
            (12, 14),
            (13, 13),
            (14, 10),
            (15, 22),
        ];
        assert_eq!(lines, expected, "{found:#?}");
        assert!(found[1].2.contains("lacks `on_unknown`"), "{found:#?}");
        assert!(found[2].2.contains("hour field"), "{found:#?}");
    }

    #[test]
    fn a_skip_job_is_repeated_only_when_the_guest_asks() {
        let with = |retry: &str| GOOD.replace("allow = [", &format!("retry = {retry}\nallow = ["));
        assert!(parse(Path::new("t"), &with("{ attempts = 3, when = \"asked\" }")).is_ok());
        for retry in ["{ attempts = 3 }", "{ attempts = 3, when = \"failed\" }"] {
            let found = problems(&with(retry));
            assert!(found[0].2.contains("only where the guest itself asks"), "{found:?}");
        }
    }

    #[test]
    fn a_program_is_given_arguments_and_an_environment_of_its_own() {
        let with = |more: &str| GOOD.replace("allow = [", &format!("{more}\nallow = ["));
        let manifest =
            parse(Path::new("t"), &with("args = [\"-v\", \"x y\"]\nenv = { TZ = \"UTC\", DAYS = 7 }")).unwrap();
        let spec = &manifest.jobs[0].1.spec;
        assert_eq!((spec.args.as_slice(), spec.env["DAYS"].as_str()), (&["-v".into(), "x y".into()][..], "7"));
        for (more, why) in [
            ("args = \"-v\"", "a list of texts"),
            ("args = [\"a\\u0000b\"]", "NUL"),
            ("env = { \"A=B\" = \"1\" }", "is no variable"),
            ("env = { TICKHOST_JOB = \"other\" }", "the host's own"),
        ] {
            let found = problems(&with(more));
            assert!(found.len() == 1 && found[0].2.contains(why), "{more}: {found:?}");
        }
    }

    #[test]
    fn broken_toml_hides_nothing_else_and_any_text_is_safe() {
        assert_eq!(problems("namespace = \"a\"\n[job.x\n").len(), 1);
        let text = GOOD.replace("\"0 2 1 * *\"", "0 2 1 * *").replace("\"repeat\"", "\"maybe\"");
        let found = problems(&text);
        assert_eq!(found.iter().map(|p| p.0).collect::<Vec<_>>(), [6, 16], "{found:?}");
        for end in 0..GOOD.len() {
            if let Some(text) = GOOD.get(..end) {
                let _ = parse(Path::new("t"), text);
            }
        }
    }

    #[test]
    fn the_report_shows_the_line() {
        let refused = parse(Path::new("tickhost.toml"), &GOOD.replace("0 2 1", "0 99 1")).unwrap_err();
        let report = refused.report();
        assert!(report.contains("tickhost.toml: 1 problem"), "{report}");
        assert!(report.contains("schedule = \"0 99 1 * *\""), "{report}");
    }
}
