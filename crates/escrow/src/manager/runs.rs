//! A command inside the sandboxes of a plan.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Manager, SandboxView};
use crate::error::{Error, Result};
use crate::event::Observer;
use crate::fs::private::{self, Lock};
use crate::fs::{Cause, Dir, Handle, remove};
use crate::model::DiffView;
use crate::model::text::Location;
use crate::model::view::{Layers, View};
use crate::run::{Ended, Spec, supervise};
use crate::store::{Plan, Resource};
use crate::strategy::overlay;

/// What is to be run, and how.
pub struct RunRequest<'a> {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Its whole environment, but for what the engine adds.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it begins.
    pub directory: &'a Path,
    /// The home directory, which gets a layer that is thrown away; `None` leaves it read-only.
    pub scratch: Option<&'a Path>,
    /// Paths that can be written for real.
    pub writable: Vec<PathBuf>,
    /// Whether the network can be reached.
    pub network: bool,
    /// Whether the command gets the terminal.
    pub terminal: bool,
    /// The program that calls [`crate::run::enter`] with the two words it is given.
    pub door: &'a mut Command,
    /// Signals to pass on, readable when they come.
    pub signals: &'a [(i32, OwnedFd)],
    /// Answers whoever inside asks through the socket.
    pub serve: Box<dyn Fn(UnixStream) + Send>,
}

/// Where those inside find the supervisor.
const SOCKET: &str = "/run/escrow.sock";

impl Manager {
    fn live_name(plan: &Plan) -> Vec<u8> {
        format!("{}.live", plan.id).into_bytes()
    }

    /// The number of the process that is inside a plan now, as its process 1.
    pub fn live(&self, plan: &Plan) -> Result<Option<u32>> {
        let name = Self::live_name(plan);
        if self.locks.stat(&name)?.is_none() {
            return Ok(None);
        }
        match Lock::take(&self.locks, &name, true, Duration::ZERO)? {
            Some(_) => Ok(None),
            None => Ok(Lock::noted(&self.locks, &name)?.trim().parse().ok()),
        }
    }

    /// Refuses while a command is inside.
    pub(super) fn check_quiet(&self, plan: &Plan) -> Result<()> {
        match self.live(plan)? {
            Some(pid) => Err(Error::Live {
                plan: plan.name.clone(),
                pid,
            }),
            None => Ok(()),
        }
    }

    /// Waits until no command is inside any more.
    pub fn wait_quiet(&self, plan: &Plan, observer: &dyn Observer) -> Result<()> {
        while self.live(plan)?.is_some() {
            if observer.is_cancelled() {
                return Err(Error::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Runs a command inside the sandboxes of a plan; a second one joins the first.
    pub fn run(&self, plan: &Plan, request: RunRequest<'_>) -> Result<Ended> {
        let lock = self.lock(plan, false)?;
        let views = self.live_sandboxes(plan)?;
        for view in &views {
            super::work::check_readable(plan, view)?;
        }
        let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
        self.check_neighbours(plan, &resources)?;
        let name = Self::live_name(plan);
        let inside = Lock::take(&self.locks, &name, false, Duration::ZERO)?;
        let join = match &inside {
            Some(_) => None,
            None => self.live(plan)?,
        };
        for view in &views {
            self.activate(view)?;
        }
        let spec = self.spec(plan, &views, &request, join)?;
        let words: Vec<String> = request
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        self.record("run", Some(plan.id), &words.join(" "), || {
            // While the command runs others may look, and write through its namespace.
            drop(lock);
            let mut noted = Ok(());
            let mut serve = Some(request.serve);
            let mut started = |pid: u32| {
                if let Some(inside) = &inside {
                    noted = inside.note(&pid.to_string());
                }
                if let Some(serve) = serve.take() {
                    listen(pid, serve);
                }
            };
            let ended = supervise(request.door, &spec, request.signals, &mut started)?;
            noted?;
            Ok(ended)
        })
    }

    fn spec(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        request: &RunRequest<'_>,
        join: Option<u32>,
    ) -> Result<Spec> {
        let mut shown = Vec::new();
        for view in views {
            let strategy = self.registry().get(&view.sandbox.reference.strategy)?;
            let seen = strategy.view(&view.sandbox.reference)?;
            shown.push((view.resource.at.clone(), seen));
        }
        // Parents before children, so that a child is mounted in its parent.
        shown.sort_by_key(|(at, _)| at.as_path().components().count());
        let mut hidden = vec![Location::from(self.home())];
        for view in views {
            let area = view.sandbox.area.as_path();
            let parent = area.parent().map(Path::to_owned);
            if !area.starts_with(self.home()) && parent.is_some() {
                hidden.push(view.sandbox.area.clone());
            }
        }
        let mut environment: Vec<(Location, Location)> = request
            .environment
            .iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect();
        environment.push((
            Location::from_bytes(b"ESCROW_PLAN"),
            Location::from_bytes(plan.name.as_bytes()),
        ));
        environment.push((
            Location::from_bytes(b"ESCROW_SOCKET"),
            Location::from_bytes(SOCKET.as_bytes()),
        ));
        let scratch = match (request.scratch, join) {
            (Some(home), None) => Some(self.scratch_layers(plan, home)?),
            _ => None,
        };
        let mut writable = Vec::new();
        for path in &request.writable {
            writable.push(Location::from(private::canonical_any(path)?));
        }
        Ok(Spec {
            views: shown,
            scratch,
            writable,
            hidden,
            network: request.network,
            directory: Location::from(private::canonical(request.directory)?),
            command: request.command.iter().map(text).collect(),
            environment,
            terminal: request.terminal,
            join,
        })
    }

    fn scratch_name(plan: &Plan) -> Vec<u8> {
        format!("{}.scratch", plan.id).into_bytes()
    }

    /// The layer over the home directory: what tools write there stays with the plan, and goes
    /// with it.
    fn scratch_layers(&self, plan: &Plan, home: &Path) -> Result<Layers> {
        let area = private::room(&self.areas, &Self::scratch_name(plan))?;
        let upper = private::room(&area, b"upper")?;
        let lower = Dir::open(&private::canonical(home)?)?;
        Handle::of(&upper)
            .set_mode((lower.meta()?.mode | 0o700) & !0o022)
            .map_err(|errno| upper.error("set the mode of", b"", Cause::Os(errno)))?;
        // What the kernel left from an earlier command would be refused.
        remove::remove(&area, b"work")?;
        private::room(&area, b"work")?;
        let below = |name: &str| Location::from(area.path().join(name));
        Ok(Layers {
            lower: Location::from(lower.path()),
            upper: below("upper"),
            work: below("work"),
        })
    }

    /// Removes what was written beside the sandboxes.
    pub(super) fn drop_scratch(&self, plan: &Plan) -> Result<()> {
        Ok(remove::remove(&self.areas, &Self::scratch_name(plan))?)
    }

    /// Removes the lock of commands that are inside; none is.
    pub(super) fn forget_live(&self, plan: &Plan) -> Result<()> {
        let name = Self::live_name(plan);
        match Lock::take(&self.locks, &name, false, Duration::ZERO)? {
            Some(lock) => Ok(lock.remove(&self.locks, &name)?),
            None => Ok(()),
        }
    }

    /// What commands wrote beside the sandboxes, into the home directory.
    pub fn scratch_diff(&self, plan: &Plan, home: &Path) -> Result<DiffView> {
        let upper = self
            .areas
            .path()
            .join(OsStr::from_bytes(&Self::scratch_name(plan)));
        let upper = upper.join("upper");
        match Dir::open(&upper) {
            Err(error) if error.is_absent() => Ok(DiffView::default()),
            upper => Ok(overlay::compare(
                &upper?,
                &Dir::open(&private::canonical(home)?)?,
            )?),
        }
    }

    /// The sandbox as it is seen inside, while a command is there. What stands at its path must be
    /// the sandbox: whoever is inside may have put something else there.
    pub(super) fn through(&self, plan: &Plan, view: &SandboxView) -> Result<Option<Dir>> {
        let Some(pid) = self.live(plan)? else {
            return Ok(None);
        };
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let at = &view.resource.at;
        let seen = Dir::open_in(&root, at.as_path())?;
        let strategy = self.registry().get(&view.sandbox.reference.strategy)?;
        let right = match strategy.view(&view.sandbox.reference)? {
            View::Layers(_) => seen.is_overlay()?,
            View::Directory(from) => {
                let (seen, from) = (seen.meta()?, Dir::open(from.as_path())?.meta()?);
                (seen.dev, seen.ino) == (from.dev, from.ino)
            }
        };
        match right {
            true => Ok(Some(seen)),
            false => Err(Error::Forbidden {
                at: at.clone(),
                why: "the command inside put something else in its place",
            }),
        }
    }
}

/// Opens the door for questions from inside: a socket in a directory that only they and we see.
/// Where it cannot be had, questions go unanswered.
fn listen(pid: u32, serve: Box<dyn Fn(UnixStream) + Send>) {
    let path = format!("/proc/{pid}/root{SOCKET}");
    let Ok(listener) = UnixListener::bind(path) else {
        return;
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            serve(stream);
        }
    });
}

fn text(word: &OsString) -> Location {
    Location::from_bytes(word.as_bytes())
}
