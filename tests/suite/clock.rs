//! A host whose wall clock is set while it runs. The time since boot goes on, as on a real machine.

use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use support::host::until;

use crate::fixture::{Fixture, SOON, job};

/// libfaketime gives a program the wall clock that a file says.
fn library() -> PathBuf {
    let roots = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let found = roots.map(|root| root.join("faketime/libfaketimeMT.so.1")).find(|path| path.is_file());
    found.expect("libfaketime; `apt-get install faketime`, as `cargo xtask test` does")
}

/// Sets it, e.g. `+3600`.
pub(crate) fn set(clock: &Path, ahead: &str) {
    // Written beside it and moved: the host reads it at any moment.
    let new = clock.with_extension("new");
    std::fs::write(&new, ahead).unwrap();
    std::fs::rename(&new, clock).unwrap();
}

/// What a host is to run under so that this file sets its wall clock.
pub(crate) fn under(clock: &Path) -> Vec<String> {
    vec![
        "env".to_owned(),
        format!("LD_PRELOAD={}", library().display()),
        format!("FAKETIME_TIMESTAMP_FILE={}", clock.display()),
        "FAKETIME_NO_CACHE=1".into(),
        "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
    ]
}

#[tokio::test]
async fn a_clock_that_leaps_ahead_by_mistake_uses_up_no_ticks() {
    let dir = tempfile::tempdir().unwrap();
    let clock = dir.path().join("clock");
    set(&clock, "+0");
    let manifest = job("* * * * * *", "skip", "", "do = \"noop\"");
    let f = Fixture::start_under(&manifest, None, under(&clock)).await;
    let done = async || {
        let ticks = f.host.ticks("t/job").await.unwrap_or_default();
        ticks.into_iter().filter(|(_, verdict, _)| verdict == "succeeded").count()
    };
    until("a launch", SOON, async || (done().await > 0).then_some(())).await;

    set(&clock, "+1y");
    let held = async || f.host.get("/v1/status").await?["held"].as_str().map(ToOwned::to_owned);
    let why = until("the hold", SOON, held).await;
    assert!(why.contains("the wall clock stepped ahead by 3153"), "{why}");
    let refused = f.host.cli(&["pause", "t/job", "--note", "clock"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the wall clock stepped ahead"), "{refused:?}");

    set(&clock, "+0");
    let before = done().await;
    until("launches again", SOON, async || (done().await > before).then_some(())).await;
    assert!(held().await.is_none());
    for (tick, verdict, _) in f.host.ticks("t/job").await.unwrap() {
        let tick: DateTime<Utc> = tick.parse().unwrap();
        assert!(tick <= Utc::now() + TimeDelta::seconds(1), "{tick} {verdict} is of the time that never was");
    }
}
