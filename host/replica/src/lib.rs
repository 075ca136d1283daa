//! The ledger under Raft, kept in RocksDB.
//!
//! One database holds everything that a node must not lose: the log, the vote, the state, and (in a column
//! family of its own) the executor's table. It has one write-ahead log, so one sync serves all. This crate knows
//! nothing of wasmtime, nor of what a schedule means.
//!
//! Start reading at [`Replica`]; [`db`] has the rules of what is synced when.

pub mod backup;
pub mod clock;
pub mod db;
pub mod fault;
pub mod identity;
pub mod join;
mod listen;
mod log;
mod machine;
mod network;
mod peers;
mod propose;
mod raft;
mod replica;
mod rocks;
pub mod store;
mod tail;
mod tls;

pub use clock::Clock;
pub use db::{Db, OpenError};
pub use identity::Identity;
pub use listen::{Caller, Listen, Routes};
pub use machine::AppliedOutputs;
pub use peers::{Body, CallError, Lane, Peers, Target, Transport};
pub use propose::{ProposeError, Proposer};
pub use replica::{RaftStatus, Replica, Setup};
pub use tls::TlsListener;
