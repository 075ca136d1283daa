//! A host: the parts, wired.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tickhost_executor::{Executor, ExecutorError};
use tickhost_ledger::{Digest, FIRST_NODE};
use tickhost_replica::{
    Clock, Identity, Listen, OpenError, Replica, Setup, TlsListener, fault, identity::IdentityError,
};
use tickhost_sandbox::{Runner, Sandbox, SandboxError};
use tokio::{
    net::TcpListener,
    runtime::Handle,
    sync::{Notify, watch},
};
use uuid::Uuid;

pub use crate::settings::Settings;
use crate::{
    audit::{self, Refusals},
    backup::{self, Backups},
    between, cluster, components, heartbeat, leader, member,
    metrics::Metrics,
    token,
    watch::Watch,
};

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A host without peers leads, and has a session with itself, within this.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How long a host that is told to stop lets its runs end. Below the 30 s after which service managers and
/// Kubernetes kill.
const DRAIN_MAX: Duration = Duration::from_secs(20);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often what the ledger has settled is forgotten. Arbitrary.
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// A host does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its data directory.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Its sandbox.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Its executor.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The threads for guests.
    #[error("start the threads for guests: {0}")]
    Threads(std::io::Error),
    /// Its settings, or its place in a cluster.
    #[error("{0}")]
    Refused(String),
}

/// What a host is made of.
pub struct Parts {
    /// What the operator set.
    pub settings: Settings,
    /// What its replica rests on.
    pub setup: Setup,
    /// The port for peers, and the address under which they reach it; `None` on a host that has none.
    pub port: Option<(Box<dyn Listen>, String)>,
    /// What runs components.
    pub sandbox: Arc<dyn Runner>,
    /// Where it runs them, apart from Raft.
    pub guests: Handle,
}

impl Parts {
    /// As every host has them.
    async fn of(settings: Settings) -> Result<Self, StartError> {
        let identity = Identity::open(&settings.data)?.map(Arc::new);
        let port = port(&settings, identity.clone()).await?;
        let node = identity.as_ref().map_or(FIRST_NODE, |identity| identity.node);
        let setup = Setup::on_disk(&settings.data, node, identity, Clock::default())?;
        let sandbox = sandbox(&settings)?;
        Ok(Self { settings, setup, port, sandbox: Arc::new(sandbox), guests: guest_threads()? })
    }
}

/// What keeps and runs components, as the operator has set it.
///
/// # Errors
/// A machine that wasmtime cannot run on, a directory that cannot be used.
pub(crate) fn sandbox(settings: &Settings) -> Result<Arc<Sandbox>, SandboxError> {
    let (runs_max, memory_bytes_max) = (settings.runs_max, settings.memory_max_mib << 20);
    Sandbox::new(&settings.data, runs_max, memory_bytes_max, settings.egress.allow.clone())
}

/// A running host. Clones share it.
#[derive(Clone)]
pub struct Host {
    /// The ledger.
    pub replica: Replica,
    /// What runs components.
    pub executor: Executor,
    /// What keeps and runs components.
    pub sandbox: Arc<dyn Runner>,
    /// What the operator set.
    pub settings: Arc<Settings>,
    /// Its clocks.
    pub clock: Clock,
    /// The reign of this node, while it leads.
    pub(crate) reign: watch::Sender<Option<Arc<leader::Reign>>>,
    /// Wakes the conductor.
    pub(crate) wake: Arc<Notify>,
    /// Has the executor ask its leader now.
    pub(crate) ask_now: Arc<Notify>,
    /// This node takes no new runs any more.
    pub(crate) draining: Arc<AtomicBool>,
    /// What did not happen.
    pub(crate) watch: Arc<Watch>,
    /// What it counts.
    pub(crate) metrics: Metrics,
    /// What is known of backups.
    pub(crate) backups: Arc<Backups>,
    /// Of the token with which whoever may read its data directory is the operator; `None` where nobody is asked.
    pub(crate) operator: Option<Digest>,
    /// What was refused and is not written down yet.
    pub(crate) refusals: Arc<Refusals>,
    /// Why the host cannot go on.
    failure: watch::Sender<Option<String>>,
}

impl Host {
    /// Starts a host on a data directory and takes its place: alone, or in the cluster that the directory belongs to.
    ///
    /// # Errors
    /// A directory that cannot be used, or a machine that wasmtime cannot run on.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        Self::assemble(Parts::of(settings).await?).await
    }

    /// Starts a host from its parts.
    ///
    /// # Errors
    /// Parts that do not fit, or are damaged.
    pub async fn assemble(parts: Parts) -> Result<Self, StartError> {
        let Parts { settings, setup, port, sandbox, guests } = parts;
        let operator =
            (!settings.open).then(|| token::local(&settings.data)).transpose().map_err(StartError::Refused)?;
        let clock = setup.clock.clone();
        let (replica, outputs) = Replica::open(setup).await?;
        if port.is_none() {
            found_alone(&replica, &clock).await?;
        }
        let fetch = Arc::new(components::fetch(replica.clone(), sandbox.clone()));
        let executor = Executor::open(replica.clone(), sandbox.clone(), fetch, clock.clone(), guests).await?;
        let host = Self {
            replica,
            executor,
            sandbox,
            settings: Arc::new(settings),
            clock,
            reign: watch::Sender::new(None),
            wake: Arc::default(),
            ask_now: Arc::default(),
            draining: Arc::default(),
            watch: Arc::default(),
            metrics: Metrics::default(),
            backups: Arc::default(),
            operator,
            refusals: Arc::default(),
            failure: watch::Sender::new(None),
        };
        tokio::spawn(leader::act(host.clone(), outputs));
        tokio::spawn(leader::follow(host.clone()));
        tokio::spawn(components::warm(host.clone()));
        tokio::spawn(prune(host.clone()));
        tokio::spawn(crate::watch::watch(host.clone()));
        tokio::spawn(backup::keep(host.clone()));
        tokio::spawn(heartbeat::keep(host.clone()));
        tokio::spawn(audit::keep(host.clone()));
        match port {
            Some((listener, address)) => {
                tokio::spawn(serve_peers(host.clone(), listener, address));
            }
            None => {
                tokio::spawn(member::keep_session(host.clone()));
                host.until_it_leads_itself().await?;
            }
        }
        Ok(host)
    }

    async fn until_it_leads_itself(&self) -> Result<(), StartError> {
        let has_session = tokio::time::timeout(READY_WITHIN, async {
            while self.executor.session().is_none() && self.failure.borrow().is_none() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        let in_time = has_session.await.is_ok();
        match self.failure.borrow().clone() {
            Some(why) => Err(StartError::Refused(why)),
            None if in_time => Ok(()),
            None => Err(StartError::Refused(format!("the host does not lead itself within {READY_WITHIN:?}"))),
        }
    }

    /// The host cannot go on.
    pub(crate) fn fail(&self, why: String) {
        self.failure.send_replace(Some(why));
    }

    /// Returns when the host cannot go on, with the reason.
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.subscribe();
        tokio::select! {
            why = self.replica.failed() => format!("the ledger cannot go on: {why}"),
            why = failure.wait_for(Option::is_some) => why.ok().and_then(|why| why.clone()).unwrap_or_default(),
        }
    }

    /// Why no run begins here, if what runs declare is more than there is and they use most of it.
    pub(crate) fn tight(&self) -> Option<String> {
        self.settings.tight(self.sandbox.memory_used())
    }

    /// Bytes that are free on the data directory's file system.
    ///
    /// # Errors
    /// A sentence, where it does not say.
    pub fn disk_free(&self) -> Result<u64, String> {
        let free = self.replica.db().free_bytes();
        free.map_err(|error| format!("ask for the free space of `{}`: {error}", self.settings.data.display()))
    }

    /// Whether there is room for what is to be stored.
    ///
    /// # Errors
    /// A sentence for the one who asked, where the reserve is reached.
    pub fn check_space(&self, wanted: u64) -> Result<(), String> {
        let free = self.disk_free()?;
        let reserve = self.settings.reserve_mib << 20;
        if free < reserve + wanted {
            return Err(format!(
                "the disk is full: `{}` has {} MiB free, {} MiB are wanted and {} MiB stay in reserve; make room, or lower `reserve_mib`",
                self.settings.data.display(),
                free >> 20,
                wanted.div_ceil(1 << 20),
                self.settings.reserve_mib
            ));
        }
        Ok(())
    }

    /// Stops the host with everything on disk. Hands leadership over, takes no more runs and lets those that are alive
    /// end, for up to 20 seconds; what is alive then is lost.
    pub async fn stop(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.ask_now.notify_one();
        if self.replica.voters().len() > 1
            && self.reign().is_some()
            && let Err(error) = self.replica.hand_over(None).await
        {
            tracing::warn!(%error, "hand leadership over");
        }
        let drained = tokio::time::timeout(DRAIN_MAX, async {
            while self.executor.live_count() > 0 {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        if drained.await.is_err() {
            tracing::warn!(runs = self.executor.live_count(), "stop with runs alive; they will be lost");
        }
        self.replica.shutdown().await;
    }
}

/// A host without peers is a cluster of its own.
async fn found_alone(replica: &Replica, clock: &Clock) -> Result<(), StartError> {
    replica.found("").await?;
    if replica.read(|state| state.cluster().is_none()) {
        cluster::found(replica, clock, Uuid::new_v4(), "").await.map_err(StartError::Refused)?;
    }
    Ok(())
}

/// The port for peers, where the settings and the directory both speak of a cluster.
async fn port(
    settings: &Settings,
    identity: Option<Arc<Identity>>,
) -> Result<Option<(Box<dyn Listen>, String)>, StartError> {
    let data = settings.data.display();
    let (listen, identity) = match (&settings.peer, identity) {
        (None, None) => return Ok(None),
        (Some(peer), Some(identity)) => (peer.listen, identity),
        (Some(_), None) => {
            return Err(StartError::Refused(format!(
                "the settings have `[peer]`, and `{data}` belongs to no cluster yet; found one with \
                 `tickhost cluster init`, or join one with `tickhost cluster join`"
            )));
        }
        (None, Some(_)) => {
            return Err(StartError::Refused(format!(
                "`{data}` belongs to a cluster, and the settings have no `[peer]` with the port for its other nodes"
            )));
        }
    };
    let address = settings.peer_address().map_err(StartError::Refused)?;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|e| StartError::Refused(format!("listen for peers on {listen}: {e}")))?;
    Ok(Some((TlsListener::new(listener, identity), address)))
}

async fn serve_peers(host: Host, listener: Box<dyn Listen>, address: String) {
    if let Err(why) = cluster::vet(&host).await
        && !fault::planted("take-any-disk")
    {
        return host.fail(why);
    }
    // Nobody is asked for a session, nor for a place, by a node that is refused.
    tokio::spawn(member::keep_session(host.clone()));
    tokio::spawn(cluster::take_place(host.clone(), address));
    let served = host.replica.serve(listener, between::routes(&host)).await;
    host.fail(format!("the port for peers has closed: {served:?}"));
}

/// Forgets what the ledger has settled: rows of the run table, outputs of launches that are no longer kept.
async fn prune(host: Host) {
    let mut every = tokio::time::interval(PRUNE_EVERY);
    loop {
        every.tick().await;
        match host.executor.prune().await {
            Ok((runs, outputs)) => tracing::debug!(runs, outputs, "forget what is settled"),
            Err(error) => tracing::debug!(error, "forget what is settled"),
        }
    }
}

/// Guests have threads of their own, so that none of them can delay Raft. As many as there are cores.
fn guest_threads() -> Result<Handle, StartError> {
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
