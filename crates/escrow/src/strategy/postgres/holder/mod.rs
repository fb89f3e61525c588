//! The holder: a process that keeps one transaction of one database open for a sandbox, lets clients work in it through
//! a private socket, and ends with its sandbox. It serves the user that started it and no other.
//!
//! When it dies, the server takes everything back. It writes nothing but its two sockets.

mod backend;
pub(super) mod changes;
mod client;
mod definitions;
mod exchange;
mod extended;
mod pass;
pub(super) mod redo;
pub(super) mod requests;
mod settings;
mod startup;
mod statements;
mod written;

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::super::holder::{self, CONTROL, TICK};
use super::connect::{self, PgError};
use super::control::{Answer, CLIENTS, CLIENTS_DIR, HolderSpec, Request};
use super::location::Server;
use crate::fs::Dir;
use backend::{Backend, Turns};

/// The stack of a thread that serves a client.
const STACK: usize = 512 * 1024;

/// How long a request of the engine waits for clients that are in a transaction.
const PATIENCE: Duration = Duration::from_secs(10);

/// Everything that the threads of a holder share.
pub(super) struct Holder {
    server: Server,
    /// Under which name clients reach the database where they are only passed on; then no transaction is kept.
    passes: Option<String>,
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
    /// Asks the server to stop what it does for a client, once it has the savepoint of that.
    fn cancel_work_of(&self, client: u32) {
        self.turns.cancelling(client, |key| self.cancel(key));
    }

    /// Asks the server to stop what it does on the connection, for whomever: nothing of it is to stay.
    fn cancel_work(&self) {
        if let Some(key) = self.turns.key() {
            self.cancel(key);
        }
    }

    fn cancel(&self, key: (i32, i32)) {
        match connect::cancel(&self.server, key) {
            // As with a server: who cancels is told nothing, and what runs ends when it ends.
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
pub(crate) fn serve(text: String) -> std::result::Result<(), String> {
    let spec: HolderSpec = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    drop(text);
    holder::stand_alone()?;
    let area = spec.area.clone();
    let begun = begin(spec);
    let answer = match &begun {
        Ok((holder, ..)) => match requests::status(holder) {
            Ok(status) => Answer::Status(status),
            Err(error) => Answer::Failed(error),
        },
        Err(error) => Answer::Failed(error.clone()),
    };
    holder::report(&answer)?;
    let (holder, listeners, woken) = begun.map_err(|error| error.to_string())?;
    holder.listen(&area, &listeners, &woken);
    Ok(())
}

type Begun = (Arc<Holder>, [UnixListener; 2], UnixStream);

/// Begins the transaction, and listens.
fn begin(spec: HolderSpec) -> Result<Begun, PgError> {
    let mut backend = match spec.passes {
        Some(_) => None,
        None => Some(Backend::open(&spec.server, spec.password.as_deref())?),
    };
    let (mut max_prepared, mut warnings) = (0, Vec::new());
    if let Some(backend) = &mut backend {
        let setting = backend.connection.value("SHOW max_prepared_transactions")?;
        max_prepared = setting.and_then(|text| text.parse().ok()).unwrap_or(0);
        warnings = requests::warnings(backend, max_prepared)?;
    }
    let listen = |name: &str| holder::listen(&spec.area, name).map_err(PgError::link);
    make_dir(&spec.area)?;
    let listeners = [listen(CLIENTS)?, listen(CONTROL)?];
    let (wake, woken) = UnixStream::pair().map_err(|error| PgError::link(error.to_string()))?;
    let holder = Holder {
        server: spec.server,
        passes: spec.passes,
        password: spec.password,
        turns: Turns::default(),
        clients: AtomicU32::new(0),
        ended: AtomicBool::new(false),
        wake,
        secret: unpredictable(),
        warnings,
        max_prepared,
    };
    if let Some(backend) = backend {
        holder.turns.start(backend);
    }
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

impl Holder {
    /// Serves until it is told to end, or its socket is gone: with the area of the sandbox.
    fn listen(
        self: &Arc<Self>,
        area: &Path,
        [clients, control]: &[UnixListener; 2],
        woken: &UnixStream,
    ) {
        let own = holder::identity(area);
        while !self.ended.load(Ordering::SeqCst) {
            let mut fds = [
                PollFd::new(clients, PollFlags::IN),
                PollFd::new(control, PollFlags::IN),
                PollFd::new(woken, PollFlags::IN),
            ];
            let waited = poll(&mut fds, Some(&TICK));
            let (speaks, asks) = (fds[0].revents(), fds[1].revents());
            if waited == Ok(0) && (own.is_none() || holder::identity(area) != own) {
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
        let Some(stream) = holder::accept(from) else {
            return;
        };
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
        let Some(request) = holder::read_request(stream, 1 << 20) else {
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
