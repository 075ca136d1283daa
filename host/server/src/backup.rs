//! Backups: taken by whoever leads, on schedule and when asked for.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use tickhost_ledger::Digest;
use tickhost_replica::backup::{BackupError, Manifest, Place};

use crate::{
    components,
    host::{Host, VERSION},
    settings::BackupSettings,
};

/// How often it is looked whether one is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After one that failed.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A backup cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TakeError {
    #[error(
        "the settings of the leader, node {0}, have no `[backup]`; write there e.g. `to = \"/var/backups/tickhost\"`, on \
         every node"
    )]
    Nowhere(u64),
    #[error(transparent)]
    Failed(#[from] BackupError),
}

/// What is known of backups on this node.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    /// One is taken at a time.
    taking: tokio::sync::Mutex<()>,
    last: Mutex<Last>,
}

#[derive(Debug, Clone, Default)]
struct Last {
    newest: Option<String>,
    failed: Option<String>,
}

impl Backups {
    fn note(&self, change: impl FnOnce(&mut Last)) {
        change(&mut self.last.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The newest backup, as far as this node knows, and why the last one was not taken.
    pub(crate) fn told(&self) -> (Option<String>, Option<String>) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (last.newest, last.failed)
    }
}

pub(crate) fn open(settings: &BackupSettings) -> Result<Place, BackupError> {
    Place::open(&settings.to, settings.endpoint.as_deref(), settings.region.as_deref())
}

/// For the one who writes there: a directory is made.
fn open_to_write(settings: &BackupSettings) -> Result<Place, BackupError> {
    if !settings.to.contains("://") {
        let failed = |e: std::io::Error| BackupError::Place { place: settings.to.clone(), why: e.to_string() };
        std::fs::create_dir_all(&settings.to).map_err(failed)?;
    }
    open(settings)
}

/// Takes a backup now.
pub(crate) async fn take(host: &Host) -> Result<Manifest, TakeError> {
    let nowhere = || TakeError::Nowhere(host.replica.node());
    let settings = host.settings.backup.as_ref().ok_or_else(nowhere)?;
    let _one_at_a_time = host.backups.taking.lock().await;
    let taken = take_to(host, settings).await;
    host.backups.note(|last| match &taken {
        Ok(manifest) => *last = Last { newest: Some(manifest.name.clone()), failed: None },
        Err(error) => last.failed = Some(error.to_string()),
    });
    Ok(taken?)
}

async fn take_to(host: &Host, settings: &BackupSettings) -> Result<Manifest, BackupError> {
    let place = open_to_write(settings)?;
    let (replica, sandbox) = (host.replica.clone(), host.sandbox.clone());
    let component = move |digest: Digest| -> BoxFuture<'static, Result<Bytes, String>> {
        let (fetch, sandbox) = (components::fetch(replica.clone(), sandbox.clone()), sandbox.clone());
        Box::pin(async move {
            fetch(digest).await?;
            sandbox.component_bytes(digest).await.map(Into::into).map_err(|e| e.to_string())
        })
    };
    let manifest = place.take(&host.replica, VERSION, &component).await?;
    tracing::info!(backup = manifest.name, jobs = manifest.jobs, bytes = manifest.rows.bytes, "a backup is taken");
    // What was taken is there, whatever becomes of the old ones.
    if let Err(error) = place.prune(manifest.cluster, settings.keep as usize).await {
        tracing::warn!(%error, "remove old backups");
    }
    Ok(manifest)
}

/// Takes backups for as long as the host runs, while it leads. Whoever comes to lead goes by the newest that is there.
pub(crate) async fn keep(host: Host) {
    let Some(settings) = host.settings.backup.clone() else { return };
    let mut reign = None;
    let now = || host.clock.now();
    let mut due = now();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(current) = host.reign() else {
            reign = None;
            continue;
        };
        if !reign.as_ref().is_some_and(|reign| Arc::ptr_eq(reign, &current)) {
            let newest = newest(&host, &settings).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "look for earlier backups");
                None
            });
            due = newest.as_ref().map_or(now(), |newest| newest.taken_at.plus_ms(settings.every_ms()));
            host.backups.note(|last| last.newest = newest.map(|newest| newest.name));
            reign = Some(current);
        }
        if now() < due {
            continue;
        }
        due = match take(&host).await {
            Ok(_) => now().plus_ms(settings.every_ms()),
            Err(error) => {
                tracing::error!(%error, "take a backup");
                now().plus_ms(settings.every_ms().min(AGAIN_AFTER.as_millis() as u64))
            }
        };
    }
}

/// The newest backup of this cluster, if there is one.
async fn newest(host: &Host, settings: &BackupSettings) -> Result<Option<Manifest>, BackupError> {
    let cluster = host.replica.read(|state| state.cluster().map(|cluster| cluster.id));
    let all = open_to_write(settings)?.list().await?;
    Ok(all.into_iter().rfind(|one| Some(one.cluster) == cluster))
}
