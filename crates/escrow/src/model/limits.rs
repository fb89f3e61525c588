//! What a command may use of the machine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits; `None` is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory of all its processes together.
    pub memory: Option<u64>,
    /// How many processes and threads.
    pub pids: Option<u64>,
    /// Thousandths of a processor.
    pub cpu: Option<u64>,
    /// Bytes that what it writes may take on disk, and each of its directories in memory.
    pub disk: Option<u64>,
    /// How long it may take.
    pub timeout: Option<Duration>,
}

impl Limits {
    /// These, and where they say nothing, the others.
    pub fn or(self, others: Self) -> Self {
        Self {
            memory: self.memory.or(others.memory),
            pids: self.pids.or(others.pids),
            cpu: self.cpu.or(others.cpu),
            disk: self.disk.or(others.disk),
            timeout: self.timeout.or(others.timeout),
        }
    }
}
