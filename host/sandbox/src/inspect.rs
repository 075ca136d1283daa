//! What a component is, and everything that keeps it from running here, told at once.

use serde::{Deserialize, Serialize};
use tickhost_ledger::Digest;
use wasmtime::component::{Component, types::ComponentItem};

use crate::{
    bindings::{COMMAND_EXPORT, JOB_EXPORT, Pre},
    engine::Sandbox,
};

/// The WASI release that the host links. Components may ask for any 0.2.x up to it.
const WASI: &str = "0.2.12";

/// What a component is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentReport {
    /// The digest of its bytes.
    pub digest: String,
    /// Its size in bytes.
    pub size: u64,
    /// The world it is made for: `tickhost:job` or `wasi:cli/command`.
    pub world: String,
    /// What it imports.
    pub imports: Vec<String>,
    /// What it exports.
    pub exports: Vec<String>,
    /// Bytes of linear memory it needs to begin with.
    pub memory_bytes: Option<u64>,
}

/// One thing that keeps a component from running here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What was found, what was expected, and what to do.
    pub message: String,
}

/// A component that cannot run here, with every reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this component cannot run here:\n{}", self.problems.iter().map(|p| format!("  - {}", p.message)).collect::<Vec<_>>().join("\n"))]
pub struct RefusedComponent {
    /// All of them.
    pub problems: Vec<Problem>,
}

impl RefusedComponent {
    fn one(message: impl Into<String>) -> Self {
        Self { problems: vec![Problem { message: message.into() }] }
    }
}

impl Sandbox {
    /// Looks at a file that is to run as a component. Compiling it takes seconds for JavaScript and Python.
    ///
    /// # Errors
    /// Everything that keeps it from running: a wrong kind of file, every missing import, no `entry`.
    pub fn inspect(&self, bytes: &[u8]) -> Result<ComponentReport, RefusedComponent> {
        self.compile_checked(bytes).map(|(report, _)| report)
    }

    /// As [`Sandbox::inspect`], with what was compiled for it.
    pub(crate) fn compile_checked(&self, bytes: &[u8]) -> Result<(ComponentReport, Component), RefusedComponent> {
        if let Some(found) = wrong_kind(bytes) {
            return Err(RefusedComponent::one(found));
        }
        let component = Component::from_binary(&self.engine, bytes)
            .map_err(|e| RefusedComponent::one(format!("it is no valid component: {e:#}")))?;
        let report = self.report(&component, bytes);
        let mut problems: Vec<String> = self.missing(&component);
        let linked = problems.is_empty().then(|| self.linker.instantiate_pre(&component));
        let is_known = report.world != UNKNOWN;
        if !is_known {
            problems.push(no_entry(&report.exports));
        }
        let checked =
            linked.map(|linked| linked.and_then(|pre| if is_known { Pre::new(pre).map(drop) } else { Ok(()) }));
        if let Some(Err(e)) = checked {
            problems.push(format!(
                "an import or export has another type than the host's, which has tickhost:job@0.1.0 and WASI {WASI}; build \
                 it against those: {e:#}"
            ));
        }
        if problems.is_empty() {
            return Ok((report, component));
        }
        Err(RefusedComponent { problems: problems.into_iter().map(|message| Problem { message }).collect() })
    }

    fn report(&self, component: &Component, bytes: &[u8]) -> ComponentReport {
        let ty = component.component_type();
        let names = |names: Vec<&str>| names.into_iter().map(ToOwned::to_owned).collect::<Vec<_>>();
        let exports = names(ty.exports(&self.engine).map(|(name, _)| name).collect());
        let has = |export: &str| exports.iter().any(|e| e.starts_with(export));
        let world = match (has(JOB_EXPORT), has(COMMAND_EXPORT)) {
            (true, _) => "tickhost:job",
            (false, true) => "wasi:cli/command",
            (false, false) => UNKNOWN,
        };
        ComponentReport {
            digest: Digest::of(bytes).to_string(),
            size: bytes.len() as u64,
            world: world.to_owned(),
            imports: names(ty.imports(&self.engine).map(|(name, _)| name).collect()),
            exports,
            memory_bytes: initial_memory(component),
        }
    }

    /// Every function that is imported and not linked, by interface.
    fn missing(&self, component: &Component) -> Vec<String> {
        let mut problems = Vec::new();
        let mut probe = self.linker.clone();
        probe.allow_shadowing(false);
        for (name, item) in component.component_type().imports(&self.engine) {
            let ComponentItem::ComponentInstance(instance) = &item.ty else {
                problems.push(format!("it imports `{name}` outside of any interface; the host offers interfaces only"));
                continue;
            };
            let offered = offered_name(name);
            let mut functions = Vec::new();
            for (function, item) in instance.exports(&self.engine) {
                if !matches!(item.ty, ComponentItem::ComponentFunc(_)) {
                    continue;
                }
                // Defining what is there already fails: that is how a linker tells what it has.
                let is_linked = offered.as_ref().is_some_and(|offered| {
                    probe.instance(offered).is_ok_and(|mut i| i.func_new(function, |_, _, _, _| Ok(())).is_err())
                });
                if !is_linked {
                    functions.push(function.to_owned());
                }
            }
            if !functions.is_empty() {
                problems.push(missing_import(name, &functions));
            }
        }
        problems
    }
}

/// Bytes of the largest memory that a component begins with.
pub(crate) fn initial_memory(component: &Component) -> Option<u64> {
    component.resources_required()?.max_initial_memory_size.map(|pages| pages << 16)
}

/// The interface as the host names it: its own version of the same track.
fn offered_name(import: &str) -> Option<String> {
    let (interface, version) = import.split_once('@')?;
    let (package, _) = interface.split_once('/')?;
    match package {
        "tickhost:job" if version.starts_with("0.1.") => Some(format!("{interface}@0.1.0")),
        _ if package.starts_with("wasi:") && version.starts_with("0.2.") => Some(format!("{interface}@{WASI}")),
        _ => None,
    }
}

fn missing_import(name: &str, functions: &[String]) -> String {
    let functions = functions.join("`, `");
    let fix = if name.starts_with("wasi:") && name.contains("@0.3") {
        format!("the host has WASI {WASI}; build it for wasm32-wasip2")
    } else if name.starts_with("wasi:") {
        format!("the host has WASI up to {WASI}")
    } else if name.starts_with("tickhost:job") {
        "the host has tickhost:job@0.1.0; copy its `wit/` and build again".to_owned()
    } else {
        format!("the host offers tickhost:job@0.1.0 and WASI {WASI}, and nothing else")
    };
    format!("it imports `{name}` with `{functions}`, which the host does not have; {fix}")
}

/// No world of the host's.
const UNKNOWN: &str = "unknown";

fn no_entry(exports: &[String]) -> String {
    let found = if exports.is_empty() { "nothing".to_owned() } else { format!("`{}`", exports.join("`, `")) };
    let hint = if exports.iter().any(|e| e.starts_with("wasi:cli/run@")) {
        "; build it for wasm32-wasip2"
    } else if exports.iter().any(|e| e.starts_with("wasi:http/incoming-handler@")) {
        "; it is a handler of HTTP requests, which nobody sends here"
    } else {
        ""
    };
    format!(
        "it exports {found}; a job exports `tickhost:job/entry@0.1.0`, and a program with a `main` `wasi:cli/run` of any \
         0.2 release{hint}"
    )
}

/// The kind of a file that is no component, and what to do about it.
fn wrong_kind(bytes: &[u8]) -> Option<String> {
    const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";
    const MODULE: &[u8] = b"\0asm\x01\0\0\0";
    let text = || std::str::from_utf8(&bytes[..bytes.len().min(512)]).ok().map(str::trim_start);
    let kind = if bytes.starts_with(COMPONENT) {
        return None;
    } else if bytes.is_empty() {
        "it is empty"
    } else if bytes.starts_with(MODULE) {
        "it is a core module, not a component; build it for wasm32-wasip2"
    } else if bytes.starts_with(b"\0asm") {
        "it is WebAssembly of an encoding that the host does not know"
    } else if bytes.starts_with(b"\x7fELF") {
        "it is an ELF binary; build it for wasm32-wasip2"
    } else if bytes.starts_with(b"PK") {
        "it is a zip archive; give the component inside it"
    } else if bytes.starts_with(&[0x1f, 0x8b]) {
        "it is gzip; unpack it"
    } else if text().is_some_and(|t| t.starts_with('<')) {
        "it is an HTML page, perhaps the error page of a download"
    } else if text().is_some_and(|t| t.starts_with("(component") || t.starts_with("(module")) {
        "it is WebAssembly text; assemble it first"
    } else if text().is_some_and(|t| t.starts_with("version https://git-lfs")) {
        "it is a Git LFS pointer; run `git lfs pull`"
    } else if text().is_some() {
        "it is text"
    } else {
        "it is no WebAssembly"
    };
    Some(format!("{kind}; expected a component (`\\0asm`, then 0d 00 01 00)"))
}
