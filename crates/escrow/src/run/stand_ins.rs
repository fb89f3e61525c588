//! What stands inside for something of the machine that programs would not take as it is.
//!
//! - A terminal of the machine has no name in the terminals of the namespace, so `tty` and `ttyname` fail: it is shown as
//!   `/dev/console`.
//! - In an ordinary user's namespace files of root seem to belong to no user, and `ssh` refuses such parts of its
//!   configuration: copies that belong to the user are shown in their place.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::launcher::StepResult;
use super::spec::RunSpec;
use super::supervise::at;
use super::sys;

/// Where `ssh` finds parts of its configuration.
const SSH: &str = "/etc/ssh/ssh_config.d";

/// The longest part that is shown.
const MOST: usize = 64 * 1024;

/// The terminal on the standard streams, by its path outside.
pub(super) fn terminal() -> Option<PathBuf> {
    use rustix::stdio::{stderr, stdin, stdout};
    let mut all = [(0, stdin()), (1, stdout()), (2, stderr())].into_iter();
    let (number, stream) = all.find(|(_, stream)| rustix::termios::isatty(stream))?;
    let path = fs::readlink(format!("/proc/self/fd/{number}"), Vec::new()).ok()?;
    let path = PathBuf::from(path.into_string().ok()?);
    // A terminal of another file system of terminals has the name of one of this.
    let (held, named) = (fs::fstat(stream).ok()?, fs::stat(&path).ok()?);
    let same = |one: fn(&fs::Stat) -> u64| one(&held) == one(&named);
    let same = same(|one| one.st_dev) && same(|one| one.st_ino) && same(|one| one.st_rdev);
    (path.starts_with("/dev") && same).then_some(path)
}

/// Whether something is a terminal device, so that nothing else is shown in its place.
pub(super) fn is_terminal(held: &OwnedFd) -> bool {
    let stat = fs::fstat(held).ok();
    stat.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
}

/// Copies of the parts of the configuration of `ssh`, put into this directory in memory; `None` where they can be seen as they
/// are.
pub(super) fn ssh_parts(
    spec: &RunSpec,
    memory: impl FnOnce() -> StepResult<OwnedFd>,
) -> StepResult<Option<(OwnedFd, PathBuf)>> {
    let shown = |view: &super::MountedSandbox| Path::new(SSH).starts_with(view.at.as_path());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let there = fs::open(SSH, flags, Mode::empty());
    let Ok(there) = there.and_then(|dir| Ok((fs::Dir::read_from(&dir)?, dir))) else {
        return Ok(None);
    };
    if rustix::process::geteuid().is_root() || spec.views.iter().any(shown) {
        return Ok(None);
    }
    let (entries, from) = there;
    let to = memory()?;
    for entry in entries {
        let entry = entry.map_err(at(format!("read '{SSH}'")))?;
        // What cannot be read is nothing to `ssh` either.
        if let Ok(text) = read(&from, entry.file_name()) {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            let made = fs::openat(&to, entry.file_name(), flags, Mode::from_raw_mode(0o644));
            let written = made.and_then(|made| rustix::io::write(made, &text));
            written.map_err(at(format!("copy '{SSH}'")))?;
        }
    }
    sys::fixed(to.as_fd()).map_err(at(format!("restrict '{SSH}'")))?;
    Ok(Some((to, PathBuf::from(SSH))))
}

fn read(dir: &OwnedFd, name: &CStr) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::openat(dir, name, flags, Mode::empty())?;
    let stat = fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let mut text = vec![0; MOST];
    let length = rustix::io::read(file, &mut text)?;
    text.truncate(length);
    Ok(text)
}
