//! The supervisor of a run: passes terminal, job control, signals and exit status through.

use std::fs::File;
use std::io::{Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Signal, getpgrp, getpid, kill_current_process_group, kill_process};
use rustix::termios::{Action, OptionalActions, Termios, tcgetpgrp, tcsetpgrp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::spec::RunSpec;
use super::{DiskWatch, Event, Published, Request, sys};
use crate::fs::process::ProcessIdentity;
use crate::model::text::Location;

/// How a command ended.
#[must_use = "a command that failed is no error of the run"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandExit {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

impl CommandExit {
    /// The status that a shell would show.
    pub fn status(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Signaled(signal) => 128 + signal,
        }
    }
}

/// How a child of this process ended.
pub(super) fn ended(status: ExitStatus) -> CommandExit {
    match (status.code(), status.signal()) {
        (Some(code), _) => CommandExit::Exited(code),
        (None, signal) => CommandExit::Signaled(signal.unwrap_or_default()),
    }
}

/// Why a command could not be run inside.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A step of the way in failed.
    #[error("cannot {step}: {}", std::io::Error::from(*.errno))]
    Step {
        /// What was tried.
        step: String,
        /// Why it failed.
        errno: Errno,
    },
    /// A network of the plan's own could not be made.
    #[error("cannot make a network of the plan's own ({step}: {})", std::io::Error::from(*.errno))]
    NoNetwork {
        /// What was tried.
        step: String,
        /// Why it failed.
        errno: Errno,
    },
    /// A process inside could not be paused.
    #[error("could not pause {who}: {}", std::io::Error::from(*.errno))]
    Restless {
        /// Who.
        who: String,
        /// Why.
        errno: Errno,
    },
    /// What is asked for needs namespaces, which cannot be had.
    #[error("user namespaces are not available here, and without them {what}")]
    NoNamespaces {
        /// What cannot be.
        what: String,
        /// Whether nothing is left but to run unconfined.
        bare: bool,
    },
    /// A credential cannot be added to requests.
    #[error("cannot inject a credential for {host}: {why}")]
    Injection {
        /// The host.
        host: String,
        /// Why.
        why: String,
    },
    /// The namespace ended before it said how.
    #[error("the command was killed together with its monitor by a process inside")]
    Silent,
}

impl RunError {
    /// Whether the command itself could not be started: the status a shell would give.
    pub fn command_status(&self) -> Option<i32> {
        match self {
            Self::Step { step, errno } if step.starts_with("run '") => Some(match *errno {
                Errno::NOENT => 127,
                _ => 126,
            }),
            _ => None,
        }
    }
}

/// One message at a time between supervisor and inside.
pub(super) struct Channel(OwnedFd);

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> Self {
        // A descriptor that came through exec is inherited no further.
        match rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC) {
            Ok(()) | Err(_) => Self(socket),
        }
    }

    /// Both ends of a new one.
    pub(super) fn pair() -> Result<(Self, Self), RunError> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(at("make a channel"))?;
        Ok((Self(ours), Self(theirs)))
    }

    /// Closes it in a process that goes on without it, and never drops it.
    pub(super) fn close_here(&self) {
        sys::close(self.0.as_fd());
    }

    /// Sends a descriptor with a message.
    pub(super) fn send_with(
        &self,
        message: &impl Serialize,
        fd: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
        let fds = [fd];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        with.push(SendAncillaryMessage::ScmRights(&fds));
        let parts = [std::io::IoSlice::new(&bytes)];
        rustix::net::sendmsg(&self.0, &parts, &mut with, SendFlags::NOSIGNAL).map(drop)
    }

    pub(super) fn send(&self, message: &impl Serialize) -> Result<(), Errno> {
        let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
        rustix::net::send(&self.0, &bytes, SendFlags::NOSIGNAL).map(drop)
    }

    /// The next message; `None` when the other side is gone.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> Result<Option<T>, Errno> {
        Ok(self.receive_with()?.map(|(message, _)| message))
    }

    /// The next message and the descriptor that came with it.
    pub(super) fn receive_with<T: DeserializeOwned>(
        &self,
    ) -> Result<Option<(T, Option<OwnedFd>)>, Errno> {
        let mut buffer = vec![0; 16 * 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let received = {
            let mut parts = [std::io::IoSliceMut::new(&mut buffer)];
            let mut receive =
                || rustix::net::recvmsg(&self.0, &mut parts, &mut with, RecvFlags::CMSG_CLOEXEC);
            match receive() {
                // The other side ended without reading all that it was sent. The kernel says so once; what it sent
                // before is still there.
                Err(Errno::CONNRESET) => receive()?,
                received => received?,
            }
        };
        let fds = with.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = fds.flatten().next();
        match received.bytes {
            0 => Ok(None),
            length => serde_json::from_slice(&buffer[..length])
                .map(|message| Some((message, fd)))
                .map_err(|_| Errno::BADMSG),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets a program that is started from here use a descriptor, until the guard is gone.
struct Inheritable<'a>(BorrowedFd<'a>);

impl<'a> Inheritable<'a> {
    fn new(fd: BorrowedFd<'a>) -> Result<Self, RunError> {
        let set = rustix::io::fcntl_setfd(fd, FdFlags::empty());
        set.map_err(at("hand over a descriptor"))?;
        Ok(Self(fd))
    }

    fn word(&self) -> String {
        self.0.as_raw_fd().to_string()
    }
}

impl Drop for Inheritable<'_> {
    fn drop(&mut self) {
        match rustix::io::fcntl_setfd(self.0, FdFlags::CLOEXEC) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// The error of a step, in words, that failed.
pub(super) fn at(step: impl Into<String>) -> impl FnOnce(Errno) -> RunError {
    let step = step.into();
    move |errno| RunError::Step { step, errno }
}

/// The same for an error of the standard library.
pub(crate) fn at_io(step: impl Into<String>) -> impl FnOnce(std::io::Error) -> RunError {
    let failed = at(step);
    move |error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// A socket of the plan's own network.
pub(crate) enum HandedSocket {
    /// The channel on which connections out of it are asked for.
    Outgoing,
    /// One of its loopback that leads to this machine's at the same address, and whether it takes datagrams.
    Relay(std::net::SocketAddr, bool),
}

/// The outside of a run.
pub(crate) struct SupervisorOptions<'a> {
    /// A program that calls [`enter`](super::enter) with the two descriptors it is given as words.
    pub(crate) launcher: &'a mut Command,
    /// Signals, each readable when this process gets it.
    pub(crate) signals: &'a [(i32, OwnedFd)],
    /// The terminal.
    pub(crate) terminal: Option<OwnedFd>,
    /// The descriptors that the description names.
    pub(crate) held: Vec<BorrowedFd<'a>>,
    /// Receives where the namespace is, before anything happens there.
    pub(crate) built: &'a mut dyn FnMut(ProcessIdentity) -> Result<(), RunError>,
    /// Is called when the command has begun.
    pub(crate) started: &'a mut dyn FnMut(),
    /// Is given the socket on which those inside ask.
    pub(crate) asked: &'a mut dyn FnMut(OwnedFd),
    /// Is given the socket of the proxy.
    pub(crate) proxied: &'a mut dyn FnMut(OwnedFd),
    /// Is given other sockets of the plan's network.
    pub(crate) handed: &'a mut dyn FnMut(HandedSocket, OwnedFd),
    /// Ports of the plan that are shown on this machine.
    pub(crate) published: Option<&'a Published>,
    /// Receives what was done without, and which limit was reached.
    pub(crate) notice: &'a mut dyn FnMut(String),
    /// Receives what the command looked for that is hidden.
    pub(crate) hidden: &'a mut dyn FnMut(Vec<Location>),
    /// How long the command may take.
    pub(crate) timeout: Option<Duration>,
    /// Looks at the disk that it takes.
    pub(crate) disk: Option<&'a DiskWatch>,
}

/// Runs the command that `spec` describes.
pub(crate) fn supervise(
    spec: &RunSpec,
    mut outside: SupervisorOptions<'_>,
) -> Result<CommandExit, RunError> {
    use std::os::unix::process::CommandExt;
    let (channel, theirs) = Channel::pair()?;
    let described = describe(spec).map_err(at_io("describe the namespace"))?;
    let child = {
        let handed = [described.as_fd(), theirs.as_fd()];
        let all = handed.into_iter().chain(outside.held.iter().copied());
        let all: Vec<Inheritable<'_>> = all.map(Inheritable::new).collect::<Result<_, _>>()?;
        // A group of its own: what the terminal sends to ours is ours to pass on.
        let launcher = outside.launcher.process_group(0);
        launcher.args([all[0].word(), all[1].word()]).spawn()
    };
    let mut child = child.map_err(at_io("start the launcher"))?;
    drop((theirs, described));
    let mut job = TerminalJob::new(outside.terminal.take(), spec.front);
    let ended = listen(&channel, &mut job, &mut outside);
    job.take_back();
    // With the channel the namespace ends, should it still be there.
    drop(channel);
    let reaped = child.wait();
    for (signal, _) in outside.signals {
        // From here on only an interrupt means anything else than it does elsewhere.
        if ![libc::SIGINT, libc::SIGTERM].contains(signal) {
            sys::set_signal(*signal, false);
        }
    }
    match reaped {
        Ok(_) | Err(_) => ended,
    }
}

/// The description in a file without a name.
fn describe(spec: &RunSpec) -> std::io::Result<File> {
    let fd = rustix::fs::memfd_create(c"inside", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(&serde_json::to_vec(spec).expect("paths and words are JSON"))?;
    file.rewind().map(|()| file)
}

fn listen(
    channel: &Channel,
    job: &mut TerminalJob,
    outside: &mut SupervisorOptions<'_>,
) -> Result<CommandExit, RunError> {
    let signals = outside.signals;
    let request = |request: Request| match channel.send(&request) {
        // A process that is gone says so by an end of the channel.
        Ok(()) | Err(_) => {}
    };
    let mut clock = Clock::new(outside.timeout);
    loop {
        let mut ready: Vec<PollFd<'_>> = vec![PollFd::new(channel, PollFlags::IN)];
        ready.extend(signals.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)));
        let disk = outside.disk.map(DiskWatch::reached);
        ready.extend(disk.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        match poll(&mut ready, clock.left().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(at("wait for the command")(errno)),
        }
        match clock.look() {
            TimeLeft::Some => {}
            TimeLeft::Over(limit) => {
                (outside.notice)(format!(
                    "the command was ended after {limit:?}, its limit of time"
                ));
                request(Request::Signal(libc::SIGTERM));
            }
            // With the channel everything inside ends.
            TimeLeft::Grace => return Ok(CommandExit::Exited(TIMED_OUT)),
        }
        let came: Vec<bool> = ready.iter().map(|one| !one.revents().is_empty()).collect();
        if let Some(disk) = outside.disk.filter(|_| came.last() == Some(&true)) {
            (outside.notice)(disk.text());
            // With the channel everything inside ends.
            return Ok(CommandExit::Signaled(libc::SIGKILL));
        }
        for ((signal, fd), _) in signals.iter().zip(&came[1..]).filter(|(_, came)| **came) {
            sys::drain(fd);
            request(match *signal {
                libc::SIGCONT => job.resume(),
                signal => Request::Signal(signal),
            });
        }
        if !came[0] {
            continue;
        }
        match channel.receive_with::<Event>() {
            Ok(Some((Event::Ready(inside), _))) => {
                (outside.built)(inside)?;
                channel
                    .send(&Request::Go)
                    .map_err(at("start the command"))?;
            }
            Ok(Some((Event::Listening, Some(socket)))) => (outside.asked)(socket),
            Ok(Some((Event::Proxy, Some(socket)))) => (outside.proxied)(socket),
            Ok(Some((Event::Outgoing, Some(socket)))) => {
                (outside.handed)(HandedSocket::Outgoing, socket);
            }
            Ok(Some((Event::Relay(to, udp), Some(socket)))) => {
                (outside.handed)(HandedSocket::Relay(to, udp), socket);
            }
            Ok(Some((Event::Socket, Some(socket)))) => {
                if let Some(published) = outside.published {
                    published.take(socket);
                }
            }
            Ok(Some((Event::Notice(text), _))) => (outside.notice)(text),
            Ok(Some((Event::Limit(text), _))) => (outside.notice)(text),
            Ok(Some((Event::Hidden(paths), _))) => (outside.hidden)(paths),
            Ok(Some((Event::Started, _))) => {
                clock.start();
                (outside.started)();
                let started = outside.published.map(|one| one.start(channel));
                started.transpose().map_err(at_io("publish ports"))?;
            }
            Ok(Some((Event::Listening | Event::Proxy | Event::Built(_), _))) => {}
            Ok(Some((Event::Outgoing | Event::Relay(..) | Event::Socket, _))) => {}
            Ok(Some((Event::NoNetwork(step, errno), _))) => {
                let errno = Errno::from_raw_os_error(errno);
                return Err(RunError::NoNetwork { step, errno });
            }
            Ok(Some((Event::Stopped(signal), _))) => match job.stopped(signal) {
                Some(answer) => request(answer),
                // No shell would continue us: whoever waits for us can still end us by a signal.
                None if job.terminal.is_none() => {}
                None => job.stop(),
            },
            Ok(Some((Event::Exited(_) | Event::Signaled(_), _))) if clock.is_over() => {
                return Ok(CommandExit::Exited(TIMED_OUT));
            }
            Ok(Some((Event::Exited(status), _))) => return Ok(CommandExit::Exited(status)),
            Ok(Some((Event::Signaled(signal), _))) => return Ok(CommandExit::Signaled(signal)),
            Ok(Some((Event::Failed(what, errno), _))) => {
                return Err(at(what)(Errno::from_raw_os_error(errno)));
            }
            Ok(None) => return Err(RunError::Silent),
            Err(errno) => return Err(at("receive from the monitor")(errno)),
        }
    }
}

/// The status of a command whose time was over, as `timeout` has it.
const TIMED_OUT: i32 = 124;

/// How long a command has to end by itself when its time is over.
const GRACE: Duration = Duration::from_secs(5);

/// The time of a command: first its limit, then the grace.
struct Clock {
    limit: Option<Duration>,
    until: Option<Instant>,
    over: bool,
}

enum TimeLeft {
    Some,
    Over(Duration),
    Grace,
}

impl Clock {
    fn new(limit: Option<Duration>) -> Self {
        let (until, over) = (None, false);
        Self { limit, until, over }
    }

    fn start(&mut self) {
        self.until = self
            .limit
            .and_then(|limit| Instant::now().checked_add(limit));
    }

    fn left(&self) -> Option<Timespec> {
        let left = self.until?.saturating_duration_since(Instant::now());
        // Rounded up: one that is woken too early would look again and again.
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    fn look(&mut self) -> TimeLeft {
        match (self.until, self.limit) {
            (Some(until), Some(limit)) if Instant::now() >= until => {
                let before = std::mem::replace(&mut self.over, true);
                self.until = Some(Instant::now() + GRACE);
                match before {
                    true => TimeLeft::Grace,
                    false => TimeLeft::Over(limit),
                }
            }
            _ => TimeLeft::Some,
        }
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

/// The command as a job of the shell that started us.
///
/// It has a process group of its own, so that it can signal its group and reach no process outside. It
/// gets the terminal at once if all our streams are the terminal and we stand in front; else, as in a
/// pipeline whose other members may need it, when it first asks for it.
struct TerminalJob {
    terminal: Option<OwnedFd>,
    modes: Option<Termios>,
    /// The streams that are a terminal, as each was.
    files: Vec<(OwnedFd, TerminalFile)>,
    /// Whether it is to have the terminal whenever we could have it.
    eager: bool,
    /// Whether it has the terminal now.
    has_terminal: bool,
}

impl TerminalJob {
    fn new(terminal: Option<OwnedFd>, front: bool) -> Self {
        let modes = terminal.as_ref();
        Self {
            modes: modes.and_then(|terminal| rustix::termios::tcgetattr(terminal).ok()),
            // Also where none of them controls this process.
            files: terminal_files(),
            terminal,
            eager: front,
            has_terminal: front,
        }
    }

    /// Whether the terminal is ours to give.
    fn is_front(&self) -> bool {
        self.terminal.as_ref().map(tcgetpgrp) == Some(Ok(getpgrp()))
    }

    /// What to do when the command was stopped; `None`: stop with it.
    fn stopped(&mut self, signal: i32) -> Option<Request> {
        let wants = [libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
        (wants && self.is_front()).then(|| {
            (self.has_terminal, self.eager) = (true, true);
            Request::Continue { front: true }
        })
    }

    /// What to do when the parent continues us.
    fn resume(&mut self) -> Request {
        let front = self.eager && self.is_front();
        self.has_terminal |= front;
        Request::Continue { front }
    }

    /// Stops with the command, so that the shell sees it.
    fn stop(&mut self) {
        // Who has the terminal is stopped alone; the rest of the job has to be told.
        let alone = !self.has_terminal;
        self.take_terminal();
        let stopped = match alone {
            true => kill_process(getpid(), Signal::STOP),
            false => kill_current_process_group(Signal::STOP),
        };
        match stopped {
            Ok(()) | Err(_) => {}
        }
    }

    fn take_terminal(&mut self) {
        let Some(terminal) = self.terminal.as_ref().filter(|_| self.has_terminal) else {
            return;
        };
        sys::set_signal(libc::SIGTTOU, true);
        // A process that took it away has it.
        match tcsetpgrp(terminal, getpgrp()) {
            Ok(()) | Err(_) => {}
        }
        sys::set_signal(libc::SIGTTOU, false);
        self.has_terminal = false;
    }

    /// Takes the terminal back as it was. What the command made of it as a file is undone too.
    fn take_back(&mut self) {
        for (file, before) in &self.files {
            if file_of(file.as_fd()).is_ok_and(|now| now != *before) {
                // One that belongs to another user could not have been changed.
                match (
                    rustix::fs::fchmod(file, before.mode),
                    sys::set_exclusive(file, before.exclusive),
                    // The shell has the same open file, and would not wait for keys.
                    rustix::fs::fcntl_setfl(file, before.flags),
                ) {
                    (Ok(()) | Err(_), Ok(()) | Err(_), Ok(()) | Err(_)) => {}
                }
            }
        }
        let streams = self.files.iter().map(|(file, _)| file);
        for terminal in self.terminal.iter().chain(streams) {
            sys::set_signal(libc::SIGTTOU, true);
            // A terminal that the command stopped would keep everyone waiting who writes, this process first.
            match rustix::termios::tcflow(terminal, Action::OOn) {
                Ok(()) | Err(_) => sys::set_signal(libc::SIGTTOU, false),
            }
        }
        let has_terminal = self.has_terminal;
        self.take_terminal();
        if let (Some(terminal), Some(modes), true) = (&self.terminal, &self.modes, has_terminal) {
            match rustix::termios::tcsetattr(terminal, OptionalActions::Now, modes) {
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// The streams of this process that are a terminal. What `/dev/tty` opens has another mode.
fn terminal_files() -> Vec<(OwnedFd, TerminalFile)> {
    use rustix::stdio::{stderr, stdin, stdout};
    let streams = [stdin(), stdout(), stderr()].into_iter();
    streams
        .filter_map(|stream| {
            let file = file_of(stream).ok()?;
            let copy = rustix::io::fcntl_dupfd_cloexec(stream, 3).ok()?;
            Some((copy, file))
        })
        .collect()
}

/// What a command can change of a terminal as a file.
#[derive(PartialEq, Eq)]
struct TerminalFile {
    mode: Mode,
    /// Whether it is closed to others.
    exclusive: bool,
    /// Whether those who read it wait, and the like.
    flags: OFlags,
}

fn file_of(terminal: BorrowedFd<'_>) -> Result<TerminalFile, Errno> {
    Ok(TerminalFile {
        exclusive: sys::is_exclusive(terminal)?,
        mode: Mode::from_raw_mode(rustix::fs::fstat(terminal)?.st_mode),
        flags: rustix::fs::fcntl_getfl(terminal)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_command_is_received_although_it_left_requests_unread() {
        let (ours, theirs) = Channel::pair().expect("there are sockets");
        for signal in [libc::SIGTERM, libc::SIGINT] {
            ours.send(&Request::Signal(signal)).expect("it is there");
        }
        theirs.send(&Event::Exited(7)).expect("it is there");
        drop(theirs);
        let received = ours.receive::<Event>().expect("what was sent");
        assert!(matches!(received, Some(Event::Exited(7))));
        assert!(ours.receive::<Event>().expect("an end").is_none());
    }
}
