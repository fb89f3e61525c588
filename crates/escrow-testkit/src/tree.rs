//! Trees from text and back: what a small test builds and asserts can be read in the test.
//!
//! One entry a line; names are escaped as in [`crate::text`], a space in a name is `\x20`; `#` opens a comment line.
//! ```text
//! dir/                          a directory; every parent is made by itself
//! dir/ 0700                     ... with a mode (otherwise 0755)
//! a.txt "content\n"             a file; without the quotes it is empty
//! bin/tool 0755 "#!/bin/sh\n"   ... with a mode (otherwise 0644)
//! big @hole 67108864 "tail"     so many bytes of hole, then data
//! link -> target                a symlink; the target is the rest of the line
//! fifo |                        a FIFO (mode 0644, or `fifo | 0600`)
//! b.txt = a.txt                 a hard link to an entry above
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode};

use crate::signature::{extents, open_file};
use crate::text::{escape, unescape};
use crate::walk::{self, Step};

/// Builds the tree that `text` describes below the existing directory `root`, whatever the umask is.
///
/// # Panics
/// With the line that cannot be understood or carried out.
pub fn build(root: &Path, text: &str) {
    let mut modes = Vec::new();
    for line in text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        entry(root, line, &mut modes)
            .unwrap_or_else(|error| panic!("cannot build {line:?} in {}: {error}", root.display()));
    }
    // Last, and from the last to the first: a directory may be read-only.
    for (path, mode) in modes.iter().rev() {
        chmod(path, *mode);
    }
}

fn entry(root: &Path, line: &str, modes: &mut Vec<(PathBuf, u32)>) -> std::io::Result<()> {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim_start();
    let path = root.join(os(name));
    if let Some(parent) = path.parent() {
        parents(root, parent)?;
    }
    if let Some(target) = rest.strip_prefix("-> ") {
        return symlink(os(target), &path);
    }
    if let Some(target) = rest.strip_prefix("= ") {
        return fs::hard_link(root.join(os(target)), &path);
    }
    if let Some(mode) = rest.strip_prefix('|') {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )?;
        chmod(&path, parse_mode(mode.trim(), line).unwrap_or(0o644));
        return Ok(());
    }
    if name.ends_with('/') {
        parents(root, &path)?;
        if let Some(mode) = parse_mode(rest, line) {
            modes.push((path, mode));
        }
        return Ok(());
    }
    let (mode, rest) = match rest.find(['"', '@']) {
        Some(at) => (&rest[..at], &rest[at..]),
        None => (rest, ""),
    };
    let mode = parse_mode(mode.trim(), line).unwrap_or(0o644);
    let (hole, quoted) = match rest.strip_prefix("@hole ") {
        Some(after) => {
            let (count, quoted) = after.split_once(' ').unwrap_or((after, ""));
            (
                count
                    .parse()
                    .unwrap_or_else(|_| panic!("the length of the hole is no number: {line:?}")),
                quoted,
            )
        }
        None => (0, rest),
    };
    let mut file = fs::File::create_new(&path)?;
    file.set_len(hole)?;
    file.seek(SeekFrom::Start(hole))?;
    file.write_all(&content(quoted.trim(), line))?;
    chmod(&path, mode);
    Ok(())
}

fn content(quoted: &str, line: &str) -> Vec<u8> {
    if quoted.is_empty() {
        return Vec::new();
    }
    let inner = quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    unescape(inner.unwrap_or_else(|| panic!("content is not in double quotes: {line:?}")))
}

fn parse_mode(text: &str, line: &str) -> Option<u32> {
    (!text.is_empty()).then(|| {
        u32::from_str_radix(text, 8).unwrap_or_else(|_| panic!("{text:?} is no mode: {line:?}"))
    })
}

fn parents(root: &Path, path: &Path) -> std::io::Result<()> {
    if path == root || path.symlink_metadata().is_ok() {
        return Ok(());
    }
    parents(root, path.parent().expect("below the root"))?;
    fs::create_dir(path)?;
    chmod(path, 0o755);
    Ok(())
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("cannot chmod {}: {error}", path.display()));
}

fn os(escaped: &str) -> OsString {
    OsString::from_vec(unescape(escaped))
}

/// Renders the tree at `root` (without the root itself) in the same words, sorted by path; every directory is listed.
///
/// A file that begins with a hole is `@hole`; of more than 4 KiB of data only the length is reported; sockets
/// and devices are `!socket`, `!char 1:3`, `!block 7:0`. Of a hard link group the first path has the content.
pub fn render(root: &Path) -> String {
    let mut inodes: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    let mut lines: BTreeMap<Vec<u8>, String> = BTreeMap::new();
    walk::visit_all(root, |step| {
        if step.path.is_empty() {
            return;
        }
        if step.kind() != FileType::Directory && step.stat.st_nlink > 1 {
            inodes
                .entry(step.stat.st_ino)
                .or_default()
                .push(step.path.to_vec());
        }
        lines.insert(step.path.to_vec(), line(step));
    });
    for mut paths in inodes.into_values() {
        paths.sort();
        for path in &paths[1..] {
            lines.insert(
                path.clone(),
                format!("{} = {}", escape(path, true), escape(&paths[0], true)),
            );
        }
    }
    lines
        .into_values()
        .fold(String::new(), |text, line| text + &line + "\n")
}

fn line(step: &Step<'_>) -> String {
    let name = escape(step.path, true);
    let mode = step.stat.st_mode & 0o7777;
    let shown = |usual: u32| {
        if mode == usual {
            String::new()
        } else {
            format!(" {mode:04o}")
        }
    };
    let device = || {
        format!(
            "{}:{}",
            rustix::fs::major(step.stat.st_rdev),
            rustix::fs::minor(step.stat.st_rdev)
        )
    };
    match step.kind() {
        FileType::Directory => format!("{name}/{}", shown(0o755)),
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(step.dir, step.name, Vec::new())
                .unwrap_or_else(|error| step.fail("read the link", error));
            format!("{name} -> {}", escape(target.to_bytes(), false))
        }
        FileType::Fifo => format!("{name} |{}", shown(0o644)),
        FileType::Socket => format!("{name} !socket"),
        FileType::CharacterDevice => format!("{name} !char {}", device()),
        FileType::BlockDevice => format!("{name} !block {}", device()),
        _ => format!("{name}{}{}", shown(0o644), body(step)),
    }
}

fn body(step: &Step<'_>) -> String {
    let size = u64::try_from(step.stat.st_size).expect("sizes are not negative");
    if size == 0 {
        return String::new();
    }
    let fd = match open_file(step) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::ACCESS) => return format!(" !unreadable {size} bytes"),
        Err(error) => step.fail("open", error),
    };
    let start = match extents(&fd, size)
        .unwrap_or_else(|error| step.fail("find the holes of", error))
        .first()
    {
        Some((start, _)) => *start,
        None => return format!(" @hole {size}"),
    };
    let mut out = String::new();
    if start > 0 {
        write!(out, " @hole {start}").expect("writing to a String cannot fail");
    }
    if size - start > 4096 {
        write!(out, " !data {} bytes", size - start).expect("writing to a String cannot fail");
        return out;
    }
    let mut file = fs::File::from(fd);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(start))
        .and_then(|_| file.read_to_end(&mut bytes))
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", escape(step.path, false)));
    write!(out, " \"{}\"", escape(&bytes, false)).expect("writing to a String cannot fail");
    out
}
