//! The network of a plan's own: a loopback of its own, and a way out that leads to Escrow alone.
//!
//! ```text
//! plan's namespace                    gateway's namespace                      this machine
//! lo    127.0.0.1, ::1                lo    every address is local here        supervisor
//! eth0  198.51.100.254 ─ default route ─ eth0  198.51.100.253                  connects outside, passes bytes on
//!                                     listeners, one for each permitted connection ──┘
//! ```
//!
//! The gateway has no device that leads on. A packet of a command to any address arrives in the gateway's namespace, where each
//! address counts as local, and is answered only by a socket that was opened there after the supervisor permitted the
//! destination ([`outgoing`](super::outgoing)). So no race for memory or descriptors leads around that decision: without a
//! listener there is nothing to reach.
//!
//! Guarantees: nothing of this machine's network can be reached but through such a listener. Both namespaces and all their
//! devices end with their last process.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrV6, SocketFlags, SocketType};
use rustix::thread::{UnshareFlags, move_into_link_name_space};

use super::supervise::Channel;
use super::{limits, notify, sys};

/// Addresses for documentation, which hardly any real network has: of the gateway, and of the plan.
const V4: [Ipv4Addr; 2] = [
    Ipv4Addr::new(198, 51, 100, 253),
    Ipv4Addr::new(198, 51, 100, 254),
];

/// The same of IPv6. A local prefix, so that programs prefer IPv4 where a name has both.
const V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd65, 0x7363, 0x726f, 0x7700, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd65, 0x7363, 0x726f, 0x7700, 0, 0, 0, 2),
];

/// The name of the device on both sides.
const DEVICE: &[u8] = b"eth0\0";

const PERMANENT_WITHOUT_CHECK: u8 = (libc::IFA_F_PERMANENT | libc::IFA_F_NODAD) as u8;

/// The namespace of a gateway, and whether this machine has a way to IPv6 addresses.
pub(super) struct Gateway {
    pub(super) namespace: OwnedFd,
    v6: bool,
}

/// Makes the namespace of the gateway; this process is in it afterwards.
pub(super) fn make_gateway() -> Result<Gateway, Errno> {
    if !notify::can_ask() {
        return Err(Errno::OPNOTSUPP);
    }
    let v6 = has_v6();
    sys::unshare(UnshareFlags::NEWNET)?;
    sys::raise_loopback()?;
    permit_low_ports()?;
    // A route alone lets no process listen at any address of IPv6.
    let v6 = v6 && write(c"/proc/sys/net/ipv6/ip_nonlocal_bind", b"1").is_ok();
    let kernel = Kernel::open()?;
    let lo = kernel.index(b"lo\0")?;
    kernel.ask(route(
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        0,
        RouteTo::Local(lo),
    ))?;
    if v6 {
        kernel.ask(route(
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            0,
            RouteTo::Local(lo),
        ))?;
    }
    Ok(Gateway {
        namespace: current()?,
        v6,
    })
}

/// Joins the namespace of this process, which is the plan's, to the gateway.
pub(super) fn connect(gateway: &Gateway) -> Result<(), Errno> {
    permit_low_ports()?;
    let plan = current()?;
    let kernel = Kernel::open()?;
    kernel.ask(pair(&gateway.namespace))?;
    let enter = |namespace: &OwnedFd| move_into_link_name_space(namespace.as_fd(), None);
    enter(&gateway.namespace)?;
    let there = Kernel::open()?;
    let device = there.index(DEVICE)?;
    there.ask(up(device))?;
    there.ask(address(IpAddr::V4(V4[0]), 30, device))?;
    if gateway.v6 {
        there.ask(address(IpAddr::V6(V6[0]), 64, device))?;
        // Behind the route that makes every address local, the plan's own would be local, too.
        there.ask(route(IpAddr::V6(V6[1]), 128, RouteTo::Device(device)))?;
    }
    enter(&plan)?;
    let device = kernel.index(DEVICE)?;
    kernel.ask(up(device))?;
    kernel.ask(address(IpAddr::V4(V4[1]), 30, device))?;
    let default = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    kernel.ask(route(
        default,
        0,
        RouteTo::Gateway(IpAddr::V4(V4[0]), device),
    ))?;
    if gateway.v6 {
        kernel.ask(address(IpAddr::V6(V6[1]), 64, device))?;
        let default = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        kernel.ask(route(
            default,
            0,
            RouteTo::Gateway(IpAddr::V6(V6[0]), device),
        ))?;
    }
    Ok(())
}

/// What the process that answers the kernel's questions needs of the way out.
pub(super) struct Outside {
    gateway: OwnedFd,
    /// The other end is the supervisor's.
    pub(super) channel: Channel,
}

impl Outside {
    /// Finds the gateway of the plan whose process 1 has this number: its parent stays there. Asked for before any namespace is
    /// joined.
    pub(super) fn find(process_1: u32, channel: Channel) -> Result<Self, Errno> {
        let status = limits::text(
            &Path::new("/proc")
                .join(process_1.to_string())
                .join("status"),
        );
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        let parent = parent.ok_or(Errno::SRCH)?.trim();
        let path = Path::new("/proc").join(parent).join("ns/net");
        let gateway = fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        // Of a plan that is just ending the parent is another one, in the network of this machine.
        let number = |namespace: &OwnedFd| fs::fstat(namespace).map(|stat| stat.st_ino);
        match number(&gateway)? == number(&current()?)? {
            true => Err(Errno::SRCH),
            false => Ok(Self { gateway, channel }),
        }
    }

    pub(super) fn enter_gateway(&self) -> Result<(), Errno> {
        move_into_link_name_space(self.gateway.as_fd(), None)
    }
}

/// The network namespace of this process.
pub(super) fn current() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    fs::open(c"/proc/self/ns/net", flags, Mode::empty())
}

/// Ports below 1024 are the plan's like any other: only this namespace has them.
fn permit_low_ports() -> Result<(), Errno> {
    write(c"/proc/sys/net/ipv4/ip_unprivileged_port_start", b"0")
}

fn write(setting: &CStr, value: &[u8]) -> Result<(), Errno> {
    let file = fs::open(setting, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, value).map(drop)
}

/// Whether an address is the plan's own.
pub(super) fn is_plans(address: IpAddr) -> bool {
    address == IpAddr::V4(V4[1]) || address == IpAddr::V6(V6[1])
}

/// Whether an address is one of the machine that this process is on, or of many machines at once: the kernel says where it would
/// send. An address that nothing leads to is not.
pub(super) fn is_of_this_machine(to: IpAddr) -> Result<bool, Errno> {
    const KIND: usize = 16 + 7;
    let kernel = Kernel::open()?;
    let prefix = match to {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    };
    let body = [family(to), prefix, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let asked = Message::new(libc::RTM_GETROUTE, false, &body).with(libc::RTA_DST, &octets(to));
    match kernel.exchange(asked) {
        Ok(answer) => Ok(answer.get(KIND) != Some(&libc::RTN_UNICAST)),
        Err(Errno::NETUNREACH | Errno::HOSTUNREACH) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether packets to IPv6 addresses can leave this machine. Nothing is sent.
fn has_v6() -> bool {
    let public = SocketAddrV6::new(Ipv6Addr::new(0x2001, 0x4860, 0, 0, 0, 0, 0, 1), 9, 0, 0);
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    rustix::net::socket_with(AddressFamily::INET6, kind, flags, None)
        .and_then(|socket| rustix::net::connect(&socket, &public))
        .is_ok()
}

/// Where a route leads.
enum RouteTo {
    /// Every address is this namespace's own.
    Local(u32),
    Device(u32),
    Gateway(IpAddr, u32),
}

/// A message to the kernel about devices, addresses and routes.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, create: bool, body: &[u8]) -> Self {
        let exclusive = match create {
            true => libc::NLM_F_CREATE | libc::NLM_F_EXCL,
            false => 0,
        };
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | exclusive) as u16;
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(body);
        Self(bytes)
    }

    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(attribute(kind, value));
        self
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (4 + value.len()) as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

/// Brings a device up.
fn up(device: u32) -> Message {
    let mut body = [0; 16];
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    body[4..8].copy_from_slice(&device.to_ne_bytes());
    body[8..12].copy_from_slice(&up);
    body[12..16].copy_from_slice(&up);
    Message::new(libc::RTM_NEWLINK, false, &body)
}

/// Two devices that are one cable: one here, one in another namespace.
fn pair(other: &OwnedFd) -> Message {
    const INFO_KIND: u16 = 1;
    const INFO_DATA: u16 = 2;
    const PEER: u16 = 1;
    let other = other.as_raw_fd().to_ne_bytes();
    let peer = [
        &[0; 16][..],
        &attribute(libc::IFLA_IFNAME, DEVICE),
        &attribute(libc::IFLA_NET_NS_FD, &other),
    ];
    let data = attribute(PEER, &peer.concat());
    let info = [attribute(INFO_KIND, b"veth"), attribute(INFO_DATA, &data)];
    Message::new(libc::RTM_NEWLINK, true, &[0; 16])
        .with(libc::IFLA_IFNAME, DEVICE)
        .with(libc::IFLA_LINKINFO, &info.concat())
}

fn address(own: IpAddr, prefix: u8, device: u32) -> Message {
    let [a, b, c, d] = device.to_ne_bytes();
    let body = [family(own), prefix, PERMANENT_WITHOUT_CHECK, 0, a, b, c, d];
    let own = octets(own);
    Message::new(libc::RTM_NEWADDR, true, &body)
        .with(libc::IFA_LOCAL, &own)
        .with(libc::IFA_ADDRESS, &own)
}

fn route(to: IpAddr, prefix: u8, how: RouteTo) -> Message {
    let (table, scope, kind) = match how {
        RouteTo::Local(_) => (libc::RT_TABLE_LOCAL, libc::RT_SCOPE_HOST, libc::RTN_LOCAL),
        RouteTo::Device(_) => (libc::RT_TABLE_LOCAL, libc::RT_SCOPE_LINK, libc::RTN_UNICAST),
        RouteTo::Gateway(..) => (
            libc::RT_TABLE_MAIN,
            libc::RT_SCOPE_UNIVERSE,
            libc::RTN_UNICAST,
        ),
    };
    let (family, protocol) = (family(to), libc::RTPROT_BOOT);
    let body = [
        family, prefix, 0, 0, table, protocol, scope, kind, 0, 0, 0, 0,
    ];
    let message = Message::new(libc::RTM_NEWROUTE, true, &body);
    let message = match prefix {
        0 => message,
        _ => message.with(libc::RTA_DST, &octets(to)),
    };
    match how {
        RouteTo::Local(device) | RouteTo::Device(device) => {
            message.with(libc::RTA_OIF, &device.to_ne_bytes())
        }
        RouteTo::Gateway(gateway, device) => message
            .with(libc::RTA_GATEWAY, &octets(gateway))
            .with(libc::RTA_OIF, &device.to_ne_bytes()),
    }
}

/// The kernel's side of the network namespace that this process was in when it was opened.
struct Kernel(OwnedFd);

impl Kernel {
    fn open() -> Result<Self, Errno> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None);
        socket.map(Self)
    }

    /// Has the kernel do what a message says.
    fn ask(&self, message: Message) -> Result<(), Errno> {
        self.exchange(message).map(drop)
    }

    /// Sends a message, and returns the answer.
    fn exchange(&self, message: Message) -> Result<Vec<u8>, Errno> {
        let Message(mut bytes) = message;
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        rustix::net::send(&self.0, &bytes, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (length, _) = rustix::net::recv(&self.0, &mut answer, rustix::net::RecvFlags::empty())?;
        let answer = &answer[..length];
        let kind = answer.get(4..6).ok_or(Errno::BADMSG)?;
        if kind != (libc::NLMSG_ERROR as u16).to_ne_bytes() {
            return Ok(answer.to_vec());
        }
        let word = answer.get(16..20).ok_or(Errno::BADMSG)?;
        match i32::from_ne_bytes(word.try_into().expect("these are four bytes")) {
            0 => Ok(Vec::new()),
            error => Err(Errno::from_raw_os_error(-error)),
        }
    }

    /// The number of a device in the namespace of this process.
    fn index(&self, name: &[u8]) -> Result<u32, Errno> {
        let name = std::str::from_utf8(&name[..name.len() - 1]).map_err(|_| Errno::INVAL)?;
        rustix::net::netdevice::name_to_index(&self.0, name)
    }
}
