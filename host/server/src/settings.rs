//! What an operator sets for a host.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use tickhost_sandbox::IpNet;

/// The file of `tickhost serve --config`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where everything lies: the database, components, compiled code.
    pub data: PathBuf,
    /// Where the other nodes of its cluster reach this one; absent for a host that has no peers.
    #[serde(default)]
    pub peer: Option<PeerSettings>,
    /// Where the API listens. Beyond loopback it takes `[tls]`, since whoever asks shows a token.
    #[serde(default = "listen")]
    pub listen: SocketAddr,
    /// With what the API speaks TLS; absent for one that does not.
    #[serde(default)]
    pub tls: Option<TlsSettings>,
    /// Asks nobody who they are: a developer's own host.
    #[serde(skip)]
    pub open: bool,
    /// Runs at a time.
    #[serde(default = "runs_max")]
    pub runs_max: u32,
    /// MiB of guest memory at a time, over all runs. No run gets more than its job declares, nor all of them together more
    /// than this.
    #[serde(default = "memory_max_mib")]
    pub memory_max_mib: u64,
    /// How many times of that runs may declare together: most use far less than they declare. Above 1 a run may meet
    /// the end of the node's memory before its own limit, and no run begins while more than 85 % of it are in use.
    #[serde(default = "memory_overcommit")]
    pub memory_overcommit: f64,
    /// MiB that stay free on the data directory's file system: below it jobs, components and new runs are
    /// refused, before the log itself can fail.
    #[serde(default = "reserve_mib")]
    pub reserve_mib: u64,
    /// Launches of missed ticks that the leader gives out in one second, over the whole cluster.
    #[serde(default = "catch_up_per_s")]
    pub catch_up_per_s: u32,
    /// Where backups go; absent for a host that takes none.
    #[serde(default)]
    pub backup: Option<BackupSettings>,
    /// Who hears that all is well; absent for a host that tells nobody.
    #[serde(default)]
    pub heartbeat: Option<HeartbeatSettings>,
    /// What guests may reach besides the public internet.
    #[serde(default)]
    pub egress: EgressSettings,
}

/// `[egress]`: the same on every node, as a run may come to any of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressSettings {
    /// Ranges of private and special addresses that guests may reach, where their jobs' manifests name them, e.g.
    /// `10.20.0.0/16`. Without one they reach nothing of this machine, of its network, or of its cloud's metadata.
    #[serde(default)]
    pub allow: Vec<IpNet>,
}

/// This machine.
pub(crate) fn loopback() -> Vec<IpNet> {
    ["127.0.0.0/8", "::1/128"].iter().filter_map(|range| range.parse().ok()).collect()
}

/// `[heartbeat]`: sent by whoever leads, so every node that votes needs it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatSettings {
    /// Where it is sent by `POST`, e.g. the URL of a service that pages somebody when it has heard nothing for a while.
    pub to: String,
    /// Seconds from one to the next.
    #[serde(default = "beat_every_s")]
    pub every_s: u32,
}

/// Services that take these expect one a minute.
fn beat_every_s() -> u32 {
    60
}

/// `[tls]`: how the API proves whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// The certificate, and those between it and the authority's own, PEM. A new one is used within a minute.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
}

/// `[backup]`: taken by whoever leads, so every node that votes needs it, with the same place.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupSettings {
    /// A directory that every node sees, or `s3://BUCKET/PREFIX`.
    pub to: String,
    /// Where an S3-compatible store is reached, e.g. `https://s3.example.com`. Credentials come from the environment.
    pub endpoint: Option<String>,
    /// Its region.
    pub region: Option<String>,
    /// Minutes from one to the next.
    #[serde(default = "every_min")]
    pub every_min: u32,
    /// How many of this cluster stay.
    #[serde(default = "keep")]
    pub keep: u32,
}

impl BackupSettings {
    /// Milliseconds from one to the next.
    pub fn every_ms(&self) -> u64 {
        u64::from(self.every_min.max(1)) * 60_000
    }
}

/// What is lost at the most, in the worst case.
fn every_min() -> u32 {
    60
}

/// A week of them.
fn keep() -> u32 {
    168
}

/// `[peer]`: the port for the other nodes. Nobody without a certificate of the cluster gets anything there.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSettings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What the others connect to, `host:port`; the address above where absent.
    pub address: Option<String>,
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

/// Nothing beyond what there is.
fn memory_overcommit() -> f64 {
    1.0
}

/// Percent of a node's guest memory above which no run begins, where more is declared than there is.
pub(crate) const TIGHT_PERCENT: u64 = 85;
/// Arbitrary: with more, declaring says nothing any more.
const OVERCOMMIT: std::ops::RangeInclusive<f64> = 1.0..=100.0;

/// RocksDB's write-ahead log and one flush fit in this.
fn reserve_mib() -> u64 {
    256
}

fn catch_up_per_s() -> u32 {
    tickhost_ledger::conductor::CATCH_UP_PER_S
}

impl Settings {
    /// The defaults, with everything under one directory.
    pub fn in_dir(data: PathBuf) -> Self {
        Self {
            data,
            peer: None,
            listen: listen(),
            tls: None,
            open: false,
            runs_max: runs_max(),
            memory_max_mib: memory_max_mib(),
            memory_overcommit: memory_overcommit(),
            reserve_mib: reserve_mib(),
            catch_up_per_s: catch_up_per_s(),
            backup: None,
            heartbeat: None,
            egress: EgressSettings::default(),
        }
    }

    /// Bytes of memory that runs may declare together.
    pub fn memory_bytes_declared_max(&self) -> u64 {
        // Whole MiB below 2^53 are exact.
        ((self.memory_max_mib as f64 * self.memory_overcommit) as u64) << 20
    }

    /// Why no run begins while that many bytes of guest memory are in use, if so.
    pub fn tight(&self, used: u64) -> Option<String> {
        let most = self.memory_max_mib << 20;
        (self.memory_overcommit > 1.0 && used > most / 100 * TIGHT_PERCENT).then(|| {
            format!(
                "its runs use {} of {} MiB of memory; above {TIGHT_PERCENT} % no run begins",
                used >> 20,
                self.memory_max_mib
            )
        })
    }

    /// Where the other nodes reach this one.
    ///
    /// # Errors
    /// A sentence that says what to write.
    pub fn peer_address(&self) -> Result<String, String> {
        let peer = self.peer.as_ref().ok_or(
            "the settings have no `[peer]`, so no other node could reach this one; write e.g. \
             `[peer]` and `listen = \"10.0.0.1:7879\"`",
        )?;
        if peer.address.is_none() && peer.listen.ip().is_unspecified() {
            return Err(format!(
                "`[peer] listen = \"{}\"` is every address of this machine; write in `address` which of them the other \
                 nodes connect to",
                peer.listen
            ));
        }
        Ok(peer.address.clone().unwrap_or_else(|| peer.listen.to_string()))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// A sentence with the file's name, line and column.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("read `{}`: {e}", path.display()))?;
        let settings: Self = toml::from_str(&text).map_err(|e| format!("read `{}`: {e}", path.display()))?;
        if !settings.listen.ip().is_loopback() && settings.tls.is_none() {
            return Err(format!(
                "`listen = \"{}\"` in `{}` is reached from other machines, and whoever asks shows a token: without TLS anybody \
                 on the way could read it. Write `[tls]` with `certificate` and `key`, or listen on `127.0.0.1:7878`",
                settings.listen,
                path.display()
            ));
        }
        if !OVERCOMMIT.contains(&settings.memory_overcommit) {
            return Err(format!(
                "`memory_overcommit = {}` in `{}`: expected a number from {} to {}",
                settings.memory_overcommit,
                path.display(),
                OVERCOMMIT.start(),
                OVERCOMMIT.end()
            ));
        }
        if let Some(heartbeat) = &settings.heartbeat
            && !reqwest::Url::parse(&heartbeat.to).is_ok_and(|url| ["http", "https"].contains(&url.scheme()))
        {
            return Err(format!(
                "`[heartbeat] to = \"{}\"` in `{}` is no URL; expected e.g. `https://beat.example.com/tickhost`",
                heartbeat.to,
                path.display()
            ));
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn more_than_there_is_may_be_declared_and_is_watched_then() {
        let of = |memory_overcommit| Settings {
            memory_max_mib: 100,
            memory_overcommit,
            ..Settings::in_dir(PathBuf::from("data"))
        };
        assert_eq!((of(1.0).memory_bytes_declared_max(), of(2.5).memory_bytes_declared_max()), (100 << 20, 250 << 20));
        assert_eq!(of(1.0).tight(99 << 20), None, "what is declared is there");
        assert_eq!(of(2.5).tight(85 << 20), None);
        assert!(of(2.5).tight(86 << 20).is_some());
    }

    /// Whoever asks shows a token, and anybody on the way could read it.
    #[test]
    fn beyond_loopback_it_takes_tls() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Settings::read(&path)
        };
        let open = "data = \"d\"\nlisten = \"0.0.0.0:7878\"\n";
        let refused = read(open).unwrap_err();
        assert!(refused.contains("`listen = \"0.0.0.0:7878\"`") && refused.contains("Write `[tls]`"), "{refused}");
        assert!(read(&format!("{open}[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n")).is_ok());
        assert!(read("data = \"d\"\nlisten = \"[::1]:7878\"\n").is_ok());
    }

    #[test]
    fn a_factor_that_means_nothing_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.toml");
        for factor in ["0.5", "1000.0", "nan"] {
            std::fs::write(&path, format!("data = \"d\"\nmemory_overcommit = {factor}\n")).unwrap();
            let refused = Settings::read(&path).unwrap_err();
            assert!(refused.contains("expected a number from 1 to 100"), "{refused}");
        }
    }
}
