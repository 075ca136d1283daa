//! `tickhost namespace …`: who may have how much.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{CliError, Format, print_json, print_outcome, table};
use crate::{api::NamespaceView, client::Client, manifest};

#[derive(Debug, Subcommand)]
pub(super) enum Namespace {
    /// List the namespaces with what they have and what they may have.
    List,
    /// Store the quotas of a file: a table `[namespace.NAME]` each, and `[namespace."*"]` for all others.
    Apply(File),
    /// Take a namespace's own quota away; it goes by that of `*` then, where there is one.
    Remove(One),
}

#[derive(Debug, Args)]
pub(super) struct File {
    /// The file (TOML).
    file: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct One {
    /// The namespace, or `*`.
    namespace: String,
}

impl Namespace {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        match self {
            Self::List => list(client, format).await,
            Self::Apply(File { file }) => {
                let text = std::fs::read_to_string(&file)
                    .map_err(|e| CliError::refused(format!("read `{}`: {e}", file.display())))?;
                let quotas = manifest::parse_quotas(&file, &text).map_err(|e| CliError::refused(e.report()))?;
                for (namespace, quota) in quotas {
                    let answer: Value = client.put(&format!("/v1/namespaces/{namespace}"), &quota).await?;
                    print_outcome("namespace", &answer, format)?;
                }
                Ok(())
            }
            Self::Remove(One { namespace }) => {
                print_outcome("namespace", &client.delete(&format!("/v1/namespaces/{namespace}")).await?, format)
            }
        }
    }
}

async fn list(client: &Client, format: Format) -> Result<(), CliError> {
    let namespaces: Vec<NamespaceView> = client.get("/v1/namespaces", &[]).await?;
    if format == Format::Json {
        return print_json(&namespaces);
    }
    let of = |found: u64, most: Option<u64>, unit: &str| match most {
        Some(most) => format!("{found} of {most}{unit}"),
        None => format!("{found}{unit}"),
    };
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let row = |view: &NamespaceView| {
        let (quota, held) = (view.quota.clone().unwrap_or_default(), view.held);
        let cpu_s = (view.cpu_ms_this_hour + held.cpu_ms).div_ceil(1_000);
        vec![
            view.namespace.clone(),
            match (&view.quota, view.own) {
                (None, _) => "none",
                (Some(_), true) => "own",
                (Some(_), false) => "*",
            }
            .to_owned(),
            of(held.jobs, quota.jobs, ""),
            of(mib(held.component_bytes), quota.component_bytes.map(mib), " MiB"),
            of(held.runs, quota.runs, ""),
            of(mib(held.memory_bytes), quota.memory_bytes.map(mib), " MiB"),
            quota.launches_per_minute.map_or("-".into(), |most| of(view.launches_this_minute, Some(most), "")),
            quota.cpu_s_per_hour.map_or("-".into(), |most| of(cpu_s, Some(most), " s")),
            of(mib(held.kv_bytes), quota.kv_bytes.map(mib), " MiB"),
            of(mib(held.journal_bytes), quota.journal_bytes.map(mib), " MiB"),
        ]
    };
    let header =
        ["NAMESPACE", "QUOTA", "JOBS", "COMPONENTS", "RUNS", "MEMORY", "LAUNCHES/MIN", "CPU/HOUR", "KV", "JOURNAL"];
    table::print(&header, &namespaces.iter().map(row).collect::<Vec<_>>());
    Ok(())
}
