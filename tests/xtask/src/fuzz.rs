//! The fuzz targets, without cargo-fuzz: the stable compiler counts edges as well, and libFuzzer comes with its crate.

use std::path::Path;

use crate::run::{Cargo, Failed, Step, say};

pub(crate) const WORKSPACE: &str = "tests/fuzz/Cargo.toml";

/// What libFuzzer needs in the code that it looks into.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing";

/// Runs the target for that many seconds. No input may take longer than two.
pub(crate) fn schedule(cargo: &Cargo, seconds: &str) -> Result<(), Failed> {
    if seconds.parse::<u32>().is_err() {
        return Err(Failed(format!("`{seconds}` is no number of seconds")));
    }
    let host = Step::new("rustc", &["-vV"]).output().unwrap_or_default();
    let host =
        host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or("x86_64-unknown-linux-gnu").to_owned();
    let target = cargo.target().join("fuzz");
    say("build the fuzz target");
    // With a target named, the flags are not for build scripts.
    Step::new("cargo", &["build", "--quiet", "--release", "--manifest-path", WORKSPACE, "--target", &host])
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", &target)
        .dir(cargo.root())
        .run()?;
    let corpus = target.join("corpus/schedule");
    let findings = target.join("findings/");
    for dir in [&corpus, &findings] {
        std::fs::create_dir_all(dir).map_err(|e| Failed(format!("create `{}`: {e}", dir.display())))?;
    }
    say(&format!("fuzz the schedule for {seconds} s; inputs that fail are written to {}", findings.display()));
    let seeds = cargo.root().join("tests/fuzz/seeds");
    let program = target.join(&host).join("release/schedule");
    run(&program, seconds, &findings, &corpus, &seeds)
}

fn run(program: &Path, seconds: &str, findings: &Path, corpus: &Path, seeds: &Path) -> Result<(), Failed> {
    let limits = [format!("-max_total_time={seconds}"), format!("-artifact_prefix={}", findings.display())];
    Step::new(program, &["-timeout=2", "-verbosity=0", "-print_final_stats=1"])
        .arg(&limits[0])
        .arg(&limits[1])
        .arg(corpus)
        .arg(seeds)
        .run()
}
