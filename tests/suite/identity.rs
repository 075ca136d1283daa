//! Who may ask a host for what: tokens, as operators give them out and strangers try them.

use std::{path::Path, process::Output};

use reqwest::{Method, header::AUTHORIZATION};
use serde_json::{Value, json};
use support::{
    cluster::{Cluster, Node},
    guest,
    host::{binary, cli, cli_under, until, write_manifest},
};
use tempfile::TempDir;

use crate::fixture::{NEVER_NOW, SOON, job, outcome};

/// A host that asks everybody who they are.
struct Guarded {
    cluster: Cluster,
    http: reqwest::Client,
    dir: TempDir,
}

/// What somebody was told.
struct Told {
    status: u16,
    body: Value,
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Guarded {
    async fn start(voters: usize, executors: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(dir.path(), voters, executors, "").await;
        let redirect = reqwest::redirect::Policy::none();
        let http = reqwest::Client::builder().no_proxy().redirect(redirect).build().unwrap();
        Self { cluster, http, dir }
    }

    fn node(&self) -> &Node {
        &self.cluster.nodes[0]
    }

    /// Has the operator make a token.
    fn token(&self, name: &str, role: &str, namespace: Option<&str>) -> String {
        let mut arguments = vec!["token", "create", name, "--role", role];
        arguments.extend(namespace.iter().flat_map(|namespace| ["--namespace", *namespace]));
        done(&self.node().cli(&arguments))
    }

    /// Asks a node as the holder of a token does, or as nobody.
    async fn ask(&self, node: &Node, token: &str, method: &str, path: &str, more: Sent) -> Told {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.http.request(method, format!("{}{path}", node.url()));
        if !token.is_empty() {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in more.headers {
            request = request.header(*name, *value);
        }
        let response = request.body(more.body).send().await.unwrap();
        let status = response.status().as_u16();
        Told { status, body: serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default() }
    }

    async fn get(&self, token: &str, path: &str) -> Told {
        self.ask(self.node(), token, "GET", path, Sent::default()).await
    }

    /// What the audit log has of what was refused, once it has at least that much.
    async fn refused(&self, by: &str, count: usize) -> Vec<Value> {
        until("what was refused is recorded", SOON, async || {
            let records = self.cluster.get(&format!("/v1/audit?by={by}&refused=true&count=1000")).await?;
            let records = records.as_array()?.clone();
            (records.len() >= count).then_some(records)
        })
        .await
    }

    /// Stores a job of the test guest.
    fn apply(&self, namespace: &str, manifest: &str) {
        let dir = self.dir.path().join(namespace);
        std::fs::create_dir_all(&dir).unwrap();
        let text = manifest.replace("namespace = \"t\"", &format!("namespace = \"{namespace}\""));
        self.cluster.apply(&write_manifest(&dir, &text.replace("{api}", "http://api.example.com")));
    }

    /// Launches a job outside of its schedule and waits for its end.
    async fn trigger(&self, job: &str) -> Value {
        let launch: Value =
            serde_json::from_str(&done(&self.node().cli(&["trigger", job, "--format", "json"]))).unwrap();
        let launch = launch["launch"].as_str().unwrap();
        until(launch, SOON, async || {
            let story = self.node().up().launch(launch).await?;
            (!support::host::is_open(story["verdict"].as_str()?)).then_some(story)
        })
        .await
    }
}

#[derive(Default)]
struct Sent {
    headers: &'static [(&'static str, &'static str)],
    body: Vec<u8>,
}

fn sent(body: &Value) -> Sent {
    Sent { headers: &[], body: serde_json::to_vec(body).unwrap() }
}

#[tokio::test]
async fn whoever_shows_no_good_token_gets_nothing_and_is_told_why() {
    let f = Guarded::start(1, 0).await;
    let good = f.token("good", "viewer", None);
    for path in ["/v1/status", "/v1/nodes", "/metrics"] {
        assert_eq!(f.get(&good, path).await.status, 200, "{path}");
    }
    for name in ["local", "nobody", "dev", "node-1"] {
        let taken = f.node().cli(&["token", "create", name, "--role", "viewer"]);
        assert!(said(&taken).contains("how the audit log names somebody else"), "{}", said(&taken));
    }
    let (named, secret) = good.rsplit_once('-').unwrap();
    let other = format!("{named}-{}", secret.chars().rev().collect::<String>());
    for (token, why) in [
        ("", "this host asks who you are"),
        ("hello", "this is no token"),
        (&good[..good.len() - 1], "this is no token"),
        (&other, "`good` is not known here"),
        (&good.replace("-good-", "-root-"), "`root` is not known here"),
        (&good.replace("-good-", "-local-"), "`local` is not known here"),
    ] {
        for path in ["/v1/status", "/v1/jobs", "/metrics", "/v1/nothing"] {
            let told = f.get(token, path).await;
            assert_eq!(told.status, 401, "{token} {path}");
            assert!(told.body["detail"].as_str().unwrap().contains(why), "{why}: {}", told.body);
        }
    }
    let url = f.node().url();
    let without = cli(&url, &["jobs"]);
    assert!(said(&without).contains("tickhost login") && without.status.code() == Some(1), "{}", said(&without));

    // It ends by itself, and by hand.
    let short = json!({ "role": "viewer", "namespace": null, "within_s": 1 });
    let short = f.node().up().request(Method::PUT, "/v1/tokens/short").json(&short).send().await.unwrap();
    let short = short.json::<Value>().await.unwrap()["secret"].as_str().unwrap().to_owned();
    let expired = async || {
        let told = f.get(&short, "/v1/status").await;
        (told.status == 401).then(|| told.body["detail"].as_str().unwrap_or_default().to_owned())
    };
    let why = until("it expires", SOON, expired).await;
    assert!(why.contains("`short` has expired"), "{why}");
    assert_eq!(done(&f.node().cli(&["token", "revoke", "good"])), "good revoked");
    assert_eq!(f.get(&good, "/v1/status").await.status, 401);
    let listed: Value = serde_json::from_str(&done(&f.node().cli(&["token", "list", "--format", "json"]))).unwrap();
    assert_eq!((&listed[0]["token"], &listed[0]["expired"]), (&json!("short"), &json!(true)), "{listed}");
    assert!(!listed.to_string().contains(secret), "a list tells no secrets");
}

/// What an operator did is in the log with the change, by whom and from where.
#[tokio::test]
async fn what_was_changed_is_in_the_audit_log() {
    let f = Guarded::start(1, 0).await;
    let ops = f.token("ops", "operator", None);
    let as_ops = |arguments: &[&str]| cli_under(&[], &binary(), &f.node().url(), Some(&ops), arguments);
    f.apply("a", &job(NEVER_NOW, "skip", "", "do = \"noop\""));
    done(&as_ops(&["pause", "a/job", "--note", "why"]));
    done(&as_ops(&["token", "create", "ci", "--role", "deployer", "--namespace", "a"]));
    // It is written before it is tried: the one who does it leads no more afterwards.
    assert!(!as_ops(&["cluster", "transfer"]).status.success(), "there is no other node");
    assert!(!as_ops(&["token", "create", "ci", "--role", "viewer"]).status.success(), "the name is taken");
    let refused = f.refused("ops", 2).await;
    let log: Value = serde_json::from_str(&done(&as_ops(&["audit", "--by", "ops", "--format", "json"]))).unwrap();
    assert!(log.as_array().unwrap().iter().all(|row| row["by"] == "ops@127.0.0.1"), "{log}");
    let why = |row: &Value| row["became"]["refused"].as_str().unwrap().to_owned();
    let mut whys: Vec<String> = refused.iter().map(why).collect();
    whys.sort();
    assert!(whys[0].contains("there is a token `ci` already") && whys[1].contains("no such other node"), "{whys:?}");
    let changed: Vec<(&str, &str, &str)> = log
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| Some((row["what"].as_str()?, row["on"].as_str()?, row["became"].as_str()?)))
        .collect();
    assert_eq!(
        changed,
        [
            ("transfer", "whoever is furthest", "begun"),
            ("create-token", "token ci", "done"),
            ("pause", "a/job", "done"),
        ]
    );
    // Who made the first token read it from the data directory.
    let text = said(&as_ops(&["audit"]));
    assert!(text.contains("node-1@127.0.0.1") && text.contains("token ops"), "{text}");
}

/// Whoever may read a voter's data directory is the operator, through any node; one that only executes is trusted with
/// nothing but itself. Everybody else is known on every node.
#[tokio::test]
async fn a_nodes_own_token_is_vouched_for_by_nodes_that_vote_only() {
    let f = Guarded::start(1, 1).await;
    let executor = &f.cluster.nodes[1];
    let token = f.token("ci", "deployer", None);
    assert!(executor.cli(&["status"]).status.success(), "it answers that itself");
    let refused = executor.cli(&["namespace", "remove", "a"]);
    assert!(said(&refused).contains("node 2 does not vote"), "{}", said(&refused));
    let records = f.refused("nobody", 1).await;
    let is_that = |row: &Value| row["on"] == "/v1/namespaces/a" && row["by"] == "nobody@127.0.0.1";
    assert!(records.iter().any(is_that), "{records:?}");
    let nodes = f.ask(executor, &token, "GET", "/v1/nodes", Sent::default()).await;
    assert_eq!(nodes.status, 200, "passed on with the token: {}", nodes.body);
    let own = support::host::token(&executor.data).unwrap();
    assert_eq!(f.get(&own, "/v1/status").await.status, 401, "on another node it is none");
    // The leader says it, and writes it down, once.
    let told = f.ask(executor, &token, "PUT", "/v1/namespaces/a", sent(&json!({}))).await;
    assert_eq!(told.status, 403, "{}", told.body);
    let records = f.refused("ci", 1).await;
    assert_eq!((records.len(), &records[0]["by"]), (1, &json!("ci@127.0.0.1")), "{records:?}");

    let mut f = Guarded::start(3, 0).await;
    let leader = f.cluster.leader().await;
    let follower = f.cluster.nodes.iter().find(|node| node.number != leader).unwrap();
    let number = follower.number;
    done(&follower.cli(&["token", "create", "made-there", "--role", "viewer"]));
    let at = f.cluster.node(leader);
    let log = said(&at.cli(&["audit"]));
    assert!(log.contains(&format!("node-{number}@127.0.0.1")), "{log}");
}

/// Somebody with a good token of one namespace tries everything against another one and against the host.
#[tokio::test]
async fn a_hostile_deployer_gets_nowhere_and_all_of_it_is_recorded() {
    let f = Guarded::start(1, 0).await;
    f.apply("b", &job(NEVER_NOW, "skip", "", "do = \"kvcount\", name = \"total\""));
    let first = f.trigger("b/job").await;
    let secret = std::fs::read(guest("tests/guests/test-program.wasm")).unwrap();
    let stored = f.node().up().request(Method::POST, "/v1/components?namespace=b").body(secret.clone());
    let theirs = stored.send().await.unwrap().json::<Value>().await.unwrap()["digest"].as_str().unwrap().to_owned();
    f.apply("a", &job(NEVER_NOW, "skip", "", "do = \"kvcount\", name = \"total\""));
    let quotas = f.dir.path().join("quotas.toml");
    std::fs::write(&quotas, "[namespace.a]\njobs = 3\nshortest_interval = \"1m\"\nlimits = { cpu = \"10s\" }\n")
        .unwrap();
    done(&f.node().cli(&["namespace", "apply", quotas.to_str().unwrap()]));
    let spec = f.node().up().get("/v1/jobs/a/job").await.unwrap()["spec"].clone();
    let before = f.node().up().get("/v1/jobs/b/job").await.unwrap();

    let mallory = f.token("mallory", "deployer", Some("a"));
    let launch = first["launch"].as_str().unwrap();
    let launch_query = launch.replace('+', "%2B");
    let with = |name: &str, value: Value| {
        let mut spec = spec.clone();
        spec[name] = value;
        sent(&spec)
    };
    let limits = |name: &str, value: u64| {
        let mut limits = spec["limits"].clone();
        limits[name] = value.into();
        limits
    };
    let seconds = {
        let mut timing = spec["timing"].clone();
        timing["schedule"] = json!(["* * * * * *"]);
        timing
    };
    let none = Sent::default;
    let plain = || sent(&spec);
    let note = || sent(&json!({ "note": "mine now" }));
    let run = || sent(&json!({ "same_key": false, "id": uuid::Uuid::new_v4() }));
    let token = |role: &str| sent(&json!({ "role": role, "within_s": 1_000 }));
    let posing = |headers, body: &Value| Sent { headers, body: serde_json::to_vec(body).unwrap() };
    let unbound = json!({});
    let attempts: Vec<(&str, String, Sent)> = vec![
        // Another's jobs.
        ("GET", "/v1/jobs/b/job".into(), none()),
        ("PUT", "/v1/jobs/b/job".into(), plain()),
        ("PUT", "/v1/jobs/b/new".into(), plain()),
        ("DELETE", "/v1/jobs/b/job".into(), none()),
        ("POST", "/v1/jobs/b/job/pause".into(), note()),
        ("POST", "/v1/jobs/b/job/resume".into(), none()),
        ("POST", "/v1/jobs/b/job/trigger".into(), run()),
        ("GET", "/v1/jobs/b/job/ticks".into(), none()),
        ("GET", "/v1/jobs/b/job/gaps".into(), none()),
        ("GET", "/v1/jobs/b/nothing".into(), none()),
        // What they ran, and what it wrote.
        ("GET", format!("/v1/launch?id={launch_query}"), none()),
        ("GET", format!("/v1/logs?launch={launch_query}"), none()),
        ("GET", format!("/v1/logs?launch={launch_query}&attempt=1"), none()),
        // Their components.
        ("GET", format!("/v1/components/{theirs}"), none()),
        ("GET", format!("/v1/components/{theirs}?namespace=b"), none()),
        ("DELETE", format!("/v1/components/{theirs}?namespace=b"), none()),
        ("DELETE", format!("/v1/components/{theirs}"), none()),
        ("DELETE", format!("/v1/components/{theirs}?namespace=a"), none()),
        ("POST", "/v1/components?namespace=b".into(), Sent { body: secret.clone(), ..none() }),
        ("POST", "/v1/components".into(), Sent { body: secret.clone(), ..none() }),
        ("POST", "/v1/components?namespace=a&namespace=b".into(), Sent { body: secret.clone(), ..none() }),
        ("POST", "/v1/components?namespace=..%2Fb".into(), Sent { body: secret.clone(), ..none() }),
        ("PUT", "/v1/jobs/a/mine".into(), with("component", json!(theirs))),
        // Paths that somebody might read otherwise.
        ("PUT", "/v1/jobs/a/..%2Fb%2Fjob".into(), plain()),
        ("PUT", "/v1/jobs/a%2F..%2Fb/job".into(), plain()),
        ("PUT", "/v1/jobs/%62/job".into(), plain()),
        ("PUT", "/v1/jobs/B/job".into(), plain()),
        ("PUT", "/v1/jobs/b%00/job".into(), plain()),
        ("PUT", "/v1/jobs/a/%0Ajob".into(), plain()),
        ("PUT", "/v1/jobs/*/job".into(), plain()),
        ("PUT", format!("/v1/jobs/a/{}", "x".repeat(64)), plain()),
        // Posing as a node.
        ("PUT", "/v1/namespaces/a".into(), posing(&[("tickhost-operator", "yes")], &unbound)),
        ("PUT", "/v1/namespaces/a".into(), posing(&[("tickhost-forwarded-by", "1")], &unbound)),
        ("PUT", "/v1/namespaces/a".into(), posing(&[("tickhost-by", "root")], &unbound)),
        ("PUT", "/v1/namespaces/a".into(), posing(&[("x-http-method-override", "GET")], &unbound)),
        // More than it may have.
        ("PUT", "/v1/namespaces/a".into(), sent(&unbound)),
        ("DELETE", "/v1/namespaces/a".into(), none()),
        ("PUT", "/v1/jobs/a/greedy".into(), with("limits", limits("cpu_ms", 3_600_000))),
        ("PUT", "/v1/jobs/a/large".into(), with("limits", limits("memory_bytes", 1 << 50))),
        ("PUT", "/v1/jobs/a/often".into(), with("timing", seconds)),
        ("PUT", "/v1/jobs/a/long".into(), Sent { body: vec![b' '; 3 << 20], ..none() }),
        // Rights.
        ("PUT", "/v1/tokens/mine".into(), token("operator")),
        ("PUT", "/v1/tokens/mallory".into(), token("operator")),
        ("DELETE", "/v1/tokens/mallory".into(), none()),
        ("GET", "/v1/tokens".into(), none()),
        ("GET", "/v1/audit".into(), none()),
        // The cluster.
        ("GET", "/v1/nodes".into(), none()),
        ("GET", "/metrics".into(), none()),
        ("DELETE", "/v1/nodes/1".into(), none()),
        ("POST", "/v1/nodes/1/drain".into(), sent(&json!({ "draining": true }))),
        ("POST", "/v1/cluster/token".into(), sent(&json!({ "within_s": 60, "voter": true }))),
        ("POST", "/v1/cluster/transfer".into(), sent(&json!({ "to": null }))),
        ("POST", "/v1/cluster/release".into(), sent(&json!({ "gap": "repeat" }))),
        ("POST", "/v1/cluster/destroyed".into(), sent(&json!({ "node": 1 }))),
        ("POST", "/v1/certificate/renew".into(), none()),
        ("POST", "/v1/backups".into(), none()),
    ];
    let count = attempts.len();
    assert!(count >= 30);
    let mut asked = Vec::new();
    for (method, path, what) in attempts {
        let told = f.ask(f.node(), &mallory, method, &path, what).await;
        assert!((400..500).contains(&told.status), "{method} {path}: {} {}", told.status, told.body);
        let detail = told.body["detail"].as_str().unwrap_or_default();
        assert!(detail.len() > 20, "{method} {path}: {}", told.body);
        asked.push((method.to_owned(), path.split('?').next().unwrap().to_owned()));
    }
    // Every one of them is there; those that were refused alike are counted.
    let mut expected = asked.clone();
    expected.sort();
    expected.dedup();
    let recorded = until("all of it is recorded", SOON, async || {
        let log = f.cluster.get("/v1/audit?by=mallory&refused=true&count=1000").await?;
        let rows = log.as_array()?.clone();
        let of = |row: &Value| Some((row["what"].as_str()?.to_owned(), row["on"].as_str()?.to_owned()));
        let mut seen: Vec<_> = rows.iter().filter_map(of).collect();
        seen.sort();
        seen.dedup();
        let times: u64 = rows.iter().filter_map(|row| row["times"].as_u64()).sum();
        (seen == expected && times == count as u64).then_some(rows)
    })
    .await;
    assert!(recorded.iter().all(|row| row["by"] == "mallory@127.0.0.1"), "{recorded:?}");

    // Many at once get no more than one after the other.
    let many = (0..20).map(|n| {
        let (f, mallory, spec) = (&f, &mallory, plain());
        async move { f.ask(f.node(), mallory, "PUT", &format!("/v1/jobs/a/many-{n}"), spec).await.status }
    });
    let told = futures::future::join_all(many).await;
    let stored = told.iter().filter(|status| **status == 200).count();
    assert_eq!(stored, 2, "three jobs are the quota, and there was one: {told:?}");

    // The same request again is the same launch, however often it is sent.
    let id = json!({ "same_key": false, "id": uuid::Uuid::new_v4() });
    let again =
        async || f.ask(f.node(), &mallory, "POST", "/v1/jobs/a/job/trigger", sent(&id)).await.body["launch"].clone();
    let launched = again().await;
    until("it is over", SOON, async || {
        let story = f.node().up().launch(launched.as_str()?).await?;
        (story["verdict"] == "succeeded").then_some(())
    })
    .await;
    let replayed = f.ask(f.node(), &mallory, "POST", "/v1/jobs/a/job/trigger", sent(&id)).await;
    assert!(replayed.status == 200 || replayed.status == 409, "{}", replayed.body);
    let ticks = f.node().up().ticks("a/job").await.unwrap();
    assert_eq!(ticks.len(), 1, "{ticks:?}");

    // The stores are two, under one name: this was a's first.
    let story = f.node().up().launch(launched.as_str().unwrap()).await.unwrap();
    assert_eq!(outcome(&story).1["message"], "1", "{story}");
    // What it sees is its own.
    let names = async |path: &str, field: &str| -> Vec<String> {
        let told = f.get(&mallory, path).await;
        let rows = told.body.as_array().unwrap().clone();
        rows.iter().map(|row| row[field].as_str().unwrap().to_owned()).collect()
    };
    assert!(names("/v1/jobs", "job").await.iter().all(|job| job.starts_with("a/")));
    assert_eq!(names("/v1/namespaces", "namespace").await, ["a"]);
    assert_eq!(f.get(&mallory, "/v1/whoami").await.body["namespace"], "a");
    // And nothing of the other one has changed.
    assert_eq!(f.node().up().get("/v1/jobs/b/job").await.unwrap(), before);
    let path = format!("/v1/components/{theirs}?namespace=b");
    assert!(f.node().up().get(&path).await.is_some());
    assert_eq!(outcome(&f.trigger("b/job").await).1["message"], "2", "its store counts on");

    // A right that was taken back is none, whatever is sent again.
    done(&f.node().cli(&["token", "revoke", "mallory"]));
    let told = f.ask(f.node(), &mallory, "POST", "/v1/jobs/a/job/trigger", sent(&id)).await;
    assert_eq!(told.status, 401, "{}", told.body);
    until("that is recorded too", SOON, async || {
        let nobody = f.refused("nobody", 1).await;
        nobody.iter().any(|row| row["on"] == "/v1/jobs/a/job/trigger").then_some(())
    })
    .await;
}

/// A certificate for `localhost` of an authority of its own: the authority's file, the certificate's, the key's.
fn certificate(dir: &Path) -> [std::path::PathBuf; 3] {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    [write("ca.pem", &authority), write("api.pem", &certificate), write("api.key", &key.serialize_pem())]
}

/// From the first start to a token that is kept, over TLS, as the README tells it.
#[tokio::test]
async fn one_logs_in_over_tls_and_the_token_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let [ca, certificate, key] = certificate(dir.path());
    let tls = format!("[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n", certificate.display(), key.display());
    let mut node = Node::prepare(dir.path(), "node", &tls);
    done(&node.cli(&["cluster", "init", "--config", node.config()]));
    node.spawn(None, &[]);
    let url = node.url().replace("http://", "https://");
    let token = || support::host::token(&node.data).unwrap_or_default();
    let ca = ca.to_str().unwrap();
    let with_ca = |arguments: &[&str]| {
        let arguments = [&["--ca", ca], arguments].concat();
        cli_under(&[], &binary(), &url, Some(&token()), &arguments)
    };
    until("the host answers", SOON, async || with_ca(&["status"]).status.success().then_some(())).await;

    let without = cli_under(&[], &binary(), &url, Some(&token()), &["status"]);
    assert!(
        said(&without).to_lowercase().contains("certificate") && without.status.code() == Some(3),
        "{}",
        said(&without)
    );
    let plain = cli_under(&[], &binary(), &node.url(), Some(&token()), &["status"]);
    assert_eq!(plain.status.code(), Some(3), "it speaks TLS only: {}", said(&plain));
    let elsewhere = cli_under(&[], &binary(), "http://10.255.255.1:7878", Some(&token()), &["status"]);
    assert!(said(&elsewhere).contains("anybody on the way could read your token"), "{}", said(&elsewhere));

    let viewer = done(&with_ca(&["token", "create", "me", "--role", "viewer"]));
    let home = dir.path().join("home");
    let tickhost = |arguments: &[&str], input: &str| {
        use std::{io::Write, process::Stdio};
        let mut command = std::process::Command::new(binary());
        command.args(arguments).env("TICKHOST_URL", &url).env_remove("TICKHOST_TOKEN").env("XDG_CONFIG_HOME", &home);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let wrong = tickhost(&["--ca", ca, "login"], "tickhost-access-1-me-");
    assert!(said(&wrong).contains("this is no token") && wrong.status.code() == Some(2), "{}", said(&wrong));
    let login = tickhost(&["--ca", ca, "login"], &format!("{viewer}\n"));
    assert!(done(&login).starts_with("me@127.0.0.1: viewer of all namespaces, until "), "{}", said(&login));
    // With the host it is known from where, and the authority is kept as well.
    done(&tickhost(&["jobs"], ""));
    let refused = tickhost(&["token", "list"], "");
    assert!(said(&refused).contains("this is for operators, and `me` is a viewer's token"), "{}", said(&refused));
}
