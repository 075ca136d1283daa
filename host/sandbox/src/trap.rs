//! What is told of a trap: what the guest said last, then what stopped it, then where, in its own functions.

use wasmtime::{Trap, WasmBacktrace};

use crate::output::{OutputText, Stream};

/// Lines of output that lead the report. A panic in Rust is three, the end of a Python traceback too.
const LINES: usize = 5;
/// Functions that are named. Further out lies what called the job, not what went wrong.
const FUNCTIONS: usize = 6;

/// Functions that a language brings along, by how their names begin: what a person wrote lies between them.
const RUNTIMES: [&str; 17] = [
    "<alloc::",
    "<core::",
    "<std::",
    "JS_",
    "Py",
    "_Py",
    "__main_void",
    "__rust",
    "__wasi",
    "__wasm",
    "alloc::",
    "cabi_",
    "core::",
    "js_",
    "rust_",
    "std::",
    "wit_bindgen",
];
/// And by their whole names.
const OF_C: [&str; 4] = ["_start", "abort", "exit", "main"];

/// The report.
pub(crate) fn told(error: &wasmtime::Error, output: &OutputText) -> String {
    let reason = match error.downcast_ref::<Trap>() {
        Some(trap) => trap.to_string(),
        None => error.root_cause().to_string(),
    };
    let frames = error.downcast_ref::<WasmBacktrace>().map_or(&[][..], WasmBacktrace::frames);
    let names: Vec<String> = frames.iter().map(|frame| frame.func_name().map_or("?".into(), demangled)).collect();
    let mut lines = last_lines(output);
    lines.push(format!("{reason}{}", places(&names)));
    lines.join("\n")
}

/// On standard error where there is anything: that is where programs say why they end.
fn last_lines(output: &OutputText) -> Vec<String> {
    let of = |wanted: Option<Stream>| {
        let lines = output.lines.iter().filter(|line| wanted.is_none_or(|stream| line.stream == stream));
        let mut last: Vec<String> = lines.rev().take(LINES).map(|line| line.text.clone()).collect();
        last.reverse();
        last
    };
    let said = of(Some(Stream::Stderr));
    if said.is_empty() { of(None) } else { said }
}

fn demangled(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

/// The guest's own functions from the innermost outwards, and how many were folded.
fn places(names: &[String]) -> String {
    let is_runtime = |name: &str| {
        name.contains('#') || OF_C.contains(&name) || RUNTIMES.iter().any(|prefix| name.starts_with(prefix))
    };
    let own: Vec<&str> = names.iter().map(String::as_str).filter(|name| !is_runtime(name)).take(FUNCTIONS).collect();
    let folded = match names.len() - own.len() {
        0 => String::new(),
        1 => " (1 frame is folded)".into(),
        more => format!(" ({more} frames are folded)"),
    };
    if own.is_empty() { folded } else { format!(", in {}{folded}", own.join(" < ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Line;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| demangled(name)).collect()
    }

    #[test]
    fn what_a_person_wrote_is_named_and_the_runtime_is_folded() {
        let frames = names(&[
            "__rust_start_panic",
            "rust_panic",
            "core::panicking::panic_fmt",
            "_ZN6charge7collect17h0123456789abcdefE",
            "_ZN6charge3run17h0123456789abcdefE",
            "tickhost:job/entry@0.1.0#run",
        ]);
        assert_eq!(places(&frames), ", in charge::collect < charge::run (4 frames are folded)");
        assert_eq!(places(&names(&["abort"])), " (1 frame is folded)");
        assert_eq!(places(&[]), "");
        let deep = vec!["again".to_owned(); 100];
        assert_eq!(places(&deep).matches("again").count(), FUNCTIONS);
    }

    #[test]
    fn the_guests_last_words_lead() {
        let line = |stream, text: &str| Line { number: 0, stream, text: text.into() };
        let mut output = OutputText { lines: vec![line(Stream::Stdout, "working")], ..OutputText::default() };
        let trap = wasmtime::Error::from(Trap::UnreachableCodeReached);
        assert_eq!(told(&trap, &output).lines().next(), Some("working"), "where nothing is on standard error");
        for n in 0..10 {
            output.lines.push(line(Stream::Stderr, &n.to_string()));
        }
        let told = told(&trap, &output);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[..LINES], ["5", "6", "7", "8", "9"]);
        assert!(lines[LINES].contains("unreachable"), "{told}");
    }
}
