//! The holder: a process that keeps one transaction of one database open for a sandbox, lets clients work in it through
//! a private socket, and ends with its sandbox. It serves the user that started it and no other.
//!
//! When it dies, the server takes everything back. It writes nothing but its two sockets.

mod backend;
mod changes;
mod client;
mod definitions;
mod exchange;
mod extended;
mod redo;
pub(super) mod requests;
mod startup;

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connect::{self, PgError};
use super::control::{Answer, CLIENTS, CLIENTS_DIR, CONTROL, HolderSpec, Request, read_request};
use super::location::Server;
use crate::fs::{Dir, Meta};
use backend::{Backend, Turns};

/// How often it looks whether its sandbox is still there.
const TICK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The stack of a thread that serves a client.
const STACK: usize = 512 * 1024;

/// How long a request of the engine waits for clients that are in a transaction.
const PATIENCE: Duration = Duration::from_secs(10);

/// Everything that the threads of a holder share.
pub(super) struct Holder {
    server: Server,
    password: Option<String>,
    turns: Turns,
    /// The number of the last client.
    clients: AtomicU32,
    ended: AtomicBool,
    /// Wakes the thread that listens, so that it sees that all is over.
    wake: UnixStream,
    secret: u32,
    warnings: Vec<String>,
    max_prepared: u64,
}

impl Holder {
    /// Asks the server to stop what it does for a client that is gone.
    fn cancel_work(&self, backend: &Backend) {
        match connect::cancel(&self.server, backend.connection.key) {
            // It ends when it ends.
            Ok(()) | Err(_) => {}
        }
    }

    /// The secret of a client, by which it can cancel.
    fn secret_of(&self, client: u32) -> u32 {
        let text = [self.secret.to_be_bytes(), client.to_be_bytes()].concat();
        let hash = blake3::hash(&text);
        let bytes = hash.as_bytes();
        u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

/// Becomes a holder: reads from standard input what to hold, says on standard output that it holds it or why not, and serves
/// until its sandbox is gone.
///
/// *Errors:* the transaction could not be begun, which standard output says too.
pub(crate) fn serve() -> std::result::Result<(), String> {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::stdin(), &mut text)
        .map_err(|error| error.to_string())?;
    let spec: HolderSpec = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    drop(text);
    // It outlives who started it, its terminal and its directory.
    match rustix::process::setsid() {
        Ok(_) | Err(_) => {}
    }
    rustix::process::chdir("/").map_err(|error| error.to_string())?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let area = spec.area.clone();
    let begun = begin(spec);
    let answer = match &begun {
        Ok((holder, ..)) => match requests::status(holder) {
            Ok(status) => Answer::Status(status),
            Err(error) => Answer::Failed(error),
        },
        Err(error) => Answer::Failed(error.clone()),
    };
    let said = serde_json::to_string(&answer).unwrap_or_default();
    let mut out = std::io::stdout();
    let told = writeln!(out, "{said}").and_then(|()| out.flush());
    told.map_err(|error| error.to_string())?;
    let (holder, listeners, woken) = begun.map_err(|error| error.to_string())?;
    detach()?;
    holder.listen(&area, &listeners, &woken);
    Ok(())
}

/// Lets go of what the process that started it may wait for.
fn detach() -> std::result::Result<(), String> {
    let fail = |error: rustix::io::Errno| error.to_string();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).map_err(fail)?;
    rustix::stdio::dup2_stdin(&null).map_err(fail)?;
    rustix::stdio::dup2_stdout(&null).map_err(fail)?;
    rustix::stdio::dup2_stderr(&null).map_err(fail)
}

type Begun = (Arc<Holder>, [UnixListener; 2], UnixStream);

/// Begins the transaction, and listens.
fn begin(spec: HolderSpec) -> Result<Begun, PgError> {
    let mut backend = Backend::open(&spec.server, spec.password.as_deref())?;
    let setting = backend.connection.value("SHOW max_prepared_transactions")?;
    let max_prepared = setting.and_then(|text| text.parse().ok()).unwrap_or(0);
    let warnings = requests::warnings(&mut backend, max_prepared)?;
    let listen = |name: &str| {
        let path = spec.area.join(name);
        let bound = UnixListener::bind(&path);
        bound.map_err(|error| {
            PgError::link(format!("cannot listen at '{}': {error}", path.display()))
        })
    };
    make_dir(&spec.area)?;
    let listeners = [listen(CLIENTS)?, listen(CONTROL)?];
    let (wake, woken) = UnixStream::pair().map_err(|error| PgError::link(error.to_string()))?;
    let holder = Holder {
        server: spec.server,
        password: spec.password,
        turns: Turns::default(),
        clients: AtomicU32::new(0),
        ended: AtomicBool::new(false),
        wake,
        secret: unpredictable(),
        warnings,
        max_prepared,
    };
    holder.turns.start(backend);
    Ok((Arc::new(holder), listeners, woken))
}

/// A number that no other process can guess.
fn unpredictable() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let seeded = std::collections::hash_map::RandomState::new();
    (seeded.build_hasher().finish() >> 16) as u32
}

/// The directory of the socket for clients; what a dead holder left there goes.
fn make_dir(area: &Path) -> Result<(), PgError> {
    let fail = |error: crate::fs::FsError| PgError::link(error.to_string());
    let dir = Dir::open(area).map_err(fail)?;
    for name in [CLIENTS_DIR, CONTROL] {
        crate::fs::remove::remove(&dir, name.as_bytes()).map_err(fail)?;
    }
    dir.make_dir(CLIENTS_DIR.as_bytes(), 0o700).map_err(fail)
}

/// What tells a socket from another one at the same path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    Dir::look(path).ok().map(|meta: Meta| (meta.dev, meta.ino))
}

impl Holder {
    /// Serves until it is told to end, or its socket is gone: with the area of the sandbox.
    fn listen(
        self: &Arc<Self>,
        area: &Path,
        [clients, control]: &[UnixListener; 2],
        woken: &UnixStream,
    ) {
        let path = area.join(CONTROL);
        let own = identity(&path);
        while !self.ended.load(Ordering::SeqCst) {
            let mut fds = [
                PollFd::new(clients, PollFlags::IN),
                PollFd::new(control, PollFlags::IN),
                PollFd::new(woken, PollFlags::IN),
            ];
            let waited = poll(&mut fds, Some(&TICK));
            let (speaks, asks) = (fds[0].revents(), fds[1].revents());
            if waited == Ok(0) && (own.is_none() || identity(&path) != own) {
                return;
            }
            if speaks.contains(PollFlags::IN) {
                self.accept(clients, startup::welcome);
            }
            if asks.contains(PollFlags::IN) {
                self.accept(control, |holder, stream| holder.answer(&stream));
            }
        }
    }

    /// Takes a connection, of its own user alone.
    fn accept(self: &Arc<Self>, from: &UnixListener, serve: fn(&Self, UnixStream)) {
        let Ok((stream, _)) = from.accept() else {
            return;
        };
        let own = rustix::process::geteuid();
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd());
        if !peer.is_ok_and(|peer| peer.uid == own) {
            return;
        }
        let holder = Arc::clone(self);
        let thread = std::thread::Builder::new().stack_size(STACK);
        match thread.spawn(move || serve(&holder, stream)) {
            // Without a thread the client sees that its connection is closed.
            Ok(_) | Err(_) => {}
        }
    }

    /// Lets the holder end.
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        match (&self.wake).write_all(b"!") {
            // It looks by itself once a second.
            Ok(()) | Err(_) => {}
        }
    }

    /// Answers a request of the engine.
    fn answer(&self, mut stream: &UnixStream) {
        let Some(request) = read_request(stream) else {
            return;
        };
        let ends = request == Request::End;
        let answer = requests::carry_out(self, request);
        let text = serde_json::to_vec(&answer).unwrap_or_default();
        match stream.write_all(&text) {
            // Who asked is gone, and asks again.
            Ok(()) | Err(_) => {}
        }
        if ends {
            self.end();
        }
    }
}
