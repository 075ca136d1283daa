//! Names. They are pure functions of what they name, so anyone can ask anyone about them.

use std::{fmt, str::FromStr};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text that is not the name it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no {what}; expected {expected}")]
pub struct NameError {
    /// What was to be read.
    pub what: &'static str,
    /// The text.
    pub found: String,
    /// The form it should have.
    pub expected: &'static str,
}

fn refuse<T>(what: &'static str, found: &str, expected: &'static str) -> Result<T, NameError> {
    Err(NameError { what, found: found.to_owned(), expected })
}

/// A job: its namespace and its name inside it, e.g. `billing/nightly`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobName {
    /// The tenant that owns it.
    pub namespace: String,
    /// The name inside the namespace.
    pub name: String,
}

/// What a namespace's or a job's name may look like: it stands in URLs, file names and headers.
const PART: &str = "1 to 63 of a–z, 0–9, `-`, `_`, `.`, beginning with a letter or a digit";

/// Checks one part of a job's name.
///
/// # Errors
/// Any other text than 1 to 63 of `a–z 0–9 - _ .`, beginning with a letter or a digit.
pub fn check_name(what: &'static str, text: &str) -> Result<(), NameError> {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let rest = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b));
    if first && rest && text.len() <= 63 { Ok(()) } else { refuse(what, text, PART) }
}

impl JobName {
    /// A checked name.
    ///
    /// # Errors
    /// As [`check_name`].
    pub fn new(namespace: &str, name: &str) -> Result<Self, NameError> {
        check_name("namespace", namespace)?;
        check_name("job name", name)?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for JobName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => refuse("job", text, "NAMESPACE/NAME, e.g. `billing/nightly`"),
        }
    }
}

/// The nominal instant of a tick: whole seconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TickAt(pub i64);

impl TickAt {
    /// As a date and time. Values outside of chrono's range cannot come from a schedule.
    pub fn time(self) -> DateTime<Utc> {
        DateTime::from_timestamp(self.0, 0).unwrap_or_default()
    }
}

impl From<DateTime<Utc>> for TickAt {
    fn from(time: DateTime<Utc>) -> Self {
        Self(time.timestamp())
    }
}

impl fmt::Display for TickAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.time().to_rfc3339_opts(SecondsFormat::Secs, true))
    }
}

impl FromStr for Stamp {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match DateTime::parse_from_rfc3339(text) {
            Ok(time) => Ok(time.to_utc().into()),
            Err(_) => refuse("instant", text, "RFC 3339, e.g. `2026-09-17T02:00:00.000Z`"),
        }
    }
}

/// Instants are text where people read them (JSON) and numbers on the disk.
macro_rules! text_for_people {
    ($($instant:ident),*) => {$(
        impl Serialize for $instant {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
            }
        }

        impl<'de> Deserialize<'de> for $instant {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
                } else {
                    i64::deserialize(deserializer).map(Self)
                }
            }
        }
    )*};
}

text_for_people!(TickAt, Stamp);

impl FromStr for TickAt {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match DateTime::parse_from_rfc3339(text) {
            Ok(time) => Ok(time.to_utc().into()),
            Err(_) => refuse("instant", text, "RFC 3339, e.g. `2026-09-17T02:00:00Z`"),
        }
    }
}

/// An instant by the leader's clock: milliseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub i64);

impl Stamp {
    /// As a date and time.
    pub fn time(self) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.0).unwrap_or_default()
    }

    /// Later by that many milliseconds.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
    }
}

impl From<DateTime<Utc>> for Stamp {
    fn from(time: DateTime<Utc>) -> Self {
        Self(time.timestamp_millis())
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.time().to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

/// What a tick became: `(job, tick, re-run id)`. The re-run id is empty for the scheduled launch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaunchId {
    /// The job.
    pub job: JobName,
    /// The nominal instant.
    pub tick: TickAt,
    /// Given for manual runs and re-runs, by whoever asked for them.
    pub rerun: Option<Uuid>,
}

impl fmt::Display for LaunchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.job, self.tick)?;
        match self.rerun {
            Some(id) => write!(f, "+{id}"),
            None => Ok(()),
        }
    }
}

impl FromStr for LaunchId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        const FORM: &str =
            "NAMESPACE/NAME@INSTANT, e.g. `billing/nightly@2026-09-17T02:00:00Z`, and `+ID` for a re-run";
        let Some((job, rest)) = text.split_once('@') else { return refuse("launch", text, FORM) };
        let (tick, rerun) = match rest.split_once('+') {
            Some((tick, id)) => match Uuid::parse_str(id) {
                Ok(id) => (tick, Some(id)),
                Err(_) => return refuse("launch", text, FORM),
            },
            None => (rest, None),
        };
        Ok(Self { job: job.parse()?, tick: tick.parse()?, rerun })
    }
}

/// One attempt of a launch on one executor: `billing/nightly@2026-09-17T02:00:00Z#1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId {
    /// The launch.
    pub launch: LaunchId,
    /// 1 for the first.
    pub attempt: u32,
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.launch, self.attempt)
    }
}

/// What a run's right to act rests on: the epoch of the cluster and the log index of its intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grant {
    /// The life of the cluster between restores.
    pub epoch: u64,
    /// The index of the entry that intended the run.
    pub index: u64,
}

/// The SHA-256 of a component: `sha256:…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// The 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        use fmt::Write as _;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl FromStr for Digest {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let bytes = || -> Option<[u8; 32]> {
            let hex = text.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.is_ascii())?;
            let mut bytes = [0; 32];
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
            }
            Some(bytes)
        };
        bytes().map_or_else(|| refuse("digest", text, "`sha256:` and 64 hexadecimal digits"), |b| Ok(Self(b)))
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
