//! Ports of a plan's own network that are shown on this machine's loopback (`--publish`).
//!
//! A listener outside takes connections; the command's monitor opens a socket inside for each, which is connected to the plan's
//! loopback: a socket belongs to the namespace in which it was opened.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::supervise::Channel;
use super::{Request, relay};

/// How often those who wait look whether the command has ended.
const LOOK: Duration = Duration::from_millis(500);

/// How long a socket inside may take to be opened.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port of the plan, and the port of this machine on which it is shown: `3000`, or `3000:8000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedPort {
    /// The plan's.
    pub inside: u16,
    /// This machine's.
    pub outside: u16,
}

impl FromStr for PublishedPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        let (inside, outside) = match text.split_once(':') {
            Some((inside, outside)) => (number(inside), number(outside)),
            None => (number(text), number(text)),
        };
        inside
            .zip(outside)
            .map(|(inside, outside)| Self { inside, outside })
            .ok_or_else(|| {
                "write PORT, or PORT:PORT with the plan's first, as in 3000:8000".to_owned()
            })
    }
}

/// The published ports of one command. They are closed when this is dropped.
#[derive(Debug)]
pub(crate) struct Published {
    listeners: Vec<(u16, TcpListener)>,
    over: Arc<AtomicBool>,
    sockets: (Sender<OwnedFd>, Arc<Mutex<Receiver<OwnedFd>>>),
}

impl Published {
    /// Listens on this machine's loopback. Fails with the port that is not free.
    pub(crate) fn open(ports: &[PublishedPort]) -> Result<Self, (u16, std::io::Error)> {
        let mut listeners = Vec::new();
        for port in ports {
            let failed = |error| (port.outside, error);
            let v4 = TcpListener::bind((Ipv4Addr::LOCALHOST, port.outside)).map_err(failed)?;
            listeners.push((port.inside, v4));
            // A machine may have no IPv6, and `localhost` means either.
            if let Ok(v6) = TcpListener::bind((Ipv6Addr::LOCALHOST, port.outside)) {
                listeners.push((port.inside, v6));
            }
        }
        let (sends, receives) = channel();
        Ok(Self {
            listeners,
            over: Arc::default(),
            sockets: (sends, Arc::new(Mutex::new(receives))),
        })
    }

    /// Begins to serve, now that a monitor can be asked on a channel.
    pub(super) fn start(&self, channel: &Channel) -> std::io::Result<()> {
        for (inside, listener) in &self.listeners {
            let serving = Serving {
                port: *inside,
                listener: listener.try_clone()?,
                over: Arc::clone(&self.over),
                channel: Channel::new(channel.as_fd().try_clone_to_owned()?),
                sockets: Arc::clone(&self.sockets.1),
            };
            Builder::new().spawn(move || serving.accept())?;
        }
        Ok(())
    }

    /// Takes a socket that the monitor opened inside.
    pub(super) fn take(&self, socket: OwnedFd) {
        match self.sockets.0.send(socket) {
            Ok(()) | Err(_) => {}
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

/// A listener outside and the port inside that it leads to.
struct Serving {
    port: u16,
    listener: TcpListener,
    over: Arc<AtomicBool>,
    channel: Channel,
    sockets: Arc<Mutex<Receiver<OwnedFd>>>,
}

impl Serving {
    fn accept(self) {
        let pause = Timespec::try_from(LOOK).ok();
        while !self.over.load(Ordering::SeqCst) {
            let mut ready = [PollFd::new(&self.listener, PollFlags::IN)];
            if !matches!(poll(&mut ready, pause.as_ref()), Ok(1..)) {
                continue;
            }
            let Ok((client, _)) = self.listener.accept() else {
                continue;
            };
            match self.connect() {
                Some(server) => {
                    let passed = Builder::new().spawn(move || relay::both_ways(&client, &server));
                    match passed {
                        Ok(_) | Err(_) => {}
                    }
                }
                None => relay::reset(&client),
            }
        }
    }

    /// A connection to the port inside, whichever of the two loopback addresses it listens on.
    fn connect(&self) -> Option<TcpStream> {
        let addresses = [
            (IpAddr::V4(Ipv4Addr::LOCALHOST), false),
            (IpAddr::V6(Ipv6Addr::LOCALHOST), true),
        ];
        addresses.into_iter().find_map(|(address, v6)| {
            let socket = {
                let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
                self.channel.send(&Request::Socket { v6 }).ok()?;
                sockets.recv_timeout(PATIENCE).ok()?
            };
            let to = SocketAddr::new(address, self.port);
            rustix::net::connect(&socket, &to).ok()?;
            Some(TcpStream::from(socket))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_the_plans_first() {
        let read = |text: &str| text.parse::<PublishedPort>().ok();
        let both = |inside, outside| Some(PublishedPort { inside, outside });
        assert_eq!(read("3000"), both(3000, 3000));
        assert_eq!(read("3000:8000"), both(3000, 8000));
        for text in [
            "",
            "0",
            "x",
            "3000:",
            ":1",
            "1:2:3",
            "70000",
            "127.0.0.1:80",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
