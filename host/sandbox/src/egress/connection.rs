//! Connections of one run. They are its own: what one tenant says on a connection, another one never inherits.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::{Destination, Egress};

const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("tickhost/", env!("CARGO_PKG_VERSION")));

/// A connection that is not free by then after its answer is not kept. Arbitrary.
const FREE_WITHIN: Duration = Duration::from_millis(50);

/// How long is waited for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Name lookup and TCP, over all addresses.
    pub(crate) connect: Duration,
    /// The TLS handshake.
    pub(crate) tls: Duration,
    /// From the request to the head of the answer.
    pub(crate) first_byte: Duration,
    /// From one part of the answer's body to the next.
    pub(crate) between_bytes: Duration,
    /// All of it.
    pub(crate) total: Duration,
}

impl Default for Patience {
    /// Arbitrary. The head of an answer may take as long as all of it: work is done before it.
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3_600);
        let [connect, tls, between_bytes] = [10, 10, 60].map(Duration::from_secs);
        Self { connect, tls, first_byte: day, between_bytes, total: day }
    }
}

/// An answer, whatever its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// How an exchange ends without an answer that can be given on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SendError {
    /// No guest may go there. Nothing was sent.
    Prohibited { message: String },
    /// Nothing was sent.
    NotSent { message: String, timeout: bool },
    /// It may have been received.
    NoAnswer { message: String, timeout: bool },
    /// It was received and answered; only the body is over the limit.
    TooLong { status: u16, headers: Vec<(String, String)>, at_least: u64 },
}

impl SendError {
    fn not_sent(message: impl Into<String>) -> Self {
        Self::NotSent { message: message.into(), timeout: false }
    }

    fn no_answer(message: impl Into<String>) -> Self {
        Self::NoAnswer { message: message.into(), timeout: false }
    }
}

/// An HTTP/1.1 connection, driven by a task that ends with it.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What one run has open to the outside. Clones share it.
#[derive(Clone)]
pub(crate) struct Outward {
    egress: Arc<Egress>,
    idle: Arc<Mutex<HashMap<String, Vec<Connection>>>>,
}

impl Outward {
    pub(crate) fn new(egress: Arc<Egress>) -> Self {
        Self { egress, idle: Arc::default() }
    }

    /// Whether an address that stands in a URL itself may be connected to.
    pub(crate) fn check_literal(&self, to: &Destination) -> Result<(), String> {
        self.egress.check_literal(to)
    }

    /// Sends a request and reads the answer, whose body has at most `limit` bytes. No redirect is followed.
    pub(crate) async fn exchange(
        &self,
        to: &Destination,
        request: Request<Full<Bytes>>,
        patience: &Patience,
        limit: u64,
    ) -> Result<Answer, SendError> {
        let until = Instant::now() + patience.total;
        let mut request = self.addressed(to, request)?;
        loop {
            let (mut connection, is_new) = match self.idle(to) {
                Some(connection) => (connection, false),
                None => (self.connect(to, patience, until).await?, true),
            };
            let sent = connection.sender.try_send_request(request);
            let response = match within(patience.first_byte, until, sent).await {
                None => {
                    let message = format!("{to} did not answer in time; it may have received the request");
                    return Err(SendError::NoAnswer { message, timeout: true });
                }
                Some(Ok(response)) => response,
                Some(Err(mut error)) => match error.take_message() {
                    // The other end had closed a connection that was kept: the request comes back unsent.
                    Some(unsent) if !is_new => {
                        request = unsent;
                        continue;
                    }
                    Some(_) => return Err(SendError::not_sent(format!("{to}: {}", chain(error.error())))),
                    None => return Err(SendError::no_answer(format!("{to}: {}", chain(error.error())))),
                },
            };
            let answer = read(to, response, patience, until, limit).await?;
            // An answer may come before all of the request was taken, and then the rest of it may never be.
            let is_free = within(FREE_WITHIN, until, connection.sender.ready()).await;
            if is_free.is_some_and(|ready| ready.is_ok()) {
                self.idle
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .entry(to.to_string())
                    .or_default()
                    .push(connection);
            }
            return Ok(answer);
        }
    }

    /// The request as it goes over the wire: the host's own headers, and the path alone.
    fn addressed(&self, to: &Destination, request: Request<Full<Bytes>>) -> Result<Request<Full<Bytes>>, SendError> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = path.parse().map_err(|error| SendError::not_sent(format!("the path `{path}`: {error}")))?;
        let host = HeaderValue::from_str(&to.authority());
        let host = host.map_err(|error| SendError::not_sent(format!("the host `{to}`: {error}")))?;
        parts.headers.insert(header::HOST, host);
        parts.headers.entry(header::USER_AGENT).or_insert(USER_AGENT);
        parts.headers.entry(header::ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        Ok(Request::from_parts(parts, body))
    }

    fn idle(&self, to: &Destination) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle.get_mut(&to.to_string())?;
        std::iter::from_fn(|| kept.pop()).find(|connection| connection.sender.is_ready())
    }

    async fn connect(&self, to: &Destination, patience: &Patience, until: Instant) -> Result<Connection, SendError> {
        let by = until.min(Instant::now() + patience.connect);
        let late = |what: &str| SendError::NotSent { message: format!("{what} {to} timed out"), timeout: true };
        let addresses = timeout_at(by, self.egress.addresses(to)).await.map_err(|_| late("the lookup of"))??;
        let mut last = late("the connection to");
        let mut connected = None;
        for (n, address) in addresses.iter().enumerate() {
            // Each of them gets its share of the time that is left.
            let left = by.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(addresses.len() - n).unwrap_or(u32::MAX);
            match tokio::time::timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    connected = Some(stream);
                    break;
                }
                Ok(Err(error)) => last = SendError::not_sent(format!("connect to {to} at {address}: {error}")),
                Err(_) => last = late("the connection to"),
            }
        }
        let stream = connected.ok_or(last)?;
        let _ = stream.set_nodelay(true);
        if !to.is_https() {
            return open(to, stream).await;
        }
        let name = ServerName::try_from(to.host())
            .map_err(|error| SendError::not_sent(format!("no certificate can be for {to}: {error}")))?;
        let by = until.min(Instant::now() + patience.tls);
        let handshake = timeout_at(by, self.egress.tls.connect(name, stream)).await;
        let stream = handshake.map_err(|_| late("the TLS handshake with"))?;
        open(to, stream.map_err(|error| SendError::not_sent(format!("TLS with {to}: {error}")))?).await
    }
}

async fn open<S>(to: &Destination, stream: S) -> Result<Connection, SendError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let opened = handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened.map_err(|error| SendError::not_sent(format!("{to}: {}", chain(&error))))?;
    let driver = tokio::spawn(async move {
        // How it ends, whoever sends on it is told.
        let _ = connection.await;
    });
    Ok(Connection { sender, driver })
}

async fn read(
    to: &Destination,
    response: http::Response<hyper::body::Incoming>,
    patience: &Patience,
    until: Instant,
    limit: u64,
) -> Result<Answer, SendError> {
    let status = response.status().as_u16();
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let mut incoming = response.into_body();
    let mut body = Vec::new();
    loop {
        let frame = match within(patience.between_bytes, until, incoming.frame()).await {
            None => {
                let message = format!("{to} did not send the rest of its answer in time");
                return Err(SendError::NoAnswer { message, timeout: true });
            }
            Some(None) => return Ok(Answer { status, headers, body }),
            Some(Some(frame)) => frame.map_err(|error| SendError::no_answer(format!("{to}: {}", chain(&error))))?,
        };
        let Ok(data) = frame.into_data() else { continue };
        let at_least = (body.len() + data.len()) as u64;
        if at_least > limit {
            return Err(SendError::TooLong { status, headers, at_least });
        }
        body.extend_from_slice(&data);
    }
}

/// `None` where neither the wait nor the end of all waiting allows more.
async fn within<T>(wait: Duration, until: Instant, work: impl Future<Output = T>) -> Option<T> {
    timeout_at(until.min(Instant::now() + wait), work).await.ok()
}

/// The whole chain of causes: the first of them alone says too little.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn outward() -> Outward {
        Outward::new(Arc::new(Egress::new(vec!["127.0.0.0/8".parse().unwrap()]).unwrap()))
    }

    async fn listener() -> (TcpListener, Destination) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        (listener, Destination::of(&url).unwrap())
    }

    fn get() -> Request<Full<Bytes>> {
        Request::builder().uri("http://ignored.test/path?q=1").body(Full::default()).unwrap()
    }

    fn soon() -> Patience {
        let soon = Duration::from_millis(50);
        Patience { first_byte: soon, between_bytes: soon, tls: soon, connect: soon, ..Patience::default() }
    }

    /// Reads a request's head.
    async fn head(stream: &mut TcpStream) -> String {
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            read.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(read).unwrap()
    }

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

    #[tokio::test]
    async fn a_connection_is_kept_and_one_that_was_closed_meanwhile_is_replaced() {
        let (listener, to) = listener().await;
        let (outward, served) = (
            outward(),
            tokio::spawn(async move {
                let (mut first, _) = listener.accept().await.unwrap();
                for _ in 0..2 {
                    let head = head(&mut first).await;
                    assert!(head.starts_with("GET /path?q=1 HTTP/1.1\r\n"), "{head}");
                    assert!(head.contains(&format!("host: {}\r\n", listener.local_addr().unwrap())), "{head}");
                    first.write_all(OK).await.unwrap();
                }
                drop(first);
                let (mut second, _) = listener.accept().await.unwrap();
                head(&mut second).await;
                second.write_all(OK).await.unwrap();
            }),
        );
        for _ in 0..3 {
            assert_eq!(outward.exchange(&to, get(), &Patience::default(), 10).await.unwrap().body, b"ok");
        }
        served.await.unwrap();
    }

    #[tokio::test]
    async fn each_wait_has_its_own_bound() {
        let (listener, to) = listener().await;
        let no_answer = outward().exchange(&to, get(), &soon(), 10).await;
        assert!(matches!(&no_answer, Err(SendError::NoAnswer { timeout: true, .. })), "{no_answer:?}");
        let (mut silent, _) = listener.accept().await.unwrap();
        head(&mut silent).await;

        let half = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            head(&mut stream).await;
            stream.write_all(&OK[..OK.len() - 1]).await.unwrap();
            let _ = stream.read_u8().await;
        });
        let no_rest = outward().exchange(&to, get(), &soon(), 10).await;
        assert!(matches!(&no_rest, Err(SendError::NoAnswer { timeout: true, message }) if message.contains("rest")));
        half.await.unwrap();

        // Nobody accepts: the handshake is never answered.
        let (deaf, _) = self::listener().await;
        let url = format!("https://{}", deaf.local_addr().unwrap()).parse().unwrap();
        let no_tls = outward().exchange(&Destination::of(&url).unwrap(), get(), &soon(), 10).await;
        assert!(matches!(&no_tls, Err(SendError::NotSent { timeout: true, message }) if message.contains("TLS")));
    }

    /// D26: packets to a black hole are not answered, and nothing but our own bound ends the wait.
    #[tokio::test(start_paused = true)]
    async fn a_black_hole_is_given_up_once() {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(1).unwrap();
        let address = full.local_addr().unwrap();
        // Nobody accepts. With its queue of one and one more full, the machine drops what else comes.
        let waiting = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        let to = Destination::of(&format!("http://{address}").parse().unwrap()).unwrap();
        let patience = Patience { connect: Duration::from_secs(1), ..Patience::default() };
        let began = Instant::now();
        let ended = outward().exchange(&to, get(), &patience, 10).await;
        assert!(matches!(&ended, Err(SendError::NotSent { timeout: true, .. })), "{ended:?}");
        assert!(began.elapsed() < Duration::from_millis(1_100), "{:?}", began.elapsed());
        drop(waiting);
    }

    /// D32: where an answer points to is the guest's to follow, or not.
    #[tokio::test]
    async fn a_redirect_is_an_answer() {
        let ((listener, to), (elsewhere, _)) = (listener().await, self::listener().await);
        let there = elsewhere.local_addr().unwrap();
        tokio::spawn(async move {
            for code in [302, 307] {
                let (mut stream, _) = listener.accept().await.unwrap();
                head(&mut stream).await;
                let answer =
                    format!("HTTP/1.1 {code} Elsewhere\r\nlocation: http://{there}/\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        for code in [302, 307] {
            let answer = outward().exchange(&to, get(), &Patience::default(), 10).await.unwrap();
            assert_eq!(answer.status, code);
        }
        let nobody = tokio::time::timeout(Duration::from_millis(50), elsewhere.accept()).await;
        assert!(nobody.is_err(), "the redirect was followed");
    }

    #[tokio::test]
    async fn what_is_too_long_is_told_with_its_status() {
        let (listener, to) = listener().await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            head(&mut stream).await;
            stream.write_all(OK).await.unwrap();
        });
        let ended = outward().exchange(&to, get(), &Patience::default(), 1).await;
        assert!(matches!(ended, Err(SendError::TooLong { status: 200, at_least: 2, .. })), "{ended:?}");
    }

    /// A run that is stopped in the middle leaves no connection behind.
    #[tokio::test]
    async fn what_is_dropped_is_closed() {
        let (listener, to) = listener().await;
        let outward = outward();
        let running = tokio::spawn(async move { outward.exchange(&to, get(), &Patience::default(), 10).await });
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        running.abort();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "the end of the connection");
    }
}
