//! Mount points: on which file system a directory lies and where in it, whichever mount it is reached through.
//!
//! Two paths can lead to one directory, or into one another, through bind mounts; their places
//! tell.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::dir::Dir;
use super::{Cause, FsError, Result};
use crate::model::text::Location;

/// A place on a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountLocation {
    device: String,
    path: PathBuf,
}

impl MountLocation {
    /// The place of a directory, which is given by its canonical path.
    pub fn of(at: &Path) -> Result<Self> {
        let dir = Dir::open(at)?;
        Self::on(at, dir.meta()?.mount)
    }

    /// The same for what may be gone, or closed to us: told from the directories above that can be looked
    /// at. A link on the way is not followed: it is what stands there.
    pub fn expected(at: &Path) -> Result<Self> {
        let mut above: Vec<&Path> = at.ancestors().collect();
        above.reverse();
        let looked = above.into_iter().map_while(|path| {
            let meta = Dir::look(path).ok()?;
            meta.is_dir().then_some((path, meta.mount))
        });
        let Some((above, mount)) = looked.last() else {
            return Self::of(at);
        };
        let rest = at.strip_prefix(above).unwrap_or(Path::new(""));
        Ok(rest.iter().fold(Self::on(above, mount)?, Self::entry))
    }

    fn on(at: &Path, mount: u64) -> Result<Self> {
        let table = read_table()?;
        let found = table.lines().find_map(|line| parse(line, mount));
        let Some((device, root, point)) = found else {
            return Err(FsError {
                action: "find",
                path: Location::from(at),
                cause: Cause::Damaged("the kernel does not list the mount it lies on"),
            });
        };
        // A mount in another root than ours is listed by the path it has there.
        let path = match at.strip_prefix(&point) {
            Ok(below) => root.join(below),
            Err(_) => at.to_owned(),
        };
        Ok(Self { device, path })
    }

    /// The place of an entry of this directory.
    pub fn entry(mut self, name: &OsStr) -> Self {
        self.path.push(name);
        self
    }

    /// Whether one of the two is the other, or lies in it.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.holds(other) || other.holds(self)
    }

    /// Whether `other` is this directory or lies in it.
    pub fn holds(&self, other: &Self) -> bool {
        self.device == other.device && other.path.starts_with(&self.path)
    }

    /// Where `other` lies in this directory; `None` where it does not.
    pub fn within(&self, other: &Self) -> Option<&Path> {
        other
            .holds(self)
            .then(|| self.path.strip_prefix(&other.path).ok())
            .flatten()
    }
}

/// Whether the file system of a mount was mounted with an option.
pub fn has_option(mount: u64, option: &str) -> Result<bool> {
    let table = read_table()?;
    let own = table.lines().find(|line| parse(line, mount).is_some());
    let options = own.and_then(|line| line.rsplit(' ').next());
    Ok(options.is_some_and(|options| options.split(',').any(|one| one == option)))
}

/// Where something is mounted below a directory, which is given by its canonical path.
pub fn below(at: &Path) -> Result<Vec<PathBuf>> {
    let table = read_table()?;
    let point = |line: &str| line.split(' ').nth(4).map(unescape);
    let all = table.lines().filter_map(point);
    let lies_in = |point: &PathBuf| point.starts_with(at) && point != at;
    Ok(all.filter(lies_in).collect())
}

fn read_table() -> Result<String> {
    // Not by its name `thread-self`, which is a link. A thread may have mounts of its own, and its paths mean those.
    let (process, thread) = (std::process::id(), rustix::thread::gettid());
    let thread = thread.as_raw_nonzero();
    let dir = Dir::open(Path::new(&format!("/proc/{process}/task/{thread}")))?;
    let bytes = dir.read(b"mountinfo")?;
    // The kernel escapes what is not plain; names that are not UTF-8 are compared lossily on both
    // sides alike.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Device, root on it and mount point of a line, if it is that of `mount`.
fn parse(line: &str, mount: u64) -> Option<(String, PathBuf, PathBuf)> {
    let mut fields = line.split(' ');
    if fields.next()?.parse() != Ok(mount) {
        return None;
    }
    let (device, root, point) = (fields.nth(1)?, fields.next()?, fields.next()?);
    Some((device.to_owned(), unescape(root), unescape(point)))
}

/// Space, tab, newline and backslash are written as octal numbers.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        };
        match (first, tail.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_understood() {
        let line = "36 35 98:0 /mnt1 /mnt/with\\040space rw,noatime master:1 - ext3 /dev/root rw";
        let (device, root, point) = parse(line, 36).expect("the line of mount 36");
        assert_eq!(device, "98:0");
        assert_eq!(root, Path::new("/mnt1"));
        assert_eq!(point, Path::new("/mnt/with space"));
        assert_eq!(parse(line, 35), None);
    }

    #[test]
    fn a_place_holds_what_lies_in_it() {
        let place = |device: &str, path: &str| MountLocation {
            device: device.to_owned(),
            path: PathBuf::from(path),
        };
        assert!(place("8:1", "/a").overlaps(&place("8:1", "/a/b")));
        assert!(place("8:1", "/a/b").overlaps(&place("8:1", "/a")));
        assert!(!place("8:1", "/a").overlaps(&place("8:1", "/ab")));
        assert!(!place("8:1", "/a").overlaps(&place("8:2", "/a/b")));
    }
}
