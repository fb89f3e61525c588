//! A world: a private temporary directory for one test, which takes everything below it away when it is dropped.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, AtFlags, FileType, Gid, Mode, Uid};

use crate::skip::is_root;
use crate::user::{GID, UID};
use crate::walk;

/// What [`World::odd`] puts into the path: space, both quotes, comma, colon, backslash, and a byte that is not UTF-8.
pub const ODD_NAME: &[u8] = b"odd \"dq\" 'sq', a:b\\c \xff";

/// A private directory. Its name is unpredictable, and other users may pass through it (0755) but not change it.
#[derive(Debug)]
pub struct World {
    top: PathBuf,
    path: PathBuf,
}

impl World {
    /// A world in memory, where no process waits for a disk; in the system's temporary directory where there is no such place.
    pub fn new() -> Self {
        Self::under(&memory(1 << 20))
    }

    /// A world in the system's temporary directory, which lies on a disk: the numbers of files are given out again there.
    pub fn on_disk() -> Self {
        Self::under(&std::env::temp_dir())
    }

    /// A world on the file system that holds `base`.
    pub fn under(base: &Path) -> Self {
        let top = tempfile::Builder::new()
            .prefix("escrow-test-")
            .tempdir_in(base)
            .unwrap_or_else(|error| panic!("cannot make a world in {}: {error}", base.display()))
            .keep();
        open_to_others(&top);
        Self {
            path: top.clone(),
            top,
        }
    }

    /// A world whose path is hostile to the process that pastes it into text: see [`ODD_NAME`].
    pub fn odd() -> Self {
        Self::odd_under(&memory(1 << 20))
    }

    /// [`World::odd`] on the file system that holds `base`.
    pub fn odd_under(base: &Path) -> Self {
        let mut world = Self::under(base);
        world.path = world.dir(OsStr::from_bytes(ODD_NAME));
        world
    }

    /// Where the world is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.join(path)
    }

    /// Makes (if need be, with its parents) and returns the directory `name`, mode 0755.
    pub fn dir(&self, name: impl AsRef<Path>) -> PathBuf {
        let mut at = self.path.clone();
        for part in name.as_ref().components() {
            at.push(part);
            if !at.is_dir() {
                fs::create_dir(&at)
                    .unwrap_or_else(|error| panic!("cannot make {}: {error}", at.display()));
                open_to_others(&at);
            }
        }
        at
    }

    /// A directory for `ESCROW_HOME`.
    pub fn home(&self) -> PathBuf {
        self.dir("escrow-home")
    }

    /// The names of the areas in that directory, sorted.
    #[track_caller]
    pub fn areas(&self) -> Vec<String> {
        crate::files::names(self.home().join("sandboxes"))
    }

    /// Gives the world and all in it to the test user; does nothing unless run by root.
    pub fn chown_to_user(&self) {
        if is_root() {
            chown_tree(&self.path);
        }
    }
}

/// A directory in memory with so many free bytes, or the system's temporary directory.
pub(crate) fn memory(room: u64) -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    let stat = rustix::fs::statvfs(&shared);
    let fits = stat.is_ok_and(|stat| stat.f_bavail * stat.f_frsize >= room)
        && rustix::fs::access(&shared, Access::WRITE_OK).is_ok();
    match fits {
        true => shared,
        false => std::env::temp_dir(),
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        remove_tree(&self.top);
        // A test leaves nothing behind; but a second panic would hide the first.
        if !std::thread::panicking() && self.top.symlink_metadata().is_ok() {
            panic!(
                "cannot remove all of the world {} (is something still mounted in it?)",
                self.top.display()
            );
        }
    }
}

fn open_to_others(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755))
        .unwrap_or_else(|error| panic!("cannot chmod {}: {error}", path.display()));
}

/// Gives a tree to the test user, links themselves and not what they point to.
pub(crate) fn chown_tree(root: &Path) {
    let (uid, gid) = (Uid::from_raw(UID), Gid::from_raw(GID));
    walk::visit_all(root, |step| {
        rustix::fs::chownat(
            step.dir,
            step.name,
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap_or_else(|error| step.fail("chown", error));
    });
}

/// Lets a read-only snapshot be emptied. The root of each subvolume of btrfs has this number.
fn make_writable(path: &Path) {
    if path.symlink_metadata().is_ok_and(|meta| meta.ino() == 256) {
        let mut command = Command::new("btrfs");
        command.args(["property", "set", "-ts"]).arg(path);
        let _ = command.args(["ro", "false"]).output();
    }
}

/// Removes a tree of any depth with any modes, as far as permitted; says nothing about what it could not remove.
pub fn remove_tree(root: &Path) {
    let mut directories = Vec::new();
    if !root.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        return;
    }
    // A top of mode 000 cannot be opened by its own owner.
    let _ = fs::set_permissions(root, Permissions::from_mode(0o700));
    walk::visit(
        root,
        |step| {
            if step.path.is_empty() {
                return;
            }
            if step.kind() == FileType::Directory {
                make_writable(&root.join(OsStr::from_bytes(step.path)));
                let _ = rustix::fs::chmodat(step.dir, step.name, Mode::RWXU, AtFlags::empty());
                directories.push(step.path.to_vec());
            } else {
                let _ = rustix::fs::unlinkat(step.dir, step.name, AtFlags::empty());
            }
        },
        |_, _| {},
    );
    let top = walk::open_root(root);
    for path in directories.iter().rev() {
        let (parent, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], &path[..]),
        };
        if let Ok(dir) = walk::open_dir(std::os::fd::AsFd::as_fd(&top), parent) {
            let _ = rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR);
        }
    }
    let _ = fs::remove_dir(root);
}
