//! Scripts and programs by their paths: whether there is one, and what a shell would read of it.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::fs::{Dir, state_dir};

/// The largest part of a script that is read.
const MOST: u64 = 64 << 10;

/// Whether there is something at a path that is no directory.
pub(crate) fn is_file(at: &Path) -> bool {
    Dir::look(at).is_ok_and(|meta| !meta.is_dir())
}

/// Whether a path leads to a file that can be started.
pub(crate) fn is_program(at: &Path) -> bool {
    let real = state_dir::canonical_any(at).unwrap_or_default();
    Dir::look(&real).is_ok_and(|meta| meta.is_file() && meta.mode & 0o111 != 0)
}

/// What a shell reads of a script behind its first line; nothing of what no shell reads. The path has no links.
pub(crate) fn body(real: &Path) -> Option<String> {
    let dir = Dir::open(real.parent()?).ok()?;
    let (file, meta) = dir.file(real.file_name()?.as_bytes()).ok()?;
    let mut file = file.take(MOST);
    let mut first = [0; 2];
    (meta.is_file() && file.read_exact(&mut first).is_ok() && first == *b"#!").then_some(())?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let (line, body) = text.split_once('\n')?;
    let mut words = line.rsplit(['/', ' ']);
    let shell = words.find(|word| !word.starts_with('-'))?;
    let is_shell = ["sh", "bash", "dash", "zsh", "ksh"].contains(&shell.trim());
    is_shell.then(|| body.to_owned())
}
