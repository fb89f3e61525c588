//! Bytes and datagrams, passed on between two sockets until either side ends.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::connect_unspec;

use super::outgoing::outside_of;

/// How much is passed on at once.
const BUFFER: usize = 64 * 1024;

/// How long an exchange of datagrams may pause before its socket outside is given up; the next datagram opens another one.
const IDLE: Duration = Duration::from_secs(120);

/// The same for questions to name servers, of which each has a socket of its own.
const IDLE_NAMES: Duration = Duration::from_secs(15);

/// How many sockets inside may exchange datagrams with one address.
const PEERS: usize = 256;

/// Passes on what both sides say, until both have said all.
pub(super) fn both_ways(client: &TcpStream, server: &TcpStream) {
    for stream in [client, server] {
        // Whoever wrote has decided already what belongs together.
        match stream.set_nodelay(true) {
            Ok(()) | Err(_) => {}
        }
    }
    std::thread::scope(|scope| {
        let back = || copy(server, client);
        match std::thread::Builder::new().spawn_scoped(scope, back) {
            Ok(_) => copy(client, server),
            Err(_) => end(&[client, server]),
        }
    });
}

/// Copies until one side has ended; the other one is told. A connection that breaks breaks on the other side as well.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => match to.shutdown(Shutdown::Write) {
                Ok(()) | Err(_) => return,
            },
            Ok(length) if to.write_all(&buffer[..length]).is_ok() => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => {
                reset(from);
                reset(to);
                return;
            }
        }
    }
}

/// Breaks a connection: the other side reads an error, never an end.
pub(super) fn reset(stream: &TcpStream) {
    match connect_unspec(stream) {
        Ok(()) | Err(_) => {}
    }
}

/// Ends a connection, whichever of its ends is still there.
pub(super) fn end(both: &[impl std::borrow::Borrow<TcpStream>; 2]) {
    for stream in both {
        match stream.borrow().shutdown(Shutdown::Both) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// Passes datagrams on between the sockets that send to one and an address. Ends with the command, or when nothing was passed on for
/// a while and `may_end` says so.
pub(super) fn datagrams(
    inside: &UdpSocket,
    to: SocketAddr,
    over: &AtomicBool,
    may_end: impl Fn() -> bool,
) {
    let idle = if to.port() == 53 { IDLE_NAMES } else { IDLE };
    let mut peers: HashMap<SocketAddr, (UdpSocket, Instant)> = HashMap::new();
    let (mut buffer, mut last) = (vec![0; BUFFER], Instant::now());
    if inside.set_nonblocking(true).is_err() {
        return;
    }
    let pause = Timespec::try_from(Duration::from_millis(500)).ok();
    while !over.load(Ordering::SeqCst) && (last.elapsed() < IDLE || !may_end()) {
        let mut ready = vec![PollFd::new(inside, PollFlags::IN)];
        let sockets = peers.values().map(|(socket, _)| socket);
        ready.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        match poll(&mut ready, pause.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => last = Instant::now(),
            Err(_) => return,
        }
        // A datagram that is lost is lost, as on any way.
        let passed = |sent: std::io::Result<usize>| match sent {
            Ok(_) | Err(_) => {}
        };
        while let Ok((length, from)) = inside.recv_from(&mut buffer) {
            if !peers.contains_key(&from) {
                let oldest = peers.iter().min_by_key(|(_, (_, used))| *used);
                if let Some(oldest) = oldest
                    .map(|(from, _)| *from)
                    .filter(|_| peers.len() >= PEERS)
                {
                    peers.remove(&oldest);
                }
                let opened = outside_of(to).and_then(|socket| {
                    socket.set_nonblocking(true)?;
                    Ok(socket)
                });
                let Ok(opened) = opened else { continue };
                peers.insert(from, (opened, Instant::now()));
            }
            if let Some((socket, used)) = peers.get_mut(&from) {
                *used = Instant::now();
                passed(socket.send(&buffer[..length]));
            }
        }
        for (from, (socket, used)) in &mut peers {
            while let Ok(length) = socket.recv(&mut buffer) {
                *used = Instant::now();
                passed(inside.send_to(&buffer[..length], from));
            }
        }
        peers.retain(|_, (_, used)| used.elapsed() < idle);
    }
}
