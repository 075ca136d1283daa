//! Several executors: sessions, lapses, placement, catch-up by rate.

use super::*;
use tickhost_ledger::{
    FIRST_NODE, Grant,
    absence::absences,
    command::FORMAT,
    launch::{Outcome, Verdict},
    rows::{Executor, Usage},
};

pub(super) fn open(node: u64, store: u128, sequence: u64, session: u128) -> Command {
    Command::OpenSession {
        node,
        store: Uuid::from_u128(store),
        sequence,
        session: Uuid::from_u128(session),
        runs_max: 100,
        memory_bytes_max: 1 << 40,
        tz: "2026a".into(),
        version: "0.1.0".into(),
        format: tickhost_ledger::command::FORMAT,
    }
}

/// Lets a node in and opens its first session.
fn join(host: &mut Host, voter: bool) -> u64 {
    let digest = Digest::of(host.index.to_string().as_bytes());
    let expires_at = Stamp(host.now + 1_000);
    host.apply(Command::PutToken { digest, expires_at, voter, by: "someone".into() });
    let Reply::Admitted(node) = host.apply(Command::Admit { token: digest, address: "n:1".into(), voter }) else {
        panic!("not admitted")
    };
    assert_eq!(host.apply(open(node, 100 + u128::from(node), 1, 1_000 + u128::from(node))), Reply::Done);
    node
}

pub(super) fn present(host: &mut Host, nodes: &[(u64, bool)], leader: u64) {
    let warm = |is_warm: bool| if is_warm { BTreeSet::from([host::COMPONENT]) } else { BTreeSet::new() };
    let present = nodes.iter().map(|(node, is_warm)| (*node, warm(*is_warm).into())).collect();
    host.conductor.facts = std::sync::Arc::new(conductor::Facts { present, leader });
}

fn node_of(host: &Host, run: &RunId) -> u64 {
    host.state.launch(&run.launch).unwrap().live().unwrap().node
}

#[test]
fn a_token_lets_one_node_in_and_no_number_is_given_twice() {
    let mut host = Host::new(spec());
    let digest = Digest([1; 32]);
    let admit_at = |address: &str, voter| Command::Admit { token: digest, address: address.into(), voter };
    let admit = |voter| admit_at("b:1", voter);
    assert!(matches!(host.apply(admit(false)), Reply::Refused(Refusal::Token(_))));
    let token = |expires_at| Command::PutToken { digest, expires_at, voter: false, by: "someone".into() };
    host.apply(token(Stamp(host.now - 1)));
    assert!(matches!(host.apply(admit(false)), Reply::Refused(Refusal::Token(why)) if why.contains("expired")));
    host.apply(token(Stamp(host.now + 1)));
    assert!(matches!(host.apply(admit(true)), Reply::Refused(Refusal::Token(why)) if why.contains("votes")));
    assert_eq!(host.apply(admit(false)), Reply::Admitted(FIRST_NODE + 1));
    assert_eq!(host.apply(admit(false)), Reply::Admitted(FIRST_NODE + 1), "the answer was lost on its way");
    assert!(matches!(host.apply(admit_at("c:1", false)), Reply::Refused(Refusal::Token(_))), "used");
    assert_eq!(host.apply(Command::Remove { node: 2, by: "someone".into() }), Reply::Done);
    assert!(matches!(host.apply(admit(false)), Reply::Refused(Refusal::Token(_))), "used");
    host.apply(token(Stamp(host.now + 1)));
    assert_eq!(host.apply(admit(false)), Reply::Admitted(FIRST_NODE + 2));
}

/// A wiped disk, a copied directory, and a disk that went back.
#[test]
fn a_node_keeps_its_run_table_for_life_and_the_table_does_not_go_back() {
    let mut host = Host::new(spec());
    let node = join(&mut host, false);
    let refused = |reply, word: &str| match reply {
        Reply::Refused(refusal) => assert!(refusal.to_string().contains(word), "{refusal}"),
        other => panic!("{other:?}"),
    };
    refused(host.apply(open(node, 999, 2, 5)), "wiped");
    refused(host.apply(open(node, 102, 1, 5)), "is a copy");
    assert_eq!(host.apply(open(node, 102, 2, 5)), Reply::Done);
    refused(host.apply(open(node, 102, 2, 6)), "copy");
    refused(host.apply(open(77, 1, 1, 1)), "no node 77");
    // Within one session: it counts the runs that it accepts, and the ledger is told with each start.
    let mut host = Host::new(spec());
    let run = host.advance_to(1).remove(0);
    let grant = host.grant(&run);
    assert_eq!(host.apply(Command::Start { run, grant, sequence: 9 }), Reply::Done);
    refused(host.apply(open(1, host::STORE.as_u128(), 9, 7)), "older state of its disk");
    assert_eq!(host.apply(open(1, host::STORE.as_u128(), 10, 7)), Reply::Done);
}

/// What runs go on with: the session changes, the run carries over; it lapses, and the run is lost.
#[test]
fn a_lapse_closes_what_ran_as_lost_and_what_may_not_have_begun_as_unknown() {
    for (policy, started, expected) in [
        (OnUnknown::Skip, true, Status::Closed(Verdict::Lost)),
        (OnUnknown::Skip, false, Status::Closed(Verdict::Unknown)),
        (OnUnknown::Repeat, true, Status::AwaitingRetry { at: Stamp(0), otherwise: Verdict::Lost }),
        (OnUnknown::Repeat, false, Status::AwaitingRetry { at: Stamp(0), otherwise: Verdict::Unknown }),
    ] {
        let retry = Retry { attempts: 2, ..Retry::NEVER };
        let mut host = Host::new(JobSpec { on_unknown: policy, retry, ..spec() });
        let run = host.advance_to(1).remove(0);
        if started {
            host.start(&run);
        }
        host.register(3);
        assert_eq!(conductor::unresolved(&host.state, 1), std::slice::from_ref(&run), "asked for by name");
        let lapse = |session| Command::Lapse { node: 1, session: Uuid::from_u128(session), evidence: "none".into() };
        assert!(matches!(host.apply(lapse(2)), Reply::Refused(Refusal::Stale { .. })), "an earlier session");
        assert_eq!(host.apply(lapse(3)), Reply::Done);
        let status = match host.status(&run.launch) {
            Status::AwaitingRetry { otherwise, .. } => Status::AwaitingRetry { at: Stamp(0), otherwise },
            other => other,
        };
        assert_eq!(status, expected, "{policy:?} {started}");
        assert_eq!(host.state.reserved(1), (0, 0));
        assert_eq!(host.state.session(1), None);
        assert!(host.advance_to(2).is_empty(), "nothing is given to an executor without a session");
    }
}

#[test]
fn placement_prefers_warm_nodes_then_others_than_the_leader_then_the_emptiest() {
    let mut host = Host::new(JobSpec { overlap: Overlap::Allow, ..spec() });
    let second = join(&mut host, true);
    let third = join(&mut host, false);
    present(&mut host, &[(1, true), (second, true), (third, true)], 1);
    let nodes: Vec<u64> = (1..=4)
        .map(|s| {
            let run = host.advance_to(s).remove(0);
            node_of(&host, &run)
        })
        .collect();
    assert!(!nodes.contains(&1) && nodes.contains(&second) && nodes.contains(&third), "{nodes:?}");
    present(&mut host, &[(1, true), (second, false), (third, false)], 1);
    let run = host.advance_to(5).remove(0);
    assert_eq!(node_of(&host, &run), 1, "the only one that has the code");
    present(&mut host, &[(third, false)], 1);
    let run = host.advance_to(6).remove(0);
    assert_eq!(node_of(&host, &run), third, "cold, but there");
    host.apply(Command::Drain { node: third, draining: true, by: "someone".into() });
    assert!(host.advance_to(7).is_empty());
    assert_eq!(host.verdict(7), "Due");
}

/// After an outage of the whole cluster the made-up ticks of many jobs do not all begin at once.
#[test]
fn missed_ticks_are_made_up_at_the_rate_of_the_cluster() {
    let mut host = Host::new(JobSpec { overlap: Overlap::Allow, catch_up: CatchUp::All(10), ..spec() });
    join(&mut host, false);
    present(&mut host, &[(2, true)], 1);
    host.conductor.catch_up_per_s = 3;
    let mut made_up = Vec::new();
    for second in 20..25 {
        let runs = [host.advance_to(second), host.plan()].concat();
        made_up.push(runs.iter().filter(|run| run.launch.tick.0 <= 1_000_015).count());
        assert!(host.conductor.wake_at(&host.state, Stamp(host.now)).unwrap().0 <= host.now + 1_000);
    }
    assert_eq!(made_up, [3, 3, 3, 1, 0]);
}

#[test]
fn a_run_that_is_to_be_stopped_stays_so_for_every_new_leader() {
    let mut host = Host::new(JobSpec { overlap: Overlap::Replace, ..spec() });
    let first = host.advance_to(1).remove(0);
    host.start(&first);
    host.advance_to(2);
    let revoked: Vec<(RunId, String)> = host.state.revoked().map(|(run, why)| (run, why.to_owned())).collect();
    assert_eq!(revoked.len(), 1);
    assert_eq!(revoked[0].0, first);
    assert!(revoked[0].1.contains("replaced by"), "{}", revoked[0].1);
    host.end(&first, Outcome::Revoked { message: String::new() });
    assert_eq!(host.state.revoked().count(), 0);
}

/// The answer to an intent was lost on its way; the run, which has sent nothing, asks again.
#[test]
fn an_intent_that_is_proposed_again_is_the_same_intent() {
    let mut host = Host::new(spec());
    let run = host.advance_to(1).remove(0);
    host.start(&run);
    let (grant, key) = (host.grant(&run), host.key(&run));
    let intent = |call| Command::IntendEffect {
        run: run.clone(),
        grant,
        call,
        key,
        what: "POST".into(),
        fingerprint: Digest([1; 32]),
        results: vec![],
    };
    assert_eq!(host.apply(intent(1)), Reply::Effect(EffectAnswer::Go));
    assert_eq!(host.apply(intent(1)), Reply::Effect(EffectAnswer::Go));
    assert_eq!(host.state.effects(&name(), run.launch.tick).next().unwrap().1.intended.len(), 1);
    assert_eq!(host.apply(intent(2)), Reply::Effect(EffectAnswer::InDoubt), "another call of the same run");
}

#[test]
fn a_node_is_removed_once_nothing_is_left_of_it() {
    let mut host = Host::new(spec());
    let node = join(&mut host, false);
    present(&mut host, &[(node, true)], 1);
    let run = host.advance_to(1).remove(0);
    let remove = || Command::Remove { node, by: "someone".into() };
    assert!(matches!(host.apply(remove()), Reply::Refused(Refusal::Executor { .. })));
    let session = host.state.session(node).unwrap();
    host.apply(Command::Lapse { node, session, evidence: "it was removed".into() });
    assert_eq!(host.status(&run.launch), Status::Closed(Verdict::Unknown));
    assert_eq!(host.apply(remove()), Reply::Done);
    assert!(host.state.node(node).is_none());
}

/// Tens of thousands of jobs due in one second take longer to decide than a tick may be late. Nobody was away: none of
/// them was missed, so none goes by the rate of what is made up.
#[test]
fn what_is_late_only_because_so_much_was_due_was_not_missed() {
    let mut host = Host::empty(1_000_000_000);
    let jobs: Vec<JobName> = (0..4_500).map(|n| JobName::new("many", &format!("job-{n}")).unwrap()).collect();
    for job in &jobs {
        let timing = Definition::new("47 13 * * *", "UTC");
        assert_eq!(host.put_unchecked(job, JobSpec { timing, ..spec() }), Reply::Done);
    }
    // 13:47:00 is 20 s after the beginning. Each entry takes four seconds to be committed.
    host.now += 20_000;
    let mut rounds = 0;
    loop {
        let plan = host.conductor.plan(&host.state, Stamp(host.now));
        let decides = plan.commands.iter().filter(|command| matches!(command, Command::Decide(_))).count();
        host.apply_unchecked(plan.commands);
        host.now += 4_000;
        if decides == 0 {
            break;
        }
        rounds += 1;
    }
    assert!(rounds >= 3, "{rounds}");
    for job in &jobs {
        let (_, launch) = host.state.launches(job, TickAt(0), TickAt(i64::MAX)).next().unwrap();
        assert_eq!(launch.origin, tickhost_ledger::rows::Origin::Schedule { caught_up: false });
    }
}

/// A command that not every node knows must not be proposed.
#[test]
fn a_node_of_an_older_release_is_below_newer_commands() {
    let mut host = Host::new(spec());
    let node = join(&mut host, false);
    let restore = Command::Destroyed { node: 1, by: String::new() };
    let found = host.state.cluster().unwrap();
    let oldest = Command::Found { cluster: found.id, key_domain: found.key_domain, address: String::new() };
    assert!(oldest.format() < restore.format() && restore.format() <= tickhost_ledger::command::FORMAT);
    assert_eq!(host.state.below(restore.format()).count(), 0);
    let Command::OpenSession { store, .. } = open(node, 102, 2, 9) else { unreachable!() };
    host.apply(Command::OpenSession {
        node,
        store,
        sequence: 2,
        session: Uuid::from_u128(9),
        runs_max: 1,
        memory_bytes_max: 1,
        tz: "2026a".into(),
        version: "0.0.9".into(),
        format: oldest.format(),
    });
    assert_eq!(host.state.below(oldest.format()).count(), 0);
    assert_eq!(host.state.below(restore.format()).map(|(node, _)| node).collect::<Vec<_>>(), [node]);
    let executor: &Executor = host.state.node(node).unwrap().executor.as_ref().unwrap();
    assert_eq!(executor.version, "0.0.9");
}

/// The level rises once the last older node is gone, and from then on none is let in again.
#[test]
fn the_level_waits_for_older_nodes_and_then_shuts_them_out() {
    let mut host = Host::new(spec());
    let open = |host: &mut Host, session: u128, format| {
        host.sequence += 1;
        host.apply(Command::OpenSession {
            node: 1,
            store: STORE,
            sequence: host.sequence,
            session: Uuid::from_u128(session),
            runs_max: 4,
            memory_bytes_max: 1 << 40,
            tz: "2026a".into(),
            version: "0.0.9".into(),
            format,
        })
    };
    let level = Command::Level { format: FORMAT };
    assert_eq!(open(&mut host, 50, FORMAT - 1), Reply::Done);
    assert!(matches!(host.apply(level.clone()), Reply::Refused(Refusal::Executor { node: 1, .. })));
    assert_eq!(open(&mut host, 51, FORMAT), Reply::Done);
    assert_eq!((host.apply(level.clone()), host.apply(level)), (Reply::Done, Reply::Unchanged));
    let Reply::Refused(refusal) = open(&mut host, 52, FORMAT - 1) else { panic!("it is older") };
    assert!(refusal.to_string().contains("version 0.0.9 knows"), "{refusal}");
}

/// Fields that came later are part of a row only where every node knows them: the bytes of all others stay what they were
/// (the golden ones show it), and with them the hash of the state.
#[test]
fn what_a_command_says_decides_which_nodes_know_it() {
    let put = |change: &dyn Fn(&mut JobSpec)| {
        let mut spec = spec();
        change(&mut spec);
        Command::PutJob {
            job: name(),
            spec: Box::new(spec),
            from_revision: 0,
            next: None,
            checked: None,
            by: String::new(),
        }
        .format()
    };
    let end = |usage| {
        let launch = LaunchId { job: name(), tick: TickAt(0), rerun: None };
        let run = RunId { launch, attempt: 1 };
        let outcome = Outcome::Succeeded { message: None };
        Command::End { run, grant: Grant { epoch: 1, index: 1 }, outcome, usage, results: vec![] }.format()
    };
    assert_eq!(put(&|_| ()), 1);
    assert_eq!(put(&|spec| spec.args.push("-v".into())), 4);
    assert_eq!(put(&|spec| drop(spec.env.insert("A".into(), "1".into()))), 4);
    assert_eq!(put(&|spec| spec.limits.keys = 1), 4);
    let usage = Usage { memory_bytes: 1, keys: 1, ..Usage::default() };
    assert_eq!((end(usage), end(usage.of_format_1())), (4, 1));
    assert_eq!(usage.of_format_1(), Usage { memory_bytes: 1, ..Usage::default() });
}

/// A leader that does nothing, an executor that says nothing: both are noticed from the state alone.
#[test]
fn what_did_not_happen_is_noticed_and_nothing_else_is() {
    let limits = Limits { wall_ms: 1_000, ..Limits::default() };
    let mut host = Host::new(JobSpec { limits, ..spec() });
    let absent = |host: &Host, second: i64| -> Vec<String> {
        let now = Stamp(1_000_000_000 + second * 1_000);
        absences(&host.state, now, 10).iter().map(ToString::to_string).collect()
    };
    assert_eq!(absent(&host, 5), Vec::<String>::new(), "an election may take as long");
    assert_eq!(absent(&host, 6), ["billing/nightly@1970-01-12T13:46:41Z: no decision"]);
    let run = host.advance_to(6).remove(0);
    assert_eq!(absent(&host, 10), Vec::<String>::new());
    host.start(&run);
    for second in 7..40 {
        host.advance_to(second);
        let expected = if second > 6 + 1 + 20 + 5 { vec![format!("{}: no verdict", run.launch)] } else { vec![] };
        assert_eq!(absent(&host, second), expected, "{second}");
    }
    host.end(&run, Outcome::Succeeded { message: None });
    assert_eq!(absent(&host, 40), Vec::<String>::new());
    // A pause is no silence.
    host.apply(Command::Pause { job: name(), note: String::new(), by: String::new() });
    assert_eq!(absent(&host, 100), Vec::<String>::new());
}
