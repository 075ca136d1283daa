//! Which addresses a guest may reach: those of the public internet, and what the operator has opened.
//!
//! The ranges are those of the IANA registries of special-purpose addresses (RFC 6890 and what has followed it), and the
//! metadata services of clouds that lie outside of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Ranges that are not the public internet, and what they are.
const SPECIAL: &[(&str, &str)] = &[
    ("0.0.0.0/8", "this network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a carrier's customers"),
    ("127.0.0.0/8", "this machine"),
    ("168.63.129.16/32", "a cloud's metadata service"),
    ("169.254.0.0/16", "link-local, where clouds have their metadata service"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "for protocols"),
    ("192.0.2.0/24", "for documentation"),
    ("192.88.99.0/24", "6to4 relays"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "for benchmarks"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "unspecified"),
    ("::1/128", "this machine"),
    ("::ffff:0:0/96", "an IPv4 address in IPv6's clothes"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"),
    ("2001::/23", "for protocols"),
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "for documentation"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("ff00::/8", "multicast"),
];

/// All of IPv6 that is given out to anybody.
const GLOBAL_V6: &str = "2000::/3";

/// An address that no guest reaches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} is in {range} ({what}); an operator who wants guests there writes `[egress] allow = [\"{range}\"]` in the \
     settings of every node"
)]
pub(super) struct Prohibited {
    address: IpAddr,
    range: String,
    what: &'static str,
}

/// Whether guests may reach an address.
pub(super) fn check(address: IpAddr, opened: &[IpNet]) -> Result<(), Prohibited> {
    let is_opened = opened.iter().any(|range| range.contains(&address));
    if let Some((range, what)) = special(address).filter(|_| !is_opened) {
        return Err(Prohibited { address, range, what });
    }
    match address {
        IpAddr::V6(address) => inner(address).map_or(Ok(()), |inner| check(inner.into(), opened)),
        IpAddr::V4(_) => Ok(()),
    }
}

/// Those that guests may reach, in their order, and what is said of the others.
pub(super) fn sort(addresses: &[IpAddr], opened: &[IpNet]) -> (Vec<IpAddr>, Vec<Prohibited>) {
    let (mut reachable, mut prohibited) = (Vec::new(), Vec::new());
    for address in addresses {
        match check(*address, opened) {
            Ok(()) => reachable.push(*address),
            Err(why) => prohibited.push(why),
        }
    }
    (reachable, prohibited)
}

/// The range that keeps an address from being public.
fn special(address: IpAddr) -> Option<(String, &'static str)> {
    let holds = |range: &str| range.parse::<IpNet>().is_ok_and(|range| range.contains(&address));
    if let Some((range, what)) = SPECIAL.iter().find(|(range, _)| holds(range)) {
        return Some(((*range).to_owned(), what));
    }
    (address.is_ipv6() && !holds(GLOBAL_V6)).then(|| (format!("{address}/128"), "not given out"))
}

/// The IPv4 address that is reached by way of this one.
fn inner(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let is_nat64 = address.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
    let [.., a, b, c, d] = address.octets();
    address.to_ipv4_mapped().or(is_nat64.then(|| Ipv4Addr::new(a, b, c, d)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_range_reads_and_its_ends_are_refused() {
        for (range, _) in SPECIAL {
            let range: IpNet = range.parse().unwrap();
            assert_eq!(range, range.trunc(), "it says which bits it means");
            for address in [range.network(), range.broadcast()] {
                assert!(check(address, &[]).is_err(), "{address}");
                // With the addresses that lie inside of others.
                assert!(check(address, &[range, "0.0.0.0/0".parse().unwrap()]).is_ok(), "{address}");
            }
        }
        assert!(GLOBAL_V6.parse::<IpNet>().is_ok());
    }

    #[test]
    fn what_lies_beside_the_ranges_is_public() {
        for address in
            ["9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "8.8.8.8"]
        {
            assert!(check(address.parse().unwrap(), &[]).is_ok(), "{address}");
        }
        assert!(check("2606:4700::1111".parse().unwrap(), &[]).is_ok());
        assert!(check("4000::1".parse().unwrap(), &[]).is_err(), "nobody has it");
    }
}
