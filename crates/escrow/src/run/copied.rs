//! A command in a copy of the plan's directories, where no namespaces can be had: Landlock and a filter of system calls are all
//! that confines it.
//!
//! It writes below the copies and a private directory only, and reads the system, the originals and the tools of the home
//! directory. It reaches no Unix socket: the user's session manager and container engines would act for it outside.
//! Landlock keeps it from tracing processes outside and, where the kernel can, from signalling them. Modes, owners and times of files
//! elsewhere, the network, and the list of processes are not protected. All its processes are descendants of the launcher, which ends
//! them.

use std::path::Path;

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{getpid, set_child_subreaper};

use super::launcher::{StepResult, mark, open_terminal, report_failure, wait_for};
use super::spec::{CopiedRun, LinkInCopy, RunSpec};
use super::supervise::{Channel, RunError, at};
use super::{landlock, monitor, sys};
use crate::fs::Dir;
use crate::model::ResourcePath;

/// What can be done to a tree without changing it: run a file, read it, list a directory.
const READ_A_TREE: u64 = 0b1101;

/// The same for one file.
const READ_A_FILE: u64 = 0b0101;

/// Listing directories.
const LIST: u64 = 0b1000;

/// Devices that are the same for every process, and the own terminal.
const DEVICES: [&str; 7] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
];

/// The steps at which a machine that forbids namespaces stops a run.
const STEPS: [&str; 3] = [
    "make namespaces",
    "map the own user",
    "make the mounts private",
];

/// Where the objects of a git directory are looked for too.
const ALTERNATES: &[u8] = b"alternates";

impl RunError {
    /// Whether a run failed because this machine gives this user no namespaces; a lack that may pass is none.
    pub(crate) fn forbids_namespaces(&self) -> bool {
        match self {
            Self::Step { step, errno } => is_forbidden(step, *errno),
            _ => false,
        }
    }
}

fn is_forbidden(step: &str, errno: Errno) -> bool {
    let mut steps = STEPS.iter();
    steps.any(|one| step.starts_with(one))
        && match errno {
            Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::INVAL => true,
            // Too many, or too deep, is no rule of the machine.
            Errno::NOSPC | Errno::USERS => {
                let most = Path::new("/proc/sys/user/max_user_namespaces");
                super::limits::text(most).trim() == "0"
            }
            _ => false,
        }
}

/// Why commands run in a copy on this machine, by what the attempt to make namespaces said; `None` where they do not run at all.
pub fn runs_in_copy(no_run: &str) -> Option<&str> {
    let step = no_run.strip_prefix("cannot ")?;
    let errno = no_run.rsplit_once("(os error ")?.1.trim_end_matches(')');
    let errno = Errno::from_raw_os_error(errno.parse().ok()?);
    (is_forbidden(step, errno) && lacks().is_none()).then_some(no_run)
}

/// What this kernel lacks to confine a command without namespaces.
pub(crate) fn lacks() -> Option<&'static str> {
    let has = landlock::confines_files();
    (!has).then_some(
        "nothing confines a command: this kernel has no Landlock, or one older than Linux 6.2",
    )
}

/// What a command in a copy is not kept from, for people.
pub(crate) fn not_protected() -> &'static str {
    match landlock::scopes_sockets() {
        true => "processes, and modes and times of other files",
        false => "processes (also from signals), and modes and times of other files",
    }
}

/// Prepares the copies, runs the command in them, and waits until everything that it left has ended.
pub(super) fn enter(
    spec: &RunSpec,
    copied: &CopiedRun,
    groups: &[std::os::fd::OwnedFd],
    channel: &Channel,
) -> StepResult<i32> {
    // The marks stay: no proof is possible that no process outside got a descriptor.
    let _marks = mark(spec)?;
    furnish(copied).map_err(step("prepare the private directory of the command"))?;
    let alternates = Alternates::redirect(&copied.links);
    let put = copied.links.iter().try_for_each(put);
    put.map_err(step("put the git directory of the sandbox into the copy"))?;
    let terminal = spec.terminal.then(open_terminal).transpose()?;
    // Should the monitor end first, what the command left becomes this one's.
    set_child_subreaper(Some(getpid())).map_err(at("watch over the command"))?;
    let Some(child) = sys::fork().map_err(at("start the command's monitor"))? else {
        let ended = monitor::watch(spec, terminal.as_ref(), groups, None, channel);
        sys::exit(ended.unwrap_or_else(|failed| report_failure(channel, failed)));
    };
    let status = wait_for(child);
    monitor::end_descendants();
    for link in &copied.links {
        match take_back(link) {
            // A link that stays leads to the same directory, and is put in order by the next run.
            Ok(()) | Err(_) => {}
        }
    }
    drop(alternates);
    status
}

fn step(what: &'static str) -> impl FnOnce(crate::fs::FsError) -> RunError {
    move |error| {
        let errno = match error.cause {
            crate::fs::Cause::Os(errno) => errno,
            _ => Errno::IO,
        };
        at(format!("{what} ('{}')", error.path))(errno)
    }
}

type Done = crate::fs::Result<()>;

/// Makes the directories for `HOME` and `TMPDIR`. In the first, links lead to the tools of the real home directory.
fn furnish(copied: &CopiedRun) -> Done {
    let private = Dir::open(copied.private.as_path())?;
    for name in ["home", "tmp"] {
        private.make_dir(name.as_bytes(), 0o700)?;
    }
    let home = private.subdir(b"home")?;
    for (name, target) in &copied.tools {
        let (dir, name) = furnished(&home, name.as_bytes())?;
        match dir.make_link(name, target.as_bytes()) {
            // What lies in another one that is shown is there.
            Err(error) if error.is(Errno::EXIST) => {}
            made => made?,
        }
    }
    for (name, text) in &copied.given {
        let (dir, name) = furnished(&home, name.as_bytes())?;
        let written = std::io::Write::write_all(&mut dir.create(name, 0o600)?, text.as_bytes());
        written.map_err(|error| dir.io_error("write", name, &error))?;
    }
    Ok(())
}

/// The directory that a path of the private home lies in, made where it is missing, and the last name.
fn furnished<'p>(home: &Dir, path: &'p [u8]) -> crate::fs::Result<(Dir, &'p [u8])> {
    let mut dir = home.again();
    let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => return Ok((dir, path)),
    };
    for part in above.split(|byte| *byte == b'/') {
        if dir.stat(part)?.is_none() {
            dir.make_dir(part, 0o700)?;
        }
        dir = dir.subdir(part)?;
    }
    Ok((dir, name))
}

/// The directory that holds the place of a link, and the name there. No link that a command made leads elsewhere.
fn place(link: &LinkInCopy) -> crate::fs::Result<(Dir, Vec<u8>)> {
    let root = Dir::open(link.copy.as_path())?;
    let path = link.place.as_bytes().split(|one| *one == b'/');
    let path = path.fold(ResourcePath::root(), |path, part| path.join(part));
    let (dir, name) = root.parent(&path)?;
    Ok((dir, name.to_vec()))
}

fn put(link: &LinkInCopy) -> Done {
    let (dir, name) = place(link)?;
    match dir.stat(&name)? {
        None => {}
        Some(meta) if meta.is_dir() => dir.remove_dir(&name)?,
        Some(_) => dir.unlink(&name)?,
    }
    dir.make_link(&name, link.target.as_bytes())
}

fn take_back(link: &LinkInCopy) -> Done {
    let (dir, name) = place(link)?;
    match dir.read_link(&name) {
        Ok(target) if target == link.target.as_bytes() => {
            dir.unlink(&name)?;
            dir.make_dir(&name, 0o700)
        }
        // The command put something else there, which is its own affair.
        _ => Ok(()),
    }
}

/// The lists of object directories that name the path of the original, by which nothing is found outside of a namespace. While
/// this lives they name the copy.
struct Alternates(Vec<(Dir, Vec<u8>, Vec<u8>)>);

impl Alternates {
    fn redirect(links: &[LinkInCopy]) -> Self {
        let mut changed = Vec::new();
        for link in links {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
            let open = || -> crate::fs::Result<_> {
                let info = Dir::open(link.target.as_path())?;
                let info = info.subdir(b"objects")?.subdir(b"info")?;
                let found = info.read(ALTERNATES)?;
                Ok((info, found))
            };
            let Ok((info, found)) = open() else {
                continue;
            };
            let (Some(was), Some(at), Some(now)) = (
                text(&found),
                text(link.at.as_bytes()),
                text(link.target.as_bytes()),
            ) else {
                continue;
            };
            let moved = |text: &str, from: &str, to: &str| -> String {
                let lines = text.lines().map(|line| match line.strip_prefix(from) {
                    Some(rest) if rest.starts_with('/') => format!("{to}{rest}\n"),
                    _ => format!("{line}\n"),
                });
                lines.collect()
            };
            // A process that was killed left it as it is here.
            let before = moved(&was, &now, &at);
            let after = moved(&before, &at, &now).into_bytes();
            let before = before.into_bytes();
            if after != before && write(&info, &after).is_ok() {
                changed.push((info, before, after));
            }
        }
        Self(changed)
    }
}

impl Drop for Alternates {
    fn drop(&mut self) {
        for (info, before, after) in &self.0 {
            if info.read(ALTERNATES).is_ok_and(|now| now == *after) {
                match write(info, before) {
                    Ok(()) | Err(_) => {}
                }
            }
        }
    }
}

fn write(info: &Dir, text: &[u8]) -> Done {
    use std::io::Write;
    let mut file = info.write_over(ALTERNATES, 0o600)?;
    let cut = file.set_len(text.len() as u64);
    let written = cut.and_then(|()| file.write_all(text));
    written.map_err(|error| info.io_error("write", ALTERNATES, &error))
}

/// Confines this process by Landlock. Unlike the second wall of a namespace it is the only one: nothing of it may be missing.
pub(super) fn confine(copied: &CopiedRun) -> Result<(), Errno> {
    let scoped = match landlock::scopes_sockets() {
        true => landlock::ABSTRACT_UNIX_SOCKET | landlock::SIGNAL,
        false => 0,
    };
    let rules = sys::landlock_rules(READ_A_TREE | landlock::TO_A_TREE, scoped)?;
    let change = (
        READ_A_TREE | landlock::TO_A_TREE,
        READ_A_FILE | landlock::TO_A_FILE,
    );
    let private = [&copied.private].into_iter();
    for path in private.chain(&copied.writable) {
        permit(&rules, path.as_path(), change)?;
    }
    for path in DEVICES {
        permit(&rules, Path::new(path), change)?;
    }
    for path in &copied.readable {
        permit_reading(&rules, path.as_path(), copied)?;
    }
    use rustix::stdio::{stderr, stdin, stdout};
    for stream in [stdin(), stdout(), stderr()] {
        if rustix::termios::isatty(stream) {
            sys::landlock_permit(&rules, stream, change.1)?;
        }
    }
    sys::landlock_enter(&rules)
}

/// Permits to read everything below a path but what is hidden.
fn permit_reading(
    rules: &std::os::fd::OwnedFd,
    path: &Path,
    copied: &CopiedRun,
) -> Result<(), Errno> {
    let hidden = || copied.hidden.iter().map(|one| one.as_path());
    if hidden().any(|one| path.starts_with(one)) {
        return Ok(());
    }
    if !hidden().any(|one| one.starts_with(path)) {
        return permit(rules, path, (READ_A_TREE, READ_A_FILE));
    }
    // A rule holds for everything below: so each entry gets its own, and names alone can be listed.
    permit(rules, path, (LIST, 0))?;
    let names = Dir::open(path).and_then(|dir| dir.names());
    for name in names.unwrap_or_default() {
        use std::os::unix::ffi::OsStrExt;
        permit_reading(
            rules,
            &path.join(std::ffi::OsStr::from_bytes(&name)),
            copied,
        )?;
    }
    Ok(())
}

/// Permits the first to a directory, the second to a file. Links are not followed: what they lead to has its own rule, or none.
fn permit(
    rules: &std::os::fd::OwnedFd,
    path: &Path,
    (to_a_tree, to_a_file): (u64, u64),
) -> Result<(), Errno> {
    use std::os::fd::AsFd;
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // What is not there, or cannot be looked at, cannot be used either.
    let Ok(opened) = fs::open(path, flags, Mode::empty()) else {
        return Ok(());
    };
    let access = match FileType::from_raw_mode(fs::fstat(&opened)?.st_mode) {
        FileType::Directory => to_a_tree,
        FileType::Symlink => 0,
        _ => to_a_file,
    };
    match access {
        0 => Ok(()),
        access => sys::landlock_permit(rules, opened.as_fd(), access),
    }
}
