//! What every way to HTTP goes through: the check against the manifest and the limits, the journal, the way out.

use std::{
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;
use tickhost_ledger::{
    Digest,
    effect::{ByteBuf, EffectAnswer, EffectResult, HttpAnswer, JOURNAL_BODY_BYTES},
    spec::Limits,
};
use url::Url;
use uuid::Uuid;

use super::CallError;
use crate::{
    bindings::tickhost::job::errors::Code,
    egress::{AllowRule, Answer, Destination, Outward, Patience, SendError},
    journal::{EffectRequest, Journal},
    run::RunRequest,
};

/// Bytes of a URL: it is kept with the effect. What most servers take.
const URL_BYTES_MAX: usize = 8 << 10;

/// Bytes of a response's headers that the journal keeps. Arbitrary.
const JOURNAL_HEADER_BYTES: usize = 8 << 10;

/// The key's own header. Only a key may set it.
pub(super) const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// What the host itself says about a request's framing and destination, and the key's own header.
const HOSTS_OWN_HEADERS: [&str; 9] = [
    "connection",
    "content-length",
    "host",
    "idempotency-key",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// A request as a guest asks for it.
pub(super) struct Asked<'a> {
    pub(super) method: &'a str,
    pub(super) url: &'a str,
    pub(super) headers: &'a [(String, String)],
    pub(super) body: Vec<u8>,
    pub(super) patience: Patience,
}

/// A request that has been checked.
pub(super) struct Checked {
    pub(super) what: String,
    pub(super) fingerprint: Digest,
    pub(super) request: Request<Full<Bytes>>,
    to: Destination,
    patience: Patience,
}

/// An answer that may have come from the journal.
pub(super) struct Answered {
    pub(super) answer: Answer,
    pub(super) replayed: bool,
    /// The same request again is further work, and no other try of this one.
    pub(super) is_settled: bool,
}

/// What one run may send, and has sent.
pub(crate) struct Sender {
    request: Arc<RunRequest>,
    allow: Vec<AllowRule>,
    journal: Arc<dyn Journal>,
    outward: Outward,
    calls: AtomicU64,
    effects: AtomicU64,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    /// The last limit that a call met, and the message.
    met: Mutex<Option<(&'static str, String)>>,
}

/// Whether a method changes nothing, so that there is nothing to deduplicate.
pub(super) fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

impl Sender {
    pub(crate) fn new(request: Arc<RunRequest>, journal: Arc<dyn Journal>, outward: Outward) -> Self {
        // Rules were checked when the job was stored; one that no longer reads allows nothing.
        let allow = request.allow_http.iter().filter_map(|rule| rule.parse().ok()).collect();
        let (calls, effects, request_bytes, response_bytes, met) = Default::default();
        Self { request, allow, journal, outward, calls, effects, request_bytes, response_bytes, met }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.request.limits
    }

    /// HTTP requests that were asked for.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Effects that were asked for, changes of the key-value store included.
    pub(crate) fn effects(&self) -> u64 {
        self.effects.load(Relaxed)
    }

    /// Counts an effect.
    pub(super) fn count_effect(&self) -> Result<(), CallError> {
        let (effects, declared) = (self.effects.fetch_add(1, Relaxed) + 1, self.request.limits.effects);
        if effects > declared { Err(self.over("effects", "effects", effects, declared)) } else { Ok(()) }
    }

    /// Bytes of the largest request body.
    pub(crate) fn request_bytes(&self) -> u64 {
        self.request_bytes.load(Relaxed)
    }

    /// Bytes of the largest response body.
    pub(crate) fn response_bytes(&self) -> u64 {
        self.response_bytes.load(Relaxed)
    }

    /// The last limit that a call met, and what was said of it.
    pub(crate) fn met(&self) -> Option<(&'static str, String)> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn check(&self, asked: Asked<'_>) -> Result<Checked, CallError> {
        let Asked { method, url: text, headers, body, patience } = asked;
        let invalid = |message: String| CallError::new(Code::Invalid, message);
        let parsed = Method::from_str(method).map_err(|_| invalid(format!("`{method}` is no HTTP method")))?;
        if text.len() > URL_BYTES_MAX {
            return Err(invalid(format!("a URL of {} bytes; at most {URL_BYTES_MAX}", text.len())));
        }
        let url = Url::parse(text).map_err(|e| invalid(format!("`{text}` is no URL: {e}")))?;
        let to = self.check_destination(&url)?;
        let (length, limits) = (body.len() as u64, self.request.limits);
        if length > limits.request_bytes {
            return Err(self.over("request_bytes", "bytes of a request's body", length, limits.request_bytes));
        }
        self.request_bytes.fetch_max(length, Relaxed);
        let calls = self.calls.fetch_add(1, Relaxed) + 1;
        if calls > limits.http_calls {
            return Err(self.over("http_calls", "HTTP calls", calls, limits.http_calls));
        }
        let mut request = Request::new(Full::default());
        *request.method_mut() = parsed;
        *request.uri_mut() = url.as_str().parse().map_err(|e| invalid(format!("`{text}` is no URI: {e}")))?;
        for (name, value) in headers {
            let (name, value) = check_header(name, value).map_err(invalid)?;
            request.headers_mut().append(name, value);
        }
        let fingerprint = fingerprint(method, text, headers, &body);
        *request.body_mut() = Full::from(body);
        let total = patience.total.min(Duration::from_millis(limits.wall_ms));
        let patience = Patience { total, ..patience };
        Ok(Checked { to, request, patience, what: format!("{method} {text}"), fingerprint })
    }

    fn check_destination(&self, url: &Url) -> Result<Destination, CallError> {
        if !url.username().is_empty() || url.password().is_some() {
            let message = "a URL with a user name in it; send an `authorization` header instead";
            return Err(CallError::new(Code::Invalid, message));
        }
        let Some(to) = Destination::of(url) else {
            let message = format!("`{url}` is neither http nor https");
            return Err(CallError::new(Code::Invalid, message));
        };
        if !self.allow.iter().any(|rule| rule.allows(&to)) {
            let job = &self.request.run.launch.job;
            let message = format!(
                "job `{job}` may not send to `{to}`; to allow it, add `allow = [\"{to}\"]` to [job.{}] in its manifest",
                job.name
            );
            return Err(CallError::new(Code::Denied, message));
        }
        self.outward.check_literal(&to).map_err(|why| CallError::new(Code::Denied, why))?;
        Ok(to)
    }

    /// An error that names the limit, and remembers it in case the guest ends over it.
    pub(super) fn over(&self, limit: &'static str, what: &str, used: u64, declared: u64) -> CallError {
        let message = format!("{what}: {used} wanted, the job declares `{limit} = {declared}`");
        *self.met.lock().unwrap_or_else(PoisonError::into_inner) = Some((limit, message.clone()));
        CallError::new(Code::OverLimit, message)
    }

    /// The error for a request's body that goes on beyond its limit.
    pub(super) fn over_request_bytes(&self, at_least: u64) -> CallError {
        self.over("request_bytes", "bytes of a request's body", at_least, self.request.limits.request_bytes)
    }

    /// Sends what changes nothing.
    pub(super) async fn read(&self, checked: Checked) -> Result<Answer, CallError> {
        let exchange = self.exchange(checked).await;
        self.given(exchange)
    }

    /// Sends what may change something, once its intent is committed; or gives back what came of it before. `key` goes
    /// out with it, unless the request has a key of its own.
    pub(super) async fn effect(&self, key: Uuid, mut checked: Checked) -> Result<Answered, CallError> {
        self.count_effect()?;
        let what = checked.what.clone();
        let effect = EffectRequest { key, what: what.clone(), fingerprint: checked.fingerprint };
        match self.journal.intend(effect).await? {
            EffectAnswer::Go => {}
            EffectAnswer::Replay(EffectResult::Http(answer)) => return replayed(answer),
            EffectAnswer::Replay(other) => {
                return Err(CallError::new(Code::Other, format!("key {key} recorded no HTTP answer: {other:?}")));
            }
            EffectAnswer::InDoubt => {
                let message = format!(
                    "`{what}` with key {key} may have been sent by an earlier attempt, and no answer is known; \
                     the job says `on_unknown = \"skip\"`, so it is not sent again"
                );
                return Err(CallError::new(Code::InDoubt, message));
            }
            EffectAnswer::PayloadChanged => {
                let message =
                    format!("key {key} was used before for another request than this `{what}`; nothing was sent");
                return Err(CallError::new(Code::PayloadChanged, message));
            }
            EffectAnswer::OverQuota(why) => return Err(CallError::new(Code::OverLimit, why)),
        }
        // A structured-field string, as the header's specification has it.
        let header = HeaderValue::from_str(&format!("\"{key}\"")).map_err(wasmtime::Error::new)?;
        checked.request.headers_mut().entry(KEY_HEADER).or_insert(header);
        let exchange = self.exchange(checked).await;
        let result = kept(&exchange);
        let is_settled = result.is_conclusive();
        self.journal.result(key, result);
        self.given(exchange).map(|answer| Answered { answer, replayed: false, is_settled })
    }

    async fn exchange(&self, checked: Checked) -> Result<Answer, SendError> {
        let Checked { to, request, patience, .. } = checked;
        let answer = self.outward.exchange(&to, request, &patience, self.request.limits.response_bytes).await?;
        self.response_bytes.fetch_max(answer.body.len() as u64, Relaxed);
        Ok(answer)
    }

    /// What the guest is told.
    fn given(&self, exchange: Result<Answer, SendError>) -> Result<Answer, CallError> {
        let late = |timeout| if timeout { Code::Timeout } else { Code::Unavailable };
        exchange.map_err(|error| match error {
            SendError::TooLong { at_least, .. } => {
                let declared = self.request.limits.response_bytes;
                self.over("response_bytes", "bytes of a response's body", at_least, declared)
            }
            SendError::NoAnswer { message, timeout } => CallError::new(late(timeout), message),
            SendError::NotSent { message, timeout } => {
                CallError::new(late(timeout), format!("nothing was sent: {message}"))
            }
            SendError::Prohibited { message } => CallError::new(Code::Denied, message),
        })
    }
}

/// What the journal keeps.
fn kept(exchange: &Result<Answer, SendError>) -> EffectResult {
    let answer = |status: u16, headers: &[(String, String)], body: Option<&Vec<u8>>| {
        EffectResult::Http(HttpAnswer {
            status,
            headers: kept_headers(headers),
            body: body.filter(|b| b.len() <= JOURNAL_BODY_BYTES).map(|b| ByteBuf(b.clone())),
            body_digest: Digest::of(body.map_or(&[], Vec::as_slice)),
        })
    };
    match exchange {
        Ok(Answer { status, headers, body }) => answer(*status, headers, Some(body)),
        Err(SendError::TooLong { status, headers, .. }) => answer(*status, headers, None),
        Err(SendError::NoAnswer { message, timeout }) => {
            EffectResult::NoAnswer { message: message.clone(), timeout: *timeout }
        }
        Err(SendError::NotSent { message, .. } | SendError::Prohibited { message }) => {
            EffectResult::NotSent { message: message.clone() }
        }
    }
}

/// The first headers, as many as are kept.
fn kept_headers(headers: &[(String, String)]) -> Vec<(String, String)> {
    let mut bytes = 0;
    let fits = headers.iter().take_while(|(name, value)| {
        bytes += name.len() + value.len();
        bytes <= JOURNAL_HEADER_BYTES
    });
    fits.cloned().collect()
}

fn replayed(answer: HttpAnswer) -> Result<Answered, CallError> {
    let HttpAnswer { status, headers, body, .. } = answer;
    let Some(ByteBuf(body)) = body else {
        let message = format!(
            "result-not-kept: an earlier attempt was answered with status {status}; its body was longer than the {JOURNAL_BODY_BYTES} bytes that are kept"
        );
        return Err(CallError::new(Code::Other, message));
    };
    Ok(Answered { answer: Answer { status, headers, body }, replayed: true, is_settled: true })
}

fn check_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let header = HeaderName::from_str(name).map_err(|_| format!("`{name:?}` is no header name"))?;
    if HOSTS_OWN_HEADERS.contains(&header.as_str()) {
        return Err(format!("the header `{header}` is the host's own; leave it out"));
    }
    let value = Some(value)
        .filter(|value| value.is_ascii())
        .and_then(|value| HeaderValue::from_str(value).ok())
        .ok_or_else(|| format!("the header `{header}` has a value with control or non-ASCII characters"))?;
    Ok((header, value))
}

/// Of all that the receiver sees. Each part is preceded by its length.
fn fingerprint(method: &str, url: &str, headers: &[(String, String)], body: &[u8]) -> Digest {
    let mut bytes = Vec::new();
    let mut push = |part: &[u8]| {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    };
    push(method.as_bytes());
    push(url.as_bytes());
    for (name, value) in headers {
        push(name.to_ascii_lowercase().as_bytes());
        push(value.as_bytes());
    }
    push(body);
    Digest::of(&bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn headers_that_are_the_hosts_or_malformed_are_refused() {
        for (name, value) in [
            ("Host", "evil.test"),
            ("Connection", "close"),
            ("Transfer-Encoding", "chunked"),
            ("Content-Length", "3"),
            ("Idempotency-Key", "mine"),
            ("x\nevil", "1"),
            ("x-name", "caf\u{e9}"),
            ("x-name", "a\r\nb: c"),
        ] {
            assert!(check_header(name, value).is_err(), "{name}");
        }
        assert!(check_header("Content-Type", "application/json").is_ok());
    }
}
