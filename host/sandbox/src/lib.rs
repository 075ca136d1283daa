//! Runs one component in wasmtime within its limits.
//!
//! A [`Sandbox`] has the one engine, its configuration and the cache of compiled code. [`Sandbox::run`] gives a
//! run a fresh store, calls the component's `entry.run` with the tick, and says how it ended and what it used.
//! Each thing a guest can do is a file under `capability`: link it, check the grant, perform it. What an effect
//! needs from the ledger goes through [`Journal`]; this crate knows nothing of Raft.
//!
//! Start reading at [`Sandbox::run`].

mod bindings;
mod capability;
mod code;
mod egress;
mod engine;
mod inspect;
mod journal;
mod meter;
mod output;
mod run;
mod runner;
mod trap;

pub use code::{AdmitError, CodeError};
pub use egress::{AllowRule, AllowRuleError};
pub use engine::{Sandbox, SandboxError};
pub use inspect::{ComponentReport, Problem, RefusedComponent};
pub use ipnet::IpNet;
pub use journal::{EffectRequest, Journal, JournalError, KvPage};
pub use output::{Line, Output, OutputText, Stream};
pub use run::{RunReport, RunRequest};
pub use runner::Runner;
