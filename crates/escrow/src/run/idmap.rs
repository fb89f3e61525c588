//! The user namespace of a command. Root's maps every id to itself. An ordinary user's maps the user, the own group, and
//! the groups that `/etc/subgid` grants, each to itself.
//!
//! The kernel copies a file into an overlay's layer only if its owner and its group are mapped (`EOVERFLOW` otherwise), so
//! each group more is one whose files can be changed inside. Only the setuid helper `newgidmap` may map a group that is not
//! the caller's own, and only from outside of the namespace. A process that holds nothing makes the namespace and waits;
//! the helper maps it; then the caller joins it. Whatever fails here costs the additional groups and nothing else.
//!
//! Subordinate *users* are not mapped: see `docs/design/run.md`.

use std::ffi::CStr;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, getegid, geteuid, kill_process,
    set_dumpable_behavior, set_parent_process_death_signal, waitpid,
};
use rustix::thread::{UnshareFlags, move_into_link_name_space};

use super::launcher::StepResult;
use super::supervise::at;
use super::sys;
use crate::fs::accounts::{self, IdRange};

/// Where the helper is, by its full path: the search path of the caller chooses nothing here.
const HELPERS: [&str; 3] = [
    "/usr/bin/newgidmap",
    "/bin/newgidmap",
    "/run/wrappers/bin/newgidmap",
];

/// The helper makes a few system calls, but may ask a directory service who the user is.
const LIMIT: Duration = Duration::from_secs(10);

/// The kernel takes 340 lines.
const MOST: usize = 300;

/// The groups that this user is granted beside the own one, each once. Root needs no grant.
pub fn granted() -> Vec<IdRange> {
    let user = geteuid();
    match user.is_root() {
        true => Vec::new(),
        false => disjoint(
            getegid().as_raw(),
            accounts::subordinate_groups(user.as_raw()),
        ),
    }
}

/// The same ids, each in one range only, and `own` in none: the kernel refuses a map that names an id twice.
fn disjoint(own: u32, mut ranges: Vec<IdRange>) -> Vec<IdRange> {
    ranges.sort_unstable_by_key(|range| range.first);
    let mut found = Vec::new();
    let mut free: u64 = 0;
    for range in ranges {
        let first = u64::from(range.first).max(free);
        let end = u64::from(range.first) + u64::from(range.count);
        free = free.max(end);
        let own = u64::from(own);
        let parts = match (first..end).contains(&own) {
            true => [(first, own), (own + 1, end)],
            false => [(first, end), (end, end)],
        };
        for (first, end) in parts.into_iter().filter(|(first, end)| first < end) {
            found.push(IdRange {
                first: first as u32,
                count: (end - first) as u32,
            });
        }
    }
    found.truncate(MOST);
    found
}

/// Goes into a new user namespace. Returns what has to be said when it has fewer groups than it could have. Many systems
/// grant groups to every user and have no helper: nothing is said then, unless a file of such a group is found (see
/// `strategy/overlay/unusable.rs`).
pub(super) fn enter() -> StepResult<Option<String>> {
    let groups = granted();
    if groups.is_empty() || helper().is_none() {
        return plain().map(|()| None);
    }
    let Err(why) = join_new(&groups) else {
        return Ok(None);
    };
    plain()?;
    let lost = "the groups that /etc/subgid grants you are not mapped inside, so their files may not be changed there";
    Ok(Some(format!("{lost}: {why}")))
}

fn join_new(groups: &[IdRange]) -> Result<(), String> {
    let namespace = namespace(groups)?;
    move_into_link_name_space(namespace.as_fd(), None)
        .map_err(|errno| said("join the new namespace", errno))
}

/// A new user namespace with the own user and group only, for this process.
fn plain() -> StepResult<()> {
    // Asked before: in the new namespace no process has an id until it is mapped.
    let (uid_map, gid_map) = (itself(geteuid().as_raw()), itself(getegid().as_raw()));
    sys::unshare(UnshareFlags::NEWUSER).map_err(at(
        "make namespaces (are unprivileged user namespaces forbidden here?)",
    ))?;
    let step = "map the own user into the new namespace";
    write(c"/proc/self/setgroups", "deny").map_err(at(step))?;
    write(c"/proc/self/uid_map", &uid_map).map_err(at(step))?;
    write(c"/proc/self/gid_map", &gid_map).map_err(at(step))
}

fn itself(id: u32) -> String {
    format!("{id} {id} 1")
}

fn write(path: &CStr, text: &str) -> Result<(), Errno> {
    let fd = fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&fd, text.as_bytes()).map(drop)
}

fn said(step: &str, errno: Errno) -> String {
    format!("cannot {step}: {}", std::io::Error::from(errno))
}

/// The helper, where it is installed.
fn helper() -> Option<&'static str> {
    let there = |path: &&str| fs::access(*path, fs::Access::EXEC_OK).is_ok();
    HELPERS.into_iter().find(there)
}

/// A new user namespace with the own user, the own group and these groups, in which no process is left. Otherwise why
/// there is none.
pub fn namespace(groups: &[IdRange]) -> Result<OwnedFd, String> {
    let helper = helper().ok_or("newgidmap is not installed (Debian: package uidmap)")?;
    let holder = NamespaceHolder::start(Some(itself(geteuid().as_raw())))?;
    let mut ids = vec![(getegid().as_raw(), 1)];
    ids.extend(groups.iter().map(|range| (range.first, range.count)));
    map(helper, holder.pid, &ids)?;
    holder.namespace()
}

/// A new user namespace with every id that this one has, in which no process is left. Otherwise why there is none.
pub(super) fn every_id() -> Result<OwnedFd, String> {
    let holder = NamespaceHolder::start(None)?;
    for name in ["uid_map", "gid_map"] {
        let failed = |errno| said("map every id", errno);
        let own = fs::open(
            format!("/proc/self/{name}"),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let mut text = vec![0; 16 * 1024];
        let length = own.and_then(|own| rustix::io::read(own, &mut text));
        let text = String::from_utf8_lossy(&text[..length.map_err(failed)?]).into_owned();
        let ids = text.lines().filter_map(|line| {
            let mut numbers = line.split_whitespace();
            let (first, count) = (numbers.next()?, numbers.nth(1)?);
            Some(format!("{first} {first} {count}\n"))
        });
        let path = format!("/proc/{}/{name}", holder.pid.as_raw_nonzero());
        let path = std::ffi::CString::new(path).map_err(|_| failed(Errno::INVAL))?;
        write(&path, &ids.collect::<String>()).map_err(failed)?;
    }
    holder.namespace()
}

/// Has the helper map ids of the namespace of a process to themselves.
#[expect(
    clippy::disallowed_methods,
    reason = "the one program the engine starts here, with its own time limit"
)]
fn map(helper: &str, pid: Pid, ids: &[(u32, u32)]) -> Result<(), String> {
    let mut command = Command::new(Path::new(helper));
    command.arg(pid.as_raw_nonzero().to_string());
    for (first, count) in ids {
        let (first, count) = (first.to_string(), count.to_string());
        command.args([first.as_str(), &first, &count]);
    }
    command.env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let failed = |error: std::io::Error| format!("cannot run {helper}: {error}");
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(failed)?;
    let until = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            // One that cannot be killed ends by itself, and maps nothing: the process it was to map is gone then.
            Ok(None) => match child.kill().and_then(|()| child.wait()) {
                Ok(_) | Err(_) => return Err(format!("{helper} did not end within {LIMIT:?}")),
            },
            Err(error) => return Err(failed(error)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut text = Vec::new();
    let told = child.stderr.take().map(|from| from.take(4096));
    let told = told.map(|mut from| from.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    match (told, text.lines().find(|line| !line.trim().is_empty())) {
        (Some(Ok(_)), Some(line)) => Err(line.trim().to_owned()),
        _ => Err(format!("{helper} ended with {status}")),
    }
}

/// A process in a user namespace of its own that has no descriptor of ours and waits to be ended.
struct NamespaceHolder {
    pid: Pid,
}

impl NamespaceHolder {
    /// With a map of users, the process maps them itself and gives up its groups; otherwise another one maps everything.
    fn start(uid_map: Option<String>) -> Result<Self, String> {
        let step = "make a user namespace";
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| said(step, errno));
        let (answer, report) = pipe()?;
        let holder = match sys::fork().map_err(|errno| said(step, errno))? {
            Some(pid) => Self { pid },
            // It allocates nothing, takes no lock, and ends in `exit`.
            None => hold(&report, uid_map.as_deref()),
        };
        drop(report);
        match heard(&answer) {
            Ok(0) => Ok(holder),
            Ok(errno) => Err(said(step, Errno::from_raw_os_error(errno))),
            Err(errno) => Err(said(step, errno)),
        }
    }

    fn namespace(&self) -> Result<OwnedFd, String> {
        let path = format!("/proc/{}/ns/user", self.pid.as_raw_nonzero());
        fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| said("open the new namespace", errno))
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        // Nothing else takes our children away, so the number is still its own.
        let ended = kill_process(self.pid, Signal::KILL)
            .and_then(|()| waitpid(Some(self.pid), WaitOptions::empty()));
        match ended {
            Ok(_) | Err(_) => {}
        }
    }
}

/// The child: says how it went, then waits. Makes system calls only.
fn hold(report: &OwnedFd, uid_map: Option<&str>) -> ! {
    let made = || -> Result<(), Errno> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // What we hold, locks and channels among them, is nothing for a process that others of this user may trace.
        sys::keep_only(&mut [report.as_raw_fd()], 0)?;
        // The helper maps only processes whose files in /proc belong to its caller.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        sys::unshare(UnshareFlags::NEWUSER)?;
        let Some(uid_map) = uid_map else {
            return Ok(());
        };
        write(c"/proc/self/setgroups", "deny")?;
        write(c"/proc/self/uid_map", uid_map)
    };
    let errno = made().err().map_or(0, Errno::raw_os_error);
    let bytes = errno.to_le_bytes();
    if rustix::io::write(report, &bytes) == Ok(bytes.len()) && errno == 0 {
        sys::sleep_for_ever();
    }
    sys::exit(1)
}

fn heard(answer: &OwnedFd) -> Result<i32, Errno> {
    let limit = Timespec {
        tv_sec: LIMIT.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut ready = [PollFd::new(answer, PollFlags::IN)];
    if poll(&mut ready, Some(&limit))? == 0 {
        return Err(Errno::TIMEDOUT);
    }
    let mut message = [0; 4];
    match rustix::io::read(answer, &mut message)? {
        4 => Ok(i32::from_le_bytes(message)),
        _ => Err(Errno::PIPE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(own: u32, ranges: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let range = |&(first, count): &(u32, u32)| IdRange { first, count };
        let all = disjoint(own, ranges.iter().map(range).collect());
        all.iter().map(|one| (one.first, one.count)).collect()
    }

    #[test]
    fn no_id_is_mapped_twice() {
        assert_eq!(pairs(1000, &[(1005, 1)]), [(1005, 1)]);
        // Granted twice, overlapping, one inside the other.
        let twice = [(200, 10), (100, 50), (120, 60), (130, 5), (200, 10)];
        assert_eq!(pairs(1000, &twice), [(100, 50), (150, 30), (200, 10)]);
        // The own one is mapped by itself.
        assert_eq!(pairs(105, &[(100, 10)]), [(100, 5), (106, 4)]);
        assert_eq!(pairs(100, &[(100, 10)]), [(101, 9)]);
        assert_eq!(pairs(109, &[(100, 10)]), [(100, 9)]);
        assert!(pairs(7, &[(7, 1)]).is_empty());
        // Cut in two by the own one, and again by a range that overlaps it.
        assert_eq!(
            pairs(105, &[(100, 10), (103, 20)]),
            [(100, 5), (106, 4), (110, 13)]
        );
        assert_eq!(pairs(1, &[(u32::MAX - 1, 1)]), [(u32::MAX - 1, 1)]);
    }

    #[test]
    fn not_more_is_asked_for_than_the_kernel_takes() {
        let many: Vec<(u32, u32)> = (0..1000).map(|n| (n * 10 + 5, 1)).collect();
        assert_eq!(pairs(1, &many).len(), MOST);
    }
}
