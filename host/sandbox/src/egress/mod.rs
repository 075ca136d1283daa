//! The way out of the sandbox. Nothing a guest sends takes another one.
//!
//! A job's manifest names where it may send ([`AllowRule`]); the addresses behind the name are then looked up once, those
//! that no stranger's code should reach are struck out ([`guard`]), and one of what is left is connected to
//! ([`connection`]): the address that was checked is the address that is used.

mod connection;
mod guard;
mod rule;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use futures::future::BoxFuture;
use ipnet::IpNet;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio_rustls::TlsConnector;

pub(crate) use connection::{Answer, Outward, Patience, SendError};
pub(crate) use rule::Destination;
pub use rule::{AllowRule, AllowRuleError};

type Lookup = dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync;

/// What guests may reach of the network, and how.
pub(crate) struct Egress {
    tls: TlsConnector,
    opened: Vec<IpNet>,
    lookup: Box<Lookup>,
}

impl Egress {
    /// Public addresses, and those in `opened`: ranges of private or special addresses that the operator lets guests
    /// reach.
    ///
    /// # Errors
    /// Where TLS cannot be set up.
    pub(crate) fn new(opened: Vec<IpNet>) -> Result<Self, String> {
        let lookup = |host: String| -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            Box::pin(async move {
                let found = tokio::net::lookup_host((host, 0)).await?;
                Ok(found.map(|address| address.ip()).collect())
            })
        };
        Ok(Self { tls: tls()?, opened, lookup: Box::new(lookup) })
    }

    /// The addresses behind a destination that may be connected to, from one lookup.
    async fn addresses(&self, to: &Destination) -> Result<Vec<SocketAddr>, SendError> {
        let found = match to.address() {
            Some(address) => vec![address],
            None => (self.lookup)(to.host()).await.map_err(|error| SendError::NotSent {
                message: format!("look up `{}`: {error}", to.host()),
                timeout: false,
            })?,
        };
        let (reachable, prohibited) = guard::sort(&found, &self.opened);
        if reachable.is_empty() {
            return Err(match prohibited.first() {
                Some(why) => SendError::Prohibited { message: format!("destination prohibited: `{to}`: {why}") },
                None => SendError::NotSent { message: format!("`{}` has no address", to.host()), timeout: false },
            });
        }
        Ok(reachable.into_iter().map(|address| SocketAddr::new(address, to.port())).collect())
    }

    /// Whether an address that stands in a URL itself may be connected to.
    pub(crate) fn check_literal(&self, to: &Destination) -> Result<(), String> {
        let Some(address) = to.address() else { return Ok(()) };
        guard::check(address, &self.opened).map_err(|why| format!("destination prohibited: {why}"))
    }
}

/// The machine's own CA certificates.
fn tls() -> Result<TlsConnector, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = || ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = versions().map_err(|error| error.to_string())?;
    let config = match builder.with_platform_verifier() {
        Ok(builder) => builder.with_no_client_auth(),
        Err(error) => {
            tracing::warn!(
                %error,
                "this machine has no CA certificates, so no https destination will be trusted; apt-get install ca-certificates"
            );
            let none = RootCertStore::empty();
            versions().map_err(|error| error.to_string())?.with_root_certificates(none).with_no_client_auth()
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn destination(url: &str) -> Destination {
        Destination::of(&url.parse().unwrap()).unwrap()
    }

    /// A name that leads to these addresses, the first list at its first lookup, and how often it was looked up.
    fn egress(opened: &[&str], answers: Vec<Vec<&str>>) -> (Egress, Arc<AtomicUsize>) {
        let lookups = Arc::new(AtomicUsize::new(0));
        let counted = lookups.clone();
        let answers: Vec<Vec<IpAddr>> =
            answers.into_iter().map(|answer| answer.into_iter().map(|ip| ip.parse().unwrap()).collect()).collect();
        let opened = opened.iter().map(|range| range.parse().unwrap()).collect();
        let mut egress = Egress::new(opened).unwrap();
        egress.lookup = Box::new(move |_| {
            let n = counted.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
            let answer = answers[n].clone();
            Box::pin(async move { Ok(answer) })
        });
        (egress, lookups)
    }

    async fn said(egress: &Egress, url: &str) -> String {
        match egress.addresses(&destination(url)).await {
            Ok(addresses) => format!("{addresses:?}"),
            Err(SendError::Prohibited { message }) => message,
            Err(error) => panic!("{error:?}"),
        }
    }

    /// D33: the name is allowed, and what is behind it is not.
    #[tokio::test]
    async fn a_public_name_for_a_private_address_is_refused() {
        for address in [
            "127.0.0.1",
            "10.0.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "192.168.1.1",
            "0.0.0.0",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::a00:1",
            "64:ff9b::808:808",
            "fd00:ec2::254",
            "fe80::1",
            "2002:7f00:1::",
            "ff02::1",
        ] {
            let (closed, _) = egress(&[], vec![vec![address]]);
            let refused = said(&closed, "http://a.test").await;
            assert!(refused.contains("destination prohibited: `http://a.test`"), "{address}: {refused}");
        }
        let (opened, _) = egress(&["10.0.0.0/8"], vec![vec!["10.0.0.1"]]);
        assert_eq!(said(&opened, "http://a.test:81").await, "[10.0.0.1:81]");
        let (opened, _) = egress(&["64:ff9b::/96"], vec![vec!["64:ff9b::a00:1"]]);
        let refused = said(&opened, "http://a.test").await;
        assert!(refused.contains("10.0.0.0/8"), "an address inside another one is looked at as well: {refused}");
    }

    /// D34: one answer with both, and an answer that changes.
    #[tokio::test]
    async fn what_was_not_checked_is_not_connected_to() {
        let (mixed, _) = egress(&[], vec![vec!["127.0.0.1", "203.0.114.1", "10.0.0.1"]]);
        assert_eq!(said(&mixed, "http://a.test").await, "[203.0.114.1:80]");

        // The second lookup would lead to a listener. There is none before the next connection.
        let there = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
        let port = there.local_addr().unwrap().port();
        let (rebound, lookups) = egress(&["127.0.0.3/32"], vec![vec!["127.0.0.3"], vec!["127.0.0.2"]]);
        let outward = Outward::new(Arc::new(rebound));
        let to = destination(&format!("http://a.test:{port}"));
        let send =
            async || outward.exchange(&to, http::Request::new(Default::default()), &Patience::default(), 10).await;
        assert!(matches!(send().await, Err(SendError::NotSent { .. })), "127.0.0.3 has no listener");
        assert_eq!(lookups.load(Ordering::Relaxed), 1);
        assert!(matches!(send().await, Err(SendError::Prohibited { .. })));
        assert_eq!(lookups.load(Ordering::Relaxed), 2);
        let nobody = tokio::time::timeout(std::time::Duration::from_millis(50), there.accept()).await;
        assert!(nobody.is_err(), "it was connected to");
    }

    #[test]
    fn an_address_in_the_url_is_looked_at_before_anything_is_recorded() {
        let (closed, _) = egress(&["127.0.0.1/32"], vec![vec![]]);
        assert!(closed.check_literal(&destination("http://127.0.0.1")).is_ok());
        for url in ["http://0x7f.2", "http://2130706434/", "http://[::1]", "http://[::ffff:127.0.0.1]", "http://0/"] {
            assert!(closed.check_literal(&destination(url)).is_err(), "{url}");
        }
    }
}
