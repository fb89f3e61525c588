//! Connections out of a network of the plan's own, on the side of this machine.
//!
//! The supervisor hears of each connection before it is made ([`connects`](super::connects)), decides by its address, makes it from
//! here, and passes bytes on. So programs reach what the user reaches, but for this machine itself: its loopback, its
//! other addresses, the link it is on, what clouds offer their machines, and the databases that the plan holds. Name servers
//! are reached, whatever their address is.
//!
//! Guarantees: an error of the network is the program's error (`ECONNREFUSED`, `ENETUNREACH`); a connection that breaks breaks
//! inside too. Everything is bounded, and ends with the command. What was denied is kept for the report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket,
};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::connects::{self, FromInside, ToInside};
use super::launcher::StepResult;
use super::supervise::{Channel, at};
use super::{Event, limits, listening, own_network, relay};
use crate::model::network::{DeniedConnection, Network, why_guarded};

/// How long a call waits for the server before it goes on without an answer.
pub(super) const HOLD: Duration = Duration::from_secs(1);

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(130);

/// How long those inside may take to open a socket.
const OPENED: Duration = Duration::from_secs(10);

/// How long a process may take to connect to its listener: its call goes on at once, and other calls wait for the address.
const TAKE: Duration = Duration::from_secs(1);

/// How often those who wait look whether the command has ended.
const LOOK: Duration = Duration::from_millis(500);

/// How many connections there may be at once.
const CONNECTIONS: usize = 1024;

/// How many destinations of datagrams there may be at once.
const DATAGRAMS: usize = 256;

/// How many denied addresses are told apart.
const DENIED: usize = 100;

/// The port of name servers.
const NAMES: u16 = 53;

/// What of the way out is decided for a command.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutgoingRules {
    /// The network that was chosen.
    pub(crate) network: Network,
    /// Databases that the plan holds, each a host, and its port.
    pub(crate) held: Vec<(String, u16)>,
}

/// The way out of one command. It ends when this is dropped.
pub(crate) struct Outgoing {
    shared: Arc<Shared>,
    hears: Option<JoinHandle<()>>,
}

struct Shared {
    channel: Channel,
    network: Network,
    held: BTreeSet<SocketAddr>,
    name_servers: Vec<IpAddr>,
    over: AtomicBool,
    serving: AtomicUsize,
    next: AtomicU64,
    /// Those who wait for a socket, by call.
    opened: Mutex<HashMap<u64, Sender<Option<OwnedFd>>>>,
    /// Both ends of every connection.
    open: Mutex<HashMap<u64, Arc<[TcpStream; 2]>>>,
    datagrams: Mutex<BTreeSet<SocketAddr>>,
    /// Servers that have not answered for a while, each with a listener that answers as soon as they do.
    late: Mutex<BTreeSet<SocketAddr>>,
    denied: Mutex<BTreeMap<SocketAddr, DeniedConnection>>,
    missed: Mutex<BTreeSet<u16>>,
}

fn lock<T>(one: &Mutex<T>) -> MutexGuard<'_, T> {
    one.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name servers of this machine.
pub(super) fn name_servers() -> Vec<IpAddr> {
    let text = limits::text(Path::new("/etc/resolv.conf"));
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("nameserver"));
    let found: Vec<IpAddr> = lines.filter_map(|rest| rest.trim().parse().ok()).collect();
    match found.is_empty() {
        // As the C library does.
        true => vec![IpAddr::from([127, 0, 0, 1])],
        false => found.into_iter().take(3).collect(),
    }
}

/// Addresses of this machine's loopback that the plan reaches, permitted ones and name servers, and whether by datagrams.
pub(super) fn relays(network: &Network) -> Vec<(SocketAddr, bool)> {
    if !matches!(network, Network::Own(_)) {
        return Vec::new();
    }
    let allowed = network.of_this_machine().iter();
    let ports: BTreeSet<u16> = allowed
        .flat_map(|one| one.loopback_ports())
        .copied()
        .collect();
    let both = |port: u16| {
        [
            IpAddr::from(Ipv4Addr::LOCALHOST),
            IpAddr::from(Ipv6Addr::LOCALHOST),
        ]
        .map(|address| (SocketAddr::new(address, port), false))
    };
    let near = name_servers().into_iter().filter(IpAddr::is_loopback);
    let near =
        near.flat_map(|server| [true, false].map(|udp| (SocketAddr::new(server, NAMES), udp)));
    ports.into_iter().flat_map(both).chain(near).collect()
}

/// Opens sockets for these on the plan's loopback, and hands them to the supervisor. Where a server inside has the port, the port stays
/// the server's.
pub(super) fn offer(relays: &[(SocketAddr, bool)], channel: &Channel) -> StepResult<()> {
    for (to, udp) in relays {
        if let Ok(socket) = connects::shared_socket(*to, *udp) {
            let sent = channel.send_with(&Event::Relay(*to, *udp), socket.as_fd());
            sent.map_err(at("send to the supervisor"))?;
        }
    }
    Ok(())
}

impl Outgoing {
    /// Serves the connections that are asked for on a channel.
    pub(crate) fn start(channel: OwnedFd, rules: &OutgoingRules) -> Self {
        let shared = Arc::new(Shared::new(Channel::new(channel), rules, name_servers()));
        // Some programs ask name servers without connecting, so nobody would hear of it.
        let far = shared.name_servers.iter().filter(|one| !one.is_loopback());
        for (number, server) in far.enumerate() {
            let (shared, to) = (Arc::clone(&shared), SocketAddr::new(*server, NAMES));
            let expected = shared.expect(number as u64);
            spawn(move || shared.datagrams(number as u64, to, &expected));
        }
        let hears = {
            let shared = Arc::clone(&shared);
            Builder::new().spawn(move || shared.hear()).ok()
        };
        Self { shared, hears }
    }

    /// Connects a socket of the plan's loopback to the same address of this machine's.
    pub(crate) fn relay(&self, socket: OwnedFd, to: SocketAddr, udp: bool) {
        let shared = Arc::clone(&self.shared);
        match udp {
            true => spawn(move || {
                relay::datagrams(&UdpSocket::from(socket), to, &shared.over, || false);
            }),
            false => spawn(move || shared.accept_for(&TcpListener::from(socket), to)),
        };
    }

    /// Returns the denied addresses, and the ports looked for on the loopback where a process of this machine listens.
    pub(crate) fn denied(&self) -> Vec<DeniedConnection> {
        let mut all: Vec<_> = lock(&self.shared.denied).values().cloned().collect();
        let missed = lock(&self.shared.missed).clone();
        if !missed.is_empty() {
            all.extend(listening::outside(&missed).into_iter().map(|(port, who)| {
                let who = who.map_or_else(String::new, |who| format!(" ({who})"));
                DeniedConnection {
                    host: "localhost".to_owned(),
                    port,
                    reason: format!(
                        "this machine's{who} is not the plan's: `--network own,allow:localhost:{port}` reaches it, or make it a \
                         resource"
                    ),
                    count: 1,
                }
            }));
        }
        all
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes the thread that hears.
        let ended = rustix::net::shutdown(&self.shared.channel, rustix::net::Shutdown::Both);
        match self
            .hears
            .take()
            .filter(|_| ended.is_ok())
            .map(JoinHandle::join)
        {
            Some(Ok(()) | Err(_)) | None => {}
        }
        lock(&self.shared.open)
            .values()
            .for_each(|both| relay::end(both));
    }
}

/// Does it in a thread of its own. Returns `false` where there are too many.
fn spawn(work: impl FnOnce() + Send + 'static) -> bool {
    Builder::new().spawn(work).is_ok()
}

impl Shared {
    fn new(channel: Channel, rules: &OutgoingRules, name_servers: Vec<IpAddr>) -> Self {
        let held = rules.held.iter();
        let held = held.filter_map(|(host, port)| (host.as_str(), *port).to_socket_addrs().ok());
        Self {
            channel,
            network: rules.network.clone(),
            held: held.flatten().collect(),
            name_servers,
            over: AtomicBool::new(false),
            serving: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            opened: Mutex::default(),
            open: Mutex::default(),
            datagrams: Mutex::default(),
            late: Mutex::default(),
            denied: Mutex::default(),
            missed: Mutex::default(),
        }
    }

    fn hear(self: &Arc<Self>) {
        while !self.over.load(Ordering::SeqCst) {
            match self.channel.receive_with::<FromInside>() {
                Ok(Some((FromInside::Connect { call, to, udp }, _))) => self.connect(call, to, udp),
                Ok(Some((FromInside::Opened { call }, socket))) => {
                    if let Some(waits) = lock(&self.opened).remove(&call) {
                        match waits.send(socket) {
                            Ok(()) | Err(_) => {}
                        }
                    }
                }
                Ok(Some((FromInside::Loopback { port, missed }, _))) => {
                    let mut known = lock(&self.missed);
                    match missed {
                        true => known.insert(port),
                        false => known.remove(&port),
                    };
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn tell(&self, answer: &ToInside) {
        // A process that has ended needs no answer.
        match self.channel.send(answer) {
            Ok(()) | Err(_) => {}
        }
    }

    fn fail(&self, call: u64, errno: Errno) {
        let errno = errno.raw_os_error();
        self.tell(&ToInside::Fail { call, errno });
    }

    fn connect(self: &Arc<Self>, call: u64, to: SocketAddr, udp: bool) {
        if self.serving.load(Ordering::SeqCst) >= CONNECTIONS {
            return self.fail(call, Errno::AGAIN);
        }
        let expected = self.expect(call);
        self.serving.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(self);
        let begun = spawn(move || {
            match udp {
                true => shared.datagrams(call, to, &expected),
                false => shared.stream(call, to, &expected),
            }
            lock(&shared.opened).remove(&call);
            shared.serving.fetch_sub(1, Ordering::SeqCst);
        });
        if !begun {
            self.serving.fetch_sub(1, Ordering::SeqCst);
            self.fail(call, Errno::AGAIN);
        }
    }

    /// Waits for the socket of a call.
    fn expect(&self, call: u64) -> Receiver<Option<OwnedFd>> {
        let (sends, receives) = channel();
        lock(&self.opened).insert(call, sends);
        receives
    }

    /// Why an address is not reached.
    fn why_not(&self, to: SocketAddr) -> Option<String> {
        let allow = || format!("`--network own,allow:{to}` reaches it");
        if self.network.permits(&to.ip().to_string(), to.port()) {
            return None;
        }
        if self.held.contains(&to) {
            return Some(
                "the plan has this database: the variables of the environment lead to its sandbox"
                    .to_owned(),
            );
        }
        if to.port() == NAMES && self.name_servers.contains(&to.ip()) {
            return None;
        }
        if let Some(why) = why_guarded(to.ip()) {
            return Some(format!("{why}: {}", allow()));
        }
        // Where the kernel does not say, nothing is reached.
        let own = own_network::is_of_this_machine(to.ip()).unwrap_or(true);
        own.then(|| format!("it is an address of this machine: {}", allow()))
    }

    /// Makes the connection of a call, and passes on what goes through it.
    fn stream(self: &Arc<Self>, call: u64, to: SocketAddr, expected: &Receiver<Option<OwnedFd>>) {
        if let Some(why) = self.why_not(to) {
            self.deny(to, why);
            return self.fail(call, Errno::NETUNREACH);
        }
        // The kernel keeps trying until the server has answered another call.
        {
            let waits = lock(&self.late);
            if waits.contains(&to) {
                return self.tell(&ToInside::Go { call });
            }
        }
        let begun = Instant::now();
        let server = match begin(to) {
            Ok(server) => server,
            Err(errno) => return self.fail(call, errno),
        };
        let late = match self.answered(&server, HOLD) {
            Some(Err(errno)) => return self.fail(call, errno),
            answered => answered.is_none(),
        };
        {
            // Told while this is held: a call that finds the server here goes on to a listener that those inside open before.
            let mut waits = lock(&self.late);
            if late && !waits.insert(to) {
                return self.tell(&ToInside::Go { call });
            }
            let udp = false;
            self.tell(&ToInside::Open {
                call,
                to,
                udp,
                late,
            });
        }
        let opened = expected.recv_timeout(OPENED).ok().flatten();
        let Some(listener) = opened.map(TcpListener::from) else {
            lock(&self.late).remove(&to);
            return;
        };
        if late {
            self.stream_late(to, (server, begun), &listener);
            // Those who are told to go on from here on find no listener, or that of another call.
            lock(&self.late).remove(&to);
            return;
        }
        let client = self.accept(&listener, TAKE);
        drop(listener);
        if let Some(client) = client {
            self.pass_on(client, server);
        }
    }

    /// Waits for a server that does not answer at once; then takes the connections of all who wait for it. Without an answer the end
    /// of the listener ends their calls.
    fn stream_late(
        self: &Arc<Self>,
        to: SocketAddr,
        (server, begun): (TcpStream, Instant),
        listener: &TcpListener,
    ) {
        let Some(Ok(())) = self.answered(&server, PATIENCE) else {
            return;
        };
        // It held the place in the queue.
        let Some(first) = self.accept(listener, OPENED) else {
            return;
        };
        drop(first);
        // All who wait may come at once.
        if rustix::net::listen(listener, 128).is_err() {
            return;
        }
        // The pauses between the kernel's tries double.
        let until = Instant::now() + begun.elapsed() * 2 + TAKE;
        let mut server = Some(server);
        while let Some(client) =
            self.accept(listener, until.saturating_duration_since(Instant::now()))
        {
            let (shared, server) = (Arc::clone(self), server.take());
            self.serving.fetch_add(1, Ordering::SeqCst);
            let begun = spawn(move || {
                match server.map_or_else(|| TcpStream::connect_timeout(&to, PATIENCE), Ok) {
                    Ok(server) => shared.pass_on(client, server),
                    Err(_) => relay::reset(&client),
                }
                shared.serving.fetch_sub(1, Ordering::SeqCst);
            });
            if !begun {
                self.serving.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Whether the server has answered, and what; `None` if that takes too long, or the command has ended.
    fn answered(&self, server: &TcpStream, patience: Duration) -> Option<Result<(), Errno>> {
        self.ready(server, PollFlags::OUT, patience)
            .then(|| socket_error(server).and_then(|error| error))
    }

    fn accept(&self, listener: &TcpListener, patience: Duration) -> Option<TcpStream> {
        let ready = self.ready(listener, PollFlags::IN, patience);
        let taken = ready.then(|| listener.accept().ok()).flatten();
        taken.map(|(stream, _)| stream)
    }

    fn ready(&self, socket: &impl AsFd, what: PollFlags, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while !self.over.load(Ordering::SeqCst) {
            let left = until.saturating_duration_since(Instant::now());
            let wait = Timespec::try_from(left.min(LOOK)).ok();
            let mut ready = [PollFd::new(socket, what)];
            match poll(&mut ready, wait.as_ref()) {
                Ok(0) if left.is_zero() => return false,
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    fn pass_on(&self, client: TcpStream, server: TcpStream) {
        if server.set_nonblocking(false).is_err() {
            return;
        }
        let both = Arc::new([client, server]);
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        lock(&self.open).insert(number, Arc::clone(&both));
        // The end of all may have passed it by.
        if !self.over.load(Ordering::SeqCst) {
            relay::both_ways(&both[0], &both[1]);
        }
        lock(&self.open).remove(&number);
    }

    /// Connects what comes in to this machine's loopback.
    fn accept_for(self: &Arc<Self>, listener: &TcpListener, to: SocketAddr) {
        while !self.over.load(Ordering::SeqCst) {
            let Some(client) = self.accept(listener, LOOK) else {
                continue;
            };
            if self.serving.load(Ordering::SeqCst) >= CONNECTIONS {
                continue;
            }
            let shared = Arc::clone(self);
            self.serving.fetch_add(1, Ordering::SeqCst);
            spawn(move || {
                let other = match to.ip() {
                    IpAddr::V4(_) => SocketAddr::from((Ipv6Addr::LOCALHOST, to.port())),
                    IpAddr::V6(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, to.port())),
                };
                let connect = |to: SocketAddr| TcpStream::connect_timeout(&to, PATIENCE);
                match connect(to).or_else(|_| connect(other)) {
                    Ok(server) => shared.pass_on(client, server),
                    Err(_) => relay::reset(&client),
                }
                shared.serving.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }

    /// Serves the datagrams to an address, of whichever process.
    fn datagrams(&self, call: u64, to: SocketAddr, expected: &Receiver<Option<OwnedFd>>) {
        if let Some(why) = self.why_not(to) {
            self.deny(to, why);
            return self.fail(call, Errno::NETUNREACH);
        }
        // Nothing is sent by this: it tells whether there is a way.
        if let Err(error) = outside_of(to) {
            return self.fail(
                call,
                Errno::from_io_error(&error).unwrap_or(Errno::NETUNREACH),
            );
        }
        {
            let mut known = lock(&self.datagrams);
            if known.contains(&to) {
                return self.tell(&ToInside::Go { call });
            }
            if known.len() >= DATAGRAMS {
                return self.fail(call, Errno::AGAIN);
            }
            known.insert(to);
        }
        let (udp, late) = (true, false);
        self.tell(&ToInside::Open {
            call,
            to,
            udp,
            late,
        });
        if let Ok(Some(socket)) = expected.recv_timeout(OPENED) {
            // A program that is idle may go on at any time, so a way is given up only for others.
            let crowded = || to.port() != NAMES && lock(&self.datagrams).len() > DATAGRAMS / 2;
            relay::datagrams(&UdpSocket::from(socket), to, &self.over, crowded);
        }
        lock(&self.datagrams).remove(&to);
    }

    fn deny(&self, to: SocketAddr, reason: String) {
        let mut denied = lock(&self.denied);
        if denied.len() >= DENIED && !denied.contains_key(&to) {
            return;
        }
        let entry = denied.entry(to).or_insert_with(|| DeniedConnection {
            host: to.ip().to_string(),
            port: to.port(),
            reason,
            count: 0,
        });
        entry.count += 1;
    }
}

/// A connection that is being made.
fn begin(to: SocketAddr) -> Result<TcpStream, Errno> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(errno),
    }
}

/// A socket for datagrams to an address.
pub(super) fn outside_of(to: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_of_the_plan_and_this_machine_are_not_reached() {
        let (channel, _other) = Channel::pair().expect("there are sockets");
        let rules = OutgoingRules {
            network: "own,allow:127.0.0.1:7000".parse().expect("a network"),
            held: vec![("198.51.100.7".to_owned(), 5432)],
        };
        let shared = Shared::new(channel, &rules, vec![[169, 254, 1, 1].into()]);
        for (to, why) in [
            ("198.51.100.7:5432", Some("the plan has this database")),
            ("198.51.100.7:5433", None),
            (
                "127.0.0.1:7001",
                Some("`--network own,allow:127.0.0.1:7001`"),
            ),
            ("127.0.0.1:7000", None),
            ("169.254.1.1:53", None),
            ("169.254.1.1:80", Some("link-local")),
            ("[fe80::1]:80", Some("`--network own,allow:[fe80::1]:80`")),
        ] {
            let said = shared.why_not(to.parse().expect("an address"));
            match why {
                None => assert_eq!(said, None, "{to}"),
                Some(why) => assert!(
                    said.as_deref().is_some_and(|said| said.contains(why)),
                    "{to}: {said:?}"
                ),
            }
        }
    }
}
