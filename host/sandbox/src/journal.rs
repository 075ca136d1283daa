//! What a run needs from the ledger.

use futures::future::BoxFuture;
use tickhost_ledger::{
    Digest,
    command::KvChange,
    effect::{EffectAnswer, EffectResult},
};
use uuid::Uuid;

/// An effect that is about to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectRequest {
    /// The idempotency key.
    pub key: Uuid,
    /// For a person.
    pub what: String,
    /// Of the whole payload.
    pub fingerprint: Digest,
}

/// Names in a namespace's store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvPage {
    /// In order.
    pub names: Vec<String>,
    /// Give this back for the next page.
    pub cursor: Option<String>,
}

/// Why the ledger did not take a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The run has no right to act any more; it is about to be stopped.
    #[error("{0}")]
    Fenced(String),
    /// The call cannot be carried out as it is.
    #[error("{0}")]
    Invalid(String),
}

/// The ledger as one run sees it.
pub trait Journal: Send + Sync {
    /// Commits the intent of an effect before its first byte is sent. Waits for the commit; called once for
    /// each sending.
    fn intend(&self, effect: EffectRequest) -> BoxFuture<'_, Result<EffectAnswer, JournalError>>;

    /// Notes what came back. It rides with the next commit, so this does not wait.
    fn result(&self, key: Uuid, result: EffectResult);

    /// Changes the key-value store: effect and record in one entry.
    fn kv_write(&self, key: Uuid, name: String, change: KvChange) -> BoxFuture<'_, Result<EffectAnswer, JournalError>>;

    /// Reads a value as it is now: no older than anything that was committed before the call.
    fn kv_get(&self, name: String) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>>;

    /// Lists names that begin with `prefix`, after `cursor`, as they are now.
    fn kv_names(&self, prefix: String, cursor: Option<String>) -> BoxFuture<'_, Result<KvPage, JournalError>>;
}
