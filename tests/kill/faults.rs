//! `cargo xtask fault-test`.

use support::faults::FaultTest;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut test = FaultTest { faults: 120, seed: 1 };
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse::<u64>().ok());
        match (name.as_str(), value) {
            ("--faults", Some(value)) => test.faults = usize::try_from(value).unwrap_or(usize::MAX),
            ("--seed", Some(value)) => test.seed = value,
            _ => {
                eprintln!("usage: cargo xtask fault-test [--faults N] [--seed N]");
                return 2.into();
            }
        }
    }
    // Kept unless all is well, also where the test itself gives up.
    let dir = tempfile::tempdir().expect("a temporary folder").keep();
    println!("seed {}; logs in {}", test.seed, dir.display());
    let report = test.run(&dir).await;
    println!("{report}");
    if report.faults.is_empty() {
        let _ = std::fs::remove_dir_all(&dir);
        return 0.into();
    }
    println!("repeat it with: cargo xtask fault-test --faults {} --seed {}", test.faults, test.seed);
    1.into()
}
