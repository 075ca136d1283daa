//! One embedded host: the parts, wired.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tickhost_executor::{Executor, ExecutorError, clock, now};
use tickhost_ledger::{Command, Refusal, Reply, Stamp, conductor};
use tickhost_replica::{OpenError, ProposeError, Replica};
use tickhost_sandbox::{Sandbox, SandboxError};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::leader;
pub use crate::settings::Settings;

/// The node's number in its group of one.
const NODE: u64 = 1;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Jobs in one entry. Arbitrary: some hundred bytes each.
const RETIMED_AT_ONCE: usize = 1_000;

/// How long a host that is told to stop lets its runs end. Below the 30 s after which service managers and
/// Kubernetes kill.
const DRAIN_MAX: Duration = Duration::from_secs(20);
/// How often it looks.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// A host does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its data directory.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its sandbox.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Its executor.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// Its ledger.
    #[error("register with the ledger: {0}")]
    Ledger(#[from] ProposeError),
    /// The ledger refuses.
    #[error("register with the ledger: {0}")]
    Refused(String),
    /// The threads for guests.
    #[error("start the threads for guests: {0}")]
    Threads(std::io::Error),
}

/// A running host. Clones share it.
#[derive(Clone)]
pub struct Host {
    /// The ledger.
    pub replica: Replica,
    /// What runs components.
    pub executor: Executor,
    /// The engine.
    pub sandbox: Arc<Sandbox>,
    /// What the operator set.
    pub settings: Arc<Settings>,
    /// Wakes the conductor.
    pub(crate) wake: Arc<Notify>,
    /// No run is given out any more.
    pub(crate) draining: Arc<AtomicBool>,
}

impl Host {
    /// Starts a host on a data directory: opens the ledger, settles what an earlier process left, and begins to
    /// launch.
    ///
    /// # Errors
    /// A directory that cannot be used, or a machine that wasmtime cannot run on.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let (replica, outputs) = Replica::open_single(&settings.data, NODE).await?;
        let sandbox = Sandbox::new(&settings.data, settings.runs_max, settings.memory_max_mib << 20)?;
        let executor = Executor::open(replica.clone(), sandbox.clone(), guest_threads()?).await?;
        let settings = Arc::new(settings);
        let host =
            Self { replica, executor, sandbox, settings, wake: Arc::new(Notify::new()), draining: Arc::default() };
        host.retime().await?;
        host.register().await?;
        host.settle().await?;
        tokio::spawn(leader::act(host.clone(), outputs));
        tokio::spawn(leader::conduct(host.clone()));
        tokio::spawn(leader::prune(host.clone()));
        Ok(host)
    }

    /// What another release of this program or of the tz database names otherwise than the one this node ran with.
    /// Before it registers with the new one: done in part, it is done again.
    async fn retime(&self) -> Result<(), StartError> {
        let known = self.replica.read(|state| state.node(NODE).map(|node| (node.tz.clone(), node.version.clone())));
        let is_known = |(tz, version): (String, String)| tz == tickhost_schedule::TZ_VERSION && version == VERSION;
        if known.is_none_or(is_known) {
            return Ok(());
        }
        let moved = self.replica.read(conductor::retime);
        if !moved.is_empty() {
            tracing::info!(jobs = moved.len(), tz = tickhost_schedule::TZ_VERSION, "next ticks move with this version");
        }
        for commands in moved.chunks(RETIMED_AT_ONCE) {
            for reply in self.replica.propose(now(), commands.to_vec()).await? {
                // A job that has changed in between has a next tick of this version already.
                if !matches!(reply, Reply::Done | Reply::Refused(Refusal::Stale { .. } | Refusal::NoJob(_))) {
                    return Err(StartError::Refused(format!("{reply:?}")));
                }
            }
        }
        Ok(())
    }

    async fn register(&self) -> Result<(), StartError> {
        if self.replica.read(|state| state.cluster().is_none()) {
            let command = Command::Found { cluster: Uuid::new_v4(), key_domain: Uuid::new_v4() };
            self.propose_done(command).await?;
        }
        let command = Command::RegisterNode {
            node: NODE,
            store: self.executor.witness().store,
            session: Uuid::new_v4(),
            runs_max: self.settings.runs_max,
            memory_bytes_max: self.settings.memory_max_mib << 20,
            tz: tickhost_schedule::TZ_VERSION.to_owned(),
            version: VERSION.to_owned(),
        };
        self.propose_done(command).await
    }

    async fn propose_done(&self, command: Command) -> Result<(), StartError> {
        match self.replica.propose_one(now(), command).await? {
            Reply::Done | Reply::Unchanged => Ok(()),
            other => Err(StartError::Refused(format!("{other:?}"))),
        }
    }

    /// Asks by name what became of the runs that an earlier session left open.
    async fn settle(&self) -> Result<(), StartError> {
        let witness = self.executor.witness();
        for run in self.replica.read(|state| conductor::unresolved(state, NODE)) {
            let answer = self.executor.ask(&run).await?;
            tracing::info!(%run, ?answer, "settle a run of an earlier session");
            let command = self.replica.read(|state| conductor::resolve(state, &run, witness, answer));
            if let Some(command) = command {
                self.propose_done(command).await?;
            }
        }
        Ok(())
    }

    /// Bytes free for what is stored; an error says what is missing.
    ///
    /// # Errors
    /// A sentence for the one who asked, where the reserve is reached.
    pub fn check_space(&self, wanted: u64) -> Result<(), String> {
        let dir: &PathBuf = &self.settings.data;
        let free = match rustix::fs::statvfs(dir) {
            Ok(stat) => stat.f_bavail * stat.f_frsize,
            Err(error) => return Err(format!("ask for the free space of `{}`: {error}", dir.display())),
        };
        let reserve = self.settings.reserve_mib << 20;
        if free < reserve + wanted {
            return Err(format!(
                "the disk is full: `{}` has {} MiB free, {} MiB are wanted and {} MiB stay in reserve; make room, or lower `reserve_mib`",
                dir.display(),
                free >> 20,
                wanted.div_ceil(1 << 20),
                self.settings.reserve_mib
            ));
        }
        Ok(())
    }

    /// The wall clock's time, if it is believed.
    ///
    /// # Errors
    /// A sentence for the one who asked, while it is not.
    pub fn believed_now(&self) -> Result<Stamp, String> {
        clock::believed_now().map_err(|hold| {
            format!(
                "the wall clock stepped ahead by {:.1} s; nothing is decided, launched or changed until it is set back, \
                 or believed in {} s",
                hold.ahead_ms as f64 / 1_000.0,
                hold.left_ms / 1_000
            )
        })
    }

    /// Stops the host with everything on disk. Gives out no more runs and lets those that are alive end, for up to
    /// 20 seconds; what is alive then is lost.
    pub async fn stop(&self) {
        self.draining.store(true, Ordering::Relaxed);
        let drained = tokio::time::timeout(DRAIN_MAX, async {
            while self.executor.live_count() > 0 {
                tokio::time::sleep(DRAIN_LOOK).await;
            }
        });
        if drained.await.is_err() {
            tracing::warn!(runs = self.executor.live_count(), "stop with runs alive; they will be lost");
        }
        self.replica.shutdown().await;
    }
}

/// Guests have threads of their own, so that none of them can delay Raft. As many as there are cores.
fn guest_threads() -> Result<tokio::runtime::Handle, StartError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("tickhost-guest")
        .enable_all()
        .build()
        .map_err(StartError::Threads)?;
    let handle = runtime.handle().clone();
    // It lives as long as the process: dropping it here would stop it.
    std::mem::forget(runtime);
    Ok(handle)
}
