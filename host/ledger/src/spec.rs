//! What the owner of a job says about it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::Digest;

/// A job as it is stored: every default written out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The component that runs.
    pub component: Digest,
    /// The expression, as written.
    pub schedule: String,
    /// The IANA name of the zone in which the expression is read.
    pub zone: String,
    /// What becomes of a run of which nobody can say whether it happened.
    pub on_unknown: OnUnknown,
    /// What a tick does while an earlier launch is open.
    pub overlap: Overlap,
    /// What is launched of ticks that were missed.
    pub catch_up: CatchUp,
    /// Seconds after the tick within which a launch may begin.
    pub start_deadline_s: u32,
    /// What a run may use.
    pub limits: Limits,
    /// Where a run may send HTTP requests: `scheme://host[:port]`.
    pub allow_http: Vec<String>,
    /// What the component reads by `config.get`.
    pub config: BTreeMap<String, String>,
    /// Further attempts.
    pub retry: Retry,
}

/// The choice that only the owner can make: whether doing it twice or not at all is the lesser evil.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnUnknown {
    /// At most once: charging, mailing.
    Skip,
    /// At least once: recomputing.
    Repeat,
}

/// What a tick does while an earlier launch of its job is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overlap {
    /// The tick is `skipped(overlap)`.
    #[default]
    Skip,
    /// One tick waits; further ones are skipped.
    QueueOne,
    /// The open run is stopped and the newest tick takes its place.
    Replace,
    /// They run side by side.
    Allow,
}

/// What is launched of ticks that were missed, within the start deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CatchUp {
    /// None of them.
    None,
    /// The last one.
    #[default]
    Latest,
    /// The last this many, oldest first.
    All(u32),
}

/// When another attempt is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Attempts in all, the first included; 1 means no retry.
    pub attempts: u32,
    /// Milliseconds before the second attempt; doubled for each further one, up to `backoff_max_ms`.
    pub backoff_ms: u64,
    /// The longest wait between two attempts, in milliseconds.
    pub backoff_max_ms: u64,
}

impl Retry {
    /// No retry.
    pub const NEVER: Self = Self { attempts: 1, backoff_ms: 0, backoff_max_ms: 0 };

    /// Milliseconds to wait after that attempt has ended.
    pub fn wait_ms(&self, attempt: u32) -> u64 {
        let doublings = attempt.saturating_sub(1).min(32);
        self.backoff_ms.saturating_mul(1 << doublings).min(self.backoff_max_ms)
    }
}

/// What a run may use. Every one is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of linear memory, over all memories of the component.
    pub memory_bytes: u64,
    /// Milliseconds of CPU time; waiting for the host is not counted.
    pub cpu_ms: u64,
    /// Milliseconds from the first guest instruction to the last.
    pub wall_ms: u64,
    /// Bytes of output and log records that are kept; head and tail stay, the middle is dropped.
    pub log_bytes: u64,
    /// HTTP requests.
    pub http_calls: u64,
    /// Bytes of one request's body.
    pub request_bytes: u64,
    /// Bytes of one response's body.
    pub response_bytes: u64,
}

impl Default for Limits {
    /// Arbitrary but for memory: a Python component starts with about 40 MB.
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            cpu_ms: 10_000,
            wall_ms: 60_000,
            log_bytes: 64 << 10,
            http_calls: 100,
            request_bytes: 1 << 20,
            response_bytes: 1 << 20,
        }
    }
}
