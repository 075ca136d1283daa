//! Instantiating and running a component through the sandbox, against bare wasmtime with the same engine, the same
//! interface and WASI linked, and no durable writes in either.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use support::guest;
use tickhost_ledger::{
    Digest, JobName, LaunchId, RunId, TickAt,
    command::KvChange,
    effect::{EffectAnswer, EffectResult},
    key::KeySource,
    spec::Limits,
};
use tickhost_sandbox::{EffectRequest, Journal, JournalError, KvPage, Output, RunRequest, Sandbox};
use uuid::Uuid;

mod bare;

const RUNS: usize = 2_000;
/// Python takes about a millisecond.
const RUNS_SLOW: usize = 500;

pub(crate) async fn run() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let sandbox = Sandbox::new(dir.path(), 16, 4 << 30, Vec::new()).expect("a sandbox");
    println!("\ninstantiate and run, through the sandbox and bare (median of the runs):");
    for (language, path, runs) in [
        ("Rust", "tests/guests/test-guest.wasm", RUNS),
        ("JavaScript", "examples/probe/probe.wasm", RUNS_SLOW),
        ("Python", "examples/report/report.wasm", RUNS_SLOW),
    ] {
        let bytes = std::fs::read(guest(path)).expect("a guest that `cargo xtask guests` has built");
        sandbox.admit(&bytes).expect("a component that runs");
        let digest = Digest::of(&bytes);
        tickhost_sandbox::Runner::prepare(&sandbox, digest).await.expect("code");
        let bare = bare::Bare::new(sandbox.engine(), &bytes, dir.path());
        // In turns, so that what the machine does besides meets both.
        let (mut through_us, mut bare_us) = (Vec::new(), Vec::new());
        for n in 0..runs + runs / 10 {
            let began = Instant::now();
            let report =
                sandbox.run(request(digest), Arc::new(NoJournal), Output::new(1 << 16), std::future::pending()).await;
            let through = began.elapsed();
            std::hint::black_box(report);
            let began = Instant::now();
            bare.run().await;
            let alone = began.elapsed();
            // The first tenth warms up.
            if n >= runs / 10 {
                through_us.push(through.as_nanos() as i64);
                bare_us.push(alone.as_nanos() as i64);
            }
        }
        through_us.sort_unstable();
        bare_us.sort_unstable();
        let (through, alone) = (crate::percentile(&through_us, 0.5), crate::percentile(&bare_us, 0.5));
        println!(
            "  {language:<10} {:.1} µs through the sandbox, {:.1} µs bare: {:.2} times",
            through as f64 / 1_000.0,
            alone as f64 / 1_000.0,
            through as f64 / alone as f64
        );
    }
}

fn request(component: Digest) -> RunRequest {
    let job = JobName::new("bench", "sandbox").expect("a name");
    let launch = LaunchId { job: job.clone(), tick: TickAt(1_789_610_400), rerun: None };
    RunRequest {
        run: RunId { launch, attempt: 1 },
        component,
        local: "2026-09-17T04:00:00+02:00".into(),
        previous: None,
        keys: KeySource { domain: Uuid::nil(), job, tick: TickAt(1_789_610_400), nonce: None },
        limits: Limits { memory_bytes: 256 << 20, ..Limits::default() },
        allow_http: Vec::new(),
        config: BTreeMap::from([("do".into(), "noop".into())]),
        args: Vec::new(),
        env: BTreeMap::new(),
    }
}

/// The guests here have no effects.
struct NoJournal;

impl Journal for NoJournal {
    fn intend(
        &self,
        _effect: EffectRequest,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<EffectAnswer, JournalError>> + Send + '_>> {
        Box::pin(async { Err(JournalError::Fenced("no effects here".into())) })
    }

    fn result(&self, _key: Uuid, _result: EffectResult) {}

    fn kv_write(
        &self,
        _key: Uuid,
        _name: String,
        _change: KvChange,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<EffectAnswer, JournalError>> + Send + '_>> {
        Box::pin(async { Err(JournalError::Fenced("no effects here".into())) })
    }

    fn kv_get(
        &self,
        _name: String,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Option<Vec<u8>>, JournalError>> + Send + '_>> {
        Box::pin(async { Ok(None) })
    }

    fn kv_names(
        &self,
        _prefix: String,
        _cursor: Option<String>,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<KvPage, JournalError>> + Send + '_>> {
        Box::pin(async { Ok(KvPage::default()) })
    }
}
