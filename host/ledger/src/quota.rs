//! What a namespace may have and use, so that an operator can let people deploy whom they do not know.
//!
//! What is stored is checked when it is stored, all of it in one report. What is spent is checked when a launch is
//! given to an executor: one that is over a rate waits, and is `skipped(quota)` at its start deadline.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    ids::Stamp,
    spec::{JobSpec, Limits},
};

/// The namespace whose quota is that of all namespaces that have none of their own.
pub const EVERY_NAMESPACE: &str = "*";

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// What a namespace may have and use. What is absent is not bounded but by the cluster itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u64>,
    /// Bytes of the components that are stored for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component_bytes: Option<u64>,
    /// The fewest seconds between two ticks of one job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shortest_interval_s: Option<u64>,
    /// Attempts that begin within one minute of the clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launches_per_minute: Option<u64>,
    /// Runs at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<u64>,
    /// Bytes of memory that its runs declare, over all that are alive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Seconds of CPU time within one hour of the clock: what runs have used, and what those that are alive declare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_hour: Option<u64>,
    /// Bytes of its key-value store, names included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_bytes: Option<u64>,
    /// Bytes of its effect journal, as they are when an effect begins; what comes back of it may go beyond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal_bytes: Option<u64>,
    /// The largest value of each limit that a job may declare, by the limit's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, u64>,
    /// Where its jobs may send HTTP requests, in the words of a job's `allow`; absent: wherever a job says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
}

/// What a namespace has at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// Jobs.
    pub jobs: u64,
    /// Bytes of the components that are stored for it.
    pub component_bytes: u64,
    /// Runs that are alive.
    pub runs: u64,
    /// Bytes of memory that these declare.
    pub memory_bytes: u64,
    /// Milliseconds of CPU time that these declare, as far as a quota asks.
    pub cpu_ms: u64,
    /// Bytes of the key-value store.
    pub kv_bytes: u64,
    /// Bytes of the effect journal.
    pub journal_bytes: u64,
}

impl Held {
    /// One more run, with what it declares.
    pub(crate) fn reserve(&mut self, memory_bytes: u64, cpu_ms: u64) {
        self.runs += 1;
        self.memory_bytes = self.memory_bytes.saturating_add(memory_bytes);
        self.cpu_ms = self.cpu_ms.saturating_add(cpu_ms);
    }
}

/// What a namespace has spent. A row of the state: history is folded, and what is counted must not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Which minute since 1970.
    pub minute: i64,
    /// Attempts that were given out in it.
    pub launches: u64,
    /// Which hour since 1970.
    pub hour: i64,
    /// Microseconds of CPU time that were used by runs that ended in it.
    pub cpu_us: u64,
}

impl Spent {
    /// As it is at that instant: a new minute and a new hour begin with nothing.
    pub fn at(self, at: Stamp) -> Self {
        let (minute, hour) = (at.0.div_euclid(MINUTE_MS), at.0.div_euclid(HOUR_MS));
        Self {
            minute: self.minute.max(minute),
            launches: if minute > self.minute { 0 } else { self.launches },
            hour: self.hour.max(hour),
            cpu_us: if hour > self.hour { 0 } else { self.cpu_us },
        }
    }
}

/// What the leader found out about a job with its schedule and its rules for the network, which `apply` does not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// The revision of the quota that it was checked against.
    pub quota: u64,
    /// Seconds between two ticks that are closer than the quota allows, where there are such.
    pub interval_s: Option<u64>,
    /// Rules of the job that no rule of the quota covers.
    pub strangers: Vec<String>,
}

/// A launch that has to wait for its namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// In a sentence.
    pub why: String,
    /// When it may go on, where the clock says; else when a run ends.
    pub until: Option<Stamp>,
}

impl std::fmt::Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.until {
            Some(until) => write!(f, "{}; it may go on at {until}", self.why),
            None => write!(f, "{}; it may go on when a run ends", self.why),
        }
    }
}

impl Quota {
    /// Whether `apply` has to be told more of a job than its definition.
    pub fn asks_for_a_check(&self) -> bool {
        self.shortest_interval_s.is_some() || self.hosts.is_some()
    }

    /// Everything that a job of its namespace must not be, in a sentence each. `jobs` is how many the namespace would have
    /// with it.
    pub(crate) fn refuses(&self, spec: &JobSpec, jobs: u64, checked: Option<&Checked>) -> Vec<String> {
        let limits = &spec.limits;
        let over = |limit: &str, found: u64, quota: &str, most: Option<u64>, unit: &str| {
            let most = most.filter(|most| found > *most)?;
            Some(format!(
                "`limits.{limit}` is {found} {unit}, the namespace's `{quota}` for all of its runs is {most} {unit}"
            ))
        };
        let most = self.jobs.filter(|most| jobs > *most);
        let jobs = most.map(|most| format!("`jobs` would be {jobs}, the namespace's quota is {most}"));
        let interval = checked.and_then(|checked| checked.interval_s).zip(self.shortest_interval_s);
        let interval = interval.filter(|(found, least)| found < least).map(|(found, least)| {
            format!("`schedule` has ticks {found} s apart, the namespace's `shortest_interval` is {least} s")
        });
        let strangers = checked.into_iter().flat_map(|checked| &checked.strangers).map(|rule| {
            let hosts = self.hosts.iter().flatten().map(|host| format!("`{host}`")).collect::<Vec<_>>();
            let hosts = if hosts.is_empty() { "none".into() } else { hosts.join(", ") };
            format!("`allow` names `{rule}`, the namespace's `hosts` are {hosts}")
        });
        // A run that could never begin is told when the job is stored, and not at each of its ticks.
        let alone = [
            over("memory", limits.memory_bytes, "memory", self.memory_bytes, "bytes"),
            over("cpu", limits.cpu_ms, "cpu_per_hour", self.cpu_s_per_hour.map(|s| s.saturating_mul(1_000)), "ms"),
        ];
        let largest = limits.amounts().into_iter().filter_map(|(name, found)| {
            let most = self.limits.get(name).filter(|most| found > **most)?;
            Some(format!("`limits.{name}` is {found}, the namespace's largest is {most}"))
        });
        jobs.into_iter().chain(alone.into_iter().flatten()).chain(interval).chain(largest).chain(strangers).collect()
    }

    /// Why a run with these limits has to wait at that instant, if it has to.
    pub(crate) fn blocks(&self, limits: &Limits, held: &Held, spent: Spent, at: Stamp) -> Option<Block> {
        let spent = spent.at(at);
        let wait = |name: &str, found: String, most: u64, unit: &str, until: Option<i64>| {
            Some(Block { why: format!("`{name}` is {found} of {most}{unit}"), until: until.map(Stamp) })
        };
        let with = |found: u64, more: u64| format!("{found} and {more} more");
        if let Some(most) = self.launches_per_minute.filter(|most| spent.launches >= *most) {
            let next = (spent.minute + 1) * MINUTE_MS;
            return wait("launches_per_minute", spent.launches.to_string(), most, "", Some(next));
        }
        if let Some(most) = self.cpu_s_per_hour {
            let used_ms = (spent.cpu_us / 1_000).saturating_add(held.cpu_ms);
            if used_ms.saturating_add(limits.cpu_ms) > most.saturating_mul(1_000) {
                let next = (spent.hour + 1) * HOUR_MS;
                return wait("cpu_per_hour", with(used_ms, limits.cpu_ms), most * 1_000, " ms", Some(next));
            }
        }
        if let Some(most) = self.runs.filter(|most| held.runs >= *most) {
            return wait("runs", held.runs.to_string(), most, "", None);
        }
        let memory = held.memory_bytes.saturating_add(limits.memory_bytes);
        if let Some(most) = self.memory_bytes.filter(|most| memory > *most) {
            return wait("memory", with(held.memory_bytes, limits.memory_bytes), most, " bytes", None);
        }
        None
    }

    /// Every value that means nothing, in a sentence each.
    pub fn problems(&self) -> Vec<String> {
        let known = Limits::default().amounts().map(|(name, _)| name);
        let unknown = self.limits.keys().filter(|name| !known.contains(&name.as_str()));
        let unknown = unknown.map(|name| format!("there is no limit `{name}`; they are {}", known.join(", ")));
        let zero = [("runs", self.runs), ("launches_per_minute", self.launches_per_minute)];
        let zero = zero.into_iter().filter(|(_, most)| *most == Some(0)).map(|(name, _)| {
            format!("`{name}` is 0, with which no job could ever run; pause the namespace's jobs instead")
        });
        unknown.chain(zero).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Stamp = Stamp(7 * HOUR_MS + 5 * MINUTE_MS + 1);

    /// Each rate and each sum by itself: at its bound it blocks, one below it does not, and one that ends with the
    /// clock says when.
    #[test]
    fn a_run_waits_for_exactly_what_is_used_up() {
        let limits = Limits { memory_bytes: 100, cpu_ms: 1_000, ..Limits::default() };
        let held = Held { runs: 2, memory_bytes: 200, cpu_ms: 2_000, ..Held::default() };
        let spent = Spent { minute: 7 * 60 + 5, launches: 3, hour: 7, cpu_us: 1_000_000 };
        let none = Quota::default();
        let hour_ends = Some(Stamp(8 * HOUR_MS));
        let minute_ends = Some(Stamp(7 * HOUR_MS + 6 * MINUTE_MS));
        for (tight, loose, until) in [
            (
                Quota { launches_per_minute: Some(3), ..none.clone() },
                Quota { launches_per_minute: Some(4), ..none.clone() },
                minute_ends,
            ),
            (
                Quota { cpu_s_per_hour: Some(3), ..none.clone() },
                Quota { cpu_s_per_hour: Some(4), ..none.clone() },
                hour_ends,
            ),
            (Quota { runs: Some(2), ..none.clone() }, Quota { runs: Some(3), ..none.clone() }, None),
            (
                Quota { memory_bytes: Some(299), ..none.clone() },
                Quota { memory_bytes: Some(300), ..none.clone() },
                None,
            ),
        ] {
            let block = tight.blocks(&limits, &held, spent, AT);
            assert_eq!(block.map(|block| block.until), Some(until), "{tight:?}");
            assert_eq!(loose.blocks(&limits, &held, spent, AT), None, "{loose:?}");
        }
        let rate = Quota { launches_per_minute: Some(3), ..none.clone() };
        assert_eq!(rate.blocks(&limits, &held, spent, Stamp(AT.0 + MINUTE_MS)), None, "another minute has begun");
        assert!(
            rate.blocks(&limits, &held, spent, Stamp(AT.0 - MINUTE_MS)).is_some(),
            "a clock that goes back earns none"
        );
    }

    #[test]
    fn a_quota_that_means_nothing_is_told() {
        let limits = BTreeMap::from([("memroy".to_owned(), 1), ("cpu".to_owned(), 5)]);
        let quota = Quota { limits, runs: Some(0), ..Quota::default() };
        let problems = quota.problems();
        assert!(problems.len() == 2 && problems[0].contains("`memroy`"), "{problems:?}");
    }
}
