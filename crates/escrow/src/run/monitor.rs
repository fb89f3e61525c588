//! The monitor of one command: starts it, forwards signals, and when it ends, ends whatever the command left
//! running.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, getpid,
    getrlimit, kill_process, kill_process_group, set_child_subreaper, set_dumpable_behavior,
    setpgid, setrlimit, waitid,
};
use rustix::termios::tcsetpgrp;

use super::launcher::{StepResult, end_with_parent, report_failure};
use super::spec::RunSpec;
use super::supervise::{Channel, at};
use super::{Event, Request, filter, hidden, landlock, limits, listening, renames, sys};
use crate::failpoints;
use crate::fs::process;
use crate::model::text::Location;
use crate::model::{Limits, Network};

/// How long one tries to end those who make new ones faster than they are ended. With the last
/// command they all end at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many processes of ours may count as the command's.
const OWN: u64 = 8;

/// Starts the command and stays until it, and whatever it left, has ended.
pub(super) fn watch(
    spec: &RunSpec,
    terminal: Option<&OwnedFd>,
    groups: &[OwnedFd],
    mover: Option<&Channel>,
    channel: &Channel,
) -> StepResult<i32> {
    // The terminal is handed over from the background.
    sys::set_signal(libc::SIGTTOU, true);
    // A process that loses its parent becomes ours, not process 1's.
    set_child_subreaper(Some(getpid())).map_err(at("watch over the command"))?;
    let children = sys::child_news().map_err(at("watch for children"))?;
    let began = hidden::file_time();
    let command = start(spec, terminal, groups, mover, channel)?;
    let end = || end(command, mover);
    let limits = (spec.supervised != Limits::default()).then_some(&spec.supervised);
    let pause = limits.map(|_| interval());
    let started = channel.send(&Event::Started);
    started.map_err(at("send to the supervisor"))?;
    loop {
        let mut ready = [
            PollFd::new(&children, PollFlags::IN),
            PollFd::new(channel, PollFlags::IN),
        ];
        match poll(&mut ready, pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(at("wait for the command")(errno)),
        }
        if let Some(reached) = limits.and_then(limits::exceeded) {
            let told = channel.send(&Event::Limit(reached));
            end();
            let told = told.and_then(|()| channel.send(&Event::Signaled(libc::SIGKILL)));
            let status = 128 + libc::SIGKILL;
            return told.map(|()| status).map_err(at("send to the supervisor"));
        }
        if !ready[1].revents().is_empty() {
            match channel.receive::<Request>() {
                Ok(Some(Request::Socket { v6 })) => open_socket(v6, channel),
                Ok(Some(request)) => obey(&request, command, terminal),
                // The supervisor is gone, and so is everything it watched over.
                Ok(None) | Err(_) => {
                    end();
                    return Ok(128 + libc::SIGKILL);
                }
            }
        }
        sys::drain(&children);
        let changed = || sys::wait_any(WaitOptions::NOHANG).map_err(at("wait for the command"));
        while let Some((pid, status)) = changed()? {
            if pid != command {
                continue;
            }
            let ended = match (status.exit_status(), status.terminating_signal()) {
                (Some(status), _) => Some((Event::Exited(status), status)),
                (None, Some(signal)) => Some((Event::Signaled(signal), 128 + signal)),
                (None, None) => None,
            };
            if let Some((event, status)) = ended {
                let listens = listening::text();
                let failed = end().filter(|_| status != 0);
                for text in listens.into_iter().chain(failed) {
                    let told = channel.send(&Event::Notice(text));
                    told.map_err(at("send to the supervisor"))?;
                }
                let looked_for = hidden::looked_for(spec, began);
                if !looked_for.is_empty() {
                    let told = channel.send(&Event::Hidden(looked_for));
                    told.map_err(at("send to the supervisor"))?;
                }
                // Told when nothing is left: the process that hears it may look at the sandboxes.
                channel.send(&event).map_err(at("send to the supervisor"))?;
                return Ok(status);
            }
            let stopped = Event::Stopped(status.stopping_signal().unwrap_or_default());
            channel
                .send(&stopped)
                .map_err(at("send to the supervisor"))?;
        }
    }
}

fn obey(request: &Request, command: Pid, terminal: Option<&OwnedFd>) {
    let done = match request {
        Request::Go | Request::Socket { .. } => Ok(()),
        Request::Continue { front } => {
            if let Some(terminal) = terminal.filter(|_| *front) {
                match tcsetpgrp(terminal, command) {
                    Ok(()) | Err(_) => {}
                }
            }
            kill_process_group(command, Signal::CONT)
        }
        Request::Signal(signal) => {
            let signal = Signal::from_named_raw(*signal).ok_or(Errno::INVAL);
            let sent = signal.and_then(|signal| kill_process_group(command, signal));
            match signal {
                // One that is stopped would never get it.
                Ok(Signal::TERM | Signal::HUP) => {
                    sent.and_then(|()| kill_process_group(command, Signal::CONT))
                }
                _ => sent,
            }
        }
    };
    // A command that has just ended needs no signal.
    match done {
        Ok(()) | Err(_) => {}
    }
}

/// Opens a socket in the network of the command, for the supervisor.
fn open_socket(v6: bool, channel: &Channel) {
    let family = match v6 {
        true => AddressFamily::INET6,
        false => AddressFamily::INET,
    };
    let opened = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    match opened.and_then(|socket| channel.send_with(&Event::Socket, socket.as_fd())) {
        // A supervisor that gets none gives the connection up.
        Ok(()) | Err(_) => {}
    }
}

/// Ends whatever is left of the command, and waits until it has ended. Returns what has to be said if it failed.
fn end(command: Pid, mover: Option<&Channel>) -> Option<String> {
    let ended = |kill: Result<(), Errno>| match kill {
        Ok(()) | Err(_) => {}
    };
    ended(kill_process_group(command, Signal::KILL));
    end_descendants();
    mover.and_then(renames::end)
}

/// Ends every process that this one started or took over, and waits until they have ended.
pub(super) fn end_descendants() {
    let ended = |kill: Result<(), Errno>| match kill {
        Ok(()) | Err(_) => {}
    };
    let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let until = Instant::now() + PATIENCE;
    while waitid(WaitId::All, any).is_ok() && Instant::now() < until {
        // Where they cannot be seen, they end with the namespace.
        let left = process::descendants().unwrap_or_default();
        let left = left.into_iter().filter_map(|pid| Pid::from_raw(pid as i32));
        left.for_each(|pid| ended(kill_process(pid, Signal::KILL)));
        while let Ok(Some(_)) = sys::wait_any(WaitOptions::NOHANG) {}
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn interval() -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(limits::INTERVAL.subsec_nanos()),
    }
}

fn start(
    spec: &RunSpec,
    terminal: Option<&OwnedFd>,
    groups: &[OwnedFd],
    mover: Option<&Channel>,
    channel: &Channel,
) -> StepResult<Pid> {
    let text = |location: &Location| CString::new(location.as_bytes());
    let invalid = |_| at("use a word with a NUL byte")(Errno::INVAL);
    let command: Result<Vec<CString>, _> = spec.command.iter().map(text).collect();
    let command = command.map_err(invalid)?;
    let variable = |(name, value): &(Location, Location)| {
        CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    let environment: Result<Vec<CString>, _> = spec.environment.iter().map(variable).collect();
    let environment = environment.map_err(invalid)?;
    let programs = programs(spec).map_err(invalid)?;
    if let Some(pid) = sys::fork().map_err(at("start the command"))? {
        return Ok(pid);
    }
    let failed = match prepare(spec, terminal, groups, mover, channel) {
        Err(failed) => failed,
        Ok(()) => {
            let errno = become_command(&programs, &command, &environment);
            at(format!("run '{}'", spec.command[0]))(errno)
        }
    };
    sys::exit(report_failure(channel, failed))
}

/// What only the process that becomes the command can do.
fn prepare(
    spec: &RunSpec,
    terminal: Option<&OwnedFd>,
    groups: &[OwnedFd],
    mover: Option<&Channel>,
    channel: &Channel,
) -> StepResult<()> {
    let open = failpoints::bug("open-until-exec");
    if !open {
        // Once it has no more capabilities than other commands, those could take its descriptors.
        let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        hidden.map_err(at("hide open descriptors"))?;
    }
    limits::join(groups).map_err(at("join the control group"))?;
    // Who kills the monitor ends what it keeps.
    end_with_parent("tie the command to its monitor")?;
    setpgid(None, None).map_err(at("make a process group"))?;
    if let Some(terminal) = terminal.filter(|_| spec.front) {
        let given = tcsetpgrp(terminal, getpid());
        given.map_err(at("pass the terminal on"))?;
    }
    if !open {
        // The channels are closed when the command begins.
        let channels = [Some(channel), mover].into_iter().flatten();
        let mut kept: Vec<i32> = channels.map(|one| one.as_fd().as_raw_fd()).collect();
        sys::keep_only(&mut kept, 3).map_err(at("close other descriptors"))?;
    }
    for signal in [libc::SIGTTOU, libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE] {
        sys::set_signal(signal, false);
    }
    sys::unblock_signals();
    let there = rustix::process::chdir(spec.directory.as_path());
    there.map_err(at(format!(
        "go to '{}', which is hidden inside unless the plan has it (`-r .` takes it, `-C DIR` runs elsewhere)",
        spec.directory
    )))?;
    if !spec.look.open {
        confine(spec, mover)?;
    }
    if open {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Between two looks of the monitor too; root has no such limit. Beside other commands it would count theirs.
    let alone = spec.inside.is_none() && spec.copied.is_none();
    if let Some(pids) = spec.supervised.pids.filter(|_| alone) {
        let most = Some(pids.saturating_add(OWN));
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        setrlimit(Resource::Nproc, limit).map_err(at("limit processes"))?;
    }
    if spec.disk.is_some() {
        let limit = Rlimit {
            current: spec.disk,
            maximum: spec.disk,
        };
        setrlimit(Resource::Fsize, limit).map_err(at("limit the size of files"))?;
    }
    let Some(files) = spec.files else {
        return Ok(());
    };
    let limit = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: Some(files),
        ..limit
    };
    setrlimit(Resource::Nofile, limit).map_err(at("limit open files"))
}

/// The walls that the command takes with it.
fn confine(spec: &RunSpec, mover: Option<&Channel>) -> StepResult<()> {
    sys::give_up_privileges(spec.capabilities()).map_err(at("drop privileges"))?;
    match sys::new_session_keyring() {
        // The filter refuses every call that could use a key: where the kernel has no keys, or a user too many, nothing is lost.
        Ok(()) | Err(_) => {}
    }
    landlock::confine(spec).map_err(at("confine the command by Landlock"))?;
    renames::filter_calls(spec, mover).map_err(at("filter system calls"))?;
    match spec.copied {
        Some(_) => {
            let filter = filter::outside(spec.look.network == Network::Host);
            sys::filter_calls(filter).map_err(at("filter system calls"))
        }
        None => Ok(()),
    }
}

/// The files that the command's name may mean, by the search path of its own environment.
fn programs(spec: &RunSpec) -> Result<Vec<CString>, std::ffi::NulError> {
    let name = spec.command[0].as_bytes();
    if name.contains(&b'/') || name.is_empty() {
        return Ok(vec![CString::new(name)?]);
    }
    let set = spec
        .environment
        .iter()
        .rfind(|(name, _)| name.as_bytes() == b"PATH");
    let path = set.map_or(&b"/usr/local/bin:/usr/bin:/bin"[..], |(_, path)| {
        path.as_bytes()
    });
    let file = |dir: &[u8]| match dir {
        // An empty word means the current directory.
        b"" => CString::new(name),
        dir => CString::new([dir, b"/", name].concat()),
    };
    path.split(|byte| *byte == b':').map(file).collect()
}

/// Becomes the first of the programs that is one; returns only if none is.
fn become_command(programs: &[CString], command: &[CString], environment: &[CString]) -> Errno {
    let mut why = Errno::NOENT;
    for program in programs {
        match sys::exec(program, command, environment) {
            // Neither a directory that cannot be searched nor one on the way is the program.
            Errno::NOENT | Errno::NOTDIR if programs.len() > 1 => {}
            Errno::ACCESS if programs.len() > 1 && rustix::fs::stat(program).is_err() => {}
            Errno::ACCESS if programs.len() > 1 => why = Errno::ACCESS,
            // A script that does not say who reads it.
            Errno::NOEXEC => {
                let shell = [c"/bin/sh".to_owned(), program.clone()];
                let words = [&shell[..], &command[1..]].concat();
                return sys::exec(&shell[0], &words, environment);
            }
            errno => return errno,
        }
    }
    why
}
