//! `tickhost import`: manifests from crontabs and from CronJobs of Kubernetes. Speaks to no host.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde_json::json;
use tickhost_ledger::ids::check_name;

use super::{CliError, Format, print_json};
use crate::import::{self, Choices, Imported};

#[derive(Debug, Subcommand)]
pub(super) enum Import {
    /// A crontab; the manifest goes to standard output, what does not carry over to standard error.
    Crontab {
        #[command(flatten)]
        from: From,
        /// The sixth field is a user. Known by itself for `/etc/crontab` and files in a `cron.d`.
        #[arg(long, conflicts_with = "user")]
        system: bool,
        /// There is no user in the sixth field.
        #[arg(long)]
        user: bool,
        /// The zone of the machine whose crontab it is.
        #[arg(long)]
        zone: Option<String>,
    },
    /// CronJobs of Kubernetes in a YAML file.
    Cronjob {
        #[command(flatten)]
        from: From,
    },
}

#[derive(Debug, Args)]
pub(super) struct From {
    /// The file; `-` for standard input.
    file: PathBuf,
    /// The manifest's namespace.
    #[arg(long, default_value = "imported")]
    namespace: String,
    /// What becomes of runs of which nobody knows whether they happened; left open where absent, since only the
    /// owner of each job can choose.
    #[arg(long, value_parser = ["skip", "repeat"])]
    on_unknown: Option<String>,
    /// Where the component of `http-call` lies, seen from the manifest.
    #[arg(long, default_value = "http-call.wasm")]
    http_call: String,
}

impl Import {
    pub(super) fn run(self, format: Format) -> Result<(), CliError> {
        match self {
            Self::Crontab { from, system, user, zone } => {
                if let Some(zone) = &zone {
                    tickhost_schedule::Schedule::parse("@daily", zone, chrono::DateTime::UNIX_EPOCH)
                        .map_err(|e| CliError::refused(format!("--zone: {e}")))?;
                }
                let has_user = system || !user && is_system(&from.file);
                let imported = import::crontab(&from.read()?, &import::Crontab { has_user, zone });
                from.print(&imported, format)
            }
            Self::Cronjob { from } => {
                let imported = import::cronjob(&from.read()?)
                    .map_err(|e| CliError::refused(format!("`{}`: {e}", from.file.display())))?;
                from.print(&imported, format)
            }
        }
    }
}

/// `/etc/crontab` and `cron.d` hold the system's.
fn is_system(file: &Path) -> bool {
    let is_named = |path: Option<&Path>, name: &str| path.and_then(Path::file_name).is_some_and(|found| found == name);
    is_named(Some(file), "crontab") && is_named(file.parent(), "etc") || is_named(file.parent(), "cron.d")
}

impl From {
    fn read(&self) -> Result<String, CliError> {
        check_name("namespace", &self.namespace).map_err(|e| CliError::refused(e.to_string()))?;
        let mut bytes = Vec::new();
        let read = if self.file == Path::new("-") {
            std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ())
        } else {
            std::fs::read(&self.file).map(|read| bytes = read)
        };
        read.map_err(|e| CliError::refused(format!("read `{}`: {e}", self.file.display())))?;
        String::from_utf8(bytes).map_err(|e| {
            let line = e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
            CliError::refused(format!("`{}`: line {line} is no UTF-8 text", self.file.display()))
        })
    }

    fn print(&self, imported: &Imported, format: Format) -> Result<(), CliError> {
        let choices = Choices {
            namespace: self.namespace.clone(),
            on_unknown: self.on_unknown.clone(),
            http_call: self.http_call.clone(),
        };
        let manifest = imported.manifest(&choices);
        let unchosen = self.on_unknown.is_none() && !imported.jobs.is_empty();
        if format == Format::Json {
            let remarks = imported.remarks.iter().map(|remark| json!({ "place": remark.place, "text": remark.text }));
            return print_json(&json!({
                "manifest": manifest,
                "jobs": imported.jobs.len(),
                "not_carried_over": remarks.collect::<Vec<_>>(),
                "on_unknown_missing": unchosen,
            }));
        }
        if !imported.jobs.is_empty() {
            say!("{}", manifest.trim_end());
        }
        for remark in &imported.remarks {
            eprintln!("{}: {}", remark.place, remark.text);
        }
        if unchosen {
            eprintln!(
                "each job lacks `on_unknown`, which only its owner can choose: \"skip\" where twice is worse, \"repeat\" where not at all is worse"
            );
        }
        eprintln!("{} jobs, {} remarks", imported.jobs.len(), imported.remarks.len());
        Ok(())
    }
}
