//! Effects across a kill: what was done is not done again, what is in doubt is the owner's choice, and the keys stay.

use std::{collections::BTreeSet, time::Duration};

use support::host::until;

use crate::fixture::{Fixture, SOON, job, outcome};

const TWO_EFFECTS: &str = "do = \"effect\", url = \"{api}/charges/job\", count = 2";

/// Starts a job that runs every second, lets the host kill itself at the second effect, and starts it again.
async fn cut_off(on_unknown: &str, point: &str) -> (Fixture, String) {
    let manifest =
        job("* * * * * *", on_unknown, "retry = { attempts = 9, backoff = \"10ms\", when = \"asked\" }", TWO_EFFECTS);
    let manifest = if on_unknown == "repeat" { manifest.replace(", when = \"asked\"", "") } else { manifest };
    let mut f = Fixture::start_with(&manifest, Some(&format!("{point}:2"))).await;
    f.until_it_killed_itself().await;
    f.restart().await;
    let first = until("the launch that was cut off", SOON, async || {
        let ticks = f.host.ticks("t/job").await?;
        ticks.into_iter().find_map(|(_, _, launch)| launch)
    })
    .await;
    (f, first)
}

fn arrivals(f: &Fixture, launch: &str) -> Vec<String> {
    let of_launch = f.recorder.received().into_iter().filter(|r| r.body.contains(launch));
    of_launch.map(|r| r.key).collect()
}

/// Cut off before the second intent is committed, before its first byte, and after its answer. A result rides with
/// the next commit: what the ledger has not seen the result of is sent again, under its own key and no other.
#[tokio::test]
async fn a_repeat_job_finishes_under_the_same_keys() {
    for (point, sent) in [("effect-proposed", 3), ("effect-committed", 2), ("effect-sent", 3)] {
        let (f, launch) = cut_off("repeat", point).await;
        let story = f.closed(&launch).await;
        assert_eq!(story["verdict"], "succeeded", "{point}: {story}");
        let keys = arrivals(&f, &launch);
        let distinct: BTreeSet<&String> = keys.iter().collect();
        assert_eq!((keys.len(), distinct.len()), (sent, 2), "{point}: {keys:?}");
        assert_eq!(story["attempts"].as_array().unwrap().len(), 2, "{point}");
    }
}

#[tokio::test]
async fn a_skip_job_is_lost_and_nothing_is_sent_again_until_the_operator_says_so() {
    let (f, launch) = cut_off("skip", "effect-sent").await;
    let story = f.closed(&launch).await;
    assert_eq!(story["verdict"], "lost", "{story}");
    let (kind, value) = outcome(&story);
    assert_eq!(kind, "lost");
    assert!(value["evidence"].as_str().unwrap().contains("recorded its start"), "{value}");
    let results: Vec<&str> =
        story["effects"].as_array().unwrap().iter().map(|e| e["result"].as_str().unwrap()).collect();
    assert!(results.contains(&"201") && results.contains(&"in doubt"), "{results:?}");
    assert_eq!(arrivals(&f, &launch).len(), 2);

    let (name, tick) = launch.split_once('@').unwrap();
    let done = f.host.cli(&["trigger", name, "--tick", tick, "--same-key"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let again = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    assert_eq!(f.closed(&again).await["verdict"], "succeeded");
    let keys = arrivals(&f, &launch);
    // The first one was settled and is not sent; the one in doubt is sent under its own key.
    assert_eq!((keys.len(), keys.iter().collect::<BTreeSet<_>>().len()), (3, 2), "{keys:?}");
    assert_eq!(f.closed(&launch).await["verdict"], "lost", "the tick's own verdict stays");
}

/// The run had ended and the ledger did not know: what came back for its effects is not forgotten.
#[tokio::test]
async fn a_run_that_ended_unreported_keeps_its_results() {
    let manifest = job("* * * * * *", "skip", "", TWO_EFFECTS);
    let mut f = Fixture::start_with(&manifest, Some("run-finished:1")).await;
    f.until_it_killed_itself().await;
    f.restart().await;
    let launch = until("the launch", SOON, async || f.host.ticks("t/job").await?.into_iter().find_map(|t| t.2)).await;
    let story = f.closed(&launch).await;
    assert_eq!(story["verdict"], "succeeded", "{story}");
    let results: Vec<&str> = story["effects"].as_array().unwrap().iter().filter_map(|e| e["result"].as_str()).collect();
    assert_eq!(results, ["201", "201"]);
    assert_eq!(arrivals(&f, &launch).len(), 2);
}

#[tokio::test]
async fn the_key_goes_out_as_a_quoted_idempotency_key_and_a_safe_request_has_none() {
    let f = Fixture::start(&job("* * * * * *", "skip", "", TWO_EFFECTS)).await;
    until("two requests", SOON, async || (f.recorder.received().len() >= 2).then_some(())).await;
    for request in f.recorder.received() {
        assert_eq!(uuid::Uuid::parse_str(&request.key).map(|k| k.get_version_num()), Ok(5), "{request:?}");
    }
}

/// The connection is never made. The error comes after the job's own timeout, and nothing counts as sent.
#[tokio::test]
async fn nobody_listens() {
    let config = "do = \"effect\", url = \"http://127.0.0.1:9/\", count = 1";
    let more = "limits = { wall = \"20s\" }";
    let manifest = job("0 0 29 2 *", "skip", more, config).replace("{api}", "http://127.0.0.1:9");
    let f = Fixture::start(&manifest).await;
    let began = std::time::Instant::now();
    let story = f.trigger("t/job").await;
    let (kind, value) = outcome(&story);
    assert_eq!(kind, "failed", "{value}");
    assert!(value["message"].as_str().unwrap().contains("nothing was sent"), "{value}");
    assert_eq!(value["retry"], true);
    assert!(story["effects"][0]["result"].as_str().unwrap().starts_with("not sent"), "{story}");
    assert!(began.elapsed() < Duration::from_secs(20));
}
