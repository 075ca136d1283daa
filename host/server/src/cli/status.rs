//! `tickhost status`.

use super::{CliError, Format, print_json};
use crate::{api::StatusView, client::Client};

pub(super) async fn show(client: &Client, format: Format) -> Result<(), CliError> {
    let status: StatusView = client.get("/v1/status", &[]).await?;
    if format == Format::Json {
        return print_json(&status);
    }
    let index = |index: Option<u64>| index.map_or("none".into(), |i| i.to_string());
    say!("version   {}, tz {}", status.version, status.tz);
    say!("cluster   {}", status.cluster.as_deref().unwrap_or("not founded"));
    say!("node      {}, {} in term {}", status.node, status.role, status.term);
    say!(
        "log       last {}, committed {}, applied {}, snapshot {}",
        index(status.last_index),
        index(status.committed_index),
        index(status.applied_index),
        index(status.snapshot_index)
    );
    let lease = if status.has_lease { ", which holds the lease" } else { "" };
    match status.leader {
        Some(leader) if leader == status.node => say!("leader    this node{lease}"),
        Some(leader) => say!("leader    node {leader}"),
        None => say!("leader    none"),
    }
    say!("session   {}", status.session.as_deref().unwrap_or("none: this node runs nothing"));
    say!("state     {}", status.state_hash);
    say!("runs      {} of {}; {} launches open", status.runs, status.runs_max, status.open);
    let rows: Vec<String> = status.rows.iter().map(|(name, count)| format!("{count} {name}")).collect();
    say!("rows      {}", rows.join(", "));
    if let Some(backup) = &status.backup {
        say!("backup    {backup}");
    }
    if let Some(why) = &status.backup_failed {
        say!("backup    FAILED: {why}");
    }
    for alarm in &status.alarms {
        say!("alarm     {alarm}");
    }
    if let Some(held) = &status.held {
        say!("held      {held}");
    }
    Ok(())
}
