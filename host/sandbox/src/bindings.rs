//! Generated from `wit/`: the host's side of the world `job`.

#![allow(missing_docs, unreachable_pub, reason = "generated")]

pub use crate::capability::{CallError, ticks::Key, ticks::Tick};

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
