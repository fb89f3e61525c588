//! Who is inside a plan: one lock that says that somebody is, and one of which every command has a
//! share.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Manager;
use crate::error::{Error, Result};
use crate::event::Observer;
use crate::fs::private::Lock;
use crate::fs::process::Owner;
use crate::run::{Build, Look, Paused, pause};
use crate::store::Plan;

/// How long one waits before looking again.
const PAUSE: Duration = Duration::from_millis(2);

/// How often in a row other commands are seen before they are taken for real.
const SIGHTINGS: u32 = 3;

/// Whether somebody is inside a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Live {
    /// Nobody.
    Nobody,
    /// Somebody who is on the way in, or out.
    Passing,
    /// Somebody whose process 1 this is.
    Inside(Owner),
}

/// What is written on the lock of an inside, for those who come later.
#[derive(Serialize, Deserialize)]
struct Note {
    inside: Owner,
    look: Look,
}

/// What a command needs to go in: its share, and either the inside or the right to build it.
pub(super) struct Entry {
    share: Lock,
    /// The lock on the inside, and another hold on the lock of shares for the warden.
    build: Option<(Lock, Lock)>,
    /// The inside that is there, and how it looks.
    pub(super) there: Option<(Owner, Look)>,
}

impl Entry {
    pub(super) fn share(&self) -> i32 {
        self.share.as_fd().as_raw_fd()
    }

    pub(super) fn build(&self) -> Option<Build> {
        self.build.as_ref().map(|(live, last)| Build {
            live: live.as_fd().as_raw_fd(),
            last: last.as_fd().as_raw_fd(),
        })
    }

    pub(super) fn held(&self) -> Vec<BorrowedFd<'_>> {
        let build = self.build.iter();
        let build = build.flat_map(|(live, last)| [live.as_fd(), last.as_fd()]);
        build.chain([self.share.as_fd()]).collect()
    }

    /// Notes where the inside is, for those who come later.
    pub(super) fn note(&self, inside: Owner, look: &Look) -> Result<()> {
        let note = Note {
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

fn live_name(plan: &Plan) -> Vec<u8> {
    format!("{}.live", plan.id).into_bytes()
}

fn share_name(plan: &Plan) -> Vec<u8> {
    format!("{}.inside", plan.id).into_bytes()
}

impl Manager {
    /// Whether somebody is inside a plan now.
    pub fn live(&self, plan: &Plan) -> Result<Live> {
        let name = live_name(plan);
        if self.locks.stat(&name)?.is_none() {
            return Ok(Live::Nobody);
        }
        match Lock::take(&self.locks, &name, true, Duration::ZERO)? {
            Some(_) => Ok(Live::Nobody),
            None => Ok(match self.noted(plan)? {
                Some((inside, _)) => Live::Inside(inside),
                None => Live::Passing,
            }),
        }
    }

    /// What the lock says, if it is true.
    fn noted(&self, plan: &Plan) -> Result<Option<(Owner, Look)>> {
        let text = match Lock::noted(&self.locks, &live_name(plan)) {
            Err(error) if error.is_absent() => return Ok(None),
            text => text?,
        };
        // One that is empty, or half written, says nothing yet.
        let note: Option<Note> = serde_json::from_str(&text).ok();
        match note {
            Some(note) if note.inside.is_alive()? => Ok(Some((note.inside, note.look))),
            _ => Ok(None),
        }
    }

    /// The inside once whoever passes has passed; `None` where nobody is there.
    pub(super) fn inside(&self, plan: &Plan) -> Result<Option<Owner>> {
        let start = Instant::now();
        loop {
            match self.live(plan)? {
                Live::Nobody => return Ok(None),
                Live::Inside(inside) => return Ok(Some(inside)),
                Live::Passing if start.elapsed() >= self.options.patience => {
                    return Err(self.live_error(plan));
                }
                Live::Passing => std::thread::sleep(PAUSE),
            }
        }
    }

    pub(super) fn live_error(&self, plan: &Plan) -> Error {
        Error::Live {
            plan: plan.name.clone(),
        }
    }

    /// Refuses while a command is inside.
    pub(super) fn check_quiet(&self, plan: &Plan) -> Result<()> {
        match self.live(plan)? {
            Live::Nobody => Ok(()),
            Live::Passing | Live::Inside(_) => Err(self.live_error(plan)),
        }
    }

    /// Lets every command inside stand still for as long as what is returned lives; `None` where nobody
    /// is inside. The caller holds the plan alone, so nobody can come in meanwhile.
    pub(super) fn pause(&self, plan: &Plan) -> Result<Option<Paused>> {
        let inside = self.inside(plan)?;
        Ok(inside.map(|inside| pause(&inside)).transpose()?)
    }

    /// Waits until no command is inside any more.
    pub fn wait_quiet(&self, plan: &Plan, observer: &dyn Observer) -> Result<()> {
        while self.live(plan)? != Live::Nobody {
            if observer.is_cancelled() {
                return Err(Error::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Takes a share in the inside of a plan. Whoever finds none may build it.
    pub(super) fn go_in(&self, plan: &Plan) -> Result<Entry> {
        let start = Instant::now();
        let (live, shares) = (live_name(plan), share_name(plan));
        loop {
            // Refused while the warden ends an inside whose last command is gone.
            if let Some(share) = Lock::take(&self.locks, &shares, true, Duration::ZERO)? {
                if let Some(live) = Lock::take(&self.locks, &live, false, Duration::ZERO)? {
                    live.note("")?;
                    let last = Lock::untaken(&self.locks, &shares)?;
                    return Ok(Entry {
                        share,
                        build: Some((live, last)),
                        there: None,
                    });
                }
                if let Some(there) = self.noted(plan)? {
                    return Ok(Entry {
                        share,
                        build: None,
                        there: Some(there),
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
    pub(super) fn come_out(&self, plan: &Plan, entry: Entry) -> Result<bool> {
        drop(entry);
        let shares = share_name(plan);
        let take = |shared| Lock::take(&self.locks, &shares, shared, Duration::ZERO);
        let start = Instant::now();
        let mut seen = 0;
        while self.live(plan)? != Live::Nobody && start.elapsed() < self.options.patience {
            // The warden, and no other process, holds all of it. Refused all of it and then given a share, this has
            // seen other commands; or the warden, which ended just in between and is gone the next time.
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

    /// Removes the locks of a plan in which nobody is.
    pub(super) fn forget_live(&self, plan: &Plan) -> Result<()> {
        for name in [live_name(plan), share_name(plan)] {
            if let Some(lock) = Lock::take(&self.locks, &name, false, Duration::ZERO)? {
                lock.remove(&self.locks, &name)?;
            }
        }
        Ok(())
    }
}
