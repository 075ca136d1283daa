//! A real `tickhost` as a process of its own.

use std::{
    ffi::OsString,
    fs::File,
    net::SocketAddr,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

/// A host comes up within this, also on a busy machine that compiles a JavaScript component first.
const UP_WITHIN: Duration = Duration::from_secs(60);
/// What is waited for is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The host's binary beside the one that runs.
///
/// # Panics
/// Where there is none: `cargo xtask` builds it first.
pub fn binary() -> PathBuf {
    program("tickhost")
}

/// A program of the workspace beside the one that runs.
///
/// # Panics
/// Where there is none: `cargo xtask` builds it first.
pub fn program(name: &str) -> PathBuf {
    let me = std::env::current_exe().expect("the path of this program");
    let here = me.ancestors().skip(1).map(|dir| dir.join(name)).find(|path| path.is_file());
    here.unwrap_or_else(|| panic!("there is no `{name}` beside `{}`; run `cargo build --bins`", me.display()))
}

/// Waits for a condition.
///
/// # Panics
/// When it does not come true in time.
pub async fn until<T>(what: &str, within: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < within, "{what}: not within {within:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Linux gives out 32768 and above by itself.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// A host's process. Killed when dropped.
pub struct HostProcess {
    child: Child,
    address: SocketAddr,
    http: reqwest::Client,
    data: PathBuf,
}

/// How a host is started.
#[derive(Debug, Clone, Default)]
pub struct HostOptions {
    /// Its data directory.
    pub data: PathBuf,
    /// Manifests or their folders.
    pub manifests: Vec<PathBuf>,
    /// Where its log goes; appended to.
    pub log: PathBuf,
    /// A point at which it kills itself, `NAME:COUNT`.
    pub kill_at: Option<String>,
    /// A program that it runs under, with its arguments.
    pub under: Vec<String>,
    /// Another build than the one beside this program.
    pub program: Option<PathBuf>,
}

impl HostProcess {
    /// Starts `tickhost dev` on a free port. Returns before it is up.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn spawn(options: &HostOptions) -> Self {
        let address = free_address();
        let mut arguments: Vec<OsString> = vec!["dev".into()];
        arguments.extend(options.manifests.iter().map(OsString::from));
        arguments.extend(["--data".into(), options.data.clone().into(), "--listen".into()]);
        arguments.push(address.to_string().into());
        Self::run(arguments, address, options)
    }

    /// Starts `tickhost serve` with settings that name that address for the API. Returns before it is up.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn serve(config: &Path, address: SocketAddr, options: &HostOptions) -> Self {
        Self::run(vec!["serve".into(), "--config".into(), config.into()], address, options)
    }

    fn run(arguments: Vec<OsString>, address: SocketAddr, options: &HostOptions) -> Self {
        let log = File::options().create(true).append(true).open(&options.log).expect("open the host's log");
        let program = options.program.clone().unwrap_or_else(binary);
        let mut words = options.under.iter().map(OsString::from).chain([program.into()]);
        let mut command = Command::new(words.next().expect("at least the host itself"));
        command.args(words).args(arguments).env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        if let Some(point) = &options.kill_at {
            command.env("TICKHOST_KILL_AT", point);
        }
        let child = command.spawn().expect("start tickhost");
        // A second installation is no fault: the first one is the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        Self { child, address, http, data: options.data.clone() }
    }

    /// Starts one and waits until it answers.
    ///
    /// # Panics
    /// When it does not come up, with the end of its log.
    pub async fn start(options: &HostOptions) -> Self {
        let mut host = Self::spawn(options);
        host.until_up(&options.log).await;
        host
    }

    /// Waits until it answers.
    ///
    /// # Panics
    /// When it does not come up, with the end of its log.
    pub async fn until_up(&mut self, log: &Path) {
        let began = Instant::now();
        while self.get("/v1/status").await.is_none() {
            let ended = self.child.try_wait().expect("look at tickhost");
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            assert!(ended.is_none() && began.elapsed() < UP_WITHIN, "the host does not come up: {ended:?} {tail:#?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Its API.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A request to its API, by its operator.
    pub fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url()));
        match token(&self.data) {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// A client of its operator's, with a connection of its own.
    ///
    /// # Panics
    /// Where there is none.
    pub fn client(&self) -> reqwest::Client {
        let headers = token(&self.data).map(|token| {
            let bearer = format!("Bearer {token}").parse().expect("a header");
            reqwest::header::HeaderMap::from_iter([(reqwest::header::AUTHORIZATION, bearer)])
        });
        let builder = reqwest::Client::builder().no_proxy().default_headers(headers.unwrap_or_default());
        builder.build().expect("an HTTP client")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks the API; `None` where nobody answers or the answer is an error.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let response = self.request(reqwest::Method::GET, path).send().await.ok()?;
        response.error_for_status().ok()?.json().await.ok()
    }

    /// A job's newest ticks, oldest first: tick, verdict, launch.
    pub async fn ticks(&self, job: &str) -> Option<Vec<(String, String, Option<String>)>> {
        let answer = self.get(&format!("/v1/jobs/{job}/ticks?count=10000")).await?;
        let text = |row: &Value, name: &str| row[name].as_str().map(ToOwned::to_owned);
        answer["ticks"]
            .as_array()?
            .iter()
            .map(|row| Some((text(row, "tick")?, text(row, "verdict")?, text(row, "launch"))))
            .collect()
    }

    /// A launch's whole story.
    pub async fn launch(&self, id: &str) -> Option<Value> {
        let request = self.request(reqwest::Method::GET, "/v1/launch").query(&[("id", id)]);
        request.send().await.ok()?.error_for_status().ok()?.json().await.ok()
    }

    /// Runs a verb of the command line against it.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn cli(&self, arguments: &[&str]) -> Output {
        cli_under(&[], &binary(), &self.url(), token(&self.data).as_deref(), arguments)
    }

    /// Whether it has ended by itself, as a kill point makes it: by SIGKILL.
    ///
    /// # Panics
    /// Where it ended in any other way.
    pub fn has_killed_itself(&mut self) -> bool {
        let Some(status) = self.child.try_wait().expect("look at tickhost") else { return false };
        assert_eq!(status.signal(), Some(9), "the host ended with {status}");
        true
    }

    /// Asks it to stop, as a service manager does.
    ///
    /// # Panics
    /// Where it is gone already.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Whether it has ended in good order.
    ///
    /// # Panics
    /// Where it ended in any other way.
    pub fn has_stopped(&mut self) -> bool {
        let Some(status) = self.child.try_wait().expect("look at tickhost") else { return false };
        assert!(status.success(), "the host ended with {status}");
        true
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// Where it is gone already.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a process");
        rustix::process::kill_process(pid, signal).expect("send a signal");
    }

    /// How it has ended, if it has.
    ///
    /// # Panics
    /// Where the machine does not say.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("look at tickhost")
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An address of loopback that is free now, and that no outgoing connection is given while its host is down: below the
/// ports that the machine gives out by itself.
///
/// # Panics
/// Where there is none.
pub fn free_address() -> SocketAddr {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    // Tests run in processes of their own, side by side: each begins elsewhere.
    let begin = u64::from(std::process::id()) * 7_919;
    for _ in 0..PORTS.len() {
        let nth = begin + u64::from(TRIED.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + u16::try_from(nth % PORTS.len() as u64).unwrap_or_default();
        if let Ok(listener) = std::net::TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().expect("its address");
        }
    }
    panic!("no port of {PORTS:?} is free");
}

/// An instant of the API in milliseconds since 1970.
pub fn millis(instant: &Value) -> Option<i64> {
    Some(chrono::DateTime::parse_from_rfc3339(instant.as_str()?).ok()?.timestamp_millis())
}

/// Whether that is no verdict yet.
pub fn is_open(verdict: &str) -> bool {
    ["due", "intended", "running"].contains(&verdict) || verdict.starts_with("retry")
}

/// What a host's operator shows to it; `None` where it asks nobody who they are.
pub fn token(data: &Path) -> Option<String> {
    let token = std::fs::read_to_string(data.join("operator.token")).ok()?;
    Some(token.trim().to_owned())
}

/// Runs a verb of the command line, as somebody without a token.
///
/// # Panics
/// Where it cannot be started.
pub fn cli(url: &str, arguments: &[&str]) -> Output {
    cli_under(&[], &binary(), url, None, arguments)
}

/// Runs a verb of a build's command line under another program, as whoever has that token.
///
/// # Panics
/// Where it cannot be started.
pub fn cli_under(under: &[String], program: &Path, url: &str, token: Option<&str>, arguments: &[&str]) -> Output {
    let mut words = under.iter().map(OsString::from).chain([program.into()]);
    Command::new(words.next().expect("at least the program itself"))
        .args(words)
        .args(arguments)
        .env("TICKHOST_URL", url)
        .env("TICKHOST_TOKEN", token.unwrap_or_default())
        // Whatever whoever runs this has logged in to.
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .expect("run tickhost")
}

/// Writes a manifest into a folder.
///
/// # Panics
/// Where it cannot be written.
pub fn write_manifest(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("tickhost.toml");
    std::fs::write(&path, text).expect("write a manifest");
    path
}
