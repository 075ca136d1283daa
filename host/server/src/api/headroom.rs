//! What a run used of what its job declares, and what it might declare instead.

use serde::{Deserialize, Serialize};
use tickhost_ledger::{rows::Usage, spec::Limits};

/// One limit, and how near a run came to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Headroom {
    /// As the manifest calls it.
    pub limit: String,
    /// `bytes`, `ms`, or what is counted.
    pub unit: String,
    /// What the run used, in that unit.
    pub used: u64,
    /// What its job declares.
    pub declared: u64,
    /// What is left of it, in percent.
    pub headroom_percent: u64,
    /// A better value, where this one is tight or far too generous: what is declared is reserved, so that others wait
    /// for it.
    pub suggested: Option<u64>,
}

/// Of each limit whose use is measured. The suggestions rest on this one run.
pub(super) fn headroom(usage: &Usage, limits: &Limits) -> Vec<Headroom> {
    let ms = |us: u64| us.div_ceil(1_000);
    [
        ("memory", "bytes", usage.memory_bytes, limits.memory_bytes, 1 << 20),
        ("cpu", "ms", ms(usage.cpu_us), limits.cpu_ms, 100),
        ("wall", "ms", ms(usage.wall_us), limits.wall_ms, 1_000),
        ("log", "bytes", usage.log_bytes, limits.log_bytes, 4 << 10),
        ("http_calls", "calls", usage.http_calls, limits.http_calls, 10),
        ("request_body", "bytes", usage.request_bytes, limits.request_bytes, 4 << 10),
        ("response_body", "bytes", usage.response_bytes, limits.response_bytes, 4 << 10),
        ("table_elements", "elements", usage.table_elements, limits.table_elements, 1_000),
        ("keys", "keys", usage.keys, limits.keys, 100),
        ("effects", "effects", usage.effects, limits.effects, 100),
        ("kv_bytes", "bytes", usage.kv_bytes, limits.kv_bytes, 4 << 10),
    ]
    .into_iter()
    .map(|(limit, unit, used, declared, step)| Headroom {
        limit: limit.to_owned(),
        unit: unit.to_owned(),
        used,
        declared,
        headroom_percent: declared.saturating_sub(used).saturating_mul(100).checked_div(declared).unwrap_or(0),
        suggested: suggested(used, declared, step),
    })
    .collect()
}

/// Half as much again as was used, in whole steps, where a fifth or less is left, or eight times of that is declared. A limit
/// that was not touched at all says nothing.
fn suggested(used: u64, declared: u64, step: u64) -> Option<u64> {
    let better = used.saturating_add(used / 2).max(1).div_ceil(step).saturating_mul(step);
    let is_tight = declared.saturating_sub(used) <= declared / 5;
    let is_generous = declared / 8 >= better;
    (used > 0 && better != declared && (is_tight || is_generous)).then_some(better)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tight_or_far_too_generous_gets_a_better_value() {
        let mib = 1 << 20;
        for (used, declared, expected) in [
            (60 * mib, 64 * mib, Some(90 * mib)),
            (64 * mib, 64 * mib, Some(96 * mib)),
            (40 * mib, 64 * mib, None),
            (2 * mib, 64 * mib, Some(3 * mib)),
            (8 * mib, 64 * mib, None),
            (0, 64 * mib, None),
        ] {
            assert_eq!(suggested(used, declared, mib), expected, "{used} of {declared}");
        }
        assert_eq!(suggested(u64::MAX, u64::MAX, 1), None, "there is no more");
    }

    #[test]
    fn use_is_told_in_the_units_of_the_manifest() {
        let usage = Usage { cpu_us: 1_500, http_calls: 101, ..Usage::default() };
        let all = headroom(&usage, &Limits::default());
        let of =
            |limit: &str| all.iter().find(|headroom| headroom.limit == limit).map(|h| (h.used, h.headroom_percent));
        assert_eq!(of("cpu"), Some((2, 99)));
        let names: Vec<&str> = all.iter().map(|headroom| headroom.limit.as_str()).collect();
        assert_eq!(names, Limits::default().amounts().map(|(name, _)| name), "of every limit there is");
        assert_eq!(of("http_calls"), Some((101, 0)), "the call that was refused is counted");
    }
}
