//! What the demo, the fault tests and the benchmarks share: a real host as a process of its own, and a recorder
//! outside of it that judges.

pub mod cluster;
pub mod faults;
pub mod host;
mod judge;
pub mod kill;
pub mod network;
pub mod recorder;
pub mod s3;
pub mod syncs;
pub mod upgrade;

use std::path::{Path, PathBuf};

/// The checkout, as cargo says it now: a program in a shared target folder may have been built from another one.
pub fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut above = Path::new(&manifest).ancestors();
    above.find(|dir| dir.join("wit/job.wit").is_file()).unwrap_or(Path::new(".")).to_owned()
}

/// A component that `cargo xtask guests` has built.
pub fn guest(path: &str) -> PathBuf {
    root().join(path)
}
