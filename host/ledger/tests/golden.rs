//! Forms that must never change by accident: keys, and bytes on disk. A test that fails here means that receivers
//! would see other keys, or that an older node cannot read what this one writes.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tickhost_ledger::{
    Command, Digest, Entry, Grant, JobName, JobSpec, LaunchId, RunId, Stamp, State, TickAt,
    access::{Access, Audited, Became, Role},
    codec,
    command::{DecidedLaunch, DecidedSkip, Decision, KvChange, Stamped},
    effect::{ByteBuf, EffectResult, HttpAnswer},
    key::KeySource,
    launch::{Outcome, SkipReason},
    quota::Quota,
    rows::{GapChoice, NextTick, Usage},
    spec::{CatchUp, Limits, OnUnknown, Overlap, Retry},
};
use tickhost_schedule::{ClosedDays, Definition, Dst, Gap, OnClosedDay};
use uuid::Uuid;

fn data(name: &str) -> PathBuf {
    // As cargo says it when the test runs: it may have been built from another checkout.
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../../tests/data").join(name)
}

#[derive(Deserialize)]
struct KeyVector {
    domain: Uuid,
    namespace: String,
    job: String,
    tick: String,
    nonce: Option<Uuid>,
    path: Vec<String>,
    key: Uuid,
}

#[test]
fn keys_are_what_they_were() {
    let vectors: Vec<KeyVector> = serde_json::from_str(&std::fs::read_to_string(data("keys.json")).unwrap()).unwrap();
    assert!(vectors.len() >= 8);
    for v in &vectors {
        let job = JobName::new(&v.namespace, &v.job).unwrap();
        let source = KeySource { domain: v.domain, job, tick: v.tick.parse().unwrap(), nonce: v.nonce };
        assert_eq!(source.key(&v.path), v.key, "{}/{}@{} {:?}", v.namespace, v.job, v.tick, v.path);
    }
    let distinct: std::collections::BTreeSet<Uuid> = vectors.iter().map(|v| v.key).collect();
    assert_eq!(distinct.len(), vectors.len(), "two vectors have one key");
}

fn job() -> JobName {
    JobName::new("billing", "nightly").unwrap()
}

fn run() -> RunId {
    RunId { launch: LaunchId { job: job(), tick: TickAt(1_789_610_400), rerun: None }, attempt: 1 }
}

fn commands() -> Vec<(&'static str, Command)> {
    let grant = Grant { epoch: 1, index: 7 };
    let tick = |at| NextTick { at: TickAt(at), local: "2026-09-17T04:00:00+02:00".into(), due: TickAt(at) };
    let http = EffectResult::Http(HttpAnswer {
        status: 201,
        headers: vec![("content-type".into(), "text/plain".into())],
        body: Some(ByteBuf(b"ok".to_vec())),
        body_digest: Digest::of(b"ok"),
    });
    let day = chrono::NaiveDate::from_ymd_opt(2026, 12, 24).unwrap();
    let spec = JobSpec {
        component: Digest::of(b"component"),
        timing: Definition {
            dst: Dst { gap: Some(Gap::Skip), overlap: None },
            not_after: chrono::DateTime::from_timestamp(1_893_456_000, 0),
            window_s: 600,
            closed: ClosedDays { ranges: vec![(day, day)], every_year: vec![(12, 25)], weekdays: vec![0, 6] },
            on_closed_day: OnClosedDay::NextOpen,
            ..Definition::new("0 2 * * *", "Europe/Paris")
        },
        calendars: vec!["holidays/fr".into()],
        max_launches: Some(12),
        on_unknown: OnUnknown::Skip,
        overlap: Overlap::QueueOne,
        catch_up: CatchUp::All(10),
        start_deadline_s: 3_600,
        limits: Limits::default(),
        allow_http: vec!["https://api.example.com".into()],
        config: BTreeMap::from([("api".into(), "https://api.example.com".into())]),
        args: Vec::new(),
        env: BTreeMap::new(),
        retry: Retry::NEVER,
    };
    vec![
        (
            "found",
            Command::Found { cluster: Uuid::from_u128(1), key_domain: Uuid::from_u128(2), address: "a:7879".into() },
        ),
        (
            "put-job",
            Command::PutJob {
                job: job(),
                spec: Box::new(spec),
                from_revision: 0,
                next: Some(tick(1_789_610_400)),
                checked: None,
                by: "someone".into(),
            },
        ),
        (
            "decide",
            Command::Decide(Decision {
                job: job(),
                revision: 1,
                awaited: TickAt(1_789_524_000),
                skipped: vec![DecidedSkip {
                    from: TickAt(1_789_524_000),
                    to: TickAt(1_789_524_000),
                    reason: SkipReason::CatchUp,
                    previous: None,
                }],
                launches: vec![DecidedLaunch {
                    tick: tick(1_789_610_400),
                    previous: Some(TickAt(1_789_524_000)),
                    caught_up: false,
                }],
                cursor: TickAt(1_789_610_400),
                last_tick: TickAt(1_789_610_400),
                last_local: "2026-09-17T04:00:00+02:00".into(),
                next: Some(tick(1_789_696_800)),
            }),
        ),
        ("admit", Command::Admit { token: Digest::of(b"secret"), address: "b:7879".into(), voter: true }),
        (
            "open-session",
            Command::OpenSession {
                node: 2,
                store: Uuid::from_u128(6),
                sequence: 4,
                session: Uuid::from_u128(7),
                runs_max: 100,
                memory_bytes_max: 1 << 30,
                tz: "2026a".into(),
                version: "0.1.0".into(),
                format: 1,
            },
        ),
        (
            "restore",
            Command::Restore {
                cluster: Uuid::from_u128(8),
                node: 4,
                address: "d:7879".into(),
                backup: "20260917T020000Z-000000000042".into(),
                taken_at: Stamp(1_789_610_400_000),
            },
        ),
        ("destroyed", Command::Destroyed { node: 2, by: "someone".into() }),
        (
            "rewind",
            Command::Rewind {
                job: job(),
                revision: 1,
                awaited: Some(TickAt(1_789_610_400)),
                next: Some(tick(1_789_524_000)),
            },
        ),
        ("hasten", Command::Hasten { launch: run().launch }),
        ("level", Command::Level { format: 5 }),
        (
            "put-component",
            Command::PutComponent {
                digest: Digest::of(b"component"),
                size: 9,
                imports: vec!["tickhost:job/http@0.1.0".into()],
                namespace: Some("billing".into()),
                by: "someone".into(),
            },
        ),
        (
            "drop-component",
            Command::DropComponent {
                digest: Digest::of(b"component"),
                namespace: Some("billing".into()),
                by: "someone".into(),
            },
        ),
        (
            "set-quota",
            Command::SetQuota {
                namespace: "billing".into(),
                quota: Some(Box::new(Quota {
                    jobs: Some(100),
                    cpu_s_per_hour: Some(3_600),
                    limits: BTreeMap::from([("memory".into(), 1 << 27)]),
                    hosts: Some(vec!["https://*.example.com".into()]),
                    ..Quota::default()
                })),
                by: "someone".into(),
            },
        ),
        (
            "put-access",
            Command::PutAccess {
                name: "ci".into(),
                access: Box::new(Access {
                    digest: Digest::of(b"secret"),
                    role: Role::Deployer,
                    namespace: Some("billing".into()),
                    expires_at: Stamp(1_789_700_000_000),
                    stored_at: Stamp(1_789_610_400_000),
                    by: "someone".into(),
                }),
            },
        ),
        ("drop-access", Command::DropAccess { name: "ci".into(), by: "someone".into() }),
        (
            "audit",
            Command::Audit {
                records: vec![Audited {
                    at: Stamp(1_789_610_400_000),
                    by: "someone".into(),
                    what: "PUT".into(),
                    on: "/v1/jobs/a/b".into(),
                    became: Became::Refused("no".into()),
                    times: 3,
                }],
            },
        ),
        ("release", Command::Release { choice: GapChoice::Repeat, by: "someone".into() }),
        ("lapse", Command::Lapse { node: 2, session: Uuid::from_u128(7), evidence: "no ask since".into() }),
        ("intend", Command::Intend { run: run(), node: 1, session: Uuid::from_u128(3) }),
        ("start", Command::Start { run: run(), grant, sequence: 0 }),
        (
            "end",
            Command::End {
                run: run(),
                grant,
                outcome: Outcome::OverLimit { limit: "cpu".into(), message: "over".into() },
                usage: Usage { memory_bytes: 65_536, ..Usage::default() },
                results: vec![(Uuid::from_u128(4), http)],
            },
        ),
        (
            "write-kv",
            Command::WriteKv {
                run: run(),
                grant,
                key: Uuid::from_u128(5),
                name: "total".into(),
                change: KvChange::Increment(-3),
                results: vec![],
            },
        ),
    ]
}

fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(name: &str, value: &T) {
    let golden = std::fs::read_to_string(data("golden").join(format!("{name}.hex"))).unwrap();
    let bytes: Vec<u8> =
        (0..golden.trim().len() / 2).map(|i| u8::from_str_radix(&golden[2 * i..2 * i + 2], 16).unwrap()).collect();
    assert_eq!(&codec::decode::<T>(&bytes).unwrap(), value, "{name}: old bytes mean something else");
    let now = codec::encode(value).unwrap();
    let hex: String = now.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.trim(), "{name}: other bytes than before");
}

#[test]
fn entries_are_encoded_as_they_were() {
    for (name, command) in commands() {
        check(name, &Entry { commands: vec![Stamped { at: Stamp(1_789_610_400_000), command }] });
    }
}

#[test]
fn an_unknown_command_is_an_error_and_an_unknown_field_is_none() {
    let entry = Entry { commands: vec![Stamped { at: Stamp(1), command: commands().remove(0).1 }] };
    let bytes = codec::encode(&entry).unwrap();
    let rename = |from: &[u8], to: &[u8]| -> Vec<u8> {
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        [&bytes[..at], to, &bytes[at + from.len()..]].concat()
    };
    assert!(codec::decode::<Entry>(&rename(b"Found", b"Bound")).is_err());
    assert!(codec::decode::<Entry>(&bytes[..bytes.len() - 1]).is_err());
    assert!(State::load([(&[99_u8, 1][..], &[1_u8][..])]).is_err(), "a table of a newer version");
}
