//! `cargo xtask upgrade-test`.

use support::upgrade::UpgradeTest;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let Some(older) = std::env::args().nth(1) else {
        eprintln!("usage: upgrade-test OLDER_TICKHOST");
        return 2.into();
    };
    // Kept unless all is well, also where the test itself gives up.
    let dir = tempfile::tempdir().expect("a temporary folder").keep();
    println!("from {older}; logs in {}", dir.display());
    let report = UpgradeTest { older: older.into() }.run(&dir).await;
    println!("{report}");
    if report.faults.is_empty() {
        let _ = std::fs::remove_dir_all(&dir);
        return 0.into();
    }
    1.into()
}
