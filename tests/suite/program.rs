//! Programs that know nothing of tickhost: `wasi:cli/command`, with `wasi:http` for what they send.

use serde_json::Value;
use support::guest;

use crate::fixture::{Fixture, NEVER_NOW, outcome};

/// A manifest of one job `t/job` that runs the test program.
fn program(args: &str, more: &str) -> String {
    format!(
        "namespace = \"t\"\n[job.job]\ncomponent = \"{}\"\nschedule = \"{NEVER_NOW}\"\nallow = [\"{{api}}\"]\n\
         args = [{args}]\n{more}\n",
        guest("tests/guests/test-program.wasm").display()
    )
}

const SKIP: &str = "on_unknown = \"skip\"";

async fn lines(f: &Fixture, story: &Value) -> Vec<String> {
    let path = format!("/v1/logs?launch={}", story["launch"].as_str().unwrap().replace('+', "%2B"));
    let logs = f.host.get(&path).await.unwrap();
    let lines = logs["output"]["lines"].as_array().unwrap().iter();
    lines.map(|line| format!("{} {}", line["stream"].as_str().unwrap(), line["text"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn a_program_has_arguments_an_environment_and_the_standard_streams_and_sees_no_files() {
    let f = Fixture::start(&program("\"tell\"", &format!("{SKIP}\nenv = {{ GREETING = \"hello\" }}"))).await;
    let story = f.trigger("t/job").await;
    assert_eq!(story["verdict"], "succeeded", "{story}");
    let lines = lines(&f, &story).await;
    let launch = story["launch"].as_str().unwrap();
    let tick = launch.split(['@', '+']).nth(1).unwrap();
    for expected in [
        "stdout args [\"job\", \"tell\"]".to_owned(),
        "stdout env GREETING=hello".into(),
        "stdout env TICKHOST_JOB=job".into(),
        format!("stdout env TICKHOST_LAUNCH={launch}"),
        format!("stdout env TICKHOST_SCHEDULED={tick}"),
        "stdout env TICKHOST_ATTEMPT=1".into(),
        "stderr and this is said beside it".into(),
    ] {
        assert!(lines.contains(&expected), "{expected}: {lines:#?}");
    }
    assert!(lines.iter().any(|line| line.starts_with("stdout files Err")), "{lines:#?}");
}

/// D14: five ways to end are five outcomes.
#[tokio::test]
async fn every_end_of_a_program_is_told_apart() {
    for (args, verdict, kind, said) in [
        ("\"exit\", \"0\"", "succeeded", "succeeded", "exited"),
        ("\"exit\", \"7\"", "failed", "failed", "it exited with an error"),
        ("\"exit-with-code\", \"7\"", "failed", "failed", "it exited with the error 7"),
        ("\"fail\"", "failed", "failed", "its `run` returned an error"),
        ("\"partial-and-trap\"", "failed", "trapped", "unreachable"),
    ] {
        let f = Fixture::start(&program(args, SKIP)).await;
        let story = f.trigger("t/job").await;
        let (found, value) = outcome(&story);
        assert_eq!((story["verdict"].as_str().unwrap(), found.as_str()), (verdict, kind), "{args}: {value}");
        let message = value["message"].as_str().unwrap();
        assert!(message.contains(said), "{args}: {message}");
        // D12: a last line without its end is there, however the run ends.
        let lines = lines(&f, &story).await;
        assert_eq!(lines.contains(&"stdout partial".to_owned()), kind == "trapped", "{lines:?}");
    }
}

/// The keys of what a program sends are made from the tick, and rise with the work.
#[tokio::test]
async fn what_a_program_sends_carries_keys() {
    let send = |path: &str, body: &str, key: &str| format!("\"POST\", \"{{api}}{path}\", \"{body}\", \"{key}\"");
    let requests = [
        send("/charges/a", "one", "-"),
        send("/charges/a", "one", "-"),
        send("/charges/b", "two", "mine"),
        "\"GET\", \"{api}/health\", \"\", \"-\"".to_owned(),
    ];
    let f = Fixture::start(&program(&format!("\"send\", {}", requests.join(", ")), SKIP)).await;
    let story = f.trigger("t/job").await;
    assert_eq!(story["verdict"], "succeeded", "{story}");
    let output = lines(&f, &story).await;
    let statuses: Vec<&String> = output.iter().filter(|line| line.contains("status")).collect();
    assert_eq!(statuses, ["stdout status 201", "stdout status 201", "stdout status 201", "stdout status 200"]);
    assert!(output.iter().any(|line| line.contains("under the program's own idempotency-key")), "{output:#?}");

    let received = f.recorder.received();
    let keys: Vec<&str> = received.iter().map(|request| request.key.as_str()).collect();
    assert_eq!(received.iter().map(|r| r.body.as_str()).collect::<Vec<_>>(), ["one", "one", "two"]);
    assert!(keys[0].len() == 36 && keys[0] != keys[1], "the same request twice is two pieces of work: {keys:?}");
    assert_eq!(keys[2], "mine");
    let effects = story["effects"].as_array().unwrap();
    assert_eq!(effects.len(), 3, "what changes nothing is not recorded: {effects:?}");
}

/// It sends, and then traps, twice. In the second attempt the journal answers.
#[tokio::test]
async fn what_a_program_has_sent_is_not_sent_again_by_its_next_attempt() {
    let more = "on_unknown = \"repeat\"\nretry = { attempts = 2, backoff = \"10ms\" }";
    let args = "\"send\", \"POST\", \"{api}/charges/a\", \"one\", \"-\", \"no request\"";
    let f = Fixture::start(&program(args, more)).await;
    let story = f.trigger("t/job").await;
    assert_eq!(
        (story["verdict"].as_str(), story["attempts"].as_array().unwrap().len()),
        (Some("failed"), 2),
        "{story}"
    );
    assert!(lines(&f, &story).await.contains(&"stdout status 201".to_owned()), "the second attempt has the answer too");
    assert_eq!(f.recorder.received().len(), 1);
}

/// An answer that settles nothing leaves the key for the next try of the same request.
#[tokio::test]
async fn another_try_of_the_same_request_keeps_its_key() {
    let send = "\"POST\", \"{api}/busy\", \"x\", \"-\"";
    let f = Fixture::start(&program(&format!("\"send\", {send}, {send}, {send}"), SKIP)).await;
    f.recorder.behave(|behaviour| behaviour.busy = 2);
    let story = f.trigger("t/job").await;
    let output = lines(&f, &story).await;
    assert_eq!(output, ["stdout status 503", "stdout status 503", "stdout status 201"], "{story}");
    let keys: Vec<String> = f.recorder.received().into_iter().map(|request| request.key).collect();
    assert!(keys.len() == 3 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

/// A program is told of a limit by WASI's bare errors, and often ends over it.
#[tokio::test]
async fn a_limit_that_a_program_had_met_is_told_with_its_end() {
    let get = "\"GET\", \"{api}/health\", \"\", \"-\"";
    let limits = format!("{SKIP}\nlimits = {{ http_calls = 1 }}");
    let f = Fixture::start(&program(&format!("\"send\", {get}, {get}, \"no request\""), &limits)).await;
    let (kind, value) = outcome(&f.trigger("t/job").await);
    assert_eq!(kind, "trapped", "{value}");
    let report = value["message"].as_str().unwrap();
    assert!(report.contains("a request is four words"), "its last words: {report}");
    assert!(report.contains("met its limit `http_calls`: HTTP calls: 2 wanted"), "{report}");
}

/// What the manifest does not name, a program does not reach either, and is told by WASI's own error.
#[tokio::test]
async fn a_destination_that_is_not_allowed_is_denied_and_the_output_says_why() {
    let f = Fixture::start(&program("\"send\", \"POST\", \"http://localhost:1/\", \"x\", \"-\"", SKIP)).await;
    let story = f.trigger("t/job").await;
    let output = lines(&f, &story).await;
    assert!(output.iter().any(|line| line.contains("HttpRequestDenied")), "{output:#?}");
    let why = "add `allow = [\"http://localhost:1\"]` to [job.job]";
    assert!(output.iter().any(|line| line.starts_with("log WARN") && line.contains(why)), "{output:#?}");
    assert_eq!(story["effects"], serde_json::json!([]));
}
