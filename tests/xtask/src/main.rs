//! `cargo xtask`: what a newcomer and CI run. It depends on nothing but the standard library, so that it is there
//! before RocksDB and wasmtime are built.

mod fuzz;
mod guests;
mod run;
mod setup;

use std::process::ExitCode;

use run::{Cargo, Failed, Step, say};

const USAGE: &str = "cargo xtask COMMAND

  demo         build everything, run the example jobs on one host, kill it in the middle of a charge run,
               and read from the recorder that each customer was charged exactly once
  test         all checks and all tests
  lint         formatting, clippy and documentation, without the tests
  fmt-check    formatting alone
  guests       build every guest component
  kill-test    kill the host at every named point and at random, 250 times (an option: --kills N)
  fault-test   kill, freeze, cut off and restart the nodes of a cluster, break their disks: 120 times
               (options: --faults N, --seed N)
  upgrade-test [COMMIT]
               build that commit (by default the one before), and upgrade a cluster from it node by node
  simulate N   simulate N clusters of whole nodes, 5,000 by default, with faults that follow from the seed, and look for
               every planted bug (a second number: the seed to begin at)
  histories N  try N histories of the launch protocol over a bad network (a second number: the seed to begin at)
  triples N    compare N random schedules with brute force (a second number: the seed to begin at)
  fuzz SECONDS feed the reader of expressions and the walker with anything
  release      build the optimised tickhost that operators run, and say where it is
  bench        print the benchmarks, of the optimised tickhost
  example-api  run the API that the examples' manifests name, and show what it receives
  setup        install what is missing, or say what to install

Build output goes to TICKHOST_TARGET, by default ~/.cache/tickhost/target, outside of the checkout.";

/// The short form of what `fuzz` does for an hour.
const FUZZ_SECONDS: &str = "15";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    match dispatch(command, rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed(message)) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: &str, rest: &[String]) -> Result<(), Failed> {
    let cargo = Cargo::new()?;
    match command {
        "demo" => {
            build(&cargo)?;
            cargo.program("demo").run(rest)
        }
        "test" => {
            setup::host()?;
            lint(&cargo)?;
            build(&cargo)?;
            test(&cargo, rest)
        }
        "lint" => {
            setup::host()?;
            lint(&cargo)
        }
        "fmt-check" => fmt_check(&cargo),
        "guests" => guests::build(&cargo),
        "kill-test" | "fault-test" => {
            build(&cargo)?;
            setup::tests()?;
            cargo.program(command).run(rest)
        }
        "upgrade-test" => upgrade_test(&cargo, rest.first().map_or("HEAD~1", String::as_str)),
        "release" => {
            setup::host()?;
            release(&cargo, &["tickhost"])?;
            println!("{}", cargo.released("tickhost").path().display());
            Ok(())
        }
        "bench" => {
            setup::host()?;
            guests::build(&cargo)?;
            release(&cargo, &["tickhost", "bench"])?;
            cargo.released("bench").run(rest)
        }
        "simulate" => simulate(&cargo, rest),
        "histories" => histories(&cargo, rest),
        "triples" => triples(&cargo, rest),
        "fuzz" => fuzz::schedule(&cargo, rest.first().map_or("60", String::as_str)),
        "example-api" => {
            build(&cargo)?;
            cargo.program("example-api").run(rest)
        }
        "setup" => {
            setup::host()?;
            setup::guests(&cargo).map(|_| ())
        }
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        other => Err(Failed(format!("there is no command `{other}`\n\n{USAGE}"))),
    }
}

/// The host's programs and every guest.
fn build(cargo: &Cargo) -> Result<(), Failed> {
    setup::host()?;
    guests::build(cargo)?;
    say("build the host (the first time RocksDB and wasmtime too: half an hour on two cores)");
    cargo.command(&["build", "--workspace", "--bins"]).run()
}

/// Optimised, and without the bugs that tests plant.
fn release(cargo: &Cargo, programs: &[&str]) -> Result<(), Failed> {
    say("build the optimised host (the first time RocksDB and wasmtime too: half an hour on two cores)");
    let bins = programs.iter().flat_map(|program| ["--bin", program]);
    let arguments: Vec<&str> = ["build", "--release", "--workspace"].into_iter().chain(bins).collect();
    cargo.command(&arguments).run()
}

fn fmt_check(cargo: &Cargo) -> Result<(), Failed> {
    say("check the formatting");
    cargo.command(&["fmt", "--all", "--check"]).run()?;
    for manifest in guests::RUST_WORKSPACES.into_iter().chain([fuzz::WORKSPACE]) {
        cargo.command(&["fmt", "--all", "--check", "--manifest-path", manifest]).run()?;
    }
    Ok(())
}

fn lint(cargo: &Cargo) -> Result<(), Failed> {
    fmt_check(cargo)?;
    say("clippy");
    cargo.command(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]).run()?;
    say("documentation");
    cargo
        .command(&["doc", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()
}

/// Builds another commit and this one, one after the other into the same target folder, so that dependencies are shared.
fn upgrade_test(cargo: &Cargo, commit: &str) -> Result<(), Failed> {
    setup::host()?;
    let folder = cargo.target().join("upgrade");
    let (checkout, older) = (folder.join("checkout"), folder.join("tickhost"));
    std::fs::create_dir_all(&folder).map_err(|e| Failed(format!("create `{}`: {e}", folder.display())))?;
    let _ = std::fs::remove_dir_all(&checkout);
    say(&format!("build {commit}"));
    Step::new("git", &["worktree", "prune"]).dir(cargo.root()).run()?;
    Step::new("git", &["worktree", "add", "--force", "--detach"]).arg(&checkout).arg(commit).dir(cargo.root()).run()?;
    cargo.command(&["build", "--workspace", "--bin", "tickhost"]).dir(&checkout).run()?;
    let built = cargo.target().join("debug/tickhost");
    std::fs::copy(&built, &older).map_err(|e| Failed(format!("copy `{}`: {e}", built.display())))?;
    Step::new("git", &["worktree", "remove", "--force"]).arg(&checkout).dir(cargo.root()).run()?;
    build(cargo)?;
    cargo.program("upgrade-test").run(&[older.display().to_string()])
}

/// Random schedules against brute force, many more than the tests try.
fn triples(cargo: &Cargo, rest: &[String]) -> Result<(), Failed> {
    let count = rest.first().map_or("2000000", String::as_str);
    let seed = rest.get(1).map_or("1", String::as_str);
    cargo
        .command(&["test", "--quiet", "-p", "tickhost-schedule", "--test", "brute_force", "--", "--nocapture"])
        .env("CARGO_TARGET_DIR", cargo.target().join("schedule"))
        .env("TICKHOST_TRIPLES", count)
        .env("TICKHOST_TRIPLE_SEED", seed)
        .run()
}

/// Simulations of whole nodes, many more than the tests try.
fn simulate(cargo: &Cargo, rest: &[String]) -> Result<(), Failed> {
    build(cargo)?;
    let count = rest.first().map_or("5000", String::as_str);
    let from = rest.get(1).map_or("1", String::as_str);
    let run = |arguments: &[&str]| {
        cargo.program("simulate").run(&arguments.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    };
    run(&["--all-planted"])?;
    run(&["--from", from, "--count", count])
}

/// Histories of the launch protocol, many more than the tests try. Optimised: there are millions.
fn histories(cargo: &Cargo, rest: &[String]) -> Result<(), Failed> {
    let count = rest.first().map_or("10000000", String::as_str);
    let seed = rest.get(1).map_or("1", String::as_str);
    cargo
        .command(&[
            "test",
            "--release",
            "--quiet",
            "-p",
            "tickhost-ledger",
            "--test",
            "protocol",
            "--",
            "--nocapture",
            "whatever",
        ])
        .env("CARGO_TARGET_DIR", cargo.target().join("ledger"))
        .env("TICKHOST_HISTORIES", count)
        .env("TICKHOST_HISTORY_SEED", seed)
        .run()
}

/// With cargo-nextest where it is installed, so that tests that wait do not wait for each other; else with
/// cargo's own runner.
fn test(cargo: &Cargo, rest: &[String]) -> Result<(), Failed> {
    say("the examples' and plugins' own tests");
    for manifest in guests::NATIVE_TESTS {
        cargo
            .command(&["test", "--quiet", "--manifest-path", manifest])
            .env("CARGO_TARGET_DIR", cargo.target().join("guests-native"))
            .run()?;
    }
    setup::tests()?;
    fuzz::schedule(cargo, FUZZ_SECONDS)?;
    say("the tests");
    let nextest = cargo.command(&["nextest", "--version"]).succeeds();
    let mut arguments = if nextest { vec!["nextest", "run", "--workspace"] } else { vec!["test", "--workspace"] };
    arguments.extend(rest.iter().map(String::as_str));
    cargo.command(&arguments).run()
}
