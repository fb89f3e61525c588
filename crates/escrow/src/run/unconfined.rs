//! A command in the directory of a sandbox, where nothing confines it.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::console::{Console, Output};
use super::supervise::{CommandExit, ended};
use super::{RunError, at, at_io};

/// Runs a command whose environment is set, in a directory, and waits for its end.
pub(crate) fn unconfined(
    mut command: Command,
    directory: &Path,
    output: Output,
    console: &dyn Console,
) -> Result<CommandExit, RunError> {
    if !console.input() {
        command.stdin(Stdio::null());
    }
    if output == Output::Error {
        command.stdout(std::io::stderr());
    }
    command.current_dir(directory);
    let limit = getrlimit(Resource::Nofile);
    let lower = console.files().map(|files| Rlimit {
        current: Some(files),
        ..limit
    });
    let changed = lower.is_some();
    if let Some(lower) = lower {
        setrlimit(Resource::Nofile, lower).map_err(at("limit open files"))?;
    }
    let child = command.spawn();
    if changed {
        setrlimit(Resource::Nofile, limit).map_err(at("open many files again"))?;
    }
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = child.map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let errno = match (is_program(&command), errno) {
            // A directory of the search path that cannot be read is not the program.
            (false, _) => Errno::NOENT,
            // The program is there; its interpreter is not.
            (true, Errno::NOENT) => Errno::NOEXEC,
            (true, errno) => errno,
        };
        at(format!("run '{name}'"))(errno)
    })?;
    let waited = child.wait();
    waited.map(ended).map_err(at_io("wait for the command"))
}

/// Whether there is anything that the command's name may mean.
fn is_program(command: &Command) -> bool {
    let name = Path::new(command.get_program());
    let is_there = |path: &Path| rustix::fs::stat(path).is_ok();
    if name.components().count() > 1 || name.is_absolute() {
        return is_there(name);
    }
    let path = command.get_envs().find(|(variable, _)| *variable == "PATH");
    let path = path.and_then(|(_, value)| value).unwrap_or_default();
    std::env::split_paths(path).any(|dir| is_there(&dir.join(name)))
}
