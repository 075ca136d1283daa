//! What the owner of a job says about it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use tickhost_schedule::Definition;

use crate::ids::Digest;

/// A job as it is stored: every default written out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The component that runs.
    pub component: Digest,
    /// When it is due.
    pub timing: Definition,
    /// The names of the calendars whose days are in `timing.closed`, for people.
    #[serde(default)]
    pub calendars: Vec<String>,
    /// After this many launches by the schedule there are no more.
    #[serde(default)]
    pub max_launches: Option<u64>,
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
    /// The program's arguments, its name apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The program's environment, besides what the host says of the tick.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
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
    /// After which ends.
    pub when: RetryWhen,
}

/// After which ends of a run another attempt is made. What was lost or is unknown goes by [`OnUnknown`] alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RetryWhen {
    /// Only where the guest itself asked for it.
    Asked,
    /// Also where it trapped or met a limit.
    Failed,
}

impl Retry {
    /// No retry.
    pub const NEVER: Self = Self { attempts: 1, backoff_ms: 0, backoff_max_ms: 0, when: RetryWhen::Asked };

    /// Milliseconds to wait after that attempt has ended.
    pub fn wait_ms(&self, attempt: u32) -> u64 {
        let doublings = attempt.saturating_sub(1).min(32);
        self.backoff_ms.saturating_mul(1 << doublings).min(self.backoff_max_ms)
    }
}

/// What limits may be, least and most. The manifest's reader and the API hold to the same.
pub mod bounds {
    use std::ops::RangeInclusive;

    const DAY_MS: u64 = 24 * 3_600 * 1_000;
    /// Bytes of memory: a 32-bit memory ends at 4 GiB.
    pub const MEMORY_BYTES: RangeInclusive<u64> = 64 << 10..=4 << 30;
    /// Milliseconds of CPU time and of wall time.
    pub const TIME_MS: RangeInclusive<u64> = 1..=DAY_MS;
    /// Bytes of output: they are held in memory while the run lives.
    pub const LOG_BYTES: RangeInclusive<u64> = 0..=16 << 20;
    /// HTTP requests.
    pub const HTTP_CALLS: RangeInclusive<u64> = 0..=1_000_000;
    /// Bytes of a body.
    pub const BODY_BYTES: RangeInclusive<u64> = 0..=1 << 30;
    /// Elements of all tables. A single table has 32,000 at the most.
    pub const TABLE_ELEMENTS: RangeInclusive<u64> = 0..=2_000_000;
    /// Keys.
    pub const KEYS: RangeInclusive<u64> = 0..=1_000_000;
    /// Effects.
    pub const EFFECTS: RangeInclusive<u64> = 0..=1_000_000;
    /// Bytes written to the key-value store.
    pub const KV_BYTES: RangeInclusive<u64> = 0..=1 << 30;
    /// Milliseconds of the start deadline.
    pub const START_DEADLINE_MS: RangeInclusive<u64> = 1_000..=7 * DAY_MS;
    /// Milliseconds between two attempts.
    pub const BACKOFF_MS: RangeInclusive<u64> = 0..=DAY_MS;
    /// Attempts of one tick: more would be a workflow.
    pub const ATTEMPTS: RangeInclusive<u64> = 1..=1_000;
    /// Milliseconds of a window: its launches must be over before the day is.
    pub const WINDOW_MS: RangeInclusive<u64> = 0..=DAY_MS;
    /// Launches of a job that ends.
    pub const LAUNCHES: RangeInclusive<u64> = 1..=u64::MAX;
    /// Expressions of one job. Arbitrary: more is a list of dates.
    pub const EXPRESSIONS: RangeInclusive<u64> = 1..=32;
    /// Days, ranges and weekdays that are closed. Arbitrary: ten years of single days.
    pub const CLOSED: RangeInclusive<u64> = 0..=4_000;
    /// Bytes of a program's arguments and environment. Arbitrary.
    pub const ARGUMENT_BYTES: RangeInclusive<u64> = 0..=64 << 10;
    /// Missed ticks that are made up.
    pub const CATCH_UP: RangeInclusive<u64> = 1..=1_000;
}

impl JobSpec {
    /// Whether that many launches are all there are to be.
    pub fn is_over(&self, launched: u64) -> bool {
        self.max_launches.is_some_and(|most| launched >= most)
    }

    /// Whether it says what nodes before [`crate::command::FORMAT`] 4 do not know.
    pub(crate) fn has_later(&self) -> bool {
        !self.args.is_empty() || !self.env.is_empty() || self.limits.has_later()
    }

    /// Every value that is out of its bounds, in a sentence each.
    pub fn out_of_bounds(&self) -> Vec<String> {
        let limits = &self.limits;
        let catch_up = if let CatchUp::All(bound) = self.catch_up { u64::from(bound) } else { 1 };
        let of_env = self.env.iter().map(|(name, value)| name.len() + value.len());
        let argument_bytes: usize = self.args.iter().map(String::len).chain(of_env).sum();
        [
            ("limits.memory_bytes", limits.memory_bytes, bounds::MEMORY_BYTES),
            ("limits.cpu_ms", limits.cpu_ms, bounds::TIME_MS),
            ("limits.wall_ms", limits.wall_ms, bounds::TIME_MS),
            ("limits.log_bytes", limits.log_bytes, bounds::LOG_BYTES),
            ("limits.http_calls", limits.http_calls, bounds::HTTP_CALLS),
            ("limits.request_bytes", limits.request_bytes, bounds::BODY_BYTES),
            ("limits.response_bytes", limits.response_bytes, bounds::BODY_BYTES),
            ("limits.table_elements", limits.table_elements, bounds::TABLE_ELEMENTS),
            ("limits.keys", limits.keys, bounds::KEYS),
            ("limits.effects", limits.effects, bounds::EFFECTS),
            ("limits.kv_bytes", limits.kv_bytes, bounds::KV_BYTES),
            ("start_deadline_s", u64::from(self.start_deadline_s) * 1_000, bounds::START_DEADLINE_MS),
            ("timing.window_s", u64::from(self.timing.window_s) * 1_000, bounds::WINDOW_MS),
            ("timing.schedule (how many)", self.timing.schedule.len() as u64, bounds::EXPRESSIONS),
            ("timing.closed (how many)", self.timing.closed.entries(), bounds::CLOSED),
            ("max_launches", self.max_launches.unwrap_or(1), bounds::LAUNCHES),
            ("retry.attempts", u64::from(self.retry.attempts), bounds::ATTEMPTS),
            ("retry.backoff_ms", self.retry.backoff_ms, bounds::BACKOFF_MS),
            ("retry.backoff_max_ms", self.retry.backoff_max_ms, bounds::BACKOFF_MS),
            ("catch_up.all", catch_up, bounds::CATCH_UP),
            ("args and env (bytes)", argument_bytes as u64, bounds::ARGUMENT_BYTES),
        ]
        .into_iter()
        .filter(|(_, value, bounds)| !bounds.contains(value))
        .map(|(name, value, bounds)| format!("`{name}` is {value}, expected {} to {}", bounds.start(), bounds.end()))
        .chain(self.args.iter().filter_map(|argument| check_argument(argument).err()))
        .chain(self.env.iter().filter_map(|(name, value)| check_variable(name, value).err()))
        .collect()
    }
}

/// Whether a program in C can be given that argument.
///
/// # Errors
/// A sentence.
pub fn check_argument(argument: &str) -> Result<(), String> {
    if argument.contains('\0') { Err(format!("the argument {argument:?} has a NUL in it")) } else { Ok(()) }
}

/// Whether a job may set that variable of its environment.
///
/// # Errors
/// A sentence.
pub fn check_variable(name: &str, value: &str) -> Result<(), String> {
    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
        return Err(format!(
            "{name:?} = {value:?} is no variable; a name is not empty and has no `=`, and neither has a NUL"
        ));
    }
    if name.starts_with("TICKHOST_") {
        return Err(format!(
            "the variable `{name}` is the host's own, as all that begin with `TICKHOST_`; choose another name"
        ));
    }
    Ok(())
}

/// What a run may use. Every one is enforced.
///
/// Those that came later are left out of a stored job where they have the value that they had before they could be
/// declared. That value never changes; a new default would be written out.
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
    /// Elements of tables, over all tables of the component. CPython begins with about 8,000.
    #[serde(default = "table_elements", skip_serializing_if = "is_table_elements")]
    pub table_elements: u64,
    /// Keys made. JavaScript does not drop its keys while it runs.
    #[serde(default = "keys", skip_serializing_if = "is_keys")]
    pub keys: u64,
    /// Effects: requests with a key, and changes of the key-value store. Each is an entry of the ledger.
    #[serde(default = "effects", skip_serializing_if = "is_effects")]
    pub effects: u64,
    /// Bytes written to the key-value store, names included: every node holds them in memory.
    #[serde(default = "kv_bytes", skip_serializing_if = "is_kv_bytes")]
    pub kv_bytes: u64,
}

fn table_elements() -> u64 {
    100_000
}

fn is_table_elements(value: &u64) -> bool {
    *value == table_elements()
}

fn keys() -> u64 {
    100_000
}

fn is_keys(value: &u64) -> bool {
    *value == keys()
}

fn effects() -> u64 {
    10_000
}

fn is_effects(value: &u64) -> bool {
    *value == effects()
}

fn kv_bytes() -> u64 {
    64 << 20
}

fn is_kv_bytes(value: &u64) -> bool {
    *value == kv_bytes()
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
            table_elements: table_elements(),
            keys: keys(),
            effects: effects(),
            kv_bytes: kv_bytes(),
        }
    }
}

impl Limits {
    /// All of them by the names that a manifest has, in bytes, milliseconds, or what is counted.
    pub fn amounts(&self) -> [(&'static str, u64); 11] {
        [
            ("memory", self.memory_bytes),
            ("cpu", self.cpu_ms),
            ("wall", self.wall_ms),
            ("log", self.log_bytes),
            ("http_calls", self.http_calls),
            ("request_body", self.request_bytes),
            ("response_body", self.response_bytes),
            ("table_elements", self.table_elements),
            ("keys", self.keys),
            ("effects", self.effects),
            ("kv_bytes", self.kv_bytes),
        ]
    }

    /// Whether it declares one of those that came later.
    pub(crate) fn has_later(&self) -> bool {
        let &Self { table_elements, keys, effects, kv_bytes, .. } = self;
        let before = Self::default();
        (table_elements, keys, effects, kv_bytes)
            != (before.table_elements, before.keys, before.effects, before.kv_bytes)
    }
}
