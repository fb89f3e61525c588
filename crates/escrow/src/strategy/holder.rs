//! Processes that keep a transaction open for a sandbox: how one is started, found again, asked and ended.
//!
//! A holder outlives the command that started it, serves its own user alone through a socket in the area of its sandbox, and
//! ends with the sandbox: told to, or because its socket is gone.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{StrategyError, Target, unsupported};
use crate::fs::process::ProcessIdentity;
use crate::fs::{Dir, FsError};
use crate::model::ResourcePath;
use crate::run::program::program;

/// Where the engine asks, below the area of a sandbox.
pub(super) const CONTROL: &str = "control";

/// How long an answer may take: a comparison reads every table that changed.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// How often a holder looks whether its sandbox is still there.
pub(super) const TICK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// How long a holder may take to begin.
const START: Duration = Duration::from_secs(60);

/// How long it may take to end.
const END: Duration = Duration::from_secs(10);

/// How often that is looked at.
const PAUSE: Duration = Duration::from_millis(20);

/// How old, in seconds, a transaction may become before that is said.
const MAX_AGE: u64 = 3600;

/// The same, unless the option `max_age` of the resource says otherwise.
pub(super) fn max_age(strategy: &str, target: &Target) -> super::Result<u64> {
    match target.options.get("max_age") {
        None => Ok(MAX_AGE),
        Some(value) => value.as_u64().ok_or_else(|| {
            let what = format!("warn of a transaction older than {value}");
            let why = "the option `max_age` is a number of seconds";
            unsupported(strategy, &what, why)
        }),
    }
}

/// Why a holder gave no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// There is none.
    Gone,
    /// It does not speak as expected.
    Broken(String),
}

impl From<NoAnswer> for StrategyError {
    fn from(error: NoAnswer) -> Self {
        match error {
            NoAnswer::Gone => Self::HolderGone {
                why: "the process that kept it ended".to_owned(),
            },
            NoAnswer::Broken(why) => Self::Damaged {
                what: format!("its holder does not answer as expected ({why})"),
            },
        }
    }
}

/// Why a return to a checkpoint is not possible that is not there any more.
pub(super) fn no_checkpoint() -> StrategyError {
    StrategyError::Lost {
        path: ResourcePath::root(),
        what: "the savepoint went with the transaction, or with a return to an earlier checkpoint"
            .to_owned(),
    }
}

/// The holder answered something else.
pub(super) fn unexpected() -> StrategyError {
    StrategyError::Damaged {
        what: "its holder gave another answer than was asked for".to_owned(),
    }
}

/// Becomes the process that keeps the transaction of a sandbox: the helper program calls it, with what to keep on standard
/// input. Returns when its sandbox is gone.
pub fn hold() -> super::Result<()> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    let held = read.map_err(|error| error.to_string());
    let held = held.and_then(|_| match super::sql::hold(&text) {
        Some(held) => held,
        None => super::postgres::holder::serve(text),
    });
    held.map_err(|said| StrategyError::Server {
        what: "be kept in a transaction".to_owned(),
        code: None,
        said,
    })
}

/// Starts a holder by the helper program, which is told what to hold; the line that it says once it holds it, or why not. `fits`
/// says whether it holds it: another one is ended.
pub(super) fn start(
    helper: &Path,
    spec: &[u8],
    fits: impl Fn(&str) -> bool,
) -> Result<String, String> {
    let mut command = program(helper.as_os_str());
    command.arg("holder").env_clear();
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command
        .spawn()
        .map_err(|error| format!("'{}' cannot be started: {error}", helper.display()))?;
    if let Some(mut to) = child.stdin.take() {
        match to.write_all(spec) {
            // One that ended early says why.
            Ok(()) | Err(_) => {}
        }
    }
    let (sender, receiver) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut line = String::new();
            match BufReader::new(out).read_line(&mut line) {
                // What came is what there is, and no process may wait any more.
                Ok(_) | Err(_) => sender.send(line).ok(),
            }
        });
    }
    let said = receiver.recv_timeout(START).unwrap_or_default();
    if !fits(&said) {
        match child.kill() {
            // It ended by itself.
            Ok(()) | Err(_) => {}
        }
    }
    // A process that stays longer than the holder takes note of its end.
    std::thread::spawn(move || child.wait());
    Ok(said)
}

/// The path of a socket by its directory: as it stands it may be longer than the system takes.
fn short(dir: &Dir, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", dir.as_fd().as_raw_fd())
}

/// A connection to the holder of an area, if there is one.
fn connect(area: &Path) -> Option<UnixStream> {
    let dir = Dir::open(area).ok()?;
    UnixStream::connect(short(&dir, CONTROL)).ok()
}

/// Asks a holder: one line of JSON there, one back.
pub(super) fn ask<A: DeserializeOwned>(
    area: &Path,
    request: &impl Serialize,
    patience: Duration,
) -> Result<A, NoAnswer> {
    let broken = |error: std::io::Error| NoAnswer::Broken(error.to_string());
    let mut stream = connect(area).ok_or(NoAnswer::Gone)?;
    stream.set_read_timeout(Some(patience)).map_err(broken)?;
    let mut line =
        serde_json::to_vec(request).map_err(|error| NoAnswer::Broken(error.to_string()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(|_| NoAnswer::Gone)?;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    read.map_err(|error| match error.kind() {
        // It died before it read what was asked.
        std::io::ErrorKind::ConnectionReset => NoAnswer::Gone,
        _ => broken(error),
    })?;
    match answer.is_empty() {
        true => Err(NoAnswer::Gone),
        false => {
            serde_json::from_slice(&answer).map_err(|error| NoAnswer::Broken(error.to_string()))
        }
    }
}

/// Reads what is asked; `None` where it is nothing that can be understood.
pub(super) fn read_request<Q: DeserializeOwned>(stream: &UnixStream, most: u64) -> Option<Q> {
    let mut line = String::new();
    let limited = stream.take(most);
    BufReader::new(limited).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// Ends the holder of an area, if there is one, and waits until it is gone; `tell` asks it to. Returns whether it is gone.
pub(super) fn end(area: &Path, tell: impl FnOnce()) -> Result<bool, FsError> {
    let Some(stream) = connect(area) else {
        return Ok(true);
    };
    let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else {
        return Ok(true);
    };
    drop(stream);
    let process = ProcessIdentity::of(peer.pid.as_raw_nonzero().get().unsigned_abs())?;
    tell();
    let until = Instant::now() + END;
    let is_alive = |one: &ProcessIdentity| one.is_alive().unwrap_or(false);
    while process.as_ref().is_some_and(is_alive) {
        if Instant::now() > until {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(true)
}

/// For how long a transaction is open, in words.
pub(super) fn open_for(seconds: u64) -> String {
    match seconds / 60 {
        0 => "its transaction is open for less than a minute".to_owned(),
        minutes => format!(
            "its transaction is open for {} h {} min",
            minutes / 60,
            minutes % 60
        ),
    }
}

/// Lets a process outlive the one that started it, its terminal and its directory.
pub(super) fn stand_alone() -> Result<(), String> {
    match rustix::process::setsid() {
        Ok(_) | Err(_) => {}
    }
    rustix::process::chdir("/").map_err(|error| error.to_string())?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    Ok(())
}

/// Says how it began, and lets go of what the process that started it may wait for.
pub(super) fn report(answer: &impl Serialize) -> Result<(), String> {
    let said = serde_json::to_string(answer).unwrap_or_default();
    let mut out = std::io::stdout();
    let told = writeln!(out, "{said}").and_then(|()| out.flush());
    told.map_err(|error| error.to_string())?;
    let fail = |error: rustix::io::Errno| error.to_string();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).map_err(fail)?;
    rustix::stdio::dup2_stdin(&null).map_err(fail)?;
    rustix::stdio::dup2_stdout(&null).map_err(fail)?;
    rustix::stdio::dup2_stderr(&null).map_err(fail)
}

/// Listens at a name below an area.
pub(super) fn listen(area: &Path, name: &str) -> Result<UnixListener, String> {
    let dir = Dir::open(area).map_err(|error| error.to_string())?;
    let bound = UnixListener::bind(short(&dir, name));
    bound.map_err(|error| format!("cannot listen at '{}/{name}': {error}", area.display()))
}

/// What tells the socket of an area from another one at the same path.
pub(super) fn identity(area: &Path) -> Option<(u64, u64)> {
    let meta = Dir::look(&area.join(CONTROL)).ok()?;
    Some((meta.dev, meta.ino))
}

/// Takes a connection, of its own user alone.
pub(super) fn accept(from: &UnixListener) -> Option<UnixStream> {
    let (stream, _) = from.accept().ok()?;
    let peer = rustix::net::sockopt::socket_peercred(stream.as_fd()).ok()?;
    (peer.uid == rustix::process::geteuid()).then_some(stream)
}

/// Serves one connection after the other until `serve` says that it is over, or the socket is gone: with the area.
pub(super) fn serve(
    area: &Path,
    control: &UnixListener,
    mut serve: impl FnMut(&UnixStream) -> bool,
) {
    let own = identity(area);
    loop {
        let mut fds = [PollFd::new(control, PollFlags::IN)];
        let waited = poll(&mut fds, Some(&TICK));
        if waited == Ok(0) && (own.is_none() || identity(area) != own) {
            return;
        }
        let asks = fds[0].revents().contains(PollFlags::IN);
        if asks && accept(control).is_some_and(|stream| serve(&stream)) {
            return;
        }
    }
}
