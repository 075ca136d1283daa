//! Components over the cluster: on a majority before they are in the ledger, and on every node soon after.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tickhost_ledger::Digest;
use tickhost_replica::Replica;
use tickhost_sandbox::Runner;

use crate::host::Host;

/// A hundred megabytes over a slow line, and compiling them.
const COPY_WITHIN: Duration = Duration::from_secs(180);
/// How often a node looks for components that it lacks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Copies a component to other nodes that vote, and has them compile it, until a majority is ready to run it, this node
/// included: whatever job names it has a place to run from its first tick on.
///
/// # Errors
/// A sentence, where too few can be reached.
pub(crate) async fn spread(host: &Host, digest: Digest, bytes: &[u8]) -> Result<(), String> {
    let voters = host.replica.voters();
    let needed = voters.len() / 2;
    let peers = host.replica.peers();
    let others = voters.iter().copied().filter(|node| *node != host.replica.node());
    let mut copies: FuturesUnordered<_> = others
        .map(|node| async move { peers.call(node, "/components/keep", bytes.to_vec(), COPY_WITHIN).await })
        .collect();
    let (mut kept, mut failed) = (0, Vec::new());
    while kept < needed {
        match copies.next().await {
            Some(Ok(_)) => kept += 1,
            Some(Err(error)) => failed.push(error.to_string()),
            None => {
                return Err(format!(
                    "component {digest} is on {} of {} nodes that vote, and a majority has to have it: {}",
                    kept + 1,
                    voters.len(),
                    failed.join("; ")
                ));
            }
        }
    }
    Ok(())
}

/// Sees to it that a component is here: from whichever node has it, checked against its digest.
pub(crate) fn fetch(
    replica: Replica,
    sandbox: Arc<dyn Runner>,
) -> impl Fn(Digest) -> BoxFuture<'static, Result<(), String>> + Send + Sync {
    move |digest| {
        let (replica, sandbox) = (replica.clone(), sandbox.clone());
        Box::pin(async move {
            if sandbox.has_component(&digest) {
                return Ok(());
            }
            let leader = *replica.leader().borrow();
            let others = replica.voters().into_iter().chain(replica.learners());
            let mut failed = Vec::new();
            for node in leader.into_iter().chain(others).filter(|node| *node != replica.node()) {
                let body = digest.to_string().into_bytes();
                match replica.peers().call(node, "/components/get", body, COPY_WITHIN).await {
                    Ok(bytes) if Digest::of(&bytes) == digest => {
                        return sandbox.keep(bytes).await.map(|_| ()).map_err(|e| e.to_string());
                    }
                    Ok(bytes) => failed.push(format!("node {node} has {} under that name", Digest::of(&bytes))),
                    Err(error) => failed.push(error.to_string()),
                }
            }
            Err(format!("component {digest} is not on this node and cannot be had: {}", failed.join("; ")))
        })
    }
}

/// Fetches and compiles ahead, one after the other, what the ledger names and this node has not, or has not ready: after
/// an upload elsewhere, after a restart, after an upgrade of the engine, after damage to a file. Bytes count where the
/// code is ready as well: other nodes ask for them.
pub(crate) async fn warm(host: Host) {
    let fetch = fetch(host.replica.clone(), host.sandbox.clone());
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let ready = host.sandbox.warm();
        let named: Vec<Digest> = host.replica.read(|state| state.components().copied().collect());
        let is_here = |digest: &Digest| ready.contains(digest) && host.sandbox.has_component(digest);
        for digest in named.into_iter().filter(|digest| !is_here(digest)) {
            let made = match fetch(digest).await {
                Ok(()) => host.sandbox.prepare(digest).await.map_err(|e| e.to_string()),
                Err(why) => Err(why),
            };
            match made {
                Ok(()) => host.ask_now.notify_one(),
                Err(why) => tracing::warn!(%digest, why, "make a component ready"),
            }
        }
    }
}
