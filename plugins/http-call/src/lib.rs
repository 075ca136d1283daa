//! Cron for a URL: everything is said in the job's `config`.
//!
//! What is read and checked is in `plan`, which knows nothing of the host and is tested without one.

mod plan;

pub use plan::{Plan, PlanError, Values};

#[cfg(target_family = "wasm")]
mod job {
    use tickhost_job::{Failure, Outcome, Tick, config, http};

    use crate::{Plan, Values};

    fn run(tick: &Tick) -> Outcome<String> {
        let plan = Plan::read(config::get_all())?;
        let key = tick.key("call")?;
        let values = Values {
            launch: tick.launch_id(),
            tick: tick.launch_id().split(['@', '+']).nth(1).unwrap_or_default().to_owned(),
            local: tick.scheduled_local(),
            key: key.text(),
        };
        let request = http::Request {
            method: plan.method.clone(),
            url: plan.url.clone(),
            headers: plan.headers.clone(),
            body: plan.body.as_ref().map(|body| body.fill(&values).into_bytes()),
            timeout_ms: None,
        };
        let answer = if plan.is_safe() { http::read(&request)? } else { http::send(&key, &request)? };
        let told = format!("{} {} was answered with status {}", plan.method, plan.url, answer.status);
        if plan.expects(answer.status) {
            return Ok(told);
        }
        // What may pass by itself is worth another attempt.
        match answer.status {
            408 | 425 | 429 | 500.. => Err(Failure::retry(told)),
            _ => Err(Failure::new(told)),
        }
    }

    tickhost_job::job!(run);
}
