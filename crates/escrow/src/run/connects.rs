//! Connections out of a network of the plan's own, on the side of the command: each `connect` waits until the supervisor
//! has permitted its destination and opened the way, then the kernel carries it out.
//!
//! The process that answers the kernel's questions ([`renames`](super::renames)) lives in the gateway's namespace
//! ([`own_network`](super::own_network)). It asks the supervisor, opens a listener at the very address and port, hands it over, and
//! lets the call go on: the kernel then connects to that listener, and the program sees the address it asked for. A listener takes
//! one connection. A call whose memory was changed meanwhile reaches another listener that was permitted, or nothing.
//!
//! A connection that takes longer than [`outgoing::HOLD`](super::outgoing) goes on as well, to a listener that answers only once
//! the server has: the program waits as long as it wants to, in its own way, and signals reach it.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_reuseaddr, set_socket_reuseport, socket_acceptconn, socket_type,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use super::notify::{HeldCall, HeldCalls};
use super::supervise::Channel;
use super::{filter, listening, own_network};

/// How long a connection waits for another one to the same address and port to be taken.
const QUEUE: Duration = Duration::from_secs(6);

/// How often such a connection tries again.
pub(super) const AGAIN: Duration = Duration::from_millis(1);

/// How many ports of the loopback are looked at that nothing inside listens on.
const MISSED: usize = 64;

/// What the command's side says to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromInside {
    /// A process wants to connect.
    Connect {
        call: u64,
        to: SocketAddr,
        udp: bool,
    },
    /// The socket for this call, which comes along; without one it could not be opened, or is not needed any more.
    Opened { call: u64 },
    /// A process connects to this port of the plan's loopback, where nothing listens; or where something does by now.
    Loopback { port: u16, missed: bool },
}

/// The supervisor's answer to a call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToInside {
    /// The call fails.
    Fail { call: u64, errno: i32 },
    /// The way is open already.
    Go { call: u64 },
    /// Open a socket there, hand it over, and let the call go on. Where the server has not answered yet, neither does the
    /// socket, until the supervisor takes the first connection from it, which is ours.
    Open {
        call: u64,
        to: SocketAddr,
        udp: bool,
        late: bool,
    },
}

/// A call that waits.
struct WaitingCall {
    call: HeldCall,
    noted: Option<usize>,
}

/// A call for which a socket is to be opened while another one has the address.
struct QueuedCall {
    number: u64,
    to: SocketAddr,
    late: bool,
    until: Instant,
}

/// The connections of one command that wait for an answer.
pub(super) struct Connects<'a> {
    channel: &'a Channel,
    waiting: HashMap<u64, WaitingCall>,
    queued: Vec<QueuedCall>,
    next: u64,
    missed: BTreeSet<u16>,
}

impl<'a> Connects<'a> {
    pub(super) fn new(channel: &'a Channel) -> Self {
        Self {
            channel,
            waiting: HashMap::new(),
            queued: Vec::new(),
            // Sockets that no call asked for have numbers from 0 on; a process that was killed had others.
            next: u64::from(std::process::id()) << 32,
            missed: BTreeSet::new(),
        }
    }

    pub(super) fn channel(&self) -> BorrowedFd<'a> {
        self.channel.as_fd()
    }

    /// Whether a call waits that is to be tried again soon.
    pub(super) fn has_queue(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Takes a call that connects out of the plan's network, and gives back any other.
    pub(super) fn take(
        &mut self,
        processes: &OwnedFd,
        call: HeldCall,
        noted: Option<usize>,
    ) -> Result<(), HeldCall> {
        let Some((to, udp)) = destination(processes, &call) else {
            return Err(call);
        };
        if own_network::is_plans(to.ip()) {
            return Err(call);
        }
        if to.ip().is_loopback() || to.ip().is_unspecified() {
            if !udp {
                self.note_loopback(processes, &call, to.port());
            }
            return Err(call);
        }
        let number = self.next;
        self.next += 1;
        let asked = FromInside::Connect {
            call: number,
            to,
            udp,
        };
        match self.channel.send(&asked) {
            Ok(()) => {
                self.waiting.insert(number, WaitingCall { call, noted });
                Ok(())
            }
            // Without a supervisor nothing is reached.
            Err(_) => Err(call),
        }
    }

    /// Tells the supervisor of a port where nothing listens inside: something may outside.
    fn note_loopback(&mut self, processes: &OwnedFd, call: &HeldCall, port: u16) {
        let known = self.missed.contains(&port);
        if !known && self.missed.len() >= MISSED {
            return;
        }
        let missed = !listens(processes, call, port);
        if missed == known {
            return;
        }
        match missed {
            true => self.missed.insert(port),
            false => self.missed.remove(&port),
        };
        match self.channel.send(&FromInside::Loopback { port, missed }) {
            Ok(()) | Err(_) => {}
        }
    }

    /// Hears an answer of the supervisor. Returns `false` when it is gone.
    pub(super) fn hear(&mut self, listener: BorrowedFd<'_>, held: &HeldCalls) -> bool {
        match self.channel.receive::<ToInside>() {
            Ok(Some(ToInside::Go { call })) => self.go_on(listener, held, call),
            Ok(Some(ToInside::Fail { call, errno })) => {
                self.finish(listener, held, call, Errno::from_raw_os_error(errno));
            }
            Ok(Some(ToInside::Open {
                call,
                to,
                udp: true,
                ..
            })) => self.open_udp(listener, held, call, to),
            Ok(Some(ToInside::Open { call, to, late, .. })) => {
                self.queued.push(QueuedCall {
                    number: call,
                    to,
                    late,
                    until: Instant::now() + QUEUE,
                });
                self.open_queued(listener, held);
            }
            Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return false,
        }
        true
    }

    /// Opens what waits, as far as its addresses are free.
    pub(super) fn open_queued(&mut self, listener: BorrowedFd<'_>, held: &HeldCalls) {
        for one in std::mem::take(&mut self.queued) {
            let number = one.number;
            let there = self.waiting.get(&number);
            if !there.is_some_and(|there| there.call.waits(listener)) {
                self.hand_over(number, None);
                self.forget(held, number);
                continue;
            }
            match listen(one.to, one.late) {
                Ok((socket, first)) => {
                    self.hand_over(number, Some(socket.as_fd()));
                    self.go_on(listener, held, number);
                    drop(first);
                }
                Err(Errno::ADDRINUSE) if Instant::now() < one.until => self.queued.push(one),
                Err(errno) => {
                    self.hand_over(number, None);
                    let errno = match errno {
                        Errno::ADDRINUSE => Errno::TIMEDOUT,
                        errno => errno,
                    };
                    self.finish(listener, held, number, errno);
                }
            }
        }
    }

    fn open_udp(
        &mut self,
        listener: BorrowedFd<'_>,
        held: &HeldCalls,
        number: u64,
        to: SocketAddr,
    ) {
        let opened = shared_socket(to, true);
        self.hand_over(number, opened.as_ref().ok().map(AsFd::as_fd));
        self.go_on(listener, held, number);
    }

    fn hand_over(&self, call: u64, socket: Option<BorrowedFd<'_>>) {
        let opened = FromInside::Opened { call };
        let told = match socket {
            Some(socket) => self.channel.send_with(&opened, socket),
            None => self.channel.send(&opened),
        };
        // A supervisor that is gone needs nothing.
        match told {
            Ok(()) | Err(_) => {}
        }
    }

    fn go_on(&mut self, listener: BorrowedFd<'_>, held: &HeldCalls, number: u64) {
        if let Some(WaitingCall { call, noted }) = self.waiting.remove(&number) {
            call.go_on(listener);
            noted.into_iter().for_each(|at| held.forget(at));
        }
    }

    fn finish(&mut self, listener: BorrowedFd<'_>, held: &HeldCalls, number: u64, errno: Errno) {
        if let Some(WaitingCall { call, noted }) = self.waiting.remove(&number) {
            call.finish(listener, Err(errno));
            noted.into_iter().for_each(|at| held.forget(at));
        }
    }

    fn forget(&mut self, held: &HeldCalls, number: u64) {
        if let Some(WaitingCall { noted, .. }) = self.waiting.remove(&number) {
            noted.into_iter().for_each(|at| held.forget(at));
        }
    }
}

/// Where a call connects to, and whether by datagrams; `None` where that is no address of the internet.
fn destination(processes: &OwnedFd, call: &HeldCall) -> Option<(SocketAddr, bool)> {
    let (descriptor, address, length) = filter::connect_of(call.call, call.arguments)?;
    let mut bytes = [0; 28];
    let length = length.min(bytes.len());
    let read = call.bytes_at(address, &mut bytes[..length])?;
    let to = socket_address(&bytes[..read])?;
    let socket = call.descriptor(processes, descriptor);
    let udp = socket.as_ref().map(socket_type) == Ok(Ok(SocketType::DGRAM));
    // The kernel refuses these by itself.
    let is_done = |socket: &OwnedFd| {
        rustix::net::getpeername(socket).is_ok() || socket_acceptconn(socket) == Ok(true)
    };
    if !udp && socket.as_ref().is_ok_and(is_done) {
        return None;
    }
    Some((to, udp))
}

/// Reads an address as programs hand it to the kernel. An IPv4 address mapped into IPv6 comes out as IPv4.
fn socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    let address = match i32::from(family) {
        libc::AF_INET => {
            let octets: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            IpAddr::V4(Ipv4Addr::from(octets))
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            Ipv6Addr::from(octets).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// Whether anything in the caller's network namespace listens on a port.
fn listens(processes: &OwnedFd, call: &HeldCall, port: u16) -> bool {
    ["tcp", "tcp6"].into_iter().any(|list| {
        let path = format!("{}/net/{list}", call.thread);
        let opened = openat(processes, path, OFlags::CLOEXEC, Mode::empty());
        let text = opened.map(|file| std::io::read_to_string(std::fs::File::from(file)));
        match text {
            Ok(Ok(text)) => listening::sockets(&text).any(|(_, known)| known == port),
            // What cannot be looked at is no miss.
            Ok(Err(_)) | Err(_) => true,
        }
    })
}

fn socket(to: SocketAddr, kind: SocketType) -> Result<OwnedFd, Errno> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)
}

/// A socket at this address, of which other commands of the plan may have one too: the kernel takes one that is there.
pub(super) fn shared_socket(to: SocketAddr, udp: bool) -> Result<OwnedFd, Errno> {
    let opened = socket(
        to,
        if udp {
            SocketType::DGRAM
        } else {
            SocketType::STREAM
        },
    )?;
    set_socket_reuseport(&opened, true)?;
    if !udp {
        set_socket_reuseaddr(&opened, true)?;
    }
    rustix::net::bind(&opened, &to)?;
    if !udp {
        rustix::net::listen(&opened, 128)?;
    }
    Ok(opened)
}

/// A socket that takes one connection to this address. One that is late is full from the start, with a connection of ours that is
/// returned too: the kernel answers no other one until that is taken.
fn listen(to: SocketAddr, late: bool) -> Result<(OwnedFd, Option<OwnedFd>), Errno> {
    let listener = socket(to, SocketType::STREAM)?;
    set_socket_reuseaddr(&listener, true)?;
    rustix::net::bind(&listener, &to)?;
    rustix::net::listen(&listener, if late { 0 } else { 1 })?;
    let first = match late {
        true => {
            let first = socket(to, SocketType::STREAM)?;
            rustix::io::ioctl_fionbio(&first, true)?;
            match rustix::net::connect(&first, &to) {
                // Other connections may have the place: then they hold it.
                Ok(()) | Err(Errno::INPROGRESS) => Some(first),
                Err(errno) => return Err(errno),
            }
        }
        false => None,
    };
    Ok((listener, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_reads_them() {
        let v4 = [&[2, 0, 0x1f, 0x90, 10, 1, 2, 3][..], &[0; 8]].concat();
        assert_eq!(socket_address(&v4), "10.1.2.3:8080".parse().ok());
        let mut v6 = [0; 28];
        (v6[0], v6[2], v6[3], v6[23]) = (libc::AF_INET6 as u8, 1, 2, 1);
        assert_eq!(socket_address(&v6), "[::1]:258".parse().ok());
        // An IPv4 address in disguise.
        (v6[18], v6[19], v6[20], v6[23]) = (0xff, 0xff, 127, 1);
        assert_eq!(socket_address(&v6), "127.0.0.1:258".parse().ok());
        assert_eq!(socket_address(&v4[..7]), None);
        assert_eq!(socket_address(&v6[..20]), None);
        assert_eq!(socket_address(&[1, 0, b'/', b'x']), None);
        assert_eq!(socket_address(&[]), None);
    }
}
