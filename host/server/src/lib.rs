//! The host: the parts wired together, the HTTP API, and the command line.
//!
//! Start reading at [`host::Host::start`]; `leader` is what one node does
//! for all of them, `member` what each does for itself; `api` is what
//! clients see; `cli` has one file for each verb.

pub mod api;
mod audit;
mod backup;
mod between;
pub mod cli;
mod client;
pub mod cluster;
mod components;
mod credentials;
mod heartbeat;
pub mod host;
mod import;
mod jobs;
mod leader;
pub mod manifest;
mod member;
mod metrics;
mod restore;
mod settings;
mod token;
mod watch;
