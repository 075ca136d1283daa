//! Simulates whole nodes: the hosts as they are, over a network, disks, clocks and guests that follow from a seed.
//!
//! `simulate SEED` runs one simulation; the same seed gives the same history, byte for byte. `simulate --from A --count N`
//! runs many, each in a process of its own. Start reading at `Simulation::run`; what must hold is in `invariants`, what is
//! planted to see whether it is found in `planted`.

mod client;
mod disk;
mod entropy;
mod guest;
mod invariants;
mod network;
mod node;
mod plan;
mod planted;
mod simulation;
mod world;

use std::{
    ops::Range,
    process::{Command, ExitCode},
    rc::Rc,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use simulation::{Options, Simulation};
use tracing_subscriber::filter::LevelFilter;
use world::{Hook, World};

/// Within this at least a millisecond passes.
const SPIN: Duration = Duration::from_secs(30);

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// What somebody has panicked with since the last time.
fn take_panic() -> Option<String> {
    std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner)).pop()
}

/// What is asked for on the command line.
struct Asked {
    options: Options,
    count: u64,
    /// Every planted bug is looked for.
    planted: bool,
}

fn usage() -> String {
    "simulate SEED | simulate --from SEED --count N | simulate --all-planted; the first two with any of: --nodes 3|5, --seconds N (of faults), --planted BUG, \
     --only KIND, --trace FILE, --log"
        .into()
}

fn one_of(what: &str, known: &[&str], word: Option<&String>) -> Result<String, String> {
    let word = word.ok_or_else(usage)?;
    match known.contains(&word.as_str()) {
        true => Ok(word.clone()),
        false => Err(format!("there is no {what} `{word}`; there are {}", known.join(", "))),
    }
}

fn read(arguments: &[String]) -> Result<Asked, String> {
    let options =
        Options { seed: 0, nodes: 0, faults_ms: 60_000, planted: vec![], only: vec![], trace: None, log: false };
    let mut asked = Asked { options, count: 0, planted: false };
    let mut words = arguments.iter();
    let number = |word: Option<&String>| word.and_then(|word| word.parse().ok()).ok_or_else(usage);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--from" => asked.options.seed = number(words.next())?,
            "--count" => asked.count = number(words.next())?,
            "--nodes" => asked.options.nodes = number(words.next())?,
            "--seconds" => asked.options.faults_ms = 1_000 * number(words.next())?,
            "--planted" => asked.options.planted.push(one_of("bug", &planted::names(), words.next())?),
            "--only" => asked.options.only.push(one_of("kind of faults", &plan::KINDS, words.next())?),
            "--log" => asked.options.log = true,
            "--trace" => asked.options.trace = Some(words.next().ok_or_else(usage)?.into()),
            "--all-planted" => asked.planted = true,
            seed => asked.options.seed = seed.parse().map_err(|_| usage())?,
        }
    }
    Ok(asked)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = match read(&arguments) {
        Ok(asked) => asked,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    };
    if asked.planted {
        return planted::find_all();
    }
    if asked.count > 0 {
        return sweep(&asked, &arguments);
    }
    // A thread that has drawn nothing yet: what the standard library draws once follows from the seed, too.
    let simulated = std::thread::Builder::new().name("simulation".into()).spawn(move || one(asked.options));
    if let Ok(Ok(true)) = simulated.map(std::thread::JoinHandle::join) {
        return ExitCode::SUCCESS;
    }
    if let Some(panic) = take_panic() {
        println!("the simulation itself: {panic}");
    }
    ExitCode::FAILURE
}

/// Simulates once, and says how it went in one line.
fn one(mut options: Options) -> bool {
    entropy::seed_this_thread(options.seed);
    assert!(entropy::is_ours(), "random bytes do not follow from the seed on this platform");
    entropy::seed_this_thread(options.seed);
    std::panic::set_hook(Box::new(|info| {
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(info.to_string());
    }));
    if options.nodes == 0 {
        options.nodes = if options.seed.is_multiple_of(3) { 5 } else { 3 };
    }
    if options.log {
        let log = tracing_subscriber::fmt().without_time().with_ansi(false).with_max_level(LevelFilter::INFO);
        log.with_writer(std::io::stderr).init();
    }
    let trace = options.trace.as_ref().map(|path| std::fs::File::create(path).expect("create the trace"));
    let world = World::new(options.seed, &options.planted, trace);
    tickhost_replica::fault::install(Rc::new(Hook(world.clone())));
    let (seed, nodes) = (options.seed, options.nodes);
    let watched = world.clone();
    std::thread::spawn(move || watch(seed, &watched));
    let ended = Simulation::run(world, options);
    let how = match &ended.failure {
        None => "holds".to_owned(),
        Some(failure) => format!("FAILS at {} ms: {}: {}", ended.at_ms, failure.invariant, failure.what),
    };
    println!(
        "seed {seed}: {nodes} nodes, {} faults, {} messages lost, {} bugs come by, {} lines, {}: {how}",
        ended.faults,
        ended.lost,
        ended.come_by,
        ended.lines,
        &ended.digest.hex()[..16],
    );
    ended.failure.is_none()
}

/// A node that spins lets no time pass: that would never end.
fn watch(seed: u64, world: &World) {
    let mut before = None;
    loop {
        std::thread::sleep(SPIN);
        let now_us = Some(world.now_us());
        if before == now_us {
            println!("seed {seed}: FAILS at {} ms: nobody spins: no time passes in {SPIN:?}", world.now_us() / 1_000);
            std::process::exit(1);
        }
        before = now_us;
    }
}

/// What a simulation in a process of its own has said.
struct Said {
    seed: u64,
    holds: bool,
    text: String,
}

impl Said {
    /// The faults that it met.
    fn faults(&self) -> Option<u64> {
        self.text.split(" nodes, ").nth(1)?.split(' ').next()?.parse().ok()
    }
}

/// Simulates many seeds, as many at a time as there are cores, each in a process of its own, until `is_enough`.
fn simulate(seeds: Range<u64>, arguments: &[&str], is_enough: impl Fn(&Said) -> bool + Sync) -> Vec<Said> {
    let program = std::env::current_exe().expect("this program");
    let next = Mutex::new(seeds);
    let said: Mutex<Vec<Said>> = Mutex::default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(seed) = seed else { return };
                    let run = Command::new(&program).arg(seed.to_string()).args(arguments).output();
                    let run = run.expect("start a simulation");
                    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
                    let text = format!("{}{}", out.trim(), err.trim());
                    let one = Said { seed, holds: run.status.success(), text };
                    if is_enough(&one) {
                        *next.lock().unwrap_or_else(PoisonError::into_inner) = 0..0;
                    }
                    said.lock().unwrap_or_else(PoisonError::into_inner).push(one);
                }
            });
        }
    });
    let mut said = said.into_inner().unwrap_or_else(PoisonError::into_inner);
    said.sort_by_key(|said| said.seed);
    said
}

fn sweep(asked: &Asked, arguments: &[String]) -> ExitCode {
    let mut passed_on = Vec::new();
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if matches!(word, "--from" | "--count") {
            words.next();
        } else {
            passed_on.push(word);
        }
    }
    let from = asked.options.seed;
    let said = simulate(from..from + asked.count, &passed_on, |said| {
        if !said.holds {
            println!("{}", said.text);
        }
        false
    });
    let failed = said.iter().filter(|said| !said.holds).count();
    let faults: u64 = said.iter().filter_map(Said::faults).sum();
    let idle = said.iter().filter(|said| said.faults().is_none_or(|faults| faults == 0)).count();
    println!("{} simulations, {faults} faults, {idle} without any, {failed} failed", said.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
