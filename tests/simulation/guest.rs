//! Guests without code: what a run does follows from the seed and its name.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use tickhost_ledger::{
    Digest,
    effect::{EffectAnswer, EffectResult, HttpAnswer},
    launch::Outcome,
    rows::Usage,
};
use tickhost_sandbox::{
    AdmitError, CodeError, ComponentReport, EffectRequest, Journal, Output, RunReport, RunRequest, Runner,
};

use crate::{
    disk::SimStore,
    entropy::Random,
    world::{Event, World},
};

/// What runs components on one node.
pub(crate) struct SimRunner {
    pub(crate) seed: u64,
    pub(crate) store: SimStore,
}

/// A run while it lives: whatever happens to it, its end is noted.
struct Living {
    world: World,
    node: u64,
    run: tickhost_ledger::RunId,
    is_over: bool,
}

impl Living {
    fn over(&mut self) {
        self.is_over = true;
        self.world.note(Event::Over { node: self.node, run: self.run.clone() });
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        if !self.is_over {
            self.over();
        }
    }
}

impl SimRunner {
    /// The guest's own doing.
    async fn script(&self, request: &RunRequest, journal: &dyn Journal) -> Outcome {
        let run = request.run.to_string();
        let mut random = Random::of(self.seed, &run);
        let does = request.config.get("do").map(String::as_str);
        let (steps, step_ms) = match does {
            Some("long") => (random.between(1, 3), (500, 4_000)),
            // Longer than a session.
            Some("longest") => (random.between(5, 12), (1_000, 3_000)),
            _ => (random.between(1, 3), (5, 400)),
        };
        let (world, node) = (&self.store.world, self.store.node);
        for n in 0..steps {
            tokio::time::sleep(Duration::from_millis(random.between(step_ms.0, step_ms.1))).await;
            if !world.is_alive(node, self.store.boot) {
                std::future::pending::<()>().await;
            }
            world.note(Event::Step { node, run: request.run.clone() });
            let label = format!("effect-{n}");
            let key = request.keys.key(std::slice::from_ref(&label));
            let what = format!("POST {label}");
            let effect = EffectRequest { key, what, fingerprint: Digest::of(label.as_bytes()) };
            match journal.intend(effect).await {
                Ok(EffectAnswer::Go) => {}
                Ok(EffectAnswer::Replay(_) | EffectAnswer::InDoubt) => continue,
                Ok(EffectAnswer::PayloadChanged) => {
                    return Outcome::Trapped { message: "its payload has changed".into() };
                }
                Ok(EffectAnswer::OverQuota(message)) => return Outcome::Trapped { message },
                Err(error) => return Outcome::Trapped { message: error.to_string() },
            }
            if !world.is_alive(node, self.store.boot) {
                std::future::pending::<()>().await;
            }
            world.note(Event::Effect { node, run: request.run.clone(), label, key });
            tokio::time::sleep(Duration::from_millis(random.below(50))).await;
            let answer = HttpAnswer { status: 200, headers: vec![], body: None, body_digest: Digest::of(b"") };
            journal.result(key, EffectResult::Http(answer));
        }
        let fails = request.config.contains_key("fails") && random.chance(20);
        match fails {
            true => Outcome::Failed { message: "it was to fail".into(), retry: random.chance(50) },
            false => Outcome::Succeeded { message: None },
        }
    }
}

impl Runner for SimRunner {
    fn run<'a>(
        &'a self,
        request: RunRequest,
        journal: Arc<dyn Journal>,
        _output: Output,
        stop: BoxFuture<'a, String>,
    ) -> BoxFuture<'a, RunReport> {
        Box::pin(async move {
            let (world, node) = (self.store.world.clone(), self.store.node);
            if !world.is_alive(node, self.store.boot) {
                return std::future::pending().await;
            }
            let run = request.run.clone();
            let row_is_durable = {
                let disk = self.store.disk.lock();
                let live = disk.live.get(tickhost_replica::db::RUNS, run.to_string().as_bytes());
                live.is_some() && live == disk.durable_run(&run.to_string())
            };
            world.note(Event::Began { node, run: run.clone(), row_is_durable });
            let mut living = Living { world, node, run: run.clone(), is_over: false };
            let script = self.script(&request, &*journal);
            tokio::pin!(script);
            // The host may take some time to stop what a guest does.
            let stopping_ms = Random::of(self.seed, &format!("stop {run}")).below(400);
            let outcome = tokio::select! {
                biased;
                message = stop => tokio::select! {
                    biased;
                    outcome = &mut script => outcome,
                    () = tokio::time::sleep(Duration::from_millis(stopping_ms)) => Outcome::Revoked { message },
                },
                outcome = &mut script => outcome,
            };
            living.over();
            RunReport { outcome, usage: Usage::default() }
        })
    }

    fn prepare(&self, component: Digest) -> BoxFuture<'_, Result<(), CodeError>> {
        let found = self.component_bytes(component);
        let mut random = Random::of(self.seed, &format!("{} {}", self.store.node, self.store.world.now_us()));
        // Mostly it is ready; now and then it takes as long as compiling does, and once in a while as long as a session.
        let ms = match random.below(100) {
            0 => random.between(5_000, 20_000),
            1..5 => random.between(100, 2_000),
            _ => random.below(3),
        };
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            found.await.map(|_| ())
        })
    }

    fn warm(&self) -> BTreeSet<Digest> {
        self.store.disk.lock().live.components.clone()
    }

    fn memory_used(&self) -> u64 {
        0
    }

    fn has_component(&self, component: &Digest) -> bool {
        self.store.disk.lock().live.components.contains(component)
    }

    fn keep(&self, bytes: Bytes) -> BoxFuture<'_, Result<Digest, CodeError>> {
        let digest = Digest::of(&bytes);
        let mut disk = self.store.disk.lock();
        disk.live.components.insert(digest);
        disk.synced.components.insert(digest);
        Box::pin(async move { Ok(digest) })
    }

    fn component_bytes(&self, component: Digest) -> BoxFuture<'_, Result<Vec<u8>, CodeError>> {
        let is_here = self.has_component(&component);
        Box::pin(async move {
            match is_here {
                true => Ok(COMPONENT.to_vec()),
                false => Err(CodeError::Missing {
                    digest: component,
                    path: "simulated".into(),
                    source: std::io::ErrorKind::NotFound.into(),
                }),
            }
        })
    }

    fn admit(&self, bytes: Bytes) -> BoxFuture<'_, Result<ComponentReport, AdmitError>> {
        Box::pin(async move {
            let digest = self.keep(bytes.clone()).await?.to_string();
            let (size, world) = (bytes.len() as u64, "tickhost:job".to_owned());
            Ok(ComponentReport { digest, size, world, imports: vec![], exports: vec![], memory_bytes: None })
        })
    }

    fn check_memory(&self, _component: Digest, _limit: u64) -> BoxFuture<'_, Result<(), AdmitError>> {
        Box::pin(async { Ok(()) })
    }
}

/// The one component that there is.
pub(crate) const COMPONENT: &[u8] = b"a component that only the simulation can run";
