//! Leading: what one node does for all of them, for as long as its term lasts.
//!
//! A [`Reign`] begins when the first entry of the node's own term is applied, and nothing of it outlives the term. What
//! earlier terms left open is not taken over but asked for, by name (`resolve`).

mod conduct;
mod dispatch;
mod resolve;
mod sessions;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tickhost_executor::order::Floor;
use tickhost_ledger::{
    Command, Digest, Refusal, Reply, Stamp,
    clock::VoterClocks,
    command::FORMAT,
    conductor::{self, Facts},
};
use tickhost_replica::{Clock, ProposeError, fault};
use uuid::Uuid;

pub(crate) use self::{
    dispatch::act,
    sessions::{Ask, Granted},
};
use crate::host::{Host, VERSION};

/// An executor that was not heard of for this long gets no runs: three of its questions are missing.
const PRESENT_MS: i64 = 3_000;
/// Jobs in one entry. Arbitrary: some hundred bytes each.
const NAMED_AT_ONCE: usize = 1_000;
/// How often it is asked whether the last older node is gone.
const LEVEL_EVERY: Duration = Duration::from_millis(500);
/// After a try that failed, so that a fault does not spin.
const PAUSE: Duration = Duration::from_millis(50);

/// One term of leading.
pub(crate) struct Reign {
    /// Who leads, as executors compare it.
    pub(crate) floor: Floor,
    began_ms: i64,
    clock: Clock,
    seats: Mutex<BTreeMap<u64, Seat>>,
    clocks: Mutex<VoterClocks>,
    /// Nodes that are being removed: their sessions are not extended.
    retired: Mutex<BTreeSet<u64>>,
}

/// An executor as its leader knows it beside the ledger.
struct Seat {
    session: Uuid,
    /// Orders that were sent in it.
    orders: u64,
    /// When its last question that was answered had arrived, in milliseconds since boot.
    heard_ms: i64,
    /// It takes new runs.
    accepts: bool,
    said: Said,
    /// It could not be reached since.
    is_unreachable: bool,
    warm: Arc<BTreeSet<Digest>>,
}

/// What a node said of itself, for people and for what is held because of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    /// Why it takes nothing more to its disk, if it does not.
    pub(crate) full: Option<String>,
    /// Why its memory takes no new runs, if it does not.
    pub(crate) tight: Option<String>,
    /// Bytes that are free there.
    pub(crate) disk_free: u64,
    /// How far its state is.
    pub(crate) applied_index: u64,
}

impl Reign {
    fn new(floor: Floor, clock: Clock) -> Self {
        Self {
            floor,
            began_ms: clock.since_boot_ms(),
            clock,
            seats: Mutex::default(),
            clocks: Mutex::default(),
            retired: Mutex::default(),
        }
    }

    pub(crate) fn term(&self) -> u64 {
        self.floor.term
    }

    fn seats(&self) -> MutexGuard<'_, BTreeMap<u64, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clocks(&self) -> MutexGuard<'_, VoterClocks> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retired(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What placement goes by.
    fn facts(&self, leader: u64) -> Facts {
        let since = self.clock.since_boot_ms() - PRESENT_MS;
        let is_present =
            |seat: &Seat| seat.accepts && !seat.is_unreachable && seat.heard_ms >= since && seat.said.full.is_none();
        let seats = self.seats();
        let present = seats.iter().filter(|(_, seat)| is_present(seat));
        Facts { present: present.map(|(node, seat)| (*node, seat.warm.clone())).collect(), leader }
    }

    fn session(&self, node: u64) -> Option<Uuid> {
        self.seats().get(&node).map(|seat| seat.session)
    }

    /// The session of an executor, and the number of the next order in it.
    fn next_order(&self, node: u64) -> Option<(Uuid, u64)> {
        let mut seats = self.seats();
        let seat = seats.get_mut(&node)?;
        seat.orders += 1;
        Some((seat.session, seat.orders))
    }

    fn is_unreachable(&self, node: u64) {
        if let Some(seat) = self.seats().get_mut(&node) {
            seat.is_unreachable = true;
        }
    }

    /// Milliseconds since an executor was heard of, what it said then, and of how many components it has the code.
    pub(crate) fn heard(&self, node: u64) -> Option<(i64, Said, usize)> {
        let seats = self.seats();
        let seat = seats.get(&node)?;
        Some((self.clock.since_boot_ms() - seat.heard_ms, seat.said.clone(), seat.warm.len()))
    }

    /// A node that votes and has no room for more of the log: the whole group would have to wait for it.
    fn full(&self, voters: &BTreeSet<u64>) -> Option<String> {
        let seats = self.seats();
        let mut full = seats.iter().filter(|(node, _)| voters.contains(node));
        full.find_map(|(node, seat)| Some(format!("node {node}: {}", seat.said.full.as_ref()?)))
    }

    /// How far a node's clock is ahead of this one's.
    pub(crate) fn ahead_ms(&self, node: u64) -> Option<i64> {
        self.clocks().ahead_ms(node, self.clock.wall(), self.clock.since_boot_ms())
    }
}

/// Begins a reign whenever this node comes to lead, and ends it with its term.
pub(crate) async fn follow(host: Host) {
    let mut leading = host.replica.leading();
    loop {
        let term = *leading.borrow_and_update();
        let epoch = host.replica.read(|state| state.cluster().map_or(1, |cluster| cluster.epoch));
        let reign = term.map(|term| Arc::new(Reign::new(Floor { epoch, term }, host.clock.clone())));
        host.reign.send_replace(reign.clone());
        // Whoever does not lead is not told; whoever begins to, will be.
        host.clock.limit(None);
        match reign {
            None => {
                if leading.changed().await.is_err() {
                    return;
                }
            }
            Some(reign) => {
                tracing::info!(term = reign.term(), "this node leads");
                tokio::select! {
                    () = rule(&host, &reign) => {}
                    ended = leading.changed() => if ended.is_err() { return },
                }
                tracing::info!(term = reign.term(), "this node leads no more");
            }
        }
    }
}

async fn rule(host: &Host, reign: &Arc<Reign>) {
    let conduct = async {
        // After a restore executors are let in, and nothing else is done.
        while host.replica.read(|state| state.hold().is_some()) {
            tokio::time::sleep(PAUSE).await;
        }
        while let Err(error) = name_ticks(host, reign).await {
            tracing::warn!(%error, "name the next ticks");
            tokio::time::sleep(PAUSE).await;
        }
        conduct::conduct(host, reign).await;
    };
    tokio::join!(conduct, sessions::watch(host, reign), raise_level(host, reign));
}

/// Has the ledger use what every node knows, as soon as every node does.
async fn raise_level(host: &Host, reign: &Reign) {
    loop {
        let (level, older) =
            host.replica.read(|state| (state.level(), state.below(FORMAT).next().map(|(node, _)| node)));
        if level >= FORMAT {
            return;
        }
        if older.is_none() {
            match propose_done(host, reign, host.clock.now(), Command::Level { format: FORMAT }).await {
                Ok(()) => {
                    tracing::info!(level = FORMAT, "every node knows these commands; older versions may join no more");
                }
                Err(error) => tracing::warn!(%error, "raise the ledger's level"),
            }
        }
        tokio::time::sleep(LEVEL_EVERY).await;
    }
}

/// What another release of this program or of the tz database has named otherwise than this node's.
async fn name_ticks(host: &Host, reign: &Reign) -> Result<(), ProposeError> {
    let names = format!("tz {}, tickhost {VERSION}", tickhost_schedule::TZ_VERSION);
    let known = host.replica.read(|state| state.cluster().map(|cluster| cluster.names.clone()));
    if known.is_none_or(|known| known == names) {
        return Ok(());
    }
    let moved = host.replica.read(conductor::retime);
    if !moved.is_empty() {
        tracing::info!(jobs = moved.len(), %names, "next ticks move with this release");
    }
    let now = host.clock.now();
    propose_all(host, reign, now, &moved).await?;
    propose_done(host, reign, now, Command::Named { by: names }).await
}

/// Gives jobs back the ticks that a clock has used up which was ahead, and their launches the retries that it put off.
async fn rewind(host: &Host, reign: &Reign, at: Stamp) -> Result<(), ProposeError> {
    let (rewound, hastened) = host.replica.read(|state| (conductor::rewind(state, at), conductor::hasten(state, at)));
    let (jobs, retries) = (rewound.len(), hastened.len());
    tracing::warn!(jobs, retries, %at, "the ledger was written by a clock that was ahead: ticks are open again");
    propose_all(host, reign, at, &rewound).await?;
    match propose_all(host, reign, at, &hastened).await {
        // In the midst of an upgrade: retries that come late are better than nothing that comes at all.
        Err(ProposeError::Refused(why)) => tracing::warn!(why, "retries stay put off"),
        done => done?,
    }
    propose_done(host, reign, at, Command::Rewound).await
}

/// Proposes what is to be done to many jobs or launches, some at a time.
async fn propose_all(host: &Host, reign: &Reign, at: Stamp, commands: &[Command]) -> Result<(), ProposeError> {
    let proposer = host.replica.proposer();
    for commands in commands.chunks(NAMED_AT_ONCE) {
        for reply in proposer.propose(Some(reign.term()), at, commands.to_vec()).await? {
            // A job that has changed in between has a next tick that was computed just now.
            let is_done = matches!(reply, Reply::Done | Reply::Unchanged);
            let is_gone =
                matches!(reply, Reply::Refused(Refusal::Stale { .. } | Refusal::NoJob(_) | Refusal::NoLaunch(_)));
            if !is_done && !is_gone {
                tracing::error!(?reply, "a time was not moved");
            }
        }
    }
    Ok(())
}

/// Says that all of it is done. What was done in part before that is done again.
async fn propose_done(host: &Host, reign: &Reign, at: Stamp, done: Command) -> Result<(), ProposeError> {
    host.replica.proposer().propose_one(Some(reign.term()), at, done).await.map(|_| ())
}

impl Host {
    /// This node's reign, while it leads.
    pub(crate) fn reign(&self) -> Option<Arc<Reign>> {
        self.reign.borrow().clone()
    }

    /// Whether that reign lasts.
    pub(crate) fn is_under(&self, reign: &Arc<Reign>) -> bool {
        self.reign().is_some_and(|now| Arc::ptr_eq(&now, reign))
    }

    /// Proposes as the leader of this moment.
    pub(crate) async fn propose(&self, at: Stamp, commands: Vec<Command>) -> Result<Vec<Reply>, ProposeError> {
        let term = self.reign().map(|reign| reign.term());
        let term = term.ok_or_else(|| ProposeError::NotLeader { leader: *self.replica.leader().borrow() })?;
        self.replica.proposer().propose(Some(term), at, commands).await
    }

    /// The median of the voters' clocks, while this node leads and knows it.
    pub(super) fn median(&self) -> Option<Stamp> {
        let reign = self.reign()?;
        let clocks = reign.clocks();
        clocks.median(self.replica.node(), &self.replica.voters(), self.clock.wall(), self.clock.since_boot_ms()).ok()
    }

    /// The time that most voters' clocks have not passed, while this node leads others and knows it.
    fn at_most(&self) -> Option<Stamp> {
        let reign = self.reign()?;
        let clocks = reign.clocks();
        clocks.at_most(self.replica.node(), &self.replica.voters(), self.clock.wall(), self.clock.since_boot_ms()).ok()
    }

    /// Why nothing more is written than what must be, if so: the disk of this node or of another that votes is full.
    ///
    /// # Errors
    /// A sentence for the one who asked.
    pub(crate) fn check_room(&self) -> Result<(), String> {
        self.check_space(0)?;
        match self.reign().and_then(|reign| reign.full(&self.replica.voters())) {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// The time by which something may be decided.
    ///
    /// # Errors
    /// A sentence for the one who asked, while no clock is to be believed.
    pub fn believed_now(&self) -> Result<Stamp, String> {
        let voters = self.replica.voters();
        if fault::planted("own-clock") {
            return Ok(self.clock.wall());
        }
        match self.reign().filter(|_| voters.len() > 1) {
            Some(reign) => {
                let clocks = reign.clocks();
                let time = clocks.now(self.replica.node(), &voters, self.clock.wall(), self.clock.since_boot_ms());
                time.map_err(|unknown| unknown.to_string())
            }
            None => self.clock.believed_now().map_err(|hold| {
                format!(
                    "the wall clock stepped ahead by {:.1} s; nothing is decided, launched or changed until it is set \
                     back, or believed in {} s",
                    hold.ahead_ms as f64 / 1_000.0,
                    hold.left_ms / 1_000
                )
            }),
        }
    }
}
