//! The ledger as one run sees it.

use std::sync::{Mutex, PoisonError};

use futures::future::BoxFuture;
use tickhost_ledger::{
    Command, Grant, Refusal, Reply, RunId,
    command::KvChange,
    effect::{EffectAnswer, EffectResult},
};
use tickhost_replica::{Replica, fault};
use tickhost_sandbox::{EffectRequest, Journal, JournalError, KvPage, Output};
use uuid::Uuid;

use crate::{now, table::Table};

/// Names in one page of `kv.list-names`. Arbitrary.
const PAGE_NAMES: usize = 100;

pub(crate) struct RunJournal {
    pub(crate) replica: Replica,
    pub(crate) table: Table,
    pub(crate) run: RunId,
    pub(crate) grant: Grant,
    pub(crate) output: Output,
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
        match self.replica.propose_one(now(), command).await {
            Ok(Reply::Effect(answer)) => Ok(answer),
            Ok(Reply::Refused(refusal @ Refusal::NotANumber { .. })) => Err(JournalError::Invalid(refusal.to_string())),
            Ok(Reply::Refused(refusal)) => Err(JournalError::Fenced(refusal.to_string())),
            Ok(other) => Err(JournalError::Fenced(format!("unexpected answer {other:?}"))),
            Err(error) => Err(JournalError::Fenced(error.to_string())),
        }
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
                    key: effect.key,
                    what: effect.what,
                    fingerprint: effect.fingerprint,
                    results: self.take_results(),
                })
                .await;
            fault::point("effect-committed");
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

    fn kv_get(&self, name: &str) -> Option<Vec<u8>> {
        let namespace = &self.run.launch.job.namespace;
        self.replica.read(|state| state.kv(namespace, name).map(|value| value.bytes.0.clone()))
    }

    fn kv_names(&self, prefix: &str, cursor: Option<&str>) -> KvPage {
        let namespace = &self.run.launch.job.namespace;
        let names = self.replica.read(|state| state.kv_names(namespace, prefix, cursor, PAGE_NAMES));
        let cursor = if names.len() == PAGE_NAMES { names.last().cloned() } else { None };
        KvPage { names, cursor }
    }
}
