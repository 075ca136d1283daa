//! `tickhost backup …`: what is left when everything else is lost.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use tickhost_replica::backup::{Manifest, Place};

use super::{CliError, Format, print_json, table};
use crate::{backup, client::Client, host::Settings, restore};

#[derive(Debug, Subcommand)]
pub(super) enum Backup {
    /// Take a backup now. The leader does, to where its settings say.
    Now,
    /// List the backups that are there. Speaks to no host.
    List(Config),
    /// Read a backup whole and check it as a restore would. Speaks to no host.
    Verify(One),
    /// Make a new cluster from a backup, in the data directory of the settings. It begins on hold.
    Restore(One),
}

#[derive(Debug, Args)]
pub(super) struct Config {
    /// A host's settings (TOML), with `[backup]`.
    #[arg(long)]
    config: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct One {
    /// A host's settings (TOML), with `[backup]`.
    #[arg(long)]
    config: PathBuf,
    /// Which backup; without it, the newest.
    name: Option<String>,
}

impl One {
    async fn find(&self) -> Result<(Settings, Place, Manifest), CliError> {
        let (settings, place) = open(&self.config)?;
        let manifest = match &self.name {
            Some(name) => place.manifest(name).await,
            None => place.newest().await,
        };
        Ok((settings, place, manifest.map_err(|e| CliError::failed(e.to_string()))?))
    }
}

fn open(config: &std::path::Path) -> Result<(Settings, Place), CliError> {
    let settings = Settings::read(config).map_err(CliError::refused)?;
    let backup = settings.backup.as_ref().ok_or_else(|| {
        CliError::refused(format!(
            "`{}` has no `[backup]`; write there e.g. `to = \"/var/backups/tickhost\"`",
            config.display()
        ))
    })?;
    let place = backup::open(backup).map_err(|e| CliError::refused(e.to_string()))?;
    Ok((settings, place))
}

impl Backup {
    pub(super) async fn run(
        self,
        client: impl FnOnce() -> Result<Client, CliError>,
        format: Format,
    ) -> Result<(), CliError> {
        let failed = |e: tickhost_replica::backup::BackupError| CliError::failed(e.to_string());
        match self {
            Self::Now => {
                let taken = client()?.post("/v1/backups", &json!({})).await?;
                let taken: Manifest = serde_json::from_value(taken).map_err(|e| CliError::failed(e.to_string()))?;
                list(&[taken], format)
            }
            Self::List(verb) => {
                let (_, place) = open(&verb.config)?;
                list(&place.list().await.map_err(failed)?, format)
            }
            Self::Verify(verb) => {
                let (_, place, manifest) = verb.find().await?;
                place.verify(&manifest).await.map_err(failed)?;
                if format == Format::Json {
                    return print_json(&manifest);
                }
                let (jobs, components) = (manifest.jobs, manifest.components.len());
                say!("{}: whole, {jobs} jobs, {components} components", manifest.name);
                Ok(())
            }
            Self::Restore(verb) => {
                let (settings, place, manifest) = verb.find().await?;
                let founded = restore::restore(&settings, &place, &manifest).await.map_err(CliError::failed)?;
                if format == Format::Json {
                    return print_json(&json!({
                        "cluster": founded.cluster,
                        "node": founded.node,
                        "epoch": founded.epoch,
                        "at_large": founded.at_large.iter().map(|(node, _)| node).collect::<Vec<_>>(),
                    }));
                }
                say!(
                    "cluster {} begins epoch {} from backup {} ({}); this is node {}",
                    founded.cluster,
                    founded.epoch,
                    manifest.name,
                    manifest.taken_at,
                    founded.node
                );
                say!("next: tickhost serve --config {}", verb.config.display());
                say!(
                    "It launches nothing before nobody can still act for the old cluster. Stop what is left of that, then"
                );
                for (node, address) in &founded.at_large {
                    let address = if address.is_empty() { String::new() } else { format!(" ({address})") };
                    say!(
                        "  node {node}{address}: there `tickhost cluster rejoin`, or here `tickhost cluster destroyed {node}`"
                    );
                }
                say!("  nodes that joined after {}: see to it that they are gone", manifest.taken_at);
                say!("and say what becomes of the ticks since then: `tickhost cluster release --gap skip|repeat`");
                Ok(())
            }
        }
    }
}

fn list(manifests: &[Manifest], format: Format) -> Result<(), CliError> {
    if format == Format::Json {
        return print_json(&manifests);
    }
    let row = |manifest: &Manifest| {
        vec![
            manifest.name.clone(),
            manifest.taken_at.to_string(),
            format!("{} of {}", manifest.epoch, manifest.cluster),
            manifest.jobs.to_string(),
            manifest.components.len().to_string(),
            format!("{} KiB", manifest.rows.bytes.div_ceil(1 << 10)),
            manifest.version.clone(),
        ]
    };
    let header = ["BACKUP", "TAKEN", "EPOCH", "JOBS", "COMPONENTS", "ROWS", "VERSION"];
    table::print(&header, &manifests.iter().map(row).collect::<Vec<_>>());
    Ok(())
}
