//! The cluster's life: founding it, letting nodes in, and letting them go.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tickhost_ledger::{Command, FIRST_NODE, Refusal, Reply, check_table, rows::Executor};
use tickhost_replica::{
    Caller, Clock, Identity, ProposeError, Replica, Setup,
    identity::{Authority, Credentials, Request, fingerprint},
    join::{JoinToken, ask_with_token},
};
use uuid::Uuid;

use crate::host::{Host, Settings};

/// A call to another node about membership.
const CALL_WITHIN: Duration = Duration::from_secs(10);
/// Entries that a node may lack when it begins to vote: a moment's worth.
const LAG_MAX: u64 = 100;
/// How often what is not settled yet is tried again.
const TRY_EVERY: Duration = Duration::from_millis(500);
/// A node that is up says at once what it knows.
const STANDING_WITHIN: Duration = Duration::from_secs(1);
const WIPED: &str = "remove the node and let the disk join as a new one";
/// How often a node looks whether its certificate is to be renewed.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);
/// How long a node that is removed is given for the runs that it has.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// What a node that wants to join sends, beside its token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JoinRequest {
    secret: [u8; 32],
    /// A certificate request, PEM.
    request: String,
    address: String,
    voter: bool,
}

/// What a node says when it has started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Arrival {
    node: u64,
    address: String,
}

impl Arrival {
    /// The node itself says it; one that votes passes it on.
    pub(crate) fn may_come_from(&self, host: &Host, Caller(caller): Caller) -> bool {
        caller.is_some_and(|caller| caller == self.node || host.replica.voters().contains(&caller))
    }
}

/// What a node sends for a new certificate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RenewRequest {
    request: String,
}

/// Founds a cluster in a data directory: an authority, this node's certificate, and a group of one.
///
/// # Errors
/// A sentence: a directory that belongs to a cluster already, or cannot be used.
pub async fn init(settings: &Settings) -> Result<Uuid, String> {
    let address = settings.peer_address()?;
    check_empty(&settings.data)?;
    let cluster = Uuid::new_v4();
    let authority = Authority::create(&settings.data, cluster).map_err(|e| e.to_string())?;
    let request = Request::new()?;
    let given = authority.sign(FIRST_NODE, &request.pem)?;
    let identity = Identity::store(&settings.data, &request, &given).map_err(|e| e.to_string())?;
    let setup = Setup::on_disk(&settings.data, FIRST_NODE, Some(Arc::new(identity)), Clock::default());
    found_in(setup.map_err(|e| e.to_string())?, cluster, &address).await?;
    Ok(cluster)
}

/// Makes an empty database that of a cluster's first node.
///
/// # Errors
/// A sentence.
pub async fn found_in(setup: Setup, cluster: Uuid, address: &str) -> Result<(), String> {
    let clock = setup.clock.clone();
    let (replica, _outputs) = Replica::open(setup).await.map_err(|e| e.to_string())?;
    replica.found(address).await.map_err(|e| e.to_string())?;
    found(&replica, &clock, cluster, address).await?;
    replica.shutdown().await;
    Ok(())
}

/// The first command of a cluster's life.
pub(crate) async fn found(replica: &Replica, clock: &Clock, cluster: Uuid, address: &str) -> Result<(), String> {
    let command = Command::Found { cluster, key_domain: Uuid::new_v4(), address: address.to_owned() };
    match replica.proposer().propose_one(None, clock.now(), command).await {
        Ok(Reply::Done | Reply::Refused(Refusal::Founded)) => Ok(()),
        Ok(other) => Err(format!("found the cluster: {other:?}")),
        Err(error) => Err(format!("found the cluster: {error}")),
    }
}

pub(crate) fn check_empty(data: &Path) -> Result<(), String> {
    if data.join("db").exists() || data.join("pki").exists() {
        return Err(format!(
            "`{}` holds a host's data already; name another directory in `data`, or start it with `tickhost serve`",
            data.display()
        ));
    }
    Ok(())
}

/// Joins a cluster: asks a node of it for a number and a certificate. The node takes part once it is started.
///
/// # Errors
/// A sentence.
pub async fn join(settings: &Settings, peer: &str, token: &JoinToken, voter: bool) -> Result<Identity, String> {
    let address = settings.peer_address()?;
    check_empty(&settings.data)?;
    let request = Request::new()?;
    let given = ask_to_join(peer, token, &request, address, voter).await?;
    Identity::store(&settings.data, &request, &given).map_err(|e| e.to_string())
}

pub(crate) async fn ask_to_join(
    peer: &str,
    token: &JoinToken,
    request: &Request,
    address: String,
    voter: bool,
) -> Result<Credentials, String> {
    let asked = JoinRequest { secret: token.secret, request: request.pem.clone(), address, voter };
    ask_with_token(peer, token, "/join", &asked).await
}

/// Makes a token. Returns it, and until when it is good.
pub(crate) async fn make_token(host: &Host, within: Duration, voter: bool, by: &str) -> Result<JoinToken, MemberError> {
    let identity = host.replica.peers().identity().ok_or(MemberError::Alone)?;
    let authority = identity.authority().map_err(|e| MemberError::Other(e.to_string()))?;
    let token = JoinToken::new(fingerprint(&authority).map_err(MemberError::Other)?);
    let expires_at = host.clock.now().plus_ms(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
    let command = Command::PutToken { digest: token.digest(), expires_at, voter, by: by.to_owned() };
    propose(host, command).await.map(|_| token)
}

/// Why a change of the cluster was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemberError {
    #[error("this host belongs to no cluster; found one with `tickhost cluster init`")]
    Alone,
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Ledger(#[from] ProposeError),
    #[error("{0}")]
    Other(String),
}

pub(crate) async fn propose(host: &Host, command: Command) -> Result<Reply, MemberError> {
    let replies = host.propose(host.clock.now(), vec![command]).await?;
    match replies.into_iter().next() {
        Some(Reply::Refused(refusal)) => Err(refusal.into()),
        Some(reply) => Ok(reply),
        None => Err(MemberError::Other("an entry without a reply".into())),
    }
}

/// Lets a node in that has a token. Any node that votes can do that; the ledger decides.
pub(crate) async fn let_in(host: &Host, asked: JoinRequest) -> Result<Credentials, String> {
    let identity = host.replica.peers().identity().ok_or("this host belongs to no cluster")?;
    // Before the token is used up.
    let authority =
        Authority::open(identity).map_err(|e| format!("this node cannot let anybody in, ask one that votes: {e}"))?;
    let token = tickhost_ledger::Digest::of(&asked.secret);
    // A guess must not cost the whole cluster a commit.
    host.replica.catch_up().await.map_err(|e| e.to_string())?;
    if !host.replica.read(|state| state.has_token(&token)) {
        return Err(Refusal::Token("unknown, or was used before".into()).to_string());
    }
    let command = Command::Admit { token, address: asked.address, voter: asked.voter };
    match host.replica.proposer().report(command, CALL_WITHIN).await {
        Ok(Reply::Admitted(node)) => {
            let (contacts, epoch) = host.replica.read(|state| {
                let others = state.nodes().filter(|(other, _)| **other != node);
                let contacts = others.map(|(n, row)| (*n, row.address.clone())).collect();
                (contacts, state.cluster().map_or(0, |cluster| cluster.epoch))
            });
            Ok(Credentials { contacts, epoch, ..authority.sign(node, &asked.request)? })
        }
        Ok(Reply::Refused(refusal)) => Err(refusal.to_string()),
        Ok(other) => Err(format!("unexpected answer {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// A node has started: it follows the log from now on, and votes if it is to. Whoever does not lead passes it on.
pub(crate) async fn arrived(host: &Host, arrival: Arrival) -> Result<(), String> {
    let leader = host.replica.leader().borrow().ok_or("there is no leader")?;
    if leader != host.replica.node() {
        return arrive(host, leader, &arrival).await;
    }
    let node = arrival.node;
    let member = || {
        let member = host.replica.read(|state| state.node(node).cloned());
        member.filter(|_| !host.is_retired(node)).ok_or_else(|| Refusal::NoNode(node).to_string())
    };
    let row = member()?;
    if row.address != arrival.address {
        let command = Command::Move { node, address: arrival.address.clone() };
        propose(host, command).await.map_err(|e| e.to_string())?;
    }
    host.replica.add_learner(node, &arrival.address).await.map_err(|e| e.to_string())?;
    let last = host.replica.status().last_index.unwrap_or_default();
    let lag = last.saturating_sub(host.replica.matched().get(&node).copied().unwrap_or_default());
    // One that lags would be waited for with every commit. It says again that it is here.
    if member()?.voter && !host.replica.voters().contains(&node) && lag <= LAG_MAX {
        host.replica.add_voter(node).await.map_err(|e| e.to_string())?;
        tracing::info!(node, "a node votes from now on");
    }
    Ok(())
}

async fn arrive(host: &Host, at: u64, arrival: &Arrival) -> Result<(), String> {
    host.replica.peers().ask(at, "/leader/arrive", arrival, CALL_WITHIN).await.map_err(|e| e.to_string())
}

/// The authority's key, for a node that votes.
pub(crate) fn authority_for(host: &Host, node: u64) -> Result<String, String> {
    if !host.replica.voters().contains(&node) {
        return Err(format!("node {node} does not vote, and the authority's key is for those that do"));
    }
    let identity = host.replica.peers().identity().ok_or("this host belongs to no cluster")?;
    identity.authority_key().map_err(|e| e.to_string())
}

/// A new certificate for a node that still has one.
pub(crate) fn renew_for(host: &Host, node: u64, asked: &RenewRequest) -> Result<Credentials, String> {
    let identity = host.replica.peers().identity().ok_or("this host belongs to no cluster")?;
    Authority::open(identity).map_err(|e| e.to_string())?.sign(node, &asked.request)
}

/// Renews this node's certificate, with the help of another node that votes where this one has no key to do it.
pub(crate) async fn renew(host: &Host) -> Result<(), String> {
    let identity = host.replica.peers().identity().ok_or("this host belongs to no cluster")?;
    let request = Request::new()?;
    let given = if identity.has_authority() {
        Authority::open(identity).map_err(|e| e.to_string())?.sign(identity.node, &request.pem)?
    } else {
        let leader = host.replica.leader().borrow().ok_or("there is no leader")?;
        let asked = RenewRequest { request: request.pem.clone() };
        let renewed = host.replica.peers().ask(leader, "/leader/renew", &asked, CALL_WITHIN).await;
        renewed.map_err(|e| e.to_string())?
    };
    identity.renew(&request, &given).map_err(|e| e.to_string())?;
    tracing::info!(until = identity.expires_at(), "this node has a new certificate");
    Ok(())
}

/// Takes this node's place in the group: says where it is, learns the authority's key where it votes, and renews its
/// certificate in time.
pub(crate) async fn take_place(host: Host, address: String) {
    let node = host.replica.node();
    let Some(identity) = host.replica.peers().identity().cloned() else { return };
    let mut tries = 0;
    loop {
        let leader = *host.replica.leader().borrow();
        let at_home = host.replica.address(node).as_deref() == Some(address.as_str());
        let is_to_vote = host.replica.read(|state| state.node(node).is_some_and(|member| member.voter));
        let votes = host.replica.voters().contains(&node);
        let mut settled = at_home && votes == is_to_vote;
        if !settled {
            let arrival = Arrival { node, address: address.clone() };
            // A node that has just joined knows of no leader; whoever it has joined does.
            let contacts = identity.contacts();
            let said = match (leader, contacts.keys().nth(tries % contacts.len().max(1))) {
                (Some(_), _) => arrived(&host, arrival).await,
                (None, Some(contact)) => arrive(&host, *contact, &arrival).await,
                (None, None) => Ok(()),
            };
            tries += 1;
            if let Err(error) = said {
                tracing::debug!(error, "take a place in the group");
            }
        }
        if votes && !identity.has_authority() {
            settled = false;
            if let Some(leader) = leader.filter(|leader| *leader != node) {
                let key: Result<String, _> =
                    host.replica.peers().ask(leader, "/leader/authority", &(), CALL_WITHIN).await;
                let kept = match key {
                    Ok(key) => identity.keep_authority_key(&key).map_err(|e| e.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                if let Err(error) = kept {
                    tracing::debug!(error, "learn the authority's key");
                }
            }
        }
        let others = host.replica.voters().into_iter().chain(host.replica.learners()).filter(|other| *other != node);
        let reached: BTreeMap<u64, String> = others.filter_map(|n| Some((n, host.replica.address(n)?))).collect();
        // Nobody sends a node that was removed anything any more, not even that.
        if host.executor.session().is_none() {
            let others = reached.keys().copied().chain(identity.contacts().into_keys()).collect();
            if own_standing(&host, &others).await.iter().any(|standing| matches!(standing, Standing::Removed)) {
                return host.fail(removed(node));
            }
        }
        if !reached.is_empty()
            && let Err(error) = identity.note_contacts(reached)
        {
            tracing::warn!(%error, "remember where the other nodes are");
        }
        if identity.is_to_be_renewed()
            && let Err(error) = renew(&host).await
        {
            tracing::error!(error, until = identity.expires_at(), "renew this node's certificate");
        }
        tokio::time::sleep(if settled { LOOK_EVERY.min(10 * TRY_EVERY) } else { TRY_EVERY }).await;
    }
}

/// What a node knows of another one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Standing {
    /// Its own state does not reach that far.
    Unknown,
    /// It was never started.
    New,
    /// It was, with that run table.
    Known(Box<Executor>),
    /// It was removed.
    Removed,
}

/// What this node knows of another one.
pub(crate) async fn standing_of(host: &Host, node: u64) -> Standing {
    // Within the time that the other one waits: what is known here already is worth saying.
    let caught_up = tokio::time::timeout(STANDING_WITHIN / 2, host.replica.catch_up()).await;
    let is_up_to_date = caught_up.is_ok_and(|caught_up| caught_up.is_ok());
    host.replica.read(|state| match state.node(node).map(|member| member.executor.clone()) {
        Some(Some(executor)) => Standing::Known(Box::new(executor)),
        // Of a state that lags, both say nothing: the node may have taken part since, or was let in.
        Some(None) if is_up_to_date => Standing::New,
        None if is_up_to_date => Standing::Removed,
        _ => Standing::Unknown,
    })
}

/// What others know of this node, as far as they answer.
async fn own_standing(host: &Host, others: &BTreeSet<u64>) -> Vec<Standing> {
    let (node, peers) = (host.replica.node(), host.replica.peers());
    let ask = |other: u64| async move { peers.ask(other, "/standing", &node, STANDING_WITHIN).await };
    let answers: Vec<Result<Standing, _>> = join_all(others.iter().copied().map(ask)).await;
    answers.into_iter().flatten().collect()
}

/// What a node is told that was removed.
pub(crate) fn removed(node: u64) -> String {
    format!(
        "node {node} was removed from the cluster; empty its data directory and let it join as a new one, with \
         `tickhost cluster join`"
    )
}

/// Before a node answers its peers, and votes with what it has: whether its disk is the one that they know.
///
/// A node without a log waits for somebody who can say that it is new. One that has a log goes on where nobody answers:
/// a cluster that was switched off as a whole has to come up again.
///
/// # Errors
/// A sentence: a disk that was wiped, exchanged, copied or set back.
pub(crate) async fn vet(host: &Host) -> Result<(), String> {
    let node = host.replica.node();
    let has_log = host.replica.has_log().await.map_err(|e| e.to_string())?;
    let store = host.executor.witness().store;
    let remembered = host.executor.sequence();
    let contacts = host.replica.peers().identity().map(|identity| identity.contacts()).unwrap_or_default();
    let others: BTreeSet<u64> = contacts.into_keys().chain(host.replica.voters()).filter(|n| *n != node).collect();
    let mut waits = false;
    loop {
        let mut is_vouched_for = false;
        for standing in own_standing(host, &others).await {
            match standing {
                Standing::Unknown => {}
                Standing::Removed => return Err(removed(node)),
                Standing::New => is_vouched_for = true,
                Standing::Known(known) => {
                    check_table(node, &known, store, remembered).map_err(|refusal| refusal.to_string())?;
                    if !has_log {
                        return Err(format!("node {node} has taken part before, and its log is gone; {WIPED}"));
                    }
                    is_vouched_for = true;
                }
            }
        }
        if has_log || is_vouched_for {
            return Ok(());
        }
        if others.is_empty() {
            return Err(format!("node {node} founded its cluster, and its log is gone; {WIPED}"));
        }
        if !std::mem::replace(&mut waits, true) {
            tracing::info!(?others, "this node has no log: it waits for one that knows whether it is new");
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

/// Gives a node no new runs, or gives it some again.
pub(crate) async fn drain(host: &Host, node: u64, draining: bool, by: &str) -> Result<(), MemberError> {
    propose(host, Command::Drain { node, draining, by: by.to_owned() }).await.map(|_| ())
}

/// Lets a node go: its runs end first, if they do within a minute; what remains of them is lost.
pub(crate) async fn remove(host: &Host, node: u64, by: &str) -> Result<(), MemberError> {
    if node == host.replica.node() {
        return Err(MemberError::Other(format!(
            "node {node} leads; hand leadership over with `tickhost cluster transfer` first"
        )));
    }
    let voters = host.replica.voters();
    if voters.len() == 1 && voters.contains(&node) {
        return Err(MemberError::Other(format!("node {node} is the only one that votes")));
    }
    match drain(host, node, true, by).await {
        // It was removed from the ledger, and came back into the group meanwhile.
        Err(MemberError::Refused(Refusal::NoNode(_))) if host.replica.address(node).is_some() => {
            return host.replica.remove(node).await.map_err(Into::into);
        }
        drained => drained?,
    }
    let drained = tokio::time::timeout(DRAIN_MAX, async {
        while host.replica.read(|state| state.reserved(node).0 > 0) {
            tokio::time::sleep(TRY_EVERY).await;
        }
    });
    if drained.await.is_err() {
        tracing::warn!(node, "a node is removed with runs alive; they are lost");
    }
    // From here on it is not let in again.
    host.retire(node);
    host.replica.remove(node).await?;
    if let Some(session) = host.replica.read(|state| state.session(node)) {
        // It may still run what it has, for as long as its session can hold; that is waited for.
        host.until_lapsed(node).await;
        let evidence = format!("node {node} was removed by {by}");
        match propose(host, Command::Lapse { node, session, evidence }).await {
            Ok(_) | Err(MemberError::Refused(Refusal::Stale { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    propose(host, Command::Remove { node, by: by.to_owned() }).await?;
    // Whatever was under way when it was retired.
    if host.replica.address(node).is_some() {
        host.replica.remove(node).await?;
    }
    Ok(())
}
