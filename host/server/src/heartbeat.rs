//! The outside hears that all is well for as long as it is. Silence is the one alarm that a cluster can raise when all of
//! it is gone, so whoever listens must take silence for one.

use std::time::Duration;

use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::{host::Host, settings::HeartbeatSettings};

/// A beat that is not taken by then is given up: the next one follows. Arbitrary.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// Beats for as long as the host runs. Only a leader does, and only while it sees every tick decided and every run
/// ended.
pub(crate) async fn keep(host: Host) {
    let Some(heartbeat) = host.settings.heartbeat.clone() else { return };
    let client = match client(&heartbeat) {
        Ok(client) => client,
        Err(error) => {
            let what =
                "TLS for `[heartbeat]`; perhaps this machine has no CA certificates: apt-get install ca-certificates";
            return host.fail(format!("set up {what}: {error}"));
        }
    };
    let mut every = interval(Duration::from_secs(u64::from(heartbeat.every_s.max(1))));
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_heard = true;
    loop {
        every.tick().await;
        if host.reign().is_none() || !host.watch.is_all_well() {
            continue;
        }
        match beat(&host, &client, &heartbeat).await {
            Ok(()) => is_heard = true,
            Err(why) => {
                if std::mem::replace(&mut is_heard, false) {
                    tracing::error!(to = heartbeat.to, why, "nobody takes the heartbeat");
                }
            }
        }
    }
}

fn client(heartbeat: &HeartbeatSettings) -> reqwest::Result<reqwest::Client> {
    // A second installation is no fault: the first one is the same provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
    let is_plain = heartbeat.to.starts_with("http://");
    let builder = if is_plain { builder.tls_certs_only(std::iter::empty()) } else { builder };
    builder.timeout(TAKEN_WITHIN).build()
}

async fn beat(host: &Host, client: &reqwest::Client, heartbeat: &HeartbeatSettings) -> Result<(), String> {
    let cluster = host.replica.read(|state| state.cluster().map(|cluster| cluster.id));
    let body = json!({ "cluster": cluster, "node": host.replica.node() });
    let sent = client.post(&heartbeat.to).json(&body).send().await;
    let status = sent.map_err(|error| error.to_string())?.status();
    if status.is_success() { Ok(()) } else { Err(format!("it answers {status}")) }
}
