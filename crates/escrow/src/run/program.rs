//! Programs that the engine starts for others, and how long it waits for them.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a program may take: the helper may have to wait for a plan, and to restore much.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// How long one waits before looking again.
const PAUSE: Duration = Duration::from_millis(2);

/// A program that is about to be started. A command of the user takes as long as it takes.
#[expect(
    clippy::disallowed_methods,
    reason = "the door through which the engine starts commands and the helper program"
)]
pub(crate) fn program(name: &OsStr) -> Command {
    Command::new(name)
}

/// Lets a program end with the thread that starts it, however that ends.
pub(crate) fn die_with_this_thread(command: &mut Command) {
    super::sys::die_with_parent(command);
}

/// Lets a program begin as a member of control groups, by the files through which a process joins them.
pub(super) fn join_groups(command: &mut Command, procs: Vec<OwnedFd>) {
    super::sys::before_exec(command, move || super::limits::join(&procs));
}

/// Runs a program to its end with this on standard input. At the time limit it is killed, which its status says.
pub(crate) fn output(program: Command, input: &[u8]) -> std::io::Result<Output> {
    let until = Instant::now() + LIMIT;
    let ended = output_until(program, input, u64::MAX, &|| Instant::now() >= until);
    ended.map(|(output, _)| output)
}

/// The same with a time limit of its own, which is an error.
pub(crate) fn output_in_time(
    program: Command,
    input: &[u8],
    limit: Duration,
) -> std::io::Result<Output> {
    let mut child = start(program)?;
    let stdout = gather(child.stdout.take(), u64::MAX);
    let stderr = gather(child.stderr.take(), u64::MAX);
    if let Some(mut to) = child.stdin.take() {
        feed(&mut to, input);
    }
    let (output, ended) = end_within(child, stdout, stderr, limit)?;
    match ended {
        true => Ok(output),
        false => Err(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            format!("it did not end within {} s, and was ended", limit.as_secs()),
        )),
    }
}

/// The same; of each stream so many bytes are kept. The program is killed when `stop` says so; returns whether it ended by itself.
pub(crate) fn output_until(
    program: Command,
    input: &[u8],
    most: u64,
    stop: &dyn Fn() -> bool,
) -> std::io::Result<(Output, bool)> {
    let mut child = start(program)?;
    let stdout = gather(child.stdout.take(), most);
    let stderr = gather(child.stderr.take(), most);
    if let Some(mut to) = child.stdin.take() {
        feed(&mut to, input);
    }
    end_unless(child, stdout, stderr, stop)
}

/// The same, with more on standard input: what `then` returns, asked when the program has said this line.
pub(crate) fn output_when(
    program: Command,
    input: &[u8],
    line: &'static str,
    then: impl FnOnce() -> Vec<u8>,
) -> std::io::Result<Output> {
    let mut child = start(program)?;
    let (tell, told) = mpsc::channel();
    let from = child.stdout.take();
    let stdout = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let Some(mut from) = from.map(BufReader::new) else {
            return bytes;
        };
        loop {
            let before = bytes.len();
            match from.read_until(b'\n', &mut bytes) {
                // What came before is what there is.
                Ok(0) | Err(_) => return bytes,
                Ok(_) if bytes[before..].trim_ascii_end() == line.as_bytes() => {
                    match tell.send(()) {
                        // It is said twice.
                        Ok(()) | Err(_) => {}
                    }
                }
                Ok(_) => {}
            }
        }
    });
    let stderr = gather(child.stderr.take(), u64::MAX);
    if let Some(mut to) = child.stdin.take() {
        feed(&mut to, input);
        // One that ended has nothing to wait for.
        if told.recv_timeout(LIMIT).is_ok() {
            feed(&mut to, &then());
        }
    }
    end(child, stdout, stderr)
}

fn start(mut program: Command) -> std::io::Result<Child> {
    let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
    program.stderr(Stdio::piped()).spawn()
}

fn feed(to: &mut impl Write, input: &[u8]) {
    match to.write_all(input) {
        // One that ended early says why.
        Ok(()) | Err(_) => {}
    }
}

/// Waits for the end of a program.
fn end(child: Child, stdout: Gathered, stderr: Gathered) -> std::io::Result<Output> {
    end_within(child, stdout, stderr, LIMIT).map(|(output, _)| output)
}

/// The same with another limit; says whether it ended by itself.
fn end_within(
    child: Child,
    stdout: Gathered,
    stderr: Gathered,
    limit: Duration,
) -> std::io::Result<(Output, bool)> {
    let until = Instant::now() + limit;
    end_unless(child, stdout, stderr, &|| Instant::now() >= until)
}

/// The same until `stop` says that it is to be killed.
fn end_unless(
    mut child: Child,
    stdout: Gathered,
    stderr: Gathered,
    stop: &dyn Fn() -> bool,
) -> std::io::Result<(Output, bool)> {
    let (status, ended) = loop {
        match child.try_wait()? {
            Some(status) => break (status, true),
            None if !stop() => std::thread::sleep(PAUSE),
            None => {
                child.kill()?;
                break (child.wait()?, false);
            }
        }
    };
    let bytes = |from: Gathered| from.join().unwrap_or_default();
    let output = Output {
        status,
        stdout: bytes(stdout),
        stderr: bytes(stderr),
    };
    Ok((output, ended))
}

type Gathered = std::thread::JoinHandle<Vec<u8>>;

/// Reads all of a pipe in a thread of its own, so that the program never waits for it.
fn gather(from: Option<impl Read + Send + 'static>, most: u64) -> Gathered {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            match from.by_ref().take(most).read_to_end(&mut bytes) {
                // What came before is what there is.
                Ok(_) | Err(_) => {}
            }
            // What is too long for anyone is read, so that the program ends, and not kept.
            match std::io::copy(&mut from, &mut std::io::sink()) {
                Ok(_) | Err(_) => {}
            }
        }
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `pg_dump` of a commit waited for ever, with the locks of the commit on the original.
    // rule S5
    #[test]
    fn a_program_that_does_not_end_is_ended_at_its_limit() {
        let mut sleeps = program(OsStr::new("sleep"));
        sleeps.arg("1000");
        let error = output_in_time(sleeps, b"", Duration::from_millis(20));
        let error = error.expect_err("it sleeps");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        let echoes = output_in_time(program(OsStr::new("cat")), b"said", LIMIT);
        assert_eq!(echoes.expect("it ends").stdout, b"said");
    }
}
