//! Where a job may send, as its manifest says it.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use url::{Host, Url};

/// A destination that a job may send to: `scheme://host[:port]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowRule {
    scheme: String,
    hosts: Hosts,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    One(Host),
    /// `*.example.com`: everything below that name.
    Below(String),
    /// URLs that name an address in it.
    Range(IpNet),
}

/// A rule that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no destination; expected `http://HOST[:PORT]` or `https://HOST[:PORT]`, where HOST may begin with `*.`, or be \
     a range of addresses such as `192.0.2.0/24` or `[2001:db8::/32]`"
)]
pub struct AllowRuleError(String);

impl FromStr for AllowRule {
    type Err = AllowRuleError;

    fn from_str(text: &str) -> Result<Self, AllowRuleError> {
        Self::read(text).ok_or_else(|| AllowRuleError(text.to_owned()))
    }
}

impl AllowRule {
    fn read(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        if let Some((range, rest)) = range(rest) {
            // What is left is a host to the parser of URLs, so that ports mean the same everywhere.
            let Destination { scheme, port, .. } = plain(&format!("{scheme}://host{rest}"))?;
            return Some(Self { scheme, hosts: Hosts::Range(range), port });
        }
        let (is_wild, rest) = match rest.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let Destination { scheme, host, port } = plain(&format!("{scheme}://{rest}"))?;
        let hosts = match host {
            Host::Domain(parent) if is_wild => Hosts::Below(format!(".{parent}")),
            _ if is_wild => return None,
            host => Hosts::One(host),
        };
        Some(Self { scheme, hosts, port })
    }

    /// Those of `rules` that none of `by` covers, and those that cannot be read.
    pub fn not_covered(rules: &[String], by: &[String]) -> Vec<String> {
        let by: Vec<Self> = by.iter().filter_map(|rule| rule.parse().ok()).collect();
        let is_covered =
            |rule: &&String| rule.parse().is_ok_and(|rule| by.iter().any(|wider: &Self| wider.covers(&rule)));
        rules.iter().filter(|rule| !is_covered(rule)).cloned().collect()
    }

    /// Whether it allows everything that the other one allows.
    fn covers(&self, other: &Self) -> bool {
        let hosts = match (&self.hosts, &other.hosts) {
            (Hosts::One(host), Hosts::One(other)) => host == other,
            (Hosts::Below(parent), Hosts::One(Host::Domain(name)) | Hosts::Below(name)) => {
                name.ends_with(parent.as_str())
            }
            (Hosts::Range(range), Hosts::Range(other)) => range.contains(other),
            (Hosts::Range(range), Hosts::One(host)) => address(host).is_some_and(|address| range.contains(&address)),
            (Hosts::One(_), _) | (Hosts::Below(_), _) | (Hosts::Range(_), Hosts::Below(_)) => false,
        };
        hosts && self.scheme == other.scheme && self.port == other.port
    }

    /// The parser of URLs has brought the host into its one form (`http://0x7f.1` is `127.0.0.1` by now), so
    /// comparing is enough.
    pub(crate) fn allows(&self, to: &Destination) -> bool {
        let host = match (&self.hosts, &to.host) {
            (Hosts::One(host), to) => host == to,
            (Hosts::Below(parent), Host::Domain(name)) => name.ends_with(parent.as_str()),
            (Hosts::Below(_), _) => false,
            (Hosts::Range(range), _) => to.address().is_some_and(|address| range.contains(&address)),
        };
        host && self.scheme == to.scheme && self.port == to.port
    }
}

/// `192.0.2.0/24` or `[2001:db8::/32]` at the beginning, and what follows. The bits that a range leaves open are zero.
fn range(text: &str) -> Option<(IpNet, &str)> {
    let (range, rest) = match text.strip_prefix('[') {
        Some(text) => text.split_once(']')?,
        None => text.split_at(text.find('/').and_then(|at| Some(at + text[at..].find(':')?)).unwrap_or(text.len())),
    };
    let range: IpNet = range.parse().ok()?;
    let is_as_urls_have_it = text.starts_with('[') == range.addr().is_ipv6();
    (is_as_urls_have_it && range == range.trunc() && (rest.is_empty() || rest.starts_with(':')))
        .then_some((range, rest))
}

/// The destination of a URL that has nothing else in it.
fn plain(text: &str) -> Option<Destination> {
    let url = Url::parse(text).ok()?;
    let has_more = url.path() != "/" || text.ends_with('/') || url.query().is_some() || url.fragment().is_some();
    let has_user = !url.username().is_empty() || url.password().is_some();
    if has_more || has_user { None } else { Destination::of(&url) }
}

fn address(host: &Host) -> Option<IpAddr> {
    match host {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some((*address).into()),
        Host::Ipv6(address) => Some((*address).into()),
    }
}

/// Where a URL leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    scheme: String,
    /// In lower case, without a dot behind it.
    host: Host,
    port: u16,
}

impl Destination {
    /// Of an `http` or `https` URL.
    pub(crate) fn of(url: &Url) -> Option<Self> {
        let host = match url.host()?.to_owned() {
            Host::Domain(name) => Host::Domain(name.trim_end_matches('.').to_ascii_lowercase()),
            address => address,
        };
        let is_named = !matches!(&host, Host::Domain(name) if name.is_empty());
        let is_http = ["http", "https"].contains(&url.scheme());
        let port = url.port_or_known_default()?;
        (is_named && is_http).then(|| Self { scheme: url.scheme().to_owned(), host, port })
    }

    /// The address, where a URL names one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        address(&self.host)
    }

    /// The name, or the address as a certificate has it.
    pub(crate) fn host(&self) -> String {
        self.address().map_or_else(|| self.host.to_string(), |address| address.to_string())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn is_https(&self) -> bool {
        self.scheme == "https"
    }

    /// What the `Host` header says.
    pub(crate) fn authority(&self) -> String {
        let default = if self.is_https() { 443 } else { 80 };
        if self.port == default { self.host.to_string() } else { format!("{}:{}", self.host, self.port) }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority())
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

    /// D35: what looks like the allowed host and is not.
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
    fn a_range_allows_the_addresses_in_it_and_no_name() {
        assert!(allows("http://192.0.2.0/24:8080", "http://192.0.2.7:8080/x"));
        assert!(allows("https://[2001:db8::/32]", "https://[2001:db8:7::1]"));
        assert!(!allows("http://192.0.2.0/24:8080", "http://192.0.3.7:8080"));
        assert!(!allows("http://192.0.2.0/24", "http://192.0.2.7:8080"));
        assert!(!allows("http://0.0.0.0/0", "http://a.test"), "what a name leads to is not for the job to say");
        assert!(!allows("http://0.0.0.0/0", "http://[::ffff:1.2.3.4]"));
    }

    #[test]
    fn a_rule_covers_what_allows_no_more_than_it_does() {
        let covers = |wide: &str, narrow: &str| AllowRule::not_covered(&[narrow.into()], &[wide.into()]).is_empty();
        for (wide, narrow) in [
            ("https://a.test", "https://A.test:443"),
            ("https://*.a.test", "https://b.a.test"),
            ("https://*.a.test", "https://*.b.a.test"),
            ("https://*.a.test", "https://*.a.test"),
            ("http://10.0.0.0/8", "http://10.1.0.0/16"),
            ("http://10.0.0.0/8", "http://10.1.2.3"),
        ] {
            assert!(covers(wide, narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [
            ("https://a.test", "http://a.test"),
            ("https://a.test", "https://a.test:8443"),
            ("https://a.test", "https://*.a.test"),
            ("https://*.a.test", "https://a.test"),
            ("https://*.b.a.test", "https://*.a.test"),
            ("https://*.a.test", "https://bada.test"),
            ("http://10.1.0.0/16", "http://10.0.0.0/8"),
            ("http://0.0.0.0/0", "http://a.test"),
            ("http://a.test", "no rule at all"),
        ] {
            assert!(!covers(wide, narrow), "{wide} {narrow}");
        }
    }

    #[test]
    fn a_rule_is_a_destination_and_nothing_more() {
        for rule in [
            "a.test",
            "ftp://a.test",
            "http://a.test/path",
            "http://a.test/",
            "http://u@a.test",
            "http://",
            "http://*.1.2.3.4",
            "http://10.1.0.0/8",
            "http://10.0.0.0/33",
            "http://10.0.0.0/8/x",
            "http://[fd00::/8",
            "http://fd00::/8",
            "http://*.10.0.0.0/8",
        ] {
            assert!(rule.parse::<AllowRule>().is_err(), "{rule}");
        }
    }
}
