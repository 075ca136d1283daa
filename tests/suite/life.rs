//! A job's life on one host: ticks, pauses, edits, logs, re-runs, restarts.

use serde_json::Value;
use support::host::until;

use crate::fixture::{Fixture, NEVER_NOW, SOON, job, outcome};

#[tokio::test]
async fn every_tick_of_a_job_is_launched_with_its_own_name_and_keys() {
    let f = Fixture::start(&job("* * * * * *", "skip", "", "do = \"keys\"")).await;
    let ticks = until("three ticks", SOON, async || {
        let ticks = f.host.ticks("t/job").await?;
        (ticks.iter().filter(|(_, verdict, _)| verdict == "succeeded").count() >= 3).then_some(ticks)
    })
    .await;
    let mut keys = std::collections::BTreeSet::new();
    for (tick, _, launch) in ticks.iter().filter(|(_, verdict, _)| verdict == "succeeded") {
        let launch = launch.clone().unwrap();
        assert_eq!(launch, format!("t/job@{tick}"));
        let story = f.host.launch(&launch).await.unwrap();
        let (kind, value) = outcome(&story);
        assert_eq!(kind, "succeeded");
        let message = value["message"].as_str().unwrap().to_owned();
        let parts: Vec<&str> = message.split('|').collect();
        assert_eq!(parts[2], launch, "{message}");
        assert!(keys.insert(parts[0].to_owned()), "a key stands for two ticks");
    }
}

#[tokio::test]
async fn a_job_is_paused_resumed_and_deleted_with_its_history() {
    let f = Fixture::start(&job("* * * * * *", "skip", "", "do = \"noop\"")).await;
    f.jobs_are_stored(1).await;
    let done = |arguments: &[&str]| {
        let output = f.host.cli(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    done(&["pause", "t/job", "--note", "moving house"]);
    assert_eq!(f.host.cli(&["pause", "t/job", "--note", "again"]).status.code(), Some(1));
    let paused = async || {
        let ticks = f.host.ticks("t/job").await?;
        (ticks.iter().filter(|(_, verdict, _)| verdict == "skipped(paused)").count() >= 2).then_some(())
    };
    until("two ticks of the pause", SOON, paused).await;
    done(&["resume", "t/job"]);
    let succeeded = async || {
        let ticks = f.host.ticks("t/job").await?;
        ticks.iter().rev().find(|(_, verdict, _)| verdict == "succeeded").map(|_| ())
    };
    until("a tick after the pause", SOON, succeeded).await;
    done(&["delete", "t/job"]);
    assert_eq!(f.host.get("/v1/jobs").await.unwrap().as_array().unwrap().len(), 0);
    assert!(!f.host.ticks("t/job").await.unwrap().is_empty(), "its history stays");
}

#[tokio::test]
async fn dev_applies_a_change_of_the_manifest_and_an_unchanged_one_is_a_no_op() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"noop\"")).await;
    f.jobs_are_stored(1).await;
    let revision = async || f.host.get("/v1/jobs/t/job").await?["revision"].as_u64();
    let path = f.path().join("tickhost.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let applied = f.host.cli(&["apply", path.to_str().unwrap(), "--format", "json"]);
    let applied: Value = serde_json::from_slice(&applied.stdout).unwrap();
    assert_eq!((applied[0]["outcome"].as_str(), revision().await), (Some("unchanged"), Some(1)));
    std::fs::write(&path, text.replace("noop", "keys")).unwrap();
    until("the change is applied", SOON, async || revision().await.filter(|r| *r == 2)).await;
}

#[tokio::test]
async fn logs_show_what_a_run_wrote_and_end_with_its_verdict() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"fail\", how = \"panic\"")).await;
    let story = f.trigger("t/job").await;
    let (kind, value) = outcome(&story);
    assert_eq!(kind, "trapped", "{value}");
    let report = value["message"].as_str().unwrap();
    let (said, place) = report.rsplit_once('\n').unwrap();
    assert!(said.contains("it panicked as configured"), "the guest's last words lead: {report}");
    assert!(place.contains("unreachable") && place.contains("in test_guest::"), "{report}");
    assert!(!place.contains("panicking") && place.contains("are folded"), "{report}");
    let shown = f.host.cli(&["show", story["launch"].as_str().unwrap()]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let memory = shown.lines().find(|line| line.starts_with("memory (bytes)")).unwrap();
    let words: Vec<&str> = memory.split_whitespace().collect();
    let used: u64 = words[2].parse().unwrap();
    assert!(used > 1 << 20 && words[3] == "67108864" && words[4].parse::<u64>().unwrap() > 90, "{shown}");
    assert_eq!(words[6], (2 << 20).to_string(), "half as much again, in whole MiB: {shown}");
    let output = f.host.cli(&["logs", story["launch"].as_str().unwrap(), "--follow"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("err  ") && text.contains("panicked"), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stderr).trim(), "failed");
}

/// Five ends that must be told apart.
#[tokio::test]
async fn the_ways_a_run_can_end_are_distinguishable() {
    for (how, kind, needle) in [
        ("failure", "failed", "as configured"),
        ("exit0", "succeeded", "exited"),
        ("exit7", "failed", "exited with an error"),
        ("trap", "trapped", "unreachable"),
        ("stack", "trapped", "call stack exhausted"),
    ] {
        let f = Fixture::start(&job(NEVER_NOW, "skip", "", &format!("do = \"fail\", how = \"{how}\""))).await;
        let (found, value) = outcome(&f.trigger("t/job").await);
        assert_eq!(found, kind, "{how}: {value}");
        assert!(value.to_string().contains(needle), "{how}: {value}");
    }
}

#[tokio::test]
async fn a_failure_that_asks_for_it_is_tried_again_up_to_the_manifests_bound() {
    let retry = "retry = { attempts = 3, backoff = \"10ms\", when = \"asked\" }";
    let f = Fixture::start(&job(NEVER_NOW, "skip", retry, "do = \"fail\", how = \"retry\"")).await;
    let story = f.trigger("t/job").await;
    assert_eq!(story["attempts"].as_array().unwrap().len(), 3);
    assert_eq!(story["verdict"], "failed");
}

#[tokio::test]
async fn a_host_that_is_told_to_stop_lets_its_runs_end() {
    let mut f = Fixture::start(&job("* * * * * *", "skip", "", "do = \"sleepy\", ms = 1500")).await;
    f.jobs_are_stored(1).await;
    let running = until("a run", SOON, async || {
        let ticks = f.host.ticks("t/job").await?;
        ticks.into_iter().find(|(_, verdict, _)| verdict == "running")?.2
    })
    .await;
    f.host.terminate();
    until("the host has ended", SOON, async || f.host.has_stopped().then_some(())).await;
    f.restart().await;
    assert_eq!(f.closed(&running).await["verdict"], "succeeded");
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_kill() {
    let mut f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"kvcount\", name = \"total\"")).await;
    let before = f.trigger("t/job").await;
    let hash = f.host.get("/v1/status").await.unwrap()["cluster"].clone();
    f.restart().await;
    assert_eq!(f.host.get("/v1/status").await.unwrap()["cluster"], hash);
    assert_eq!(f.host.launch(before["launch"].as_str().unwrap()).await.unwrap(), before);
    // The store remembers too: the next launch counts on.
    let again = f.trigger("t/job").await;
    assert_eq!(outcome(&again).1["message"], "2");
}

/// A closed day's ticks are decided like all others, and the reason is there to be looked up.
#[tokio::test]
async fn a_calendars_days_have_their_verdict_and_a_job_ends_after_its_launches() {
    let manifest = job("* * * * * *", "skip", "exclude = [\"always\"]", "do = \"noop\"")
        .replace("[job.job]", "[job.closed]")
        + &job("* * * * * *", "skip", "max_launches = 2", "do = \"noop\"").replace("namespace = \"t\"\n", "");
    let f = Fixture::start_beside(&manifest, |dir| {
        std::fs::create_dir(dir.join("calendars")).unwrap();
        let always = "weekdays = [\"SUN\", \"MON\", \"TUE\", \"WED\", \"THU\", \"FRI\", \"SAT\"]";
        std::fs::write(dir.join("calendars/always.toml"), always).unwrap();
    })
    .await;
    let ticks =
        until("five closed ticks", SOON, async || f.host.ticks("t/closed").await.filter(|ticks| ticks.len() >= 5))
            .await;
    assert!(ticks.iter().all(|(_, verdict, launch)| verdict == "skipped(excluded)" && launch.is_none()), "{ticks:?}");
    let next = async |job: &str| f.host.get(&format!("/v1/jobs/t/{job}")).await.map(|job| job["next"].clone());
    until("the end of the other one", SOON, async || next("job").await.filter(serde_json::Value::is_null)).await;
    let launched = until("its verdicts", SOON, async || {
        f.host.ticks("t/job").await.filter(|ticks| ticks.iter().all(|(_, verdict, _)| verdict == "succeeded"))
    })
    .await;
    assert_eq!(launched.len(), 2, "{launched:?}");
    assert!(next("closed").await.is_some_and(|next| next.is_string()));
}
