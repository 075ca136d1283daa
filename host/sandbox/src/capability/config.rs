//! `config`: the job's `config` table.

use crate::{bindings::tickhost::job::config, run::RunState};

impl config::Host for RunState {
    fn get(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.request.config.get(&name).cloned())
    }

    fn get_all(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(self.request.config.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
    }
}
