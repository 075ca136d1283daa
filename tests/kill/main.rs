//! The long kill test: `kill -9` of the single host at every named point and at random, judged by the recorder.

use std::process::ExitCode;

use support::kill::KillTest;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let kills = match arguments.as_slice() {
        [] => 250,
        [flag, number] if flag == "--kills" && number.parse::<usize>().is_ok() => number.parse().unwrap_or(250),
        other => {
            eprintln!("found {other:?}, expected nothing or `--kills N`");
            return ExitCode::from(2);
        }
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let report = KillTest { kills, seed: 1 }.run(dir.path()).await;
    println!("{report}");
    if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
