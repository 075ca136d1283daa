//! The life of a launch: one total match.
//!
//! ```text
//! Due --intended--> Intended --started--> Running --ended--> Closed(verdict)
//!  ^                   |                     |
//!  |<--never started---+                     +--may run again--> AwaitingRetry --intended--> Intended
//! ```

use serde::{Deserialize, Serialize};

use crate::{
    ids::Stamp,
    spec::{OnUnknown, Retry, RetryWhen},
};

/// Where a launch stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Decided; no executor yet.
    Due,
    /// Committed to one executor; nothing is known of its start.
    Intended,
    /// Its start is committed.
    Running,
    /// Another attempt follows.
    AwaitingRetry {
        /// Not before this instant.
        at: Stamp,
        /// The verdict if there is none.
        otherwise: Verdict,
    },
    /// Over.
    Closed(Verdict),
}

impl Status {
    /// Whether the launch still counts for overlap and re-runs.
    pub fn is_open(&self) -> bool {
        !matches!(self, Self::Closed(_))
    }

    /// Whether a run of it may be alive.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Intended | Self::Running)
    }
}

/// What became of a tick. Every tick has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A run returned ok.
    Succeeded,
    /// The last run failed, trapped, met a limit or was stopped.
    Failed,
    /// It started, and its executor lost it.
    Lost,
    /// Nobody can say whether it started.
    Unknown,
    /// It was not launched.
    Skipped(SkipReason),
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Succeeded => f.write_str("succeeded"),
            Self::Failed => f.write_str("failed"),
            Self::Lost => f.write_str("lost"),
            Self::Unknown => f.write_str("unknown"),
            Self::Skipped(reason) => write!(f, "skipped({reason})"),
        }
    }
}

/// Why a tick was not launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SkipReason {
    /// An earlier launch was open.
    Overlap,
    /// The job was paused.
    Paused,
    /// No run could begin within the start deadline.
    StartDeadline,
    /// The host's clock had stepped ahead and was not believed yet.
    Clock,
    /// It was missed, and the catch-up policy leaves it out.
    CatchUp,
    /// It falls on a day that a calendar closes.
    Excluded,
    /// The job was deleted before it could begin.
    Deleted,
    /// Its namespace had used up what its quota allows until the start deadline.
    Quota,
    /// The cluster was restored from a backup that was taken before: it may have been launched, and nobody knows.
    Restored,
}

impl SkipReason {
    /// The verdict of a tick that was not launched for this reason, or of which it is not known.
    pub fn verdict(self) -> Verdict {
        match self {
            Self::Restored => Verdict::Unknown,
            other => Verdict::Skipped(other),
        }
    }
}

impl std::fmt::Display for SkipReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Overlap => "overlap",
            Self::Paused => "paused",
            Self::StartDeadline => "start-deadline",
            Self::Clock => "clock",
            Self::CatchUp => "catch-up",
            Self::Excluded => "excluded",
            Self::Deleted => "deleted",
            Self::Quota => "quota",
            Self::Restored => "restored",
        })
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It returned ok, with a text to show.
    Succeeded {
        /// What the guest returned.
        message: Option<String>,
    },
    /// It returned a failure.
    Failed {
        /// What the guest said.
        message: String,
        /// Whether the guest asked for another attempt.
        retry: bool,
    },
    /// It trapped, or could not be instantiated.
    Trapped {
        /// The trap and the guest's own functions.
        message: String,
    },
    /// It met a declared limit.
    OverLimit {
        /// The limit's name in the manifest.
        limit: String,
        /// What was used and what was declared.
        message: String,
    },
    /// It was stopped by the host: replaced, deleted, or no longer entitled to act.
    Revoked {
        /// Why.
        message: String,
    },
    /// The executor has proof that no guest instruction ran, and will refuse this run for ever.
    NeverStarted {
        /// Where that is known from.
        evidence: String,
    },
    /// It ran, and its executor lost it.
    Lost {
        /// Where that is known from.
        evidence: String,
    },
    /// The executor that could say is gone.
    Unanswered {
        /// What was asked.
        evidence: String,
    },
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Succeeded { message: Some(message) } => write!(f, "succeeded: {message}"),
            Self::Succeeded { message: None } => f.write_str("succeeded"),
            Self::Failed { message, retry } => {
                write!(f, "failed: {message}{}", if *retry { " (asks for another attempt)" } else { "" })
            }
            Self::Trapped { message } => write!(f, "trapped: {message}"),
            Self::OverLimit { limit, message } => write!(f, "over its limit `{limit}`: {message}"),
            Self::Revoked { message } => write!(f, "stopped: {message}"),
            Self::NeverStarted { evidence } => write!(f, "never started: {evidence}"),
            Self::Lost { evidence } => write!(f, "lost: {evidence}"),
            Self::Unanswered { evidence } => write!(f, "unknown: {evidence}"),
        }
    }
}

/// What happens to a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A run was committed to an executor.
    Intended,
    /// The executor accepted it and began.
    Started,
    /// The run is over, or is known to be lost.
    Ended {
        /// How.
        outcome: Outcome,
        /// How many attempts have started, this one included: those that never did count for nothing.
        started: u32,
        /// The verdict of the last attempt before it that started.
        earlier: Option<Verdict>,
        /// When that became known.
        at: Stamp,
    },
    /// It is not to be launched after all.
    Withdrawn(SkipReason),
}

/// What the owner chose, as far as a launch's life depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Skip or repeat.
    pub on_unknown: OnUnknown,
    /// Further attempts.
    pub retry: Retry,
}

/// An event that cannot happen in that status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} cannot happen to a launch that is {status:?}")]
pub struct Illegal {
    /// Where the launch stood.
    pub status: Status,
    /// What was to happen.
    pub event: Event,
}

/// The status after the event.
///
/// # Errors
/// The pair, where the event cannot happen in that status.
pub fn next(status: &Status, event: &Event, policy: &Policy) -> Result<Status, Illegal> {
    use Event::*;
    match (status, event) {
        (Status::Due | Status::AwaitingRetry { .. }, Intended) => Ok(Status::Intended),
        (Status::Intended, Started) => Ok(Status::Running),
        (Status::Intended | Status::Running, Ended { outcome, started, earlier, at }) => {
            Ok(settle(outcome, *started, *earlier, *at, policy))
        }
        (Status::Due, Withdrawn(reason)) => Ok(Status::Closed(reason.verdict())),
        (Status::AwaitingRetry { .. }, Withdrawn(SkipReason::Restored)) => Ok(Status::Closed(Verdict::Unknown)),
        (Status::AwaitingRetry { otherwise, .. }, Withdrawn(_)) => Ok(Status::Closed(*otherwise)),
        (Status::Intended | Status::Running | Status::Closed(_), Intended)
        | (Status::Due | Status::Running | Status::AwaitingRetry { .. } | Status::Closed(_), Started)
        | (Status::Due | Status::AwaitingRetry { .. } | Status::Closed(_), Ended { .. })
        | (Status::Intended | Status::Running | Status::Closed(_), Withdrawn(_)) => {
            Err(Illegal { status: status.clone(), event: event.clone() })
        }
    }
}

/// The verdict of a launch whose last started attempt ended so. An attempt that never started has none; it counts as
/// unknown where somebody asks all the same.
pub(crate) fn verdict(outcome: &Outcome) -> Verdict {
    match outcome {
        Outcome::Succeeded { .. } => Verdict::Succeeded,
        Outcome::Failed { .. } | Outcome::Trapped { .. } | Outcome::OverLimit { .. } | Outcome::Revoked { .. } => {
            Verdict::Failed
        }
        Outcome::Lost { .. } => Verdict::Lost,
        Outcome::Unanswered { .. } | Outcome::NeverStarted { .. } => Verdict::Unknown,
    }
}

/// With `skip`, another attempt follows only where the first provably never started or itself asked for it;
/// with `repeat`, also where it trapped, met a limit, or was lost.
fn settle(outcome: &Outcome, started: u32, earlier: Option<Verdict>, at: Stamp, policy: &Policy) -> Status {
    let repeat = policy.on_unknown == OnUnknown::Repeat;
    let again = match outcome {
        // It stands where it stood before: due, or between two attempts.
        Outcome::NeverStarted { .. } => {
            return earlier.map_or(Status::Due, |otherwise| Status::AwaitingRetry { at, otherwise });
        }
        Outcome::Succeeded { .. } | Outcome::Revoked { .. } => false,
        Outcome::Failed { retry, .. } => *retry,
        Outcome::Trapped { .. } | Outcome::OverLimit { .. } => repeat && policy.retry.when == RetryWhen::Failed,
        Outcome::Lost { .. } | Outcome::Unanswered { .. } => repeat,
    };
    let verdict = verdict(outcome);
    if again && started < policy.retry.attempts {
        Status::AwaitingRetry { at: at.plus_ms(policy.retry.wait_ms(started)), otherwise: verdict }
    } else {
        Status::Closed(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKIP: Policy = Policy {
        on_unknown: OnUnknown::Skip,
        retry: Retry { attempts: 3, backoff_ms: 100, backoff_max_ms: 150, when: RetryWhen::Failed },
    };
    const REPEAT: Policy = Policy { on_unknown: OnUnknown::Repeat, ..SKIP };

    fn ended(outcome: Outcome, attempt: u32) -> Event {
        Event::Ended { outcome, started: attempt, earlier: None, at: Stamp(1_000) }
    }

    fn outcomes() -> Vec<Outcome> {
        let text = String::new;
        vec![
            Outcome::Succeeded { message: None },
            Outcome::Failed { message: text(), retry: false },
            Outcome::Failed { message: text(), retry: true },
            Outcome::Trapped { message: text() },
            Outcome::OverLimit { limit: text(), message: text() },
            Outcome::Revoked { message: text() },
            Outcome::NeverStarted { evidence: text() },
            Outcome::Lost { evidence: text() },
            Outcome::Unanswered { evidence: text() },
        ]
    }

    /// Which outcomes lead to another attempt, and which verdict they give otherwise.
    #[test]
    fn skip_repeats_only_what_never_started_or_asked() {
        let verdicts = |policy: &Policy, attempt| -> Vec<Status> {
            outcomes()
                .into_iter()
                .map(|o| next(&Status::Running, &ended(o, attempt), policy).expect("a run may end"))
                .collect()
        };
        let retry = |otherwise, at| Status::AwaitingRetry { at: Stamp(at), otherwise };
        use Verdict::*;
        assert_eq!(
            verdicts(&SKIP, 1),
            [
                Status::Closed(Succeeded),
                Status::Closed(Failed),
                retry(Failed, 1_100),
                Status::Closed(Failed),
                Status::Closed(Failed),
                Status::Closed(Failed),
                Status::Due,
                Status::Closed(Lost),
                Status::Closed(Unknown),
            ]
        );
        assert_eq!(
            verdicts(&REPEAT, 2),
            [
                Status::Closed(Succeeded),
                Status::Closed(Failed),
                retry(Failed, 1_150),
                retry(Failed, 1_150),
                retry(Failed, 1_150),
                Status::Closed(Failed),
                Status::Due,
                retry(Lost, 1_150),
                retry(Unknown, 1_150),
            ]
        );
        let asked = Policy { retry: Retry { when: RetryWhen::Asked, ..REPEAT.retry }, ..REPEAT };
        assert_eq!(verdicts(&asked, 2)[2..5], [retry(Failed, 1_150), Status::Closed(Failed), Status::Closed(Failed)]);
        assert_eq!(verdicts(&asked, 2)[7..], verdicts(&REPEAT, 2)[7..], "what is lost is repeated all the same");
        let exhausted = verdicts(&REPEAT, 3);
        assert!(!exhausted.iter().any(|s| matches!(s, Status::AwaitingRetry { .. })), "{exhausted:?}");
    }

    /// Every short history: with `skip`, a second `Started` comes only after the guest asked for it.
    #[test]
    fn no_history_starts_a_skip_run_twice_unasked() {
        let mut events: Vec<Event> = outcomes().into_iter().map(|o| ended(o, 1)).collect();
        events.extend([Event::Intended, Event::Started, Event::Withdrawn(SkipReason::Overlap)]);
        fn explore(status: &Status, started: bool, asked: bool, depth: u32, events: &[Event], seen: &mut u64) {
            *seen += 1;
            if depth == 0 {
                return;
            }
            for event in events {
                let Ok(after) = next(status, event, &SKIP) else { continue };
                let mut now_asked = asked;
                match event {
                    Event::Started => assert!(!started || asked, "{status:?} started twice"),
                    Event::Ended { outcome: Outcome::Failed { retry: true, .. }, .. } => now_asked = true,
                    // Proof that no instruction ran: only possible before the start was committed.
                    Event::Ended { outcome: Outcome::NeverStarted { .. }, .. } if *status == Status::Running => {
                        continue;
                    }
                    _ => {}
                }
                let now_started = started || *event == Event::Started;
                explore(&after, now_started, now_asked, depth - 1, events, seen);
            }
        }
        let mut seen = 0;
        explore(&Status::Due, false, false, 12, &events, &mut seen);
        assert!(seen > 1_000, "only {seen} histories");
    }

    /// A second attempt that never started does not make the first one undone.
    #[test]
    fn what_never_started_leaves_the_launch_where_it_stood() {
        let never = Outcome::NeverStarted { evidence: String::new() };
        let event = Event::Ended { outcome: never, started: 2, earlier: Some(Verdict::Lost), at: Stamp(1_000) };
        let between = Status::AwaitingRetry { at: Stamp(1_000), otherwise: Verdict::Lost };
        assert_eq!(next(&Status::Intended, &event, &REPEAT), Ok(between.clone()));
        let withdrawn = next(&between, &Event::Withdrawn(SkipReason::Deleted), &REPEAT);
        assert_eq!(withdrawn, Ok(Status::Closed(Verdict::Lost)));
    }

    #[test]
    fn a_closed_launch_stays_closed() {
        let mut events: Vec<Event> = outcomes().into_iter().map(|o| ended(o, 1)).collect();
        events.extend([Event::Intended, Event::Started, Event::Withdrawn(SkipReason::Paused)]);
        let closed = Status::Closed(Verdict::Succeeded);
        for event in events {
            let refused = next(&closed, &event, &REPEAT).expect_err("closed is final");
            assert_eq!((refused.status, refused.event), (closed.clone(), event));
        }
    }
}
