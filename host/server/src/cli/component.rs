//! `tickhost component inspect`: what a component is, and what keeps it from running.

use std::path::PathBuf;

use clap::Subcommand;
use tickhost_sandbox::Sandbox;

use super::{CliError, Format, print_json};

#[derive(Debug, Subcommand)]
pub(super) enum Component {
    /// Show what a component imports, exports and needs. Speaks to no host.
    Inspect {
        /// The component.
        path: PathBuf,
    },
}

impl Component {
    pub(super) fn run(self, format: Format) -> Result<(), CliError> {
        let Self::Inspect { path } = self;
        let bytes = std::fs::read(&path)
            .map_err(|e| CliError::refused(format!("read the component `{}`: {e}", path.display())))?;
        let dir = std::env::temp_dir().join(format!("tickhost-inspect-{}", uuid::Uuid::new_v4().simple()));
        let sandbox = Sandbox::new(&dir, 1, 4 << 30, Vec::new()).map_err(|e| CliError::failed(e.to_string()))?;
        let report = sandbox.inspect(&bytes);
        let _ = std::fs::remove_dir_all(&dir);
        let report = report.map_err(|e| CliError::refused(format!("`{}`: {e}", path.display())))?;
        if format == Format::Json {
            return print_json(&report);
        }
        say!("digest   {}", report.digest);
        say!("size     {} bytes", report.size);
        say!("world    {}", report.world);
        if let Some(bytes) = report.memory_bytes {
            say!("memory   {bytes} bytes to begin with");
        }
        say!("exports  {}", report.exports.join("\n         "));
        say!("imports  {}", report.imports.join("\n         "));
        Ok(())
    }
}
