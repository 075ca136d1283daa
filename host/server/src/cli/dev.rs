//! `tickhost dev` and `tickhost serve`: run a host.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use notify::{RecursiveMode, Watcher};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::{
    CliError,
    apply::{self, manifest_file},
};
use crate::{
    api,
    client::{Client, Target},
    host::{Host, Settings},
    settings::loopback,
};

/// Editors and compilers write in several steps; a change is applied once nothing has moved for this long.
const QUIET: Duration = Duration::from_millis(300);

#[derive(Debug, Args)]
pub(super) struct Dev {
    /// Manifests, or folders with a `tickhost.toml`. They are applied again when something in the manifest's folder
    /// changes, a component beside it included; a job that is removed from a manifest stays until it is deleted.
    paths: Vec<PathBuf>,
    /// Where the host keeps its data.
    #[arg(long, default_value = ".tickhost")]
    data: PathBuf,
    /// Where the API listens.
    #[arg(long, default_value = "127.0.0.1:7878")]
    listen: SocketAddr,
}

#[derive(Debug, Args)]
pub(super) struct Serve {
    /// The host's settings (TOML).
    #[arg(long)]
    config: PathBuf,
}

impl Dev {
    pub(super) async fn run(self) -> Result<(), CliError> {
        if !self.listen.ip().is_loopback() {
            return Err(CliError::refused(format!(
                "`--listen {}`: `dev` asks nobody who they are, so it listens on loopback only",
                self.listen
            )));
        }
        let mut settings = Settings { listen: self.listen, open: true, ..Settings::in_dir(self.data.clone()) };
        // What a developer's jobs speak to runs beside them.
        settings.egress.allow = loopback();
        // Before anything is started: a manifest that is wrong is said at once.
        for path in &self.paths {
            apply::read(path)?;
        }
        let paths = self.paths;
        run(settings, move |address| watch(address, paths)).await
    }
}

impl Serve {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let settings = Settings::read(&self.config).map_err(CliError::refused)?;
        run(settings, |_| std::future::pending()).await
    }
}

/// Runs a host until it is told to stop or cannot go on.
async fn run<F>(settings: Settings, beside: impl FnOnce(SocketAddr) -> F) -> Result<(), CliError>
where
    F: Future<Output = Result<(), CliError>>,
{
    // A task that ends with a panic leaves something undone that everything else relies on.
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        std::process::abort();
    }));
    let listener = api::Listener::bind(&settings).await.map_err(CliError::failed)?;
    let address = listener.address;
    let host = Host::start(settings).await.map_err(|e| CliError::failed(e.to_string()))?;
    tracing::info!(%address, data = %host.settings.data.display(), "the host is up");
    let mut terminate = signal(SignalKind::terminate()).map_err(|e| CliError::failed(e.to_string()))?;
    let ended = tokio::select! {
        failed = host.failed() => return Err(CliError::failed(failed)),
        served = api::serve(host.clone(), listener) => {
            Err(CliError::failed(format!("the API has stopped: {served:?}")))
        }
        ended = beside(address) => ended,
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    tracing::info!("the host stops");
    host.stop().await;
    ended
}

/// Applies manifests, and again when something in their folders changes. A fault is told and waits for the next
/// change.
async fn watch(address: SocketAddr, paths: Vec<PathBuf>) -> Result<(), CliError> {
    let client = Client::new(&Target { url: format!("http://{address}"), token: None, ca: None })?;
    let (changed, mut changes) = mpsc::unbounded_channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = changed.send(());
        }
    })
    .map_err(|e| CliError::failed(format!("watch for changes: {e}")))?;
    for path in &paths {
        let file = manifest_file(path);
        let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let calendars = dir.join("calendars");
        let watched = [(dir, RecursiveMode::NonRecursive), (&calendars, RecursiveMode::Recursive)];
        for (dir, mode) in watched.into_iter().filter(|(dir, _)| dir.is_dir()) {
            watcher.watch(dir, mode).map_err(|e| CliError::failed(format!("watch `{}`: {e}", dir.display())))?;
        }
    }
    loop {
        for path in &paths {
            match apply_one(&client, path).await {
                Ok(applied) => {
                    for one in applied.iter().filter(|one| one.outcome != "unchanged") {
                        tracing::info!(job = one.job, outcome = one.outcome, revision = one.revision, "applied");
                    }
                }
                Err(error) => tracing::error!("{}", error.message),
            }
        }
        if changes.recv().await.is_none() {
            return std::future::pending().await;
        }
        while tokio::time::timeout(QUIET, changes.recv()).await.is_ok_and(|change| change.is_some()) {}
    }
}

async fn apply_one(client: &Client, path: &Path) -> Result<Vec<apply::Applied>, CliError> {
    let (dir, manifest) = apply::read(path)?;
    apply::store(client, apply::prepare(client, &dir, manifest).await?).await
}
