//! What calendars, windows, bounds and clocks make of ticks.

use super::*;

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
        let mut host = Host::new(every_six_hours(on_closed_day, "0 9 * * *"));
        for day in 12..=16 {
            // What is moved to one instant waits for each other, though the job says `overlap = "skip"`.
            let mut runs = host.advance_to(at(day, 9));
            while let Some(run) = runs.pop() {
                assert!(runs.is_empty(), "{run} and {runs:?}");
                host.succeed(&run);
                runs = host.plan();
            }
            let moved = host.state.launch(&LaunchId { job: name(), tick: TickAt(1_000_000 + at(14, 9)), rerun: None });
            if let Some(moved) = moved {
                assert_eq!(moved.start_after, Stamp(1_000_000_000 + starts * 1_000), "{on_closed_day:?}");
            }
        }
        assert_eq!(host.verdict(at(14, 9)), "succeeded", "{on_closed_day:?}");
        assert_eq!(host.verdict(at(15, 9)), "succeeded", "{on_closed_day:?}");
        assert_eq!(host.verdict(at(16, 9)), "succeeded", "{on_closed_day:?}: the day's own tick is not in their way");
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
    // The next one's place lies in a pause; the one after that finds a run alive.
    let (note, by) = (String::new(), "someone".into());
    assert_eq!(host.apply(Command::Pause { job: name(), note, by }), Reply::Done);
    assert_eq!(host.verdict(tick + 600), "Due", "its place is still to come");
    host.advance_to(tick + 600 + delay);
    assert_eq!(host.verdict(tick + 600), "skipped(paused)");
    let job = host.state.job(&name()).unwrap().clone();
    let schedule = conductor::schedule_of(&name(), &job).unwrap();
    let next = conductor::first_tick(&schedule, job.cursor, Stamp(host.now).time());
    assert_eq!(
        host.apply(Command::Resume { job: name(), revision: 1, next: next.clone(), by: String::new() }),
        Reply::Done
    );
    let third = next.unwrap().at.0 - 1_000_000;
    host.advance_to(third);
    let alive = host.advance_to(third + delay).remove(0);
    host.start(&alive);
    host.advance_to(third + 600);
    host.advance_to(third + 600 + delay);
    assert_eq!(host.verdict(third + 600), "skipped(overlap)");
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

/// What another version stored as the next tick is none of this schedule's: it is named anew, and nothing is passed
/// over without a word.
#[test]
fn a_next_tick_that_the_schedule_does_not_name_is_named_anew() {
    let hourly = JobSpec { timing: Definition::new("0 * * * *", "UTC"), ..spec() };
    let mut host = Host::new(hourly.clone());
    assert_eq!(conductor::retime(&host.state), [], "what this version stored it names itself");
    let named = host.state.job(&name()).unwrap().next.clone().unwrap();
    let mut other = hourly;
    other.config.insert("edit".into(), "1".into());
    let next = tickhost_ledger::rows::NextTick {
        at: TickAt(named.at.0 - 600),
        due: TickAt(named.at.0 - 600),
        local: "1970-01-12T13:50:00+00:00".into(),
    };
    let (spec, by) = (Box::new(other), "someone".to_owned());
    let command = Command::PutJob { job: name(), spec, from_revision: 1, next: Some(next.clone()), checked: None, by };
    assert_eq!(host.apply(command), Reply::Done);
    assert_eq!(conductor::retime(&host.state).len(), 1);
    // The leader notices by itself when that tick comes.
    assert!(host.advance_to(next.at.0 - 1_000_000).is_empty());
    assert_eq!(host.state.job(&name()).unwrap().next, Some(named.clone()));
    let run = host.advance_to(named.at.0 - 1_000_000).remove(0);
    assert_eq!(run.launch.tick, named.at);
}
