//! The size of a terminal that a command was given can be changed by the user alone.
//!
//! Whether the command or the user changed it cannot be found out afterwards, so the kernel asks before (`TIOCSWINSZ`). The
//! call never goes on: another thread could put another terminal under the same number first. This process takes what
//! the caller has open, looks at that, and carries the call out on it if it is a terminal of those inside. Any other is
//! refused (`EPERM`), so that `stty rows` says what happened.
//!
//! A terminal of those inside lies in a file system of theirs: each of these counts its devices from 0, so the number of a
//! device does not identify a terminal. Terminals of other commands of the plan are refused too.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{Winsize, isatty, tcgetwinsize, tcsetwinsize};

use super::notify::HeldCall;
use super::sys;

/// What the kernel calls a file system of terminals.
const DEVPTS: u64 = 0x1cd1;

/// The major number of terminals in one.
const PTS: u32 = 136;

/// The file systems of the caller's terminals, as seen from outside.
pub(super) fn outside() -> Vec<u64> {
    use rustix::stdio::{stderr, stdin, stdout};
    let streams = [stdin(), stdout(), stderr()].map(fs::fstat);
    let all = streams.into_iter().chain([fs::stat(c"/dev/pts")]);
    all.flatten().map(|stat| stat.st_dev).collect()
}

/// Carries out a call that sets the size at `address` for the descriptor `number`. `outside` are the file systems of
/// terminals outside, if those inside may mount further ones.
pub(super) fn set(
    call: &HeldCall,
    (number, address): (i32, u64),
    (processes, listener): (&OwnedFd, BorrowedFd<'_>),
    outside: Option<&[u64]>,
) -> Result<(), Errno> {
    let found = call.descriptor(processes, number)?;
    let terminal = inner_terminal(call, found, outside)?;
    let [ws_row, ws_col, ws_xpixel, ws_ypixel] = call.words_at(address).ok_or(Errno::FAULT)?;
    let size = Winsize {
        ws_row,
        ws_col,
        ws_xpixel,
        ws_ypixel,
    };
    // Else what was found may be another process's.
    match call.waits(listener) {
        true => tcsetwinsize(terminal, size),
        false => Err(Errno::SRCH),
    }
}

/// The terminal that a descriptor stands for, if it belongs to those inside.
fn inner_terminal(
    call: &HeldCall,
    found: OwnedFd,
    outside: Option<&[u64]>,
) -> Result<OwnedFd, Errno> {
    let stat = fs::fstat(&found)?;
    if stat.st_dev == fs::stat(c"/dev/pts")?.st_dev {
        return Ok(found);
    }
    let is_devpts = || fs::fstatfs(&found).is_ok_and(|fs| fs.f_type as u64 == DEVPTS);
    if outside.is_some_and(|outside| !outside.contains(&stat.st_dev)) && is_devpts() {
        return Ok(found);
    }
    if !isatty(&found) {
        return Err(Errno::NOTTY);
    }
    // `/dev/tty` lies in none of them. In the session of the run it is the user's terminal. Elsewhere the one inside that has
    // its number is used, and never what was found: should that be the user's after all, it stays as it is.
    let device = sys::terminal_device(&found)?;
    if stat.st_rdev != fs::makedev(5, 0) || fs::major(device) != PTS || call.is_in_our_session() {
        return Err(Errno::PERM);
    }
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/dev/pts/{}", fs::minor(device));
    let inner = fs::open(path, flags, Mode::empty()).map_err(|_| Errno::PERM)?;
    match tcgetwinsize(&inner)? == tcgetwinsize(&found)? {
        true => Ok(inner),
        false => Err(Errno::PERM),
    }
}
