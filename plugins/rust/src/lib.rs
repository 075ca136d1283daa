//! Write a job of tickhost in Rust.
//!
//! ```ignore
//! use tickhost_job::{Outcome, Tick, http};
//!
//! fn run(tick: &Tick) -> Outcome<String> {
//!     let key = tick.key("ping")?;
//!     let answer = http::send(&key, &http::post_json("https://api.example.com/ping", "{}"))?;
//!     Ok(format!("status {}", answer.status))
//! }
//!
//! tickhost_job::job!(run);
//! ```
//!
//! Whatever changes something takes a [`Key`], and a key comes only from the [`Tick`]: when a run is repeated, the
//! same work carries the same key. An error of the host passes through `?` with its message and its `retry`.

#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "job",
        pub_export_macro: true,
        default_bindings_module: "tickhost_job::bindings",
        additional_derives: [PartialEq, Eq],
    });
}

pub use bindings::tickhost::job::{
    config,
    errors::{Code, Error},
    kv,
    ticks::{Instant, Key, Tick},
};

/// HTTP requests to the destinations that the manifest allows.
pub mod http {
    pub use crate::bindings::tickhost::job::http::{Request, Response, read, send};

    /// A GET, for [`read`].
    pub fn get(url: impl Into<String>) -> Request {
        Request { method: "GET".into(), url: url.into(), headers: Vec::new(), body: None, timeout_ms: None }
    }

    /// A POST of a JSON text, for [`send`].
    pub fn post_json(url: impl Into<String>, json: impl Into<Vec<u8>>) -> Request {
        Request {
            method: "POST".into(),
            url: url.into(),
            headers: vec![("content-type".into(), "application/json".into())],
            body: Some(json.into()),
            timeout_ms: None,
        }
    }
}

/// Records in the run's log: one line each, with fields.
pub mod log {
    use crate::bindings::tickhost::job::logging::{self, Level};

    fn record(level: Level, message: &str, fields: &[(&str, &str)]) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        logging::log(level, message, &fields);
    }

    /// What a person wants to know of every run.
    pub fn info(message: &str, fields: &[(&str, &str)]) {
        record(Level::Info, message, fields);
    }

    /// What went wrong and was dealt with.
    pub fn warn(message: &str, fields: &[(&str, &str)]) {
        record(Level::Warn, message, fields);
    }

    /// What went wrong.
    pub fn error(message: &str, fields: &[(&str, &str)]) {
        record(Level::Error, message, fields);
    }
}

/// What a job returns: a value to show beside the verdict, or why it failed.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a run failed.
///
/// It is no [`std::error::Error`], so that any error turns into it with `?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For a person.
    pub message: String,
    /// Another attempt may help.
    pub retry: bool,
}

impl Failure {
    /// A failure that another attempt does not help.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), retry: false }
    }

    /// A failure that another attempt may help.
    pub fn retry(message: impl Into<String>) -> Self {
        Self { message: message.into(), retry: true }
    }
}

impl<E: std::error::Error + 'static> From<E> for Failure {
    /// An error of the host keeps its `retry`; of any other nobody knows whether another attempt helps.
    fn from(error: E) -> Self {
        match (&error as &dyn std::any::Any).downcast_ref::<Error>() {
            Some(host) => Self { message: host.message.clone(), retry: host.retry },
            None => Self::new(error.to_string()),
        }
    }
}

/// What can be shown beside a verdict.
pub trait Note {
    /// The text, if there is one.
    fn note(self) -> Option<String>;
}

impl Note for () {
    fn note(self) -> Option<String> {
        None
    }
}

impl Note for String {
    fn note(self) -> Option<String> {
        Some(self)
    }
}

impl Note for Option<String> {
    fn note(self) -> Option<String> {
        self
    }
}

/// Makes a function the job of this component: `fn(&Tick) -> Outcome<T>`, where `T` is `()`, `String` or
/// `Option<String>`.
#[macro_export]
macro_rules! job {
    ($run:path) => {
        const _: () = {
            struct Component;

            impl $crate::bindings::exports::tickhost::job::entry::Guest for Component {
                fn run(
                    tick: &$crate::Tick,
                ) -> Result<Option<String>, $crate::bindings::exports::tickhost::job::entry::Failure> {
                    match $run(tick) {
                        Ok(note) => Ok($crate::Note::note(note)),
                        Err($crate::Failure { message, retry }) => {
                            Err($crate::bindings::exports::tickhost::job::entry::Failure { message, retry })
                        }
                    }
                }
            }

    $crate::bindings::export!(Component with_types_in $crate::bindings);
        };
    };
}
