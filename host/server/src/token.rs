//! Tokens: what somebody shows to say who they are.

use std::{fmt, path::Path, str::FromStr};

use tickhost_ledger::{Digest, ids::check_name};
use tickhost_replica::{identity::write_private, join};

const PREFIX: &str = "tickhost-access-1-";
/// The token of whoever may read a node's data directory.
pub(crate) const LOCAL: &str = "local";
/// Whoever shows no good token, in the audit log.
pub(crate) const NOBODY: &str = "nobody";
/// Whoever asks a host that asks nobody.
pub(crate) const DEVELOPER: &str = "dev";
/// Where that lies, below the data directory.
const LOCAL_FILE: &str = "operator.token";

/// A right to use the API, as its holder has it. The cluster keeps the digest of the secret only.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AccessToken {
    /// Under which the cluster knows it.
    pub(crate) name: String,
    secret: [u8; 32],
}

impl AccessToken {
    /// A new one.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), secret: join::secret() }
    }

    /// What is kept of the secret.
    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.secret)
    }
}

/// Not in a log by accident.
impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessToken").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Display for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}-{}", self.name, Digest(self.secret).hex())
    }
}

impl FromStr for AccessToken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = || {
            let (name, hex) = text.trim().strip_prefix(PREFIX)?.rsplit_once('-')?;
            check_name("token", name).ok()?;
            let secret = format!("sha256:{hex}").parse::<Digest>().ok()?.0;
            Some(Self { name: name.to_owned(), secret })
        };
        parts().ok_or_else(|| {
            format!(
                "this is no token; expected `{PREFIX}NAME-` and 64 hexadecimal digits, as `tickhost token create` prints it"
            )
        })
    }
}

/// A node's operator, in the audit log.
pub(crate) fn operator_of(node: u64) -> String {
    format!("node-{node}")
}

/// Whether no token may have that name: the audit log would take its holder for somebody else.
pub(crate) fn is_reserved(name: &str) -> bool {
    [LOCAL, NOBODY, DEVELOPER].contains(&name) || name.starts_with("node-")
}

/// The digest of the token with which whoever may read this data directory is the operator. The first time it is made.
///
/// # Errors
/// A sentence: a file that cannot be read or written, or holds something else.
pub(crate) fn local(data: &Path) -> Result<Digest, String> {
    let path = data.join(LOCAL_FILE);
    let failed = |what: &str, why: String| format!("{what} `{}`: {why}", path.display());
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let token: AccessToken = text.parse().map_err(|why| failed("read", why))?;
            Ok(token.digest())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let token = AccessToken::new(LOCAL);
            let made = std::fs::create_dir_all(data).and_then(|()| write_private(&path, &format!("{token}\n")));
            made.map_err(|error| failed("write", error.to_string()))?;
            Ok(token.digest())
        }
        Err(error) => Err(failed("read", error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written_and_not_shown_by_accident() {
        let token = AccessToken::new("ci-billing.2");
        let text = token.to_string();
        assert_eq!(text.parse::<AccessToken>().unwrap(), token);
        assert_eq!(format!(" {text}\n").parse::<AccessToken>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&Digest(token.secret).hex()));
        assert_ne!(AccessToken::new("ci-billing.2").digest(), token.digest());
        for wrong in
            ["", "x", PREFIX, &text[..text.len() - 1], &text.replace("ci", "CI"), &text.replace("access", "join")]
        {
            assert!(wrong.parse::<AccessToken>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_nodes_own_token_stays_the_same_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let digest = local(&data).unwrap();
        let path = data.join(LOCAL_FILE);
        let token: AccessToken = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        assert_eq!((token.name.as_str(), token.digest()), (LOCAL, digest));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(local(&data).unwrap(), digest);
        std::fs::write(&path, "something else").unwrap();
        let refused = local(&data).unwrap_err();
        assert!(refused.contains(LOCAL_FILE) && refused.contains("this is no token"), "{refused}");
    }
}
