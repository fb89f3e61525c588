//! Which hosts a command reaches: none, all but this machine, those of a list, or all that this machine reaches.

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
    /// A loopback of its own, and every other host as this machine reaches it; nothing of this machine itself but these.
    Own(Vec<AllowedHost>),
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
            (Self::Allow(own), Self::Allow(outer)) | (Self::Own(own), Self::Own(outer)) => {
                own.iter().all(|one| one.is_covered(outer))
            }
            // Other hosts are reached anyway; an address in a list may be this machine's.
            (Self::Allow(own), Self::Own(outer)) => {
                let mut near = own.iter().filter(|one| one.is_near());
                near.all(|one| one.is_covered(outer))
            }
            (Self::Host | Self::Allow(_) | Self::Own(_), _) => false,
        }
    }

    /// A network of its own from which nothing of this machine is reached: what commands get where nothing is said.
    pub fn own() -> Self {
        Self::Own(Vec::new())
    }

    /// The addresses and ports of this machine that are permitted beside a network of its own.
    pub(crate) fn of_this_machine(&self) -> &[AllowedHost] {
        match self {
            Self::Own(allowed) => allowed,
            Self::None | Self::Host | Self::Allow(_) => &[],
        }
    }

    /// Whether a host may be asked for by this name.
    pub fn permits(&self, host: &str, port: u16) -> bool {
        match self {
            Self::None => false,
            Self::Host => true,
            Self::Allow(hosts) | Self::Own(hosts) => {
                hosts.iter().any(|one| one.permits(host, port))
            }
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
            Self::Own(hosts) if hosts.is_empty() => to.write_str("own"),
            Self::Own(hosts) => write!(to, "own,allow:{}", joined(hosts)),
            Self::Allow(hosts) => write!(to, "allow:{}", joined(hosts)),
        }
    }
}

fn joined(hosts: &[AllowedHost]) -> String {
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    hosts.join(",")
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let list = |hosts: &str| -> Result<Vec<AllowedHost>, String> {
            hosts.split(',').map(str::parse).collect()
        };
        let allowed = |rest: &str| rest.strip_prefix("allow:").map(list).transpose();
        match text {
            "none" => return Ok(Self::None),
            "own" => return Ok(Self::own()),
            "host" => return Ok(Self::Host),
            _ => {}
        }
        let own = text
            .strip_prefix("own,")
            .map(allowed)
            .transpose()?
            .flatten();
        if let Some(hosts) = own {
            return Self::own_with(hosts);
        }
        allowed(text)?.map(Self::Allow).ok_or_else(|| {
            "write none, own, host, own,allow: and addresses of this machine, as in own,allow:localhost:5432, or allow: and \
             domains, as in allow:example.com,*.example.org"
                .to_owned()
        })
    }
}

impl Network {
    /// A network of its own with these addresses of this machine.
    pub fn own_with(allowed: Vec<AllowedHost>) -> Result<Self, String> {
        match allowed.iter().find(|one| !one.is_address()) {
            Some(one) => Err(format!(
                "'{one}' is no address of this machine: a network of its own reaches other hosts anyway; write localhost:PORT, or \
                 an address and its port"
            )),
            None => Ok(Self::Own(allowed)),
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
    fn is_covered(&self, outer: &[Self]) -> bool {
        outer.iter().any(|one| one.covers(self))
    }

    fn is_address(&self) -> bool {
        self.name == "localhost" || self.name.parse::<IpAddr>().is_ok()
    }

    /// Whether it may mean this machine, or a network around it.
    fn is_near(&self) -> bool {
        let address = self.name.parse::<IpAddr>();
        self.name == "localhost" || address.is_ok_and(|address| !is_public(address))
    }

    /// The ports of this machine's loopback that it means.
    pub(crate) fn loopback_ports(&self) -> &[u16] {
        let address = self.name.parse::<IpAddr>();
        match self.name == "localhost" || address.is_ok_and(|address| address.is_loopback()) {
            true => self.port.as_ref().map_or(&PORTS[..], std::slice::from_ref),
            false => &[],
        }
    }

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

/// The host and the port that a URL leads to, where its scheme says which port that is; `None` where it names no host.
pub(crate) fn host_of_url(url: &str) -> Option<(String, u16)> {
    const PORTS: [(&str, u16); 6] = [
        ("postgres", 5432),
        ("postgresql", 5432),
        ("mysql", 3306),
        ("mariadb", 3306),
        ("mongodb", 27017),
        ("redis", 6379),
    ];
    let (scheme, rest) = url.split_once("://")?;
    let (_, usual) = PORTS.iter().find(|(known, _)| *known == scheme)?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority
        .rsplit('@')
        .next()
        .filter(|host| !host.is_empty())?;
    let (host, port) = host_and_port(host)?;
    Some((host, port.unwrap_or(*usual)))
}

/// Whether an address means this machine, the link it is on, or services that clouds offer their machines; `None` if it does not.
pub(crate) fn why_guarded(address: IpAddr) -> Option<&'static str> {
    const MINE: &str = "it means this machine";
    const LINK: &str = "at link-local addresses clouds offer their machines credentials";
    const CLOUD: &str = "there a cloud offers its machines credentials";
    const MANY: &str = "it means many machines at once";
    let v4 = |address: Ipv4Addr| match address.octets() {
        [0 | 127, ..] => Some(MINE),
        [169, 254, ..] => Some(LINK),
        // Of Alibaba, Oracle and Azure.
        [100, 100, 100, 200] | [192, 0, 0, 192] | [168, 63, 129, 16] => Some(CLOUD),
        [first, ..] if first >= 224 => Some(MANY),
        _ => None,
    };
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => {
            let embedded = |high: u16, low: u16| {
                let [a, b] = high.to_be_bytes();
                let [c, d] = low.to_be_bytes();
                v4(Ipv4Addr::new(a, b, c, d))
            };
            match address.segments() {
                [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Some(MINE),
                [0, 0, 0, 0, 0, 0xffff, high, low] => embedded(high, low),
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
                [0x2002, high, low, ..] => embedded(high, low),
                [first, ..] if first & 0xffc0 == 0xfe80 => Some(LINK),
                [first, ..] if first & 0xff00 == 0xff00 => Some(MANY),
                // Of Amazon.
                [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] => Some(CLOUD),
                _ => None,
            }
        }
    }
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
            "own,",
            "own,localhost:1",
            "own,allow:",
            "own,allow:example.com",
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
            ("none", "own", true),
            ("own", "host", true),
            ("host", "own", false),
            ("own", "allow:a.b", false),
            ("allow:a.b,*.c.d", "own", true),
            ("allow:a.b,localhost:80", "own", false),
            ("allow:10.0.0.1:90", "own", false),
            ("own", "own,allow:localhost:5432", true),
            ("own,allow:localhost:5432", "own", false),
            (
                "own,allow:localhost:5432",
                "own,allow:localhost:5432,[::1]:90",
                true,
            ),
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
    fn urls_of_databases_say_where_they_are() {
        for (url, host, port) in [
            ("postgres://ann@db.example/app", "db.example", 5432),
            ("postgresql://a:b@10.0.0.1:6000/app?x=@y", "10.0.0.1", 6000),
            ("postgres://[::1]:90/x", "::1", 90),
        ] {
            assert_eq!(host_of_url(url), Some((host.to_owned(), port)), "{url}");
        }
        for url in [
            "postgres:///app?host=/run/x",
            "/srv/app",
            "https://a.b/",
            "",
        ] {
            assert_eq!(host_of_url(url), None, "{url}");
        }
    }

    #[test]
    fn networks_are_written_as_they_are_read() {
        for text in [
            "none",
            "own",
            "host",
            "own,allow:localhost:5432,[::1]:90",
            "allow:a.b,*.c.d:1",
        ] {
            assert_eq!(network(text).to_string(), text);
        }
    }

    #[test]
    fn this_machine_its_link_and_its_cloud_are_guarded() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "100.100.100.200",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:a9fe:a9fe::",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
        ] {
            assert!(
                why_guarded(address.parse().expect("an address")).is_some(),
                "{address}"
            );
        }
        for address in [
            "10.0.0.1",
            "192.168.1.1",
            "93.184.216.34",
            "100.64.0.1",
            "2606:4700::1",
            "fd00::1",
        ] {
            assert_eq!(
                why_guarded(address.parse().expect("an address")),
                None,
                "{address}"
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
