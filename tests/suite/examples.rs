//! The examples and the ready-made job, in their three languages, through a real host.

use std::time::Duration;

use serde_json::Value;
use support::{guest, host::until, recorder::data_files};

use crate::fixture::{Fixture, NEVER_NOW, outcome};

/// JavaScript and Python components are compiled when they are stored: ten seconds each, and more where tests compete.
const COMPILED_WITHIN: Duration = Duration::from_secs(180);

fn manifest(component: &str, on_unknown: &str, config: &str) -> String {
    format!(
        "namespace = \"t\"\n[job.job]\ncomponent = \"{}\"\nschedule = \"{NEVER_NOW}\"\non_unknown = \"{on_unknown}\"\n\
         allow = [\"{{api}}\"]\nlimits = {{ memory = \"128MiB\" }}\n[job.job.config]\n{config}\n",
        guest(component).display()
    )
}

async fn start(component: &str, on_unknown: &str, config: &str) -> Fixture {
    let f = Fixture::start(&manifest(component, on_unknown, config)).await;
    until("the component is compiled", COMPILED_WITHIN, async || {
        (f.host.get("/v1/jobs").await?.as_array()?.len() == 1).then_some(())
    })
    .await;
    f
}

fn message(story: &Value) -> String {
    let (kind, value) = outcome(story);
    assert_eq!(kind, "succeeded", "{value}");
    value["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn charge_charges_every_customer_under_a_key_of_its_own() {
    let f = start("examples/charge/charge.wasm", "skip", "api = \"{api}\"").await;
    let said = message(&f.trigger("t/job").await);
    assert!(said.starts_with("charged 3 customers, 3600 cents, for "), "{said}");
    let received = f.recorder.received();
    let keys: std::collections::BTreeSet<&String> = received.iter().map(|r| &r.key).collect();
    assert_eq!((received.len(), keys.len()), (3, 3));
}

#[tokio::test]
async fn report_aggregates_a_public_data_set_and_names_its_period() {
    let config = "api = \"{api}\"\ndata_url = \"{api}/data/seattle-weather.csv\"";
    let f = start("examples/report/report.wasm", "repeat", config).await;
    f.recorder.behave(|b| b.files = data_files());
    let said = message(&f.trigger("t/job").await);
    // 2012 to 2015, one row a day.
    assert!(said.starts_with("12 months, 1461 days, for "), "{said}");
    let received = f.recorder.received();
    assert_eq!((received.len(), received[0].method.as_str()), (1, "PUT"));
    let report: Value = serde_json::from_str(&received[0].body).unwrap();
    assert!(received[0].path.starts_with("/reports/seattle-weather/"));
    assert_eq!(report["months"].as_array().unwrap().len(), 12);
}

#[tokio::test]
async fn probe_alerts_on_a_change_and_on_nothing_else() {
    let config = "target = \"{api}/health\"\nwebhook = \"{api}/alerts\"";
    let f = start("examples/probe/probe.wasm", "repeat", config).await;
    let mut alerts = Vec::new();
    for status in [200, 503, 503, 200, 200] {
        f.recorder.behave(|b| b.health = Some(status));
        message(&f.trigger("t/job").await);
        alerts.push(f.recorder.received().len());
    }
    assert_eq!(alerts, [0, 1, 1, 2, 2]);
    let states: Vec<Value> = f
        .recorder
        .received()
        .iter()
        .map(|r| serde_json::from_str::<Value>(&r.body).unwrap()["state"].clone())
        .collect();
    assert_eq!(states, ["down", "up"]);
}

#[tokio::test]
async fn http_call_sends_what_its_config_says() {
    let config = "url = \"{api}/refresh\"\nbody = '{{\"at\":\"{tick}\",\"key\":\"{key}\"}}'\nexpect_status = \"201\"\n\
                  \"headers.content-type\" = \"application/json\"";
    let f = start("plugins/http-call/http-call.wasm", "repeat", config).await;
    let story = f.trigger("t/job").await;
    assert!(message(&story).contains("was answered with status 201"));
    let received = f.recorder.received();
    let body: Value = serde_json::from_str(&received[0].body).unwrap();
    assert_eq!(body["key"], received[0].key);
    let launch = story["launch"].as_str().unwrap();
    assert!(launch.contains(body["at"].as_str().unwrap()), "{launch} {body}");
}
