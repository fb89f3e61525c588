//! Landlock, a second wall around a command: it writes only where the mounts let it write too, and reaches no abstract Unix
//! socket of others.
//!
//! The mounts decide what is there and what can be written; should one of them be more than it was meant to be, this
//! still holds. Nothing is kept from being read. A process under rules for files cannot mount anything, so commands
//! that may make user namespaces have none.

use std::path::Path;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use super::spec::RunSpec;
use super::sys;
use crate::failpoints;
use crate::model::Network;
use crate::model::view::View;

/// The version that knows scopes.
const SCOPES: i64 = 6;

/// The version that knows renames into other directories, and cutting a file.
const FILES: i64 = 3;

pub(super) const ABSTRACT_UNIX_SOCKET: u64 = 1;

pub(super) const SIGNAL: u64 = 1 << 1;

/// What can be done to a file: write it and cut it.
pub(super) const TO_A_FILE: u64 = 1 << 1 | 1 << 14;

/// What changes a tree beside that: remove a directory or a file; make a character device, a directory, a file, a socket, a
/// pipe, a block device or a link; move between directories.
pub(super) const TO_A_TREE: u64 = TO_A_FILE | 0b11_1111_1111 << 4;

/// What every namespace has of its own.
const PRIVATE: [&str; 4] = ["/tmp", "/dev", "/run", "/proc"];

/// Whether abstract sockets of others can be kept out of reach.
pub(super) fn scopes_sockets() -> bool {
    sys::landlock_version() >= SCOPES
}

/// Whether writing can be confined.
pub(super) fn confines_files() -> bool {
    sys::landlock_version() >= FILES
}

/// Confines this process, as far as the kernel can.
pub(super) fn confine(spec: &RunSpec) -> Result<(), Errno> {
    if let Some(copied) = &spec.copied {
        return super::copied::confine(copied);
    }
    let version = sys::landlock_version();
    let bug = failpoints::bug("no-second-wall") || failpoints::bug("both-walls-open");
    let files = version >= FILES && !spec.look.userns && !bug;
    // Without a network of its own it would share them with every other plan, and with the machine.
    let scoped = version >= SCOPES && spec.look.network == Network::Host;
    if !files && !scoped {
        return Ok(());
    }
    let rules = sys::landlock_rules(
        if files { TO_A_TREE } else { 0 },
        if scoped { ABSTRACT_UNIX_SOCKET } else { 0 },
    )?;
    if files {
        let shown = spec.views.iter();
        let shown = shown.filter(|one| !matches!(one.view, View::ReadOnly(_)));
        let home = spec.home.as_ref().filter(|_| spec.look.scratch);
        let own = shown
            .map(|one| &one.at)
            .chain(home)
            .chain(&spec.look.writable);
        let own = own.chain(&spec.covered.private).map(|path| path.as_path());
        for path in own.chain(PRIVATE.iter().map(Path::new)) {
            permit(&rules, path, OFlags::empty())?;
        }
        // A link is not covered: it leads to something that can be seen, and need not be written.
        for path in &spec.covered.paths {
            permit(&rules, path.as_path(), OFlags::NOFOLLOW)?;
        }
        // A terminal is the caller's, and can be opened again by the name of the stream.
        use rustix::stdio::{stderr, stdin, stdout};
        for stream in [stdin(), stdout(), stderr()] {
            if rustix::termios::isatty(stream) {
                sys::landlock_permit(&rules, stream, TO_A_FILE)?;
            }
        }
    }
    match sys::landlock_enter(&rules) {
        // Inside of as many walls as the kernel takes.
        Err(Errno::TOOBIG) => Ok(()),
        entered => entered,
    }
}

fn permit(rules: &std::os::fd::OwnedFd, path: &Path, how: OFlags) -> Result<(), Errno> {
    use std::os::fd::AsFd;
    // What cannot be opened, or looked at, cannot be written.
    let Ok(at) = fs::open(path, OFlags::PATH | OFlags::CLOEXEC | how, Mode::empty()) else {
        return Ok(());
    };
    match sys::landlock_permit(rules, at.as_fd(), TO_A_TREE) {
        // It is no directory.
        Err(Errno::INVAL) => sys::landlock_permit(rules, at.as_fd(), TO_A_FILE),
        permitted => permitted,
    }
}
