//! The benchmarks: figures are printed, not asserted.

mod burst;
mod failover;
mod idle;
mod sandbox;
mod schedule;
mod writes;

#[tokio::main]
async fn main() {
    println!(
        "{} cores, {}",
        std::thread::available_parallelism().map_or(0, usize::from),
        if cfg!(debug_assertions) { "the build that tests use: slower than what operators run" } else { "optimised" }
    );
    let only: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| o == name);
    if wanted("schedule") {
        schedule::run();
    }
    if wanted("sandbox") {
        sandbox::run().await;
    }
    if wanted("idle") {
        idle::run().await;
    }
    if wanted("failover") {
        failover::run().await;
    }
    if wanted("writes") {
        writes::run().await;
    }
    if wanted("burst") {
        burst::run().await;
    }
    if wanted("burst-three") {
        burst::run_on_three(&[1_000, 10_000]).await;
    }
    // By name only: it takes minutes.
    if only.iter().any(|name| name == "burst-large") {
        burst::run_on_three(&[50_000]).await;
    }
}

/// The value below which that part of the sorted values lies.
fn percentile(sorted: &[i64], part: f64) -> i64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or_default()
}
