//! `tickhost apply`: store the components and jobs of manifests.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use tickhost_ledger::Digest;
use tickhost_sandbox::ComponentReport;

use super::{CliError, Format, print_json, table};
use crate::{
    client::Client,
    manifest::{self, ComponentRef, Manifest},
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
        // All are read before the first is stored: a fault in the last one leaves nothing half applied.
        let manifests = self.paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
        let mut applied = Vec::new();
        for (dir, manifest) in manifests {
            applied.extend(store(client, &dir, manifest).await?);
        }
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
    let text = std::fs::read_to_string(&file)
        .map_err(|e| CliError::refused(format!("read the manifest `{}`: {e}", file.display())))?;
    let manifest = manifest::parse(&file, &text).map_err(|refused| CliError::refused(refused.report()))?;
    let dir = file.parent().map(Path::to_owned).unwrap_or_default();
    Ok((dir, manifest))
}

/// Stores what a manifest says.
pub(super) async fn store(client: &Client, dir: &Path, manifest: Manifest) -> Result<Vec<Applied>, CliError> {
    for (job, warning) in &manifest.warnings {
        eprintln!("warning: {job}: {warning}");
    }
    let mut applied = Vec::new();
    for (name, mut draft) in manifest.jobs {
        draft.spec.component = match &draft.component {
            ComponentRef::Digest(digest) => *digest,
            ComponentRef::Path(path) => upload(client, &dir.join(path))
                .await
                .map_err(|e| CliError { message: format!("job `{name}`: {}", e.message), ..e })?,
        };
        applied.push(client.put(&format!("/v1/jobs/{name}"), &draft.spec).await?);
    }
    Ok(applied)
}

/// Stores a component unless it is there already.
async fn upload(client: &Client, path: &Path) -> Result<Digest, CliError> {
    let bytes =
        std::fs::read(path).map_err(|e| CliError::refused(format!("read the component `{}`: {e}", path.display())))?;
    let digest = Digest::of(&bytes);
    let stored = client.get::<serde_json::Value>(&format!("/v1/components/{digest}"), &[]).await;
    if stored.is_err() {
        client
            .upload::<ComponentReport>("/v1/components", bytes)
            .await
            .map_err(|e| CliError { message: format!("component `{}`: {}", path.display(), e.message), ..e })?;
    }
    Ok(digest)
}
