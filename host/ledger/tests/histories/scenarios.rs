//! What other schedulers got wrong, from public reports: one test a row of the table in `tests/README.md`, where each
//! row's report is linked. Those that need real processes are in `tests/suite`.

use chrono::DateTime;

use super::*;

fn at(text: &str) -> i64 {
    DateTime::parse_from_rfc3339(text).unwrap().timestamp_millis()
}

fn timed(schedule: &str) -> JobSpec {
    zoned(schedule, "UTC")
}

fn zoned(schedule: &str, zone: &str) -> JobSpec {
    JobSpec { timing: Definition::new(schedule, zone), overlap: Overlap::Allow, ..spec() }
}

impl Host {
    fn started(now: &str, spec: JobSpec) -> Self {
        let mut host = Self::empty(at(now));
        assert_eq!(host.put(spec), Reply::Done);
        host
    }

    /// Everything that is to be done at that time; every run that begins succeeds at once. Returns the ticks.
    fn go(&mut self, now: &str) -> Vec<String> {
        self.go_to(at(now))
    }

    fn go_to(&mut self, now: i64) -> Vec<String> {
        self.now = now;
        let mut ticks = Vec::new();
        loop {
            let runs = self.plan();
            for run in &runs {
                self.succeed(run);
                ticks.push(run.launch.tick.to_string());
            }
            if runs.is_empty() && self.conductor.plan(&self.state, Stamp(self.now)).commands.is_empty() {
                return ticks;
            }
        }
    }

    /// Second by second.
    fn through(&mut self, until: &str) -> Vec<String> {
        let mut ticks = Vec::new();
        while self.now < at(until) {
            ticks.extend(self.go_to(self.now + 1_000));
        }
        ticks
    }

    /// Another leader: nothing in its memory, and a new session with the executor, which knows what it runs.
    fn takeover(&mut self) {
        let facts = self.conductor.facts.clone();
        self.conductor = Conductor::default();
        self.conductor.facts = facts;
        let session = 1_000 + u128::from(self.sequence);
        self.register(session);
        for run in conductor::unresolved(&self.state, 1) {
            let witness = Witness { node: 1, store: STORE };
            if let Some(command) = conductor::resolve(&self.state, &run, witness, Answer::Running) {
                self.apply(command);
            }
        }
    }

    fn pause(&mut self) {
        let decided = self.conductor.decide_up_to(&self.state, &name(), Stamp(self.now)).unwrap();
        let mut commands: Vec<Command> = decided.into_iter().map(Command::Decide).collect();
        commands.push(Command::Pause { job: name(), note: String::new(), by: String::new() });
        assert_eq!(self.apply_all(commands).pop(), Some(Reply::Done));
    }

    fn resume(&mut self) {
        let job = self.state.job(&name()).unwrap().clone();
        let schedule = conductor::schedule_of(&name(), &job).unwrap();
        let next = conductor::first_tick(&schedule, job.cursor, Stamp(self.now).time());
        assert_eq!(
            self.apply(Command::Resume { job: name(), revision: job.revision, next, by: String::new() }),
            Reply::Done
        );
    }

    fn next(&self) -> String {
        self.state.job(&name()).unwrap().next.as_ref().unwrap().at.to_string()
    }

    fn manual(&mut self, id: u128) -> Reply {
        let tick = TickAt(self.now.div_euclid(1_000));
        let launch = LaunchId { job: name(), tick, rerun: Some(Uuid::from_u128(id)) };
        self.apply(Command::Trigger { launch, local: String::new(), same_key: false, by: String::new() })
    }
}

#[test]
fn c01_a_long_outage_makes_up_one_and_tells_the_rest_in_one_record() {
    let mut host = Host::started("2026-01-01T01:59:30Z", timed("* * * * *"));
    assert_eq!(host.go("2026-01-01T02:00:00Z"), ["2026-01-01T02:00:00Z"]);
    assert_eq!(host.go("2026-01-01T05:00:30Z"), ["2026-01-01T05:00:00Z"]);
    let skipped: Vec<_> = host.state.skipped(&name()).collect();
    assert_eq!(skipped.len(), 1, "one record");
    let (from, range) = &skipped[0];
    assert_eq!((range.to.unwrap().0 - from.0) / 60 + 1, 179);
    assert_eq!(host.go("2026-01-01T05:01:00Z"), ["2026-01-01T05:01:00Z"]);
}

#[test]
fn c02_a_pause_of_a_weekend_or_a_year_is_not_made_up() {
    for (from, to, next) in [
        ("2026-01-02T18:00:00Z", "2026-01-05T08:00:00Z", "2026-01-05T09:00:00Z"),
        ("2026-01-02T18:00:00Z", "2027-01-02T18:00:00Z", "2027-01-02T19:00:00Z"),
    ] {
        let mut host = Host::started("2026-01-02T17:30:00Z", timed("0 * * * *"));
        host.now = at(from);
        host.pause();
        assert_eq!(host.go(to), Vec::<String>::new());
        host.resume();
        assert_eq!(host.go(to), Vec::<String>::new());
        assert_eq!(host.next(), next);
    }
}

#[test]
fn c03_a_start_deadline_of_seconds_misses_nothing() {
    let mut host = Host::started("2026-01-01T00:00:00Z", JobSpec { start_deadline_s: 5, ..timed("*/1 * * * *") });
    assert_eq!(host.through("2026-01-01T00:10:00Z").len(), 10);
    assert_eq!(host.state.skipped(&name()).count(), 0);
}

#[test]
fn c05_the_same_definition_again_and_again_changes_nothing() {
    let mut host = Host::started("2026-01-01T00:59:35Z", timed("0 1 * * *"));
    let mut ticks = Vec::new();
    for _ in 0..50 {
        assert_eq!(host.put(timed("0 1 * * *")), Reply::Unchanged);
        ticks.extend(host.go_to(host.now + 1_000));
    }
    assert_eq!(ticks, ["2026-01-01T01:00:00Z"]);
    assert_eq!(host.next(), "2026-01-02T01:00:00Z");
}

#[test]
fn c06_an_edit_before_a_change_of_offset_and_a_new_leader_start_nothing() {
    let mut host = Host::empty(at("2026-03-28T12:00:00Z"));
    let job = |n: usize| JobName::new("t", &format!("job-{n}")).unwrap();
    let spec = |n: usize| zoned(&format!("{} {} * * *", n % 60, n % 24), "Europe/Paris");
    for n in 0..40 {
        assert_eq!(host.put_as(&job(n), spec(n)), Reply::Done);
    }
    for n in [3, 7] {
        let edited = JobSpec { config: BTreeMap::from([("edited".into(), "yes".into())]), ..spec(n) };
        assert_eq!(host.put_as(&job(n), edited), Reply::Done);
    }
    assert_eq!(host.go_to(host.now), Vec::<String>::new());
    host.takeover();
    assert_eq!(host.go_to(host.now), Vec::<String>::new());
    host.conductor.catch_up_per_s = u32::MAX;
    while host.now < at("2026-03-30T11:00:00Z") {
        host.go_to(host.now + 60_000);
    }
    for n in 0..40 {
        let schedule = Schedule::new(&spec(n).timing, None, Stamp(host.now).time()).unwrap();
        let launched: Vec<TickAt> =
            host.state.launches(&job(n), TickAt(0), TickAt(i64::MAX)).map(|(id, _)| id.tick).collect();
        assert_eq!(launched.len(), 2, "{n}");
        assert!(launched.iter().all(|tick| schedule.names(tick.time())), "{n}: {launched:?}");
    }
}

#[test]
fn c07_a_new_leader_launches_nothing_early() {
    let mut host = Host::started("2026-01-01T00:00:00Z", timed("0 12 * * *"));
    host.go("2026-01-01T06:00:00Z");
    host.takeover();
    assert_eq!(host.go_to(at("2026-01-01T12:00:00Z") - 1), Vec::<String>::new());
    assert_eq!(host.go("2026-01-01T12:00:00Z"), ["2026-01-01T12:00:00Z"]);
    host.takeover();
    assert_eq!(host.go("2026-01-01T18:00:00Z"), Vec::<String>::new());
}

#[test]
fn c08_a_second_attempt_has_the_same_name_and_the_first_one_may_not_act_any_more() {
    let retry = Retry { attempts: 2, ..Retry::NEVER };
    let mut host = Host::new(JobSpec { on_unknown: OnUnknown::Repeat, retry, ..timed("0 0 * * *") });
    host.manual(1);
    let first = host.plan().remove(0);
    host.start(&first);
    let grant = host.grant(&first);
    host.takeover();
    assert!(host.plan().is_empty(), "it does not answer for less than its lease: no second attempt");
    let session = host.state.session(1).unwrap();
    host.apply(Command::Lapse { node: 1, session, evidence: String::new() });
    host.register(77);
    let second = host.plan().remove(0);
    assert_eq!((second.launch.clone(), second.attempt), (first.launch.clone(), 2));
    assert!(host.grant(&second) > grant);
    let outcome = Outcome::Succeeded { message: None };
    let late = Command::End { run: first, grant, outcome, usage: Usage::default(), results: vec![] };
    assert!(matches!(host.apply(late), Reply::Refused(Refusal::Fenced { .. })));
}

#[test]
fn c09_after_a_silent_day_every_job_is_due_at_its_instant() {
    let mut host = Host::empty(at("2026-01-01T00:30:00Z"));
    for n in 0..200 {
        let name = JobName::new("t", &format!("job-{n}")).unwrap();
        assert_eq!(host.put_as(&name, timed(&format!("{} 23 * * *", n % 60))), Reply::Done);
    }
    let mut launched = 0;
    // Only when it asks to be woken.
    while launched < 200 {
        let wake = host.conductor.wake_at(&host.state, Stamp(host.now)).unwrap();
        assert!(wake.0 > host.now);
        let ticks = host.go_to(wake.0);
        assert!(ticks.iter().all(|tick| at(tick) == wake.0), "on time: {ticks:?}");
        launched += ticks.len();
    }
    assert!(host.now < at("2026-01-02T00:00:00Z"));
}

#[test]
fn c11_every_missed_hour_is_made_up_one_at_a_time_oldest_first() {
    let policy =
        JobSpec { catch_up: CatchUp::All(100), overlap: Overlap::Skip, start_deadline_s: 86_400, ..timed("0 * * * *") };
    let mut host = Host::started("2026-01-01T00:30:00Z", policy);
    host.now = at("2026-01-01T03:30:00Z");
    for tick in ["2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z", "2026-01-01T03:00:00Z"] {
        let runs = host.plan();
        assert_eq!(runs.iter().map(|run| run.launch.tick.to_string()).collect::<Vec<_>>(), [tick]);
        host.succeed(&runs[0]);
    }
    assert!(host.plan().is_empty());
}

#[test]
fn c13_a_run_that_its_process_did_not_survive_does_not_run_for_ever() {
    let mut host = Host::started("2026-01-01T00:00:00Z", JobSpec { overlap: Overlap::Skip, ..timed("@every 10s") });
    host.now += 10_000;
    let run = host.plan().remove(0);
    host.start(&run);
    host.register(50);
    for run in conductor::unresolved(&host.state, 1) {
        let command = conductor::resolve(&host.state, &run, Witness { node: 1, store: STORE }, Answer::Lost).unwrap();
        host.apply(command);
    }
    assert!(matches!(host.status(&run.launch), Status::Closed(tickhost_ledger::launch::Verdict::Lost)));
    assert_eq!(host.go_to(host.now + 10_000).len(), 1, "launches go on");
}

#[test]
fn c15_a_new_leader_knows_the_runs_on_other_nodes() {
    let mut host = Host::started("2026-01-01T00:00:00Z", JobSpec { overlap: Overlap::Skip, ..timed("*/5 * * * *") });
    host.now = at("2026-01-01T00:05:00Z");
    let run = host.plan().remove(0);
    host.start(&run);
    host.now += 6 * 60_000;
    host.takeover();
    while host.now < at("2026-01-01T00:35:00Z") {
        assert!(host.plan().is_empty(), "its run is alive");
        host.now += 60_000;
    }
    host.end(&run, Outcome::Succeeded { message: None });
    // The tick that was missed while nobody led waited for it.
    assert_eq!(host.go_to(host.now), ["2026-01-01T00:10:00Z"]);
    assert_eq!(host.go("2026-01-01T00:40:00Z"), ["2026-01-01T00:40:00Z"]);
}

#[test]
fn c17_twenty_elections_do_not_stop_the_schedule() {
    let mut host = Host::started("2026-01-01T00:00:00Z", timed("* * * * *"));
    let mut ticks = Vec::new();
    for minute in 1..=30 {
        if minute <= 20 {
            host.takeover();
        }
        ticks.extend(host.go_to(at("2026-01-01T00:00:00Z") + minute * 60_000));
    }
    assert_eq!(ticks.len(), 30);
}

#[test]
fn c18_a_night_of_elections_runs_every_job_once() {
    let mut host = Host::empty(at("2025-12-31T23:59:00Z"));
    for n in 0..59 {
        let name = JobName::new("t", &format!("job-{n}")).unwrap();
        assert_eq!(host.put_as(&name, timed(&format!("{} {} * * *", n * 2 % 60, n * 2 / 60))), Reply::Done);
    }
    let mut launched = Vec::new();
    for n in 0_i64..180 {
        // Anything but evenly.
        if n * n % 7 < 3 {
            host.takeover();
        }
        launched.extend(host.go_to(host.now + 60_000));
    }
    assert_eq!(launched.len(), 59);
    assert_eq!(launched.iter().collect::<BTreeSet<_>>().len(), 59);
}

#[test]
fn c19_a_manual_run_does_not_move_the_schedule() {
    let mut host = Host::started("2026-01-01T00:00:00Z", timed("@every 1h"));
    host.now = at("2026-01-01T00:20:00Z");
    assert_eq!(host.manual(1), Reply::Done);
    assert_eq!(host.go_to(host.now), ["2026-01-01T00:20:00Z"]);
    assert_eq!(host.go("2026-01-01T01:00:00Z"), ["2026-01-01T01:00:00Z"]);
    assert_eq!(host.go("2026-01-01T02:00:00Z"), ["2026-01-01T02:00:00Z"]);
}

#[test]
fn c21_a_new_leader_reads_the_zone_as_the_one_before() {
    let mut host = Host::started("2017-06-19T10:00:00Z", zoned("0 19 * * *", "Europe/Paris"));
    assert_eq!(host.go("2017-06-19T17:00:00Z"), ["2017-06-19T17:00:00Z"]);
    host.now = at("2017-06-20T09:21:00Z");
    host.takeover();
    assert_eq!(host.go("2017-06-20T09:21:00Z"), Vec::<String>::new());
    assert_eq!(host.next(), "2017-06-20T17:00:00Z");
}

#[test]
fn c22_a_new_leader_forces_nothing_to_run() {
    let mut host = Host::started("2026-01-01T09:30:00Z", JobSpec { overlap: Overlap::Skip, ..timed("0 * * * *") });
    host.now = at("2026-01-01T10:00:00Z");
    let run = host.plan().remove(0);
    host.start(&run);
    host.now = at("2026-01-01T10:30:00Z");
    host.takeover();
    assert!(host.plan().is_empty());
    assert_eq!(host.next(), "2026-01-01T11:00:00Z");
}

/// As another version of this program, or a damaged disk, might have left it.
fn store_unreadable(host: &mut Host, schedule: &str, zone: &str) {
    let bad = JobName::new("t", "bad").unwrap();
    let soon = TickAt(host.now / 1_000 + 60);
    let next = Some(tickhost_ledger::rows::NextTick { at: soon, local: String::new(), due: soon });
    let spec = Box::new(zoned(schedule, zone));
    let put = Command::PutJob { job: bad, spec, from_revision: 0, next, checked: None, by: String::new() };
    assert_eq!(host.apply(put), Reply::Done);
}

#[test]
fn c26_and_c52_a_job_that_cannot_be_scheduled_is_told_and_stops_nobody_else() {
    for (schedule, zone) in [("not a schedule", "UTC"), ("* * * * *", "Mars/Phobos")] {
        let mut host = Host::started("2026-01-01T00:00:00Z", timed("* * * * *"));
        store_unreadable(&mut host, schedule, zone);
        host.takeover();
        host.now = at("2026-01-01T00:01:00Z");
        let plan = host.conductor.plan(&host.state, Stamp(host.now));
        assert_eq!(plan.faults.len(), 1, "it is told");
        assert_eq!(plan.faults[0].0.to_string(), "t/bad");
        let again = host.conductor.plan(&host.state, Stamp(host.now));
        assert!(again.faults.is_empty(), "once");
        host.apply_all(again.commands);
        assert_eq!(host.state.open(&name()).count(), 1, "the other one runs");
        let absent = tickhost_ledger::absence::absences(&host.state, Stamp(host.now + 10_000), 10);
        assert!(absent.iter().any(|alarm| alarm.to_string().starts_with("t/bad@")), "{absent:?}");
    }
}

#[test]
fn c27_the_clean_up_of_history_leaves_the_job() {
    let mut host = Host::started("2026-01-01T00:00:00Z", timed("*/10 * * * *"));
    let mut launched = 0;
    for n in 1..=288 {
        launched += host.go_to(at("2026-01-01T00:00:00Z") + n * 600_000).len();
    }
    assert_eq!(launched, 288);
    assert_eq!(host.state.launches(&name(), TickAt(0), TickAt(i64::MAX)).count(), 100);
    assert_eq!(host.state.folded(&name()).unwrap().succeeded, 188);
    assert_eq!(host.next(), "2026-01-03T00:10:00Z");
}

#[test]
fn c29_nothing_of_a_short_pause_is_launched() {
    let mut host = Host::started("2026-01-01T11:30:10Z", JobSpec { catch_up: CatchUp::None, ..timed("* * * * *") });
    host.now = at("2026-01-01T11:31:00Z") - 1;
    host.pause();
    host.now = at("2026-01-01T11:35:00Z") + 1;
    host.resume();
    assert_eq!(host.go_to(host.now), Vec::<String>::new());
    assert_eq!(host.through("2026-01-01T11:36:01Z"), ["2026-01-01T11:36:00Z"]);
}

#[test]
fn c32_storing_the_same_every_50_ms_moves_no_tick() {
    let mut host = Host::started("2026-01-01T00:00:00Z", timed("* * * * *"));
    let mut ticks = 0;
    for _ in 0..5 * 60 * 20 {
        host.now += 50;
        if host.now % 1_000 == 0 {
            ticks += host.go_to(host.now).len();
        }
        assert_eq!(host.put(timed("* * * * *")), Reply::Unchanged);
    }
    assert_eq!(ticks, 5);
}

#[test]
fn c33_two_manual_runs_within_ten_milliseconds_are_two() {
    let mut host = Host::started("2026-01-01T00:00:00Z", timed("0 0 1 1 *"));
    assert_eq!(host.manual(1), Reply::Done);
    let first = host.plan();
    host.succeed(&first[0]);
    host.now += 10;
    assert_eq!(host.manual(2), Reply::Done);
    let second = host.plan();
    assert_ne!(first[0].launch, second[0].launch);
    // Or, while the first one is alive, an error that says so.
    host.now += 10;
    assert!(matches!(host.manual(3), Reply::Refused(Refusal::NotNow { .. })));
}

#[test]
fn c34_a_leader_whose_clock_is_behind_launches_no_slot_again() {
    let mut host = Host::started("2026-01-01T00:00:00Z", timed("*/2 * * * *"));
    let mut ticks = Vec::new();
    for minute in 1..=20 {
        let now = at("2026-01-01T00:00:00Z") + minute * 60_000;
        ticks.extend(host.go_to(now));
        host.takeover();
        ticks.extend(host.go_to(now - 300));
    }
    assert_eq!(ticks.len(), 10);
    assert_eq!(ticks.iter().collect::<BTreeSet<_>>().len(), 10);
}

#[test]
fn c35_what_is_too_late_is_visible_and_what_is_not_is_launched_once() {
    for (start_deadline_s, launched, verdict) in
        [(60, vec![], "skipped(start-deadline)"), (600, vec!["2026-01-01T01:00:00Z"], "")]
    {
        let mut host = Host::started("2026-01-01T00:59:00Z", JobSpec { start_deadline_s, ..timed("0 1 * * *") });
        assert_eq!(host.go("2026-01-01T01:02:00Z"), launched);
        let skipped = host.state.skipped(&name()).map(|(_, range)| format!("skipped({})", range.reason)).next();
        assert_eq!(skipped.unwrap_or_default(), verdict);
    }
}

#[test]
fn c36_the_schedules_own_name_is_not_for_a_manual_run() {
    let mut host = Host::started("2026-01-01T00:00:00Z", timed("* * * * *"));
    assert_eq!(host.go("2026-01-01T00:01:00Z").len(), 1);
    let launch = LaunchId { job: name(), tick: TickAt(at("2026-01-01T00:01:00Z") / 1_000), rerun: None };
    let taken = Command::Trigger { launch, local: String::new(), same_key: false, by: String::new() };
    assert!(matches!(host.apply(taken), Reply::Refused(Refusal::NotNow { .. })));
    assert_eq!(host.go("2026-01-01T00:02:00Z").len(), 1, "the schedule goes on");
}

#[test]
fn c38_a_client_that_stores_a_job_in_a_loop_makes_one_series() {
    let mut host = Host::started("2026-01-01T00:00:57Z", timed("* * * * *"));
    let mut launched = 0;
    for n in 0..100 {
        // Half of them at the very tick.
        host.now = if n % 2 == 0 { at("2026-01-01T00:01:00Z") } else { host.now + 50 };
        assert_eq!(host.put(timed("* * * * *")), Reply::Unchanged);
        launched += host.plan().len();
    }
    assert_eq!(launched, 1, "though a run of it is alive");
}

#[test]
fn c39_a_job_that_is_created_again_at_once_has_no_past_and_a_future() {
    let mut host = Host::started("2026-01-01T00:00:30Z", timed("* * * * *"));
    assert_eq!(host.go("2026-01-01T00:01:00Z").len(), 1);
    host.now += 30_000;
    let deleted = Command::DeleteJob { job: name(), from_revision: 1, by: String::new() };
    assert_eq!(host.apply(deleted), Reply::Done);
    assert_eq!(host.put(timed("* * * * *")), Reply::Done);
    assert_eq!(host.go_to(host.now), Vec::<String>::new());
    assert_eq!(host.through("2026-01-01T00:03:01Z"), ["2026-01-01T00:02:00Z", "2026-01-01T00:03:00Z"]);
}

#[test]
fn c43_a_store_that_is_slow_for_nine_seconds_drops_nothing() {
    let mut host = Host::empty(at("2026-01-01T00:04:30Z"));
    for n in 0..500 {
        let name = JobName::new("t", &format!("job-{n}")).unwrap();
        assert_eq!(host.put_as(&name, JobSpec { start_deadline_s: 60, ..timed("5 0 * * *") }), Reply::Done);
    }
    let mut launched = 0;
    host.now = at("2026-01-01T00:05:09Z");
    while host.now < at("2026-01-01T00:05:59Z") {
        launched += host.go_to(host.now).len();
        host.now += 1_000;
    }
    assert_eq!(launched, 500);
}

/// Found by simulation: a leader without a clock to compare its own with stamped the end of a run an hour ahead, and the
/// next attempt waited for that hour.
#[test]
fn a_retry_waits_as_long_as_its_policy_says_also_where_a_clock_was_ahead() {
    let retry = Retry { attempts: 3, backoff_ms: 2_000, backoff_max_ms: 60_000, when: RetryWhen::Failed };
    let spec = JobSpec { retry, on_unknown: OnUnknown::Repeat, ..timed("0 0 * * *") };
    let mut host = Host::started("2026-01-01T23:59:59Z", spec);
    host.now = at("2026-01-02T00:00:00Z");
    let first = host.plan().remove(0);
    host.start(&first);
    host.now += 3_600_000;
    let lost = Outcome::Lost { evidence: String::new() };
    assert_eq!(host.end(&first, lost), Reply::Done);
    // Its clock is right again, or another one leads.
    host.now -= 3_600_000 - 1_000;
    let right = host.now;
    assert!(host.plan().is_empty());
    host.rewind_if_ahead();
    assert_eq!(conductor::hasten(&host.state, Stamp(host.now)), []);
    host.now = right + 1_999;
    assert!(host.plan().is_empty(), "the wait is counted from when the clock was right");
    host.now = right + 2_000;
    let second = host.plan();
    assert_eq!(second.first().map(|run| (&run.launch, run.attempt)), Some((&first.launch, 2)));
    // A wait that is as it should be is left alone.
    host.start(&second[0]);
    host.end(&second[0], Outcome::Lost { evidence: String::new() });
    let before = host.status(&first.launch);
    assert_eq!(host.apply(Command::Hasten { launch: first.launch.clone() }), Reply::Unchanged);
    assert_eq!(host.status(&first.launch), before);
}

impl Host {
    /// As the leader does when it finds the ledger ahead of its clock.
    fn rewind_if_ahead(&mut self) {
        let now = Stamp(self.now);
        if conductor::is_ahead(&self.state, now) {
            let hastened = conductor::hasten(&self.state, now);
            for command in conductor::rewind(&self.state, now).into_iter().chain(hastened) {
                assert_eq!(self.apply(command), Reply::Done);
            }
            assert_eq!(self.apply(Command::Rewound), Reply::Done);
        }
        assert!(!conductor::is_ahead(&self.state, now));
    }

    fn ticks_with_verdicts(&self, from: &str, to: &str, step_s: i64) -> Vec<usize> {
        let verdicts = |tick: i64| {
            let launched = self.state.launches(&name(), TickAt(tick), TickAt(tick)).count();
            let covers = |(from, range): &(TickAt, &tickhost_ledger::rows::SkippedRange)| {
                from.0 <= tick && range.to.is_none_or(|to| tick <= to.0)
            };
            launched + self.state.skipped(&name()).filter(covers).count()
        };
        let (from, to) = (at(from) / 1_000, at(to) / 1_000);
        (0..=(to - from) / step_s).map(|n| verdicts(from + n * step_s)).collect()
    }
}

/// A clock that is a day ahead for longer than a minute is believed. Once it is right again, the day is not silent, and
/// what was launched meanwhile is not launched again.
#[test]
fn c46_a_clock_that_was_a_day_ahead_leaves_no_silent_day() {
    for catch_up in [CatchUp::None, CatchUp::Latest, CatchUp::All(5)] {
        let mut host = Host::started("2026-01-01T00:10:30Z", JobSpec { catch_up, ..timed("*/30 * * * *") });
        host.go("2026-01-01T00:30:00Z");
        let ahead: Vec<String> =
            [host.go("2026-01-02T00:45:00Z"), host.go("2026-01-02T01:00:00Z"), host.go("2026-01-02T01:30:00Z")]
                .concat();
        assert!(ahead.len() >= 2);
        // Right again.
        host.now = at("2026-01-01T01:10:00Z");
        host.rewind_if_ahead();
        let mut launched = ahead.clone();
        let mut now = host.now;
        while now < at("2026-01-02T02:00:00Z") {
            now += 60_000;
            launched.extend(host.go_to(now));
            host.rewind_if_ahead();
        }
        let mut once = launched.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), launched.len(), "none of them twice");
        let verdicts = host.ticks_with_verdicts("2026-01-01T01:30:00Z", "2026-01-02T02:00:00Z", 1_800);
        assert!(verdicts.iter().all(|count| *count == 1), "{verdicts:?}");
        let in_between =
            launched.iter().filter(|tick| tick.as_str() > "2026-01-01T01:20" && tick.as_str() < "2026-01-02T00:00");
        assert_eq!(in_between.count(), 45, "the day is not silent");
    }
}

/// Of a job whose launches are folded away nobody could say which they were: it goes on after them.
#[test]
fn c46_what_is_folded_into_counts_is_not_launched_again() {
    let mut host = Host::started("2026-01-01T00:00:00Z", timed("* * * * * *"));
    host.now = at("2026-01-01T12:00:00Z");
    let ahead = host.through("2026-01-01T12:05:00Z");
    let folded = host.state.folded(&name()).unwrap().to.unwrap();
    host.now = at("2026-01-01T00:10:00Z");
    host.rewind_if_ahead();
    assert_eq!(host.state.job(&name()).unwrap().cursor, folded);
    host.now = folded.0 * 1_000;
    let again = host.through("2026-01-01T12:06:00Z");
    assert!(again.iter().all(|tick| !ahead.contains(tick)), "{again:?}");
    assert_eq!(again.len(), 60);
}

#[test]
fn c46_a_pause_covers_what_is_open_again() {
    let mut host = Host::started("2026-01-01T00:00:30Z", timed("*/10 * * * *"));
    host.go("2026-01-02T00:10:00Z");
    host.pause();
    host.now = at("2026-01-01T00:41:00Z");
    host.rewind_if_ahead();
    assert_eq!(host.go("2026-01-01T02:00:00Z"), Vec::<String>::new());
    host.resume();
    let verdicts = host.ticks_with_verdicts("2026-01-01T00:50:00Z", "2026-01-01T02:00:00Z", 600);
    assert!(verdicts.iter().all(|count| *count == 1), "{verdicts:?}");
    assert_eq!(host.next(), "2026-01-01T02:10:00Z");
}

#[test]
fn c47_a_clock_that_is_set_ahead_makes_up_what_was_declared_and_no_burst() {
    for (catch_up, expected) in [(CatchUp::None, 0), (CatchUp::Latest, 1)] {
        let mut host = Host::started("2026-01-01T00:01:00Z", JobSpec { catch_up, ..timed("*/5 * * * *") });
        assert_eq!(host.go("2026-01-01T01:01:30Z").len(), expected);
        assert_eq!(host.go("2026-01-01T01:05:00Z").len(), 1);
    }
}

#[test]
fn c49_a_second_that_comes_twice_is_one_tick() {
    let mut host = Host::started("2016-12-31T23:59:50Z", timed("0 0 1 * *"));
    let mut ticks = Vec::new();
    // The clock shows 23:59:59 twice, and then steps back once more over midnight.
    for now in ["2016-12-31T23:59:59Z", "2016-12-31T23:59:59Z", "2017-01-01T00:00:00Z", "2016-12-31T23:59:59Z"] {
        ticks.extend(host.go(now));
    }
    ticks.extend(host.go("2017-01-01T00:00:00Z"));
    ticks.extend(host.go("2017-01-01T00:00:01Z"));
    assert_eq!(ticks, ["2017-01-01T00:00:00Z"]);
}

#[test]
fn c50_history_that_is_pruned_at_once_does_not_bring_a_tick_again() {
    let mut host = Host::new(JobSpec { overlap: Overlap::Allow, ..spec() });
    host.now += 1_000;
    let plan = host.conductor.plan(&host.state, Stamp(host.now));
    host.apply_all(plan.commands.clone());
    for second in 2..=150 {
        host.advance_to(second);
        let live: Vec<LaunchId> = host.state.all_open().cloned().collect();
        for launch in live {
            host.succeed(&RunId { launch, attempt: 1 });
        }
    }
    let first = LaunchId { job: name(), tick: TickAt(1_000_001), rerun: None };
    assert!(host.state.launch(&first).is_none(), "it is folded");
    let again = host.apply_all(plan.commands);
    assert!(again.iter().all(|reply| matches!(reply, Reply::Refused(_))), "{again:?}");
}

#[test]
fn c51_a_restart_on_the_day_after_launches_nothing() {
    let mut host = Host::started("2020-05-11T00:00:00Z", zoned("45 14 * * 2", "Europe/London"));
    assert_eq!(host.go("2020-05-12T13:45:00Z"), ["2020-05-12T13:45:00Z"]);
    host.now = at("2020-05-13T15:13:00Z");
    host.takeover();
    assert_eq!(host.go_to(host.now), Vec::<String>::new());
    assert_eq!(host.next(), "2020-05-19T13:45:00Z");
}

#[test]
fn c56_a_night_of_sleep_skips_one_day_by_policy_and_runs_the_next_once() {
    let mut host = Host::started("2026-01-13T18:00:00Z", timed("30 18 * * *"));
    assert_eq!(host.go("2026-01-14T18:29:00Z"), Vec::<String>::new());
    let (_, range) = host.state.skipped(&name()).next().unwrap();
    assert_eq!(range.reason.to_string(), "start-deadline");
    assert_eq!(host.go("2026-01-14T18:30:00Z"), ["2026-01-14T18:30:00Z"]);
    assert_eq!(host.go("2026-01-14T18:31:00Z"), Vec::<String>::new());
}

#[test]
fn c57_an_hour_of_every_five_seconds_does_not_drift() {
    let mut host = Host::started("2026-01-01T00:00:00Z", timed("*/5 * * * * *"));
    let mut ticks = 0;
    while host.now < at("2026-01-01T01:00:00Z") {
        let wake = host.conductor.wake_at(&host.state, Stamp(host.now)).unwrap();
        assert_eq!(wake.0 % 5_000, 0, "never computed from the end of the run before");
        // Each takes ten milliseconds.
        ticks += host.go_to(wake.0).len();
        host.now += 10;
    }
    assert_eq!(ticks, 720);
}

#[test]
fn c58_every_90_minutes_counts_from_when_the_job_was_stored() {
    let mut host = Host::started("2026-01-01T10:07:13Z", timed("@every 90m"));
    host.now = at("2026-01-01T11:00:00Z");
    host.takeover();
    assert_eq!(host.go("2026-01-01T11:37:13Z"), ["2026-01-01T11:37:13Z"]);
    host.now = at("2026-01-01T12:00:00Z");
    host.takeover();
    assert_eq!(host.next(), "2026-01-01T13:07:13Z");
}
