//! Everybody inside stands still for a while, and goes on as if nothing had been.
//!
//! Each thread is held by the kernel's means for debuggers: neither it nor its parent gets a signal, a
//! shell inside sees no stopped job, and if whoever holds them dies, the kernel lets them go.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::supervise::RunError;
use super::sys::{self, Traced};
use crate::fs::process::{self, Owner};

/// How long one waits for somebody who does not stand still.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long one waits before looking again.
const MOMENT: Duration = Duration::from_micros(200);

/// Those who stand still, for as long as this lives. Bound to the thread that holds them.
pub struct Paused {
    /// Each thread, and the signal it was about to get; `None` for one that waits in the kernel for
    /// another one of these.
    held: BTreeMap<u32, Option<i32>>,
    thread: PhantomData<*const ()>,
}

/// Lets everybody inside stand still. Nobody new may be on the way in.
pub fn pause(inside: &Owner) -> Result<Paused, RunError> {
    let mut paused = Paused {
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
                Held::Yes => new = true,
                Held::Gone => {}
                Held::No(errno) => busy = Some((thread, errno)),
            }
        }
        match busy {
            None if !new && paused.is_whole() => return Ok(paused),
            Some((thread, errno)) if Instant::now() >= until => {
                return Err(restless(thread, errno));
            }
            None if Instant::now() >= until => {
                return Err(RunError::Restless {
                    who: "one new process after the other".to_owned(),
                    errno: Errno::TIMEDOUT,
                });
            }
            Some(_) => std::thread::sleep(MOMENT),
            // Whoever was started while others were held is found in another round.
            None => std::thread::sleep(MOMENT),
        }
    }
}

fn restless(thread: u32, errno: Errno) -> RunError {
    let who = match errno {
        // Whoever is traced already cannot be held a second time.
        Errno::PERM => format!("process {thread}, which may be traced by another,"),
        _ => format!("process {thread}"),
    };
    RunError::Restless { who, errno }
}

enum Held {
    Yes,
    Gone,
    No(Errno),
}

impl Paused {
    fn hold(&mut self, thread: u32, until: Instant) -> Result<Held, RunError> {
        match sys::seize(thread) {
            Ok(()) => {}
            Err(_) if process::has_ended(thread) => return Ok(Held::Gone),
            Err(errno) => return Ok(Held::No(errno)),
        }
        // From here on it is let go of whatever happens.
        self.held.insert(thread, None);
        loop {
            match sys::look_at(thread) {
                Ok(Traced::Stopped(signal)) => {
                    self.held.insert(thread, Some(signal));
                    return Ok(Held::Yes);
                }
                Ok(Traced::Gone) | Err(Errno::CHILD) => {
                    self.held.remove(&thread);
                    return Ok(Held::Gone);
                }
                // It may wait for a child, which comes later in the round.
                Ok(Traced::Runs) if makes_process(thread) => return Ok(Held::Yes),
                Ok(Traced::Runs) if Instant::now() < until => std::thread::sleep(MOMENT),
                Ok(Traced::Runs) => return Err(restless(thread, Errno::TIMEDOUT)),
                Err(errno) => return Err(restless(thread, errno)),
            }
        }
    }
}

impl Paused {
    /// Whether those who are held are still the same: a thread that becomes another program takes the
    /// number of the first one of its process, and nobody holds it. It is forgotten here.
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
                Ok(Traced::Stopped(signal)) => drop(self.held.insert(thread, Some(signal))),
                // In the kernel until a child of its own, which stands still, has become another
                // program: it stands as still as that child does.
                Ok(Traced::Runs) => {
                    let held = |child: &u32| self.held.contains_key(child);
                    let children = process::children_of(thread);
                    whole &= makes_process(thread) && children.iter().any(held);
                }
                Ok(Traced::Gone) | Err(_) => drop(self.held.remove(&thread)),
            }
        }
        whole
    }
}

fn makes_process(thread: u32) -> bool {
    process::call_of(thread).is_some_and(sys::makes_process)
}

impl Drop for Paused {
    fn drop(&mut self) {
        for (thread, signal) in &self.held {
            if let Some(signal) = signal {
                sys::let_go(*thread, *signal);
            }
        }
        // These can be let go of once they stand still, which they do when those they wait for go on.
        let until = Instant::now() + PATIENCE;
        let waiting = self.held.iter().filter(|(_, signal)| signal.is_none());
        for (thread, _) in waiting {
            while Instant::now() < until {
                match sys::look_at(*thread) {
                    Ok(Traced::Stopped(signal)) => {
                        sys::let_go(*thread, signal);
                        break;
                    }
                    Ok(Traced::Gone) | Err(_) => break,
                    Ok(Traced::Runs) => std::thread::sleep(MOMENT),
                }
            }
        }
    }
}

/// Every thread inside but those of process 1, which does nothing, and of the keepers.
fn threads(inside: &Owner) -> Result<Vec<u32>, RunError> {
    let looked = |error: crate::fs::FsError| RunError::Step {
        step: format!("see who is inside ({error})"),
        errno: Errno::IO,
    };
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
    // Whoever made a namespace of his own inside came from here all the same.
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
