//! The ledger as one run sees it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use tickhost_ledger::{
    Command, Grant, Refusal, Reply, RunId,
    command::KvChange,
    effect::{EffectAnswer, EffectResult},
};
use tickhost_replica::{Clock, Replica, fault};
use tickhost_sandbox::{EffectRequest, Journal, JournalError, KvPage, Output};
use uuid::Uuid;

use crate::{lease::Lease, order::SESSION_MS, table::Table};

/// Names in one page of `kv.list-names`. Arbitrary.
const PAGE_NAMES: usize = 100;
/// A run that cannot reach the leader waits until its session has lapsed, and is stopped then.
const REPORT_WITHIN: Duration = Duration::from_millis(SESSION_MS.unsigned_abs());

pub(crate) struct RunJournal {
    pub(crate) replica: Replica,
    pub(crate) table: Table,
    pub(crate) lease: Arc<Lease>,
    pub(crate) clock: Clock,
    pub(crate) run: RunId,
    pub(crate) grant: Grant,
    pub(crate) output: Output,
    /// Counts the intents.
    pub(crate) calls: AtomicU32,
    /// Results that ride with the next commit.
    pub(crate) results: Mutex<Vec<(Uuid, EffectResult)>>,
}

impl RunJournal {
    pub(crate) fn take_results(&self) -> Vec<(Uuid, EffectResult)> {
        std::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn propose(&self, command: Command) -> Result<EffectAnswer, JournalError> {
        // What the run wrote before an effect is evidence if it is lost during it. Unsynced: it survives the end
        // of the process.
        if let Err(error) = self.table.put_output(&self.run, &self.output.text()) {
            tracing::warn!(run = %self.run, %error, "keep a run's output");
        }
        let results = command.results().to_vec();
        match self.replica.proposer().report(command, REPORT_WITHIN).await {
            Ok(Reply::Effect(answer)) => Ok(answer),
            Ok(Reply::Refused(refusal @ Refusal::NotANumber { .. })) => Err(JournalError::Invalid(refusal.to_string())),
            Ok(Reply::Refused(refusal)) => Err(JournalError::Fenced(refusal.to_string())),
            Ok(other) => Err(JournalError::Fenced(format!("unexpected answer {other:?}"))),
            Err(error) => {
                // They ride with the end, then: what was answered must not become in doubt.
                self.results.lock().unwrap_or_else(PoisonError::into_inner).splice(0..0, results);
                Err(JournalError::Fenced(error.to_string()))
            }
        }
    }

    /// Reads the namespace's store once this node holds all that was committed before.
    async fn read<R>(&self, read: impl FnOnce(&tickhost_ledger::State, &str) -> R) -> Result<R, JournalError> {
        let fenced = |e: tickhost_replica::ProposeError| JournalError::Fenced(e.to_string());
        self.replica.catch_up().await.map_err(fenced)?;
        Ok(self.replica.read(|state| read(state, &self.run.launch.job.namespace)))
    }
}

impl Journal for RunJournal {
    fn intend(&self, effect: EffectRequest) -> BoxFuture<'_, Result<EffectAnswer, JournalError>> {
        Box::pin(async move {
            fault::point("effect-proposed");
            let answer = self
                .propose(Command::IntendEffect {
                    run: self.run.clone(),
                    grant: self.grant,
                    call: self.calls.fetch_add(1, Ordering::Relaxed) + 1,
                    key: effect.key,
                    what: effect.what,
                    fingerprint: effect.fingerprint,
                    results: self.take_results(),
                })
                .await;
            fault::point("effect-committed");
            // The commit may have taken longer than the lease: then nothing is sent, and the intent stays in doubt.
            let has_lapsed = self.lease.session(self.clock.since_boot_ms()).is_none();
            if answer.is_ok() && has_lapsed && !fault::planted("send-when-lapsed") {
                return Err(JournalError::Fenced("the session with the leader has lapsed".into()));
            }
            answer
        })
    }

    fn result(&self, key: Uuid, result: EffectResult) {
        fault::point("effect-sent");
        self.results.lock().unwrap_or_else(PoisonError::into_inner).push((key, result));
    }

    fn kv_write(&self, key: Uuid, name: String, change: KvChange) -> BoxFuture<'_, Result<EffectAnswer, JournalError>> {
        Box::pin(self.propose(Command::WriteKv {
            run: self.run.clone(),
            grant: self.grant,
            key,
            name,
            change,
            results: self.take_results(),
        }))
    }

    fn kv_get(&self, name: String) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>> {
        Box::pin(self.read(move |state, namespace| state.kv(namespace, &name).map(|value| value.bytes.0.clone())))
    }

    fn kv_names(&self, prefix: String, cursor: Option<String>) -> BoxFuture<'_, Result<KvPage, JournalError>> {
        Box::pin(self.read(move |state, namespace| {
            let names = state.kv_names(namespace, &prefix, cursor.as_deref(), PAGE_NAMES);
            let cursor = if names.len() == PAGE_NAMES { names.last().cloned() } else { None };
            KvPage { names, cursor }
        }))
    }
}
