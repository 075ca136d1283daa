//! Proposing: whatever waits goes into one entry. Who does not lead sends it to the leader.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use axum::{Extension, Router, body::Bytes, extract::State as Extract, response::Response, routing::post};
use futures::future::join_all;
use openraft::{
    errors::{ClientWriteError, Fatal},
    impls::ProgressResponder,
    raft::ClientWriteResult,
};
use serde::{Deserialize, Serialize};
use tickhost_ledger::{Command, Entry, Reply, Stamp, State, command::Stamped};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use crate::{
    clock::Clock,
    fault,
    listen::Caller,
    network::answer,
    peers::Peers,
    raft::{Request, Types},
    replica::{Freshness, LedgerRaft, Replica},
};

/// Commands in one entry: beyond it the rest rides in the next.
const COMMANDS_MAX: usize = 4_096;
/// Bytes of what guests write, in one entry: all nodes have to have it on their disks within the time of an append.
const BYTES_MAX: usize = 1 << 20;
/// What every release knows.
const EVERY_FORMAT: u32 = 1;
/// Proposals that wait: beyond it proposers wait, so that memory stays bounded.
const PROPOSALS_MAX: usize = 65_536;
/// A call to the leader that commits: as long as an election and a slow disk may take.
const CALL_WITHIN: Duration = Duration::from_secs(5);
/// After a try that failed at once, so that nobody spins.
const PAUSE: Duration = Duration::from_millis(20);

/// A proposal that was not answered with replies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ProposeError {
    /// It was not appended; somebody else may lead.
    #[error("this node does not lead{}", match .leader { Some(id) => format!("; node {id} does"), None => "; there is no leader".into() })]
    NotLeader {
        /// Who leads, if anyone is known to.
        leader: Option<u64>,
    },
    /// Leadership ended before it was committed: it may yet be.
    #[error("leadership ended before the proposal was committed; it may or may not take effect")]
    Unknown,
    /// The group cannot do that now.
    #[error("{0}")]
    Refused(String),
    /// The leader cannot be asked.
    #[error("the leader cannot be asked: {0}")]
    Unreachable(String),
    /// The node is stopping.
    #[error("the node has stopped: {0}")]
    Stopped(String),
}

struct Proposal {
    /// The term that it was made for, if it is good for one only.
    term: Option<u64>,
    commands: Vec<Stamped>,
    replies: oneshot::Sender<Result<Vec<Reply>, ProposeError>>,
}

struct Report {
    commands: Vec<Command>,
    replies: oneshot::Sender<Result<Vec<Reply>, ProposeError>>,
}

/// Puts commands into the log. Clones share it.
#[derive(Clone)]
pub struct Proposer {
    proposals: mpsc::Sender<Proposal>,
    reports: mpsc::Sender<Report>,
    leader: watch::Receiver<Option<u64>>,
    peers: Peers,
    node: u64,
    state: Arc<RwLock<State>>,
    clock: Clock,
}

impl Proposer {
    pub(crate) fn start(
        raft: LedgerRaft,
        node: u64,
        peers: Peers,
        leader: watch::Receiver<Option<u64>>,
        state: Arc<RwLock<State>>,
        clock: Clock,
    ) -> Self {
        let (proposals, queue) = mpsc::channel(PROPOSALS_MAX);
        tokio::spawn(propose_all(raft, queue));
        let (reports, report_queue) = mpsc::channel(PROPOSALS_MAX);
        tokio::spawn(report_all(peers.clone(), node, leader.clone(), report_queue));
        Self { proposals, reports, leader, peers, node, state, clock }
    }

    /// Proposes commands that apply together, in order, and returns their replies once committed and applied. Where a
    /// term is named, only if this node leads in that very one.
    ///
    /// # Errors
    /// Where this node does not lead, or stops.
    pub async fn propose(
        &self,
        term: Option<u64>,
        at: Stamp,
        commands: Vec<Command>,
    ) -> Result<Vec<Reply>, ProposeError> {
        self.check_format(&commands)?;
        let commands = commands.into_iter().map(|command| Stamped { at, command }).collect();
        let (replies, answer) = oneshot::channel();
        let stopped = || ProposeError::Stopped("it takes no more proposals".into());
        self.proposals.send(Proposal { term, commands, replies }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// A node that does not know a command would have to stop at it.
    fn check_format(&self, commands: &[Command]) -> Result<(), ProposeError> {
        let needed = commands.iter().map(Command::format).max().unwrap_or_default();
        if needed <= EVERY_FORMAT {
            return Ok(());
        }
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let older: Vec<String> = state
            .below(needed)
            .map(|(node, executor)| format!("node {node} runs version {}", executor.version))
            .collect();
        if older.is_empty() {
            return Ok(());
        }
        let older = older.join(", ");
        Err(ProposeError::Refused(format!("{older}, which does not know that command yet; upgrade every node first")))
    }

    /// Proposes one command.
    ///
    /// # Errors
    /// As [`Proposer::propose`].
    pub async fn propose_one(&self, term: Option<u64>, at: Stamp, command: Command) -> Result<Reply, ProposeError> {
        one(self.propose(term, at, vec![command]).await?)
    }

    /// Has the leader propose a command, whoever that is, with the leader's stamp. Tries again until it is committed
    /// or the time is over: only for commands that change nothing the second time.
    ///
    /// # Errors
    /// The last try's.
    pub async fn report(&self, command: Command, within: Duration) -> Result<Reply, ProposeError> {
        let until = Instant::now() + within;
        let mut leader = self.leader.clone();
        loop {
            let leads = *leader.borrow_and_update();
            let error = match self.report_once(leads, command.clone()).await {
                Err(error) => error,
                Ok(replies) => return one(replies),
            };
            if Instant::now() >= until {
                return Err(error);
            }
            if leads.is_none() {
                // Whoever is elected wakes everybody who waits.
                let _ = tokio::time::timeout_at(until, leader.changed()).await;
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn report_once(&self, leader: Option<u64>, command: Command) -> Result<Vec<Reply>, ProposeError> {
        match leader {
            None => Err(ProposeError::NotLeader { leader: None }),
            Some(leader) if leader == self.node => self.propose(None, self.clock.now(), vec![command]).await,
            Some(_) => {
                let (replies, answer) = oneshot::channel();
                let stopped = || ProposeError::Stopped("it takes no more reports".into());
                self.reports.send(Report { commands: vec![command], replies }).await.map_err(|_| stopped())?;
                answer.await.map_err(|_| stopped())?
            }
        }
    }

    pub(crate) async fn read_index(&self, leader: u64, freshness: Freshness) -> Result<u64, ProposeError> {
        // What is usual goes unsaid, as it did when nothing else could be asked for.
        let unusual = (freshness != Freshness::Lease).then_some(freshness);
        let asked = self.peers.ask(leader, "/ledger/read-index", &unusual, CALL_WITHIN).await;
        asked.map_err(|e| ProposeError::Unreachable(e.to_string()))?
    }
}

fn one(mut replies: Vec<Reply>) -> Result<Reply, ProposeError> {
    replies.pop().ok_or_else(|| ProposeError::Stopped("an entry without a reply".into()))
}

pub(crate) fn routes(replica: Replica) -> Router {
    Router::new()
        .route("/ledger/report", post(take_reports))
        .route("/ledger/read-index", post(take_read_index))
        .with_state(replica)
}

async fn take_reports(
    Extract(replica): Extract<Replica>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    answer(&body, async |reports: Vec<Vec<Command>>| {
        let proposer = replica.proposer();
        let at = proposer.clock.now();
        let proposed = reports.into_iter().map(async |commands| {
            match commands.iter().find(|command| !may_report(&replica, caller, command)) {
                None => proposer.propose(None, at, commands).await,
                Some(command) => Err(ProposeError::Refused(format!(
                    "{caller} may report of its own runs, and of nothing else; this is `{}`",
                    command.name()
                ))),
            }
        });
        Ok::<_, String>(join_all(proposed).await)
    })
    .await
}

/// A node speaks for its own runs. One that votes may also let others in.
fn may_report(replica: &Replica, Caller(caller): Caller, command: &Command) -> bool {
    let Some(caller) = caller else { return false };
    match command {
        Command::Start { run, .. }
        | Command::End { run, .. }
        | Command::IntendEffect { run, .. }
        | Command::WriteKv { run, .. } => {
            // What is not alive is refused when it is applied.
            replica.read(|state| {
                let attempt = state.launch(&run.launch).and_then(|launch| launch.live());
                attempt.is_none_or(|attempt| attempt.node == caller)
            })
        }
        Command::Admit { .. } => replica.is_voter(caller),
        _ => false,
    }
}

async fn take_read_index(Extract(replica): Extract<Replica>, body: Bytes) -> Response {
    answer(&body, async |freshness: Option<Freshness>| {
        Ok::<_, String>(replica.read_index(freshness.unwrap_or(Freshness::Lease)).await)
    })
    .await
}

/// Sends whatever waits to the leader in one call, one call at a time: while one is on its way the next one fills.
async fn report_all(peers: Peers, node: u64, leader: watch::Receiver<Option<u64>>, mut queue: mpsc::Receiver<Report>) {
    let mut waiting = Vec::new();
    while queue.recv_many(&mut waiting, COMMANDS_MAX).await > 0 {
        let reports = std::mem::take(&mut waiting);
        let answers = match *leader.borrow() {
            Some(leader) if leader != node => Ok(leader),
            leader => Err(ProposeError::NotLeader { leader }),
        };
        let (commands, senders): (Vec<_>, Vec<_>) = reports.into_iter().map(|r| (r.commands, r.replies)).unzip();
        let answers: Result<Vec<Result<Vec<Reply>, ProposeError>>, ProposeError> = match answers {
            Ok(leader) => peers
                .ask(leader, "/ledger/report", &commands, CALL_WITHIN)
                .await
                // Whether it arrived does not matter: what is reported may be reported again.
                .map_err(|error| ProposeError::Unreachable(error.to_string())),
            Err(error) => Err(error),
        };
        match answers {
            Ok(answers) => {
                for (sender, answer) in senders.into_iter().zip(answers) {
                    let _ = sender.send(answer);
                }
            }
            Err(error) => {
                for sender in senders {
                    let _ = sender.send(Err(error.clone()));
                }
            }
        }
    }
}

/// Puts whatever waits into one entry, one entry at a time: while one is being synced the next one fills.
async fn propose_all(raft: LedgerRaft, mut queue: mpsc::Receiver<Proposal>) {
    let mut waiting = Vec::new();
    while queue.recv_many(&mut waiting, COMMANDS_MAX).await > 0 {
        let mut rest = std::mem::take(&mut waiting);
        while !rest.is_empty() {
            let batch = take_batch(&mut rest);
            propose_batch(&raft, batch).await;
        }
    }
}

fn take_batch(waiting: &mut Vec<Proposal>) -> Vec<Proposal> {
    let (mut commands, mut bytes) = (0, 0);
    let fits = waiting
        .iter()
        .take_while(|proposal| {
            commands += proposal.commands.len();
            bytes += proposal.commands.iter().map(|stamped| stamped.command.payload_bytes()).sum::<usize>();
            commands <= COMMANDS_MAX && bytes <= BYTES_MAX
        })
        .count();
    waiting.drain(..fits.max(1)).collect()
}

async fn propose_batch(raft: &LedgerRaft, batch: Vec<Proposal>) {
    let leads = match raft.as_leader() {
        Ok(leader) => Ok(leader.term()),
        Err(forward) => Err(ProposeError::NotLeader { leader: forward.leader_id }),
    };
    let mut waiting = Vec::with_capacity(batch.len());
    let mut commands = Vec::new();
    for proposal in batch {
        let is_of_another = proposal.term.is_some_and(|term| leads.as_ref() != Ok(&term));
        if let Err(error) = &leads {
            let _ = proposal.replies.send(Err(error.clone()));
        } else if is_of_another {
            let _ = proposal.replies.send(Err(ProposeError::NotLeader { leader: None }));
        } else {
            waiting.push((proposal.commands.len(), proposal.replies));
            commands.extend(proposal.commands);
        }
    }
    let Some(term) = leads.ok().filter(|_| !waiting.is_empty()) else { return };
    let intends = commands.iter().any(|c| matches!(c.command, Command::Intend { .. }));
    if intends {
        fault::point("intent-proposed");
    }
    let outcome = write(raft, term, Entry { commands }).await;
    if intends {
        fault::point("intent-committed");
    }
    match outcome {
        Ok(replies) => {
            let mut replies = replies.into_iter();
            for (count, sender) in waiting {
                let _ = sender.send(Ok(replies.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            for (_, sender) in waiting {
                let _ = sender.send(Err(error.clone()));
            }
        }
    }
}

/// Writes on condition that this node still leads in that term when it is appended.
async fn write(raft: &LedgerRaft, term: u64, entry: Entry) -> Result<Vec<Reply>, ProposeError> {
    let stopped = |fatal: Fatal<Types>| ProposeError::Stopped(fatal.to_string());
    let (responder, answer) = ProgressResponder::<Types, ClientWriteResult<Types>>::complete_only();
    raft.write(Request(Arc::new(entry))).responder(responder).with_leader(term).await.map_err(stopped)?;
    match answer.await {
        Ok(Ok(response)) => Ok(response.data.0),
        Ok(Err(ClientWriteError::LogEntryDiscarded(_))) => Err(ProposeError::Unknown),
        Ok(Err(ClientWriteError::ForwardToLeader(forward))) => {
            Err(ProposeError::NotLeader { leader: forward.leader_id })
        }
        Ok(Err(other)) => Err(ProposeError::Stopped(other.to_string())),
        Err(_) => Err(ProposeError::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickhost_ledger::{Grant, JobName, LaunchId, RunId, TickAt, command::KvChange, effect::ByteBuf};

    #[test]
    fn an_entry_is_bounded_in_bytes_and_takes_at_least_one() {
        let job = JobName { namespace: "t".into(), name: "job".into() };
        let run = RunId { launch: LaunchId { job, tick: TickAt(1), rerun: None }, attempt: 1 };
        let write = |bytes: usize| {
            let change = KvChange::Set(ByteBuf(vec![0; bytes]));
            let (grant, key) = (Grant { epoch: 1, index: 1 }, uuid::Uuid::nil());
            let command =
                Command::WriteKv { run: run.clone(), grant, key, name: "n".into(), change, results: Vec::new() };
            Proposal { term: None, commands: vec![Stamped { at: Stamp(1), command }], replies: oneshot::channel().0 }
        };
        let mut waiting: Vec<Proposal> = (0..10).map(|_| write(BYTES_MAX / 4)).collect();
        waiting.push(write(2 * BYTES_MAX));
        let mut taken = Vec::new();
        while !waiting.is_empty() {
            taken.push(take_batch(&mut waiting).len());
        }
        assert_eq!(taken, [4, 4, 2, 1]);
    }
}
