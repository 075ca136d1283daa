//! `ticks`: the tick of a run, and the keys made from it. There is no other way to a key.

use tickhost_ledger::TickAt;
use uuid::Uuid;
use wasmtime::component::Resource;

use super::CallError;
use crate::{
    bindings::tickhost::job::{errors::Code, ticks},
    run::RunState,
};

/// Bytes of one label, and labels in one path. Arbitrary: a label names a customer or a file.
const LABEL_BYTES_MAX: usize = 1_024;
const PATH_MAX: usize = 16;

/// The tick of the run. Its data is the run's.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct Tick;

/// A key: the path of labels that leads to it.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct Key {
    path: Vec<String>,
    pub(crate) uuid: Uuid,
}

impl ticks::Host for RunState {}

impl RunState {
    fn make_key(&mut self, mut path: Vec<String>, label: String) -> Result<Resource<Key>, CallError> {
        let length = label.len();
        if label.is_empty() || length > LABEL_BYTES_MAX {
            let message = format!("a label of {length} bytes; expected 1 to {LABEL_BYTES_MAX}");
            return Err(CallError::new(Code::Invalid, message));
        }
        if path.len() >= PATH_MAX {
            return Err(CallError::new(Code::Invalid, format!("a key below {PATH_MAX} others; expected fewer")));
        }
        self.keys += 1;
        let declared = self.request.limits.keys;
        if self.keys > declared {
            return Err(self.sender.over("keys", "keys", self.keys, declared));
        }
        path.push(label);
        let uuid = self.request.keys.key(&path);
        Ok(self.table.push(Key { path, uuid })?)
    }
}

fn instant(tick: TickAt) -> ticks::Instant {
    ticks::Instant { seconds: u64::try_from(tick.0).unwrap_or(0), nanoseconds: 0 }
}

impl ticks::HostTick for RunState {
    fn namespace(&mut self, _tick: Resource<Tick>) -> wasmtime::Result<String> {
        Ok(self.request.run.launch.job.namespace.clone())
    }

    fn job(&mut self, _tick: Resource<Tick>) -> wasmtime::Result<String> {
        Ok(self.request.run.launch.job.name.clone())
    }

    fn launch_id(&mut self, _tick: Resource<Tick>) -> wasmtime::Result<String> {
        Ok(self.request.run.launch.to_string())
    }

    fn scheduled(&mut self, _tick: Resource<Tick>) -> wasmtime::Result<ticks::Instant> {
        Ok(instant(self.request.run.launch.tick))
    }

    fn scheduled_local(&mut self, _tick: Resource<Tick>) -> wasmtime::Result<String> {
        Ok(self.request.local.clone())
    }

    fn previous(&mut self, _tick: Resource<Tick>) -> wasmtime::Result<Option<ticks::Instant>> {
        Ok(self.request.previous.map(instant))
    }

    fn attempt(&mut self, _tick: Resource<Tick>) -> wasmtime::Result<u32> {
        Ok(self.request.run.attempt)
    }

    fn key(&mut self, _tick: Resource<Tick>, label: String) -> Result<Resource<Key>, CallError> {
        self.make_key(Vec::new(), label)
    }

    fn drop(&mut self, tick: Resource<Tick>) -> wasmtime::Result<()> {
        self.table.delete(tick)?;
        Ok(())
    }
}

impl ticks::HostKey for RunState {
    fn child(&mut self, key: Resource<Key>, label: String) -> Result<Resource<Key>, CallError> {
        let path = self.table.get(&key)?.path.clone();
        self.make_key(path, label)
    }

    fn text(&mut self, key: Resource<Key>) -> wasmtime::Result<String> {
        Ok(self.table.get(&key)?.uuid.to_string())
    }

    fn drop(&mut self, key: Resource<Key>) -> wasmtime::Result<()> {
        self.table.delete(key)?;
        Ok(())
    }
}
