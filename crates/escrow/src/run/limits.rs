//! Limits of a command: its memory, its processes, its share of the processors, its time.
//!
//! Where this user may make control groups (version 1 or 2), the command gets one, and the kernel keeps the limits. Elsewhere its monitor
//! looks at all of its processes again and again and ends them when they are too many or too large; the processors cannot be
//! limited then, and that is an error. The time is kept by the supervisor. Which limit was reached is reported.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use super::{RunError, at, at_io};
use crate::fs::{Dir, process};
use crate::model::Limits;

/// How the names of groups begin.
pub(crate) const PREFIX: &str = "escrow-run-";

/// How often a monitor looks.
pub(super) const INTERVAL: Duration = Duration::from_millis(50);

/// How long a control group may take to become empty when its processes have ended.
const PATIENCE: Duration = Duration::from_secs(2);

/// The control groups of one command. They are removed when this is dropped.
pub(crate) struct ControlGroups {
    dirs: Vec<PathBuf>,
    procs: Vec<OwnedFd>,
    limits: Limits,
    /// What the monitor has to look after.
    pub(crate) supervised: Limits,
}

impl ControlGroups {
    /// Makes them, for as many of the limits as the kernel can keep for this user. The name is one that nothing else has.
    pub(crate) fn make(limits: Limits, name: &str) -> Result<Self, RunError> {
        let mut made = Self {
            dirs: Vec::new(),
            procs: Vec::new(),
            limits,
            supervised: Limits::default(),
        };
        let wanted = [
            ("memory", limits.memory.is_some()),
            ("pids", limits.pids.is_some()),
            ("cpu", limits.cpu.is_some()),
        ];
        let hierarchies = match wanted.iter().any(|(_, wanted)| *wanted) {
            true => Hierarchies::read(),
            false => return Ok(made),
        };
        let wanted: Vec<&str> = wanted
            .iter()
            .filter(|(_, wanted)| *wanted)
            .map(|(name, _)| *name)
            .collect();
        for controller in wanted.iter().copied() {
            if hierarchies
                .place(controller, &wanted)
                .is_some_and(|place| made.add(&place, controller, name))
            {
                continue;
            }
            match controller {
                "memory" => made.supervised.memory = limits.memory,
                "pids" => made.supervised.pids = limits.pids,
                _ => {
                    let step = "limit the processors: no control group is delegated to this user";
                    return Err(at(step)(Errno::PERM));
                }
            }
        }
        for dir in &made.dirs {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let opened = fs::open(dir.join("cgroup.procs"), flags, Mode::empty());
            made.procs
                .push(opened.map_err(at("open the control group"))?);
        }
        Ok(made)
    }

    /// Makes the group at a place, if it is not there already, and sets one limit. Whether that is possible.
    fn add(&mut self, place: &Place, controller: &str, name: &str) -> bool {
        let dir = place.dir.join(name);
        if !self.dirs.contains(&dir) {
            sweep(&place.dir);
            if fs::mkdir(&dir, Mode::from_raw_mode(0o755)).is_err() {
                return false;
            }
            self.dirs.push(dir.clone());
        }
        let limits = self.limits;
        let memory = limits.memory.unwrap_or_default().to_string();
        let quota = limits.cpu.unwrap_or_default() * 100;
        let files: Vec<(&str, String, bool)> = match (controller, place.newer) {
            ("memory", true) => vec![
                ("memory.max", memory, true),
                ("memory.swap.max", "0".into(), false),
            ],
            ("memory", false) => vec![
                ("memory.limit_in_bytes", memory.clone(), true),
                ("memory.memsw.limit_in_bytes", memory, false),
            ],
            ("pids", _) => vec![(
                "pids.max",
                limits.pids.unwrap_or_default().to_string(),
                true,
            )],
            (_, true) => vec![("cpu.max", format!("{quota} 100000"), true)],
            (_, false) => vec![
                ("cpu.cfs_period_us", "100000".into(), true),
                ("cpu.cfs_quota_us", quota.to_string(), true),
            ],
        };
        files
            .iter()
            .all(|(file, value, needed)| put(&dir.join(file), value).is_ok() || !needed)
    }

    /// The files by which a process joins.
    pub(crate) fn procs(&self) -> Vec<BorrowedFd<'_>> {
        self.procs.iter().map(AsFd::as_fd).collect()
    }

    /// The same for a process that is started later.
    pub(crate) fn own_procs(&self) -> Result<Vec<OwnedFd>, RunError> {
        let copies = self.procs.iter().map(OwnedFd::try_clone);
        let copies = copies.collect::<std::io::Result<_>>();
        copies.map_err(at_io("open the control group"))
    }

    /// Which limits were reached.
    pub(crate) fn reached(&self) -> Vec<String> {
        let mut reached = Vec::new();
        let counted = |file: &str, key: &str| {
            let mut dirs = self.dirs.iter();
            dirs.any(|dir| count(&dir.join(file), key) > 0)
        };
        let killed =
            counted("memory.events", "oom_kill") || counted("memory.oom_control", "oom_kill");
        if let Some(memory) = self.limits.memory.filter(|_| killed) {
            reached.push(memory_text(memory));
        }
        if let Some(pids) = self.limits.pids.filter(|_| counted("pids.events", "max")) {
            reached.push(pids_text(pids));
        }
        reached
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        let start = std::time::Instant::now();
        for dir in &self.dirs {
            // The kernel may still be removing processes that have ended.
            while fs::rmdir(dir) == Err(Errno::BUSY) && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// Removes groups that killed supervisors left. One that holds a process cannot be removed, and one that is about to get its
/// process is younger.
fn sweep(place: &Path) {
    const AGE: Duration = Duration::from_secs(60);
    let names = Dir::open(place)
        .and_then(|dir| dir.names())
        .unwrap_or_default();
    let left = names
        .iter()
        .filter(|name| name.starts_with(PREFIX.as_bytes()));
    for dir in left.map(|name| place.join(OsStr::from_bytes(name))) {
        let made = fs::stat(&dir)
            .ok()
            .and_then(|stat| u64::try_from(stat.st_mtime).ok());
        let made = made.and_then(|made| UNIX_EPOCH.checked_add(Duration::from_secs(made)));
        let old = made
            .and_then(|made| made.elapsed().ok())
            .is_some_and(|age| age > AGE);
        if old {
            match fs::rmdir(&dir) {
                Ok(()) | Err(_) => {}
            }
        }
    }
}

pub(super) fn memory_text(memory: u64) -> String {
    format!(
        "the command reached its limit of {memory} bytes of memory, and processes of it were killed"
    )
}

pub(super) fn pids_text(pids: u64) -> String {
    format!("the command reached its limit of {pids} processes")
}

/// Makes this process a member of the groups.
pub(super) fn join(procs: &[OwnedFd]) -> Result<(), Errno> {
    procs
        .iter()
        .try_for_each(|procs| rustix::io::write(procs, b"0").map(drop))
}

/// What the processes of this one use: which limit they are over.
pub(super) fn exceeded(limits: &Limits) -> Option<String> {
    let all = process::descendants().unwrap_or_default();
    if let Some(pids) = limits.pids.filter(|pids| all.len() as u64 > *pids) {
        return Some(pids_text(pids));
    }
    let memory = limits.memory?;
    let resident = |pid: &u32| count(Path::new(&format!("/proc/{pid}/status")), "VmRSS:") * 1024;
    if all.iter().map(resident).sum::<u64>() <= memory {
        return None;
    }
    // Pages that several share were counted for each: this counts them once, and costs more.
    let proportional =
        |pid: &u32| count(Path::new(&format!("/proc/{pid}/smaps_rollup")), "Pss:") * 1024;
    (all.iter().map(proportional).sum::<u64>() > memory).then(|| memory_text(memory))
}

/// The controllers of which this user can make no group.
pub(super) fn without_groups() -> Vec<&'static str> {
    let hierarchies = Hierarchies::read();
    let can = |name: &&str| {
        let place = hierarchies.place(name, &[name]);
        place.is_some_and(|place| fs::access(&place.dir, fs::Access::WRITE_OK).is_ok())
    };
    let all = ["memory", "pids", "cpu"].into_iter();
    all.filter(|name| !can(name)).collect()
}

/// Where a group can be made.
struct Place {
    dir: PathBuf,
    /// Whether it is of version 2.
    newer: bool,
}

/// Where this process is in the control groups of each kind.
#[derive(Default)]
struct Hierarchies {
    /// The directory of the group in version 2, and where the tree is mounted.
    newer: Option<(PathBuf, PathBuf)>,
    /// The directory of the group by controller of version 1.
    older: BTreeMap<String, PathBuf>,
}

impl Hierarchies {
    fn read() -> Self {
        let mut found = Self::default();
        let own = text(Path::new("/proc/self/cgroup"));
        let path_in = |controller: &str| {
            own.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let (names, path) = (parts.next()?, parts.next()?);
                names
                    .split(',')
                    .any(|name| name == controller)
                    .then(|| path.to_owned())
            })
        };
        for line in text(Path::new("/proc/self/mountinfo")).lines() {
            let Some((before, after)) = line.split_once(" - ") else {
                continue;
            };
            let (before, after): (Vec<&str>, Vec<&str>) =
                (before.split(' ').collect(), after.split(' ').collect());
            let ([_, _, _, root, at, ..], [kind, _, options, ..]) = (&before[..], &after[..])
            else {
                continue;
            };
            let within = |path: String| {
                let below = Path::new(&path).strip_prefix(root).map(Path::to_owned);
                below.ok().map(|below| Path::new(at).join(below))
            };
            match *kind {
                // Parts of the tree may be mounted elsewhere.
                "cgroup2" if found.newer.is_none() => {
                    let dir = path_in("").and_then(within);
                    found.newer = dir.map(|dir| (dir, PathBuf::from(at)));
                }
                "cgroup" => {
                    for name in options.split(',') {
                        if let Some(dir) = path_in(name).and_then(within) {
                            found.older.insert(name.to_owned(), dir);
                        }
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Where a group with this controller can be made: in version 2, where a process is in one group only, in the nearest
    /// group above this process whose children have all that are wanted.
    fn place(&self, controller: &str, wanted: &[&str]) -> Option<Place> {
        if let Some((own, top)) = &self.newer {
            let has = |dir: &&Path| {
                let enabled = text(&dir.join("cgroup.subtree_control"));
                let enabled: Vec<&str> = enabled.split_whitespace().collect();
                wanted.iter().all(|name| enabled.contains(name))
            };
            let mut above = own.ancestors().take_while(|dir| dir.starts_with(top));
            if let Some(dir) =
                above.find(|dir| has(dir) && fs::access(*dir, fs::Access::WRITE_OK).is_ok())
            {
                let dir = dir.to_owned();
                return Some(Place { dir, newer: true });
            }
        }
        let dir = self.older.get(controller)?.clone();
        Some(Place { dir, newer: false })
    }
}

/// A small file of the kernel; nothing where it cannot be read.
pub(super) fn text(path: &Path) -> String {
    let read = || -> Result<Vec<u8>, Errno> {
        let fd = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match rustix::io::read(&fd, &mut buffer)? {
                0 => return Ok(all),
                length => all.extend_from_slice(&buffer[..length]),
            }
        }
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// The number behind a word in such a file.
fn count(path: &Path, key: &str) -> u64 {
    let text = text(path);
    let mut words = text.split_whitespace();
    let found = words.by_ref().find(|word| *word == key);
    let number = found
        .and_then(|_| words.next())
        .and_then(|word| word.parse().ok());
    number.unwrap_or_default()
}

fn put(path: &Path, value: &str) -> Result<(), Errno> {
    let fd = fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&fd, value.as_bytes()).map(drop)
}
