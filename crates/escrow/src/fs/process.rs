//! Which process is meant, also when its number was given to another one since.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::beneath::Dir;
use super::{Cause, Result};

/// A process: its number, when it was started (in ticks since boot), and in which boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The process number.
    pub pid: u32,
    /// The start time, in clock ticks since the machine came up.
    pub start: u64,
    /// The boot it belongs to.
    pub boot: String,
}

impl Owner {
    /// This process.
    pub fn me() -> Result<Self> {
        let pid = std::process::id();
        let proc = Dir::open(Path::new("/proc"))?;
        let start = start_of(pid)?.ok_or_else(|| {
            proc.error("read", b"self/stat", Cause::Damaged("it has no start time"))
        })?;
        Ok(Self {
            pid,
            start,
            boot: boot()?,
        })
    }

    /// Whether it still runs. A reused number is another process: its start time differs.
    pub fn is_alive(&self) -> Result<bool> {
        Ok(self.boot == boot()? && start_of(self.pid)? == Some(self.start))
    }
}

/// The name of this boot.
fn boot() -> Result<String> {
    let dir = Dir::open(Path::new("/proc/sys/kernel/random"))?;
    Ok(read(&dir, b"boot_id")?.trim().to_owned())
}

fn start_of(pid: u32) -> Result<Option<u64>> {
    let dir = match Dir::open(Path::new(&format!("/proc/{pid}"))) {
        Err(error) if error.is_absent() => return Ok(None),
        answer => answer?,
    };
    let stat = match read(&dir, b"stat") {
        // The process ended while we looked.
        Err(error) if error.is_absent() || error.is(rustix::io::Errno::SRCH) => return Ok(None),
        answer => answer?,
    };
    // The second field is the program's name in brackets and may hold anything, so count from
    // its end; the start time is field 22.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let fields: Vec<&str> = after.split_whitespace().collect();
    let state = fields.first().copied().unwrap_or("X");
    // A zombie holds nothing any more.
    if matches!(state, "Z" | "X") {
        return Ok(None);
    }
    Ok(fields.get(19).and_then(|field| field.parse().ok()))
}

fn read(dir: &Dir, name: &[u8]) -> Result<String> {
    let (mut file, _) = dir.file(name)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
        dir.error("read", name, Cause::Os(errno))
    })?;
    // A program's name need not be UTF-8; only the numbers behind it matter.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
