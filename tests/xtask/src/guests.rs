//! Building every guest component, in three languages.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    run::{Cargo, Failed, Step, say},
    setup::{self, GuestTools, RustGuests},
};

/// The Rust guests' own workspaces.
pub(crate) const RUST_WORKSPACES: [&str; 3] =
    ["plugins/Cargo.toml", "examples/charge/Cargo.toml", "tests/guests/Cargo.toml"];
/// Those with tests that run without a host.
pub(crate) const NATIVE_TESTS: [&str; 1] = ["plugins/http-call/Cargo.toml"];

/// What a Rust workspace gives: the file that cargo writes, and where it is wanted.
const RUST_COMPONENTS: [(&str, &str, &str); 4] = [
    ("plugins/Cargo.toml", "http_call.wasm", "plugins/http-call/http-call.wasm"),
    ("examples/charge/Cargo.toml", "charge.wasm", "examples/charge/charge.wasm"),
    ("tests/guests/Cargo.toml", "test_guest.wasm", "tests/guests/test-guest.wasm"),
    ("tests/guests/Cargo.toml", "test-program.wasm", "tests/guests/test-program.wasm"),
];

pub(crate) fn build(cargo: &Cargo) -> Result<(), Failed> {
    let tools = setup::guests(cargo)?;
    for (manifest, file, to) in RUST_COMPONENTS {
        say(&format!("build {to}"));
        let target = cargo.target().join("guests");
        rust(cargo, &tools, manifest, &target)?;
        let built = target.join("wasm32-wasip2/release").join(file);
        let to = cargo.root().join(to);
        fs::copy(&built, &to).map_err(|e| Failed(format!("copy `{}` to `{}`: {e}", built.display(), to.display())))?;
    }
    let javascript = cargo.root().join("examples/probe");
    if is_older(&javascript.join("probe.wasm"), &[&javascript.join("probe.js"), &cargo.root().join("wit")]) {
        say("build examples/probe/probe.wasm");
        Step::new(
            "node",
            &["build.mjs", "../../examples/probe/probe.js", "../../examples/probe/probe.wasm", "../../wit"],
        )
        .dir(&cargo.root().join("plugins/javascript"))
        .run()?;
    }
    let python = cargo.root().join("examples/report");
    if is_older(&python.join("report.wasm"), &[&python.join("report.py"), &cargo.root().join("wit")]) {
        say("build examples/report/report.wasm");
        let arguments = ["-d", "../../wit", "-w", "job", "componentize", "report", "-o", "report.wasm"];
        Step::new(tools.python.join("bin/componentize-py"), &arguments)
            .env("PYTHONPATH", &tools.python)
            .dir(&python)
            .run()?;
    }
    Ok(())
}

fn rust(cargo: &Cargo, tools: &GuestTools, manifest: &str, target: &Path) -> Result<(), Failed> {
    let arguments = ["build", "--quiet", "--release", "--target", "wasm32-wasip2", "--manifest-path", manifest];
    let step = match tools.rust {
        RustGuests::Rustup => Step::new("cargo", &arguments),
        // Debian's wasi-libc lies where its own compiler does not look.
        RustGuests::Debian => Step::new("/usr/bin/cargo", &arguments)
            .arg("-Zbuild-std=std,panic_abort")
            .env("RUSTC", "/usr/bin/rustc")
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-L /usr/lib/wasm32-wasi"),
    };
    step.env("CARGO_TARGET_DIR", target).dir(cargo.root()).run()
}

/// Whether a file is missing or older than what it is made from.
fn is_older(made: &Path, from: &[&PathBuf]) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let newest = |path: &PathBuf| -> Option<SystemTime> {
        let inside = fs::read_dir(path).into_iter().flatten().flatten().filter_map(|file| changed(&file.path()));
        inside.chain(changed(path)).max()
    };
    match changed(made) {
        Some(made) => from.iter().filter_map(|path| newest(path)).any(|from| from > made),
        None => true,
    }
}
