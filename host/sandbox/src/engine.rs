//! The one engine and its configuration.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use ipnet::IpNet;
use tickhost_ledger::Digest;
use wasmtime::{
    Config, Engine, PoolingAllocationConfig,
    component::{HasSelf, Linker},
};

use crate::{
    bindings::{Job, Pre},
    capability,
    egress::Egress,
    meter::Pool,
    run::RunState,
};

/// How often every running guest is looked at: its CPU time is checked, and others get their turn. A guest that
/// spins is found within one of these; measured, neighbours of a spinning guest are at most 8 ms late.
const EPOCH: Duration = Duration::from_millis(5);

/// Host and guest frames of a run. JavaScript recurses deeply; the default of 512 KiB is thin for it.
const WASM_STACK_BYTES: usize = 1 << 20;
/// What is left beyond the guest's part is for host functions.
const ASYNC_STACK_BYTES: usize = 3 << 20;

/// The sandbox cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// wasmtime refuses its configuration on this machine.
    #[error("set up wasmtime: {0}")]
    Engine(String),
    /// TLS for what guests send.
    #[error("set up TLS: {0}")]
    Tls(String),
    /// The file system refuses.
    #[error("{what} `{path}`: {source}")]
    Io {
        /// What was done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// The engine, the linker, and the code that is ready to run.
pub struct Sandbox {
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<RunState>,
    pub(crate) egress: Arc<Egress>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) dir: PathBuf,
    pub(crate) ready: Mutex<BTreeMap<Digest, Arc<tokio::sync::OnceCell<Pre>>>>,
}

impl Sandbox {
    /// Sets up an engine for up to `runs_max` runs at a time that use up to `memory_bytes_max` together. Components and
    /// their compiled code lie in `dir`. They reach public addresses, and of all others those in `opened`.
    ///
    /// # Errors
    /// Where wasmtime, TLS or the directory cannot be set up.
    pub fn new(
        dir: &Path,
        runs_max: u32,
        memory_bytes_max: u64,
        opened: Vec<IpNet>,
    ) -> Result<Arc<Self>, SandboxError> {
        for part in ["components", "code"] {
            let path = dir.join(part);
            std::fs::create_dir_all(&path).map_err(|source| SandboxError::Io {
                what: "create",
                path: path.clone(),
                source,
            })?;
        }
        let engine = Engine::new(&config(runs_max, memory_bytes_max)).map_err(engine_error)?;
        let linker = linker(&engine).map_err(engine_error)?;
        tick(&engine).map_err(|e| SandboxError::Engine(format!("start the epoch ticker: {e}")))?;
        let egress = Arc::new(Egress::new(opened).map_err(SandboxError::Tls)?);
        let ready = Mutex::default();
        let pool = Arc::new(Pool::new(memory_bytes_max));
        Ok(Arc::new(Self { engine, linker, egress, pool, dir: dir.to_owned(), ready }))
    }
}

impl Sandbox {
    /// Bytes of linear memory that all runs use at this moment.
    pub fn memory_used(&self) -> u64 {
        self.pool.used()
    }

    /// The engine, for what is measured beside it.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

fn engine_error(error: wasmtime::Error) -> SandboxError {
    SandboxError::Engine(format!("{error:#}"))
}

/// Every number here is a bound, not a reservation of memory; what is reserved is address space.
fn config(runs_max: u32, memory_bytes_max: u64) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(runs_max)
        // JavaScript and Python components are made of up to about ten core instances; this is twice that.
        .total_core_instances(runs_max.saturating_mul(20))
        .max_core_instances_per_component(64)
        .total_memories(runs_max.saturating_mul(2))
        .max_memories_per_component(4)
        .total_tables(runs_max.saturating_mul(20))
        .max_tables_per_component(64)
        .max_tables_per_module(8)
        // CPython's function table has about 8,000 entries.
        .table_elements(32_000)
        .total_stacks(runs_max)
        .max_memory_size(usize::try_from(memory_bytes_max.min(4 << 30)).unwrap_or(usize::MAX))
        .max_component_instance_size(4 << 20)
        .max_core_instance_size(4 << 20);
    let mut config = Config::new();
    config
        .allocation_strategy(pool)
        .epoch_interruption(true)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(ASYNC_STACK_BYTES)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        // Its results differ between processors.
        .wasm_relaxed_simd(false);
    config
}

/// One linker for all worlds: JavaScript and Python components import all of WASI, used or not.
fn linker(engine: &Engine) -> wasmtime::Result<Linker<RunState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    capability::wasi::refuse_sockets(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    Job::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
    Ok(linker)
}

/// Advances the epoch from a thread of its own: no guest can keep it from running.
fn tick(engine: &Engine) -> std::io::Result<()> {
    let engine = engine.weak();
    std::thread::Builder::new().name("tickhost-epoch".into()).spawn(move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(EPOCH);
        }
    })?;
    Ok(())
}
