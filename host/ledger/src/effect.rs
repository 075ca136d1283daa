//! The effect journal: what a run asked to be done, and what came back.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    ids::{Digest, JobName, Stamp, TickAt},
    spec::OnUnknown,
};

/// Where an effect's row stands: its key already tells job, tick and nonce apart, and a re-run that asked for
/// the same keys finds the same rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EffectId {
    /// The job.
    pub job: JobName,
    /// The tick.
    pub tick: TickAt,
    /// The idempotency key.
    pub key: Uuid,
}

/// One side-effecting host call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// For a person: `POST http://…`, `kv set total`.
    pub what: String,
    /// Of the whole payload: the same key with another payload is refused.
    pub fingerprint: Digest,
    /// When its intent was committed, and by which attempt of which launch.
    pub intended: Vec<EffectIntent>,
    /// What came back; `None` while it is in doubt.
    pub result: Option<EffectResult>,
}

impl Effect {
    /// What it counts for in a namespace's quota: its texts and bodies, and some bytes for what is of fixed size.
    pub(crate) fn bytes(&self) -> u64 {
        const FIXED: usize = 100;
        let result = match &self.result {
            Some(EffectResult::Http(answer)) => {
                let headers: usize = answer.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
                headers + answer.body.as_ref().map_or(0, |body| body.0.len())
            }
            Some(EffectResult::NoAnswer { message, .. } | EffectResult::NotSent { message }) => message.len(),
            Some(EffectResult::Kv { .. }) | None => 0,
        };
        (FIXED * (1 + self.intended.len()) + self.what.len() + result) as u64
    }
}

/// One time an effect was about to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectIntent {
    /// The re-run's id, if it was one.
    pub rerun: Option<Uuid>,
    /// The attempt.
    pub attempt: u32,
    /// Which of its calls.
    pub call: u32,
    /// The leader's stamp.
    pub at: Stamp,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EffectResult {
    /// The receiver answered.
    Http(HttpAnswer),
    /// No answer came: it may have been received.
    NoAnswer {
        /// What happened instead.
        message: String,
        /// It ran into a timeout.
        timeout: bool,
    },
    /// Provably nothing was sent.
    NotSent {
        /// Why.
        message: String,
    },
    /// The key-value store did it, in this very entry.
    Kv {
        /// The value after an increment.
        value: Option<i64>,
    },
}

/// An HTTP response as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The headers, in order.
    pub headers: Vec<(String, String)>,
    /// The body, up to [`JOURNAL_BODY_BYTES`]; `None` where it was longer and only its digest is kept.
    pub body: Option<ByteBuf>,
    /// Of the whole body.
    pub body_digest: Digest,
}

/// Bytes of a response's body that the journal keeps.
pub const JOURNAL_BODY_BYTES: usize = 64 << 10;

/// A byte string of a row: encoded as bytes, not as an array of numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ByteBuf(pub Vec<u8>);

impl Serialize for ByteBuf {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for ByteBuf {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = ByteBuf;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a byte string")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<ByteBuf, E> {
                Ok(ByteBuf(bytes.to_vec()))
            }

            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<ByteBuf, E> {
                Ok(ByteBuf(bytes))
            }
        }
        d.deserialize_byte_buf(Visitor)
    }
}

impl EffectResult {
    /// Whether this settles the effect. A conclusive result is returned for ever after and nothing is sent
    /// again; after an inconclusive one the same request may be sent again under the same key.
    pub fn is_conclusive(&self) -> bool {
        match self {
            // 408 Request Timeout, 425 Too Early, 429 Too Many Requests and all 5xx: try again later.
            Self::Http(answer) => !matches!(answer.status, 408 | 425 | 429 | 500..),
            Self::Kv { .. } => true,
            Self::NoAnswer { .. } | Self::NotSent { .. } => false,
        }
    }

    /// Whether the receiver certainly did not do it, or said itself that it may be asked again.
    fn is_safe_to_send_again(&self) -> bool {
        !matches!(self, Self::NoAnswer { .. })
    }
}

/// What a run is told about an effect it wants to carry out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EffectAnswer {
    /// The intent is committed: send it.
    Go,
    /// It was done before; this is what came back then.
    Replay(EffectResult),
    /// It may have been done before and nobody knows; the job says `skip`.
    InDoubt,
    /// This key was used with another payload.
    PayloadChanged,
    /// The namespace's quota has no room for it, in a sentence.
    OverQuota(String),
}

/// Decides what becomes of an effect whose key may have been seen before.
///
/// `resend` says that the operator ordered this run to finish what an earlier one left in doubt.
pub fn admit(earlier: Option<&Effect>, fingerprint: &Digest, on_unknown: OnUnknown, resend: bool) -> EffectAnswer {
    let Some(effect) = earlier else { return EffectAnswer::Go };
    if effect.fingerprint != *fingerprint {
        return EffectAnswer::PayloadChanged;
    }
    match &effect.result {
        Some(result) if result.is_conclusive() => EffectAnswer::Replay(result.clone()),
        Some(result) if result.is_safe_to_send_again() => EffectAnswer::Go,
        _ if on_unknown == OnUnknown::Repeat || resend => EffectAnswer::Go,
        _ => EffectAnswer::InDoubt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(result: Option<EffectResult>) -> Effect {
        Effect { what: "POST".into(), fingerprint: Digest([1; 32]), intended: Vec::new(), result }
    }

    fn http(status: u16) -> Option<EffectResult> {
        let answer = HttpAnswer { status, headers: vec![], body: None, body_digest: Digest([0; 32]) };
        Some(EffectResult::Http(answer))
    }

    /// Every kind of earlier result, under `skip`, `repeat`, and `skip` with the operator's order.
    #[test]
    fn what_is_settled_is_replayed_and_what_is_in_doubt_is_the_owners_choice() {
        let no_answer = Some(EffectResult::NoAnswer { message: String::new(), timeout: true });
        let not_sent = Some(EffectResult::NotSent { message: String::new() });
        for (result, skip, repeat, ordered) in [
            (None, "in-doubt", "go", "go"),
            (http(200), "replay", "replay", "replay"),
            (http(404), "replay", "replay", "replay"),
            (http(408), "go", "go", "go"),
            (http(425), "go", "go", "go"),
            (http(429), "go", "go", "go"),
            (http(500), "go", "go", "go"),
            (http(599), "go", "go", "go"),
            (no_answer, "in-doubt", "go", "go"),
            (not_sent, "go", "go", "go"),
            (Some(EffectResult::Kv { value: Some(3) }), "replay", "replay", "replay"),
        ] {
            let effect = effect(result);
            let found = [(OnUnknown::Skip, false), (OnUnknown::Repeat, false), (OnUnknown::Skip, true)].map(
                |(policy, resend)| match admit(Some(&effect), &Digest([1; 32]), policy, resend) {
                    EffectAnswer::Go => "go",
                    EffectAnswer::Replay(_) => "replay",
                    EffectAnswer::InDoubt => "in-doubt",
                    EffectAnswer::PayloadChanged => "payload-changed",
                    EffectAnswer::OverQuota(_) => "over-quota",
                },
            );
            assert_eq!(found, [skip, repeat, ordered], "{:?}", effect.result);
        }
    }

    #[test]
    fn another_payload_under_a_used_key_is_refused_whatever_came_back() {
        for result in [None, http(200), http(503)] {
            let answer = admit(Some(&effect(result)), &Digest([2; 32]), OnUnknown::Repeat, true);
            assert_eq!(answer, EffectAnswer::PayloadChanged);
        }
    }
}
