//! `kv`: the namespace's key-value store. A change and its record are one entry of the ledger.

use tickhost_ledger::{
    command::KvChange,
    effect::{ByteBuf, EffectAnswer, EffectResult},
};
use wasmtime::component::Resource;

use super::{CallError, ticks::Key};
use crate::{
    bindings::tickhost::job::{errors::Code, kv},
    run::RunState,
};

/// Bytes of a name. Arbitrary.
const NAME_BYTES_MAX: usize = 512;
/// Bytes of a value: every node holds it in memory.
const VALUE_BYTES_MAX: usize = 256 << 10;

fn check_name(name: &str) -> Result<(), CallError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        let message = format!("a name of {} bytes; expected 1 to {NAME_BYTES_MAX}", name.len());
        return Err(CallError::new(Code::Invalid, message));
    }
    Ok(())
}

impl RunState {
    async fn change(&mut self, key: &Resource<Key>, name: String, change: KvChange) -> Result<Option<i64>, CallError> {
        check_name(&name)?;
        let key = self.table.get(key)?.uuid;
        self.sender.count_effect()?;
        let value = if let KvChange::Set(value) = &change { value.0.len() } else { 0 };
        self.kv_bytes += (name.len() + value) as u64;
        let declared = self.request.limits.kv_bytes;
        if self.kv_bytes > declared {
            return Err(self.sender.over("kv_bytes", "bytes written to the store", self.kv_bytes, declared));
        }
        match self.journal.kv_write(key, name, change).await? {
            EffectAnswer::Replay(EffectResult::Kv { value }) => Ok(value),
            EffectAnswer::PayloadChanged => Err(CallError::new(
                Code::PayloadChanged,
                format!("key {key} was used before for another change; nothing was done"),
            )),
            EffectAnswer::OverQuota(why) => Err(CallError::new(Code::OverLimit, why)),
            other => Err(CallError::new(Code::Other, format!("unexpected answer {other:?}"))),
        }
    }
}

impl kv::Host for RunState {
    async fn get(&mut self, name: String) -> Result<Option<Vec<u8>>, CallError> {
        check_name(&name)?;
        Ok(self.journal.kv_get(name).await?)
    }

    async fn list_names(&mut self, prefix: String, cursor: Option<String>) -> Result<kv::Page, CallError> {
        let page = self.journal.kv_names(prefix, cursor).await?;
        Ok(kv::Page { names: page.names, cursor: page.cursor })
    }

    async fn set(&mut self, key: Resource<Key>, name: String, value: Vec<u8>) -> Result<(), CallError> {
        if value.len() > VALUE_BYTES_MAX {
            let message = format!("a value of {} bytes; at most {VALUE_BYTES_MAX}", value.len());
            return Err(CallError::new(Code::OverLimit, message));
        }
        self.change(&key, name, KvChange::Set(ByteBuf(value))).await.map(|_| ())
    }

    async fn delete(&mut self, key: Resource<Key>, name: String) -> Result<(), CallError> {
        self.change(&key, name, KvChange::Delete).await.map(|_| ())
    }

    async fn increment(&mut self, key: Resource<Key>, name: String, by: i64) -> Result<i64, CallError> {
        let sum = self.change(&key, name, KvChange::Increment(by)).await?;
        sum.ok_or_else(|| CallError::new(Code::Other, "the recorded change was no increment"))
    }
}
