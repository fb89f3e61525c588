//! Small steps on files that every test takes; each panics with the path, or the script, that failed.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

#[track_caller]
fn done<T>(result: std::io::Result<T>, path: &Path) -> T {
    result.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Writes a file.
#[track_caller]
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    done(fs::write(&path, bytes), path.as_ref());
}

/// The text of a file.
#[track_caller]
pub fn read(path: impl AsRef<Path>) -> String {
    done(fs::read_to_string(&path), path.as_ref())
}

/// Removes what is no directory.
#[track_caller]
pub fn remove(path: impl AsRef<Path>) {
    done(fs::remove_file(&path), path.as_ref());
}

/// Makes a symbolic link at `path`.
#[track_caller]
pub fn symlink(target: impl AsRef<Path>, path: impl AsRef<Path>) {
    done(std::os::unix::fs::symlink(target, &path), path.as_ref());
}

/// Sets the mode.
#[track_caller]
pub fn chmod(path: impl AsRef<Path>, mode: u32) {
    let mode = Permissions::from_mode(mode);
    done(fs::set_permissions(&path, mode), path.as_ref());
}

/// Sets owner and group of what is no link.
#[track_caller]
pub fn chown(path: impl AsRef<Path>, uid: u32, gid: u32) {
    let result = std::os::unix::fs::chown(&path, Some(uid), Some(gid));
    done(result, path.as_ref());
}

/// The permissions, without following a link.
#[track_caller]
pub fn mode(path: impl AsRef<Path>) -> u32 {
    done(path.as_ref().symlink_metadata(), path.as_ref()).mode() & 0o7777
}

/// The paths in a directory, sorted.
#[track_caller]
pub fn paths(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    let entries = done(fs::read_dir(&dir), dir.as_ref());
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| done(entry, dir.as_ref()).path())
        .collect();
    paths.sort();
    paths
}

/// The names in a directory, sorted.
#[track_caller]
pub fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let paths = paths(dir).into_iter();
    let name = |path: PathBuf| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    paths.filter_map(name).collect()
}

/// Every path below a directory, parents first. What cannot be listed counts as empty.
#[track_caller]
pub fn below(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    let mut found = paths(dir);
    let mut at = 0;
    while let Some(path) = found.get(at).cloned() {
        at += 1;
        let is_dir = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if is_dir && fs::read_dir(&path).is_ok() {
            found.extend(paths(&path));
        }
    }
    found
}

/// Runs a script that must succeed; its output.
#[track_caller]
pub fn sh(dir: impl AsRef<Path>, script: &str) -> String {
    output_of(Command::new("sh").args(["-euc", script]).current_dir(dir))
}

/// Runs a command that must succeed; its standard output.
#[track_caller]
pub fn output_of(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let (status, said) = (output.status, String::from_utf8_lossy(&output.stderr));
    assert!(status.success(), "{command:?}: {status}\n{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
