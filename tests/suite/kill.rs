//! The short forms of the kill test and the fault test; the long ones are `cargo xtask kill-test` and
//! `cargo xtask fault-test`.

use support::{faults::FaultTest, kill::KillTest};

#[tokio::test]
async fn a_host_that_is_killed_again_and_again_doubles_nothing_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let report = KillTest { kills: 12, seed: 7 }.run(dir.path()).await;
    assert!(report.faults.is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_to_which_things_are_done_doubles_nothing_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let report = FaultTest { faults: 6, seed: 5 }.run(dir.path()).await;
    assert!(report.faults.is_empty(), "{report}");
}
