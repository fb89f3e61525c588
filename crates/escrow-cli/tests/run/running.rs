//! A run that is under way, and proof that nothing is left of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ExitStatus};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use crate::*;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What keeps a command alive until its test lets it go: it says `ready` and waits for the end of its input.
pub(crate) const WAIT: &str = "echo ready; read nothing || :";

/// A process whose lines are read as they come. Killed when dropped.
pub(crate) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    talk: mpsc::Receiver<String>,
    ended: bool,
}

/// How it ended.
pub(crate) struct Ended {
    /// The exit status; a signal counts negative.
    pub(crate) status: i32,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let shown = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {shown}: {error}"));
        let out = child.stdout.take().expect("it is piped");
        let mut err = child.stderr.take().expect("it is piped");
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(out).split(b'\n') {
                let Ok(line) = line else { return };
                if send
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    return;
                }
            }
        });
        let (say, talk) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = err.read(&mut buffer) {
                // A process that no longer listens has heard enough.
                let _ = say.send(String::from_utf8_lossy(&buffer[..count]).into_owned());
            }
        });
        Self {
            input: child.stdin.take(),
            child,
            lines,
            talk,
            ended: false,
        }
    }

    /// Starts a command that says `ready` when it is there, and waits until it has.
    #[track_caller]
    pub(crate) fn ready(command: Command) -> Self {
        let running = Self::start(command);
        assert_eq!(running.line(), "ready");
        running
    }

    /// The next line it writes.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.lines
            .recv_timeout(PATIENCE)
            .expect("it writes another line")
    }

    /// Types a line.
    #[track_caller]
    pub(crate) fn type_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it still listens");
        writeln!(input, "{line}").expect("it still listens");
    }

    /// The process that was started.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is there");
    }

    /// Lets it go, by the end of its input, and waits for its end.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Ended {
        drop(self.input.take());
        self.end()
    }

    /// Waits until the process itself has ended, the process that else is still there.
    #[track_caller]
    pub(crate) fn gone(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                self.ended = true;
                return status;
            }
            assert!(Instant::now() < until, "it does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        let status = self.gone();
        Ended {
            status: status
                .code()
                .unwrap_or_else(|| -status.signal().unwrap_or_default()),
            stderr: rest(&self.talk).concat(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            // It may have ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What still comes. Another process that was left behind may hold a stream open for ever.
fn rest(from: &mpsc::Receiver<String>) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(5);
    let next = || from.recv_timeout(until.saturating_duration_since(Instant::now()));
    std::iter::from_fn(|| next().ok()).collect()
}

/// The part of a world's path that nothing else has.
pub(crate) fn mark(world: &World) -> Vec<u8> {
    let mut parts = world.path().components().map(|part| part.as_os_str());
    let mark = parts.rfind(|part| part.as_bytes().starts_with(b"escrow-test-"));
    mark.expect("every world has it").as_bytes().to_vec()
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Every process whose command line or environment names the world, other than this one.
pub(crate) fn processes(world: &World) -> Vec<String> {
    let mark = mark(world);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("there is a /proc") {
        let entry = entry.expect("it can be listed");
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<u32>().is_err() || name == std::process::id().to_string() {
            continue;
        }
        // It may have ended meanwhile, or be another process's.
        let file = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        if holds(&file("cmdline"), &mark) || holds(&file("environ"), &mark) {
            let line = String::from_utf8_lossy(&file("cmdline")).replace('\0', " ");
            found.push(format!("process {name}: {line}"));
        }
    }
    found
}

/// Waits until a process of the world has `part` in its command line.
#[track_caller]
pub(crate) fn await_process(world: &World, part: &str) {
    let until = Instant::now() + PATIENCE;
    while !processes(world).iter().any(|line| line.contains(part)) {
        assert!(Instant::now() < until, "no process {part} appears");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Mounts that name the world.
fn mounts(world: &World) -> Vec<String> {
    let mounts = fs::read("/proc/thread-self/mountinfo").expect("there is a /proc");
    let mark = mark(world);
    let lines = mounts
        .split(|byte| *byte == b'\n')
        .filter(|line| holds(line, &mark));
    lines
        .map(|line| format!("mount {}", String::from_utf8_lossy(line)))
        .collect()
}

/// Files of the state that another process holds a lock on.
fn locks(home: &Path) -> Vec<String> {
    let held = read("/proc/locks");
    let mut found = Vec::new();
    for entry in fs::read_dir(home.join("locks")).into_iter().flatten() {
        let path = entry.expect("it can be listed").path();
        let Ok(meta) = path.metadata() else { continue };
        let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
        if held.contains(&format!(" {major:02x}:{minor:02x}:{} ", meta.ino())) {
            found.push(format!("a lock on {}", path.display()));
        }
    }
    found
}

/// Entries below `dir` whose name begins with `.escrow-`, but for those in `home`: a draft that was killed on its way
/// goes with the sandbox it was made in.
fn areas(dir: &Path, home: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let entry = entry.expect("it can be listed");
        if entry.path() == home {
            continue;
        }
        if entry.file_name().as_bytes().starts_with(b".escrow-") {
            found.push(format!("an area {}", entry.path().display()));
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(areas(&entry.path(), home));
        }
    }
    found
}

/// What is left of runs in a world.
fn left(world: &World) -> Vec<String> {
    let home = world.home();
    [
        processes(world),
        mounts(world),
        locks(&home),
        areas(world.path(), &home),
    ]
    .concat()
}

/// Fails unless nothing is left of any run: no process, no mount, no lock that is held, no area beside an original.
#[track_caller]
pub(crate) fn assert_quiet(world: &World) {
    let left = left(world);
    assert!(left.is_empty(), "left behind: {left:#?}");
}

/// The same after a kill, for which the kernel takes its time.
#[track_caller]
pub(crate) fn assert_soon_quiet(world: &World) {
    let until = Instant::now() + PATIENCE;
    while !left(world).is_empty() && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    assert_quiet(world);
}

/// Fails unless, after the cleanup of every plan, the state holds no sandbox and nothing of a command.
#[track_caller]
pub(crate) fn assert_clean(world: &World) {
    assert_quiet(world);
    let list = |name: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(world.home().join(name)).into_iter().flatten();
        entries
            .map(|entry| entry.expect("it can be listed").path())
            .collect()
    };
    assert_eq!(list("sandboxes"), Vec::<PathBuf>::new());
    let live = list("locks").into_iter();
    let live: Vec<PathBuf> = live
        .filter(|path| path.extension().is_some_and(|end| end == "live"))
        .collect();
    assert_eq!(live, Vec::<PathBuf>::new());
}
