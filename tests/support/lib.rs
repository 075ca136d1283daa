//! What the demo, the fault tests and the benchmarks share: a real host as a process of its own, and a recorder
//! outside of it that judges.

pub mod host;
pub mod kill;
pub mod recorder;

use std::path::{Path, PathBuf};

/// The checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// A component that `cargo xtask guests` has built.
pub fn guest(path: &str) -> PathBuf {
    root().join(path)
}
