//! `tickhost login`, `tickhost token …`, `tickhost audit`: who may ask, and what they have asked for.

use std::{
    io::{BufRead, IsTerminal},
    path::PathBuf,
};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tickhost_ledger::{access::Became, ids::check_name};

use super::{CliError, Format, print_json, print_outcome, table};
use crate::{
    api::{AccessView, AuditView, WhoView},
    client::{Client, Target},
    credentials::{self, Credential, Credentials},
    token::AccessToken,
};

#[derive(Debug, Args)]
pub(super) struct Login {}

#[derive(Debug, Subcommand)]
pub(super) enum Token {
    /// Make a token. Its secret is printed once and kept by nobody.
    Create(Create),
    /// List the tokens.
    List,
    /// Take a token's right away.
    Revoke(One),
}

#[derive(Debug, Args)]
pub(super) struct Create {
    /// Its name, as the audit log will have it.
    name: String,
    /// `viewer`: looks at jobs, launches and what they wrote. `deployer`: also stores components and jobs, pauses them and
    /// launches them by hand. `operator`: may do everything.
    #[arg(long, value_parser = ["viewer", "deployer", "operator"])]
    role: String,
    /// In this namespace only.
    #[arg(long)]
    namespace: Option<String>,
    /// For how many days it is good.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=730))]
    days: u64,
}

#[derive(Debug, Args)]
pub(super) struct One {
    /// The token's name.
    name: String,
}

#[derive(Debug, Args)]
pub(super) struct Audit {
    /// What was asked for with this token.
    #[arg(long)]
    by: Option<String>,
    /// Only what was refused.
    #[arg(long)]
    refused: bool,
    /// How much of it, the newest first.
    #[arg(long, default_value_t = 100)]
    count: usize,
}

impl Login {
    pub(super) async fn run(self, target: &Target, format: Format) -> Result<(), CliError> {
        let path = credentials::path().ok_or_else(|| {
            CliError::refused("there is no home to keep the token in; set HOME, or give the token in TICKHOST_TOKEN")
        })?;
        if std::io::stdin().is_terminal() {
            eprintln!("token for {}:", target.url);
        }
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(|e| CliError::failed(format!("read the token: {e}")))?;
        let token: AccessToken = line.parse().map_err(CliError::refused)?;
        // The file is read from anywhere.
        let absolute = |ca: &PathBuf| std::path::absolute(ca).map_err(|e| CliError::failed(e.to_string()));
        let ca = target.ca.as_ref().map(absolute).transpose()?;
        let credential = Credential { token: token.to_string(), ca };
        let target = Target { token: Some(credential.token.clone()), ..target.clone() };
        let who: WhoView = Client::new(&target)?.get("/v1/whoami", &[]).await?;
        let mut kept = Credentials::read(&path).map_err(CliError::failed)?;
        kept.set(&target.url, credential);
        kept.write(&path).map_err(CliError::failed)?;
        if format == Format::Json {
            return print_json(&who);
        }
        let of = who.namespace.map_or("all namespaces".into(), |namespace| format!("namespace {namespace}"));
        let until = who.expires_at.map_or(String::new(), |at| format!(", until {at}"));
        say!("{}: {} of {of}{until}", who.by, who.role.name());
        say!("kept in `{}`", path.display());
        Ok(())
    }
}

impl Token {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        match self {
            Self::Create(verb) => {
                check_name("token", &verb.name).map_err(|e| CliError::refused(e.to_string()))?;
                let body =
                    json!({ "role": verb.role, "namespace": verb.namespace, "within_s": verb.days * 24 * 3_600 });
                let answer: Value = client.put(&format!("/v1/tokens/{}", verb.name), &body).await?;
                if format == Format::Json {
                    return print_json(&answer);
                }
                say!("{}", answer["secret"].as_str().unwrap_or_default());
                Ok(())
            }
            Self::List => list(client, format).await,
            Self::Revoke(One { name }) => {
                check_name("token", &name).map_err(|e| CliError::refused(e.to_string()))?;
                print_outcome("token", &client.delete(&format!("/v1/tokens/{name}")).await?, format)
            }
        }
    }
}

async fn list(client: &Client, format: Format) -> Result<(), CliError> {
    let tokens: Vec<AccessView> = client.get("/v1/tokens", &[]).await?;
    if format == Format::Json {
        return print_json(&tokens);
    }
    let row = |token: AccessView| {
        let until = if token.expired { format!("{}, expired", token.expires_at) } else { token.expires_at };
        let namespace = token.namespace.unwrap_or_else(|| "all".into());
        vec![token.token, token.role.name().to_owned(), namespace, until, token.stored_at, token.by]
    };
    let rows: Vec<_> = tokens.into_iter().map(row).collect();
    table::print(&["TOKEN", "ROLE", "NAMESPACE", "UNTIL", "SINCE", "BY"], &rows);
    Ok(())
}

impl Audit {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), CliError> {
        let mut query = vec![("refused", self.refused.to_string()), ("count", self.count.to_string())];
        query.extend(self.by.map(|by| ("by", by)));
        let records: Vec<AuditView> = client.get("/v1/audit", &query).await?;
        if format == Format::Json {
            return print_json(&records);
        }
        let row = |record: AuditView| {
            let became = match record.became {
                Became::Done => "done".to_owned(),
                Became::Unchanged => "unchanged".to_owned(),
                Became::Begun => "begun".to_owned(),
                Became::Refused(why) => format!("refused: {why}"),
            };
            let times = if record.times == 1 { became } else { format!("{} times {became}", record.times) };
            vec![record.at, record.by, record.what, record.on, times]
        };
        let rows: Vec<_> = records.into_iter().map(row).collect();
        table::print(&["AT", "BY", "WHAT", "ON", "BECAME"], &rows);
        Ok(())
    }
}
