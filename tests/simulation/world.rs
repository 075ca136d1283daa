//! What the nodes of a simulation share: true time, the network between them, and the history of what happened.
//!
//! One thread steps everything, so nothing here ever waits for a lock; the locks are there because a host's parts may be
//! shared between threads.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufWriter, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tickhost_ledger::{Digest, RunId};
use uuid::Uuid;

use crate::{disk::SharedDisk, entropy::Random, network::Network};

/// What invariants are told of. Its text is its line in the history.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A node's process has begun.
    Up { node: u64 },
    /// The first instruction of a guest.
    Began { node: u64, run: RunId, row_is_durable: bool },
    /// A later one.
    Step { node: u64, run: RunId },
    /// Something that a guest did is in the world.
    Effect { node: u64, run: RunId, label: String, key: Uuid },
    /// The last instruction of a guest.
    Over { node: u64, run: RunId },
    /// An executor has said of a run that it never began.
    Never { node: u64, run: RunId, row_is_durable: bool },
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Up { node } => write!(f, "{node} is up"),
            Self::Began { node, run, .. } => write!(f, "{node} begins {run}"),
            Self::Step { node, run } => write!(f, "{node} goes on with {run}"),
            Self::Effect { node, run, label, key } => write!(f, "{node} does {label} of {run} under {key}"),
            Self::Over { node, run } => write!(f, "{node} is done with {run}"),
            Self::Never { node, run, .. } => write!(f, "{node} says that {run} never began"),
        }
    }
}

/// The history: one line for what happened, each line's digest over all before it.
pub(crate) struct History {
    digest: Digest,
    lines: u64,
    file: Option<BufWriter<std::fs::File>>,
}

impl History {
    fn line(&mut self, now_us: u64, text: &str) {
        let line = format!("{}.{:06} {text}\n", now_us / 1_000_000, now_us % 1_000_000);
        self.digest = Digest::of(&[&self.digest.0, line.as_bytes()].concat());
        self.lines += 1;
        if let Some(file) = &mut self.file {
            file.write_all(line.as_bytes()).expect("write the history");
        }
    }
}

pub(crate) struct Shared {
    /// Microseconds of true time since the beginning.
    pub(crate) now_us: u64,
    pub(crate) network: Network,
    /// The boot of each node whose process is alive.
    alive: BTreeMap<u64, u64>,
    /// Nodes that have ended within the present step, and why.
    pub(crate) ended: BTreeMap<u64, String>,
    events: Vec<Event>,
    history: History,
    pub(crate) disks: BTreeMap<u64, SharedDisk>,
    /// Bugs that are planted in every node.
    planted: BTreeSet<String>,
    /// Which of them were come by.
    pub(crate) come_by: BTreeSet<&'static str>,
    /// A node dies at a point, after it has come by it that often.
    pub(crate) deaths: BTreeMap<u64, (&'static str, u32)>,
    /// How many have.
    pub(crate) died_at_points: u64,
    /// The node that is being stepped.
    pub(crate) stepping: u64,
}

/// Clones share it.
#[derive(Clone)]
pub(crate) struct World(Arc<Mutex<Shared>>);

impl World {
    pub(crate) fn new(seed: u64, planted: &[String], trace: Option<std::fs::File>) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            now_us: 0,
            network: Network::new(Random::of(seed, "network")),
            alive: BTreeMap::new(),
            ended: BTreeMap::new(),
            events: Vec::new(),
            history: History { digest: Digest([0; 32]), lines: 0, file: trace.map(BufWriter::new) },
            disks: BTreeMap::new(),
            planted: planted.iter().cloned().collect(),
            come_by: BTreeSet::new(),
            deaths: BTreeMap::new(),
            died_at_points: 0,
            stepping: 0,
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.lock().now_us
    }

    /// Writes a line into the history.
    pub(crate) fn line(&self, text: &str) {
        self.lock().line(text);
    }

    /// Notes what happened.
    pub(crate) fn note(&self, event: Event) {
        let mut shared = self.lock();
        shared.line(&event.to_string());
        shared.events.push(event);
    }

    /// What happened since the last time.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.lock().events)
    }

    /// Whether a bug is planted that is not in the nodes themselves.
    pub(crate) fn is_planted(&self, bug: &str) -> bool {
        self.lock().planted.contains(bug)
    }

    pub(crate) fn is_alive(&self, node: u64, boot: u64) -> bool {
        self.lock().alive.get(&node) == Some(&boot)
    }

    pub(crate) fn set_alive(&self, node: u64, boot: Option<u64>) {
        let mut shared = self.lock();
        match boot {
            Some(boot) => shared.alive.insert(node, boot),
            None => shared.alive.remove(&node),
        };
    }

    /// The digest of the history, and its lines.
    pub(crate) fn close(&self) -> (Digest, u64) {
        let mut shared = self.lock();
        if let Some(file) = &mut shared.history.file {
            file.flush().expect("write the history");
        }
        (shared.history.digest, shared.history.lines)
    }
}

impl Shared {
    pub(crate) fn line(&mut self, text: &str) {
        let now_us = self.now_us;
        self.history.line(now_us, text);
    }

    pub(crate) fn is_alive(&self, node: u64, boot: u64) -> bool {
        self.alive.get(&node) == Some(&boot)
    }

    /// The process of a node ends here and now: nothing that it does any more has an effect.
    pub(crate) fn end(&mut self, node: u64, why: String) {
        self.alive.remove(&node);
        self.ended.entry(node).or_insert(why);
    }
}

/// Stands in for the end of a process, for kill points, and for planted bugs.
pub(crate) struct Hook(pub(crate) World);

/// What a task of a node that has ended is unwound with.
struct Died;

impl tickhost_replica::fault::Hook for Hook {
    fn point(&self, name: &'static str) {
        let mut shared = self.0.lock();
        let node = shared.stepping;
        let Some((at, left)) = shared.deaths.get_mut(&node).filter(|(at, _)| *at == name) else { return };
        let at = *at;
        *left -= 1;
        if *left > 0 {
            return;
        }
        shared.deaths.remove(&node);
        shared.died_at_points += 1;
        shared.end(node, format!("killed at {at}"));
        drop(shared);
        std::panic::resume_unwind(Box::new(Died));
    }

    fn end(&self) -> ! {
        let mut shared = self.0.lock();
        let node = shared.stepping;
        shared.end(node, "ended by itself".into());
        drop(shared);
        std::panic::resume_unwind(Box::new(Died))
    }

    fn planted(&self, bug: &'static str) -> bool {
        let mut shared = self.0.lock();
        let is_planted = shared.planted.contains(bug);
        if is_planted {
            shared.come_by.insert(bug);
        }
        is_planted
    }
}
