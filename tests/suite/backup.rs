//! A cluster is lost, and comes back from a backup.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};
use support::{
    cluster::{Cluster, Node, OPEN_EGRESS, SOON},
    host::{binary, cli, cli_under, until, write_manifest},
    recorder::{Behaviour, Recorder},
    s3,
};

use crate::fixture::test_guest;

/// One job of each kind, every second.
fn both(api: &str) -> String {
    let job = |name: &str, more: &str| {
        format!(
            "[job.{name}]\ncomponent = \"{}\"\nschedule = \"* * * * * *\"\non_unknown = \"{name}\"\noverlap = \"allow\"\n\
             allow = [\"{api}\"]\n{more}\nconfig = {{ do = \"effect\", count = 1, url = \"{api}/{name}\" }}\n",
            test_guest()
        )
    };
    format!(
        "namespace = \"t\"\n{}{}",
        job("skip", ""),
        job("repeat", "catch_up = { all = 100 }\nretry = { attempts = 3 }")
    )
}

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn ticks(node: &Node, job: &str) -> BTreeMap<String, String> {
    let ticks = until("the ticks", SOON, async || node.up().ticks(job).await).await;
    ticks.into_iter().map(|(tick, verdict, _)| (tick, verdict)).collect()
}

async fn until_succeeded(node: &Node, job: &str, after: Option<&String>, count: usize) {
    until("ticks succeed", SOON, async || {
        let ticks = ticks(node, job).await;
        let fresh =
            |(tick, verdict): &(&String, &String)| after.is_none_or(|after| *tick > after) && *verdict == "succeeded";
        (ticks.iter().filter(fresh).count() >= count).then_some(())
    })
    .await;
}

/// Three nodes and a backup; more ticks; everything is lost. One node's directory is gone, two go over to what is
/// restored.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_cluster_comes_back_and_nothing_that_may_not_repeat_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let backups = dir.path().join("backups");
    let more = format!("[backup]\nto = \"{}\"\n", backups.display());
    let mut cluster = Cluster::start(dir.path(), 3, 0, &more).await;
    let recorder = Recorder::start(Behaviour::default()).await.unwrap();
    cluster.apply(&write_manifest(dir.path(), &both(&recorder.url())));
    cluster.until_warm(1).await;
    until_succeeded(&cluster.nodes[0], "t/skip", None, 2).await;
    let taken = done(&cluster.nodes[1].up().cli(&["backup", "now", "--format", "json"]));
    let taken: Value = serde_json::from_str(&taken).unwrap();
    let name = taken[0]["name"].as_str().unwrap().to_owned();
    let last_before = ticks(&cluster.nodes[0], "t/skip").await.into_keys().next_back().unwrap();
    until_succeeded(&cluster.nodes[0], "t/skip", Some(&last_before), 3).await;
    let old_cluster = cluster.nodes[0].up().get("/v1/status").await.unwrap()["cluster"].clone();
    cluster.nodes.iter_mut().for_each(Node::kill);

    let listed = done(&cli("", &["backup", "list", "--config", cluster.nodes[0].config()]));
    assert!(listed.contains(&name), "{listed}");
    assert!(done(&cli("", &["backup", "verify", "--config", cluster.nodes[0].config()])).contains("2 jobs"));
    let elsewhere = Node::prepare(dir.path(), "elsewhere", "[backup]\nto = \"/nowhere/at/all\"\n");
    let nowhere = refused(&cli("", &["backup", "list", "--config", elsewhere.config()]));
    assert!(nowhere.contains("/nowhere/at/all"), "{nowhere}");
    let occupied = refused(&cli("", &["backup", "restore", "--config", cluster.nodes[0].config()]));
    assert!(occupied.contains("holds a host's data"), "{occupied}");

    // A new first node. Its number is one that nobody had.
    let mut first = Node::prepare(dir.path(), "again", &more);
    let restored = done(&cli("", &["backup", "restore", "--config", first.config(), &name, "--format", "json"]));
    let restored: Value = serde_json::from_str(&restored).unwrap();
    assert_eq!((&restored["node"], &restored["epoch"]), (&json!(4), &json!(2)));
    assert_eq!(restored["at_large"], json!([1, 2, 3]));
    assert_ne!(restored["cluster"], old_cluster);
    first.number = 4;
    first.start().await;
    until("it says that it is on hold", SOON, async || {
        let alarms = first.up().get("/v1/status").await?["alarms"].to_string();
        (alarms.contains(&name) && alarms.contains("rejoin")).then_some(())
    })
    .await;
    let held = refused(&first.up().cli(&["pause", "t/skip", "--note", "now"]));
    assert!(held.contains("on hold") && held.contains("release"), "{held}");
    let at_large = refused(&first.up().cli(&["cluster", "release", "--gap", "skip"]));
    assert!(["1 (", "2 (", "3 ("].iter().all(|node| at_large.contains(node)), "{at_large}");

    // An old node that is started as it was leads nothing: it is alone, and speaks to nobody of the new cluster.
    cluster.nodes[1].start().await;
    let alone = cluster.nodes[1].up().get("/v1/status").await.unwrap();
    assert_eq!((&alone["cluster"], &alone["has_lease"]), (&old_cluster, &json!(false)));
    cluster.nodes[1].kill();

    let peer = first.peer.to_string();
    for old in &mut cluster.nodes[1..] {
        let token = done(&first.up().cli(&["cluster", "token"]));
        let asked = ["--config", old.config(), "--peer", &peer, "--token", token.trim(), "--format", "json"];
        let joined = done(&cli("", &[&["cluster", "rejoin"], &asked[..]].concat()));
        old.number = serde_json::from_str::<Value>(&joined).unwrap()["node"].as_u64().unwrap();
        old.start().await;
    }
    let mut again = Cluster { nodes: vec![first] };
    again.nodes.extend(cluster.nodes.drain(1..));
    again.until_whole(3, 3).await;
    let first = again.node(4);
    let still = refused(&first.up().cli(&["cluster", "release", "--gap", "repeat"]));
    assert!(still.contains("node 1 (") && !still.contains("2 ("), "{still}");
    done(&first.up().cli(&["cluster", "destroyed", "1"]));
    let on_hold = ticks(first, "t/skip").await;
    let after = on_hold.iter().filter(|(tick, _)| **tick > last_before);
    assert!(after.clone().count() >= 3 && after.clone().all(|(_, verdict)| verdict == "unknown"), "{on_hold:?}");
    done(&first.up().cli(&["cluster", "release", "--gap", "repeat"]));
    let released = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    until_succeeded(first, "t/skip", Some(&released), 3).await;
    until_succeeded(first, "t/repeat", Some(&released), 3).await;

    let skips = ticks(first, "t/skip").await;
    let in_gap: BTreeMap<&String, &String> =
        skips.iter().filter(|(tick, _)| **tick > last_before && **tick < released).collect();
    assert!(in_gap.len() >= 3 && in_gap.values().all(|verdict| *verdict == "unknown"), "{in_gap:?}");
    let repeats = ticks(first, "t/repeat").await;
    let repeated =
        repeats.iter().filter(|(tick, verdict)| **tick > last_before && **tick < released && *verdict == "succeeded");
    assert!(repeated.count() >= 3, "{repeats:?}");
    let mut arrivals: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for request in recorder.received() {
        arrivals.entry((request.path, request.body)).or_default().push(request.key);
    }
    for ((path, body), keys) in &arrivals {
        assert!(path != "/skip" || keys.len() == 1, "{body} arrived {} times", keys.len());
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 1, "{body} has one key for ever: {keys:?}");
    }
    assert!(arrivals.iter().any(|((path, _), keys)| path == "/repeat" && keys.len() > 1), "something was repeated");
    let alarms = first.up().get("/v1/status").await.unwrap()["alarms"].clone();
    assert_eq!(alarms, json!([]));
    again.until_equal().await;
}

/// With the store's credentials in the environment.
fn cli_with_credentials(arguments: &[&str]) -> Output {
    let words = s3::with_credentials();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(binary()).args(arguments).env("NO_COLOR", "1").stdin(Stdio::null());
    command.output().unwrap()
}

fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// One host, and an S3-compatible store.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_objects_keeps_backups_and_damage_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let address = s3::start(&store).await;
    let more = format!(
        "[backup]\nto = \"s3://{}/hosts/one\"\nendpoint = \"http://{address}\"\nregion = \"eu-1\"\nkeep = 2\n",
        s3::BUCKET
    );
    let config = |name: &str, api: std::net::SocketAddr| {
        let path = dir.path().join(format!("{name}.toml"));
        let data = dir.path().join(name);
        std::fs::write(&path, format!("data = \"{}\"\nlisten = \"{api}\"\n{more}\n{OPEN_EGRESS}", data.display()))
            .unwrap();
        path
    };
    let recorder = Recorder::start(Behaviour::default()).await.unwrap();
    let api = support::host::free_address();
    let one = config("one", api);
    let options = |name: &str| support::host::HostOptions {
        data: dir.path().join(name),
        manifests: Vec::new(),
        log: dir.path().join(format!("{name}.log")),
        kill_at: None,
        under: s3::with_credentials(),
        ..support::host::HostOptions::default()
    };
    let mut host = support::host::HostProcess::serve(&one, api, &options("one"));
    host.until_up(&options("one").log).await;
    let manifest = write_manifest(dir.path(), &both(&recorder.url()));
    done(&host.cli(&["apply", manifest.to_str().unwrap()]));
    let mut names = BTreeSet::new();
    for ticks in 1..=3 {
        until("another tick", SOON, async || (host.ticks("t/skip").await?.len() >= ticks).then_some(())).await;
        let taken: Value = serde_json::from_str(&done(&host.cli(&["backup", "now", "--format", "json"]))).unwrap();
        names.insert(taken[0]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names.len(), 3, "ticks go on, so each is another state");
    let status = done(&host.cli(&["status"]));
    assert!(status.contains(names.last().unwrap()), "{status}");
    host.kill();

    let with =
        |verb: &[&str], config: &Path| cli_with_credentials(&[verb, &["--config", config.to_str().unwrap()]].concat());
    let listed = done(&with(&["backup", "list"], &one));
    let kept: Vec<&String> = names.iter().filter(|name| listed.contains(*name)).collect();
    assert_eq!(kept.len(), 2, "the oldest is gone: {listed}");
    done(&with(&["backup", "verify"], &one));
    let newest = names.last().unwrap();
    // The machine that would give a role is the store itself, which gives nobody one.
    let no_role = ["env".to_owned(), format!("AWS_METADATA_ENDPOINT=http://{address}")];
    let without = cli_under(&no_role, &binary(), "", None, &["backup", "list", "--config", one.to_str().unwrap()]);
    let without = refused(&without);
    assert!(without.contains("AWS_ACCESS_KEY_ID"), "{without}");
    let missing = refused(&with(&["backup", "verify", "19990101T000000Z-1"], &one));
    assert!(missing.contains("there is no backup `19990101T000000Z-1`"), "{missing}");

    let manifest = store.join(s3::BUCKET).join("hosts/one/backups").join(newest).join("manifest.json");
    let whole = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, &whole[..whole.len() / 2]).unwrap();
    let rest = done(&with(&["backup", "list"], &one));
    assert!(!rest.contains(newest.as_str()) && rest.contains(kept[0].as_str()), "the others are good: {rest}");
    std::fs::write(&manifest, whole).unwrap();
    let rows = store.join(s3::BUCKET).join("hosts/one/backups").join(newest).join("rows");
    damage(&rows);
    let found = refused(&with(&["backup", "verify", newest], &one));
    assert!(found.contains("damaged") && found.contains(newest.as_str()), "{found}");
    let api = support::host::free_address();
    let two = config("two", api);
    let found = refused(&with(&["backup", "restore", newest], &two));
    assert!(found.contains("damaged"), "{found}");
    let two = config("three", api);
    let older = names.iter().rev().nth(1).unwrap();
    let restored = done(&with(&["backup", "restore", older], &two));
    assert!(restored.contains("epoch 2") && restored.contains("tickhost cluster destroyed 1"), "{restored}");
    let mut host = support::host::HostProcess::serve(&two, api, &options("three"));
    host.until_up(&options("three").log).await;
    done(&host.cli(&["cluster", "destroyed", "1"]));
    done(&host.cli(&["cluster", "release", "--gap", "skip"]));
    let released = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    until("ticks succeed again", SOON, async || {
        let ticks = host.ticks("t/skip").await?;
        ticks.iter().any(|(tick, verdict, _)| *tick > released && verdict == "succeeded").then_some(())
    })
    .await;
    let components = store.join(s3::BUCKET).join("hosts/one/components");
    let component = std::fs::read_dir(components).unwrap().map(|file| file.unwrap().path());
    component.filter(|path| path.extension().is_some_and(|kind| kind == "wasm")).for_each(|path| damage(&path));
    let found = refused(&with(&["backup", "verify", older], &one));
    assert!(found.contains("component sha256:"), "{found}");
}
