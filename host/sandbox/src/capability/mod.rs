//! What a guest can do, one file for each: link it, check the grant, perform it.

pub(crate) mod config;
pub(crate) mod http;
pub(crate) mod kv;
pub(crate) mod logging;
pub(crate) mod send;
pub(crate) mod ticks;
pub(crate) mod wasi;
pub(crate) mod wasi_http;

use crate::{
    bindings::tickhost::job::errors::{self, Code},
    journal::JournalError,
    run::RunState,
};

/// How a guest's call ends when it does not succeed: with an error for the guest, or by stopping it.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub enum CallError {
    Guest(errors::Error),
    Trap(wasmtime::Error),
}

impl CallError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let retry = matches!(code, Code::Timeout | Code::Unavailable);
        Self::Guest(errors::Error { code, message: message.into(), retry })
    }
}

impl From<wasmtime::Error> for CallError {
    fn from(error: wasmtime::Error) -> Self {
        Self::Trap(error)
    }
}

impl From<wasmtime::component::ResourceTableError> for CallError {
    fn from(error: wasmtime::component::ResourceTableError) -> Self {
        match error {
            wasmtime::component::ResourceTableError::Full => {
                Self::new(Code::OverLimit, "this run holds too many keys and streams; drop those it no longer needs")
            }
            other => Self::Trap(other.into()),
        }
    }
}

impl From<JournalError> for CallError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Fenced(why) => Self::new(Code::Fenced, why),
            JournalError::Invalid(why) => Self::new(Code::Invalid, why),
        }
    }
}

impl errors::Host for RunState {
    fn convert_error(&mut self, error: CallError) -> wasmtime::Result<errors::Error> {
        match error {
            CallError::Guest(error) => Ok(error),
            CallError::Trap(error) => Err(error),
        }
    }
}
