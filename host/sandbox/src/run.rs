//! One run: a fresh store, the call, and how it ended.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tickhost_ledger::{Digest, RunId, TickAt, key::KeySource, launch::Outcome, rows::Usage, spec::Limits};
use wasmtime::{
    Store, UpdateDeadline,
    component::{Resource, ResourceTable},
};
use wasmtime_wasi::{I32Exit, WasiCtx};
use wasmtime_wasi_http::WasiHttpCtx;

use crate::{
    bindings::Pre,
    capability::{send::Sender, ticks::Tick, wasi, wasi_http::WasiHttp},
    egress::Outward,
    engine::Sandbox,
    journal::Journal,
    meter::{Cpu, Memory, Metered},
    output::Output,
    trap,
};

/// Bytes that one host call may copy out of the guest: a list of a million pointers to one string must not cost
/// a terabyte.
const HOSTCALL_BYTES_MAX: usize = 64 << 20;
/// Bytes of the text that is shown beside a verdict. Arbitrary.
const MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Handles in a run's table: keys, streams, pollables.
const TABLE_MAX: usize = 200_000;
/// Bytes of all header fields of one `wasi:http` request.
const FIELD_BYTES_MAX: usize = 64 << 10;

/// All that a run needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest {
    /// The run.
    pub run: RunId,
    /// The component.
    pub component: Digest,
    /// The tick in the job's zone, RFC 3339.
    pub local: String,
    /// The tick before by the schedule.
    pub previous: Option<TickAt>,
    /// Where keys come from.
    pub keys: KeySource,
    /// What it may use.
    pub limits: Limits,
    /// Where it may send.
    pub allow_http: Vec<String>,
    /// The job's `config`.
    pub config: BTreeMap<String, String>,
    /// The program's arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// The program's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// How a run ended, and what it used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    /// How it ended.
    pub outcome: Outcome,
    /// What it used.
    pub usage: Usage,
}

/// The data of a run's store.
pub(crate) struct RunState {
    pub(crate) request: Arc<RunRequest>,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) sender: Arc<Sender>,
    pub(crate) output: Output,
    pub(crate) table: ResourceTable,
    pub(crate) wasi: WasiCtx,
    pub(crate) wasi_http: WasiHttpCtx,
    pub(crate) wasi_http_hooks: WasiHttp,
    pub(crate) keys: u64,
    /// Bytes written to the key-value store.
    pub(crate) kv_bytes: u64,
    memory: Memory,
}

/// The guest used more CPU time than declared.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("cpu time is used up")]
struct CpuUsedUp;

impl Sandbox {
    /// Runs a component for a tick and says how it ended. `began` is called right before the first guest
    /// instruction. Dropping the future, or `stop` becoming ready with a reason, ends the run at once.
    ///
    /// # Errors
    /// None: whatever goes wrong is an outcome.
    pub async fn run(
        self: &Arc<Self>,
        request: RunRequest,
        journal: Arc<dyn Journal>,
        output: Output,
        stop: impl Future<Output = String> + Send,
    ) -> RunReport {
        let pre = match self.ready(request.component).await {
            Ok(pre) => pre,
            Err(error) => {
                let outcome = Outcome::Trapped { message: error.to_string() };
                return RunReport { outcome, usage: Usage::default() };
            }
        };
        let limits = request.limits;
        let mut store = Store::new(&self.engine, self.state(request, journal, &output));
        let cpu = Arc::new(Cpu::default());
        restrict(&mut store, &cpu, Duration::from_millis(limits.cpu_ms));
        let began = std::time::Instant::now();
        let call = Metered::new(call(&pre, &mut store), cpu.clone());
        let wall = tokio::time::sleep(Duration::from_millis(limits.wall_ms));
        // A run that was stopped before it began executes nothing.
        let ended = tokio::select! {
            biased;
            reason = stop => Ended::Stopped(reason),
            ended = call => Ended::Returned(ended),
            () = wall => Ended::WallTime,
        };
        let state = store.data();
        let usage = Usage {
            memory_bytes: state.memory.peak,
            cpu_us: cpu.used_ns() / 1_000,
            wall_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
            log_bytes: output.total_bytes(),
            http_calls: state.sender.calls(),
            response_bytes: state.sender.response_bytes(),
            request_bytes: state.sender.request_bytes(),
            table_elements: state.memory.tables.used,
            keys: state.keys,
            effects: state.sender.effects(),
            kv_bytes: state.kv_bytes,
        };
        RunReport { outcome: shortened(outcome(ended, state, &limits, usage.cpu_us)), usage }
    }

    fn state(&self, request: RunRequest, journal: Arc<dyn Journal>, output: &Output) -> RunState {
        let mut table = ResourceTable::new();
        table.set_max_capacity(TABLE_MAX);
        let mut wasi_http = WasiHttpCtx::new();
        wasi_http.set_field_size_limit(FIELD_BYTES_MAX);
        let request = Arc::new(request);
        let outward = Outward::new(self.egress.clone());
        let sender = Arc::new(Sender::new(request.clone(), journal.clone(), outward));
        RunState {
            memory: Memory::new(self.pool.clone(), request.limits.memory_bytes, request.limits.table_elements),
            journal,
            output: output.clone(),
            table,
            wasi: wasi::context(&request, output),
            wasi_http,
            wasi_http_hooks: WasiHttp::new(sender.clone(), request.keys.clone(), output),
            sender,
            request,
            keys: 0,
            kv_bytes: 0,
        }
    }
}

fn restrict(store: &mut Store<RunState>, cpu: &Arc<Cpu>, cpu_limit: Duration) {
    store.limiter(|state| &mut state.memory);
    store.set_hostcall_fuel(HOSTCALL_BYTES_MAX);
    store.set_epoch_deadline(1);
    let cpu = cpu.clone();
    let limit_ns = u64::try_from(cpu_limit.as_nanos()).unwrap_or(u64::MAX);
    store.epoch_deadline_callback(move |_| {
        if cpu.used_ns_now() > limit_ns {
            return Err(CpuUsedUp.into());
        }
        Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
    });
}

/// What a component returns, whatever world it is made for.
struct Returned {
    message: Option<String>,
    retry: bool,
    is_ok: bool,
}

type Called = wasmtime::Result<Returned>;

async fn call(pre: &Pre, store: &mut Store<RunState>) -> Called {
    match pre {
        Pre::Job(pre) => {
            let tick: Resource<Tick> = store.data_mut().table.push(Tick)?;
            let job = pre.instantiate_async(&mut *store).await?;
            let returned = job.tickhost_job_entry().call_run(&mut *store, Resource::new_borrow(tick.rep())).await?;
            Ok(match returned {
                Ok(message) => Returned { message, retry: false, is_ok: true },
                Err(failure) => Returned { message: Some(failure.message), retry: failure.retry, is_ok: false },
            })
        }
        Pre::Command(pre) => {
            let command = pre.instantiate_async(&mut *store).await?;
            let is_ok = command.wasi_cli_run().call_run(&mut *store).await?.is_ok();
            Ok(Returned { message: None, retry: false, is_ok })
        }
    }
}

enum Ended {
    Returned(Called),
    WallTime,
    Stopped(String),
}

fn outcome(ended: Ended, state: &RunState, limits: &Limits, cpu_us: u64) -> Outcome {
    let over = |limit: &str, message: String| Outcome::OverLimit { limit: limit.to_owned(), message };
    match ended {
        Ended::Returned(Ok(Returned { message, is_ok: true, .. })) => Outcome::Succeeded { message },
        Ended::Returned(Ok(Returned { message, retry, .. })) => {
            // A failure that follows from a limit names the limit.
            match (message, state.sender.met()) {
                (Some(said), Some((limit, met))) if said.contains(&met) => over(limit, met),
                (Some(message), _) => Outcome::Failed { message, retry },
                (None, _) => Outcome::Failed { message: after("its `run` returned an error", state), retry },
            }
        }
        Ended::WallTime => over(
            "wall",
            format!(
                "it was still running after {} ms; the job declares `wall = \"{} ms\"`",
                limits.wall_ms, limits.wall_ms
            ),
        ),
        Ended::Stopped(message) => Outcome::Revoked { message },
        Ended::Returned(Err(error)) => trapped(&error, state, limits, cpu_us),
    }
}

/// What a guest says about its end is kept in the ledger, so it is kept short.
fn shortened(mut outcome: Outcome) -> Outcome {
    let text = match &mut outcome {
        Outcome::Succeeded { message } => message.as_mut(),
        Outcome::Failed { message, .. }
        | Outcome::Trapped { message }
        | Outcome::OverLimit { message, .. }
        | Outcome::Revoked { message } => Some(message),
        Outcome::NeverStarted { .. } | Outcome::Lost { .. } | Outcome::Unanswered { .. } => None,
    };
    if let Some(text) = text.filter(|text| text.len() > MESSAGE_BYTES_MAX) {
        let dropped = text.len() - MESSAGE_BYTES_MAX;
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX));
        text.push_str(&format!("… {dropped} bytes dropped"));
    }
    outcome
}

fn trapped(error: &wasmtime::Error, state: &RunState, limits: &Limits, cpu_us: u64) -> Outcome {
    let over = |limit: &str, message: String| Outcome::OverLimit { limit: limit.to_owned(), message };
    if error.downcast_ref::<CpuUsedUp>().is_some() {
        let message =
            format!("it used {} ms of CPU time; the job declares `cpu = \"{} ms\"`", cpu_us / 1_000, limits.cpu_ms);
        return over("cpu", message);
    }
    if let Some(exit) = error.downcast_ref::<I32Exit>() {
        return match exit.0 {
            0 => Outcome::Succeeded { message: Some("exited".into()) },
            // WASI's `exit` says no more than that; a number is from `exit-with-code`.
            1 => Outcome::Failed { message: after("it exited with an error", state), retry: false },
            code => {
                Outcome::Failed { message: after(&format!("it exited with the error {code}"), state), retry: false }
            }
        };
    }
    if let Some(wanted) = state.memory.refused.filter(|_| state.memory.is_node_full) {
        let (used, most) = state.memory.of_the_node();
        let message = format!(
            "it wanted {wanted} bytes of memory, within what its job declares, and the node had no more: its runs use {used} \
             of {most} bytes (`memory_max_mib`); the operator lets them declare more than that (`memory_overcommit`)"
        );
        return over("memory", message);
    }
    if let Some(wanted) = state.memory.refused {
        let message =
            format!("it wanted {wanted} bytes of memory; the job declares `memory = {}`", limits.memory_bytes);
        return over("memory", message);
    }
    if let Some(wanted) = state.memory.tables.refused {
        let declared = limits.table_elements;
        let message = format!("it wanted {wanted} elements of tables; the job declares `table_elements = {declared}`");
        return over("table_elements", message);
    }
    Outcome::Trapped { message: after(&trap::told(error, &state.output.text()), state) }
}

/// What ended a run that could not say why, and the limit that it had met before, which may be the reason.
fn after(ended: &str, state: &RunState) -> String {
    match state.sender.met() {
        Some((limit, message)) => format!("{ended}; before that it had met its limit `{limit}`: {message}"),
        None => ended.to_owned(),
    }
}
