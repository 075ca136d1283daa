//! Finds what is missing and installs it where it may: as root with apt, with npm and pip in folders of their own.
//! Elsewhere it prints the exact command.

use std::path::{Path, PathBuf};

use crate::run::{Cargo, Failed, Step, say};

/// How Rust guests are built here.
pub(crate) enum RustGuests {
    /// rustup has the target.
    Rustup,
    /// Debian's rustc builds the standard library for it.
    Debian,
}

/// What guests are built with.
pub(crate) struct GuestTools {
    pub(crate) rust: RustGuests,
    /// A folder with componentize-py in it.
    pub(crate) python: PathBuf,
}

const TARGET: &str = "wasm32-wasip2";
const DEBIAN_RUST: [&str; 6] = ["rustc-web", "cargo-web", "rust-web-src", "rust-web-llvm", "lld-22", "wasi-libc"];

/// What the host itself needs beyond Rust.
pub(crate) fn host() -> Result<(), Failed> {
    let mut missing = Vec::new();
    if !Step::new("c++", &["--version"]).succeeds() {
        missing.push("g++");
    }
    if !has_libclang() {
        missing.push("libclang-dev");
    }
    install(&missing, "RocksDB is built from source")
}

/// bindgen loads it at build time.
fn has_libclang() -> bool {
    let is_libclang = |dir: PathBuf| {
        let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|file| file.file_name());
        names
            .into_iter()
            .any(|name| name.to_string_lossy().starts_with("libclang") && name.to_string_lossy().contains(".so"))
    };
    let llvm = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let versioned =
        llvm.filter(|dir| dir.file_name().to_string_lossy().starts_with("llvm-")).map(|dir| dir.path().join("lib"));
    let named = std::env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let usual = ["/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"].map(PathBuf::from);
    // A library without its unversioned name, as Debian's runtime package has it, is none that bindgen finds.
    versioned.chain(named).chain(usual).any(is_libclang)
}

/// What the tests need beyond that.
pub(crate) fn tests() -> Result<(), Failed> {
    if !Step::new("faketime", &["--version"]).succeeds() {
        install(&["faketime"], "a test sets the clock that a host sees")?;
    }
    if !is_root() {
        // Nobody else may cut cables; the fault test says so and goes without.
        return Ok(());
    }
    let cables = [("ip", "-V", "iproute2"), ("nft", "--version", "nftables")];
    let missing = cables.into_iter().filter(|(tool, version, _)| !Step::new(tool, &[version]).succeeds());
    let missing: Vec<&str> = missing.map(|(_, _, package)| package).collect();
    install(&missing, "the fault test cuts the cables between nodes in network namespaces")
}

/// What guests in three languages need.
pub(crate) fn guests(cargo: &Cargo) -> Result<GuestTools, Failed> {
    let mut missing = Vec::new();
    if !Step::new("npm", &["--version"]).succeeds() {
        missing.extend(["nodejs", "npm"]);
    }
    if !Step::new("python3", &["-m", "pip", "--version"]).succeeds() {
        missing.extend(["python3", "python3-pip"]);
    }
    install(&missing, "the JavaScript and Python examples are built with npm and pip packages")?;
    let rust = rust_guests()?;
    javascript(cargo)?;
    let python = python(cargo)?;
    Ok(GuestTools { rust, python })
}

fn rust_guests() -> Result<RustGuests, Failed> {
    let installed = || Step::new("rustup", &["target", "list", "--installed"]).output();
    if installed().is_some_and(|list| list.lines().any(|line| line == TARGET)) {
        return Ok(RustGuests::Rustup);
    }
    if has_debian_rust() {
        return Ok(RustGuests::Debian);
    }
    if installed().is_some() {
        say(&format!("rustup target add {TARGET}"));
        if Step::new("rustup", &["target", "add", TARGET]).succeeds() {
            return Ok(RustGuests::Rustup);
        }
        say("rustup cannot fetch the target; Debian's packages can build it");
    }
    install(&DEBIAN_RUST, &format!("Rust guests are built for {TARGET}; `rustup target add {TARGET}` does as well"))?;
    Ok(RustGuests::Debian)
}

fn has_debian_rust() -> bool {
    let libc = Path::new("/usr/lib/wasm32-wasi").exists();
    let source = Path::new("/usr/bin/rust-lld").exists();
    libc && source && Step::new("/usr/bin/cargo", &["--version"]).succeeds()
}

fn javascript(cargo: &Cargo) -> Result<(), Failed> {
    let dir = cargo.root().join("plugins/javascript");
    if dir.join("node_modules/@bytecodealliance/componentize-js").exists() {
        return Ok(());
    }
    say("npm ci in plugins/javascript");
    Step::new("npm", &["ci", "--no-audit", "--no-fund", "--loglevel=error"]).dir(&dir).run()
}

fn python(cargo: &Cargo) -> Result<PathBuf, Failed> {
    let tools = cargo.target().join("python-tools");
    if !tools.join("bin/componentize-py").exists() {
        say("pip install componentize-py");
        let requirements = cargo.root().join("plugins/python/requirements.txt");
        let arguments = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"];
        Step::new("python3", &arguments)
            .dir(cargo.root())
            .arg("--target")
            .arg(&tools)
            .arg("-r")
            .arg(&requirements)
            .run()?;
    }
    Ok(tools)
}

fn is_root() -> bool {
    Step::new("id", &["-u"]).output().is_some_and(|id| id.trim() == "0")
}

/// Installs Debian packages as root, or says which.
fn install(packages: &[&str], why: &str) -> Result<(), Failed> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !is_root() || !Step::new("apt-get", &["--version"]).succeeds() {
        return Err(Failed(format!("{why}, and this is missing: {list}\n  sudo apt-get install -y {list}")));
    }
    say(&format!("{why}: apt-get install {list}"));
    Step::new("apt-get", &["update", "-qq"]).run()?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(packages);
    Step::new("apt-get", &arguments).env("DEBIAN_FRONTEND", "noninteractive").run()
}
