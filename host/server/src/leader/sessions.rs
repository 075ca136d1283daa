//! The leases between the leader and every executor.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tickhost_executor::order::{Floor, LAPSED_MS};
use tickhost_ledger::{Command, Digest, Refusal, Reply, Stamp, clock::AHEAD_MS_MAX, conductor};
use tickhost_replica::fault;
use uuid::Uuid;

use super::{Reign, Said, Seat, resolve};
use crate::{cluster::removed, host::Host};

/// How often the leader looks for sessions that have lapsed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What an executor asks every second.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// Its node.
    pub(crate) node: u64,
    /// The session that it has from this leader; `None` to open one.
    pub(crate) session: Option<Uuid>,
    /// Its durable table.
    pub(crate) store: Uuid,
    /// Counts the sessions that were asked for with it.
    pub(crate) sequence: u64,
    /// What its wall clock shows.
    pub(crate) wall: Stamp,
    /// It takes new runs.
    pub(crate) accepts: bool,
    /// Why it takes nothing more to its disk, if it does not.
    pub(crate) full: Option<String>,
    /// Why its memory takes no new runs, for people, if it does not; `accepts` says the same.
    #[serde(default)]
    pub(crate) tight: Option<String>,
    /// Bytes that are free there.
    pub(crate) disk_free: u64,
    /// How far its state is.
    pub(crate) applied_index: u64,
    /// Runs at a time.
    pub(crate) runs_max: u32,
    /// Bytes of guest memory at a time.
    pub(crate) memory_bytes_max: u64,
    /// The version of its tz database.
    pub(crate) tz: String,
    /// Its own version.
    pub(crate) version: String,
    /// The newest commands that it knows.
    pub(crate) format: u32,
    /// The components that it has compiled; `None` where they are as they were.
    pub(crate) warm: Option<BTreeSet<Digest>>,
}

/// What the leader answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Granted {
    /// The session holds from the moment of the question.
    Session {
        /// Who grants it.
        leader: Floor,
        /// The session.
        session: Uuid,
        /// The median of the voters' clocks, where it is known.
        median: Option<Stamp>,
    },
    /// The leader does not know that session; ask for one.
    Unknown,
    /// Who is asked does not lead, or not any more.
    NotLeader,
    /// The executor is not the one that the cluster knows; it must not go on.
    Refused(String),
}

impl Host {
    /// Answers an executor's question.
    pub(crate) async fn grant(&self, ask: Ask) -> Granted {
        let asked_ms = self.clock.since_boot_ms();
        let Some(reign) = self.reign() else { return Granted::NotLeader };
        if reign.retired().contains(&ask.node) {
            return Granted::Refused(removed(ask.node));
        }
        reign.clocks().note(ask.node, ask.wall, asked_ms);
        let median = self.median().filter(|_| self.replica.voters().len() > 1);
        self.clock.limit(median.map(|median| median.plus_ms(AHEAD_MS_MAX as u64)));
        let Some(session) = ask.session else { return self.open_session(&reign, ask, asked_ms).await };
        let is_known = reign.session(ask.node) == Some(session);
        if !is_known || self.replica.read(|state| state.session(ask.node)) != Some(session) {
            return Granted::Unknown;
        }
        // A majority confirms after the question has arrived: nobody else has been elected until now.
        let confirmed = self.replica.confirm().await.is_ok();
        if !confirmed || !self.is_under(&reign) {
            return Granted::NotLeader;
        }
        let mut seats = reign.seats();
        let Some(seat) = seats.get_mut(&ask.node).filter(|seat| seat.session == session) else {
            return Granted::Unknown;
        };
        seat.heard_ms = seat.heard_ms.max(asked_ms);
        seat.accepts = ask.accepts;
        seat.said = said(&ask);
        if std::mem::take(&mut seat.is_unreachable) {
            self.wake.notify_one();
        }
        if let Some(warm) = ask.warm {
            seat.warm = warm.into();
        }
        Granted::Session { leader: reign.floor, session, median: self.median() }
    }

    /// Lets a node go: it gets no place in the group and no session any more.
    pub(crate) fn retire(&self, node: u64) {
        if let Some(reign) = self.reign() {
            reign.retired().insert(node);
        }
    }

    /// Whether a node is being removed.
    pub(crate) fn is_retired(&self, node: u64) -> bool {
        self.reign().is_some_and(|reign| reign.retired().contains(&node))
    }

    /// Returns once the session of a node that was let go has certainly lapsed, or has nothing to lose.
    pub(crate) async fn until_lapsed(&self, node: u64) {
        let Some(reign) = self.reign() else { return };
        let heard_ms = reign.seats().get(&node).map_or(reign.began_ms, |seat| seat.heard_ms);
        let has_runs = || self.replica.read(|state| state.reserved(node).0 > 0);
        while has_runs() && self.clock.since_boot_ms() - heard_ms <= LAPSED_MS {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        reign.seats().remove(&node);
    }

    async fn open_session(&self, reign: &Arc<Reign>, ask: Ask, asked_ms: i64) -> Granted {
        let session = Uuid::new_v4();
        let node = ask.node;
        let command = Command::OpenSession {
            node,
            store: ask.store,
            sequence: ask.sequence,
            session,
            runs_max: ask.runs_max,
            memory_bytes_max: ask.memory_bytes_max,
            tz: ask.tz.clone(),
            version: ask.version.clone(),
            format: ask.format,
        };
        // Before the ledger has it: whoever looks for silent executors must not find this one without a seat.
        let seat = Seat {
            session,
            orders: 0,
            heard_ms: asked_ms,
            accepts: ask.accepts,
            said: said(&ask),
            is_unreachable: false,
            warm: ask.warm.unwrap_or_default().into(),
        };
        let before = reign.seats().insert(node, seat);
        let opened = self.replica.proposer().propose_one(Some(reign.term()), self.clock.now(), command).await;
        if opened != Ok(Reply::Done) {
            let mut seats = reign.seats();
            if seats.get(&node).is_some_and(|seat| seat.session == session) {
                // The one before still holds: a stranger that is refused takes nothing from it.
                match before {
                    Some(before) => seats.insert(node, before),
                    None => seats.remove(&node),
                };
            }
        }
        match opened {
            Ok(Reply::Done) => {}
            Ok(Reply::Refused(refusal @ (Refusal::Executor { .. } | Refusal::NoNode(_)))) => {
                return Granted::Refused(refusal.to_string());
            }
            Ok(other) => return Granted::Refused(format!("unexpected answer {other:?}")),
            Err(_) => return Granted::NotLeader,
        }
        tracing::info!(node, %session, "an executor has a session");
        let (host, reign) = (self.clone(), reign.clone());
        let leader = reign.floor;
        tokio::spawn(async move {
            let runs = host.replica.read(|state| conductor::unresolved(state, node));
            if !fault::planted("resolve-nothing") {
                resolve::resolve(&host, &reign, node, runs).await;
            }
            // What waited for a place may have one now.
            host.wake.notify_one();
        });
        self.wake.notify_one();
        Granted::Session { leader, session, median: self.median() }
    }
}

/// Ends the sessions of executors that were not heard of for so long that they have certainly stopped their guests:
/// since their last question, or since this node was elected where it never heard of them.
pub(super) async fn watch(host: &Host, reign: &Arc<Reign>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        give_way(host).await;
        let now_ms = host.clock.since_boot_ms();
        let sessions: Vec<(u64, Uuid)> = host
            .replica
            .read(|state| state.nodes().filter_map(|(node, _)| Some((*node, state.session(*node)?))).collect());
        for (node, session) in sessions {
            let Some(silent_ms) = take_lapsed(reign, node, now_ms) else { continue };
            let evidence = format!(
                "node {node} was not heard of for {:.1} s; its session has lapsed, and it has stopped what it ran",
                silent_ms as f64 / 1_000.0
            );
            tracing::warn!(node, %session, evidence, "a session has lapsed");
            let command = Command::Lapse { node, session, evidence };
            match host.replica.proposer().propose_one(Some(reign.term()), host.clock.now(), command).await {
                Ok(_) => host.wake.notify_one(),
                Err(error) => tracing::warn!(node, %error, "end a session"),
            }
        }
    }
}

/// A leader decides nothing in the future of its own clock; one whose clock is behind would be silent for as long as that
/// lasts, and lets somebody else lead.
async fn give_way(host: &Host) {
    let behind_ms = host.median().map_or(0, |median| median.0 - host.clock.wall().0);
    if behind_ms <= AHEAD_MS_MAX || host.replica.voters().len() < 2 {
        return;
    }
    tracing::error!(behind_ms, "this node's clock is behind the others': it hands leadership over");
    if let Err(error) = host.replica.hand_over(None).await {
        tracing::warn!(%error, "hand leadership over");
    }
}

/// Takes the seat of an executor whose session has lapsed, so that it is not extended any more. Returns for how long it
/// was silent.
fn take_lapsed(reign: &Reign, node: u64, now_ms: i64) -> Option<i64> {
    let mut seats = reign.seats();
    let silent_ms = now_ms - seats.get(&node).map_or(reign.began_ms, |seat| seat.heard_ms);
    let after_ms = match () {
        () if fault::planted("lapse-early") => LAPSED_MS / 3,
        () if fault::planted("never-lapse") => i64::MAX,
        () => LAPSED_MS,
    };
    (silent_ms > after_ms).then(|| {
        seats.remove(&node);
        silent_ms
    })
}

fn said(ask: &Ask) -> Said {
    Said {
        full: ask.full.clone(),
        tight: ask.tight.clone(),
        disk_free: ask.disk_free,
        applied_index: ask.applied_index,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{host::Settings, member::question};

    /// Whoever is refused takes nothing from the one whose place it wanted.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_run_table_that_the_cluster_does_not_know_takes_no_seat() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::start(Settings { open: true, ..Settings::in_dir(dir.path().to_owned()) }).await.unwrap();
        let session = host.executor.session();
        let sequence = host.executor.next_sequence().await.unwrap();
        let stranger = Ask { store: Uuid::from_u128(1), ..question(&host, None, sequence, None) };
        let refused = host.grant(stranger).await;
        assert!(matches!(&refused, Granted::Refused(why) if why.contains("node 1")), "{refused:?}");
        let own = host.grant(question(&host, session, sequence, None)).await;
        assert!(matches!(own, Granted::Session { session: same, .. } if Some(same) == session), "{own:?}");
        host.stop().await;
    }
}
