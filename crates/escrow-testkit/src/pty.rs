//! A terminal with no process in front of it: a test types, reads the screen, and changes the size of the window.
//!
//! Promise: a program that is started here is the first of a session of its own, with this terminal as the one
//! that controls it, as if another process had logged in. Whatever it writes is taken in at once, so it never
//! waits for a reader.
#![allow(
    unsafe_code,
    reason = "terminals are made, taken and resized by calls that have no safe form"
)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

/// How long a text that must come may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The key Ctrl-C.
pub const CTRL_C: &str = "\x03";
/// The key Ctrl-D.
pub const CTRL_D: &str = "\x04";
/// The key Ctrl-Z.
pub const CTRL_Z: &str = "\x1a";
/// The key Ctrl-\.
pub const CTRL_BACKSLASH: &str = "\x1c";

/// A terminal. Programs that still hold it when this is dropped are hung up.
#[derive(Debug)]
pub struct Terminal {
    keys: File,
    line: File,
    screen: Arc<Screen>,
    /// Closed, it ends the reader.
    open: Option<io::PipeWriter>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Screen {
    seen: Mutex<Seen>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Seen {
    bytes: Vec<u8>,
    /// What comes before was waited for already.
    read: usize,
}

impl Terminal {
    /// A terminal of this size, as the kernel makes them: it echoes, and its keys send signals.
    pub fn new(rows: u16, columns: u16) -> Self {
        let (keys, line) = open().unwrap_or_else(|error| panic!("cannot make a terminal: {error}"));
        let screen = Arc::new(Screen::default());
        let (from, (closed, open)) = keys
            .try_clone()
            .and_then(|from| Ok((from, io::pipe()?)))
            .unwrap_or_else(|error| panic!("cannot read from the terminal: {error}"));
        let shown = Arc::clone(&screen);
        let terminal = Self {
            screen,
            line,
            keys,
            open: Some(open),
            reader: Some(thread::spawn(move || take_in(from, &closed, &shown))),
        };
        terminal.resize(rows, columns);
        terminal
    }

    /// Starts a program in front of the terminal.
    pub fn start(&self, mut command: Command) -> Child {
        let shown = format!("{command:?}");
        let line = || {
            self.line
                .try_clone()
                .unwrap_or_else(|error| panic!("cannot hand out the terminal: {error}"))
        };
        command.stdin(line()).stdout(line()).stderr(line());
        // SAFETY: two system calls and nothing else.
        unsafe {
            command.pre_exec(|| {
                done(libc::setsid())?;
                done(libc::ioctl(0, libc::TIOCSCTTY, 0))
            })
        };
        command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {shown}: {error}"))
    }

    /// Types.
    pub fn send(&self, text: impl AsRef<[u8]>) {
        (&self.keys)
            .write_all(text.as_ref())
            .unwrap_or_else(|error| panic!("cannot type: {error}\n{}", self.text()));
    }

    /// Waits until `text` is on the screen, behind what was waited for before, and returns what came up to its end.
    ///
    /// # Panics
    /// With all that was on the screen, when it does not come.
    #[track_caller]
    pub fn expect(&self, text: &str) -> String {
        match self.wait(text, PATIENCE) {
            Some(came) => came,
            None => panic!(
                "{text:?} did not come within {PATIENCE:?}; the screen:\n{}",
                self.text()
            ),
        }
    }

    /// Types, then waits for each of these.
    #[track_caller]
    pub fn talk(&self, typed: &str, expected: &[&str]) {
        self.send(typed);
        for text in expected {
            self.expect(text);
        }
    }

    /// [`Terminal::expect`] for so long; `None` when it does not come.
    pub fn wait(&self, text: &str, limit: Duration) -> Option<String> {
        let until = Instant::now() + limit;
        let mut seen = self.screen.lock();
        loop {
            let new = &seen.bytes[seen.read..];
            if let Some(at) = find(new, text.as_bytes()) {
                let end = at + text.len();
                let came = String::from_utf8_lossy(&new[..end]).into_owned();
                seen.read += end;
                return Some(came);
            }
            let left = until.checked_duration_since(Instant::now())?;
            (seen, _) = self
                .screen
                .more
                .wait_timeout(seen, left)
                .expect("no holder of this lock panics");
        }
    }

    /// Changes the size of the window, of which the kernel reports the programs in front of it.
    pub fn resize(&self, rows: u16, columns: u16) {
        let size = libc::winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: the kernel reads the structure, which outlives the call.
        done(unsafe { libc::ioctl(self.keys.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })
            .unwrap_or_else(|error| panic!("cannot resize the terminal: {error}"));
    }

    /// The process group that the keys go to.
    pub fn foreground(&self) -> i32 {
        // SAFETY: takes a number only.
        unsafe { libc::tcgetpgrp(self.keys.as_raw_fd()) }
    }

    /// All that was ever on the screen.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().bytes).into_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The reader has the terminal open too; without it, the kernel hangs up when the last field is dropped.
        drop(self.open.take());
        if let Some(reader) = self.reader.take() {
            // It has nothing to say, and a second panic would hide the first.
            let _ = reader.join();
        }
    }
}

/// Takes in what programs write, until the terminal is closed.
fn take_in(mut from: File, closed: &io::PipeReader, screen: &Screen) {
    let mut buffer = [0; 4096];
    loop {
        let mut ready = [
            PollFd::new(&from, PollFlags::IN),
            PollFd::new(closed, PollFlags::IN),
        ];
        let polled = poll(&mut ready, None);
        let [came, ended] = ready.map(|one| !one.revents().is_empty());
        if polled.is_err() || ended {
            return;
        }
        if came && let Ok(count @ 1..) = from.read(&mut buffer) {
            screen.lock().bytes.extend_from_slice(&buffer[..count]);
            screen.more.notify_all();
        }
    }
}

impl Screen {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no holder of this lock panics")
    }
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|part| part == text)
}

/// Both ends: where keys are typed, and what programs have open.
fn open() -> io::Result<(File, File)> {
    // SAFETY: the descriptor is new and ours; the name is written into a buffer of the length that is reported.
    let (keys, name) = unsafe {
        let fd = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        done(fd)?;
        let keys = File::from_raw_fd(fd);
        done(libc::grantpt(fd))?;
        done(libc::unlockpt(fd))?;
        let mut name = [0; 64];
        match libc::ptsname_r(fd, name.as_mut_ptr(), name.len()) {
            0 => (keys, name),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    };
    // SAFETY: the name ends with a NUL; the descriptor is new and ours.
    let line = unsafe {
        let fd = libc::open(
            name.as_ptr(),
            libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC,
        );
        done(fd)?;
        File::from_raw_fd(fd)
    };
    Ok((keys, line))
}

fn done(answer: libc::c_int) -> io::Result<()> {
    match answer {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::{CTRL_C, Terminal};

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_has_a_terminal_of_its_own() {
        let terminal = Terminal::new(7, 91);
        let script = "stty size; stty -echo; read name </dev/tty; echo \"<$name>\"";
        let mut child = terminal.start(sh(script));
        terminal.expect("7 91");
        terminal.send("ann\n");
        terminal.expect("<ann>");
        assert!(child.wait().expect("it ends").success());
        assert_eq!(terminal.wait("ann", std::time::Duration::ZERO), None);
    }

    #[test]
    fn its_keys_and_its_size_are_felt() {
        let terminal = Terminal::new(24, 80);
        let script = "trap 'stty size' WINCH; trap 'echo int; exit 3' INT; echo ready
            while :; do sleep 0.02; done";
        let mut child = terminal.start(sh(script));
        terminal.expect("ready");
        assert_eq!(terminal.foreground(), child.id().cast_signed());
        terminal.resize(11, 33);
        terminal.expect("11 33");
        terminal.send(CTRL_C);
        terminal.expect("int");
        assert_eq!(child.wait().expect("it ends").code(), Some(3));
    }

    #[test]
    fn who_is_left_in_front_of_it_is_hung_up() {
        let terminal = Terminal::new(24, 80);
        let mut child = terminal.start(sh("echo ready; while :; do sleep 0.02; done"));
        terminal.expect("ready");
        drop(terminal);
        let status = child.wait().expect("it ends");
        assert_eq!(status.signal(), Some(libc::SIGHUP));
    }
}
