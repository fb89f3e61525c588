//! How git is called: one absolute program, a clean environment, no hook, no prompt, no network, a time limit.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::super::error::{Result, StrategyError};
use crate::fs::{Dir, Meta};
use crate::run::program::{die_with_this_thread, output, output_when, program};

/// Where the program is looked for: never in a directory that a tree could name.
const PLACES: [&str; 2] = ["/usr/bin/git", "/usr/local/bin/git"];

/// The oldest version with everything that is used here (`merge-tree --write-tree`).
const OLDEST: (u32, u32) = (2, 38);

/// What is set for every call, whatever the repository says.
const SETTINGS: [&str; 10] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "protocol.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
    "core.fsync=all",
];

/// Without the settings of a user, and of the system.
const NO_SETTINGS: [(&str, &str); 7] = [
    ("HOME", "/nonexistent"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_AUTHOR_NAME", "Escrow"),
    ("GIT_AUTHOR_EMAIL", "escrow@localhost"),
    ("GIT_COMMITTER_NAME", "Escrow"),
    ("GIT_COMMITTER_EMAIL", "escrow@localhost"),
];

/// The program.
#[derive(Debug, Clone)]
pub(super) struct Git {
    program: PathBuf,
}

impl Git {
    /// Finds the newest one, since a repository may use what older ones do not know; says why there is none that can be used.
    pub(super) fn find() -> std::result::Result<Self, String> {
        let there = |path: &&&str| Dir::look(Path::new(path)).is_ok();
        let mut newest: Option<((u32, u32), Self, String)> = None;
        for place in PLACES.iter().filter(there) {
            let git = Self {
                program: PathBuf::from(place),
            };
            let asked = git.anywhere().args(["version"]).run();
            let version = asked.map_err(|error| error.to_string())?;
            let version = String::from_utf8_lossy(&version).into_owned();
            let number = read_version(&version).unwrap_or_default();
            if newest.as_ref().is_none_or(|(newest, ..)| number > *newest) {
                newest = Some((number, git, version));
            }
        }
        match newest {
            Some((number, git, _)) if number >= OLDEST => Ok(git),
            Some((_, _, version)) => Err(format!(
                "{} is too old: version {}.{} or newer is needed",
                version.trim(),
                OLDEST.0,
                OLDEST.1
            )),
            None => Err(format!("git is not installed ({})", PLACES.join(", "))),
        }
    }

    /// A call that needs no repository.
    pub(super) fn anywhere(&self) -> GitCall<'_> {
        self.call(None)
    }

    /// A call about a repository.
    pub(super) fn at(&self, git_dir: &Path) -> GitCall<'_> {
        self.call(Some(git_dir))
    }

    fn call(&self, git_dir: Option<&Path>) -> GitCall<'_> {
        let mut args: Vec<OsString> = Vec::new();
        for setting in SETTINGS {
            args.extend(["-c".into(), setting.into()]);
        }
        args.push("--no-replace-objects".into());
        if let Some(git_dir) = git_dir {
            let mut option = OsString::from("--git-dir=");
            option.push(git_dir);
            args.push(option);
        }
        GitCall {
            git: self,
            fixed: args.len(),
            args,
            env: Vec::new(),
            input: Vec::new(),
            owner: None,
            home: None,
        }
    }
}

fn read_version(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.split_whitespace().nth(2)?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// One call.
pub(super) struct GitCall<'g> {
    git: &'g Git,
    /// How many arguments every call has.
    fixed: usize,
    args: Vec<OsString>,
    env: Vec<(&'static str, OsString)>,
    input: Vec<u8>,
    /// As whom it runs, if not as the caller.
    owner: Option<(u32, u32)>,
    /// Whose settings it reads, if anyone's.
    home: Option<PathBuf>,
}

impl GitCall<'_> {
    /// Runs as the owner of a repository, where that is another user and the caller is root: what it writes there is theirs.
    pub(super) fn owned_by(mut self, of: &Meta) -> Self {
        let root = rustix::process::geteuid().is_root();
        self.owner = (root && of.uid != 0).then_some((of.uid, of.gid));
        self
    }

    /// With the words of a line that is fixed: names and paths are arguments of their own (rule S4).
    pub(super) fn line(self, words: &'static str) -> Self {
        self.args(words.split(' '))
    }

    pub(super) fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        let args = args.into_iter().map(|one| one.as_ref().to_owned());
        self.args.extend(args);
        self
    }

    /// With this setting; before the arguments.
    pub(super) fn set(mut self, setting: &str) -> Self {
        self.args.extend(["-c".into(), setting.into()]);
        self.fixed = self.args.len();
        self
    }

    /// With the settings that a user has in this home directory, and the system: they are read, and start nothing.
    pub(super) fn settings_of(mut self, home: PathBuf) -> Self {
        self.home = Some(home);
        self
    }

    pub(super) fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    pub(super) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    /// Objects are read from these directories, and new ones are written into the first.
    pub(super) fn objects(self, from: &[PathBuf]) -> Self {
        let quoted = from.iter().skip(1).map(|path| quote(path));
        let others = quoted.collect::<Vec<_>>().join(&b':');
        let call = match from.first() {
            Some(first) => self.env("GIT_OBJECT_DIRECTORY", first),
            None => self,
        };
        call.env(
            "GIT_ALTERNATE_OBJECT_DIRECTORIES",
            OsStr::from_bytes(&others),
        )
    }

    /// What it writes, if it succeeds.
    pub(super) fn run(self) -> Result<Vec<u8>> {
        self.answer()?
    }

    /// What it writes, or how it failed; an error where it did not end by itself: it was killed, or never started.
    pub(super) fn answer(self) -> Result<Result<Vec<u8>>> {
        let what = self.what();
        ended(what, &self.output()?)
    }

    /// The same, with more to read: what `then` returns, asked when git has said this line. Its error counts more than what
    /// git says without it.
    pub(super) fn answer_when(
        self,
        line: &'static str,
        then: impl FnOnce() -> Result<&'static [u8]>,
    ) -> Result<Result<Vec<u8>>> {
        let (what, mut failed) = (self.what(), Ok(()));
        let more = || match then() {
            Ok(more) => more.to_vec(),
            Err(error) => {
                failed = Err(error);
                Vec::new()
            }
        };
        let said = self.start(|command, input| output_when(command, input, line, more))?;
        failed.and_then(|()| ended(what, &said))
    }

    /// What it writes; `None` where it answers no (exit status 1).
    pub(super) fn ask(self) -> Result<Option<Vec<u8>>> {
        let what = self.what();
        let said = self.output()?;
        match said.status.code() {
            Some(0) => Ok(Some(said.stdout)),
            Some(1) => Ok(None),
            _ => Err(failed(what, &said)),
        }
    }

    /// Everything it says, and how it ended: 0 or 1; anything else is an error.
    pub(super) fn either(self) -> Result<(bool, Vec<u8>)> {
        let what = self.what();
        let said = self.output()?;
        match said.status.code() {
            Some(status @ (0 | 1)) => Ok((status == 0, said.stdout)),
            _ => Err(failed(what, &said)),
        }
    }

    /// How it ended; one that was killed, also at the time limit, is an error.
    pub(super) fn status(self) -> Result<i32> {
        let what = self.what();
        let said = self.output()?;
        said.status.code().ok_or_else(|| failed(what, &said))
    }

    fn what(&self) -> String {
        let named = self.args[self.fixed..].iter().take(2);
        let words: Vec<_> = named.map(|one| one.to_string_lossy()).collect();
        words.join(" ")
    }

    fn output(self) -> Result<Output> {
        self.start(output)
    }

    fn start(self, run: impl FnOnce(Command, &[u8]) -> std::io::Result<Output>) -> Result<Output> {
        let mut command = program(self.git.program.as_os_str());
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "/bin/false")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_ATTR_NOSYSTEM", "1");
        match self.home {
            Some(home) => command.env("HOME", home),
            None => command.envs(NO_SETTINGS),
        };
        command.envs(self.env).args(&self.args).current_dir("/");
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        // One that outlived a killed process would go on changing the repository while recovery works there.
        die_with_this_thread(&mut command);
        let what = self.args[self.fixed..].first();
        let what = what.map_or_else(String::new, |one| one.to_string_lossy().into_owned());
        run(command, &self.input).map_err(|error| StrategyError::Git {
            what,
            said: error.to_string(),
        })
    }
}

/// What it wrote, or how it failed; an error where it was killed.
fn ended(what: String, said: &Output) -> Result<Result<Vec<u8>>> {
    match said.status.code() {
        Some(0) => Ok(Ok(said.stdout.clone())),
        Some(_) => Ok(Err(failed(what, said))),
        None => Err(failed(what, said)),
    }
}

fn failed(what: String, said: &Output) -> StrategyError {
    let text = String::from_utf8_lossy(&said.stderr);
    // Where the user's objects are seen inside there is nothing outside: git is told of them in another way.
    let other = |line: &&str| !line.ends_with("; check .git/objects/info/alternates");
    let text = text.lines().filter(other).collect::<Vec<_>>().join("\n");
    let text = text.trim();
    let said = match text.is_empty() {
        true => format!("it ended with {}", said.status),
        false => text.to_owned(),
    };
    StrategyError::Git { what, said }
}

/// A path in a list that is separated by colons.
fn quote(path: &Path) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', byte]),
            b'\n' => quoted.extend(b"\\n"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'"');
    quoted
}
