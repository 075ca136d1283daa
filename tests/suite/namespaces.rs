//! Quotas of namespaces, as an operator sets them and a team meets them.

use reqwest::Method;
use std::process::Output;

use serde_json::{Value, json};
use support::host::until;

use crate::fixture::{Fixture, NEVER_NOW, SOON, job, outcome};

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

impl Fixture {
    fn set_quotas(&self, text: &str) -> Output {
        let file = self.path().join("quotas.toml");
        std::fs::write(&file, text).unwrap();
        self.host.cli(&["namespace", "apply", file.to_str().unwrap()])
    }
}

#[tokio::test]
async fn a_job_over_its_namespaces_quota_is_refused_with_all_that_is_wrong() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"noop\"")).await;
    f.jobs_are_stored(1).await;
    let refused = f.set_quotas("[namespace.t]\nruns = \"many\"\n");
    assert!(said(&refused).contains("a whole number from 1") && refused.status.code() == Some(2), "{}", said(&refused));
    let set = f.set_quotas(
        "[namespace.t]\njobs = 1\nshortest_interval = \"1m\"\nhosts = [\"https://*.example.com\"]\n\
         limits = { cpu = \"1s\" }\ncomponents = \"64MiB\"\n",
    );
    assert_eq!(said(&set), "t stored\n");
    let other = f.path().join("other.toml");
    let manifest = job("* * * * * *", "skip", "limits = { cpu = \"2s\" }", "do = \"noop\"")
        .replace("[job.job]", "[job.second]")
        .replace("{api}", "http://api.example.com");
    std::fs::write(&other, manifest).unwrap();
    let refused = f.host.cli(&["apply", other.to_str().unwrap()]);
    let text = said(&refused);
    for part in ["`jobs` would be 2", "ticks 1 s apart", "`limits.cpu` is 2000", "`http://api.example.com`"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(refused.status.code(), Some(2), "{text}");
    // Elsewhere nothing is bounded, and the list says who has what.
    let listed: Vec<Value> =
        serde_json::from_slice(&f.host.cli(&["namespace", "list", "--format", "json"]).stdout).unwrap();
    let t = listed.iter().find(|view| view["namespace"] == "t").unwrap();
    assert_eq!((&t["held"]["jobs"], &t["quota"]["jobs"], &t["own"]), (&json!(1), &json!(1), &json!(true)));
    let elsewhere = std::fs::read_to_string(&other).unwrap().replace("namespace = \"t\"", "namespace = \"u\"");
    std::fs::write(&other, elsewhere).unwrap();
    let stored = f.host.cli(&["apply", other.to_str().unwrap()]);
    assert!(stored.status.success(), "{}", said(&stored));
}

/// Four are asked for at once, and two may run: the others have their turn, and none is lost.
#[tokio::test]
async fn runs_beyond_the_quota_wait_for_their_turn() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "overlap = \"allow\"", "do = \"sleepy\", ms = 1500")).await;
    f.jobs_are_stored(1).await;
    assert!(f.set_quotas("[namespace.\"*\"]\nruns = 2\n").status.success());
    let mut launches = Vec::new();
    for _ in 0..4 {
        // A launch by hand is named by the second in which it was asked for.
        let launch = until("another second", SOON, async || {
            let output = f.host.cli(&["trigger", "t/job", "--format", "json"]);
            let launch: Value = serde_json::from_slice(&output.stdout).ok()?;
            Some(launch["launch"].as_str()?.to_owned())
        })
        .await;
        launches.push(launch);
    }
    let mut spans = Vec::new();
    for launch in &launches {
        let story = f.closed(launch).await;
        assert_eq!(story["verdict"], "succeeded", "{story}");
        let attempt = &story["attempts"][0];
        let at = |value: &Value| support::host::millis(value).unwrap();
        spans.push((at(&attempt["intended_at"]), at(&attempt["ended"]["at"])));
    }
    let most = spans.iter().map(|(begin, _)| spans.iter().filter(|(b, e)| b <= begin && begin < e).count()).max();
    assert_eq!(most, Some(2), "{spans:?}");
}

/// A quota that becomes narrower holds for what was stored before, and a component that a job names stays.
#[tokio::test]
async fn where_a_namespace_may_send_holds_for_jobs_that_are_there() {
    let config = "do = \"calls\", count = 1, url = \"{api}/health\"";
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", config)).await;
    f.jobs_are_stored(1).await;
    assert!(f.set_quotas("[namespace.t]\nhosts = [\"https://example.com\"]\n").status.success());
    let (kind, value) = outcome(&f.trigger("t/job").await);
    assert!(kind == "failed" && value.to_string().contains("allow"), "{kind} {value}");
    assert_eq!(f.recorder.received(), []);
    assert_eq!(said(&f.host.cli(&["namespace", "remove", "t"])), "t removed\n");
    let story = f.trigger("t/job").await;
    assert_eq!(story["verdict"], "succeeded", "{story}");
    let component = f.host.get("/v1/jobs/t/job").await.unwrap()["spec"]["component"].as_str().unwrap().to_owned();
    let path = format!("/v1/components/{component}?namespace=t");
    let refused = f.host.request(Method::DELETE, &path).send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 409, "{}", refused.text().await.unwrap());
    assert!(f.host.cli(&["delete", "t/job"]).status.success());
    let dropped = f.host.request(Method::DELETE, &path).send().await.unwrap();
    assert_eq!(dropped.status().as_u16(), 200, "{}", dropped.text().await.unwrap());
}

#[tokio::test]
async fn a_full_key_value_store_is_over_limit_for_the_guest() {
    let f = Fixture::start(&job(NEVER_NOW, "skip", "", "do = \"kvsets\", count = 1, bytes = 2000")).await;
    f.jobs_are_stored(1).await;
    assert!(f.set_quotas("[namespace.t]\nkv = \"1KiB\"\n").status.success());
    let (kind, value) = outcome(&f.trigger("t/job").await);
    let message = value["message"].as_str().unwrap_or_default();
    assert!(kind == "failed" && message.contains("the key-value store of `t`"), "{kind} {value}");
}
