//! The proxy of a run whose network is a list of hosts: `CONNECT`, and plain HTTP.
//!
//! It runs outside, in the supervisor; only the socket on which it is reached lies in the network namespace, whose sole device is a
//! loopback. So there is no other way out than a name that the list permits, leading to an address that may be reached. TLS passes as it
//! is: certificates are not touched. A name that a TLS client asks the server for must be permitted too, so that a server of many
//! names gives access to those of the list only. Everything is bounded: connections, the head of a request, the time until it is
//! complete. What was denied is kept for the report.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ask::left;
use super::inject::Injector;
use super::launcher::StepResult;
use super::spec::RunSpec;
use super::supervise::{Channel, at, at_io};
use super::{Event, tls};
use crate::model::network::{DeniedConnection, Network, host_and_port};
use crate::model::text::Location;

/// How many connections there may be at once; further ones are turned away.
const CONNECTIONS: usize = 256;

/// The longest head of a request.
const HEAD: usize = 64 * 1024;

/// How long a request may take to arrive, and one address to be connected to.
const PATIENCE: Duration = Duration::from_secs(15);

/// How many addresses of a host are tried.
const ADDRESSES: usize = 8;

/// How many denied hosts are told apart.
const DENIED: usize = 100;

/// Opens the socket in the namespace, hands it to the supervisor, and tells the command of it by the usual variables.
pub(super) fn offer(spec: &mut RunSpec, channel: &Channel) -> StepResult<()> {
    let step = "listen for connections from inside";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(at_io(step))?;
    let port = listener.local_addr().map_err(at_io(step))?.port();
    let sent = channel.send_with(&Event::Proxy, listener.as_fd());
    sent.map_err(at(step))?;
    // What listens inside is reached directly, unless the list means the machine's loopback.
    let own = ["localhost", "127.0.0.1", "::1"].into_iter();
    let own: Vec<&str> = own.filter(|host| !has(&spec.look.network, host)).collect();
    let proxy = format!("http://127.0.0.1:{port}");
    let mut variables = vec![("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned())];
    for (name, value) in [
        ("http_proxy", &proxy),
        ("https_proxy", &proxy),
        ("all_proxy", &proxy),
        ("no_proxy", &own.join(",")),
    ] {
        variables.push((name.to_owned(), value.clone()));
        variables.push((name.to_uppercase(), value.clone()));
    }
    for (name, value) in variables {
        let name = Location::from_bytes(name.as_bytes());
        spec.environment.retain(|(known, _)| *known != name);
        let value = Location::from_bytes(value.as_bytes());
        spec.environment.push((name, value));
    }
    Ok(())
}

/// Whether a list has a host, at whatever port.
fn has(network: &Network, host: &str) -> bool {
    match network {
        Network::Allow(hosts) => hosts.iter().any(|one| one.names(host)),
        Network::None | Network::Host | Network::Own(_) => false,
    }
}

/// The proxy of one command. It ends when this is dropped.
pub(crate) struct Proxy {
    listener: Arc<TcpListener>,
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

struct Shared {
    network: Network,
    /// What adds credentials to requests, for some hosts.
    injector: Option<Arc<Injector>>,
    over: AtomicBool,
    next: AtomicU64,
    /// Both ends of every connection.
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
    denied: Mutex<BTreeMap<(String, u16), DeniedConnection>>,
}

impl Proxy {
    /// Serves the connections that come in on a socket.
    pub(crate) fn start(
        listener: OwnedFd,
        network: &Network,
        injector: Option<Arc<Injector>>,
    ) -> Self {
        let listener = Arc::new(TcpListener::from(listener));
        let shared = Arc::new(Shared {
            network: network.clone(),
            injector,
            over: AtomicBool::new(false),
            next: AtomicU64::new(0),
            open: Mutex::default(),
            denied: Mutex::default(),
        });
        let accepts = {
            let (listener, shared) = (Arc::clone(&listener), Arc::clone(&shared));
            std::thread::spawn(move || accept(&listener, &shared))
        };
        Self {
            listener,
            shared,
            accepts: Some(accepts),
        }
    }

    /// What was denied up to now.
    pub(crate) fn denied(&self) -> Vec<DeniedConnection> {
        lock(&self.shared.denied).values().cloned().collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let ended = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both).is_ok();
        match self.accepts.take().filter(|_| ended).map(JoinHandle::join) {
            Some(Ok(()) | Err(_)) | None => {}
        }
        lock(&self.shared.open).values().for_each(end);
    }
}

fn lock<T>(one: &Mutex<T>) -> MutexGuard<'_, T> {
    one.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a connection, whichever of its ends is still there.
fn end(both: &[TcpStream; 2]) {
    for stream in both {
        match stream.shutdown(Shutdown::Both) {
            Ok(()) | Err(_) => {}
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let serving = Arc::new(());
    while !shared.over.load(Ordering::SeqCst) {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors, perhaps.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        if Arc::strong_count(&serving) > CONNECTIONS {
            answer(&stream, &Refusal::new(503, "too many connections at once"));
            continue;
        }
        let (shared, serves) = (Arc::clone(shared), Arc::clone(&serving));
        let serve = move || {
            if let Err(refusal) = shared.serve(&stream) {
                answer(&stream, &refusal);
            }
            drop(serves);
        };
        match std::thread::Builder::new().spawn(serve) {
            Ok(_) | Err(_) => {}
        }
    }
}

/// Why a request gets nothing else than this.
struct Refusal {
    status: u16,
    why: String,
}

impl Refusal {
    fn new(status: u16, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { status, why }
    }
}

/// A client that is gone needs no answer.
fn answer(mut stream: &TcpStream, Refusal { status, why }: &Refusal) {
    let name = match status {
        400 => "Bad Request",
        403 => "Forbidden",
        502 => "Bad Gateway",
        _ => "Service Unavailable",
    };
    let body = format!("escrow: {why}\n");
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} {name}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let timed = stream.set_write_timeout(Some(PATIENCE));
    match timed.and_then(|()| stream.write_all(text.as_bytes())) {
        Ok(()) | Err(_) => {}
    }
}

impl Shared {
    fn serve(&self, client: &TcpStream) -> Result<(), Refusal> {
        let (head, rest) = read_head(client)?;
        let request = Request::parse(&head)
            .ok_or_else(|| Refusal::new(400, "this is neither CONNECT nor http:// of a proxy, or the length of its body is not said (Content-Length)"))?;
        let (host, port) = (&request.host, request.port);
        if !self.network.permits(host, port) {
            return Err(self.deny(host, port, "it is not in the list of permitted hosts"));
        }
        let server = self.connect(host, port)?;
        if self.over.load(Ordering::SeqCst) {
            return Err(Refusal::new(503, "the command has ended"));
        }
        let begun = match &request.forward {
            None => (&*client).write_all(b"HTTP/1.1 200 Connection established\r\n\r\n"),
            Some(head) => (&server).write_all(head),
        };
        let open = || -> std::io::Result<[TcpStream; 2]> {
            client.set_read_timeout(None)?;
            Ok([client.try_clone()?, server.try_clone()?])
        };
        let lost = |error: std::io::Error| Refusal::new(502, error.to_string());
        let both = begun.and_then(|()| open()).map_err(lost)?;
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        lock(&self.open).insert(number, both);
        let injector = self.injector.as_ref().filter(|one| one.has(host, port));
        // The end of all may have passed it by.
        if self.over.load(Ordering::SeqCst) {
        } else if let Some(injector) = injector.filter(|_| request.forward.is_none()) {
            match injector.serve((host, port), (client, rest), &server) {
                // A client that did not trust the certificate, or went away, knows it.
                Ok(()) | Err(_) => {}
            }
        } else {
            std::thread::scope(|scope| {
                let back = || copy(&server, client);
                match std::thread::Builder::new().spawn_scoped(scope, back) {
                    Ok(_) => self.upwards(&request, rest, client, &server),
                    Err(_) => end_both(client, &server),
                }
            });
        }
        if let Some(both) = lock(&self.open).remove(&number) {
            end(&both);
        }
        Ok(())
    }

    /// Passes on what the client sends.
    fn upwards(
        &self,
        request: &Request,
        first: Vec<u8>,
        client: &TcpStream,
        mut server: &TcpStream,
    ) {
        let (host, port) = (&request.host, request.port);
        let tunnel = request.forward.is_none() && host.parse::<std::net::IpAddr>().is_err();
        let first = match tunnel {
            // What is no TLS has no name that could be checked; only a port of its own is for anything.
            true => tls::greeting(client, first, [80, 443].contains(&port)),
            false => Ok((first, None)),
        };
        let named = |name: &String| {
            let known = host_and_port(name).filter(|(name, _)| self.network.permits(name, port));
            known.is_some()
        };
        let denied = match &first {
            Ok((_, Some(name))) if !named(name) => "TLS asked it for a host that is not permitted",
            Ok(_) => "",
            Err(tls::Unreadable) => {
                "a tunnel there must begin with a greeting of TLS that can be read"
            }
        };
        match first {
            Ok((first, _)) if denied.is_empty() => {
                let mut body = first.as_slice().chain(client).take(request.body);
                let passed = std::io::copy(&mut body, &mut server).is_ok();
                // Whatever else the client sends goes nowhere; that it ends is passed on.
                match passed && std::io::copy(&mut &*client, &mut std::io::sink()).is_ok() {
                    true => match server.shutdown(Shutdown::Write) {
                        Ok(()) => {}
                        Err(_) => end_both(client, server),
                    },
                    false => end_both(client, server),
                }
            }
            _ => {
                self.deny(host, port, denied);
                end_both(client, server);
            }
        }
    }

    /// Connects to a host that is permitted, at an address that is.
    fn connect(&self, host: &str, port: u16) -> Result<TcpStream, Refusal> {
        let found = (host, port).to_socket_addrs();
        let found = found.map_err(|error| Refusal::new(502, format!("{host}: {error}")))?;
        let found: Vec<SocketAddr> = found.take(ADDRESSES).collect();
        let may = |one: &&SocketAddr| self.network.permits_address(host, one.ip(), port);
        let mut failed = None;
        for address in found.iter().filter(may) {
            match TcpStream::connect_timeout(address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = Some(error),
            }
        }
        match (failed, found.first()) {
            (Some(error), _) => Err(Refusal::new(502, format!("{host}:{port}: {error}"))),
            (None, None) => Err(Refusal::new(502, format!("{host} has no address"))),
            (None, Some(address)) => {
                let address = address.ip();
                let why = format!(
                    "it leads to {address}, which is not public and not in the list itself"
                );
                Err(self.deny(host, port, &why))
            }
        }
    }

    fn deny(&self, host: &str, port: u16, reason: &str) -> Refusal {
        let mut denied = lock(&self.denied);
        let mut key = (host.to_owned(), port);
        if denied.len() >= DENIED && !denied.contains_key(&key) {
            key = ("(others)".to_owned(), 0);
        }
        let (host_kept, port_kept) = key.clone();
        let entry = denied.entry(key).or_insert_with(|| DeniedConnection {
            host: host_kept,
            port: port_kept,
            reason: reason.to_owned(),
            count: 0,
        });
        entry.count += 1;
        Refusal::new(403, format!("{host}:{port} is denied: {reason}"))
    }
}

fn end_both(client: &TcpStream, server: &TcpStream) {
    for stream in [client, server] {
        match stream.shutdown(Shutdown::Both) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// Copies until one side has ended; the other one is told.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let copied = std::io::copy(&mut from, &mut to);
    match copied.and_then(|_| to.shutdown(Shutdown::Write)) {
        Ok(()) => {}
        // What cannot be passed on is not waited for.
        Err(_) => end_both(from, to),
    }
}

/// Reads the head of a request, and whatever came with it.
fn read_head(mut client: &TcpStream) -> Result<(Vec<u8>, Vec<u8>), Refusal> {
    let bad = |error: std::io::Error| Refusal::new(400, error.to_string());
    let (mut read, until) = (Vec::new(), Instant::now() + PATIENCE);
    let mut buffer = [0; 4096];
    while read.len() < HEAD {
        let time = left(until).map_err(bad)?;
        client.set_read_timeout(Some(time)).map_err(bad)?;
        match client.read(&mut buffer).map_err(bad)? {
            0 => break,
            length => read.extend_from_slice(&buffer[..length]),
        }
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = read.split_off(end + 4);
            read.truncate(end);
            return Ok((read, rest));
        }
    }
    Err(Refusal::new(
        400,
        "the head of the request is too long, or not complete",
    ))
}

/// Whether a server cannot read a method, or the name of a header, as anything else.
pub(super) fn is_token(text: &str) -> bool {
    let may = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(may)
}

/// What a client asks a proxy for.
struct Request {
    host: String,
    port: u16,
    /// The head for the server; none where the client speaks to it by itself.
    forward: Option<Vec<u8>>,
    /// How long its body is: what follows would be another request, whose host was not checked.
    body: u64,
}

impl Request {
    fn parse(head: &[u8]) -> Option<Self> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.split("\r\n");
        let words: Vec<&str> = lines.next()?.split(' ').collect();
        let [method, target, version @ ("HTTP/1.0" | "HTTP/1.1")] = words[..] else {
            return None;
        };
        let lines: Vec<&str> = lines.collect();
        let plain = |text: &&str| !text.contains(['\r', '\n', '\0']);
        if !lines.iter().all(plain) || !plain(&target) || !is_token(method) {
            return None;
        }
        if method == "CONNECT" {
            let (host, port) = host_and_port(target)?;
            let (port, forward, body) = (port?, None, u64::MAX);
            return Some(Self {
                host,
                port,
                forward,
                body,
            });
        }
        let (scheme, rest) = target.split_at_checked(7)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let slash = if path.starts_with('/') { "" } else { "/" };
        let (host, port) =
            host_and_port(authority).filter(|_| scheme.eq_ignore_ascii_case("http://"))?;
        // The server is to answer this one request, for this one host.
        let mut forward = format!(
            "{method} {slash}{path} {version}\r\nHost: {authority}\r\nConnection: close\r\n"
        );
        let mut body = None;
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let name = name.to_ascii_lowercase();
            // A line that continues another one begins with a space.
            if !is_token(&name) {
                return None;
            }
            // A body whose length is not said at once, or said twice, could hide a request.
            match name.as_str() {
                "transfer-encoding" => return None,
                "content-length" if body.is_some() => return None,
                "content-length" => body = Some(length(value.trim())?),
                _ => {}
            }
            let own =
                ["host", "connection", "keep-alive", "upgrade", "te"].contains(&name.as_str());
            if !own && !name.starts_with("proxy-") {
                forward.push_str(line);
                forward.push_str("\r\n");
            }
        }
        forward.push_str("\r\n");
        let (port, forward) = (port.unwrap_or(80), Some(forward.into_bytes()));
        Some(Self {
            host,
            port,
            forward,
            body: body.unwrap_or(0),
        })
    }
}

/// A length in digits alone, as every server reads it.
fn length(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}
