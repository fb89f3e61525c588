//! Pauses all processes inside a namespace, by ptrace, and resumes them without a trace.
//!
//! Each thread is held by the kernel's means for debuggers: neither it nor its parent gets a signal, a
//! shell inside sees no stopped job, and if the process that holds them dies, the kernel lets them go.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::supervise::{RunError, at};
use super::sys::{self, TraceEvent};
use crate::fs::process::{self, ProcessIdentity};

/// How long to wait for a process that cannot be paused.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long one waits before looking again.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The paused processes, for as long as this lives. Bound to the thread that holds them.
pub struct PausedProcesses {
    /// Each thread, and the signal it was about to get; `None` for one that waits in the kernel for
    /// another one of these.
    held: BTreeMap<u32, Option<i32>>,
    thread: PhantomData<*const ()>,
}

/// Pauses every process inside. No new one may be on its way in.
pub fn pause(inside: &ProcessIdentity) -> Result<PausedProcesses, RunError> {
    let mut paused = PausedProcesses {
        held: BTreeMap::new(),
        thread: PhantomData,
    };
    let until = Instant::now() + PATIENCE;
    loop {
        let (mut new, mut busy) = (false, None);
        for thread in threads(inside)? {
            if paused.held.contains_key(&thread) {
                continue;
            }
            match paused.hold(thread, until)? {
                HoldOutcome::Yes => new = true,
                HoldOutcome::Gone => {}
                HoldOutcome::No(errno) => busy = Some((thread, errno)),
            }
        }
        match busy {
            None if !new && paused.is_whole() => return Ok(paused),
            Some((thread, errno)) if Instant::now() >= until => {
                return Err(still_running(thread, errno));
            }
            None if Instant::now() >= until => {
                return Err(RunError::Restless {
                    who: "one new process after the other".to_owned(),
                    errno: Errno::TIMEDOUT,
                });
            }
            // A process that was started while others were held is found in another round.
            _ => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

fn still_running(thread: u32, errno: Errno) -> RunError {
    let who = match errno {
        // A process that is traced already cannot be held a second time.
        Errno::PERM => format!("process {thread}, which may be traced by another,"),
        _ => format!("process {thread}"),
    };
    RunError::Restless { who, errno }
}

enum HoldOutcome {
    Yes,
    Gone,
    No(Errno),
}

impl PausedProcesses {
    fn hold(&mut self, thread: u32, until: Instant) -> Result<HoldOutcome, RunError> {
        match sys::seize(thread) {
            Ok(()) => {}
            Err(_) if process::has_ended(thread) => return Ok(HoldOutcome::Gone),
            Err(errno) => return Ok(HoldOutcome::No(errno)),
        }
        // From here on it is released whatever happens.
        self.held.insert(thread, None);
        loop {
            match sys::look_at(thread) {
                Ok(TraceEvent::Stopped(signal)) => {
                    self.held.insert(thread, Some(signal));
                    return Ok(HoldOutcome::Yes);
                }
                Ok(TraceEvent::Gone) | Err(Errno::CHILD) => {
                    self.held.remove(&thread);
                    return Ok(HoldOutcome::Gone);
                }
                // It may wait for a child, which comes later in the round.
                Ok(TraceEvent::Runs) if makes_process(thread) => return Ok(HoldOutcome::Yes),
                Ok(TraceEvent::Runs) if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
                Ok(TraceEvent::Runs) => return Err(still_running(thread, Errno::TIMEDOUT)),
                Err(errno) => return Err(still_running(thread, errno)),
            }
        }
    }

    /// Whether those who are held are still the same: a thread that becomes another program takes the
    /// number of the first one of its process, and no process holds it. It is forgotten here.
    fn is_whole(&mut self) -> bool {
        let before = self.held.len();
        // Not the process but the thread holds them.
        let me = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs();
        let held = |thread: &u32| process::tracer_of(*thread) == Some(me);
        self.held
            .retain(|thread, _| held(thread) || process::has_ended(*thread));
        let mut whole = self.held.len() == before;
        let waiting = self.held.iter().filter(|(_, signal)| signal.is_none());
        let waiting: Vec<u32> = waiting.map(|(thread, _)| *thread).collect();
        for thread in waiting {
            match sys::look_at(thread) {
                Ok(TraceEvent::Stopped(signal)) => drop(self.held.insert(thread, Some(signal))),
                // In the kernel until a child of its own, which is paused, has become another
                // program: it stands as still as that child does.
                Ok(TraceEvent::Runs) => {
                    let held = |child: &u32| self.held.contains_key(child);
                    let children = process::children_of(thread);
                    whole &= makes_process(thread) && children.iter().any(held);
                }
                Ok(TraceEvent::Gone) | Err(_) => drop(self.held.remove(&thread)),
            }
        }
        whole
    }
}

fn makes_process(thread: u32) -> bool {
    process::call_of(thread).is_some_and(sys::makes_process)
}

impl Drop for PausedProcesses {
    fn drop(&mut self) {
        for (thread, signal) in &self.held {
            if let Some(signal) = signal {
                sys::release(*thread, *signal);
            }
        }
        // These can be released once they are paused, which they do when those they wait for go on.
        let until = Instant::now() + PATIENCE;
        let waiting = self.held.iter().filter(|(_, signal)| signal.is_none());
        for (thread, _) in waiting {
            while Instant::now() < until {
                match sys::look_at(*thread) {
                    Ok(TraceEvent::Stopped(signal)) => {
                        sys::release(*thread, signal);
                        break;
                    }
                    Ok(TraceEvent::Gone) | Err(_) => break,
                    Ok(TraceEvent::Runs) => std::thread::sleep(POLL_INTERVAL),
                }
            }
        }
    }
}

/// Every thread inside but those of process 1, which does nothing, and of the keepers.
fn threads(inside: &ProcessIdentity) -> Result<Vec<u32>, RunError> {
    let looked =
        |error: crate::fs::FsError| at(format!("list the processes inside ({error})"))(Errno::IO);
    let parents = process::parents().map_err(looked)?;
    let Some(namespace) = process::pid_namespace(inside.pid) else {
        return Ok(Vec::new());
    };
    let here = |pid: &u32| process::pid_namespace(*pid) == Some(namespace);
    let mut members: BTreeSet<u32> = parents.keys().copied().filter(here).collect();
    // Those whose parents are outside hold the others.
    let top = |pid: &u32| {
        parents
            .get(pid)
            .is_none_or(|parent| !members.contains(parent))
    };
    let keepers: BTreeSet<u32> = members.iter().copied().filter(top).collect();
    // A process that made a namespace of its own inside came from here all the same.
    loop {
        let born = |(_, parent): &(&u32, &u32)| members.contains(parent);
        let born: Vec<u32> = parents.iter().filter(born).map(|(pid, _)| *pid).collect();
        let before = members.len();
        members.extend(born);
        if members.len() == before {
            break;
        }
    }
    let mut found = Vec::new();
    for pid in members.difference(&keepers) {
        found.extend(process::threads(*pid));
    }
    Ok(found)
}
