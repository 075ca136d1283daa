//! A charge run: every customer of the list is charged once for the tick's period.

use serde::{Deserialize, Serialize};
use tickhost_job::{Failure, Outcome, Tick, config, http, log};

#[derive(Deserialize)]
struct Customer {
    id: String,
    amount_cents: u64,
}

#[derive(Serialize)]
struct Charge<'a> {
    customer: &'a str,
    amount_cents: u64,
    period: &'a str,
}

fn run(tick: &Tick) -> Outcome<String> {
    let api = config::get("api").ok_or_else(|| Failure::new("the config lacks `api`, the base URL of the API"))?;
    // The period is the tick's, never the clock's: a late run still charges for its own period.
    let period = tick.scheduled_local();
    let list = http::read(&http::get(format!("{api}/customers")))?;
    if list.status != 200 {
        return Err(Failure::retry(format!("the list of customers was answered with status {}", list.status)));
    }
    let customers: Vec<Customer> = serde_json::from_slice(&list.body)?;
    // One key for each customer below one for the run: the same in every attempt at this tick.
    let charges = tick.key("charge")?;
    let mut cents = 0;
    for Customer { id, amount_cents } in &customers {
        let charge = Charge { customer: id, amount_cents: *amount_cents, period: &period };
        let key = charges.child(id)?;
        let answer = http::send(&key, &http::post_json(format!("{api}/charges"), serde_json::to_vec(&charge)?))?;
        match answer.status {
            // 409: the API knows this charge already.
            200..=299 | 409 => {}
            status => return Err(Failure::new(format!("charging {id} was answered with status {status}"))),
        }
        cents += amount_cents;
        let how = if answer.replayed { "charged by an earlier attempt" } else { "charged" };
        log::info(how, &[("customer", id), ("cents", &amount_cents.to_string()), ("key", &key.text())]);
    }
    Ok(format!("charged {} customers, {cents} cents, for {period}", customers.len()))
}

tickhost_job::job!(run);
