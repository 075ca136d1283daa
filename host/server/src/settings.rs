//! What an operator sets for a host.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// The file of `tickhost serve --config`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where everything lies: the database, components, compiled code.
    pub data: PathBuf,
    /// Where the API listens. Loopback: this version has no identity to ask for.
    #[serde(default = "listen")]
    pub listen: SocketAddr,
    /// Runs at a time.
    #[serde(default = "runs_max")]
    pub runs_max: u32,
    /// MiB of guest memory at a time, over all runs as declared.
    #[serde(default = "memory_max_mib")]
    pub memory_max_mib: u64,
    /// MiB that stay free on the data directory's file system: below it jobs, components and new runs are
    /// refused, before the log itself can fail.
    #[serde(default = "reserve_mib")]
    pub reserve_mib: u64,
}

fn listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7878))
}

/// Arbitrary: guests that wait for the network cost little more than their memory.
fn runs_max() -> u32 {
    1_000
}

fn memory_max_mib() -> u64 {
    16 << 10
}

/// RocksDB's write-ahead log and one flush fit in this.
fn reserve_mib() -> u64 {
    256
}

impl Settings {
    /// The defaults, with everything under one directory.
    pub fn in_dir(data: PathBuf) -> Self {
        Self {
            data,
            listen: listen(),
            runs_max: runs_max(),
            memory_max_mib: memory_max_mib(),
            reserve_mib: reserve_mib(),
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// A sentence with the file's name, line and column.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("read `{}`: {e}", path.display()))?;
        let settings: Self = toml::from_str(&text).map_err(|e| format!("read `{}`: {e}", path.display()))?;
        if !settings.listen.ip().is_loopback() {
            return Err(format!(
                "`listen = \"{}\"` in `{}`: this version asks nobody who they are, so it listens on loopback only; \
                 write e.g. `127.0.0.1:7878`",
                settings.listen,
                path.display()
            ));
        }
        Ok(settings)
    }
}
