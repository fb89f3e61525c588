//! The process of a program: a clean environment, a process group of its own, ended with its children.
//!
//! It ends with the engine: its standard input closes, and the kernel kills it when the thread that started it ends, which reads
//! its output for as long as there is any. Its last lines on stderr are kept; however much it writes there, it never waits.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::error::shown;
use crate::run::program::{die_with_this_thread, program};

/// The longest line that is read from a program, and written to it.
pub(super) const LONGEST: usize = 16 * 1024 * 1024;

/// How many messages wait to be read before the program waits; each may be as long as any.
const WAITING: usize = 2;

/// How many lines of stderr are kept.
const LINES: usize = 20;

/// How long a program has to end by itself once its input is closed.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long one waits before looking again.
const PAUSE: Duration = Duration::from_millis(2);

/// How a program is started.
pub(super) struct Launch<'a> {
    pub(super) words: &'a [OsString],
    pub(super) directory: &'a Path,
    pub(super) environment: &'a [(OsString, OsString)],
}

/// What comes from a program.
pub(super) enum Received {
    /// A line, without its end.
    Line(Vec<u8>),
    /// A line that is longer than any may be.
    TooLong,
    /// The last line has no end.
    Half(Vec<u8>),
}

/// The last lines of stderr.
type Lines = Arc<Mutex<VecDeque<String>>>;

/// A running program.
pub(super) struct Process {
    child: Child,
    to: Option<Sender<Vec<u8>>>,
    from: Receiver<Received>,
    said: Lines,
    stderr_ended: Receiver<()>,
    /// With this the thread that started it ends.
    _keeps_alive: Sender<()>,
}

impl Process {
    /// Starts it.
    pub(super) fn start(launch: &Launch<'_>) -> std::io::Result<Self> {
        let (first, rest) = launch.words.split_first().ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, "the command is empty")
        })?;
        let path = launch.environment.iter().find(|(name, _)| name == "PATH");
        let first = find(first, launch.directory, path.map(|(_, value)| value));
        let mut command = program(first.as_os_str());
        command
            .args(rest)
            .current_dir(launch.directory)
            .env_clear()
            .envs(launch.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        die_with_this_thread(&mut command);
        let (started, outcome) = channel();
        let (lines, from) = sync_channel(WAITING);
        let (keeps_alive, alive) = channel::<()>();
        // This thread starts it and lives as long as it: the kernel ends it with the thread.
        std::thread::Builder::new()
            .name("plugin".to_owned())
            .spawn(move || match command.spawn() {
                Ok(mut child) => {
                    let output = child.stdout.take();
                    if started.send(Ok(child)).is_ok()
                        && let Some(output) = output
                    {
                        read_lines(output, &lines);
                        // It may be about to end by itself, and then says how.
                        drop(lines);
                        match alive.recv() {
                            Ok(()) | Err(_) => {}
                        }
                    }
                }
                Err(error) => match started.send(Err(error)) {
                    // No process waits for the answer any more.
                    Ok(()) | Err(_) => {}
                },
            })?;
        let ended = |_| std::io::Error::other("the thread that starts it ended");
        let mut child = outcome.recv().map_err(ended)??;
        let said = Lines::default();
        let stderr_ended = keep_stderr(child.stderr.take(), &said);
        let to = child.stdin.take().map(writer);
        Ok(Self {
            child,
            to,
            from,
            said,
            stderr_ended,
            _keeps_alive: keeps_alive,
        })
    }

    /// Sends a line; whether it is read is seen by the answer.
    pub(super) fn send(&self, line: Vec<u8>) {
        if let Some(to) = &self.to {
            match to.send(line) {
                // One that ended is noticed by its output.
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// What it sends next: `Ok(None)` where there is nothing within this time, an error where nothing comes any more.
    pub(super) fn receive(&self, within: Duration) -> Result<Option<Received>, ()> {
        use std::sync::mpsc::RecvTimeoutError;
        match self.from.recv_timeout(within) {
            Ok(received) => Ok(Some(received)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(()),
        }
    }

    /// Whether it has ended. It is not waited for, so that its number stays its own.
    pub(super) fn has_ended(&self) -> bool {
        let pid = Pid::from_child(&self.child);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
    }

    /// Kills it with its children once this time is over; that is waited for by joining the thread.
    pub(super) fn kill_after(&self, time: Duration) -> std::thread::JoinHandle<()> {
        let group = Pid::from_child(&self.child);
        std::thread::spawn(move || {
            std::thread::sleep(time);
            match kill_process_group(group, Signal::KILL) {
                // It may have been quicker.
                Ok(()) | Err(_) => {}
            }
        })
    }

    /// Its last lines on stderr.
    pub(super) fn said(&self) -> Vec<String> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.iter().cloned().collect()
    }

    /// Ends it with its children: after it had time to end by itself, if it is asked `politely`. Returns how it ended and its last
    /// lines on stderr.
    pub(super) fn end(mut self, politely: bool) -> (Option<ExitStatus>, Vec<String>) {
        let status = self.stop(politely);
        // What it wrote last is on its way; a child that left the group may keep stderr open.
        match self.stderr_ended.recv_timeout(Duration::from_millis(200)) {
            Ok(()) | Err(_) => {}
        }
        (status, self.said())
    }

    fn stop(&mut self, politely: bool) -> Option<ExitStatus> {
        self.to = None;
        let until = Instant::now() + FAREWELL;
        while politely && !self.has_ended() && Instant::now() < until {
            std::thread::sleep(PAUSE);
        }
        // Before it is waited for: until then the number of its group is no other's.
        match kill_process_group(Pid::from_child(&self.child), Signal::KILL) {
            // None may be left.
            Ok(()) | Err(_) => {}
        }
        self.child.wait().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Where `end` was called, it has been waited for, and the answer is kept.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.stop(true);
        }
    }
}

/// The program that a word means: from the directory if it has a slash, else on the search path.
fn find(word: &OsString, directory: &Path, path: Option<&OsString>) -> PathBuf {
    let name = Path::new(word);
    if name.components().count() > 1 || name.is_absolute() {
        return directory.join(name);
    }
    let path = path.into_iter().flat_map(std::env::split_paths);
    let mut places = path
        .filter(|place| place.is_absolute())
        .map(|place| place.join(name));
    let there = |place: &PathBuf| crate::fs::Dir::look(place).is_ok_and(|meta| !meta.is_dir());
    places.find(there).unwrap_or_else(|| name.to_owned())
}

/// Writes lines to a program, which may take its time to read them.
fn writer(mut to: ChildStdin) -> Sender<Vec<u8>> {
    let (lines, waiting) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        for line in waiting {
            if to.write_all(&line).and_then(|()| to.flush()).is_err() {
                break;
            }
        }
    });
    lines
}

/// Passes the lines of a program on until there are no more, or one is too long.
fn read_lines(from: impl Read, to: &SyncSender<Received>) {
    let mut from = BufReader::with_capacity(64 * 1024, from);
    loop {
        let received = match read_line(&mut from, LONGEST) {
            Ok(Some(received)) => received,
            Ok(None) | Err(_) => return,
        };
        let last = !matches!(received, Received::Line(_));
        if to.send(received).is_err() || last {
            return;
        }
    }
}

/// One line of at most `longest` bytes; `None` at the end.
fn read_line(
    from: &mut impl std::io::BufRead,
    longest: usize,
) -> std::io::Result<Option<Received>> {
    let mut line = Vec::new();
    loop {
        let buffer = match from.fill_buf() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            answer => answer?,
        };
        if buffer.is_empty() {
            return Ok((!line.is_empty()).then_some(Received::Half(line)));
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(buffer.len());
        if line.len() + taken > longest {
            return Ok(Some(Received::TooLong));
        }
        line.extend_from_slice(&buffer[..taken]);
        from.consume(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Ok(Some(Received::Line(line)));
        }
    }
}

/// Keeps the last lines of stderr; says when it has ended.
fn keep_stderr(from: Option<impl Read + Send + 'static>, said: &Lines) -> Receiver<()> {
    let (ended, notice) = sync_channel::<()>(1);
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        let Some(from) = from else { return };
        let mut from = BufReader::new(from);
        // A line that is too long is cut: what follows is another one.
        while let Ok(Some(line)) = read_line_or_part(&mut from) {
            let line = shown(&line);
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            if !line.trim().is_empty() {
                said.push_back(line);
            }
            if said.len() > LINES {
                said.pop_front();
            }
        }
        match ended.send(()) {
            // No process waits for it.
            Ok(()) | Err(_) => {}
        }
    });
    notice
}

fn read_line_or_part(from: &mut impl std::io::BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = std::io::BufRead::read_until(&mut Read::take(from, 4096), b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok((read > 0).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<String> {
        let mut from = BufReader::with_capacity(3, text);
        let mut found = Vec::new();
        while let Ok(Some(one)) = read_line(&mut from, 5) {
            match one {
                Received::Line(line) => found.push(format!("{}.", shown(&line))),
                Received::Half(line) => found.push(shown(&line)),
                Received::TooLong => {
                    found.push("too long".to_owned());
                    break;
                }
            }
        }
        found
    }

    // rule X1
    #[test]
    fn lines_have_an_end_and_a_longest_length() {
        assert_eq!(all(b"ab\n\nabcde\n"), ["ab.", ".", "abcde."]);
        assert_eq!(all(b"ab\nabcdef\nab\n"), ["ab.", "too long"]);
        assert_eq!(all(b"ab\nabc"), ["ab.", "abc"]);
        assert!(all(b"").is_empty());
    }
}
