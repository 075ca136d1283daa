//! `http`: requests to the destinations that the job's manifest allows. What may change something carries a key
//! and goes through the journal.

use std::{fmt, str::FromStr, time::Duration};

use futures::StreamExt;
use http::{HeaderName, HeaderValue, Method};
use reqwest::Url;
use tickhost_ledger::{
    Digest,
    effect::{ByteBuf, EffectAnswer, EffectResult, HttpAnswer, JOURNAL_BODY_BYTES},
};
use wasmtime::component::Resource;

use super::{CallError, ticks::Key};
use crate::{
    bindings::tickhost::job::{errors::Code, http as wit},
    journal::EffectRequest,
    run::RunState,
};

/// A connection that is not made by then counts as not made. Arbitrary.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a URL: it is kept with the effect. What most servers take.
const URL_BYTES_MAX: usize = 8 << 10;

/// Bytes of a response's headers that the journal keeps. Arbitrary.
const JOURNAL_HEADER_BYTES: usize = 8 << 10;

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

/// One client for all runs: no redirect is followed, no proxy of the environment is used.
pub(crate) fn client() -> reqwest::Result<reqwest::Client> {
    // A second installation is no fault: the first one is the same provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("tickhost/", env!("CARGO_PKG_VERSION")))
    };
    builder().build().or_else(|error| {
        tracing::warn!(
            %error,
            "this machine has no CA certificates, so no https destination will be trusted; apt-get install ca-certificates"
        );
        builder().tls_certs_only(std::iter::empty()).build()
    })
}

/// A destination that a job may send to: `scheme://host[:port]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowRule {
    scheme: String,
    /// Lower case, without a dot behind it; begins with a dot for `*.example.com`.
    host: String,
    port: u16,
}

/// A rule that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no destination; expected `http://HOST[:PORT]` or `https://HOST[:PORT]`, where HOST may begin with `*.`"
)]
pub struct AllowRuleError(String);

impl FromStr for AllowRule {
    type Err = AllowRuleError;

    fn from_str(text: &str) -> Result<Self, AllowRuleError> {
        let refuse = || AllowRuleError(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(refuse)?;
        let (wild, rest) = match rest.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let url = Url::parse(&format!("{scheme}://{rest}")).map_err(|_| refuse())?;
        let plain = url.path() == "/" && !rest.ends_with('/') && url.query().is_none() && url.fragment().is_none();
        let named = url.username().is_empty() && url.password().is_none();
        if !["http", "https"].contains(&url.scheme()) || !plain || !named {
            return Err(refuse());
        }
        let Destination { scheme, host, port } = Destination::of(&url).ok_or_else(refuse)?;
        if wild && host.parse::<std::net::IpAddr>().is_ok() {
            return Err(refuse());
        }
        Ok(Self { scheme, host: if wild { format!(".{host}") } else { host }, port })
    }
}

/// Where a URL leads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Destination {
    scheme: String,
    host: String,
    port: u16,
}

impl Destination {
    fn of(url: &Url) -> Option<Self> {
        let host = url.host_str()?.trim_end_matches('.').to_ascii_lowercase();
        let port = url.port_or_known_default()?;
        (!host.is_empty()).then(|| Self { scheme: url.scheme().to_owned(), host, port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = if self.scheme == "https" { 443 } else { 80 };
        write!(f, "{}://{}", self.scheme, self.host)?;
        if self.port == default { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

impl AllowRule {
    /// The URL parser has brought the host into its one form (`http://0x7f.1` is `127.0.0.1` by now), so
    /// comparing text is enough.
    fn allows(&self, to: &Destination) -> bool {
        let host = match self.host.strip_prefix('.') {
            Some(parent) => to.host.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.')),
            None => self.host == to.host,
        };
        host && self.scheme == to.scheme && self.port == to.port
    }
}

/// A request that has been checked.
struct Checked {
    request: reqwest::Request,
    what: String,
    fingerprint: Digest,
}

impl RunState {
    fn check(&mut self, r: wit::Request, safe: bool) -> Result<Checked, CallError> {
        let invalid = |message: String| CallError::new(Code::Invalid, message);
        let method = Method::from_str(&r.method).map_err(|_| invalid(format!("`{}` is no HTTP method", r.method)))?;
        let is_safe = [Method::GET, Method::HEAD, Method::OPTIONS].contains(&method);
        if safe && !is_safe {
            return Err(invalid(format!("`read` sends GET, HEAD and OPTIONS; `{method}` needs `send` and a key")));
        }
        if r.url.len() > URL_BYTES_MAX {
            return Err(invalid(format!("a URL of {} bytes; at most {URL_BYTES_MAX}", r.url.len())));
        }
        let url = Url::parse(&r.url).map_err(|e| invalid(format!("`{}` is no URL: {e}", r.url)))?;
        self.check_destination(&url)?;
        let body = r.body.unwrap_or_default();
        let limits = self.request.limits;
        if body.len() as u64 > limits.request_bytes {
            return Err(self.over(
                "request_bytes",
                "bytes of a request's body",
                body.len() as u64,
                limits.request_bytes,
            ));
        }
        self.usage.http_calls += 1;
        if self.usage.http_calls > limits.http_calls {
            return Err(self.over("http_calls", "HTTP calls", self.usage.http_calls, limits.http_calls));
        }
        let mut request = reqwest::Request::new(method.clone(), url);
        let timeout = r.timeout_ms.map_or(limits.wall_ms, |ms| limits.wall_ms.min(u64::from(ms)));
        *request.timeout_mut() = Some(Duration::from_millis(timeout));
        for (name, value) in &r.headers {
            let (name, value) = check_header(name, value).map_err(invalid)?;
            request.headers_mut().append(name, value);
        }
        let fingerprint = fingerprint(&r.method, &r.url, &r.headers, &body);
        let what = format!("{method} {}", r.url);
        if !body.is_empty() {
            *request.body_mut() = Some(body.into());
        }
        Ok(Checked { request, what, fingerprint })
    }

    fn check_destination(&self, url: &Url) -> Result<(), CallError> {
        if !url.username().is_empty() || url.password().is_some() {
            let message = "a URL with a user name in it; send an `authorization` header instead";
            return Err(CallError::new(Code::Invalid, message));
        }
        let to = Destination::of(url).filter(|to| ["http", "https"].contains(&to.scheme.as_str()));
        let Some(to) = to else {
            let message = format!("`{url}` is neither http nor https");
            return Err(CallError::new(Code::Invalid, message));
        };
        if self.allow.iter().any(|rule| rule.allows(&to)) {
            return Ok(());
        }
        let job = &self.request.run.launch.job;
        Err(CallError::new(
            Code::Denied,
            format!(
                "job `{job}` may not send to `{to}`; to allow it, add `allow = [\"{to}\"]` to [job.{}] in its manifest",
                job.name
            ),
        ))
    }

    /// An error that names the limit, and remembers it in case the guest ends over it.
    fn over(&mut self, limit: &'static str, what: &str, used: u64, declared: u64) -> CallError {
        let message = format!("{what}: {used} wanted, the job declares `{limit} = {declared}`");
        self.met = Some((limit, message.clone()));
        CallError::new(Code::OverLimit, message)
    }

    /// Sends, and reads the body up to the limit.
    async fn exchange(&mut self, request: reqwest::Request) -> Exchange {
        let response = match self.http.execute(request).await {
            Ok(response) => response,
            Err(error) => return Exchange::failed(&error),
        };
        let status = response.status().as_u16();
        let headers = response
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        let limit = self.request.limits.response_bytes;
        let mut body = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            match chunk {
                Ok(chunk) if (body.len() + chunk.len()) as u64 > limit => {
                    return Exchange::TooLong { status, headers, at_least: (body.len() + chunk.len()) as u64 };
                }
                Ok(chunk) => body.extend_from_slice(&chunk),
                Err(error) => return Exchange::failed(&error),
            }
        }
        self.usage.response_bytes = self.usage.response_bytes.max(body.len() as u64);
        Exchange::Answered { status, headers, body }
    }
}

enum Exchange {
    Answered {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
    /// It was received and answered; only the body is over the limit.
    TooLong {
        status: u16,
        headers: Vec<(String, String)>,
        at_least: u64,
    },
    NoAnswer {
        message: String,
        timeout: bool,
    },
    NotSent {
        message: String,
    },
}

impl Exchange {
    fn failed(error: &reqwest::Error) -> Self {
        let message = describe(error);
        if error.is_connect() || error.is_builder() {
            Self::NotSent { message }
        } else {
            Self::NoAnswer { message, timeout: error.is_timeout() }
        }
    }

    /// What the journal keeps.
    fn result(&self) -> EffectResult {
        let answer = |status: &u16, headers: &Vec<_>, body: Option<&Vec<u8>>| {
            EffectResult::Http(HttpAnswer {
                status: *status,
                headers: kept_headers(headers),
                body: body.filter(|b| b.len() <= JOURNAL_BODY_BYTES).map(|b| ByteBuf(b.clone())),
                body_digest: Digest::of(body.map_or(&[], Vec::as_slice)),
            })
        };
        match self {
            Self::Answered { status, headers, body } => answer(status, headers, Some(body)),
            Self::TooLong { status, headers, .. } => answer(status, headers, None),
            Self::NoAnswer { message, timeout } => {
                EffectResult::NoAnswer { message: message.clone(), timeout: *timeout }
            }
            Self::NotSent { message } => EffectResult::NotSent { message: message.clone() },
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

/// The whole chain of causes: the first of them alone says too little.
fn describe(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
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

fn response(exchange: Exchange, state: &mut RunState) -> Result<wit::Response, CallError> {
    match exchange {
        Exchange::Answered { status, headers, body } => Ok(wit::Response { status, headers, body, replayed: false }),
        Exchange::TooLong { at_least, .. } => {
            let declared = state.request.limits.response_bytes;
            Err(state.over("response_bytes", "bytes of a response's body", at_least, declared))
        }
        Exchange::NoAnswer { message, timeout } => {
            Err(CallError::new(if timeout { Code::Timeout } else { Code::Unavailable }, message))
        }
        Exchange::NotSent { message } => Err(CallError::new(Code::Unavailable, format!("nothing was sent: {message}"))),
    }
}

fn replayed(answer: HttpAnswer) -> Result<wit::Response, CallError> {
    let HttpAnswer { status, headers, body, .. } = answer;
    let Some(ByteBuf(body)) = body else {
        let message = format!(
            "result-not-kept: an earlier attempt was answered with status {status}; its body was longer than the {JOURNAL_BODY_BYTES} bytes that are kept"
        );
        return Err(CallError::new(Code::Other, message));
    };
    Ok(wit::Response { status, headers, body, replayed: true })
}

impl wit::Host for RunState {
    async fn read(&mut self, r: wit::Request) -> Result<wit::Response, CallError> {
        let checked = self.check(r, true)?;
        let exchange = self.exchange(checked.request).await;
        response(exchange, self)
    }

    async fn send(&mut self, key: Resource<Key>, r: wit::Request) -> Result<wit::Response, CallError> {
        let key = self.table.get(&key)?.uuid;
        let Checked { mut request, what, fingerprint } = self.check(r, false)?;
        let answer = self.journal.intend(EffectRequest { key, what: what.clone(), fingerprint }).await?;
        match answer {
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
        }
        // A structured-field string, as the header's specification has it.
        let header = HeaderValue::from_str(&format!("\"{key}\"")).map_err(wasmtime::Error::new)?;
        request.headers_mut().insert("idempotency-key", header);
        let exchange = self.exchange(request).await;
        self.journal.result(key, exchange.result());
        response(exchange, self)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn allows(rule: &str, url: &str) -> bool {
        let rule: AllowRule = rule.parse().unwrap();
        let url = Url::parse(url).unwrap();
        Destination::of(&url).is_some_and(|to| rule.allows(&to)) && url.username().is_empty()
    }

    /// What looks like the allowed host and is not.
    #[test]
    fn a_rule_allows_its_own_host_and_port_only() {
        for url in ["http://A.TEST", "http://a.test.", "http://a.test:80/x?y=z"] {
            assert!(allows("http://a.test", url), "{url}");
        }
        for url in [
            "http://a.test@evil.test",
            "http://2130706433/",
            "http://0x7f.1",
            "http://[::1]",
            "http://a.test:22",
            "http://aa.test",
            "https://a.test",
            "http://b.a.test",
        ] {
            assert!(!allows("http://a.test:80", url), "{url}");
        }
        assert!(allows("http://127.0.0.1:8080", "http://0x7f.1:8080/"));
        assert!(allows("https://*.example.com", "https://a.b.example.com"));
        assert!(!allows("https://*.example.com", "https://example.com"));
        assert!(!allows("https://*.example.com", "https://badexample.com"));
    }

    #[test]
    fn a_rule_is_a_destination_and_nothing_more() {
        for rule in ["a.test", "ftp://a.test", "http://a.test/path", "http://u@a.test", "http://", "http://*.1.2.3.4"] {
            assert!(rule.parse::<AllowRule>().is_err(), "{rule}");
        }
    }

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
