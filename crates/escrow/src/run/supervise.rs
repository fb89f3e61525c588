//! The outside of a run: the terminal, job control, signals and the exit status pass through.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::spec::Spec;
use super::{News, Wish, sys};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

impl Ended {
    /// The status that a shell would show.
    pub fn status(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Signaled(signal) => 128 + signal,
        }
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
    /// The inside ended before it said how.
    #[error("the inside ended without a word")]
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

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(super) fn tell(&self, message: &impl Serialize) -> Result<(), Errno> {
        let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
        rustix::net::send(&self.0, &bytes, SendFlags::NOSIGNAL).map(drop)
    }

    /// The next message; `None` when the other side is gone.
    pub(super) fn hear<T: DeserializeOwned>(&self) -> Result<Option<T>, Errno> {
        let mut buffer = vec![0; 16 * 1024];
        let (length, _) = rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
        if length == 0 {
            return Ok(None);
        }
        serde_json::from_slice(&buffer[..length])
            .map(Some)
            .map_err(|_| Errno::BADMSG)
    }
}

/// A descriptor that a program started from here may use.
fn inheritable(fd: &OwnedFd) -> Result<String, Errno> {
    rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
    Ok(fd.as_raw_fd().to_string())
}

fn step(step: &str) -> impl FnOnce(Errno) -> RunError {
    let step = step.to_owned();
    move |errno| RunError::Step { step, errno }
}

/// Runs the command that `spec` describes, by way of `door`, which is a program that calls
/// [`enter`](super::enter) with the two descriptors it is given as words. `signals` become readable
/// when this process gets them. `started` is told the number of process 1.
pub fn supervise(
    door: &mut Command,
    spec: &Spec,
    signals: &[(i32, OwnedFd)],
    started: &mut dyn FnMut(u32),
) -> Result<Ended, RunError> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(step("make a channel"))?;
    let described = describe(spec)?;
    let words = [
        inheritable(&described).map_err(step("hand over a descriptor"))?,
        inheritable(&theirs).map_err(step("hand over a descriptor"))?,
    ];
    let child = door.args(&words).spawn();
    let mut child = child.map_err(|error| RunError::Step {
        step: "start the way in".to_owned(),
        errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })?;
    drop((theirs, described));
    let channel = Channel::new(ours);
    let ended = listen(&channel, spec.terminal, signals, started);
    if spec.terminal {
        sys::set_signal(libc::SIGTTOU, true);
        // Whoever took it away has it.
        match sys::give_terminal(sys::own_group()) {
            Ok(()) | Err(_) => {}
        }
        sys::set_signal(libc::SIGTTOU, false);
    }
    // With the channel the inside ends, should it still be there.
    drop(channel);
    match child.wait() {
        Ok(_) | Err(_) => ended,
    }
}

/// The description in a file without a name.
fn describe(spec: &Spec) -> Result<OwnedFd, RunError> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let fd = rustix::fs::memfd_create(c"inside", flags).map_err(step("describe the inside"))?;
    let text = serde_json::to_vec(spec).expect("paths and words are JSON");
    let mut rest = &text[..];
    while !rest.is_empty() {
        let written = rustix::io::write(&fd, rest).map_err(step("describe the inside"))?;
        rest = &rest[written..];
    }
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).map_err(step("describe the inside"))?;
    Ok(fd)
}

fn listen(
    channel: &Channel,
    terminal: bool,
    signals: &[(i32, OwnedFd)],
    started: &mut dyn FnMut(u32),
) -> Result<Ended, RunError> {
    loop {
        let mut ready: Vec<PollFd<'_>> = vec![PollFd::new(channel, PollFlags::IN)];
        ready.extend(signals.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)));
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(step("wait for the command")(errno)),
        }
        let came: Vec<bool> = ready.iter().map(|one| !one.revents().is_empty()).collect();
        for ((signal, fd), _) in signals.iter().zip(&came[1..]).filter(|(_, came)| **came) {
            sys::drain(fd);
            match channel.tell(&Wish::Signal(*signal)) {
                Ok(()) | Err(_) => {}
            }
        }
        if !came[0] {
            continue;
        }
        match channel.hear::<News>() {
            Ok(Some(News::Init(pid))) => {
                started(pid);
                channel.tell(&Wish::Go).map_err(step("start the command"))?;
            }
            Ok(Some(News::Started)) => {}
            Ok(Some(News::Stopped)) => stop(channel, terminal),
            Ok(Some(News::Exited(status))) => return Ok(Ended::Exited(status)),
            Ok(Some(News::Signaled(signal))) => return Ok(Ended::Signaled(signal)),
            Ok(Some(News::Failed(what, errno))) => {
                let errno = Errno::from_raw_os_error(errno);
                return Err(RunError::Step { step: what, errno });
            }
            Ok(None) => return Err(RunError::Silent),
            Err(errno) => return Err(step("hear from the command")(errno)),
        }
    }
}

/// Stops with the command, so that the shell sees it, and goes on with it.
fn stop(channel: &Channel, terminal: bool) {
    if terminal {
        sys::set_signal(libc::SIGTTOU, true);
        match sys::give_terminal(sys::own_group()) {
            Ok(()) | Err(_) => {}
        }
        sys::set_signal(libc::SIGTTOU, false);
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    match sys::kill(own, libc::SIGSTOP) {
        Ok(()) | Err(_) => {}
    }
    // Here again once somebody said so.
    match channel.tell(&Wish::Continue) {
        Ok(()) | Err(_) => {}
    }
}
