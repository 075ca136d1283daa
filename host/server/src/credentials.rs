//! What `tickhost login` keeps: for each host the token that is shown to it. A file that only its owner reads.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tickhost_replica::identity::write_private;

/// What is shown to one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credential {
    /// The token.
    pub(crate) token: String,
    /// The authority that the host's certificate is of, where it is none that this machine knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
}

/// By the host's URL.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    #[serde(default)]
    host: BTreeMap<String, Credential>,
}

/// Where they lie; `None` for somebody without a home.
pub(crate) fn path() -> Option<PathBuf> {
    let dir = |name: &str| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let config = dir("XDG_CONFIG_HOME").or_else(|| dir("HOME").map(|home| home.join(".config")));
    config.map(|config| config.join("tickhost/credentials.toml"))
}

impl Credentials {
    /// Reads them; none where there is no file.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        match std::fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map_err(|e| format!("read `{}`: {e}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("read `{}`: {error}", path.display())),
        }
    }

    /// What is shown to that host.
    pub(crate) fn of(&self, url: &str) -> Option<&Credential> {
        self.host.get(plain(url))
    }

    /// Keeps it for that host.
    pub(crate) fn set(&mut self, url: &str, credential: Credential) {
        self.host.insert(plain(url).to_owned(), credential);
    }

    /// Writes them.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let failed = |why: String| format!("write `{}`: {why}", path.display());
        let text = toml::to_string(self).map_err(|e| failed(e.to_string()))?;
        let dir = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        dir.and_then(|()| write_private(path, &text)).map_err(|error| failed(error.to_string()))
    }
}

fn plain(url: &str) -> &str {
    url.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_kept_is_found_by_its_host_and_read_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config/tickhost/credentials.toml");
        let mut kept = Credentials::read(&path).unwrap();
        let credential = |token: &str| Credential { token: token.into(), ca: None };
        kept.set("https://one.example.com/", credential("first"));
        kept.set("https://two.example.com", Credential { ca: Some("/etc/ca.pem".into()), ..credential("second") });
        kept.set("https://one.example.com", credential("third"));
        kept.write(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = Credentials::read(&path).unwrap();
        assert_eq!(read, kept);
        assert_eq!(read.of("https://one.example.com").unwrap().token, "third");
        assert_eq!(read.of("https://two.example.com/").unwrap().ca, Some("/etc/ca.pem".into()));
        assert_eq!(read.of("https://three.example.com"), None);
        std::fs::write(&path, "host = 3").unwrap();
        assert!(Credentials::read(&path).unwrap_err().contains("credentials.toml"));
    }
}
