//! The short form of the kill test; the long one is `cargo xtask kill-test`.

use support::kill::KillTest;

#[tokio::test]
async fn a_host_that_is_killed_again_and_again_doubles_nothing_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let report = KillTest { kills: 12, seed: 7 }.run(dir.path()).await;
    assert!(report.faults.is_empty(), "{report}");
}
