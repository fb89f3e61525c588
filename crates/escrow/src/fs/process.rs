//! Identifies a process by pid, start time and boot, so that a reused pid is not mistaken for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::dir::Dir;
use super::{Cause, FsError, Meta, Result};

/// A process: its number, when it was started (in ticks since boot), and in which boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The process number.
    pub pid: u32,
    /// The start time, in clock ticks since the machine came up.
    pub start: u64,
    /// The boot it belongs to.
    pub boot: String,
}

impl ProcessIdentity {
    /// This process.
    pub fn me() -> Result<Self> {
        let proc = Dir::open(Path::new("/proc"))?;
        Self::of(std::process::id())?
            .ok_or_else(|| proc.error("read", b"self/stat", Cause::Damaged("it has no start time")))
    }

    /// The process that has this number now.
    pub fn of(pid: u32) -> Result<Option<Self>> {
        let start = start_of(pid)?;
        start
            .map(|start| {
                Ok(Self {
                    pid,
                    start,
                    boot: boot()?,
                })
            })
            .transpose()
    }

    /// Whether it still runs. A reused number is another process: its start time differs.
    pub fn is_alive(&self) -> Result<bool> {
        Ok(self.boot == boot()? && start_of(self.pid)? == Some(self.start))
    }
}

/// The name of this boot, which no process outlives.
pub fn boot() -> Result<String> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(boot) = BOOT.get() {
        return Ok(boot.clone());
    }
    let dir = Dir::open(Path::new("/proc/sys/kernel/random"))?;
    let boot = read(&dir, b"boot_id")?.trim().to_owned();
    Ok(BOOT.get_or_init(|| boot).clone())
}

fn start_of(pid: u32) -> Result<Option<u64>> {
    let Some(fields) = fields_of(pid)? else {
        return Ok(None);
    };
    let state = fields.first().map_or("X", String::as_str);
    // A zombie holds nothing any more.
    if matches!(state, "Z" | "X") {
        return Ok(None);
    }
    Ok(fields.get(19).and_then(|field| field.parse().ok()))
}

/// What the kernel says of a process, from its state on; `None` where there is none.
fn fields_of(pid: u32) -> Result<Option<Vec<String>>> {
    // A process that ends while we look is none.
    let gone = |error: &FsError| error.is_absent() || error.is(rustix::io::Errno::SRCH);
    let dir = match Dir::open(Path::new(&format!("/proc/{pid}"))) {
        Err(error) if gone(&error) => return Ok(None),
        answer => answer?,
    };
    let stat = match read(&dir, b"stat") {
        Err(error) if gone(&error) => return Ok(None),
        answer => answer?,
    };
    // The second field is the program's name in brackets and may hold anything, so count from
    // its end; the start time is field 22.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    Ok(Some(after.split_whitespace().map(str::to_owned).collect()))
}

/// The process that holds a lock (`flock`) on a file, where the kernel says so.
pub fn locker_of(file: &Meta) -> Option<u32> {
    let locks = Dir::open(Path::new("/proc")).and_then(|proc| read(&proc, b"locks"));
    let device = format!("{:02x}:{:02x}", file.dev >> 32, file.dev & 0xffff_ffff);
    let place = format!("{device}:{}", file.ino);
    let locks = locks.unwrap_or_default();
    let words = locks.lines().map(|line| line.split_whitespace().collect());
    let mut held = words.filter_map(|words: Vec<&str>| match words[..] {
        [_, "FLOCK", _, _, pid, at, ..] if at == place => pid.parse().ok(),
        _ => None,
    });
    held.next()
}

/// Every process that can be seen, and its parent.
pub fn parents() -> Result<BTreeMap<u32, u32>> {
    let mut parents = BTreeMap::new();
    for pid in numbers(Path::new("/proc"))? {
        let fields = fields_of(pid)?.unwrap_or_default();
        if let Some(parent) = fields.get(1).and_then(|field| field.parse().ok()) {
            parents.insert(pid, parent);
        }
    }
    Ok(parents)
}

/// The threads of a process; none where it is gone.
pub fn threads(pid: u32) -> Vec<u32> {
    numbers(Path::new(&format!("/proc/{pid}/task"))).unwrap_or_default()
}

/// Whether a thread does nothing any more. A process whose first thread has ended may have others.
pub fn has_ended(thread: u32) -> bool {
    let fields = fields_of(thread).ok().flatten();
    fields.is_none_or(|fields| matches!(fields.first().map(String::as_str), Some("Z" | "X")))
}

/// The thread that holds a thread as a debugger does, if one does.
pub fn tracer_of(thread: u32) -> Option<u32> {
    let dir = Dir::open(Path::new(&format!("/proc/{thread}"))).ok()?;
    let status = read(&dir, b"status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok().filter(|pid| *pid != 0)
}

/// The children that a thread made and that are still there.
pub fn children_of(thread: u32) -> Vec<u32> {
    let dir = Dir::open(Path::new(&format!("/proc/{thread}/task/{thread}")));
    let text = dir.and_then(|dir| read(&dir, b"children"));
    let text = text.unwrap_or_default();
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// The number of the call in which a thread waits in the kernel, if it does.
pub fn call_of(thread: u32) -> Option<i64> {
    let dir = Dir::open(Path::new(&format!("/proc/{thread}"))).ok()?;
    read(&dir, b"syscall").ok()?.split(' ').next()?.parse().ok()
}

/// The namespace in which a process has its number; `None` where it is gone, or it may not be known.
pub fn pid_namespace(pid: u32) -> Option<(u64, u64)> {
    let namespace = rustix::fs::stat(format!("/proc/{pid}/ns/pid")).ok()?;
    Some((namespace.st_dev, namespace.st_ino))
}

fn numbers(dir: &Path) -> Result<Vec<u32>> {
    let names = Dir::open(dir)?.names()?;
    let number = |name: Box<[u8]>| std::str::from_utf8(&name).ok()?.parse().ok();
    Ok(names.into_iter().filter_map(number).collect())
}

/// All processes that were started, directly or not, from this process and still exist.
pub fn descendants() -> Result<Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (pid, parent) in parents()? {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = Vec::new();
    let mut next = vec![std::process::id()];
    while let Some(parent) = next.pop() {
        let born = children.remove(&parent).unwrap_or_default();
        found.extend(&born);
        next.extend(born);
    }
    Ok(found)
}

fn read(dir: &Dir, name: &[u8]) -> Result<String> {
    // A program's name need not be UTF-8; only the numbers behind it matter.
    Ok(String::from_utf8_lossy(&dir.read(name)?).into_owned())
}
