//! The command line. One file for each group of verbs.
//!
//! Exit codes: 0 done, 1 failed, 2 refused input, 3 no leader or not reachable.

/// Prints a line on standard output, and ends the program quietly where nobody reads on (`tickhost next … | head`).
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::print_line(format_args!($($text)*)) };
}

mod apply;
mod backup;
mod check;
mod cluster;
mod component;
mod dev;
mod explain;
mod forecast;
mod import;
mod jobs;
mod launches;
mod namespace;
mod next;
mod status;
mod table;
mod token;

use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

use chrono::{DateTime, Datelike, Utc};
use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::client::{Client, Target};

/// A replicated cron whose jobs are sandboxed WebAssembly components.
///
/// Exit codes: 0 done, 1 failed, 2 refused input, 3 no leader or not reachable.
#[derive(Debug, Parser)]
#[command(name = "tickhost", version)]
struct Cli {
    /// The host to speak to.
    #[arg(long, env = "TICKHOST_URL", default_value = "http://127.0.0.1:7878", global = true)]
    url: String,
    /// The authority of the host's certificate (PEM), where it is none that this machine knows.
    #[arg(long, env = "TICKHOST_CA", global = true)]
    ca: Option<PathBuf>,
    /// How lists and details are printed.
    #[arg(long, value_enum, default_value = "text", global = true)]
    format: Format,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run an embedded host; watch manifests and apply their changes.
    Dev(dev::Dev),
    /// Run a host.
    Serve(dev::Serve),
    /// Store the components and jobs of manifests.
    Apply(apply::Apply),
    /// List the jobs.
    Jobs,
    /// List a job's ticks with what became of each.
    Ticks(launches::Ticks),
    /// Show the whole story of a launch.
    Show(launches::Show),
    /// Show what a launch wrote.
    Logs(launches::Logs),
    /// Launch by hand: a tick again, or outside of the schedule.
    Trigger(launches::Trigger),
    /// Pause a job; its ticks are skipped and not made up.
    Pause(jobs::Pause),
    /// End a pause.
    Resume(jobs::Resume),
    /// Delete a job; its history stays.
    Delete(jobs::Delete),
    /// Show the next ticks of an expression.
    Next(next::Next),
    /// Say in plain English when an expression is due, and what is odd about it.
    Explain(explain::Explain),
    /// Look for what is seldom meant in manifests. Speaks to no host.
    Check(check::Check),
    /// Show the load over time, of stored jobs or of manifests.
    Forecast(forecast::Forecast),
    /// Write a manifest from another scheduler's files.
    #[command(subcommand)]
    Import(import::Import),
    /// Look at a component.
    #[command(subcommand)]
    Component(component::Component),
    /// Found a cluster, let nodes in, and let them go.
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Say who may have how much.
    #[command(subcommand)]
    Namespace(namespace::Namespace),
    /// Take backups, look at them, and restore one.
    #[command(subcommand)]
    Backup(backup::Backup),
    /// List the nodes of the cluster.
    Nodes,
    /// Show how the host stands.
    Status,
    /// Keep a token for the host. It is read from the standard input, so that it stays out of the shell's history.
    Login(token::Login),
    /// Say who may ask the host for what.
    #[command(subcommand)]
    Token(token::Token),
    /// Show who has changed what, and what was refused.
    Audit(token::Audit),
}

/// Why a verb did not do what was asked, and the exit code that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CliError {
    code: u8,
    message: String,
}

impl CliError {
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self { code: 3, message: message.into() }
    }
}

/// Reads the arguments and does what they say.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("TICKHOST_LOG").unwrap_or_else(|_| EnvFilter::new("info,openraft=error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_target(false)
        .init();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&CliError::failed(format!("start the runtime: {error}"))),
    };
    match runtime.block_on(run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &CliError) -> ExitCode {
    eprintln!("error: {}", error.message);
    ExitCode::from(error.code)
}

async fn run(cli: Cli) -> Result<(), CliError> {
    let target = || Target::of(&cli.url, cli.ca.clone());
    let client = || Client::new(&target()?);
    let format = cli.format;
    match cli.verb {
        Verb::Dev(verb) => verb.run().await,
        Verb::Serve(verb) => verb.run().await,
        Verb::Apply(verb) => verb.run(&client()?, format).await,
        Verb::Jobs => jobs::list(&client()?, format).await,
        Verb::Ticks(verb) => verb.run(&client()?, format).await,
        Verb::Show(verb) => verb.run(&client()?, format).await,
        Verb::Logs(verb) => verb.run(&client()?, format).await,
        Verb::Trigger(verb) => verb.run(&client()?, format).await,
        Verb::Pause(verb) => verb.run(&client()?, format).await,
        Verb::Resume(verb) => verb.run(&client()?, format).await,
        Verb::Delete(verb) => verb.run(&client()?, format).await,
        Verb::Next(verb) => verb.run(format),
        Verb::Explain(verb) => verb.run(format),
        Verb::Check(verb) => verb.run(format),
        Verb::Forecast(verb) => verb.run(client, format).await,
        Verb::Import(verb) => verb.run(format),
        Verb::Component(verb) => verb.run(format),
        Verb::Cluster(verb) => verb.run(client, format).await,
        Verb::Namespace(verb) => verb.run(&client()?, format).await,
        Verb::Backup(verb) => verb.run(client, format).await,
        Verb::Nodes => cluster::nodes(&client()?, format).await,
        Verb::Status => status::show(&client()?, format).await,
        Verb::Login(verb) => verb.run(&target()?, format).await,
        Verb::Token(verb) => verb.run(&client()?, format).await,
        Verb::Audit(verb) => verb.run(&client()?, format).await,
    }
}

fn print_line(text: std::fmt::Arguments<'_>) {
    use std::io::Write;
    if let Err(error) = writeln!(std::io::stdout().lock(), "{text}") {
        // A closed pipe is the reader's way to say that it has enough; anything else it cannot be told either.
        std::process::exit(i32::from(error.kind() != std::io::ErrorKind::BrokenPipe));
    }
}

/// An instant of an argument, in years that time tables know something about.
fn instant(text: &str) -> Result<DateTime<Utc>, String> {
    let instant = DateTime::parse_from_rfc3339(text).map_err(|e| format!("{e}; write e.g. 2026-09-17T02:00:00Z"))?;
    match instant.year() {
        1800..=2200 => Ok(instant.to_utc()),
        year => Err(format!("the year {year} is outside of 1800 to 2200")),
    }
}

/// Prints a value as JSON on standard output.
fn print_json<T: Serialize>(value: &T) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|e| CliError::failed(e.to_string()))?;
    say!("{text}");
    Ok(())
}

/// Prints what became of a change: what it was about, and the outcome.
fn print_outcome(what: &str, answer: &serde_json::Value, format: Format) -> Result<(), CliError> {
    if format == Format::Json {
        return print_json(answer);
    }
    let text = |name: &str| answer[name].as_str().unwrap_or_default();
    say!("{} {}", text(what), text("outcome"));
    Ok(())
}

/// The path of a job in the API.
fn job_path(job: &str) -> Result<String, CliError> {
    let name: tickhost_ledger::JobName =
        job.parse().map_err(|e: tickhost_ledger::ids::NameError| CliError::refused(e.to_string()))?;
    Ok(format!("/v1/jobs/{name}"))
}
