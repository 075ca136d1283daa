//! The worlds a component may be made for: the host's side of `job`, generated from `wit/`, and `wasi:cli/command`.

#![allow(missing_docs, unreachable_pub, reason = "generated")]

pub use crate::capability::{CallError, ticks::Key, ticks::Tick};
use crate::run::RunState;
use wasmtime::component::{Component, InstancePre};
use wasmtime_wasi::p2::bindings::CommandPre;

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "job",
    imports: {
        "tickhost:job/http": async | trappable,
        "tickhost:job/kv": async | trappable,
        default: trappable,
    },
    exports: { default: async },
    with: {
        "tickhost:job/ticks.tick": Tick,
        "tickhost:job/ticks.key": Key,
    },
    trappable_error_type: { "tickhost:job/errors.error" => CallError },
});

/// A component that is linked, by its world.
#[derive(Clone)]
pub(crate) enum Pre {
    /// `tickhost:job`.
    Job(JobPre<RunState>),
    /// `wasi:cli/command`: a program that has a `main`.
    Command(CommandPre<RunState>),
}

impl Pre {
    /// By what it exports: an `entry` of ours comes first.
    ///
    /// # Errors
    /// An export of another type than the world's.
    pub(crate) fn new(linked: InstancePre<RunState>) -> wasmtime::Result<Self> {
        let (engine, ty) = (linked.engine(), linked.component().component_type());
        let is_job = ty.exports(engine).any(|(name, _)| name.starts_with(JOB_EXPORT));
        if is_job { JobPre::new(linked).map(Self::Job) } else { CommandPre::new(linked).map(Self::Command) }
    }

    pub(crate) fn component(&self) -> &Component {
        match self {
            Self::Job(pre) => pre.instance_pre().component(),
            Self::Command(pre) => pre.instance_pre().component(),
        }
    }
}

/// What a component of each world exports.
pub(crate) const JOB_EXPORT: &str = "tickhost:job/entry@0.1";
pub(crate) const COMMAND_EXPORT: &str = "wasi:cli/run@0.2";
