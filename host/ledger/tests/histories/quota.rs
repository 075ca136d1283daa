//! Namespaces: what is stored is refused at once, what is spent waits.

use super::*;
use tickhost_ledger::{
    command::NAMESPACES,
    quota::{Checked, EVERY_NAMESPACE, Quota},
};

fn set(host: &mut Host, namespace: &str, quota: Quota) -> Reply {
    host.apply(Command::SetQuota { namespace: namespace.into(), quota: Some(Box::new(quota)), by: "someone".into() })
}

fn put(host: &mut Host, name: &JobName, spec: &JobSpec, checked: Option<Checked>) -> Reply {
    let at = Stamp(host.now);
    let schedule = Schedule::new(&spec.timing, Some(&name.to_string()), at.time()).unwrap();
    host.apply(Command::PutJob {
        job: name.clone(),
        from_revision: host.state.job(name).map_or(0, |job| job.revision),
        next: conductor::next_tick(&schedule, at.time(), None),
        spec: Box::new(spec.clone()),
        checked,
        by: "someone".into(),
    })
}

fn job(name: &str) -> JobName {
    name.parse().unwrap()
}

#[test]
fn everything_that_a_job_must_not_be_is_told_in_one_report() {
    let mut host = Host::empty(1_000_000_000);
    assert_eq!(put(&mut host, &job("a/first"), &spec(), None), Reply::Done);
    let quota = Quota {
        jobs: Some(1),
        shortest_interval_s: Some(60),
        memory_bytes: Some(1 << 20),
        cpu_s_per_hour: Some(5),
        limits: BTreeMap::from([("wall".to_owned(), 1_000)]),
        hosts: Some(vec!["https://*.example.com".into()]),
        ..Quota::default()
    };
    assert_eq!(set(&mut host, "a", quota.clone()), Reply::Done);
    assert_eq!(set(&mut host, "a", quota), Reply::Unchanged);
    let revision = host.state.quota("a").unwrap().revision;
    let strangers = vec!["http://other.example.net".into()];
    let checked = Checked { quota: revision, interval_s: Some(1), strangers };
    let spec = JobSpec { limits: Limits { memory_bytes: 1 << 41, ..Limits::default() }, ..spec() };
    assert_eq!(host.apply(Command::Level { format: NAMESPACES }), Reply::Done);
    let Reply::Refused(Refusal::OverQuota { violations, .. }) = put(&mut host, &job("a/second"), &spec, Some(checked))
    else {
        panic!("it is over its quota");
    };
    for (violation, name) in violations.iter().zip([
        "`jobs` would be 2",
        "`limits.memory`",
        "`limits.cpu`",
        "ticks 1 s apart",
        "`limits.wall`",
        "`http://other.example.net`",
        "the largest node",
    ]) {
        assert!(violation.contains(name), "{name}: {violations:#?}");
    }
    assert_eq!(violations.len(), 7, "{violations:#?}");
    assert_eq!(host.state.job(&job("a/second")), None);
    assert_eq!(put(&mut host, &job("b/second"), &super::spec(), None), Reply::Done, "another namespace has no quota");
}

/// A namespace that has more jobs than its quota by now can still mend them, and gets no more of them.
#[test]
fn a_job_that_is_there_may_be_changed_whatever_became_of_the_quota() {
    let mut host = Host::empty(1_000_000_000);
    for name in ["a/1", "a/2", "a/3"] {
        put(&mut host, &job(name), &spec(), None);
    }
    set(&mut host, "a", Quota { jobs: Some(1), ..Quota::default() });
    let changed = JobSpec { start_deadline_s: 7, ..spec() };
    assert_eq!(put(&mut host, &job("a/2"), &changed, None), Reply::Done);
    let fourth = put(&mut host, &job("a/4"), &spec(), None);
    assert!(matches!(fourth, Reply::Refused(Refusal::OverQuota { .. })), "{fourth:?}");
}

/// What waits for its quota takes nothing of the rate at which all that was missed is made up.
#[test]
fn what_a_quota_holds_uses_up_no_others_turn() {
    let mut host = Host::empty(1_000_000_000);
    let hourly = JobSpec { timing: Definition::new("0 0 * * * *", "UTC"), start_deadline_s: 36_000, ..spec() };
    for name in ["a/1", "a/2", "b/1"] {
        put(&mut host, &job(name), &hourly, None);
    }
    set(&mut host, "a", Quota { runs: Some(1), ..Quota::default() });
    host.conductor.catch_up_per_s = 1;
    let mut begun = Vec::new();
    // An hour and a half of silence: each has one tick to make up. The first of `a` runs on.
    for second in 0..3 {
        host.now = 1_000_000_000 + 5_400_000 + second * 1_000;
        // Looked at more than once a second, as after every entry.
        for _ in 0..3 {
            begun.extend(host.plan().into_iter().map(|run| (second, run.launch.job.to_string())));
        }
    }
    assert_eq!(begun, [(0, "a/1".to_owned()), (1, "b/1".to_owned())]);
}

/// What `apply` cannot see for itself is computed from a quota that was read, and the quota may have changed since.
#[test]
fn a_job_that_was_checked_against_another_quota_is_checked_again() {
    let mut host = Host::empty(1_000_000_000);
    let quota = Quota { shortest_interval_s: Some(60), ..Quota::default() };
    set(&mut host, EVERY_NAMESPACE, quota);
    let revision = host.state.quota("a").unwrap().revision;
    let checked = |quota| Some(Checked { quota, interval_s: Some(60), strangers: vec![] });
    for stale in [None, checked(revision - 1)] {
        let reply = put(&mut host, &job("a/one"), &spec(), stale);
        assert!(matches!(reply, Reply::Refused(Refusal::Stale { .. })), "{reply:?}");
    }
    assert_eq!(put(&mut host, &job("a/one"), &spec(), checked(revision)), Reply::Done);
    host.apply(Command::SetQuota { namespace: EVERY_NAMESPACE.into(), quota: None, by: String::new() });
    assert_eq!(put(&mut host, &job("a/two"), &spec(), None), Reply::Done);
}

/// Five jobs, two launches a minute: the first two go, the others wait for the next minute in their turn, and what waits
/// longer than its deadline says why.
#[test]
fn a_launch_over_the_rate_waits_and_is_skipped_for_its_quota_at_its_deadline() {
    // 16:40 exactly, so that minutes begin with the host's seconds.
    let mut host = Host::empty(999_960_000);
    let minutely = JobSpec { timing: Definition::new("30 * * * * *", "UTC"), start_deadline_s: 80, ..spec() };
    for name in ["a/1", "a/2", "a/3", "a/4", "a/5"] {
        put(&mut host, &job(name), &minutely, None);
    }
    set(&mut host, "a", Quota { launches_per_minute: Some(2), ..Quota::default() });
    let mut begun: Vec<(i64, String)> = Vec::new();
    for second in 0..120 {
        host.now = 999_960_000 + second * 1_000;
        for run in host.plan() {
            begun.push((second, run.launch.job.name.clone()));
            host.succeed(&run);
        }
    }
    let begun: Vec<(i64, &str)> = begun.iter().map(|(second, name)| (*second, name.as_str())).collect();
    assert_eq!(begun, [(30, "1"), (30, "2"), (60, "3"), (60, "4")], "the wake-up at the turn of the minute counts too");
    let fifth = LaunchId { job: job("a/5"), tick: TickAt(999_990), rerun: None };
    assert_eq!(host.status(&fifth), Status::Closed(Verdict::Skipped(SkipReason::Quota)));
    let wake = host.conductor.wake_at(&host.state, Stamp(host.now)).unwrap();
    assert_eq!(wake, Stamp(999_960_000 + 120_000), "and the next minute is waited for");
}

#[test]
fn runs_memory_and_cpu_are_reserved_while_a_run_lives() {
    let often = JobSpec { overlap: Overlap::Allow, ..spec() };
    let of = |limits: Limits| JobSpec { limits, ..often.clone() };
    let limits = Limits { memory_bytes: 1 << 20, cpu_ms: 1_000, ..Limits::default() };
    for quota in [
        Quota { runs: Some(2), ..Quota::default() },
        Quota { memory_bytes: Some(2 << 20), ..Quota::default() },
        Quota { cpu_s_per_hour: Some(2), ..Quota::default() },
    ] {
        let is_of_cpu = quota.cpu_s_per_hour.is_some();
        let mut host = Host::empty(1_000_000_000);
        set(&mut host, "billing", quota.clone());
        host.put(of(limits));
        let begun: Vec<RunId> = (1..6).flat_map(|second| host.advance_to(second)).collect();
        assert_eq!(begun.len(), 2, "{quota:?}");
        let held = host.state.held("billing");
        assert_eq!((held.runs, held.memory_bytes), (2, 2 << 20));
        // Asking for what is not free is refused where it counts.
        let third = host.state.waiting(Stamp(host.now)).next().and_then(|(_, mut ids)| ids.next().cloned()).unwrap();
        let session = host.state.session(1).unwrap();
        let reply = host.apply(Command::Intend { run: RunId { launch: third, attempt: 1 }, node: 1, session });
        assert!(format!("{reply:?}").contains("quota"), "{reply:?}");
        host.succeed(&begun[0]);
        // What a run has used of the CPU is nothing here; half a second would have stayed used.
        assert_eq!(host.plan().len(), 1, "{quota:?}");
        if is_of_cpu {
            let grant = host.grant(&begun[1]);
            host.start(&begun[1]);
            let usage = Usage { cpu_us: 500_000, ..Usage::default() };
            let outcome = Outcome::Succeeded { message: None };
            host.apply(Command::End { run: begun[1].clone(), grant, outcome, usage, results: vec![] });
            assert_eq!(host.plan(), [], "half a second is left of the hour, and a run declares a whole one");
        }
    }
}

#[test]
fn a_namespace_fills_its_store_and_its_journal_and_no_more() {
    let mut host = Host::new(spec());
    set(&mut host, "billing", Quota { kv_bytes: Some(10), journal_bytes: Some(1_000), ..Quota::default() });
    let run = host.advance_to(1).remove(0);
    host.start(&run);
    let grant = host.grant(&run);
    let mut key = 0_u128;
    let mut write = |host: &mut Host, name: &str, change| {
        key += 1;
        let (run, name) = (run.clone(), name.to_owned());
        let command = Command::WriteKv { run, grant, key: Uuid::from_u128(key), name, change, results: vec![] };
        matches!(host.apply(command), Reply::Effect(EffectAnswer::Replay(_)))
    };
    let bytes = |n: usize| KvChange::Set(ByteBuf(vec![0; n]));
    assert!(write(&mut host, "a", bytes(5)));
    assert!(!write(&mut host, "b", bytes(4)), "6 and 5");
    assert!(write(&mut host, "a", bytes(9)), "exactly as much as there is");
    assert!(!write(&mut host, "a", bytes(10)));
    assert!(write(&mut host, "a", bytes(1)) && write(&mut host, "a", KvChange::Delete));
    assert_eq!(host.state.held("billing").kv_bytes, 0);
    // Each of these is a row of the journal, and that has its own bound.
    let written = (0..100).take_while(|_| write(&mut host, "n", KvChange::Increment(1))).count();
    assert!((1..10).contains(&written), "{written}");
    let reply = host.effect(&run, 1, vec![]);
    assert!(matches!(reply, Reply::Effect(EffectAnswer::OverQuota(_))), "{reply:?}");
}

#[test]
fn a_component_is_its_namespaces_and_counts_until_it_is_dropped() {
    let mut host = Host::empty(1_000_000_000);
    let digest = Digest([8; 32]);
    let keep = |host: &mut Host, digest, namespace: Option<&str>| {
        let namespace = namespace.map(str::to_owned);
        host.apply(Command::PutComponent { digest, size: 60, imports: vec![], namespace, by: String::new() })
    };
    let drop = |host: &mut Host, namespace: &str| {
        host.apply(Command::DropComponent { digest, namespace: Some(namespace.into()), by: String::new() })
    };
    set(&mut host, "a", Quota { component_bytes: Some(100), ..Quota::default() });
    assert_eq!(keep(&mut host, digest, Some("a")), Reply::Done);
    assert_eq!(keep(&mut host, digest, Some("a")), Reply::Unchanged);
    let second = keep(&mut host, Digest([9; 32]), Some("a"));
    assert!(matches!(second, Reply::Refused(Refusal::OverQuota { .. })), "{second:?}");
    let theirs = JobSpec { component: digest, ..spec() };
    let unknown = Reply::Refused(Refusal::NoComponent(digest));
    assert_eq!(put(&mut host, &job("b/x"), &theirs, None), unknown, "as if it were not there");
    assert_eq!(drop(&mut host, "b"), unknown);
    assert_eq!(put(&mut host, &job("a/x"), &theirs, None), Reply::Done);
    assert!(matches!(drop(&mut host, "a"), Reply::Refused(Refusal::InUse { .. })));
    host.apply(Command::DeleteJob { job: job("a/x"), from_revision: 1, by: String::new() });
    assert_eq!(keep(&mut host, digest, Some("b")), Reply::Done);
    assert_eq!(drop(&mut host, "a"), Reply::Done);
    assert_eq!((host.state.held("a").component_bytes, host.state.held("b").component_bytes), (0, 60));
    assert_eq!(drop(&mut host, "b"), Reply::Done);
    assert_eq!(host.state.component(&digest), None);
}

/// A thousand launches of one namespace wait for four places; another's only one is due later, and gets the next place.
#[test]
fn one_tenants_crowd_does_not_delay_another() {
    let mut host = Host::empty(1_000_000_000);
    let crowd = JobSpec { timing: Definition::new("1 0 * * * *", "UTC"), ..spec() };
    let at = 1_000_000_000 - 1_000_000_000_i64.rem_euclid(3_600_000) + 3_600_000;
    host.now = at;
    for n in 0..1_000 {
        host.put_unchecked(&job(&format!("crowd/{n}")), crowd.clone());
    }
    host.put_unchecked(&job("single/one"), JobSpec { timing: Definition::new("2 0 * * * *", "UTC"), ..spec() });
    host.now = at + 1_000;
    let plan = host.conductor.plan(&host.state, Stamp(host.now));
    host.apply_unchecked(plan.commands);
    let live: Vec<RunId> = host
        .state
        .all_open()
        .filter_map(|id| {
            host.state.launch(id)?.live()?;
            Some(RunId { launch: id.clone(), attempt: 1 })
        })
        .collect();
    assert_eq!(live.len(), 4);
    host.now = at + 2_000;
    let plan = host.conductor.plan(&host.state, Stamp(host.now));
    host.apply_unchecked(plan.commands);
    let grant = host.grant(&live[0]);
    let outcome = Outcome::Succeeded { message: None };
    let end = Command::End { run: live[0].clone(), grant, outcome, usage: Usage::default(), results: vec![] };
    host.apply_unchecked(vec![end]);
    let intended: Vec<String> = host
        .conductor
        .plan(&host.state, Stamp(host.now))
        .commands
        .iter()
        .filter_map(|command| match command {
            Command::Intend { run, .. } => Some(run.launch.job.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(intended, ["single/one"]);
}

/// More are due than one entry decides: every namespace is in the first one.
#[test]
fn ticks_of_one_second_are_decided_in_turns() {
    let mut host = Host::empty(1_000_000_000);
    for n in 0..50 {
        host.put_unchecked(&job(&format!("crowd/{n:02}")), spec());
    }
    host.put_unchecked(&job("single/one"), spec());
    let due = host.state.due_fairly(Stamp(host.now + 1_000), 10, |name| name.name == "00");
    let names: Vec<String> = due.iter().map(ToString::to_string).collect();
    assert_eq!(names[..3], ["crowd/01", "single/one", "crowd/02"]);
    assert_eq!(names.len(), 10);
}
