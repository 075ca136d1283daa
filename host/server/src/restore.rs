//! What follows the loss of a cluster: a new one from a backup, on hold until nobody can still act for the old one.

use std::{path::Path, sync::Arc};

use tickhost_executor::enter_epoch;
use tickhost_ledger::{Command, FIRST_NODE, Refusal, Reply, rows::GapChoice};
use tickhost_replica::{
    Clock, Db, Identity, Replica, Setup,
    backup::{self, Manifest, Place},
    identity::{Authority, Request},
    join::JoinToken,
};
use uuid::Uuid;

use crate::{
    cluster::{self, MemberError},
    host::{self, Host, Settings},
};

/// A cluster that was restored.
pub(crate) struct Founded {
    pub(crate) cluster: Uuid,
    pub(crate) node: u64,
    pub(crate) epoch: u64,
    /// Nodes of the backup that the hold waits for: their numbers there, and where they were reached.
    pub(crate) at_large: Vec<(u64, String)>,
}

/// Makes an empty data directory that of a cluster's first node, with the state of a backup. The cluster is on hold.
///
/// # Errors
/// A sentence.
pub(crate) async fn restore(settings: &Settings, place: &Place, manifest: &Manifest) -> Result<Founded, String> {
    let data = &settings.data;
    cluster::check_empty(data)?;
    let address = settings.peer.as_ref().map(|_| settings.peer_address()).transpose()?.unwrap_or_default();
    std::fs::create_dir_all(data).map_err(|e| format!("create `{}`: {e}", data.display()))?;
    let rows = data.join("restored.rows");
    let contents = place.fetch_rows(manifest, &rows).await.map_err(|e| e.to_string())?;
    let was = contents.cluster.ok_or("the backup is of no cluster")?;
    let sandbox = host::sandbox(settings).map_err(|e| e.to_string())?;
    for digest in &manifest.components {
        let bytes = place.fetch_component(manifest, digest).await.map_err(|e| e.to_string())?;
        sandbox.keep(&bytes).map_err(|e| e.to_string())?;
    }
    let cluster = Uuid::new_v4();
    // A host without peers has no other number.
    let node = if address.is_empty() { FIRST_NODE } else { was.next_node };
    let identity = if address.is_empty() {
        None
    } else {
        let request = Request::new()?;
        let given = Authority::create(data, cluster).map_err(|e| e.to_string())?.sign(node, &request.pem)?;
        Some(Arc::new(Identity::store(data, &request, &given).map_err(|e| e.to_string())?))
    };
    let clock = Clock::default();
    let setup = Setup::on_disk(data, node, identity, clock.clone()).map_err(|e| e.to_string())?;
    backup::found_from(&setup, &address, manifest, rows).await.map_err(|e| e.to_string())?;
    let (replica, _outputs) = Replica::open(setup).await.map_err(|e| e.to_string())?;
    replica.lead_alone().await.map_err(|e| e.to_string())?;
    let (backup, taken_at) = (manifest.name.clone(), manifest.taken_at);
    let command = Command::Restore { cluster, node, address, backup, taken_at };
    match replica.proposer().propose_one(None, clock.now(), command).await {
        Ok(Reply::Done) => {}
        Ok(other) => return Err(format!("begin a new epoch: {other:?}")),
        Err(error) => return Err(format!("begin a new epoch: {error}")),
    }
    let at_large = replica.read(|state| {
        let at_large = state.hold().into_iter().flat_map(|held| &held.at_large);
        at_large.map(|(node, row)| (*node, row.address.clone())).collect()
    });
    replica.shutdown().await;
    Ok(Founded { cluster, node, epoch: was.epoch + 1, at_large })
}

/// Lets a stopped node from before a restore go over to the restored cluster: its run table is kept, so that it obeys
/// nobody from before; log, state and certificates are removed.
///
/// # Errors
/// A sentence.
pub(crate) async fn rejoin(
    settings: &Settings,
    peer: &str,
    token: &JoinToken,
    voter: bool,
) -> Result<Identity, String> {
    let address = settings.peer_address()?;
    let data = &settings.data;
    if !data.join("db").exists() {
        return Err(format!(
            "`{}` holds no host's data; a new node joins with `tickhost cluster join`",
            data.display()
        ));
    }
    let db = Db::open(data).map_err(|e| e.to_string())?;
    let request = Request::new()?;
    let given = cluster::ask_to_join(peer, token, &request, address, voter).await?;
    enter_epoch(&db, given.cluster, given.epoch).await?;
    db.forget_group().await.map_err(|e| format!("forget the log in `{}`: {e}", data.display()))?;
    drop(db);
    for old in ["pki", "snapshots"] {
        remove(&data.join(old))?;
    }
    Identity::store(data, &request, &given).map_err(|e| e.to_string())
}

fn remove(dir: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("remove `{}`: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Somebody says that a node from before the restore is gone.
pub(crate) async fn destroyed(host: &Host, node: u64, by: &str) -> Result<(), MemberError> {
    cluster::propose(host, Command::Destroyed { node, by: by.to_owned() }).await.map(|_| ())
}

/// Ends the hold.
pub(crate) async fn release(host: &Host, choice: GapChoice, by: &str) -> Result<(), MemberError> {
    cluster::propose(host, Command::Release { choice, by: by.to_owned() }).await.map(|_| ())
}

/// Why nothing is launched or changed after a restore, if so.
pub(crate) fn hold(host: &Host) -> Option<String> {
    host.replica.read(|state| {
        let held = state.hold()?;
        let next = if held.at_large.is_empty() {
            "say what becomes of the ticks since then: `tickhost cluster release --gap skip|repeat`".to_owned()
        } else {
            let nodes = held.at_large.iter().map(|(node, row)| (*node, row.address.clone()));
            Refusal::AtLarge(nodes.collect()).to_string()
        };
        Some(format!(
            "the cluster was restored at {} from backup `{}`, and nothing is launched: {next}",
            held.at, held.backup
        ))
    })
}
