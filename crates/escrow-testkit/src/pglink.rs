//! A link to a PostgreSQL server that breaks where a test wants it to: a socket of its own, behind which everything goes to
//! the server and back, until a client sends a certain statement.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::postgres::Postgres;
use crate::world::World;

/// What happens when the statement comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// All connections are cut, and the server never sees it.
    CutBefore,
    /// The server carries it out; its answer is lost, and all connections are cut.
    CutAfter,
    /// The server is stopped as by a power cut, and never sees it.
    StopBefore,
    /// The server is stopped so once it has carried it out; its answer is lost.
    StopAfter,
}

/// Every way to break.
pub const BREAKS: [Break; 4] = [
    Break::CutBefore,
    Break::CutAfter,
    Break::StopBefore,
    Break::StopAfter,
];

#[derive(Default)]
struct State {
    armed: Option<(String, Break)>,
    /// Whether it broke.
    broke: bool,
    /// Clones of all streams, to cut.
    streams: Vec<UnixStream>,
    /// The process of the server.
    server: Option<u32>,
}

/// The link.
pub struct PgLink {
    world: World,
    state: Arc<Mutex<State>>,
}

fn locked(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PgLink {
    /// A link to a server.
    pub fn new(server: &Postgres) -> Self {
        let world = World::new();
        let listener = UnixListener::bind(world.at(".s.PGSQL.5432"));
        let listener = listener.unwrap_or_else(|error| panic!("cannot listen: {error}"));
        let state: Arc<Mutex<State>> = Arc::default();
        let (own, to) = (Arc::clone(&state), server.socket().join(".s.PGSQL.5432"));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (state, to) = (Arc::clone(&own), to.clone());
                std::thread::spawn(move || carry(client, to, &state));
            }
        });
        Self { world, state }
    }

    /// The URL of a database behind it.
    pub fn url(&self, user: &str, database: &str) -> String {
        format!(
            "postgresql:///{database}?host={}&user={user}",
            self.world.path().display()
        )
    }

    /// Breaks when a client next sends something with this text.
    pub fn arm(&self, text: &str, how: Break, server: &Postgres) {
        let mut state = locked(&self.state);
        state.armed = Some((text.to_owned(), how));
        state.broke = false;
        state.server = server.pid();
    }

    /// Breaks no more; whether it did.
    pub fn disarm(&self) -> bool {
        let mut state = locked(&self.state);
        state.armed = None;
        state.broke
    }
}

/// Carries what the server says to a client, until either ends; what is muted goes nowhere.
fn answer(mut server: UnixStream, mut client: UnixStream, muted: &AtomicBool) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = match server.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        if !muted.load(Ordering::SeqCst) && client.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    if !muted.load(Ordering::SeqCst) {
        let _ = client.shutdown(Shutdown::Both);
    }
}

/// Carries what a client sends to the server, and back.
fn carry(client: UnixStream, to: PathBuf, state: &Arc<Mutex<State>>) {
    let Ok(server) = UnixStream::connect(&to) else {
        return;
    };
    let again = |stream: &UnixStream| {
        stream
            .try_clone()
            .unwrap_or_else(|error| panic!("cannot share a stream: {error}"))
    };
    locked(state)
        .streams
        .extend([again(&client), again(&server)]);
    let (from_server, to_client) = (again(&server), again(&client));
    let muted = Arc::new(AtomicBool::new(false));
    let mute = Arc::clone(&muted);
    std::thread::spawn(move || answer(from_server, to_client, &muted));
    let (mut client, mut server) = (client, server);
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = match client.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        let armed = locked(state).armed.clone();
        let how = armed
            .filter(|(wanted, _)| text.contains(wanted))
            .map(|(_, how)| how);
        let Some(how) = how else {
            if server.write_all(&bytes[..count]).is_err() {
                break;
            }
            continue;
        };
        // Connections that are made later are not concerned.
        let cut = {
            let mut state = locked(state);
            (state.broke, state.armed) = (true, None);
            std::mem::take(&mut state.streams)
        };
        if matches!(how, Break::CutAfter | Break::StopAfter) {
            // The answer goes nowhere: only the server's word that it is done is waited for.
            mute.store(true, Ordering::SeqCst);
            let _ = server.write_all(&bytes[..count]);
            std::thread::sleep(Duration::from_millis(300));
        }
        let pid = locked(state).server;
        if let (Break::StopBefore | Break::StopAfter, Some(pid)) = (how, pid) {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed());
            if let Some(pid) = pid {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
            }
            // Before the client notices anything, the server is gone.
            let until = Instant::now() + Duration::from_secs(60);
            while UnixStream::connect(&to).is_ok() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        for stream in cut {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}
