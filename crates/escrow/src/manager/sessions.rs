//! Sessions: which commands are inside a plan. One lock says that any is, and each command holds a share of
//! another.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::Manager;
use crate::error::{Error, Result};
use crate::event::Observer;
use crate::fs::process::{self, ProcessIdentity};
use crate::fs::state_dir::Lock;
use crate::model::Action;
use crate::run::{BuildLocks, NamespaceOptions, PausedProcesses, at_io, pause};
use crate::store::Plan;

/// How long one waits before looking again.
const PAUSE: Duration = Duration::from_micros(500);

/// How often in a row other commands are seen before they are taken for real.
const SIGHTINGS: u32 = 3;

/// Whether any command is inside a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionState {
    /// No process.
    Idle,
    /// A command is on its way in, or out.
    Passing,
    /// Commands are inside; this is their process 1.
    Inside(ProcessIdentity),
}

/// What is written on the lock of a namespace, for those who come later.
#[derive(Serialize, Deserialize)]
struct SessionNote {
    inside: ProcessIdentity,
    look: NamespaceOptions,
}

/// What a command needs to go in: its share, and either the namespace or the right to build it.
pub(super) struct NamespaceEntry {
    share: Lock,
    /// The lock on the namespace, and another hold on the lock of shares for the reaper.
    build: Option<(Lock, Lock)>,
    /// The namespace that is there, and how it looks.
    pub(super) there: Option<(ProcessIdentity, NamespaceOptions)>,
    /// Locks of what only this namespace may use.
    others: Vec<Lock>,
}

impl NamespaceEntry {
    pub(super) fn share(&self) -> i32 {
        self.share.as_fd().as_raw_fd()
    }

    pub(super) fn build(&self) -> Option<BuildLocks> {
        self.build.as_ref().map(|(live, last)| BuildLocks {
            live: live.as_fd().as_raw_fd(),
            last: last.as_fd().as_raw_fd(),
        })
    }

    /// Holds a lock for as long as the namespace that is built; returns its descriptor.
    pub(super) fn hold(&mut self, lock: Lock) -> i32 {
        let number = lock.as_fd().as_raw_fd();
        self.others.push(lock);
        number
    }

    pub(super) fn held(&self) -> Vec<BorrowedFd<'_>> {
        let build = self.build.iter();
        let build = build.flat_map(|(live, last)| [live.as_fd(), last.as_fd()]);
        let others = self.others.iter().map(Lock::as_fd);
        build.chain([self.share.as_fd()]).chain(others).collect()
    }

    /// Notes where the namespace is, for those who come later.
    pub(super) fn note(&self, inside: ProcessIdentity, look: &NamespaceOptions) -> Result<()> {
        let note = SessionNote {
            inside,
            look: look.clone(),
        };
        let text = serde_json::to_string(&note).expect("numbers and paths are JSON");
        match &self.build {
            Some((live, _)) => Ok(live.note(&text)?),
            None => Ok(()),
        }
    }
}

/// Sends a signal to a process, if it still is the one that is `meant`; one that is gone needs none.
fn signal(pid: u32, signal: Signal, meant: impl FnOnce() -> Result<bool>) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(opened) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return Ok(());
    };
    match opened {
        Ok(process) if meant()? => match pidfd_send_signal(&process, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(at_io("end the command inside")(errno.into()).into()),
        },
        Ok(_) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(at_io("end the command inside")(errno.into()).into()),
    }
}

/// The namespace of which a process is process 1, while it lives. Another process may have its number since it was noted, so that is
/// asked after the namespace was read; and it is never our own.
fn namespace_of(inside: &ProcessIdentity) -> Result<Option<(u64, u64)>> {
    let found = process::pid_namespace(inside.pid);
    let own = process::pid_namespace(std::process::id());
    let alive = inside.is_alive()?;
    Ok(found.filter(|_| alive && found != own))
}

fn live_name(plan: &Plan) -> Vec<u8> {
    format!("{}.live", plan.id).into_bytes()
}

fn share_name(plan: &Plan) -> Vec<u8> {
    format!("{}.inside", plan.id).into_bytes()
}

impl Manager {
    /// Whether any command is inside a plan now.
    pub fn live(&self, plan: &Plan) -> Result<SessionState> {
        let name = live_name(plan);
        if self.locks.stat(&name)?.is_none() {
            return Ok(SessionState::Idle);
        }
        match Lock::take(&self.locks, &name, true, Duration::ZERO)? {
            Some(_) => Ok(SessionState::Idle),
            None => Ok(match self.noted(plan)? {
                Some((inside, _)) => SessionState::Inside(inside),
                None => SessionState::Passing,
            }),
        }
    }

    /// What the lock says, if it is true.
    pub(super) fn noted(&self, plan: &Plan) -> Result<Option<(ProcessIdentity, NamespaceOptions)>> {
        let text = match Lock::noted(&self.locks, &live_name(plan)) {
            Err(error) if error.is_absent() => return Ok(None),
            text => text?,
        };
        // One that is empty, or half written, says nothing yet.
        let note: Option<SessionNote> = serde_json::from_str(&text).ok();
        match note {
            Some(note) if note.inside.is_alive()? => Ok(Some((note.inside, note.look))),
            _ => Ok(None),
        }
    }

    /// The namespace once processes that enter or leave have done so; `None` where no command is there.
    pub(super) fn inside(&self, plan: &Plan) -> Result<Option<ProcessIdentity>> {
        let start = Instant::now();
        loop {
            match self.live(plan)? {
                SessionState::Idle => return Ok(None),
                SessionState::Inside(inside) => return Ok(Some(inside)),
                SessionState::Passing if start.elapsed() >= self.options.patience => {
                    return Err(self.live_error(plan));
                }
                SessionState::Passing => std::thread::sleep(PAUSE),
            }
        }
    }

    /// The same with a share in it: it does not end before that is given back.
    pub(super) fn share_namespace(&self, plan: &Plan) -> Result<Option<(ProcessIdentity, Lock)>> {
        let start = Instant::now();
        while let Some(inside) = self.inside(plan)? {
            // Refused while the reaper ends a namespace whose last command is gone; it may have ended just before.
            let share = Lock::take(&self.locks, &share_name(plan), true, Duration::ZERO)?;
            if let Some(share) = share
                && self.live(plan)? == SessionState::Inside(inside.clone())
            {
                return Ok(Some((inside, share)));
            }
            if start.elapsed() >= self.options.patience {
                return Err(self.live_error(plan));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(None)
    }

    pub(super) fn live_error(&self, plan: &Plan) -> Error {
        Error::Live {
            plan: plan.name.clone(),
        }
    }

    /// Refuses while a command is inside. A namespace that no command has a share in any more is about to end, and waited for.
    pub(super) fn check_quiet(&self, plan: &Plan) -> Result<()> {
        let shares = share_name(plan);
        let take = |shared| Lock::take(&self.locks, &shares, shared, Duration::ZERO);
        let start = Instant::now();
        while self.live(plan)? != SessionState::Idle {
            // Only the reaper refuses a share; only commands, and what is done through their namespace, refuse all of it.
            let ends = take(false)?.is_some() || take(true)?.is_none();
            if !ends || start.elapsed() >= self.options.patience {
                return Err(self.live_error(plan));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Pauses every command inside for as long as what is returned lives; `None` where no command is inside.
    /// The caller holds the plan alone, so no process can come in meanwhile.
    pub(super) fn pause(&self, plan: &Plan) -> Result<Option<PausedProcesses>> {
        let inside = self.inside(plan)?;
        Ok(inside.map(|inside| pause(&inside)).transpose()?)
    }

    /// Ends every command inside a plan: each process is asked to end, and what is left after `grace` is killed. `false` where
    /// no command was inside.
    pub fn stop(&self, plan: &Plan, grace: Duration, observer: &dyn Observer) -> Result<bool> {
        self.permit_plan(Action::Run, plan)?;
        let Some(inside) = self.inside(plan)? else {
            return Ok(false);
        };
        self.record("stop", Some(plan.id), &plan.name, || {
            let asked = namespace_of(&inside)?;
            for pid in process::parents()?.into_keys() {
                if pid != inside.pid && asked.is_some() && process::pid_namespace(pid) == asked {
                    signal(pid, Signal::TERM, || {
                        Ok(namespace_of(&inside)? == asked && process::pid_namespace(pid) == asked)
                    })?;
                }
            }
            let start = Instant::now();
            while start.elapsed() < grace && self.live(plan)? != SessionState::Idle {
                if observer.is_cancelled() {
                    return Err(Error::Cancelled);
                }
                std::thread::sleep(PAUSE);
            }
            // With process 1 all others go.
            signal(inside.pid, Signal::KILL, || Ok(inside.is_alive()?))?;
            self.wait_quiet(plan, observer)?;
            Ok(true)
        })
    }

    /// Waits until no command is inside any more.
    pub fn wait_quiet(&self, plan: &Plan, observer: &dyn Observer) -> Result<()> {
        while self.live(plan)? != SessionState::Idle {
            if observer.is_cancelled() {
                return Err(Error::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Takes a share in the namespace of a plan. A process that finds none may build it.
    pub(super) fn enter_namespace(&self, plan: &Plan) -> Result<NamespaceEntry> {
        let start = Instant::now();
        let (live, shares) = (live_name(plan), share_name(plan));
        loop {
            // Refused while the reaper ends a namespace whose last command is gone.
            if let Some(share) = Lock::take(&self.locks, &shares, true, Duration::ZERO)? {
                if let Some(live) = Lock::take(&self.locks, &live, false, Duration::ZERO)? {
                    live.note("")?;
                    let last = Lock::untaken(&self.locks, &shares)?;
                    return Ok(NamespaceEntry {
                        share,
                        build: Some((live, last)),
                        there: None,
                        others: Vec::new(),
                    });
                }
                if let Some(there) = self.noted(plan)? {
                    return Ok(NamespaceEntry {
                        share,
                        build: None,
                        there: Some(there),
                        others: Vec::new(),
                    });
                }
            }
            if start.elapsed() >= self.options.patience {
                return Err(self.live_error(plan));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Gives a share back. When it was the last one, waits until nothing is left inside, and says so.
    pub(super) fn leave_namespace(&self, plan: &Plan, entry: NamespaceEntry) -> Result<bool> {
        drop(entry);
        let shares = share_name(plan);
        let take = |shared| Lock::take(&self.locks, &shares, shared, Duration::ZERO);
        let start = Instant::now();
        let mut seen = 0;
        while self.live(plan)? != SessionState::Idle && start.elapsed() < self.options.patience {
            // The reaper, and no other process, holds all of it. Refused all of it and then given a share, this has
            // seen other commands; or the reaper, which ended just in between and is gone the next time.
            match take(false)?.is_none() && take(true)?.is_some() {
                true => seen += 1,
                false => seen = 0,
            }
            if seen == SIGHTINGS {
                return Ok(false);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(true)
    }

    /// Removes the locks of a plan in which no process is.
    pub(super) fn forget_live(&self, plan: &Plan) -> Result<()> {
        for name in [live_name(plan), share_name(plan)] {
            if let Some(lock) = Lock::take(&self.locks, &name, false, Duration::ZERO)? {
                lock.remove(&self.locks, &name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "the test starts a process of its own"
)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A number that another process has by now leads to no namespace, nor does ours.
    #[test]
    fn only_a_living_process_1_leads_to_its_namespace() {
        let mut script = Command::new("unshare");
        script.args(["--pid", "--fork", "sh", "-c", "echo; read line"]);
        let pipe = std::process::Stdio::piped;
        let mut outer = script
            .stdin(pipe())
            .stdout(pipe())
            .spawn()
            .expect("it is root");
        let mut said = [0];
        let out = outer.stdout.as_mut().expect("it is piped");
        std::io::Read::read_exact(out, &mut said).expect("it began");
        let all = process::parents().expect("they can be listed");
        let inner = all.iter().find(|(_, parent)| **parent == outer.id());
        let inner = *inner.expect("it is there").0;
        let living = ProcessIdentity::of(inner).expect("it can be read");
        let living = living.expect("it lives");
        let earlier = ProcessIdentity {
            start: living.start - 1,
            ..living.clone()
        };
        assert!(namespace_of(&living).expect("it can be read").is_some());
        assert_eq!(namespace_of(&earlier).expect("it can be read"), None);
        let me = ProcessIdentity::me().expect("it can be read");
        assert_eq!(namespace_of(&me).expect("it can be read"), None);
        drop(outer.stdin.take());
        outer.wait().expect("it ends");
    }
}
