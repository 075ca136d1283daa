//! Random histories: whatever happens in whatever order, every tick has one verdict.

use super::*;
use tickhost_ledger::quota::Quota;

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
    // The whole history is on one Monday: it is closed or it is not.
    let closed = prop_oneof![4 => Just(vec![]), 1 => Just(vec![1_u8])];
    let timing = (prop_oneof![Just(0_u32), Just(12)], closed);
    (overlap, catch_up, any::<bool>(), 1_u32..20, timing).prop_map(
        |(overlap, catch_up, repeat, start_deadline_s, timing)| {
            let (window_s, weekdays) = timing;
            let closed = ClosedDays { weekdays, ..ClosedDays::default() };
            let timing = Definition { window_s, closed, ..spec().timing };
            let on_unknown = if repeat { OnUnknown::Repeat } else { OnUnknown::Skip };
            let retry = Retry {
                attempts: if repeat { 3 } else { 1 },
                backoff_ms: 500,
                backoff_max_ms: 2_000,
                when: RetryWhen::Failed,
            };
            JobSpec { timing, overlap, catch_up, on_unknown, retry, start_deadline_s, ..spec() }
        },
    )
}

/// Rates that these histories meet.
fn quotas() -> impl Strategy<Value = Option<Quota>> {
    let rates = (prop::option::of(1_u64..3), prop::option::of(1_u64..10), prop::option::of(10_u64..40));
    prop::option::of(rates.prop_map(|(runs, launches_per_minute, cpu_s_per_hour)| Quota {
        runs,
        launches_per_minute,
        cpu_s_per_hour,
        ..Quota::default()
    }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Whatever happens: every tick ends up with exactly one verdict, and no skip run starts twice unasked.
    #[test]
    fn every_tick_has_exactly_one_verdict(
        spec in policies(),
        quota in quotas(),
        events in prop::collection::vec(event(), 1..40),
    ) {
        let mut host = Host::new(spec.clone());
        if let Some(quota) = quota {
            host.apply(Command::SetQuota { namespace: "billing".into(), quota: Some(Box::new(quota)), by: String::new() });
        }
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
                        let command = Command::Resume { job: name(), revision: job.revision, next, by: String::new() };
                        prop_assert_eq!(host.apply(command), Reply::Done);
                    } else {
                        let decided = host.conductor.decide_up_to(&host.state, &name(), now).unwrap();
                        let mut commands: Vec<Command> = decided.into_iter().map(Command::Decide).collect();
                        commands.push(Command::Pause { job: name(), note: String::new(), by: String::new() });
                        host.apply_all(commands);
                    }
                }
                Event::Edit => {
                    let job = host.state.job(&name()).unwrap().clone();
                    let now = Stamp(host.now);
                    let decided = host.conductor.decide_up_to(&host.state, &name(), now).unwrap();
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
