//! The ledger under Raft, kept in RocksDB.
//!
//! One database holds everything that a node must not lose: the log, the vote, the state, and (in a column
//! family of its own) the executor's table. It has one write-ahead log, so one sync serves all. This crate knows
//! nothing of wasmtime, nor of what a schedule means.
//!
//! Start reading at [`Replica`]; [`db`] has the rules of what is synced when.

pub mod db;
pub mod fault;
mod log;
mod machine;
mod network;
mod raft;
mod replica;

pub use db::{Db, OpenError};
pub use machine::AppliedOutputs;
pub use replica::{ProposeError, RaftStatus, Replica};
