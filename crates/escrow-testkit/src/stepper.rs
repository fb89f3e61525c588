//! A stepper: runs a program, counts the system calls by which it and all its children change a disk, and lets one of
//! them go wrong.
//!
//! Promise: calls are counted from 1, over all processes and threads, in the order in which they are begun; a call
//! counts when it is tried, whether or not it succeeds. Counted are: opening what is to be created or truncated,
//! writing to a file, renames, links, directories, modes, owners, times, extended attributes, sizes, shared blocks, and
//! every kind of sync. Writing to pipes, terminals, memory files and `/proc` does not count, nor do locks. Everything
//! that does not count runs at full speed. When a run returns, none of its processes is left.
//!
//! Several steppers may run at the same time in different threads.
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        reason = "registers and numbers of calls are those of x86_64"
    )
)]

#[cfg(target_arch = "x86_64")]
mod calls;
#[cfg(target_arch = "x86_64")]
mod look;
#[cfg(target_arch = "x86_64")]
mod sys;
#[cfg(target_arch = "x86_64")]
mod tracer;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::cli::Outcome;
use crate::skip::skip;

/// The calls that make changes durable, for [`Stepper::only`].
pub const SYNCS: &[&str] = &["fsync", "fdatasync", "syncfs"];

/// The calls that need room, for [`Stepper::only`]: those that fail on a full disk.
pub const GROWS: &[&str] = &[
    "open",
    "openat",
    "openat2",
    "creat",
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "pwritev2",
    "copy_file_range",
    "sendfile",
    "splice",
    "fallocate",
    "ioctl",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "setxattrat",
];

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Every process is killed before the call is made, and after all earlier ones are done.
    Kill,
    /// The call, if it writes or copies bytes, does so with half of them, any other call is made; then every process is
    /// killed.
    Tear,
    /// The call is not made, and fails with this errno. Later ones are made.
    Once(i32),
    /// The call is not made, and fails with this errno; so does every later one, also where [`Stepper::about`] does not
    /// choose it.
    Forever(i32),
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its name, such as `renameat2`.
    pub name: &'static str,
    /// What it is about, as far as that could be found out.
    pub path: Option<PathBuf>,
    /// The second path of a rename or a link.
    pub to: Option<PathBuf>,
    /// Of a call on a handle (a write, a sync): the device and the inode.
    pub file: Option<(u64, u64)>,
}

impl Step {
    /// What is no call, but counts as one.
    pub fn named(name: &'static str) -> Self {
        Self {
            name,
            path: None,
            to: None,
            file: None,
        }
    }

    /// Whether one of its paths ends so.
    pub fn ends(&self, end: &str) -> bool {
        let mut paths = [&self.path, &self.to].into_iter().flatten();
        paths.any(|path| path.to_string_lossy().ends_with(end))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if let Some(path) = &self.path {
            write!(f, " {}", path.display())?;
        }
        if let Some(to) = &self.to {
            write!(f, " -> {}", to.display())?;
        }
        Ok(())
    }
}

/// What a run left.
#[derive(Debug, Clone)]
pub struct Run {
    /// How the program ended, and what it wrote; the status after a kill is -9.
    pub outcome: Outcome,
    /// How many calls were counted.
    pub calls: u64,
    /// The calls, if they were to be recorded.
    pub steps: Vec<Step>,
    /// The chosen call; none if the program ended before it.
    pub hit: Option<Step>,
}

/// A program to run once.
#[derive(Debug)]
pub struct Stepper {
    command: Command,
    stdin: Vec<u8>,
    only: Option<&'static [&'static str]>,
    about: Option<fn(&Step) -> bool>,
    record: bool,
    limit: Duration,
    all_processors: bool,
}

impl Stepper {
    /// The program, its arguments, environment and working directory are the command's; its streams are not: input is
    /// empty, and both outputs are kept.
    pub fn new(command: Command) -> Self {
        Self {
            command,
            stdin: Vec::new(),
            only: None,
            about: None,
            record: false,
            limit: crate::process::LIMIT,
            all_processors: false,
        }
    }

    /// Sets what the program reads.
    #[must_use]
    pub fn stdin(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.stdin = bytes.as_ref().to_vec();
        self
    }

    /// Counts, and lets fail, only calls of these names, such as [`SYNCS`].
    #[must_use]
    pub fn only(mut self, names: &'static [&'static str]) -> Self {
        self.only = Some(names);
        self
    }

    /// Counts only calls like these. A fault at one certain call is aimed by it: the number that the call had in another
    /// run may be that of another one in this run.
    #[must_use]
    pub fn about(mut self, chosen: fn(&Step) -> bool) -> Self {
        self.about = Some(chosen);
        self
    }

    /// Keeps every call in [`Run::steps`].
    #[must_use]
    pub fn record(mut self) -> Self {
        self.record = true;
        self
    }

    /// Sets how long it may take; without it, a minute.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Lets the program see and use all processors. Without it, it has one: that makes a step up to three times
    /// faster, and the order of calls steadier, but a program that asks for their number starts fewer threads.
    #[must_use]
    pub fn all_processors(mut self) -> Self {
        self.all_processors = true;
        self
    }

    /// Runs the program to its end, and that of its last child.
    ///
    /// # Panics
    /// Like all runs: when the program cannot be started or traced, or does not end in time; then with what it was
    /// doing.
    #[track_caller]
    pub fn run(self) -> Run {
        self.go(0, Act::Nothing)
    }

    /// Runs the program and lets its call `n` go wrong. Without so many calls nothing does, and [`Run::hit`] is none.
    #[track_caller]
    pub fn fault(self, n: u64, fault: Fault) -> Run {
        assert!(n > 0, "calls are counted from 1");
        self.go(n, Act::Fault(fault))
    }

    /// Runs the program to its call `n`; calls `look` with the id of the task that is about to make it, while all
    /// tasks are paused and all earlier calls are done; then kills all.
    #[track_caller]
    pub fn stop_at(self, n: u64, look: impl FnOnce(u32) + Send) -> Run {
        assert!(n > 0, "calls are counted from 1");
        self.go(n, Act::Look(Box::new(look)))
    }

    #[track_caller]
    fn go(self, at: u64, act: Act<'_>) -> Run {
        let shown = format!("{:?}", self.command);
        for name in self.only.unwrap_or_default() {
            assert!(known(name), "the stepper knows no call {name}");
        }
        self.try_go(at, act)
            .unwrap_or_else(|error| panic!("cannot start {shown}: {error}"))
    }

    fn try_go(self, at: u64, act: Act<'_>) -> io::Result<Run> {
        start(Job {
            command: self.command,
            stdin: self.stdin,
            only: self.only,
            about: self.about,
            record: self.record,
            limit: self.limit,
            all_processors: self.all_processors,
            at,
            act,
        })
    }
}

/// What a tracer is to do. `at` 0 is never.
struct Job<'a> {
    command: Command,
    stdin: Vec<u8>,
    only: Option<&'static [&'static str]>,
    about: Option<fn(&Step) -> bool>,
    record: bool,
    limit: Duration,
    all_processors: bool,
    at: u64,
    act: Act<'a>,
}

/// What happens at the chosen call.
enum Act<'a> {
    Nothing,
    Fault(Fault),
    Look(Box<dyn FnOnce(u32) + Send + 'a>),
}

/// Whether programs can be stepped here: on x86_64, where tracing is not forbidden.
pub fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let run = Stepper::new(Command::new("true")).try_go(0, Act::Nothing);
        run.is_ok_and(|run| run.outcome.status == 0)
    })
}

/// True where programs can be stepped; otherwise records the skip and returns false.
pub fn require_stepper() -> bool {
    let works = works();
    if !works {
        skip("programs cannot be stepped here: needs x86_64, ptrace and seccomp");
    }
    works
}

#[cfg(target_arch = "x86_64")]
use tracer::run as start;

#[cfg(target_arch = "x86_64")]
fn known(name: &str) -> bool {
    calls::CALLS.iter().any(|call| call.name == name)
}

#[cfg(not(target_arch = "x86_64"))]
fn start(_: Job<'_>) -> io::Result<Run> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_arch = "x86_64"))]
fn known(_: &str) -> bool {
    true
}
