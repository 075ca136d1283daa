//! `/metrics`: what a monitoring system asks each node for, in the OpenMetrics text format.
//!
//! What happens is counted where the leader hears of it; everything else is looked up when it is asked for. Times are in
//! seconds.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::text::encode,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};
use tickhost_ledger::{launch::Verdict, rows::Launch};

use crate::{
    api::{NodeView, node_views},
    host::{Host, VERSION},
    restore,
};

type Labels = Vec<(String, String)>;
type Number = Gauge<f64, AtomicU64>;

/// What a node has counted since its start. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    closed: Family<Labels, Counter>,
    lateness: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        // From a millisecond to about an hour.
        Self { closed: Family::default(), lateness: Histogram::new(exponential_buckets(0.001, 2.0, 22)) }
    }
}

impl Metrics {
    /// A launch has its verdict.
    pub(crate) fn closed(&self, verdict: Verdict, launch: &Launch) {
        self.closed.get_or_create(&vec![("verdict".to_owned(), verdict.to_string())]).inc();
        if let Some(started) = launch.attempts.first().and_then(|attempt| attempt.started_at) {
            self.lateness.observe((started.0 - launch.start_after.0) as f64 / 1_000.0);
        }
    }

    /// All of it as text.
    ///
    /// # Errors
    /// None that is known; the encoder reserves the right.
    pub(crate) fn text(&self, host: &Host) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("tickhost");
        registry.register("launches_closed", "Launches by verdict, counted by whoever led", self.closed.clone());
        let lateness = "From when a launch was due to the start of its first run, counted by whoever led";
        registry.register_with_unit("launch_lateness", lateness, Unit::Seconds, self.lateness.clone());
        let mut number = |name: &str, help: &str, value: f64| {
            let gauge = Number::default();
            gauge.set(value);
            registry.register(name, help, gauge);
        };
        let raft = host.replica.status();
        let (jobs, open) = host.replica.read(|state| (state.job_count(), state.all_open().count()));
        number("leads", "Whether this node leads and nobody else can", f64::from(u8::from(host.replica.has_lease())));
        number("term", "The Raft term", raft.term as f64);
        number("applied_index", "How far its state is", raft.applied_index.unwrap_or_default() as f64);
        number("has_session", "Whether its executor may run", f64::from(u8::from(host.executor.session().is_some())));
        number("runs", "Runs at this moment", host.executor.live_count() as f64);
        number("runs_max", "Runs at a time at the most", f64::from(host.settings.runs_max));
        number("guest_memory_bytes", "What its runs use of memory", host.sandbox.memory_used() as f64);
        number("jobs", "Jobs that are stored", jobs as f64);
        number("launches_open", "Launches without a verdict", open as f64);
        number("wal_syncs", "Syncs of the write-ahead log since the start", host.replica.db().sync_count() as f64);
        number("disk_free_bytes", "Free on its file system", host.disk_free().unwrap_or_default() as f64);
        let held = host.believed_now().and_then(|_| host.check_room()).is_err() || restore::hold(host).is_some();
        number("held", "Whether launches and changes are held", f64::from(u8::from(held)));
        number(
            "alarms",
            "What did not happen, and what is wrong, as it sees it",
            host.watch.alarms(|_| true).len() as f64,
        );
        if host.reign().is_some() {
            register_nodes(&mut registry, &node_views(host));
        }
        let info = Family::<Labels, Number>::default();
        let versions = [("version", VERSION), ("tz", tickhost_schedule::TZ_VERSION)];
        info.get_or_create(&versions.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()).set(1.0);
        registry.register("build", "The version of this program and of its tz database", info);
        let mut text = String::new();
        encode(&mut text, &registry).map(|()| text)
    }
}

/// What only the leader knows, for each node.
fn register_nodes(registry: &mut Registry, nodes: &[NodeView]) {
    let mut family = |name: &str, help: &str, of: &dyn Fn(&NodeView) -> Option<f64>| {
        let family = Family::<Labels, Number>::default();
        for node in nodes {
            if let Some(value) = of(node) {
                family.get_or_create(&vec![("node".to_owned(), node.node.to_string())]).set(value);
            }
        }
        registry.register(name, help, family);
    };
    let ahead = "By how much its clock is ahead of the leader's";
    family("node_clock_ahead_seconds", ahead, &|node| Some(node.clock_ahead_ms? as f64 / 1_000.0));
    family("node_heard_seconds", "Since it was heard of", &|node| Some(node.heard_ms? as f64 / 1_000.0));
    family("node_lag", "Entries of the leader's log that it does not have", &|node| Some(node.lag? as f64));
    family("node_runs", "Runs that are reserved on it", &|node| Some(f64::from(node.runs)));
    family("node_alarms", "What an operator has to look at", &|node| Some(node.alarms.len() as f64));
}
