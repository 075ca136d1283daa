//! A simulated machine: a real host in it, with a runtime of its own whose time goes only when it is stepped.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tempfile::TempDir;
use tickhost::{
    cluster,
    host::{Host, Parts, Settings},
};
use tickhost_ledger::Stamp;
use tickhost_replica::{
    Clock, Db, Identity, Setup,
    clock::Clocks,
    identity::{Authority, Request},
};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::{
    disk::{Image, SharedDisk, SimStore},
    entropy::Random,
    guest::SimRunner,
    network::{SimListen, SimTransport},
    world::{Event, World},
};

/// When simulations begin, in milliseconds since 1970: an arbitrary night.
pub(crate) const EPOCH_MS: i64 = 1_767_232_800_000;

/// The clocks of a machine: how long it has run by its own count, and by how much its wall clock is wrong. A time service
/// keeps that one; it does nothing about the other.
#[derive(Debug, Default)]
pub(crate) struct NodeClock {
    ran_ms: AtomicI64,
    true_ms: AtomicI64,
    wrong_ms: AtomicI64,
}

impl Clocks for NodeClock {
    fn wall(&self) -> Stamp {
        Stamp(EPOCH_MS + self.true_ms.load(Ordering::Relaxed) + self.wrong_ms.load(Ordering::Relaxed))
    }

    fn since_boot_ms(&self) -> i64 {
        self.ran_ms.load(Ordering::Relaxed)
    }
}

/// A process on a machine.
struct Process {
    runtime: Runtime,
    /// The host, once it has started.
    host: Arc<Mutex<Option<Host>>>,
}

/// A machine.
pub(crate) struct Node {
    pub(crate) id: u64,
    seed: u64,
    world: World,
    dir: PathBuf,
    pub(crate) disk: SharedDisk,
    clock: Arc<NodeClock>,
    /// How much faster its clocks are, in millionths.
    ppm: i64,
    owed_us: i64,
    process: Option<Process>,
    boots: u64,
    /// Until when nothing of it runs, and whether its timers go on meanwhile: a process that is stopped, or a machine
    /// that sleeps.
    frozen: Option<(u64, bool)>,
    slept_ms: u64,
    /// When it last began to run again.
    pub(crate) thawed_at_us: u64,
    /// Since when it has had no process.
    pub(crate) down_since_us: Option<u64>,
    /// When its process is started again.
    pub(crate) start_at_us: Option<u64>,
    /// Why it ended by itself the last time.
    pub(crate) refused: Option<String>,
    /// Its disk is not what it was, and it must not take part again.
    pub(crate) is_spoiled: bool,
    /// The disk as it was once.
    kept: Option<Image>,
}

fn address(node: u64) -> String {
    format!("node-{node}:1")
}

/// The authority of the cluster, and where the nodes of a simulation keep what is theirs. It is the working directory:
/// paths are the same in every run.
pub(crate) struct Home {
    _dir: TempDir,
    authority: Authority,
    key: String,
    pub(crate) cluster: Uuid,
}

impl Home {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        std::env::set_current_dir(dir.path()).expect("enter the temporary folder");
        let cluster = Uuid::from_u128(7);
        let authority = Authority::create(Path::new("authority"), cluster).expect("an authority");
        let own = Self::identify(&authority, Path::new("authority"), 0);
        let key = own.authority_key().expect("the authority's key");
        Self { _dir: dir, authority, key, cluster }
    }

    fn identify(authority: &Authority, dir: &Path, node: u64) -> Identity {
        let request = Request::new().expect("a key");
        let given = authority.sign(node, &request.pem).expect("a certificate");
        Identity::store(dir, &request, &given).expect("an identity")
    }

    /// A folder with the identity of a node, which knows those others.
    fn folder(&self, node: u64, others: &[u64]) -> PathBuf {
        let dir = PathBuf::from(format!("node-{node}"));
        let identity = Self::identify(&self.authority, &dir, node);
        identity.keep_authority_key(&self.key).expect("keep the authority's key");
        let contacts: BTreeMap<u64, String> = others.iter().map(|other| (*other, address(*other))).collect();
        identity.note_contacts(contacts).expect("note the other nodes");
        dir
    }
}

impl Node {
    pub(crate) fn new(home: &Home, world: &World, seed: u64, id: u64, others: &[u64]) -> Self {
        let mut random = Random::of(seed, &format!("node {id}"));
        // Within what the session allows for.
        let lies = world.is_planted("lie-about-sync");
        let ppm = i64::try_from(random.below(10_000)).unwrap_or_default() - 5_000;
        Self {
            id,
            seed,
            world: world.clone(),
            dir: home.folder(id, others),
            disk: SharedDisk::new(random, lies),
            clock: Arc::default(),
            ppm,
            owed_us: 0,
            process: None,
            boots: 0,
            frozen: None,
            slept_ms: 0,
            thawed_at_us: 0,
            down_since_us: None,
            start_at_us: None,
            refused: None,
            is_spoiled: false,
            kept: None,
        }
    }

    fn setup(&self, boot: u64) -> (Setup, SimStore) {
        let identity = Identity::open(&self.dir).expect("read the identity").expect("an identity");
        let store = SimStore::new(self.disk.clone(), self.world.clone(), self.id, boot);
        let db = Db::over(Arc::new(store.clone()), &self.dir).expect("a database");
        let transport = Arc::new(SimTransport { world: self.world.clone(), node: self.id, boot });
        let clock = Clock::of(self.clock.clone());
        let setup = Setup { db, node: self.id, identity: Some(Arc::new(identity)), transport, clock };
        (setup, store)
    }

    fn begin(&mut self) -> (u64, Runtime) {
        self.boots += 1;
        self.world.set_alive(self.id, Some(self.boots));
        self.world.lock().disks.insert(self.id, self.disk.clone());
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
        (self.boots, runtime)
    }

    /// Founds the cluster on this node's disk, and ends.
    pub(crate) fn found(&mut self, home: &Home) -> Result<(), String> {
        let (boot, runtime) = self.begin();
        let (setup, _) = self.setup(boot);
        let founded = runtime.block_on(cluster::found_in(setup, home.cluster, &address(self.id)));
        drop(runtime);
        self.world.set_alive(self.id, None);
        founded
    }

    /// Starts the process.
    pub(crate) fn start(&mut self) {
        let (boot, runtime) = self.begin();
        (self.frozen, self.slept_ms, self.start_at_us, self.down_since_us) = (None, 0, None, None);
        self.world.note(Event::Up { node: self.id });
        let host = Arc::new(Mutex::new(None));
        let (setup, store) = self.setup(boot);
        let port = SimListen { world: self.world.clone(), node: self.id, boot };
        let parts = Parts {
            settings: Settings { open: true, ..Settings::in_dir(self.dir.clone()) },
            setup,
            port: Some((Box::new(port), address(self.id))),
            sandbox: Arc::new(SimRunner { seed: self.seed, store }),
            guests: runtime.handle().clone(),
        };
        let (world, node, started) = (self.world.clone(), self.id, host.clone());
        runtime.spawn(async move {
            let why = match Host::assemble(parts).await {
                Ok(host) => {
                    *started.lock().unwrap_or_else(PoisonError::into_inner) = Some(host.clone());
                    host.failed().await
                }
                Err(error) => error.to_string(),
            };
            world.lock().end(node, format!("refused: {why}"));
        });
        self.process = Some(Process { runtime, host });
    }

    /// Ends the process. What it has written stays, unless the power fails with it.
    pub(crate) fn stop(&mut self, why: &str, loses_power: bool) {
        let Some(process) = self.process.take() else { return };
        self.down_since_us = Some(self.world.now_us());
        self.world.set_alive(self.id, None);
        self.world.lock().deaths.remove(&self.id);
        let Process { runtime, host } = process;
        // The host first, then what it has spawned.
        let host = host.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(host);
        drop(runtime);
        let lost = if loses_power { self.disk.lock().lose_power() } else { 0 };
        self.world.line(&format!("{} is down: {why}, {lost} writes lost", self.id));
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// The host, where its process is up and has got that far.
    pub(crate) fn host(&self) -> Option<Host> {
        let process = self.process.as_ref()?;
        process.host.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks at the host, with its own time.
    pub(crate) fn with_host<R>(&self, look: impl FnOnce(&Host) -> R) -> Option<R> {
        let process = self.process.as_ref()?;
        let _its_time = process.runtime.enter();
        let host = process.host.lock().unwrap_or_else(PoisonError::into_inner);
        host.as_ref().map(look)
    }

    /// Has something done in its process.
    pub(crate) fn spawn<F: Future<Output: Send + 'static> + Send + 'static>(&self, work: F) {
        if let Some(process) = &self.process {
            process.runtime.spawn(work);
        }
    }

    /// Nothing of it runs for a while.
    pub(crate) fn freeze(&mut self, until_us: u64, timers_go_on: bool) {
        self.frozen = Some((until_us, timers_go_on));
    }

    /// A millisecond of true time passes.
    pub(crate) fn step(&mut self) {
        self.owed_us += 1_000 + self.ppm / 1_000;
        // What is left over of the drift, once a second.
        if self.world.now_us().is_multiple_of(1_000_000) {
            self.owed_us += self.ppm % 1_000;
        }
        let ms = self.owed_us / 1_000;
        self.owed_us -= ms * 1_000;
        let now_us = self.world.now_us();
        self.clock.ran_ms.fetch_add(ms, Ordering::Relaxed);
        self.clock.true_ms.store(now_us.cast_signed() / 1_000, Ordering::Relaxed);
        let ms = ms.unsigned_abs();
        if let Some((until_us, timers_go_on)) = self.frozen {
            self.slept_ms += if timers_go_on { ms } else { 0 };
            if now_us < until_us {
                return;
            }
            self.frozen = None;
            self.thawed_at_us = now_us;
        }
        let slept = Duration::from_millis(std::mem::take(&mut self.slept_ms));
        if let Some(process) = &self.process {
            self.world.lock().stepping = self.id;
            process.runtime.block_on(async {
                if !slept.is_zero() {
                    tokio::time::advance(slept).await;
                }
                tokio::time::sleep(Duration::from_millis(ms)).await;
            });
            let ended = self.world.lock().ended.remove(&self.id);
            if let Some(why) = ended {
                // What the rest of it came to in its last millisecond did not happen.
                crate::take_panic();
                self.ended(&why);
            }
        } else if self.start_at_us.is_some_and(|at| at <= now_us) {
            self.start();
        }
    }

    /// The process has ended by itself. Whatever watches over it starts it again.
    fn ended(&mut self, why: &str) {
        self.stop(why, false);
        let mut wait_us = 500_000;
        if let Some(why) = why.strip_prefix("refused: ") {
            self.refused = Some(why.to_owned());
            self.world.line(&format!("{} goes on no more: {why}", self.id));
            wait_us = 2_000_000;
        }
        // Whoever is told that the disk is wrong does not try again.
        self.start_at_us = (!self.is_spoiled).then(|| self.world.now_us() + wait_us);
    }

    /// What its wall clock shows.
    pub(crate) fn wall(&self) -> Stamp {
        self.clock.wall()
    }

    /// The wall clock is wrong by that much from now on.
    pub(crate) fn set_clock(&self, wrong_ms: i64) {
        self.clock.wrong_ms.store(wrong_ms, Ordering::Relaxed);
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// It goes on.
    pub(crate) fn thaw(&mut self) {
        if let Some((until_us, _)) = &mut self.frozen {
            *until_us = 0;
        }
    }

    /// Remembers the disk as it is, for [`Node::set_back`].
    pub(crate) fn keep_disk(&mut self) {
        self.kept = Some(self.disk.lock().synced.clone());
    }

    /// The disk becomes what it was when it was kept, or empty.
    pub(crate) fn set_back(&mut self, to_nothing: bool) {
        let image = if to_nothing { Image::default() } else { self.kept.take().unwrap_or_default() };
        self.disk.lock().replace(image);
    }
}
