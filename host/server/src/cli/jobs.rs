//! `tickhost jobs`, `pause`, `resume`, `delete`.

use clap::Args;
use serde_json::json;

use super::{CliError, Format, job_path, print_json, print_outcome, table};
use crate::{api::JobView, client::Client};

#[derive(Debug, Args)]
pub(super) struct Pause {
    /// NAMESPACE/NAME
    job: String,
    /// Why: whoever finds it paused wants to know.
    #[arg(long)]
    note: String,
}

#[derive(Debug, Args)]
pub(super) struct Resume {
    /// NAMESPACE/NAME
    job: String,
}

#[derive(Debug, Args)]
pub(super) struct Delete {
    /// NAMESPACE/NAME
    job: String,
}

pub(super) async fn list(client: &Client, format: Format) -> Result<(), CliError> {
    let jobs: Vec<JobView> = client.get("/v1/jobs", &[]).await?;
    if format == Format::Json {
        return print_json(&jobs);
    }
    let row = |job: &JobView| {
        let next = match &job.pause {
            Some(pause) => format!("paused: {}", pause.note),
            None => job.next_local.clone().unwrap_or_else(|| "never".into()),
        };
        let last = job.last.as_ref().map_or(String::new(), |(_, verdict)| verdict.clone());
        vec![job.job.clone(), job.spec.timing.schedule.join(" | "), job.spec.timing.zone.clone(), next, last]
    };
    table::print(&["JOB", "SCHEDULE", "ZONE", "NEXT", "LAST"], &jobs.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

impl Pause {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        let body = json!({ "note": self.note });
        print_outcome("job", &client.post(&format!("{}/pause", job_path(&self.job)?), &body).await?, format)
    }
}

impl Resume {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        print_outcome("job", &client.post(&format!("{}/resume", job_path(&self.job)?), &json!({})).await?, format)
    }
}

impl Delete {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        print_outcome("job", &client.delete(&job_path(&self.job)?).await?, format)
    }
}
