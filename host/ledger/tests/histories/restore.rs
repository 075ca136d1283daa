//! A restore from a backup: a new epoch, a hold, and the ticks that nobody knows about.

use super::{
    cluster::{open, present},
    *,
};
use tickhost_ledger::{
    absence::absences,
    launch::{SkipReason, Verdict},
    rows::GapChoice,
};

/// The node that restores: the number after the last one that was given.
const NODE: u64 = 2;

fn repeating(spec: JobSpec) -> JobSpec {
    JobSpec { on_unknown: OnUnknown::Repeat, retry: Retry { attempts: 3, ..Retry::NEVER }, ..spec }
}

/// What a backup of that host gives back at that second, on hold.
fn restored(backup: &Host, second: i64) -> Host {
    let rows = backup.rows.clone();
    let state = State::load(rows.iter().map(|(k, v)| (k.as_slice(), v.as_slice()))).unwrap();
    let mut host = Host {
        state,
        conductor: Conductor::default(),
        index: backup.index,
        now: 1_000_000_000 + second * 1_000,
        rows,
        outputs: vec![],
        sequence: 0,
        calls: 0,
    };
    let taken_at = Stamp(backup.now);
    let command = |node| Command::Restore {
        cluster: Uuid::from_u128(11),
        node,
        address: "n:1".into(),
        backup: "monday".into(),
        taken_at,
    };
    assert!(matches!(host.apply(command(1)), Reply::Refused(_)), "no number is given twice");
    assert_eq!(host.apply(command(NODE)), Reply::Done);
    assert_eq!(host.state.cluster().unwrap().epoch, backup.state.cluster().unwrap().epoch + 1);
    assert_eq!(host.state.cluster().unwrap().key_domain, backup.state.cluster().unwrap().key_domain);
    assert_eq!(host.apply(open(NODE, 50, 1, 51)), Reply::Done);
    present(&mut host, &[(NODE, true)], NODE);
    host
}

fn destroyed(host: &mut Host, node: u64) {
    assert_eq!(host.apply(Command::Destroyed { node, by: "someone".into() }), Reply::Done);
}

fn release(host: &mut Host, choice: GapChoice) {
    assert_eq!(host.apply(Command::Release { choice, by: "someone".into() }), Reply::Done);
}

/// Whatever is planned, applied; what runs is left alone.
fn settle(host: &mut Host) -> Vec<RunId> {
    let mut runs = Vec::new();
    while !host.conductor.plan(&host.state, Stamp(host.now)).commands.is_empty() {
        runs.extend(host.plan());
    }
    runs
}

#[test]
fn on_hold_nothing_is_launched_or_changed_and_nothing_is_called_absent() {
    let mut backup = Host::new(spec());
    let run = backup.advance_to(1).remove(0);
    backup.start(&run);
    let mut host = restored(&backup, 3_600);
    assert!(host.conductor.plan(&host.state, Stamp(host.now)).commands.is_empty());
    assert_eq!(host.conductor.wake_at(&host.state, Stamp(host.now)), None);
    assert_eq!(absences(&host.state, Stamp(host.now), 10), []);
    let is_held = |reply| matches!(reply, Reply::Refused(Refusal::OnHold(backup)) if backup == "monday");
    assert!(is_held(host.put(repeating(spec()))));
    assert!(is_held(host.apply(Command::Pause { job: name(), note: String::new(), by: String::new() })));
    let launch = LaunchId { job: name(), tick: run.launch.tick, rerun: Some(Uuid::from_u128(1)) };
    let trigger = Command::Trigger { launch, local: String::new(), same_key: true, by: String::new() };
    assert!(is_held(host.apply(trigger)));
    let session = host.state.session(NODE).unwrap();
    assert!(is_held(host.apply(Command::Intend { run, node: NODE, session })));
}

#[test]
fn the_hold_lasts_until_every_executor_of_the_backup_takes_part_or_is_gone() {
    let mut backup = Host::new(spec());
    let mut host = restored(&backup, 60);
    let choice = Command::Release { choice: GapChoice::Skip, by: "someone".into() };
    let refused = host.apply(choice.clone());
    assert!(matches!(&refused, Reply::Refused(Refusal::AtLarge(nodes)) if nodes[0].0 == 1), "{refused:?}");
    let wrong = host.apply(Command::Destroyed { node: NODE, by: String::new() });
    assert_eq!(wrong, Reply::Refused(Refusal::NotAtLarge { node: NODE, awaited: vec![1] }));
    destroyed(&mut host, 1);
    assert_eq!(host.apply(choice.clone()), Reply::Done);
    assert!(matches!(host.apply(choice), Reply::Refused(Refusal::NotOnHold)), "once");
    // The same, with the old executor let in under a new number.
    let mut host = restored(&backup, 60);
    let token = Digest([1; 32]);
    host.apply(Command::PutToken { digest: token, expires_at: Stamp(host.now + 1), voter: true, by: "someone".into() });
    assert_eq!(host.apply(Command::Admit { token, address: "m:1".into(), voter: true }), Reply::Admitted(3));
    assert_eq!(host.apply(open(3, STORE.as_u128(), backup.sequence + 1, 60)), Reply::Done);
    release(&mut host, GapChoice::Skip);
    // A backup that was taken on hold still waits for the executors of the first one, and for its own.
    backup = restored(&backup, 60);
    let Reply::Refused(Refusal::AtLarge(nodes)) = ({
        let rows = backup.rows.clone();
        backup.state = State::load(rows.iter().map(|(k, v)| (k.as_slice(), v.as_slice()))).unwrap();
        let (backup_id, taken_at) = ("tuesday".into(), Stamp(backup.now));
        let (cluster, address) = (Uuid::from_u128(12), "n:1".into());
        let again = Command::Restore { cluster, node: 3, address, backup: backup_id, taken_at };
        assert_eq!(backup.apply(again), Reply::Done);
        backup.apply(Command::Release { choice: GapChoice::Skip, by: String::new() })
    }) else {
        panic!("released")
    };
    assert_eq!(nodes.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [1, 2]);
}

/// A backup at second 3 with one launch that runs; restored at 60, released at 100.
fn gap_of(spec: JobSpec, choice: GapChoice) -> (Host, Vec<RunId>) {
    let mut backup = Host::new(spec);
    for second in 1..=2 {
        let run = backup.advance_to(second).remove(0);
        backup.succeed(&run);
    }
    let running = backup.advance_to(3).remove(0);
    backup.start(&running);
    let mut host = restored(&backup, 60);
    destroyed(&mut host, 1);
    host.now += 40_000;
    release(&mut host, choice);
    host.now += 500;
    let runs = settle(&mut host);
    (host, runs)
}

#[test]
fn what_nobody_knows_about_is_unknown_and_the_schedule_goes_on() {
    let asks = Retry { attempts: 3, when: RetryWhen::Asked, ..Retry::NEVER };
    for (spec, choice) in [
        (spec(), GapChoice::Skip),
        (spec(), GapChoice::Repeat),
        (JobSpec { retry: asks, catch_up: CatchUp::All(1_000), ..spec() }, GapChoice::Repeat),
        (repeating(spec()), GapChoice::Skip),
    ] {
        let (mut host, runs) = gap_of(spec, choice);
        assert_eq!(host.verdicts(1..=2), ["succeeded"; 2]);
        assert!(host.verdicts(3..=100).iter().all(|verdict| verdict == "unknown"), "{:?}", host.verdicts(1..=100));
        assert!(runs.is_empty(), "{runs:?}");
        assert!(host.state.skipped(&name()).count() <= 2, "told in one range");
        let next = host.advance_to(101);
        assert_eq!(next.iter().map(|run| run.launch.tick).collect::<Vec<_>>(), [TickAt(1_000_101)]);
        host.succeed(&next[0]);
        assert_eq!(host.verdict(101), "succeeded");
    }
}

#[test]
fn what_may_be_repeated_is_repeated_under_the_keys_that_it_had() {
    let (mut host, runs) = gap_of(repeating(JobSpec { catch_up: CatchUp::All(5), ..spec() }), GapChoice::Repeat);
    // First the one that was open in the backup, as a further attempt; then what the policy for missed ticks makes up.
    assert_eq!(runs.iter().map(ToString::to_string).collect::<Vec<_>>(), ["billing/nightly@1970-01-12T13:46:43Z#2"]);
    assert_eq!(host.key(&runs[0]), host.state.key_source(&runs[0].launch).unwrap().key(&["charge".into()]));
    let mut done = Vec::new();
    let mut next = runs;
    while let Some(run) = next.pop() {
        done.push(run.launch.tick.0 - 1_000_000);
        host.succeed(&run);
        next = settle(&mut host);
    }
    let unknown = |second: &i64| host.verdict(*second) == "unknown";
    assert_eq!(done.first(), Some(&3));
    assert_eq!(done.last(), Some(&100));
    assert!((4..=100).filter(|second| !done.contains(second)).all(|second| unknown(&second)), "{done:?}");
    assert!(done.len() >= 6, "{done:?}");
}

/// A window places launches later than their ticks: what was to begin after the release, nobody can have begun.
#[test]
fn what_was_placed_later_than_the_gap_is_launched() {
    let timing = Definition { window_s: 3_000, ..Definition::new("50 13 * * *", "UTC") };
    let mut backup = Host::new(JobSpec { timing, ..spec() });
    // 13:50:00 is 200 s after the start; decided then, and placed within the window.
    backup.advance_to(200);
    let (id, launch) = backup.state.launches(&name(), TickAt(0), TickAt(i64::MAX)).next().unwrap();
    let (id, due_s) = (id.clone(), (launch.start_after.0 - 1_000_000_000) / 1_000);
    assert!(due_s > 230, "the spread of this name leaves room: {due_s}");
    let mut host = restored(&backup, 210);
    destroyed(&mut host, 1);
    host.now += 10_000;
    release(&mut host, GapChoice::Skip);
    host.now = 1_000_000_000 + due_s * 1_000;
    assert_eq!(settle(&mut host), [RunId { launch: id.clone(), attempt: 1 }]);
    // The other way round: released after its time.
    let mut host = restored(&backup, 210);
    destroyed(&mut host, 1);
    host.now = 1_000_000_000 + (due_s + 1) * 1_000;
    release(&mut host, GapChoice::Skip);
    assert_eq!(host.status(&id), Status::Closed(Verdict::Unknown));
    assert_eq!(settle(&mut host), []);
}

#[test]
fn an_edit_right_after_the_release_swallows_no_tick() {
    let mut backup = Host::new(spec());
    let run = backup.advance_to(1).remove(0);
    backup.succeed(&run);
    let mut host = restored(&backup, 60);
    destroyed(&mut host, 1);
    release(&mut host, GapChoice::Skip);
    loop {
        let decided = host.conductor.decide_up_to(&host.state, &name(), Stamp(host.now)).unwrap();
        let Some(decision) = decided else { break };
        assert!(decision.skipped.iter().all(|skip| skip.reason == SkipReason::Restored));
        host.apply(Command::Decide(decision));
    }
    assert_eq!(host.put(repeating(spec())), Reply::Done);
    assert!(host.verdicts(2..=60).iter().all(|verdict| verdict == "unknown"), "{:?}", host.verdicts(1..=60));
}
