//! Histories of one host: what the conductor plans is applied, runs end in every way, and every tick gets
//! exactly one verdict.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use tickhost_ledger::{
    Command, Digest, Entry, Grant, JobName, JobSpec, LaunchId, Output, Refusal, Reply, RunId, Stamp, State, TickAt,
    clock::ClockGuard,
    command::{KvChange, Stamped},
    conductor::{self, Answer, Conductor, Witness},
    effect::{ByteBuf, EffectAnswer, EffectResult},
    launch::{Outcome, Status},
    rows::Usage,
    spec::{CatchUp, Limits, OnUnknown, Overlap, Retry, RetryWhen},
};
use tickhost_schedule::{ClosedDays, Definition, Offsets, OnClosedDay, Schedule};
use uuid::Uuid;

const COMPONENT: Digest = Digest([7; 32]);
const STORE: Uuid = Uuid::from_u128(1);

struct Host {
    state: State,
    conductor: Conductor,
    index: u64,
    now: i64,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    outputs: Vec<Output>,
}

fn spec() -> JobSpec {
    JobSpec {
        component: COMPONENT,
        timing: Definition::new("* * * * * *", "UTC"),
        calendars: vec![],
        max_launches: None,
        on_unknown: OnUnknown::Skip,
        overlap: Overlap::Skip,
        catch_up: CatchUp::Latest,
        start_deadline_s: 3_600,
        limits: Limits::default(),
        allow_http: vec![],
        config: BTreeMap::new(),
        retry: Retry::NEVER,
    }
}

fn name() -> JobName {
    JobName::new("billing", "nightly").unwrap()
}

impl Host {
    fn new(spec: JobSpec) -> Self {
        let mut host = Self {
            state: State::default(),
            conductor: Conductor::default(),
            index: 0,
            now: 1_000_000_000,
            rows: BTreeMap::new(),
            outputs: vec![],
        };
        host.apply(Command::Found { cluster: Uuid::from_u128(9), key_domain: Uuid::from_u128(10) });
        host.register(2);
        host.apply(Command::PutComponent { digest: COMPONENT, size: 1, imports: vec![] });
        assert_eq!(host.put(spec), Reply::Done);
        host
    }

    fn register(&mut self, session: u128) {
        self.apply(Command::RegisterNode {
            node: 1,
            store: STORE,
            session: Uuid::from_u128(session),
            runs_max: 4,
            memory_bytes_max: 1 << 40,
            tz: "2026a".into(),
            version: "0.1.0".into(),
        });
    }

    fn put(&mut self, spec: JobSpec) -> Reply {
        let at = Stamp(self.now);
        let schedule = Schedule::new(&spec.timing, Some("billing/nightly"), at.time()).unwrap();
        self.apply(Command::PutJob {
            job: name(),
            from_revision: self.state.job(&name()).map_or(0, |j| j.revision),
            next: conductor::next_tick(&schedule, at.time(), None),
            spec: Box::new(spec),
            by: "someone".into(),
        })
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.apply_all(vec![command]).remove(0)
    }

    /// Applies, and checks that the rows written so far give back the same state.
    fn apply_all(&mut self, commands: Vec<Command>) -> Vec<Reply> {
        self.index += 1;
        let at = Stamp(self.now);
        let entry = Entry { commands: commands.into_iter().map(|command| Stamped { at, command }).collect() };
        let applied = self.state.apply(self.index, &entry).unwrap();
        for row in applied.rows {
            match row.value {
                Some(value) => self.rows.insert(row.key, value),
                None => self.rows.remove(&row.key),
            };
        }
        let loaded = State::load(self.rows.iter().map(|(k, v)| (k.as_slice(), v.as_slice()))).unwrap();
        assert_eq!(loaded.hash(), self.state.hash(), "after {entry:?}");
        assert_eq!(loaded.reserved(1), self.state.reserved(1), "after {entry:?}");
        self.outputs.extend(applied.outputs);
        applied.replies
    }

    fn advance_to(&mut self, now_s: i64) -> Vec<RunId> {
        self.now = 1_000_000_000 + now_s * 1_000;
        self.plan()
    }

    fn plan(&mut self) -> Vec<RunId> {
        let plan = self.conductor.plan(&self.state, Stamp(self.now));
        assert!(plan.faults.is_empty());
        if plan.commands.is_empty() {
            return vec![];
        }
        self.outputs.clear();
        self.apply_all(plan.commands);
        let dispatched = |o: &Output| if let Output::Dispatch(run) = o { Some(run.clone()) } else { None };
        self.outputs.iter().filter_map(dispatched).collect()
    }

    fn grant(&self, run: &RunId) -> Grant {
        self.state.launch(&run.launch).unwrap().attempts.last().unwrap().grant
    }

    fn start(&mut self, run: &RunId) -> Reply {
        let grant = self.grant(run);
        self.apply(Command::Start { run: run.clone(), grant })
    }

    fn end(&mut self, run: &RunId, outcome: Outcome) -> Reply {
        let grant = self.grant(run);
        self.apply(Command::End { run: run.clone(), grant, outcome, usage: Usage::default(), results: vec![] })
    }

    fn succeed(&mut self, run: &RunId) {
        self.start(run);
        assert_eq!(self.end(run, Outcome::Succeeded { message: None }), Reply::Done);
    }

    fn effect(&mut self, run: &RunId, payload: u8, results: Vec<(Uuid, EffectResult)>) -> Reply {
        let (grant, key) = (self.grant(run), self.key(run));
        let fingerprint = Digest([payload; 32]);
        let what = "POST".into();
        self.apply(Command::IntendEffect { run: run.clone(), grant, key, what, fingerprint, results })
    }

    fn key(&self, run: &RunId) -> Uuid {
        self.state.key_source(&run.launch).unwrap().key(&["charge".into()])
    }

    fn status(&self, launch: &LaunchId) -> Status {
        self.state.launch(launch).unwrap().status.clone()
    }

    /// The verdict of a second since the start, or what there is instead.
    fn verdict(&self, second: i64) -> String {
        let tick = TickAt(1_000_000 + second);
        let launch = LaunchId { job: name(), tick, rerun: None };
        let launched = self.state.launch(&launch).map(|l| match &l.status {
            Status::Closed(verdict) => verdict.to_string(),
            open => format!("{open:?}"),
        });
        let covers = |(from, range): (TickAt, &tickhost_ledger::rows::SkippedRange)| {
            (from <= tick && range.to.is_none_or(|to| tick <= to)).then(|| format!("skipped({})", range.reason))
        };
        let found: Vec<String> = launched.into_iter().chain(self.state.skipped(&name()).filter_map(covers)).collect();
        found.join(" and ")
    }

    fn verdicts(&self, seconds: std::ops::RangeInclusive<i64>) -> Vec<String> {
        seconds.map(|s| self.verdict(s)).collect()
    }
}

#[test]
fn a_tick_is_decided_and_intended_in_one_entry_and_then_runs() {
    let mut host = Host::new(spec());
    let runs = host.advance_to(1);
    assert_eq!(runs.iter().map(ToString::to_string).collect::<Vec<_>>(), ["billing/nightly@1970-01-12T13:46:41Z#1"]);
    assert_eq!(host.grant(&runs[0]), Grant { epoch: 1, index: host.index });
    host.succeed(&runs[0]);
    assert_eq!(host.verdict(1), "succeeded");
    assert_eq!(host.state.reserved(1), (0, 0));
}

#[test]
fn deciding_the_same_tick_twice_is_refused() {
    let mut host = Host::new(spec());
    host.now += 1_000;
    let plan = host.conductor.plan(&host.state, Stamp(host.now));
    host.apply_all(plan.commands.clone());
    let again = host.apply_all(plan.commands);
    assert!(again.iter().all(|reply| matches!(reply, Reply::Refused(_))), "{again:?}");
    assert_eq!(host.state.open(&name()).count(), 1);
}

/// Three hours of silence, under each policy.
#[test]
fn after_an_outage_the_catch_up_policy_decides_and_every_tick_has_a_verdict() {
    let minutes = |catch_up, start_deadline_s| JobSpec {
        timing: Definition::new("* * * * *", "UTC"),
        catch_up,
        start_deadline_s,
        ..spec()
    };
    let outage = |spec: JobSpec| {
        let mut host = Host::new(spec);
        let runs = host.advance_to(3 * 3_600);
        let launched: Vec<i64> = host
            .state
            .launches(&name(), TickAt(0), TickAt(i64::MAX))
            .map(|(id, _)| (id.tick.0 - 1_000_000) / 60)
            .collect();
        let skipped: Vec<String> = host
            .state
            .skipped(&name())
            .map(|(from, range)| {
                let to = range.to.unwrap().0;
                format!("{} minutes {}", (to - from.0) / 60 + 1, range.reason)
            })
            .collect();
        (runs.len(), launched, skipped)
    };
    // The start is 13:46:40, so the ticks are 20 s after each whole minute of ours.
    assert_eq!(outage(minutes(CatchUp::None, 3_600)), (0, vec![], vec!["180 minutes catch-up".into()]));
    assert_eq!(outage(minutes(CatchUp::Latest, 3_600)), (1, vec![179], vec!["179 minutes catch-up".into()]));
    assert_eq!(outage(minutes(CatchUp::All(3), 3_600)), (1, vec![177, 178, 179], vec!["177 minutes catch-up".into()]));
    assert_eq!(outage(minutes(CatchUp::Latest, 10)), (0, vec![], vec!["180 minutes start-deadline".into()]));
}

/// Ticks of closed days are decided like all others, and say why they were not launched.
#[test]
fn closed_days_have_their_verdict() {
    // The start is on 12 January 1970, a Monday.
    let every_six_hours = |on_closed_day, expression: &str| JobSpec {
        timing: Definition {
            closed: ClosedDays { every_year: vec![(1, 14), (1, 15)], ..ClosedDays::default() },
            on_closed_day,
            ..Definition::new(expression, "UTC")
        },
        catch_up: CatchUp::All(3),
        start_deadline_s: 7 * 86_400,
        ..spec()
    };
    let walk = |host: &mut Host, hours: std::ops::RangeInclusive<i64>| {
        for hour in hours {
            while let Some(run) = host.advance_to(hour * 3_600).first() {
                host.succeed(run);
            }
        }
    };
    let at = |day: i64, hour: i64| (day - 12) * 86_400 + hour * 3_600 - 49_600;

    let mut host = Host::new(every_six_hours(OnClosedDay::Skip, "0 */6 * * *"));
    walk(&mut host, 0..=24 * 5);
    let verdicts = [at(13, 18), at(14, 0), at(14, 18), at(15, 12), at(16, 0)].map(|second| host.verdict(second));
    assert_eq!(verdicts, ["succeeded", "skipped(excluded)", "skipped(excluded)", "skipped(excluded)", "succeeded"]);
    assert_eq!(host.state.skipped(&name()).count(), 1, "eight ticks are one range");

    // The same after an outage over those days: what is made up is not what was closed.
    let mut host = Host::new(every_six_hours(OnClosedDay::Skip, "0 */6 * * *"));
    let mut run = host.advance_to(at(16, 1)).first().cloned();
    let mut made_up = vec![];
    while let Some(done) = run {
        made_up.push(done.launch.tick.0 - 1_000_000);
        host.succeed(&done);
        run = host.plan().first().cloned();
    }
    assert_eq!(made_up, [at(13, 12), at(13, 18), at(16, 0)]);
    assert_eq!(
        (host.verdict(at(13, 6)).as_str(), host.verdict(at(14, 6)).as_str()),
        ("skipped(catch-up)", "skipped(excluded)")
    );

    // Moved ticks keep their names: to the 13th before it is over, or to the 16th.
    for (on_closed_day, starts) in [(OnClosedDay::PreviousOpen, at(13, 9)), (OnClosedDay::NextOpen, at(16, 9))] {
        let mut host = Host::new(JobSpec { overlap: Overlap::Allow, ..every_six_hours(on_closed_day, "0 9 * * *") });
        for day in 12..=16 {
            for run in host.advance_to(at(day, 9)) {
                host.succeed(&run);
            }
            let moved = host.state.launch(&LaunchId { job: name(), tick: TickAt(1_000_000 + at(14, 9)), rerun: None });
            if let Some(moved) = moved {
                assert_eq!(moved.start_after, Stamp(1_000_000_000 + starts * 1_000), "{on_closed_day:?}");
            }
        }
        assert_eq!(host.verdict(at(14, 9)), "succeeded", "{on_closed_day:?}");
        assert_eq!(host.verdict(at(15, 9)), "succeeded", "{on_closed_day:?}");
    }
}

/// A launch waits for its place in the window, where it is in nobody's way; a pause in between withdraws it.
#[test]
fn a_window_delays_the_launch_and_not_the_decision() {
    let windowed = JobSpec {
        timing: Definition { window_s: 3_600, ..Definition::new("*/10 * * * *", "UTC") },
        start_deadline_s: 60,
        ..spec()
    };
    let schedule = Schedule::new(&windowed.timing, Some("billing/nightly"), Stamp(0).time()).unwrap();
    let first = schedule.preview(Stamp(1_000_000_000).time(), None, 1).ticks[0];
    let delay = (first.due - first.at).num_seconds();
    assert!(delay > 600, "the test is about a place behind the next tick: {delay}");
    let tick = first.at.timestamp() - 1_000_000;
    let mut host = Host::new(windowed);
    assert!(host.advance_to(tick).is_empty());
    assert_eq!(host.verdict(tick), "Due");
    let wake = host.conductor.wake_at(&host.state, Stamp(host.now)).unwrap();
    assert_eq!(wake, Stamp(first.at.timestamp_millis() + 600_000), "the next tick comes first");
    assert!(host.advance_to(tick + 600).is_empty());
    assert_eq!(host.verdict(tick + 600), "Due", "the one before is not in the way");
    assert!(host.advance_to(tick + delay - 1).is_empty());
    let run = host.advance_to(tick + delay).remove(0);
    assert_eq!(run.launch.tick.time(), first.at);
    host.succeed(&run);
    let (note, by) = (String::new(), "someone".into());
    assert_eq!(host.apply(Command::Pause { job: name(), note, by }), Reply::Done);
    assert_eq!(host.verdict(tick + 600), "skipped(paused)");
}

#[test]
fn a_job_that_is_to_be_launched_three_times_ends() {
    let mut host = Host::new(JobSpec { max_launches: Some(3), ..spec() });
    for second in 1..=6 {
        for run in host.advance_to(second) {
            host.succeed(&run);
        }
    }
    assert_eq!(host.verdicts(1..=4), ["succeeded", "succeeded", "succeeded", ""]);
    let job = host.state.job(&name()).unwrap();
    assert_eq!((job.launched, &job.next), (3, &None));
}

/// Beirut, 27 March 2023: one release says +3, the one before said +2. The day's tick is decided under the first;
/// under the second its wall time lies ahead once more.
#[test]
fn a_tick_that_is_decided_does_not_come_again_under_other_rules() {
    let at = |text: &str| text.parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    let definition = Definition::new("0 9 * * *", "Asia/Beirut");
    let new = Schedule::new(&definition, None, Stamp(0).time()).unwrap();
    let old = new.clone().with_offsets(Offsets::new(7_200, [(at("2023-03-29T22:00:00Z"), 10_800)]).into());
    let decided = conductor::next_tick(&new, at("2023-03-26T12:00:00Z"), None).unwrap();
    assert_eq!(decided.at.to_string(), "2023-03-27T06:00:00Z");
    let last = Some((decided.at, decided.local.as_str()));
    let next = |schedule: &Schedule| conductor::next_tick(schedule, decided.at.time(), last).unwrap().at.to_string();
    assert_eq!(next(&old), "2023-03-28T07:00:00Z", "07:00Z of the 27th is 09:00 again, and 09:00 is done");
    assert_eq!(next(&new), "2023-03-28T06:00:00Z");
    // By elapsed time every hour counts.
    let wild = Schedule::new(&Definition::new("0 * * * *", "Asia/Beirut"), None, Stamp(0).time()).unwrap();
    let decided = conductor::next_tick(&wild, at("2023-03-27T05:30:00Z"), None).unwrap();
    let old = wild.with_offsets(Offsets::new(7_200, []).into());
    let next = conductor::next_tick(&old, decided.at.time(), Some((decided.at, &decided.local))).unwrap();
    assert_eq!(next.at.to_string(), "2023-03-27T07:00:00Z");
}

/// Ticks that are made up run one at a time, oldest first, though the job says `overlap = "skip"`.
#[test]
fn made_up_ticks_wait_for_each_other() {
    let mut host =
        Host::new(JobSpec { timing: Definition::new("* * * * *", "UTC"), catch_up: CatchUp::All(3), ..spec() });
    let mut runs = host.advance_to(3 * 3_600);
    for minute in [177, 178, 179] {
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].launch.tick.0, 1_000_000 + minute * 60 + 20);
        host.succeed(&runs[0]);
        runs = host.plan();
    }
    assert!(runs.is_empty());
}

#[test]
fn overlap_is_the_owners_choice() {
    let seconds = |overlap| {
        let mut host = Host::new(JobSpec { overlap, ..spec() });
        let first = host.advance_to(1).remove(0);
        host.start(&first);
        for second in 2..=4 {
            host.advance_to(second);
        }
        let revoked = host.outputs.iter().any(|o| matches!(o, Output::Revoke { run, .. } if *run == first));
        (host.verdicts(2..=4), revoked)
    };
    let open = |status: &str| status.to_owned();
    let skipped = open("skipped(overlap)");
    assert_eq!(seconds(Overlap::Skip), (vec![skipped.clone(); 3], false));
    assert_eq!(seconds(Overlap::QueueOne), (vec![open("Due"), skipped.clone(), skipped.clone()], false));
    assert_eq!(seconds(Overlap::Replace), (vec![skipped.clone(), skipped, open("Due")], true));
    assert_eq!(seconds(Overlap::Allow), (vec![open("Intended"); 3], false));
}

#[test]
fn a_full_host_makes_launches_wait_until_their_start_deadline() {
    let mut host = Host::new(JobSpec { overlap: Overlap::Allow, start_deadline_s: 3, ..spec() });
    let mut runs: Vec<RunId> = (1..=6).flat_map(|second| host.advance_to(second)).collect();
    assert_eq!(runs.len(), 4);
    assert_eq!(host.verdicts(5..=6), ["Due", "Due"]);
    host.succeed(&runs.remove(0));
    assert_eq!(host.plan()[0].launch.tick, TickAt(1_000_005));
    host.advance_to(10);
    assert_eq!(host.verdict(6), "skipped(start-deadline)");
}

/// An attempt for which there is never room is given up at the deadline, with the verdict of the ones before.
#[test]
fn a_retry_waits_until_its_start_deadline() {
    let retry = Retry { attempts: 2, backoff_ms: 2_000, backoff_max_ms: 2_000, when: RetryWhen::Failed };
    let mut host = Host::new(JobSpec {
        on_unknown: OnUnknown::Repeat,
        overlap: Overlap::Allow,
        start_deadline_s: 3,
        retry,
        ..spec()
    });
    let first = host.advance_to(1).remove(0);
    host.start(&first);
    let others: Vec<RunId> = (2..=4).flat_map(|second| host.advance_to(second)).collect();
    assert_eq!(others.len(), 3, "the host has room for four");
    host.end(&first, Outcome::Lost { evidence: String::new() });
    assert_eq!(host.advance_to(5).len(), 1, "another tick takes the place, one second before the retry");
    assert!(host.advance_to(9).is_empty());
    assert!(host.verdict(1).starts_with("AwaitingRetry"), "{}", host.verdict(1));
    host.advance_to(10);
    assert_eq!(host.verdict(1), "lost");
}

/// The clock stepped ahead: what expired while it was not believed says so.
#[test]
fn what_the_clocks_guard_held_back_says_so() {
    let mut host =
        Host::new(JobSpec { overlap: Overlap::Allow, start_deadline_s: 3, catch_up: CatchUp::None, ..spec() });
    let runs: Vec<RunId> = (1..=5).flat_map(|second| host.advance_to(second)).collect();
    assert_eq!(runs.len(), 4, "the fifth is due and waits");
    let mut guard = ClockGuard::default();
    assert_eq!(guard.look(Stamp(host.now), 0), None);
    let from = host.now + 3_000;
    assert!(guard.look(Stamp(from), 500).is_some());
    host.now = from + 60_000;
    assert_eq!(guard.look(Stamp(host.now), 60_500), None);
    host.conductor.held_back = guard.held_back();
    host.plan();
    assert_eq!(host.verdict(5), "skipped(clock)", "it waited and expired");
    assert_eq!(host.verdict(30), "skipped(clock)", "it was never decided");
    host.advance_to(75);
    host.now += 20_000;
    host.plan();
    assert_eq!(host.verdict(80), "skipped(catch-up)");
}

/// A pause's ticks are skipped, named so, and not made up.
#[test]
fn a_pause_is_one_range_and_is_not_made_up() {
    let mut host = Host::new(spec());
    let run = host.advance_to(1).remove(0);
    host.succeed(&run);
    let (note, by) = ("moving house".to_owned(), "someone".to_owned());
    assert_eq!(host.apply(Command::Pause { job: name(), note, by }), Reply::Done);
    assert!(host.advance_to(50).is_empty());
    assert_eq!(host.state.skipped(&name()).count(), 1);
    let schedule = conductor::schedule_of(&name(), host.state.job(&name()).unwrap()).unwrap();
    let next = conductor::next_tick(&schedule, Stamp(host.now).time(), None);
    assert_eq!(host.apply(Command::Resume { job: name(), revision: 1, next }), Reply::Done);
    assert!(host.plan().is_empty());
    assert_eq!(host.advance_to(51).len(), 1);
    assert_eq!(host.verdicts(2..=50), vec!["skipped(paused)"; 49]);
}

#[test]
fn storing_the_same_again_is_a_no_op_and_a_re_creation_starts_after_the_grave() {
    let mut host = Host::new(spec());
    let run = host.advance_to(1).remove(0);
    host.succeed(&run);
    let before = host.state.job(&name()).cloned();
    for _ in 0..50 {
        assert_eq!(host.put(spec()), Reply::Unchanged);
    }
    assert_eq!(host.state.job(&name()).cloned(), before);
    host.apply(Command::DeleteJob { job: name(), from_revision: 1, by: "someone".into() });
    assert_eq!(host.put(spec()), Reply::Done);
    assert_eq!(host.state.job(&name()).unwrap().revision, 2);
    assert!(host.plan().is_empty(), "ticks before the second creation are not replayed");
    assert_eq!(host.advance_to(2).len(), 1);
}

#[test]
fn what_an_executor_says_after_a_restart_closes_or_repeats() {
    let witness = Witness { node: 1, store: STORE };
    let other = Witness { node: 1, store: Uuid::from_u128(99) };
    let repeat = JobSpec {
        on_unknown: OnUnknown::Repeat,
        retry: Retry { attempts: 2, backoff_ms: 1, backoff_max_ms: 1, when: RetryWhen::Failed },
        ..spec()
    };
    let finished =
        Answer::Finished { outcome: Outcome::Succeeded { message: None }, usage: Usage::default(), results: vec![] };
    for (spec, started, witness, answer, expected) in [
        (spec(), true, witness, Answer::Lost, "Closed(Lost)"),
        (spec(), false, witness, Answer::Lost, "Closed(Lost)"),
        (spec(), false, witness, Answer::Never, "Due"),
        (spec(), true, other, Answer::Never, "Closed(Unknown)"),
        (spec(), true, witness, finished.clone(), "Closed(Succeeded)"),
        (spec(), false, witness, Answer::Running, "Running"),
        (repeat.clone(), true, witness, Answer::Lost, "AwaitingRetry"),
        (repeat.clone(), true, other, Answer::Lost, "AwaitingRetry"),
        (repeat, true, witness, finished, "Closed(Succeeded)"),
    ] {
        let mut host = Host::new(spec);
        let run = host.advance_to(1).remove(0);
        if started {
            host.start(&run);
        }
        assert!(conductor::unresolved(&host.state, 1).is_empty());
        host.register(3);
        assert_eq!(conductor::unresolved(&host.state, 1), std::slice::from_ref(&run));
        let case = format!("{started} {witness:?} {answer:?}");
        if let Some(command) = conductor::resolve(&host.state, &run, witness, answer) {
            assert_eq!(host.apply(command), Reply::Done, "{case}");
        }
        let status = format!("{:?}", host.status(&run.launch));
        assert!(status.starts_with(expected), "{case}: {status}");
    }
}

#[test]
fn only_the_current_run_may_act() {
    let mut host = Host::new(JobSpec {
        on_unknown: OnUnknown::Repeat,
        retry: Retry { attempts: 2, backoff_ms: 0, backoff_max_ms: 0, when: RetryWhen::Failed },
        ..spec()
    });
    let first = host.advance_to(1).remove(0);
    let old = host.grant(&first);
    host.start(&first);
    host.end(&first, Outcome::Lost { evidence: String::new() });
    let second = host.plan().remove(0);
    assert_eq!(second.attempt, 2);
    host.start(&second);
    let fenced = host.apply(Command::IntendEffect {
        run: first,
        grant: old,
        key: Uuid::nil(),
        what: "POST".into(),
        fingerprint: Digest([0; 32]),
        results: vec![],
    });
    assert!(matches!(fenced, Reply::Refused(Refusal::Fenced { .. })), "{fenced:?}");
    let stale = host.apply(Command::End {
        run: second.clone(),
        grant: old,
        outcome: Outcome::Succeeded { message: None },
        usage: Usage::default(),
        results: vec![],
    });
    assert!(matches!(stale, Reply::Refused(Refusal::Fenced { .. })), "{stale:?}");
    host.end(&second, Outcome::Succeeded { message: None });
    assert_eq!(host.verdict(1), "succeeded");
}

#[test]
fn a_repeat_sends_in_doubt_effects_again_and_replays_settled_ones_under_the_same_key() {
    let mut host = Host::new(JobSpec {
        on_unknown: OnUnknown::Repeat,
        retry: Retry { attempts: 3, backoff_ms: 0, backoff_max_ms: 0, when: RetryWhen::Failed },
        ..spec()
    });
    let first = host.advance_to(1).remove(0);
    host.start(&first);
    let go = Reply::Effect(EffectAnswer::Go);
    assert_eq!(host.effect(&first, 1, vec![]), go);
    let key = host.key(&first);
    host.end(&first, Outcome::Lost { evidence: String::new() });

    let second = host.plan().remove(0);
    host.start(&second);
    assert_eq!(host.key(&second), key);
    assert_eq!(host.effect(&second, 1, vec![]), go, "in doubt: again");
    let done = EffectResult::Kv { value: None };
    assert_eq!(
        host.effect(&second, 1, vec![(key, done.clone())]),
        Reply::Effect(EffectAnswer::Replay(done)),
        "a result rides with the next intent"
    );
    assert_eq!(host.effect(&second, 2, vec![]), Reply::Effect(EffectAnswer::PayloadChanged));
    let effects: Vec<_> = host.state.effects(&name(), second.launch.tick).collect();
    assert_eq!(effects[0].1.intended.iter().map(|i| i.attempt).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_re_run_with_the_same_key_finishes_what_a_skip_job_left_in_doubt() {
    let mut host = Host::new(spec());
    let run = host.advance_to(1).remove(0);
    host.start(&run);
    host.effect(&run, 1, vec![]);
    let key = host.key(&run);
    let trigger = |same_key, id: u128| Command::Trigger {
        launch: LaunchId { rerun: Some(Uuid::from_u128(id)), ..run.launch.clone() },
        local: String::new(),
        same_key,
        by: "operator".into(),
    };
    assert!(matches!(host.apply(trigger(true, 5)), Reply::Refused(Refusal::NotNow { .. })), "still open");
    host.end(&run, Outcome::Lost { evidence: String::new() });
    assert_eq!(host.apply(trigger(true, 5)), Reply::Done);
    assert_eq!(host.apply(trigger(true, 5)), Reply::Unchanged, "a resend of the request");
    let again = host.plan().remove(0);
    host.start(&again);
    assert_eq!(host.key(&again), key);
    assert_eq!(host.effect(&again, 1, vec![]), Reply::Effect(EffectAnswer::Go));
    host.end(&again, Outcome::Succeeded { message: None });
    assert_eq!(host.verdict(1), "lost", "the tick's own verdict stays");

    assert_eq!(host.apply(trigger(false, 6)), Reply::Done);
    let fresh = host.plan().remove(0);
    assert_ne!(host.key(&fresh), key);
}

#[test]
fn kv_changes_take_effect_once_per_key() {
    let mut host = Host::new(spec());
    let run = host.advance_to(1).remove(0);
    host.start(&run);
    let grant = host.grant(&run);
    let write = |key: u128, change| Command::WriteKv {
        run: run.clone(),
        grant,
        key: Uuid::from_u128(key),
        name: "total".into(),
        change,
        results: vec![],
    };
    let sum = |n| Reply::Effect(EffectAnswer::Replay(EffectResult::Kv { value: Some(n) }));
    assert_eq!(host.apply(write(1, KvChange::Increment(5))), sum(5));
    assert_eq!(host.apply(write(1, KvChange::Increment(5))), sum(5));
    assert_eq!(host.apply(write(2, KvChange::Increment(2))), sum(7));
    assert_eq!(host.state.kv("billing", "total").unwrap().bytes.0, b"7");
    host.apply(write(3, KvChange::Set(ByteBuf(b"seven".to_vec()))));
    let refused = host.apply(write(4, KvChange::Increment(1)));
    assert!(matches!(refused, Reply::Refused(Refusal::NotANumber { .. })), "{refused:?}");
    host.apply(write(5, KvChange::Delete));
    assert!(host.state.kv("billing", "total").is_none());
    assert_eq!(host.state.kv_names("billing", "", None, 10), Vec::<String>::new());
}

#[test]
fn old_launches_fold_and_what_went_wrong_stays() {
    let mut host = Host::new(spec());
    for second in 1..=150 {
        let run = host.advance_to(second).remove(0);
        host.start(&run);
        let outcome = match second {
            3 => Outcome::Trapped { message: "unreachable".into() },
            _ => Outcome::Succeeded { message: None },
        };
        host.end(&run, outcome);
    }
    let kept = |host: &Host| host.state.launches(&name(), TickAt(0), TickAt(i64::MAX)).count();
    assert_eq!(kept(&host), 101, "the newest hundred, and the one that failed");
    assert_eq!(host.verdict(3), "failed");
    let folded = host.state.folded(&name()).unwrap().clone();
    assert_eq!((folded.succeeded, folded.other), (49, 0));

    // A re-run of an old tick is new: it is not folded in the entry that closes it.
    let again = LaunchId { job: name(), tick: TickAt(1_000_003), rerun: Some(Uuid::from_u128(1)) };
    let trigger = |launch: &LaunchId, same_key| Command::Trigger {
        launch: launch.clone(),
        local: String::new(),
        same_key,
        by: "operator".into(),
    };
    assert_eq!(host.apply(trigger(&again, true)), Reply::Done);
    let run = host.plan().remove(0);
    host.succeed(&run);
    assert_eq!(host.status(&again), Status::Closed(tickhost_ledger::launch::Verdict::Succeeded));

    // What a folded tick did is not known any more, whatever was done under other keys since.
    let fresh = LaunchId { job: name(), tick: TickAt(1_000_010), rerun: Some(Uuid::from_u128(2)) };
    assert_eq!(host.apply(trigger(&fresh, false)), Reply::Done);
    let run = host.plan().remove(0);
    host.start(&run);
    host.end(&run, Outcome::Failed { message: String::new(), retry: false });
    let same = LaunchId { rerun: Some(Uuid::from_u128(3)), ..fresh };
    let refused = host.apply(trigger(&same, true));
    assert!(matches!(refused, Reply::Refused(Refusal::NotNow { .. })), "{refused:?}");
}

/// A change that was read before a tick was decided does not swallow the tick.
#[test]
fn a_change_waits_for_the_ticks_before_it() {
    let mut host = Host::new(spec());
    host.now += 1_000;
    let mut changed = spec();
    changed.config.insert("edit".into(), "1".into());
    let (note, by) = (String::new(), String::new());
    for command in [
        Command::Pause { job: name(), note, by: by.clone() },
        Command::DeleteJob { job: name(), from_revision: 1, by: by.clone() },
        Command::PutJob { job: name(), spec: Box::new(changed), from_revision: 1, next: None, by },
    ] {
        let refused = host.apply(command);
        assert!(matches!(refused, Reply::Refused(Refusal::Stale { .. })), "{refused:?}");
    }
    assert_eq!(host.plan().len(), 1, "the tick is decided and launched");
}

/// A launch that has run once is not skipped because its second attempt never started.
#[test]
fn an_attempt_that_never_started_undoes_nothing() {
    let mut host = Host::new(JobSpec {
        on_unknown: OnUnknown::Repeat,
        retry: Retry { attempts: 2, backoff_ms: 0, backoff_max_ms: 0, when: RetryWhen::Failed },
        ..spec()
    });
    let first = host.advance_to(1).remove(0);
    host.start(&first);
    host.end(&first, Outcome::Lost { evidence: String::new() });
    for _ in 0..5 {
        let run = host.plan().remove(0);
        host.end(&run, Outcome::NeverStarted { evidence: String::new() });
    }
    host.now += 60_000;
    let last = host.plan().into_iter().find(|run| run.launch == first.launch).unwrap();
    assert_eq!(last.attempt, 7);
    host.succeed(&last);
    assert_eq!(host.verdict(1), "succeeded");
}

#[test]
fn a_job_that_is_skipped_every_second_costs_one_row() {
    let mut host = Host::new(spec());
    let run = host.advance_to(1).remove(0);
    host.start(&run);
    for second in 2..=50 {
        host.advance_to(second);
    }
    assert_eq!(host.state.skipped(&name()).count(), 1);
    assert_eq!(host.verdicts(2..=50), vec!["skipped(overlap)"; 49]);
    host.end(&run, Outcome::Succeeded { message: None });
    let run = host.advance_to(51).remove(0);
    host.start(&run);
    host.advance_to(52);
    assert_eq!(host.state.skipped(&name()).count(), 2, "a launch lies between");
    assert_eq!(host.verdict(51), "Running");
}

/// What may happen to the host between two plans.
#[derive(Debug, Clone)]
enum Event {
    Wait(i64),
    Start(usize),
    End(usize, u8),
    Restart,
    Pause,
    Edit,
    Trigger(u128),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_i64..12).prop_map(Event::Wait),
        3 => (0_usize..4).prop_map(Event::Start),
        3 => ((0_usize..4), (0_u8..6)).prop_map(|(run, how)| Event::End(run, how)),
        1 => Just(Event::Restart),
        1 => Just(Event::Pause),
        1 => Just(Event::Edit),
        1 => (1_u128..4).prop_map(Event::Trigger),
    ]
}

fn policies() -> impl Strategy<Value = JobSpec> {
    let overlap =
        prop_oneof![Just(Overlap::Skip), Just(Overlap::QueueOne), Just(Overlap::Replace), Just(Overlap::Allow)];
    let catch_up = prop_oneof![Just(CatchUp::None), Just(CatchUp::Latest), Just(CatchUp::All(2))];
    (overlap, catch_up, any::<bool>(), 1_u32..20).prop_map(|(overlap, catch_up, repeat, start_deadline_s)| {
        let on_unknown = if repeat { OnUnknown::Repeat } else { OnUnknown::Skip };
        let retry = Retry {
            attempts: if repeat { 3 } else { 1 },
            backoff_ms: 500,
            backoff_max_ms: 2_000,
            when: RetryWhen::Failed,
        };
        JobSpec { overlap, catch_up, on_unknown, retry, start_deadline_s, ..spec() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Whatever happens: every tick ends up with exactly one verdict, and no skip run starts twice unasked.
    #[test]
    fn every_tick_has_exactly_one_verdict(spec in policies(), events in prop::collection::vec(event(), 1..40)) {
        let mut host = Host::new(spec.clone());
        let mut second = 0;
        let mut session = 10;
        for event in events {
            let live: Vec<RunId> = host
                .state
                .all_open()
                .filter_map(|id| {
                    let launch = host.state.launch(id)?;
                    launch.live()?;
                    Some(RunId { launch: id.clone(), attempt: launch.attempt() })
                })
                .collect();
            match event {
                Event::Wait(seconds) => second += seconds,
                Event::Start(i) => {
                    if let Some(run) = live.get(i) {
                        host.start(run);
                    }
                }
                Event::End(i, how) => {
                    if let Some(run) = live.get(i) {
                        let text = String::new();
                        host.end(run, match how {
                            0..=2 => Outcome::Succeeded { message: None },
                            3 => Outcome::Failed { message: text, retry: true },
                            4 => Outcome::Trapped { message: text },
                            _ => Outcome::Lost { evidence: text },
                        });
                    }
                }
                Event::Restart => {
                    session += 1;
                    host.register(session);
                    for run in conductor::unresolved(&host.state, 1) {
                        let started = host.state.launch(&run.launch).unwrap().status == Status::Running;
                        let answer = if started { Answer::Lost } else { Answer::Never };
                        let witness = Witness { node: 1, store: STORE };
                        let command = conductor::resolve(&host.state, &run, witness, answer).unwrap();
                        prop_assert_eq!(host.apply(command), Reply::Done);
                    }
                }
                Event::Pause => {
                    let job = host.state.job(&name()).unwrap().clone();
                    let now = Stamp(host.now);
                    if job.pause.is_some() {
                        let schedule = conductor::schedule_of(&name(), &job).unwrap();
                        let next = conductor::next_tick(&schedule, now.time(), None);
                        let command = Command::Resume { job: name(), revision: job.revision, next };
                        prop_assert_eq!(host.apply(command), Reply::Done);
                    } else {
                        let decided = host.conductor.decide_up_to(&name(), &job, now).unwrap();
                        let mut commands: Vec<Command> = decided.into_iter().map(Command::Decide).collect();
                        commands.push(Command::Pause { job: name(), note: String::new(), by: String::new() });
                        host.apply_all(commands);
                    }
                }
                Event::Edit => {
                    let job = host.state.job(&name()).unwrap().clone();
                    let now = Stamp(host.now);
                    let decided = host.conductor.decide_up_to(&name(), &job, now).unwrap();
                    host.apply_all(decided.into_iter().map(Command::Decide).collect());
                    let mut spec = job.spec;
                    spec.config.insert("edit".into(), host.index.to_string());
                    prop_assert_eq!(host.put(spec), Reply::Done);
                }
                Event::Trigger(id) => {
                    let launch = LaunchId {
                        job: name(),
                        tick: TickAt(1_000_000 + second),
                        rerun: Some(Uuid::from_u128(id)),
                    };
                    host.apply(Command::Trigger { launch, local: String::new(), same_key: false, by: String::new() });
                }
            }
            host.advance_to(second);
            // With a single decision bounded in ticks, further rounds decide the rest.
            host.plan();
        }
        // Let everything come to its end.
        for _ in 0..200 {
            second += 1;
            host.advance_to(second);
            let live: Vec<LaunchId> = host.state.all_open().cloned().collect();
            for launch in live {
                let row = host.state.launch(&launch).unwrap();
                if row.live().is_some() {
                    let run = RunId { attempt: row.attempt(), launch };
                    host.start(&run);
                    host.end(&run, Outcome::Succeeded { message: None });
                }
            }
        }
        for tick in 1..=second - 150 {
            let verdict = host.verdict(tick);
            let folded = host.state.folded(&name()).and_then(|f| f.to).is_some_and(|to| to.0 >= 1_000_000 + tick);
            let settled = ["succeeded", "failed", "lost", "unknown"].contains(&verdict.as_str())
                || verdict.starts_with("skipped(") && !verdict.contains(" and ");
            prop_assert!(settled || folded && verdict.is_empty(), "tick {}: `{}`", tick, verdict);
        }
        for (id, launch) in host.state.launches(&name(), TickAt(0), TickAt(i64::MAX)) {
            let asked = |a: &tickhost_ledger::rows::Attempt| {
                matches!(&a.ended, Some(e) if matches!(e.outcome, Outcome::NeverStarted { .. } | Outcome::Failed { retry: true, .. }))
            };
            if spec.on_unknown == OnUnknown::Skip {
                prop_assert!(launch.attempts.iter().rev().skip(1).all(asked), "{} {:?}", id, launch);
            }
        }
    }
}
