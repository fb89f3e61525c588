//! Which hosts a command reaches: none, all that this machine reaches, or those of a list.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The ports of a host that is named without one.
const PORTS: [u16; 2] = [80, 443];

/// The network of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Nothing but a loopback of its own.
    #[default]
    None,
    /// That of this machine.
    Host,
    /// These hosts, through a proxy.
    Allow(Vec<AllowedHost>),
}

impl Network {
    /// Whether it reaches nothing that another one does not reach.
    pub fn is_within(&self, outer: &Self) -> bool {
        match (self, outer) {
            (Self::None, _) | (_, Self::Host) => true,
            (Self::Allow(own), Self::Allow(outer)) => own
                .iter()
                .all(|one| outer.iter().any(|two| two.covers(one))),
            (Self::Host | Self::Allow(_), _) => false,
        }
    }

    /// Whether a host may be asked for by this name.
    pub fn permits(&self, host: &str, port: u16) -> bool {
        match self {
            Self::None => false,
            Self::Host => true,
            Self::Allow(hosts) => hosts.iter().any(|one| one.permits(host, port)),
        }
    }

    /// Whether what a permitted name leads to may be reached. A name can be made to lead anywhere, so an address that is not public
    /// has to be in the list itself; only `localhost` says what it leads to.
    pub fn permits_address(&self, host: &str, address: IpAddr, port: u16) -> bool {
        is_public(address)
            || (host == "localhost" && address.is_loopback())
            || self.permits(&address.to_string(), port)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => to.write_str("none"),
            Self::Host => to.write_str("host"),
            Self::Allow(hosts) => {
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                write!(to, "allow:{}", hosts.join(","))
            }
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("allow:")) {
            ("none", _) => Ok(Self::None),
            ("host", _) => Ok(Self::Host),
            (_, Some(hosts)) => {
                let hosts = hosts.split(',').map(str::parse);
                hosts.collect::<Result<_, _>>().map(Self::Allow)
            }
            _ => Err(
                "write none, host, or allow: and domains, as in allow:example.com,*.example.org"
                    .to_owned(),
            ),
        }
    }
}

/// A host of a list: a domain, `*.` and a domain for every name below it, or an address; and its port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowedHost {
    name: String,
    port: Option<u16>,
}

impl AllowedHost {
    fn permits(&self, host: &str, port: u16) -> bool {
        self.names(host) && self.has_port(port)
    }

    /// Whether it means a host, at whatever port.
    pub(crate) fn names(&self, host: &str) -> bool {
        match self.name.strip_prefix('*') {
            Some(end) => host.len() > end.len() && host.ends_with(end),
            None => host == self.name,
        }
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.map_or(PORTS.contains(&port), |own| own == port)
    }

    /// Whether it permits all that another one does.
    fn covers(&self, other: &Self) -> bool {
        let ports = other.port.as_ref().map_or(&PORTS[..], std::slice::from_ref);
        let names = self.name == other.name || self.names(other.name.trim_start_matches('*'));
        names && ports.iter().all(|port| self.has_port(*port))
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) if self.name.contains(':') => write!(to, "[{}]:{port}", self.name),
            Some(port) => write!(to, "{}:{port}", self.name),
            None => to.write_str(&self.name),
        }
    }
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let below = text.strip_prefix("*.");
        let (name, port) = host_and_port(below.unwrap_or(text)).ok_or_else(|| {
            format!("'{text}' is not a domain: write example.com, *.example.com, example.com:8443 or an address")
        })?;
        let name = match below {
            Some(_) => format!("*.{name}"),
            None => name,
        };
        Ok(Self { name, port })
    }
}

/// What a command tried to reach in vain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeniedConnection {
    /// The host, as it was asked for.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Why it was denied.
    pub reason: String,
    /// How often.
    pub count: u64,
}

/// Reads `HOST` or `HOST:PORT`: the name in small letters, an address in its usual form.
pub fn host_and_port(text: &str) -> Option<(String, Option<u16>)> {
    let number = |text: &str| text.parse().ok().filter(|port| *port != 0);
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(number(port)?)),
                None => rest.is_empty().then_some((host, None))?,
            }
        }
        None if text.parse::<Ipv6Addr>().is_ok() => (text, None),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(number(port)?)),
            None => (text, None),
        },
    };
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some((address.to_string(), port));
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(plain);
    (host.len() <= 253 && host.split('.').all(label)).then_some((host, port))
}

/// Whether an address belongs to the public network: not to this machine, the networks around it, or the services that clouds offer
/// their machines at link-local addresses.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => {
            let parts = address.segments();
            let embedded = |high: u16, low: u16| {
                let [a, b] = high.to_be_bytes();
                let [c, d] = low.to_be_bytes();
                is_public_v4(Ipv4Addr::new(a, b, c, d))
            };
            match parts {
                // What leads to an IPv4 address is what that is: mapped, NAT64, 6to4.
                [0, 0, 0, 0, 0, 0xffff, high, low] => embedded(high, low),
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
                [0x2002, high, low, ..] => embedded(high, low),
                // Only this part is given out; Teredo and examples lie in it.
                [first, second, ..] => {
                    first & 0xe000 == 0x2000 && !(first == 0x2001 && [0, 0xdb8].contains(&second))
                }
            }
        }
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    match address.octets() {
        [0 | 10 | 127 | 224.., ..] => false,
        [100, second, ..] => second & 0xc0 != 64,
        [169, 254, ..] | [192, 168, ..] => false,
        [172, second, ..] => second & 0xf0 != 16,
        [192, 0, 0 | 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => false,
        [198, second, ..] => second & 0xfe != 18,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().expect("a network")
    }

    #[test]
    fn a_list_permits_what_it_names_and_no_more() {
        let list =
            network("allow:Example.com.,*.example.org,db.example:5432,127.0.0.1:8080,[::1]:90");
        for (host, port, permitted) in [
            ("example.com", 443, true),
            ("example.com", 80, true),
            ("example.com", 22, false),
            ("www.example.com", 443, false),
            ("example.com.evil.net", 443, false),
            ("a.b.example.org", 443, true),
            ("example.org", 443, false),
            ("evilexample.org", 443, false),
            ("db.example", 5432, true),
            ("db.example", 443, false),
            ("127.0.0.1", 8080, true),
            ("127.0.0.1", 80, false),
            ("::1", 90, true),
        ] {
            assert_eq!(list.permits(host, port), permitted, "{host}:{port}");
        }
        for text in [
            "allow:",
            "allow:*",
            "allow:https://x.y",
            "allow:a b",
            "allow:a:0",
            "allow:a:x",
            "allow:*.*.x",
            "all",
            "",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_list_is_within_another_one_only_if_it_is_no_wider() {
        for (own, outer, within) in [
            ("none", "allow:a.b", true),
            ("allow:a.b", "host", true),
            ("host", "allow:a.b", false),
            ("allow:a.b", "none", false),
            ("allow:a.b", "allow:a.b,c.d", true),
            ("allow:a.b:443", "allow:a.b", true),
            ("allow:a.b", "allow:a.b:443", false),
            ("allow:x.a.b", "allow:*.a.b", true),
            ("allow:*.x.a.b", "allow:*.a.b", true),
            ("allow:*.a.b", "allow:*.a.b", true),
            ("allow:*.a.b", "allow:x.a.b", false),
            ("allow:a.b", "allow:*.a.b", false),
            ("allow:*.a.b", "allow:a.b", false),
        ] {
            assert_eq!(
                network(own).is_within(&network(outer)),
                within,
                "{own} in {outer}"
            );
        }
    }

    #[test]
    fn addresses_that_are_not_public_must_be_named() {
        let list = network("allow:evil.example,localhost:80,10.1.2.3");
        for (host, address, permitted) in [
            ("evil.example", "93.184.216.34", true),
            ("evil.example", "2606:4700::1", true),
            ("evil.example", "127.0.0.1", false),
            ("evil.example", "10.1.2.3", true),
            ("evil.example", "10.1.2.4", false),
            ("evil.example", "169.254.169.254", false),
            ("evil.example", "::ffff:169.254.169.254", false),
            ("evil.example", "64:ff9b::a9fe:a9fe", false),
            ("evil.example", "2002:7f00:1::", false),
            ("evil.example", "::1", false),
            ("evil.example", "fe80::1", false),
            ("evil.example", "fd00::1", false),
            ("evil.example", "0.0.0.0", false),
            ("evil.example", "100.64.0.1", false),
            ("evil.example", "172.31.0.1", false),
            ("evil.example", "192.168.0.1", false),
            ("localhost", "127.0.0.1", true),
            ("localhost", "10.1.2.4", false),
        ] {
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(
                list.permits_address(host, address, 80),
                permitted,
                "{host} {address}"
            );
        }
    }
}
