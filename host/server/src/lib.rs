//! The host: the parts wired together, the HTTP API, and the command line.
//!
//! Start reading at [`host::Host::start`]; `leader` is the loop that turns ticks into launches; `api` is what
//! clients see; `cli` has one file for each verb.

pub mod api;
pub mod cli;
mod client;
pub mod host;
mod import;
mod jobs;
mod leader;
pub mod manifest;
mod settings;
