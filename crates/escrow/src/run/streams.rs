//! The standard streams of a command. What stands for a file is given to it as a pipe, and copied by this process.
//!
//! Through a descriptor of a file a command could open the file again, for reading or for writing, cut it, and change its mode.
//! Terminals, connected local sockets and pipes that have no name are passed as they are; of the null device the namespace has one of its own.
//! When the command has ended, everything that it wrote is in the file before the run is over.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, fstatfs};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::console::{Console, Output};
use super::{RunError, at, at_io};

/// The file system of pipes without a name.
const PIPES: i64 = 0x5049_5045;

/// How much is copied at once.
const CHUNK: usize = 64 * 1024;

/// How much a pipe that takes anything takes without waiting.
const AT_ONCE: usize = 4096;

/// How long output is waited for that nothing takes, when the command has ended.
const PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// The null device.
pub(super) fn is_null(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && stat.st_rdev == rustix::fs::makedev(1, 3)
}

/// Whether a command could reach more through this descriptor than the stream.
fn is_more_than_a_stream(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let stat = fstat(fd)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => !is_connected_pair(fd),
        FileType::Fifo => i128::from(fstatfs(fd)?.f_type) != i128::from(PIPES),
        FileType::CharacterDevice => !is_null(&stat) && !rustix::termios::isatty(fd),
        _ => true,
    })
}

/// Whether a socket is one end of a local connection. Another one belongs to the network of this machine: a command could
/// connect it anew.
fn is_connected_pair(fd: BorrowedFd<'_>) -> bool {
    use rustix::net::{AddressFamily, SocketType, sockopt};
    let local = sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX);
    let stream = sockopt::socket_type(fd) == Ok(SocketType::STREAM);
    local && stream && rustix::net::getpeername(fd).is_ok()
}

/// Copies of what a command writes, under way.
#[derive(Default)]
pub(crate) struct Relays {
    all: Vec<(OwnedFd, JoinHandle<io::Result<()>>)>,
}

impl Relays {
    /// A pipe from which everything is copied to `to`.
    fn add(&mut self, to: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let to = std::fs::File::from(to.try_clone_to_owned()?);
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&read, OFlags::NONBLOCK)?;
        let (ended, end) = pipe_with(PipeFlags::CLOEXEC)?;
        let thread = std::thread::Builder::new().name("output".to_owned());
        let thread = thread.spawn(move || relay(&read, &ended, to))?;
        self.all.push((end, thread));
        Ok(write)
    }

    /// Waits until everything that the command wrote is where it belongs. A process that has got a descriptor of the pipe
    /// and goes on writing is not waited for.
    pub(crate) fn finish(self) -> Result<(), RunError> {
        let mut done = Ok(());
        for (end, thread) in self.all {
            drop(end);
            let copied = thread.join().unwrap_or_else(|_| Err(Errno::IO.into()));
            done = done.and(copied.map_err(at_io("write the output of the command")));
        }
        done
    }
}

/// Writes all of it. A pipe or a device that takes nothing is waited for as long as the command runs, and a little longer.
fn pour(to: &mut std::fs::File, bytes: &[u8], ended: &OwnedFd) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(&*to)?.st_mode) == FileType::RegularFile {
        return to.write_all(bytes);
    }
    for part in bytes.chunks(AT_ONCE) {
        let mut over = false;
        loop {
            let wait = over.then_some(&PATIENCE);
            let mut ready = [
                PollFd::new(&*to, PollFlags::OUT),
                PollFd::new(ended, PollFlags::IN),
            ];
            // What has ended has ended: from then on only the other is waited for.
            let looked = if over { 1 } else { 2 };
            match poll(&mut ready[..looked], wait) {
                Ok(0) => return Err(Errno::TIMEDOUT.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if !ready[0].revents().is_empty() {
                break;
            }
            over = over || !ready[1].revents().is_empty();
        }
        to.write_all(part)?;
    }
    Ok(())
}

fn relay(from: &OwnedFd, ended: &OwnedFd, mut to: std::fs::File) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    // What is left when the command has ended is not more than the pipe holds.
    let mut left: Option<usize> = None;
    while left != Some(0) {
        let mut ready = [
            PollFd::new(from, PollFlags::IN),
            PollFd::new(ended, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if left.is_none() && !ready[1].revents().is_empty() {
            left = Some(rustix::pipe::fcntl_getpipe_size(from)?);
        }
        let most = left.unwrap_or(CHUNK).min(CHUNK);
        match rustix::io::read(from, &mut buffer[..most]) {
            Ok(0) => return Ok(()),
            Ok(length) => match pour(&mut to, &buffer[..length], ended) {
                // The command is told by the end of its pipe, as it would be without us.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                written => {
                    written?;
                    left = left.map(|left| left - length);
                }
            },
            Err(Errno::AGAIN) if left.is_some() => return Ok(()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Connects the streams of a program that is about to be started.
pub(crate) fn connect(
    program: &mut Command,
    console: &dyn Console,
    output: Output,
) -> Result<Relays, RunError> {
    let failed = || at_io("connect the streams of the command");
    match console.input() {
        true => shield_input(program).map_err(failed())?,
        false => drop(program.stdin(Stdio::null())),
    }
    shield_output(program, output).map_err(failed())
}

fn shield_output(program: &mut Command, output: Output) -> io::Result<Relays> {
    let (out, error) = (io::stdout(), io::stderr());
    let error = error.as_fd();
    let out = match output {
        Output::Own => out.as_fd(),
        Output::Error => error,
    };
    let mut relays = Relays::default();
    let same = |one: &Stat, other: &Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
    // One pipe for what is one file, so that the order is kept.
    let one = same(&fstat(out)?, &fstat(error)?);
    if is_more_than_a_stream(out)? {
        let write = relays.add(out)?;
        if one {
            program.stderr(write.try_clone()?);
        }
        program.stdout(write);
    } else if output == Output::Error {
        program.stdout(error.try_clone_to_owned()?);
    }
    if !one && is_more_than_a_stream(error)? {
        program.stderr(relays.add(error)?);
    }
    Ok(relays)
}

fn shield_input(program: &mut Command) -> io::Result<()> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    if !is_more_than_a_stream(input.as_fd())? {
        return Ok(());
    }
    if FileType::from_raw_mode(fstat(&input)?.st_mode) == FileType::Directory {
        // Nothing can be read from it.
        program.stdin(Stdio::null());
        return Ok(());
    }
    let (read, mut write) = io::pipe()?;
    program.stdin(read);
    let mut input = std::fs::File::from(input);
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        // Not spliced: the kernel would hold the pipe while it waits for a socket, and with it whoever closes the pipe.
        loop {
            match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) if write.write_all(&buffer[..length]).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A program that does not read to the end needs no more.
                Ok(_) | Err(_) => return,
            }
        }
    });
    Ok(())
}

/// Gives this process the null device of the namespace in the place of each standard stream that is the machine's: root
/// could change the mode of that one.
pub(super) fn renew_null() -> Result<(), RunError> {
    use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdin, stdout};
    let step = || at("use the null device of the namespace");
    let streams = [stdin(), stdout(), stderr()];
    // A stream that is closed is no device.
    let machines = streams.map(|stream| fstat(stream).is_ok_and(|stat| is_null(&stat)));
    if machines == [false; 3] {
        return Ok(());
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let null = rustix::fs::open(c"/dev/null", flags, Mode::empty()).map_err(step())?;
    if !is_null(&fstat(&null).map_err(step())?) {
        return Err(step()(Errno::NODEV));
    }
    let replace = [dup2_stdin::<&OwnedFd>, dup2_stdout, dup2_stderr];
    let all = replace
        .into_iter()
        .zip(machines)
        .filter(|(_, machines)| *machines);
    for (replace, _) in all {
        replace(&null).map_err(step())?;
    }
    Ok(())
}
