//! `tickhost apply`: store the components and jobs of manifests.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use tickhost_ledger::{Digest, JobName, JobSpec};
use tickhost_sandbox::ComponentReport;

use super::{CliError, Format, print_json, table};
use crate::{
    client::Client,
    manifest::{self, ComponentRef, JobDraft, Manifest},
};

#[derive(Debug, Args)]
pub(super) struct Apply {
    /// Manifests, or folders with a `tickhost.toml`.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// What became of one job of a manifest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Applied {
    pub(super) job: String,
    pub(super) outcome: String,
    pub(super) revision: u64,
}

impl Apply {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        // All manifests are read, and all components stored, before the first job is: a fault leaves no job changed.
        let manifests = self.paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
        let mut jobs = Vec::new();
        for (dir, manifest) in manifests {
            jobs.extend(prepare(client, &dir, manifest).await?);
        }
        let applied = store(client, jobs).await?;
        if format == Format::Json {
            return print_json(&applied);
        }
        let row = |a: &Applied| vec![a.job.clone(), a.outcome.clone(), a.revision.to_string()];
        table::print(&["JOB", "OUTCOME", "REVISION"], &applied.iter().map(row).collect::<Vec<_>>());
        Ok(())
    }
}

/// The manifest's file of a path that may be its folder.
pub(super) fn manifest_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("tickhost.toml") } else { path.to_owned() }
}

/// Reads a manifest. Returns the folder that its paths are relative to.
pub(super) fn read(path: &Path) -> Result<(PathBuf, Manifest), CliError> {
    let file = manifest_file(path);
    let text = std::fs::read_to_string(&file).map_err(|e| {
        let message =
            format!("read the manifest `{}`: {e}; give a `tickhost.toml`, or a folder with one", file.display());
        CliError::refused(message)
    })?;
    let manifest = manifest::parse(&file, &text).map_err(|refused| CliError::refused(refused.report()))?;
    let dir = file.parent().map(Path::to_owned).unwrap_or_default();
    Ok((dir, manifest))
}

/// Stores the components of a manifest and puts their digests into its jobs.
///
/// # Errors
/// Everything that is wrong with any of them, at once.
pub(super) async fn prepare(
    client: &Client,
    dir: &Path,
    manifest: Manifest,
) -> Result<Vec<(JobName, JobSpec)>, CliError> {
    for (job, warning) in &manifest.warnings {
        eprintln!("warning: {job}: {warning}");
    }
    let (mut jobs, mut errors) = (Vec::new(), Vec::new());
    for (name, JobDraft { component, mut spec }) in manifest.jobs {
        let digest = match &component {
            ComponentRef::Digest(digest) => Ok(*digest),
            ComponentRef::Path(path) => upload(client, &name.namespace, &dir.join(path)).await,
        };
        match digest {
            Ok(digest) => {
                spec.component = digest;
                jobs.push((name, spec));
            }
            Err(error) => errors.push(CliError { message: format!("job `{name}`: {}", error.message), ..error }),
        }
    }
    let Some(first) = errors.first() else { return Ok(jobs) };
    let messages: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
    Err(CliError { message: messages.join("\n"), ..first.clone() })
}

/// Stores jobs whose components are there.
pub(super) async fn store(client: &Client, jobs: Vec<(JobName, JobSpec)>) -> Result<Vec<Applied>, CliError> {
    let mut applied = Vec::new();
    for (name, spec) in jobs {
        let stored = client.put(&format!("/v1/jobs/{name}"), &spec).await;
        applied.push(stored.map_err(|e: CliError| CliError { message: format!("job `{name}`: {}", e.message), ..e })?);
    }
    Ok(applied)
}

/// Stores a component for a namespace unless it is there already.
async fn upload(client: &Client, namespace: &str, path: &Path) -> Result<Digest, CliError> {
    let bytes =
        std::fs::read(path).map_err(|e| CliError::refused(format!("read the component `{}`: {e}", path.display())))?;
    let digest = Digest::of(&bytes);
    let of_namespace = format!("?namespace={namespace}");
    let stored = client.get::<serde_json::Value>(&format!("/v1/components/{digest}{of_namespace}"), &[]).await;
    if stored.is_err() {
        client
            .upload::<ComponentReport>(&format!("/v1/components{of_namespace}"), bytes)
            .await
            .map_err(|e| CliError { message: format!("component `{}`: {}", path.display(), e.message), ..e })?;
    }
    Ok(digest)
}
