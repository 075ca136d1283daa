//! Histories of one host: what the conductor plans is applied, runs end in every way, and every tick gets
//! exactly one verdict.
#![allow(missing_docs, clippy::unwrap_used)]

mod access;
mod cluster;
mod host;
mod quota;
mod random;
mod restore;
mod scenarios;
mod time;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tickhost_ledger::{
    Command, Contents, Digest, Entry, Grant, JobName, JobSpec, LaunchId, Output, Refusal, Reply, RunId, Stamp, State,
    TickAt,
    clock::ClockGuard,
    command::{KvChange, Stamped},
    conductor::{self, Answer, Conductor, Witness},
    effect::{ByteBuf, EffectAnswer, EffectResult},
    launch::{Outcome, SkipReason, Status, Verdict},
    rows::Usage,
    spec::{CatchUp, Limits, OnUnknown, Overlap, Retry, RetryWhen},
};
use tickhost_schedule::{ClosedDays, Definition, Offsets, OnClosedDay, Schedule};
use uuid::Uuid;

use host::{Host, STORE, name, spec};

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

/// A launch that was to give way does not come back when its run turns out never to have begun, or asks for another
/// attempt.
#[test]
fn a_launch_that_was_replaced_gets_no_further_attempt() {
    let retry = Retry { attempts: 5, when: RetryWhen::Asked, ..Retry::NEVER };
    let outcomes = [
        (Outcome::NeverStarted { evidence: String::new() }, "skipped(overlap)"),
        (Outcome::Failed { message: String::new(), retry: true }, "failed"),
        (Outcome::Lost { evidence: String::new() }, "lost"),
    ];
    for (outcome, verdict) in outcomes {
        let on_unknown = OnUnknown::Repeat;
        let mut host = Host::new(JobSpec { overlap: Overlap::Replace, on_unknown, retry, ..spec() });
        let first = host.advance_to(1).remove(0);
        assert_eq!(host.advance_to(2), [], "it waits for the first one's end");
        host.end(&first, outcome);
        assert_eq!(host.verdict(1), verdict);
        let next = host.plan();
        assert_eq!(next.iter().map(|run| run.launch.tick.0).collect::<Vec<_>>(), [1_000_002]);
    }
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
    assert_eq!(host.apply(Command::Resume { job: name(), revision: 1, next, by: String::new() }), Reply::Done);
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
        call: 99,
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
        Command::PutJob { job: name(), spec: Box::new(changed), from_revision: 1, next: None, checked: None, by },
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
