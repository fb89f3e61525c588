//! What a program asks of the kernel: every system call of a process tree, counted and searchable.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::process;
use crate::world::World;

/// A program to trace. Its environment is exactly what is given here, and `PATH`.
#[derive(Debug, Clone)]
pub struct Spec {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: Option<PathBuf>,
}

impl Spec {
    /// A program without arguments.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn cwd(mut self, cwd: impl AsRef<Path>) -> Self {
        self.cwd = Some(cwd.as_ref().to_owned());
        self
    }
}

/// The calls of one traced run.
#[derive(Debug, Clone)]
pub struct Counts {
    /// How many calls there were.
    pub total: usize,
    /// How many by name.
    pub by_name: BTreeMap<String, usize>,
    /// Each call as strace wrote it, with the paths of handles; in order within a process.
    pub lines: Vec<String>,
    /// How the program ended and what it wrote.
    pub output: Output,
}

/// Runs the program under `strace`, with all of its children.
///
/// # Panics
/// When strace cannot run. How the program itself ended is in [`Counts::output`].
pub fn count_syscalls(spec: &Spec) -> Counts {
    let world = World::new();
    let mut command = Command::new("strace");
    // One file per process: lines of two processes never mix, so no call is cut into "unfinished" and "resumed".
    command
        .args(["-ff", "-qq", "-y", "-s", "256", "-o"])
        .arg(world.path().join("trace"));
    command.arg("--").arg(&spec.program).args(&spec.args);
    command.env_clear();
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    let output = process::run(command, b"");
    let lines = read(world.path());
    assert!(
        !lines.is_empty(),
        "strace of {spec:?} gave nothing: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let mut by_name = BTreeMap::new();
    for line in &lines {
        *by_name.entry(name(line).to_owned()).or_insert(0) += 1;
    }
    Counts {
        total: lines.len(),
        by_name,
        lines,
        output,
    }
}

fn read(dir: &Path) -> Vec<String> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .and_then(|entries| {
            entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect()
        })
        .unwrap_or_else(|error| panic!("cannot list {}: {error}", dir.display()));
    files.sort();
    let mut lines = Vec::new();
    for file in files {
        let text = std::fs::read(&file)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
        let text = String::from_utf8_lossy(&text);
        // Signals and ends of processes begin with --- and +++.
        lines.extend(
            text.lines()
                .filter(|line| !name(line).is_empty())
                .map(str::to_owned),
        );
    }
    lines
}

fn name(line: &str) -> &str {
    let end = line.find('(').unwrap_or(0);
    if line[..end]
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'_')
    {
        &line[..end]
    } else {
        ""
    }
}

impl Counts {
    /// How many calls had this name.
    pub fn count(&self, name: &str) -> usize {
        self.by_name.get(name).copied().unwrap_or(0)
    }

    /// The calls that opened something other than a directory at or below `path`, and got it. Opening with `O_PATH`
    /// is not opening; a path that is a directory when this is called counts as one.
    pub fn file_opens_below(&self, path: &Path) -> Vec<String> {
        let below = quote(path);
        let opens = |line: &&String| {
            if !matches!(name(line), "open" | "openat" | "openat2" | "creat") {
                return false;
            }
            let Some((call, result)) = line.rsplit_once(" = ") else {
                return false;
            };
            if call.contains("O_DIRECTORY") || call.contains("O_PATH") {
                return false;
            }
            // `3</the/path>`, or `-1 ENOENT (...)`
            let Some((_, opened)) = result.split_once('<') else {
                return false;
            };
            let opened = opened.trim_end_matches("(deleted)").trim_end_matches('>');
            let inside = opened
                .strip_prefix(&below)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            inside && !Path::new(opened).is_dir()
        };
        self.lines.iter().filter(opens).cloned().collect()
    }

    /// How many calls mention `path`, or something below it, in their arguments, handles or result.
    pub fn touching(&self, path: &Path) -> usize {
        let path = quote(path);
        let follows = |rest: &str| rest.starts_with(['"', '>', '/', '(']);
        self.lines
            .iter()
            .filter(|line| {
                line.match_indices(&path)
                    .any(|(at, _)| follows(&line[at + path.len()..]))
            })
            .count()
    }
}

/// A path as strace writes it.
fn quote(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let mut out = String::new();
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'\r' => out.push_str("\\r"),
            0x0b => out.push_str("\\v"),
            0x0c => out.push_str("\\f"),
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(char::from(byte)),
            _ if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {
                out.push_str(&format!("\\{byte:03o}"))
            }
            _ => out.push_str(&format!("\\{byte:o}")),
        }
    }
    out
}
