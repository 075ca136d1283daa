//! `tickhost cluster …` and `tickhost nodes`: who belongs to the cluster.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tickhost_replica::{Identity, join::JoinToken};

use super::{CliError, Format, print_json, table};
use crate::{api::NodeView, client::Client, cluster, host::Settings, restore};

#[derive(Debug, Subcommand)]
pub(super) enum Cluster {
    /// Found a cluster: this node's data directory gets an authority, a certificate, and a ledger of its own.
    Init(Config),
    /// Make a token with which one node may join.
    Token(Token),
    /// Join a cluster; the node takes part once it is started with `tickhost serve`.
    Join(Join),
    /// Let a stopped node from before a restore go over to the restored cluster. Its run table stays, so that it
    /// certainly obeys nobody from before; its log and its copy of the state are removed.
    Rejoin(Join),
    /// After a restore: a node from before is gone for good, and whatever it ran with it.
    Destroyed(OneNode),
    /// After a restore: end the hold, and say what becomes of the ticks that nobody knows about.
    Release(Release),
    /// Hand leadership over.
    Transfer(Transfer),
    /// Give a node no new runs; those that it has go on.
    Drain(OneNode),
    /// Give a node new runs again.
    Undrain(OneNode),
    /// Take a node out of the cluster for good.
    Remove(OneNode),
    /// Give the node that is spoken to a new certificate and key. It does so by itself a month before the old one ends.
    Renew,
}

#[derive(Debug, Args)]
pub(super) struct Config {
    /// The host's settings (TOML), with `[peer]`.
    #[arg(long)]
    config: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Token {
    /// For how many minutes it is good.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_080))]
    minutes: u64,
    /// For a node that executes and does not vote.
    #[arg(long)]
    executor: bool,
}

#[derive(Debug, Args)]
pub(super) struct Join {
    /// The host's settings (TOML), with `[peer]`.
    #[arg(long)]
    config: PathBuf,
    /// The port for peers of any node that votes, `host:port`.
    #[arg(long)]
    peer: String,
    /// What `tickhost cluster token` printed.
    #[arg(long, env = "TICKHOST_JOIN_TOKEN", hide_env_values = true)]
    token: String,
    /// Execute only, without a vote: what nodes beyond the third or fifth do.
    #[arg(long)]
    executor: bool,
}

#[derive(Debug, Args)]
pub(super) struct Release {
    /// `skip`: they are `unknown`. `repeat`: jobs with `on_unknown = "repeat"` launch them again, under the same keys, as
    /// their `catch_up` says; those of the others are `unknown`.
    #[arg(long, value_parser = ["skip", "repeat"])]
    gap: String,
}

#[derive(Debug, Args)]
pub(super) struct Transfer {
    /// To which node; without it, to the one whose log goes furthest.
    to: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct OneNode {
    /// The node's number.
    node: u64,
}

impl Join {
    fn read(&self) -> Result<(Settings, JoinToken), CliError> {
        let settings = Settings::read(&self.config).map_err(CliError::refused)?;
        Ok((settings, self.token.parse().map_err(CliError::refused)?))
    }

    fn tell(&self, identity: &Identity, format: Format) -> Result<(), CliError> {
        if format == Format::Json {
            return print_json(&json!({ "cluster": identity.cluster, "node": identity.node }));
        }
        say!("joined cluster {} as node {}", identity.cluster, identity.node);
        say!("next: tickhost serve --config {}", self.config.display());
        Ok(())
    }
}

impl Cluster {
    pub(super) async fn run(
        self,
        client: impl FnOnce() -> Result<Client, CliError>,
        format: Format,
    ) -> Result<(), CliError> {
        let answer: Value = match self {
            Self::Init(verb) => {
                let settings = Settings::read(&verb.config).map_err(CliError::refused)?;
                let cluster = cluster::init(&settings).await.map_err(CliError::failed)?;
                if format == Format::Text {
                    say!("founded cluster {cluster} in `{}`; this is node 1", settings.data.display());
                    say!("next: tickhost serve --config {}", verb.config.display());
                    return Ok(());
                }
                json!({ "cluster": cluster, "node": 1 })
            }
            Self::Token(verb) => {
                let body = json!({ "within_s": verb.minutes * 60, "voter": !verb.executor });
                let answer = client()?.post("/v1/cluster/token", &body).await?;
                if format == Format::Text {
                    say!("{}", answer["token"].as_str().unwrap_or_default());
                    return Ok(());
                }
                answer
            }
            Self::Join(verb) => {
                let (settings, token) = verb.read()?;
                let joined = cluster::join(&settings, &verb.peer, &token, !verb.executor).await;
                return verb.tell(&joined.map_err(CliError::failed)?, format);
            }
            Self::Rejoin(verb) => {
                let (settings, token) = verb.read()?;
                let joined = restore::rejoin(&settings, &verb.peer, &token, !verb.executor).await;
                return verb.tell(&joined.map_err(CliError::failed)?, format);
            }
            Self::Destroyed(OneNode { node }) => {
                client()?.post("/v1/cluster/destroyed", &json!({ "node": node })).await?
            }
            Self::Release(verb) => client()?.post("/v1/cluster/release", &json!({ "gap": verb.gap })).await?,
            Self::Transfer(verb) => client()?.post("/v1/cluster/transfer", &json!({ "to": verb.to })).await?,
            Self::Drain(OneNode { node }) => drain(&client()?, node, true).await?,
            Self::Undrain(OneNode { node }) => drain(&client()?, node, false).await?,
            Self::Remove(OneNode { node }) => client()?.delete(&format!("/v1/nodes/{node}")).await?,
            Self::Renew => client()?.post("/v1/certificate/renew", &json!({})).await?,
        };
        if format == Format::Json {
            return print_json(&answer);
        }
        let words = answer.as_object().into_iter().flatten().map(|(name, value)| match value {
            Value::String(text) => format!("{name} {text}"),
            other => format!("{name} {other}"),
        });
        say!("{}", words.collect::<Vec<_>>().join(", "));
        Ok(())
    }
}

async fn drain(client: &Client, node: u64, draining: bool) -> Result<Value, CliError> {
    client.post(&format!("/v1/nodes/{node}/drain"), &json!({ "draining": draining })).await
}

pub(super) async fn nodes(client: &Client, format: Format) -> Result<(), CliError> {
    let nodes: Vec<NodeView> = client.get("/v1/nodes", &[]).await?;
    if format == Format::Json {
        return print_json(&nodes);
    }
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let heard = |ms: i64| format!("{:.1} s ago", Duration::from_millis(ms.unsigned_abs()).as_secs_f64());
    let row = |node: &NodeView| {
        vec![
            node.node.to_string(),
            if node.draining { format!("{}, drained", node.role) } else { node.role.clone() },
            node.address.clone(),
            or_none(node.heard_ms.map(heard)),
            or_none(node.lag.map(|lag| lag.to_string())),
            or_none(node.clock_ahead_ms.map(|ms| format!("{ms:+} ms"))),
            format!("{} of {}", node.runs, node.runs_max),
            format!("{} of {} MiB", node.memory_mib, node.memory_max_mib),
            or_none(node.disk_free_mib.map(|mib| format!("{mib} MiB free"))),
            node.tz.clone(),
            node.version.clone(),
        ]
    };
    let header = ["NODE", "ROLE", "ADDRESS", "HEARD", "LAG", "CLOCK", "RUNS", "MEMORY", "DISK", "TZ", "VERSION"];
    table::print(&header, &nodes.iter().map(row).collect::<Vec<_>>());
    for node in &nodes {
        for alarm in &node.alarms {
            say!("node {}: {alarm}", node.node);
        }
    }
    Ok(())
}
