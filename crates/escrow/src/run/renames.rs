//! Directories of the original can be renamed in an overlay.
//!
//! The kernel's overlays refuse that with `EXDEV` where they may not note the old place (`redirect_dir`), as in those of
//! ordinary users: `mv` copies then, but `git mv`, `os.rename` and package managers fail. So each rename is looked at before
//! the kernel carries it out. If it is one of a directory that the kernel would refuse, a directory that lies in the
//! layer alone first takes its place, with everything that is in it; then the kernel is left to do what it was asked.
//!
//! One process for each command looks, also at the sizes of terminals ([`terminal_size`]) and at connections ([`connects`]), with the capabilities of the monitor, since it must find the paths of others. What
//! changes anything is done by a process of its own, behind the walls of the command, so a command that changes its
//! memory meanwhile has only done what it can do by itself. Both see the files inside, and are not among the processes
//! there: no command can see or end them, and what pauses those inside waits until a rename is done. The monitor waits too.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{self, AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, Stat, Timestamps, Uid};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, PidfdFlags, WaitOptions, geteuid, getpid, pidfd_open, set_dumpable_behavior,
};
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::isatty;

use super::connects::{self, Connects};
use super::launcher::{StepResult, end_with_parent, report_failure};
use super::notify::{self, HeldCall, HeldCalls};
use super::own_network::Outside;
use super::spec::RunSpec;
use super::supervise::{Channel, at};
use super::{Event, filter, landlock, sys, terminal_size};
use crate::failpoints;
use crate::fs::areas::HALF_MOVED;
use crate::model::Network;
use crate::model::view::View;

/// How often a directory is looked through in which others make files meanwhile.
const ROUNDS: usize = 8;

/// What is said of a command that failed, and could not make a namespace.
const NO_NAMESPACES: &str = "the command failed, and a user namespace of its own was refused to it, as browsers, container \
    engines and agents with a sandbox of their own make: `escrow run --allow-userns` permits it";

/// What the kernel calls an overlay.
const OVERLAY: u64 = 0x794c_7630;

/// Starts the process that looks at renames, if there is an overlay inside, at the sizes of terminals, also if the command
/// is given one, and at connections out of a network of its own; `join` is what it has yet to do to have the rights of those inside. It ends when the other end of the channel
/// does.
pub(super) fn start(
    spec: &RunSpec,
    processes: &OwnedFd,
    outside: Option<&[u64]>,
    network: Option<&Outside>,
    join: impl Fn() -> Result<(), Errno>,
) -> StepResult<Option<Channel>> {
    let layers = |view: &View| matches!(view, View::Layers(_));
    let overlay = spec.home.is_some() || spec.views.iter().any(|shown| layers(&shown.view));
    let streams = || [stdin(), stdout(), stderr()].into_iter().any(isatty);
    if !overlay && !spec.terminal && !streams() && network.is_none() {
        return Ok(None);
    }
    let (ours, theirs) = Channel::pair()?;
    if sys::fork().map_err(at("watch over renames"))?.is_none() {
        let gateway = network.map_or(Ok(()), Outside::enter_gateway);
        let joined = gateway.and_then(|()| join());
        let joined = joined.map_err(at("watch over renames"));
        let channels = (&theirs, network.map(|network| &network.channel));
        let status = joined.and_then(|()| look(spec, (processes, outside), channels));
        sys::exit(status.map_or_else(|failed| report_failure(&theirs, failed), |()| 0));
    }
    Ok(Some(ours))
}

/// Waits until nothing is changed any more, when every process of the command has ended. Returns what the mover has to say.
pub(super) fn end(mover: &Channel) -> Option<String> {
    let mut ready = [PollFd::new(mover, PollFlags::IN)];
    let ended = rustix::net::shutdown(mover.as_fd(), rustix::net::Shutdown::Write)
        .and_then(|()| poll(&mut ready, None));
    match ended.and_then(|_| mover.receive::<Event>()) {
        Ok(Some(Event::Notice(text))) => Some(text),
        // It is gone, and nothing of it works any more.
        Ok(_) | Err(_) => None,
    }
}

/// Sets the filter of the process that becomes the command. Where the kernel cannot ask, renames and sizes are as they are.
pub(super) fn filter_calls(spec: &RunSpec, mover: Option<&Channel>) -> Result<(), Errno> {
    if let Some(mover) = mover {
        match notify::filter_calls(filter::program(permitted(spec, true))) {
            Ok(listener) => return mover.send_with(&Event::Listening, listener.as_fd()),
            // Without an answer nothing would be reached, and nothing would say why.
            Err(errno) if matches!(spec.look.network, Network::Own(_)) => return Err(errno),
            Err(_) => {}
        }
    }
    sys::filter_calls(filter::program(permitted(spec, false)))
}

fn permitted(spec: &RunSpec, asked: bool) -> filter::Permitted {
    filter::Permitted {
        userns: spec.look.userns,
        network: spec.look.network == Network::Host,
        asked,
        connects: matches!(spec.look.network, Network::Own(_)),
    }
}

fn look(
    spec: &RunSpec,
    (processes, outside): (&OwnedFd, Option<&[u64]>),
    (channel, network): (&Channel, Option<&Channel>),
) -> StepResult<()> {
    let step = || "watch over renames".to_owned();
    end_with_parent("watch over renames")?;
    notify::remember_session();
    sys::leave_terminal().map_err(at(step()))?;
    // Its share says that a process of ours may change files.
    let open = [channel.as_fd(), processes.as_fd()].into_iter();
    let open = open.chain(network.map(AsFd::as_fd));
    let mut kept: Vec<i32> = open.map(|fd| fd.as_raw_fd()).collect();
    kept.push(spec.share);
    sys::keep_only(&mut kept, 3).map_err(at(step()))?;
    let heard = channel.receive_with::<Event>().map_err(at(step()))?;
    let Some((_, Some(listener))) = heard else {
        return Ok(());
    };
    let listener = listener.as_fd();
    notify::take_turns(listener);
    let held = notify::HeldCalls::new().map_err(at(step()))?;
    // This process holds the listener too: were it gone with the one that answers, each rename inside would fail for good,
    // as if the kernel knew none. One that is killed has a successor, and what it was about to answer is an I/O error.
    loop {
        let Some(answering) = sys::fork().map_err(at(step()))? else {
            let channels = (channel, network);
            let done = answer(spec, (processes, outside), channels, (listener, &held));
            sys::exit(done.map_or_else(|failed| report_failure(channel, failed), |()| 0));
        };
        let ended = loop {
            match rustix::process::waitpid(Some(answering), WaitOptions::empty()) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(at(step())(errno)),
                Ok(ended) => break ended,
            }
        };
        // What went wrong in it was reported by itself.
        if ended.is_none_or(|(_, status)| !status.signaled()) {
            return Ok(());
        }
        held.fail_all(listener);
    }
}

/// Answers until every process that could ask has ended.
fn answer(
    spec: &RunSpec,
    (processes, outside): (&OwnedFd, Option<&[u64]>),
    (channel, network): (&Channel, Option<&Channel>),
    (listener, held): (BorrowedFd<'_>, &HeldCalls),
) -> StepResult<()> {
    let step = || "watch over renames".to_owned();
    // The kernel ends those that help.
    sys::set_signal(libc::SIGCHLD, true);
    let mut refused = false;
    // Those that help, each with the place where its call is noted.
    let mut helping: Vec<(OwnedFd, usize)> = Vec::new();
    let mut connects = network.map(Connects::new);
    loop {
        let mut ready = vec![
            PollFd::new(channel, PollFlags::IN),
            PollFd::from_borrowed_fd(listener, PollFlags::IN),
        ];
        let helpers = helping.iter();
        ready.extend(helpers.map(|(helper, _)| PollFd::new(helper, PollFlags::IN)));
        let hears = connects.as_ref().map(Connects::channel);
        ready.extend(hears.map(|hears| PollFd::from_borrowed_fd(hears, PollFlags::IN)));
        let queue = connects.as_ref().is_some_and(Connects::has_queue);
        let again = Timespec::try_from(connects::AGAIN).ok().filter(|_| queue);
        match poll(&mut ready, again.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(at(step())(errno)),
        }
        // Every process that could ask has ended.
        let heard = ready[1].revents();
        let asked = heard.contains(PollFlags::IN);
        if !ready[0].revents().is_empty() || !(asked || heard.is_empty()) {
            break;
        }
        let came = ready[2..].iter().map(|one| !one.revents().is_empty());
        let mut ended = came.collect::<Vec<bool>>();
        if let Some(there) = &mut connects {
            let came = ended.pop() == Some(true);
            if came && !there.hear(listener, held) {
                connects = None;
            } else if queue {
                there.open_queued(listener, held);
            }
        }
        let mut ended = ended.into_iter();
        helping.retain(|(_, noted)| match ended.next() {
            // It answered, or nobody will.
            Some(true) => {
                held.fail(listener, *noted);
                false
            }
            _ => true,
        });
        if !asked {
            continue;
        }
        let Some(call) = notify::receive(listener).map_err(at(step()))? else {
            continue;
        };
        let noted = held.note(&call);
        if let Some(resize) = filter::resize_of(call.call, call.arguments) {
            match terminal_size::set(&call, resize, (processes, listener), outside) {
                Ok(()) if failpoints::bug("resize-goes-on") => call.go_on(listener),
                set => call.finish(listener, set),
            }
            noted.into_iter().for_each(|at| held.forget(at));
            continue;
        }
        if filter::is_user_namespace(call.call, call.arguments) {
            refused = true;
            call.finish(listener, Err(Errno::PERM));
            noted.into_iter().for_each(|at| held.forget(at));
            continue;
        }
        let call = match (&mut connects, noted) {
            (Some(connects), noted) => match connects.take(processes, call, noted) {
                Ok(()) => continue,
                Err(call) => call,
            },
            (None, _) => call,
        };
        let paths = both_paths(processes, &call).filter(|_| call.waits(listener));
        let changes = paths.filter(|paths| paths.iter().any(RenamedPath::may_need_help));
        match changes.map(|paths| (sys::fork(), paths)) {
            Some((Ok(None), paths)) => {
                match help(spec, &paths, || call.waits(listener)) {
                    // The kernel says then what it says without us.
                    Ok(()) | Err(_) => call.go_on(listener),
                }
                sys::exit(0);
            }
            Some((Ok(Some(helper)), _)) => {
                let opened = pidfd_open(helper, PidfdFlags::empty());
                match (opened, noted) {
                    (Ok(opened), Some(noted)) => helping.push((opened, noted)),
                    // It has ended.
                    (Err(_), Some(noted)) => held.fail(listener, noted),
                    (_, None) => {}
                }
            }
            Some((Err(_), _)) | None => {
                call.go_on(listener);
                noted.into_iter().for_each(|at| held.forget(at));
            }
        }
    }
    // Those that help put back what was half moved: with them gone, directories are whole.
    while sys::wait_any(WaitOptions::empty())
        .map_err(at(step()))?
        .is_some()
    {}
    if refused {
        let told = channel.send(&Event::Notice(NO_NAMESPACES.to_owned()));
        told.map_err(at(step()))?;
    }
    Ok(())
}

/// One of the two paths of a rename.
struct RenamedPath {
    /// What it begins at; `None` if it begins at the root.
    at: Option<OwnedFd>,
    parent: CString,
    name: CString,
    /// Whether what is there is moved.
    moves: bool,
}

/// The paths of a call. `None` where they cannot be found, or do not mean here what they mean to the caller.
fn both_paths(processes: &OwnedFd, call: &HeldCall) -> Option<[RenamedPath; 2]> {
    let rename = filter::rename_of(call.call, call.arguments)?;
    let of_caller = |name: &str| format!("{}/{name}", call.thread);
    let looked = |name: &str| fs::statat(processes, of_caller(name), AtFlags::empty()).ok();
    let (own, theirs) = (fs::stat(c"/").ok()?, looked("root")?);
    if (own.st_dev, own.st_ino) != (theirs.st_dev, theirs.st_ino) {
        return None;
    }
    // Root may have become another user: what that one may do, this one need not know.
    if looked("task")?.st_uid != geteuid().as_raw() {
        return None;
    }
    let path = |(dir, address): (i32, u64), moves: bool| {
        let path = call.path_at(address)?.into_bytes();
        let length = path.iter().rposition(|byte| *byte != b'/')? + 1;
        let (parent, name) = match path[..length].iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (path[..=slash].to_vec(), path[slash + 1..length].to_vec()),
            None => (b".".to_vec(), path[..length].to_vec()),
        };
        if name == b"." || name == b".." {
            return None;
        }
        let begin = match dir {
            libc::AT_FDCWD => of_caller("cwd"),
            dir => of_caller(&format!("fd/{dir}")),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = match path[0] {
            b'/' => None,
            _ => Some(fs::openat(processes, begin, flags, Mode::empty()).ok()?),
        };
        Some(RenamedPath {
            at,
            parent: CString::new(parent).ok()?,
            name: CString::new(name).ok()?,
            moves,
        })
    };
    Some([path(rename.from, true)?, path(rename.to, rename.exchange)?])
}

impl RenamedPath {
    fn open_parent(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = self.at.as_ref().map_or(CWD, |at| at.as_fd());
        fs::openat(at, &self.parent, flags, Mode::empty())
    }

    /// Whether a directory is to be moved that lies in an overlay.
    fn may_need_help(&self) -> bool {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || fs::openat(self.open_parent()?, &self.name, flags, Mode::empty());
        self.moves
            && open()
                .and_then(fs::fstatfs)
                .is_ok_and(|found| found.f_type as u64 == OVERLAY)
    }
}

/// Whether a path lies in an overlay.
pub(super) fn is_overlay(path: &std::path::Path) -> bool {
    fs::statfs(path).is_ok_and(|found| found.f_type as u64 == OVERLAY)
}

/// Behind the walls of the command: sees to it that the kernel can move what is to be moved.
fn help(
    spec: &RunSpec,
    paths: &[RenamedPath; 2],
    going_on: impl Fn() -> bool,
) -> Result<(), Errno> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    match end_with_parent("watch over renames") {
        // It ends with the namespace all the same.
        Ok(()) | Err(_) => {}
    }
    // Two at once, of whichever command, would take things from each other. No command can open the file of this lock, and
    // so none can hold it; a lock of this kind is the process's, while the shares of the file are locks of the other kind.
    let turn = sys::adopt(spec.share);
    loop {
        match fs::fcntl_lock(&turn, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::AGAIN | Errno::ACCESS) if going_on() => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(errno) => return Err(errno),
        }
    }
    sys::give_up_privileges(spec.capabilities())?;
    landlock::confine(spec)?;
    sys::filter_calls(filter::program(permitted(spec, false)))?;
    let parents = [paths[0].open_parent()?, paths[1].open_parent()?];
    // Between two file systems nothing can be renamed.
    if fs::fstat(&parents[0])?.st_dev != fs::fstat(&parents[1])?.st_dev {
        return Ok(());
    }
    for (path, parent) in paths.iter().zip(&parents).filter(|(path, _)| path.moves) {
        if is_refused(parent.as_fd(), &path.name)? {
            replace(parent.as_fd(), &path.name, &going_on)?;
        }
    }
    Ok(())
}

/// A name for something that is there for a short time.
fn beside(number: u32) -> String {
    let begin = String::from_utf8_lossy(HALF_MOVED);
    format!("{begin}{}-{number}", getpid().as_raw_nonzero())
}

/// Whether the kernel would not rename a directory. It is asked to put it in the place of one that is not empty: it
/// refuses that after it has refused to rename it at all.
fn is_refused(parent: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    let (outer, inner) = (beside(0), format!("{}/x", beside(0)));
    fs::mkdirat(parent, &outer, Mode::RWXU)?;
    let asked = fs::mkdirat(parent, &inner, Mode::RWXU)
        .map(|()| fs::renameat(parent, name, parent, &outer) == Err(Errno::XDEV));
    let removed = fs::unlinkat(parent, &inner, AtFlags::REMOVEDIR);
    fs::unlinkat(parent, &outer, AtFlags::REMOVEDIR)?;
    removed.and(asked)
}

/// Puts a directory that lies in the layer alone in the place of one, with everything that is in it. If that fails,
/// everything is where it was.
fn replace(parent: BorrowedFd<'_>, name: &CStr, going_on: &impl Fn() -> bool) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let old = fs::openat(parent, name, flags, Mode::empty())?;
    let stat = fs::fstat(&old)?;
    let beside = beside(old.as_raw_fd().unsigned_abs());
    fs::mkdirat(parent, &beside, Mode::RWXU)?;
    let new = fs::openat(parent, &beside, flags, Mode::empty());
    let moved = new.and_then(|new| {
        let moved = fill(&old, &new, &stat, going_on).and_then(|()| {
            fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
            fs::renameat(parent, &beside, parent, name)
        });
        if moved.is_err() {
            for name in names(&new)? {
                carry(&new, &old, &name, going_on)?;
            }
            set(&old, &stat)?;
        }
        moved
    });
    match moved {
        Ok(()) => Ok(()),
        Err(errno) => fs::unlinkat(parent, &beside, AtFlags::REMOVEDIR).and(Err(errno)),
    }
}

/// Makes `new` what `old` was.
fn fill(
    old: &OwnedFd,
    new: &OwnedFd,
    stat: &Stat,
    going_on: &impl Fn() -> bool,
) -> Result<(), Errno> {
    let made = fs::fstat(new)?;
    if (made.st_uid, made.st_gid) != (stat.st_uid, stat.st_gid) {
        let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        fs::fchown(new, Some(user), Some(group))?;
    }
    copy_attributes(old, new)?;
    if stat.st_mode & 0o700 != 0o700 {
        fs::fchmod(old, Mode::from_raw_mode(stat.st_mode | 0o700))?;
    }
    for _ in 0..ROUNDS {
        let names = names(old)?;
        if names.is_empty() {
            return set(new, stat);
        }
        for name in names {
            if !going_on() {
                return Err(Errno::INTR);
            }
            carry(old, new, &name, going_on)?;
        }
    }
    Err(Errno::NOTEMPTY)
}

/// Moves something into another directory.
fn carry(
    from: &OwnedFd,
    to: &OwnedFd,
    name: &CStr,
    going_on: &impl Fn() -> bool,
) -> Result<(), Errno> {
    let rename = || fs::renameat(from, name, to, name);
    let attempt = || match rename() {
        Err(Errno::XDEV) => replace(from.as_fd(), name, going_on).and_then(|()| rename()),
        done => done,
    };
    match attempt() {
        // Another process was quicker.
        Err(Errno::NOENT) => Ok(()),
        // A directory is written when another one becomes its parent.
        Err(Errno::ACCESS) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let open = |at: &OwnedFd| fs::openat(at, name, flags, Mode::empty());
            let closed = open(from)?;
            let mode = fs::fstat(&closed)?.st_mode;
            fs::fchmod(&closed, Mode::from_raw_mode(mode | 0o700))?;
            let done = attempt();
            let there = open(if done.is_ok() { to } else { from });
            let set = there.and_then(|dir| fs::fchmod(dir, Mode::from_raw_mode(mode)));
            done.and(set)
        }
        done => done,
    }
}

/// Mode and times as they were.
fn set(dir: &OwnedFd, stat: &Stat) -> Result<(), Errno> {
    fs::fchmod(dir, Mode::from_raw_mode(stat.st_mode))?;
    let time = |seconds: i64, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds as i64,
    };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    fs::futimens(dir, &times)
}

fn names(dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut found = Vec::new();
    for entry in fs::Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            found.push(entry.file_name().to_owned());
        }
    }
    Ok(found)
}

fn copy_attributes(old: &OwnedFd, new: &OwnedFd) -> Result<(), Errno> {
    const MOST: usize = 64 * 1024;
    let mut list = vec![0; MOST];
    let length = match fs::flistxattr(old, &mut list) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        length => length?,
    };
    let names = || list[..length].split_inclusive(|byte| *byte == 0);
    // It may have got some from the directory that it was made in.
    let mut own = vec![0; MOST];
    let own_length = fs::flistxattr(new, &mut own)?;
    let own = own[..own_length].split_inclusive(|byte| *byte == 0);
    for name in own.filter(|own| names().all(|name| name != *own)) {
        match CStr::from_bytes_with_nul(name).map(|name| fs::fremovexattr(new, name)) {
            Err(_) => {}
            Ok(Err(Errno::PERM | Errno::OPNOTSUPP)) if name.starts_with(b"security.") => {}
            Ok(removed) => removed?,
        }
    }
    for name in names().filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
        let mut value = vec![0; MOST];
        let length = fs::fgetxattr(old, name, &mut value)?;
        match fs::fsetxattr(new, name, &value[..length], fs::XattrFlags::empty()) {
            Ok(()) => {}
            // Labels of the system are given by the system.
            Err(Errno::PERM | Errno::OPNOTSUPP) if name.to_bytes().starts_with(b"security.") => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
