//! Process 1: starts the command, passes signals on, and ends when it ends. With it ends everything
//! that is left inside.

use std::ffi::CString;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::door::{Step, at};
use super::spec::Spec;
use super::supervise::Channel;
use super::{News, Wish, sys};
use crate::model::text::Location;

/// Starts the command and stays until it has ended. `alone`: this is process 1, and whatever is left
/// afterwards is ended too.
pub(super) fn watch(spec: &Spec, channel: &Channel, alone: bool) -> Step<i32> {
    // The terminal is handed over from the background.
    sys::set_signal(libc::SIGTTOU, true);
    let children = sys::child_news().map_err(at("watch for children"))?;
    if alone {
        // The supervisor notes who we are before anything can happen inside.
        channel
            .hear::<Wish>()
            .map_err(at("hear from the supervisor"))?;
    }
    let command = start(spec, channel)?;
    channel
        .tell(&News::Started)
        .map_err(at("tell the supervisor"))?;
    loop {
        let mut ready = [
            PollFd::new(&children, PollFlags::IN),
            PollFd::new(channel, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(at("wait for the command")(errno)),
        }
        if !ready[1].revents().is_empty() {
            match channel.hear::<Wish>() {
                Ok(Some(wish)) => obey(&wish, command, spec.terminal),
                // The supervisor is gone, and so is everything it watched over.
                Ok(None) | Err(_) => return Ok(end(alone, command, 128 + libc::SIGKILL)),
            }
        }
        sys::drain(&children);
        while let Some((pid, what)) = sys::wait_any(false).map_err(at("wait for the command"))? {
            if pid != command {
                continue;
            }
            let (news, status) = match what {
                sys::Child::Stopped => (News::Stopped, None),
                sys::Child::Exited(status) => (News::Exited(status), Some(status)),
                sys::Child::Signaled(signal) => (News::Signaled(signal), Some(128 + signal)),
            };
            if let Some(status) = status {
                let status = end(alone, command, status);
                // Told when nothing is left: whoever hears it may look at the sandboxes.
                channel.tell(&news).map_err(at("tell the supervisor"))?;
                return Ok(status);
            }
            channel.tell(&news).map_err(at("tell the supervisor"))?;
        }
    }
}

fn obey(wish: &Wish, command: u32, terminal: bool) {
    let group = -(command as i32);
    let done = match wish {
        Wish::Go => Ok(()),
        Wish::Continue => {
            if terminal {
                match sys::give_terminal(command as i32) {
                    Ok(()) | Err(_) => {}
                }
            }
            sys::kill(group, libc::SIGCONT)
        }
        Wish::Signal(signal) => sys::kill(group, *signal),
    };
    // A command that has just ended needs no signal.
    match done {
        Ok(()) | Err(_) => {}
    }
}

/// Ends whatever is left inside, and waits until it has ended.
fn end(alone: bool, command: u32, status: i32) -> i32 {
    let target = if alone { -1 } else { -(command as i32) };
    match sys::kill(target, libc::SIGKILL) {
        Ok(()) | Err(_) => {}
    }
    if alone {
        while let Ok(Some(_)) = sys::wait_any(true) {}
    }
    status
}

fn start(spec: &Spec, channel: &Channel) -> Step<u32> {
    let text = |location: &Location| CString::new(location.as_bytes());
    let invalid = |_| ("use a word with a NUL byte".to_owned(), Errno::INVAL);
    let command: Result<Vec<CString>, _> = spec.command.iter().map(text).collect();
    let command = command.map_err(invalid)?;
    let variable = |(name, value): &(Location, Location)| {
        CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    let environment: Result<Vec<CString>, _> = spec.environment.iter().map(variable).collect();
    let environment = environment.map_err(invalid)?;
    let pid = sys::fork().map_err(at("start the command"))?;
    if pid != 0 {
        return Ok(pid);
    }
    let (step, errno) = become_command(spec, &command, &environment);
    let status = match errno {
        Errno::NOENT => 127,
        _ => 126,
    };
    match channel.tell(&News::Failed(step, errno.raw_os_error())) {
        Ok(()) | Err(_) => sys::exit(status),
    }
}

/// Runs in the child; returns only if it fails.
fn become_command(spec: &Spec, command: &[CString], environment: &[CString]) -> (String, Errno) {
    let prepared = || -> Step<()> {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        sys::set_group(0).map_err(at("make a process group"))?;
        if spec.terminal {
            sys::give_terminal(own).map_err(at("hand the terminal over"))?;
        }
        for signal in [libc::SIGTTOU, libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE] {
            sys::set_signal(signal, false);
        }
        sys::unblock_signals();
        rustix::process::chdir(spec.directory.as_path())
            .map_err(at(format!("go to '{}'", spec.directory)))?;
        sys::give_up_privileges().map_err(at("give privileges up"))?;
        sys::forbid_typing().map_err(at("close the way to the terminal's input"))?;
        sys::keep_three().map_err(at("close other descriptors"))
    };
    if let Err(failed) = prepared() {
        return failed;
    }
    let errno = sys::exec(command, environment);
    (format!("run '{}'", spec.command[0]), errno)
}

impl AsFd for Channel {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket()
    }
}
