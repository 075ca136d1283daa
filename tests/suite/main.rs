//! What crosses crates: a real host as a process of its own, real components, and a recorder that judges.
//!
//! `cargo xtask test` builds the host and the guests first.
#![allow(clippy::unwrap_used)]

mod backup;
mod bad_input;
mod cli;
mod clock;
mod cluster;
mod disk;
mod effects;
mod examples;
mod fixture;
mod identity;
mod kill;
mod life;
mod limits;
mod namespaces;
mod program;
mod simulation;
mod time;
