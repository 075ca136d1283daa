//! Each declared limit, overrun by a guest; beside it a punctual job stays punctual.

use serde_json::Value;
use support::host::{millis, until};

use crate::fixture::{Fixture, NEVER_NOW, SOON, job, outcome, test_guest};

async fn over(limits: &str, config: &str) -> (String, Value, Value) {
    let f = Fixture::start(&job(NEVER_NOW, "skip", &format!("limits = {{ {limits} }}"), config)).await;
    let story = f.trigger("t/job").await;
    let (kind, value) = outcome(&story);
    (kind, value, story)
}

#[tokio::test]
async fn memory() {
    let (kind, value, story) = over("memory = \"8MiB\"", "do = \"grow\"").await;
    assert_eq!((kind.as_str(), value["limit"].as_str()), ("over-limit", Some("memory")), "{value}");
    assert!(value["message"].as_str().unwrap().contains("the job declares `memory = 8388608`"), "{value}");
    let used = story["attempts"][0]["ended"]["usage"]["memory_bytes"].as_u64().unwrap();
    assert!(used <= 8 << 20, "{used}");
}

/// It spins without a call. Another job of the host runs every second meanwhile.
#[tokio::test]
async fn cpu_time_and_the_neighbour_of_a_spinning_guest() {
    let manifest = format!(
        "{}\n[job.neighbour]\ncomponent = \"{}\"\nschedule = \"* * * * * *\"\non_unknown = \"skip\"\n\
         config = {{ do = \"noop\" }}\n",
        job(NEVER_NOW, "skip", "limits = { cpu = \"3s\", wall = \"1h\" }", "do = \"spin\""),
        test_guest(),
    );
    let f = Fixture::start(&manifest).await;
    f.jobs_are_stored(2).await;
    let story = f.trigger("t/job").await;
    let (kind, value) = outcome(&story);
    assert_eq!((kind.as_str(), value["limit"].as_str()), ("over-limit", Some("cpu")), "{value}");
    let attempt = &story["attempts"][0];
    let (from, to) = (millis(&attempt["intended_at"]).unwrap(), millis(&attempt["ended"]["at"]).unwrap());
    let during: Vec<String> = f
        .host
        .ticks("t/neighbour")
        .await
        .unwrap()
        .into_iter()
        .filter(|(tick, _, _)| {
            let at = chrono::DateTime::parse_from_rfc3339(tick).unwrap().timestamp_millis();
            from < at && at < to
        })
        .map(|(_, verdict, _)| verdict)
        .collect();
    assert!(during.len() >= 2 && during.iter().all(|v| v == "succeeded"), "{during:?}");
}

#[tokio::test]
async fn wall_time() {
    let (kind, value, _) = over("wall = \"300ms\"", "do = \"sleepy\", ms = 60000").await;
    assert_eq!((kind.as_str(), value["limit"].as_str()), ("over-limit", Some("wall")), "{value}");
}

/// Head and tail are kept, what is between is counted, and a last line without its end is there.
#[tokio::test]
async fn log_bytes() {
    let limits = "limits = { log = \"16KiB\" }";
    let f = Fixture::start(&job(NEVER_NOW, "skip", limits, "do = \"chatty\", bytes = 4000000")).await;
    let story = f.trigger("t/job").await;
    assert_eq!(story["verdict"], "succeeded");
    let path = format!("/v1/logs?launch={}", story["launch"].as_str().unwrap().replace('+', "%2B"));
    let logs = f.host.get(&path).await.unwrap();
    let lines = logs["output"]["lines"].as_array().unwrap();
    let kept: usize = lines.iter().map(|line| line["text"].as_str().unwrap().len() + 1).sum();
    assert!(kept <= 17 << 10, "{kept}");
    assert!(logs["output"]["dropped_bytes"].as_u64().unwrap() > 3_900_000, "{}", logs["output"]["dropped_bytes"]);
    assert!(lines.iter().any(|line| line["text"] == "the end"), "the last lines are kept");
    assert!(lines.iter().any(|line| line["stream"] == "stderr"), "a line without its end is kept");
}

#[tokio::test]
async fn http_calls() {
    let (kind, value, story) = over("http_calls = 3", "do = \"calls\", url = \"{api}/health\", count = 5").await;
    assert_eq!((kind.as_str(), value["limit"].as_str()), ("over-limit", Some("http_calls")), "{value}");
    assert_eq!(story["attempts"][0]["ended"]["usage"]["http_calls"], 4, "the refused one is counted");
}

#[tokio::test]
async fn response_bytes() {
    let config = "do = \"calls\", url = \"{api}/data/big\", count = 1";
    let f = Fixture::start(&job(NEVER_NOW, "skip", "limits = { response_body = \"10kB\" }", config)).await;
    for (size, expected) in [(10_000, "succeeded"), (10_001, "over-limit")] {
        f.recorder.behave(|b| {
            b.files.insert("big".into(), vec![b'x'; size]);
        });
        let (kind, value) = outcome(&f.trigger("t/job").await);
        assert_eq!(kind, expected, "{size}: {value}");
    }
}

/// What is counted is counted exactly: as many as declared succeed, and one more is refused by name.
#[tokio::test]
async fn keys_effects_and_bytes_of_the_store() {
    for (limit, enough, config) in [
        ("keys", "keys = 5", "do = \"manykeys\", count = 5"),
        ("effects", "effects = 5", "do = \"kvsets\", count = 5, bytes = 1"),
        // The name has four bytes.
        ("kv_bytes", "kv_bytes = \"70B\"", "do = \"kvsets\", count = 5, bytes = 10"),
    ] {
        let (kind, value, story) = over(enough, config).await;
        assert_eq!(kind, "succeeded", "{limit}: {value}");
        let declared = story["limits"].as_array().unwrap().iter().find(|row| row["limit"] == limit).unwrap();
        assert_eq!(
            (declared["used"].as_u64(), declared["headroom_percent"].as_u64()),
            (declared["declared"].as_u64(), Some(0))
        );
        let (kind, value, _) = over(enough, &config.replace("count = 5", "count = 6")).await;
        assert_eq!((kind.as_str(), value["limit"].as_str()), ("over-limit", Some(limit)), "{value}");
    }
}

/// D08: linear memory is not all that grows. The guest is a program of a few instructions.
#[tokio::test]
async fn tables() {
    let text = r#"(component
        (core module $m
            (table $t 1 funcref)
            (func (export "run") (result i32)
                (loop $again
                    (br_if $again (i32.ne (table.grow $t (ref.null func) (i32.const 100)) (i32.const -1))))
                unreachable))
        (core instance $i (instantiate $m))
        (func $run (result (result)) (canon lift (core func $i "run")))
        (instance $r (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $r)))"#;
    let manifest = "namespace = \"t\"\n[job.job]\ncomponent = \"grower.wasm\"\nschedule = \"0 0 29 2 *\"\n\
                    on_unknown = \"skip\"\nlimits = { table_elements = 1000 }\n";
    let f = Fixture::start_beside(manifest, |dir| {
        std::fs::write(dir.join("grower.wasm"), wat::parse_str(text).unwrap()).unwrap();
    })
    .await;
    let (kind, value) = outcome(&f.trigger("t/job").await);
    assert_eq!((kind.as_str(), value["limit"].as_str()), ("over-limit", Some("table_elements")), "{value}");
    assert!(value["message"].as_str().unwrap().contains("`table_elements = 1000`"), "{value}");
}

/// The body is one byte too long; the guest gets an error and nothing is sent.
#[tokio::test]
async fn request_bytes() {
    let config = "do = \"effect\", url = \"{api}/charges/x\", count = 1";
    let f = Fixture::start(&job(NEVER_NOW, "skip", "limits = { request_body = \"3B\" }", config)).await;
    let (kind, value) = outcome(&f.trigger("t/job").await);
    assert_eq!((kind.as_str(), value["limit"].as_str()), ("over-limit", Some("request_bytes")), "{value}");
    assert!(f.recorder.received().is_empty());
}

#[tokio::test]
async fn a_destination_that_is_not_allowed_is_denied_with_the_line_to_add() {
    let config = "do = \"calls\", url = \"http://localhost:1/\", count = 1";
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", config)).await;
    let (kind, value) = outcome(&f.trigger("t/job").await);
    assert_eq!(kind, "failed");
    let message = value["message"].as_str().unwrap();
    assert!(message.contains("add `allow = [\"http://localhost:1\"]` to [job.job]"), "{message}");
}

/// The manifest allows it; the operator's guard does not. Nothing is recorded as an effect, as nothing could be sent.
#[tokio::test]
async fn an_address_of_the_clouds_metadata_is_prohibited_whatever_a_manifest_says() {
    let config = "do = \"effect\", url = \"http://169.254.169.254/latest\", count = 1";
    let manifest = job(NEVER_NOW, "skip", "", config).replace("{api}", "http://169.254.169.254");
    let f = Fixture::start(&manifest).await;
    let story = f.trigger("t/job").await;
    let (kind, value) = outcome(&story);
    assert_eq!(kind, "failed");
    let message = value["message"].as_str().unwrap();
    assert!(message.contains("destination prohibited: 169.254.169.254 is in 169.254.0.0/16"), "{message}");
    assert!(message.contains("`[egress] allow = [\"169.254.0.0/16\"]`"), "it says who can open it: {message}");
    assert_eq!(story["effects"], serde_json::json!([]));
}

/// What is linked and not offered says by name in the run's output what to call instead.
#[tokio::test]
async fn sockets_are_refused_by_name() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"sockets\"")).await;
    let story = f.trigger("t/job").await;
    let (kind, value) = outcome(&story);
    assert_eq!(kind, "succeeded", "{value}");
    assert_eq!(value["message"].as_str().unwrap().matches("access-denied").count(), 3, "{value}");
    let launch = story["launch"].as_str().unwrap();
    let logs = String::from_utf8(f.host.cli(&["logs", launch]).stdout).unwrap();
    for what in ["a TCP socket", "a UDP socket", "a lookup of `db.example.com`"] {
        let line = format!("WARN refused {what} (wasi:sockets)");
        assert!(logs.contains(&line) && logs.contains("call tickhost:job/http instead"), "{logs}");
    }
}

/// Deleting a job whose guest spins returns at once, and the run is closed.
#[tokio::test]
async fn deleting_a_job_stops_its_run() {
    let f =
        Fixture::start(&job("* * * * * *", "skip", "limits = { cpu = \"1h\", wall = \"1h\" }", "do = \"spin\"")).await;
    f.jobs_are_stored(1).await;
    let running = until("a run", SOON, async || {
        let ticks = f.host.ticks("t/job").await?;
        ticks.into_iter().find(|(_, verdict, _)| verdict == "running")?.2
    })
    .await;
    assert!(f.host.cli(&["delete", "t/job"]).status.success());
    let (kind, value) = outcome(&f.closed(&running).await);
    assert_eq!(kind, "revoked", "{value}");
}
