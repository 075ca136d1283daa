//! `wasi:http`: what programs send that know nothing of keys. Whatever may change something gets one all the same, made
//! from the tick, from where it goes, and from how many went there before; a program that does the same again in a further
//! attempt gives the same keys.

use std::{
    collections::HashMap,
    future::{Future, ready},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use tickhost_ledger::{Digest, key::KeySource};
use uuid::Uuid;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

use super::{
    CallError,
    send::{Answered, Asked, KEY_HEADER, Sender, is_safe},
};
use crate::{
    bindings::tickhost::job::errors::Code,
    egress::{Answer, Patience},
    output::Output,
};

/// `wasi:http` of one run.
pub(crate) struct WasiHttp(Arc<Inner>);

struct Inner {
    sender: Arc<Sender>,
    keys: Ordinals,
    output: Output,
}

impl WasiHttp {
    pub(crate) fn new(sender: Arc<Sender>, keys: KeySource, output: &Output) -> Self {
        Self(Arc::new(Inner {
            sender,
            keys: Ordinals { source: keys, last: Mutex::default() },
            output: output.clone(),
        }))
    }
}

type Sent = Box<dyn Future<Output = Result<(), Error>> + Send>;

impl WasiHttpHooks for WasiHttp {
    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _sent: Sent,
    ) -> Box<dyn Future<Output = Result<(Response<WasiBody>, Sent), Error>> + Send> {
        let inner = self.0.clone();
        Box::new(async move {
            let what = format!("{} {}", request.method(), request.uri());
            let answer = inner.send(request, options).await.map_err(|error| inner.told(&what, error))?;
            let (status, headers) = (answer.status, answer.headers);
            let body = Full::new(Bytes::from(answer.body)).map_err(|never| match never {}).boxed_unsync();
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            let response = response.body(body).map_err(|error| Error::InternalError(Some(error.to_string())))?;
            Ok((response, Box::new(ready(Ok(()))) as Sent))
        })
    }
}

impl Inner {
    async fn send(&self, request: Request<WasiBody>, options: Option<RequestOptions>) -> Result<Answer, CallError> {
        let (mut parts, body) = request.into_parts();
        // The host's own, whatever the guest's library has set.
        for own in [header::HOST, header::CONTENT_LENGTH, header::TE] {
            parts.headers.remove(own);
        }
        let own_key = parts.headers.remove(KEY_HEADER);
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers: Vec<_> = parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        let (method, url) = (parts.method.as_str(), parts.uri.to_string());
        let body = self.body(body).await?;
        let asked = Asked { method, url: &url, headers: &headers, body, patience: patience(options) };
        let mut checked = self.sender.check(asked)?;
        if is_safe(&parts.method) {
            return self.sender.read(checked).await;
        }
        let label = Label { method: method.to_owned(), url: url.clone() };
        let fingerprint = checked.fingerprint;
        let (ordinal, key) = self.keys.next(&label, fingerprint);
        if let Some(own) = own_key {
            self.output
                .record(&format!("INFO {method} {url} goes out under the program's own idempotency-key {own:?}"));
            checked.request.headers_mut().insert(KEY_HEADER, own);
        }
        let answered = self.sender.effect(key, checked).await;
        self.keys.ended(label, ordinal, (!is_settled(&answered)).then_some(fingerprint));
        answered.map(|answered| answered.answer)
    }

    /// All of a request's body: what it is decides whether it is the same work.
    async fn body(&self, body: WasiBody) -> Result<Vec<u8>, CallError> {
        let most = self.sender.limits().request_bytes;
        match Limited::new(body, usize::try_from(most).unwrap_or(usize::MAX)).collect().await {
            Ok(whole) => Ok(whole.to_bytes().to_vec()),
            Err(error) if error.is::<LengthLimitError>() => Err(self.sender.over_request_bytes(most + 1)),
            Err(error) => Err(CallError::new(Code::Invalid, format!("the request's body broke off: {error}"))),
        }
    }

    /// The program gets one of WASI's bare error codes; its output says what happened.
    fn told(&self, what: &str, error: CallError) -> Error {
        let error = match error {
            CallError::Guest(error) => error,
            CallError::Trap(error) => return Error::InternalError(Some(error.to_string())),
        };
        self.output.record(&format!("WARN {what}: {}", error.message));
        match error.code {
            Code::Denied => Error::HttpRequestDenied,
            Code::Timeout => Error::ConnectionTimeout,
            Code::Unavailable => Error::DestinationUnavailable,
            _ => Error::InternalError(Some(error.message)),
        }
    }
}

fn patience(options: Option<RequestOptions>) -> Patience {
    let (default, whole) = (Patience::default(), Duration::MAX);
    let Some(options) = options else { return Patience { total: whole, ..default } };
    Patience {
        connect: options.connect_timeout.unwrap_or(default.connect),
        first_byte: options.first_byte_timeout.unwrap_or(default.first_byte),
        between_bytes: options.between_bytes_timeout.unwrap_or(default.between_bytes),
        total: whole,
        ..default
    }
}

/// Whether the same request again is further work; no where it is another try of this one.
fn is_settled(answered: &Result<Answered, CallError>) -> bool {
    match answered {
        Ok(answered) => answered.is_settled,
        Err(CallError::Guest(error)) => !(error.retry || error.code == Code::InDoubt),
        Err(CallError::Trap(_)) => true,
    }
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Label {
    method: String,
    url: String,
}

/// The keys of requests that bring none: the how-manieth it is of those that go to the same place.
struct Ordinals {
    source: KeySource,
    last: Mutex<HashMap<Label, Last>>,
}

#[derive(Debug, Default)]
struct Last {
    ordinal: u64,
    /// Of one that ended and was not settled.
    open: Option<Digest>,
}

impl Ordinals {
    /// The same request again after one that was not settled keeps its key.
    fn next(&self, label: &Label, fingerprint: Digest) -> (u64, Uuid) {
        let mut all = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let last = all.entry(label.clone()).or_default();
        if last.open.take() != Some(fingerprint) {
            last.ordinal += 1;
        }
        // The first part is empty, as no label of a guest can be.
        let path = [String::new(), label.method.clone(), label.url.clone(), last.ordinal.to_string()];
        (last.ordinal, self.source.key(&path))
    }

    fn ended(&self, label: Label, ordinal: u64, fingerprint_if_open: Option<Digest>) {
        let mut all = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let last = all.entry(label).or_default();
        if last.ordinal == ordinal {
            last.open = fingerprint_if_open;
        }
    }
}

#[cfg(test)]
mod tests {
    use tickhost_ledger::{JobName, TickAt};

    use super::*;

    #[test]
    fn keys_rise_with_the_work_and_stay_with_another_try_of_it() {
        let job = JobName { namespace: "t".into(), name: "job".into() };
        let source = KeySource { domain: Uuid::nil(), job, tick: TickAt(0), nonce: None };
        let ordinals = || Ordinals { source: source.clone(), last: Mutex::default() };
        let label = Label { method: "POST".into(), url: "http://a.test/x".into() };
        let (first, other) = (Digest::of(b"first"), Digest::of(b"other"));
        let keys = ordinals();
        let (one, key) = keys.next(&label, first);
        keys.ended(label.clone(), one, Some(first));
        assert_eq!(keys.next(&label, first), (1, key), "another try");
        keys.ended(label.clone(), 1, None);
        let (two, second) = keys.next(&label, first);
        assert_eq!((two, second != key), (2, true), "the same again once it is settled is further work");
        keys.ended(label.clone(), two, Some(first));
        assert_eq!(keys.next(&label, other).0, 3, "another request is no further try");
        assert_eq!(keys.next(&label, other).0, 4, "one that is still under way is none either");
        let elsewhere = Label { url: "http://a.test/y".into(), ..label.clone() };
        assert_eq!(keys.next(&elsewhere, first).0, 1);
        assert_eq!(ordinals().next(&label, first), (1, key), "a further attempt begins with the same key");
    }
}
