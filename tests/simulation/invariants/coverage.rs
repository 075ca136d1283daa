//! Every tick that the schedule names has exactly one verdict, by a reading of the schedule that knows nothing of the
//! ledger's cursors; and every tick of a job that says `repeat` has succeeded.

use tickhost_ledger::{
    JobName, LaunchId, State, TickAt,
    launch::{Status, Verdict},
    rows::Job,
};
use tickhost_schedule::{Next, Schedule};

use super::Invariant;
use crate::simulation::{Simulation, jobs, must_succeed};

pub(super) struct Coverage;

impl Invariant for Coverage {
    fn name(&self) -> &'static str {
        "exact coverage"
    }

    fn at_end(&mut self, simulation: &Simulation) -> Result<(), String> {
        let until = TickAt((simulation.median_ms() - 5_000) / 1_000);
        simulation.with_state(|state| {
            jobs().into_iter().try_for_each(|(name, _)| {
                let job = state.job(&name).ok_or_else(|| format!("there is no job {name}"))?;
                cover(state, &name, job, until)
            })
        })?
    }
}

fn cover(state: &State, name: &JobName, job: &Job, until: TickAt) -> Result<(), String> {
    let schedule = Schedule::new(&job.spec.timing, Some(&name.to_string()), job.created_at.time());
    let schedule = schedule.map_err(|e| e.to_string())?;
    let mut after = job.created_at.time();
    let mut seen = 0;
    while let Next::Tick(tick) = schedule.next(after) {
        let at = TickAt::from(tick.at);
        if at > until {
            break;
        }
        after = tick.at;
        seen += 1;
        let launch = state.launch(&LaunchId { job: name.clone(), tick: at, rerun: None });
        let range = state.skipped(name).find(|(from, range)| *from <= at && range.to.is_none_or(|to| at <= to));
        match (launch, range) {
            (Some(_), Some((_, range))) => return Err(format!("{name}@{at} was launched, and is {}", range.reason)),
            (None, None) => return Err(format!("{name}@{at} has no verdict")),
            (None, Some(_)) => {}
            (Some(launch), None) if must_succeed(name) => {
                // What is still open, another one finds.
                if launch.status != Status::Closed(Verdict::Succeeded) && !launch.status.is_open() {
                    return Err(format!("{name}@{at} must be repeated until it succeeds, and is {:?}", launch.status));
                }
            }
            (Some(_), None) => {}
        }
    }
    if seen == 0 { Err(format!("{name} has no ticks")) } else { Ok(()) }
}
