//! `logging`: structured records, one line each.

use std::fmt::Write as _;

use crate::{
    bindings::tickhost::job::logging::{self, Level},
    run::RunState,
};

impl logging::Host for RunState {
    fn log(&mut self, level: Level, message: String, fields: Vec<(String, String)>) -> wasmtime::Result<()> {
        let level = match level {
            Level::Trace => "TRACE",
            Level::Debug => "DEBUG",
            Level::Info => "INFO",
            Level::Warn => "WARN",
            Level::Error => "ERROR",
        };
        let mut text = format!("{level} {message}");
        for (name, value) in fields {
            // Writing to a String cannot fail.
            let _ = write!(text, " {name}={value:?}");
        }
        self.output.record(&text);
        Ok(())
    }
}
