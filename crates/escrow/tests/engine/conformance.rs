//! The conformance suite is held to its own word: a strategy that breaks one promise about parts is found, by
//! the checks that ask for it and by no others.
//!
//! Each wrong strategy is a right one with one mistake that another process could make.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use escrow::event::Observer;
use escrow::model::digest::VersionDigests;
use escrow::model::{Change, Choice, Conflict, DiffView, PlanId, ResourcePath, SandboxRef};
use escrow::strategy::conformance::{DirectoryFixture, FileFixture, Fixture, run};
use escrow::strategy::{
    Access, Capabilities, CreateRequest, Created, FinishedCommit, Intent, Outcome, PrepareRequest,
    Preview, PreviewOptions, Probe, Registry, RestoreRequest, Result, RollbackReport, Sandbox,
    Session, Snapshot, StagedCommit, Strategy, StrategyError, Target, unsupported,
};
use escrow_testkit::World;

use crate::support::at;

/// What a strategy does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// Nothing.
    Nothing,
    /// It cannot make up its mind whether it releases parts.
    Wavers,
    /// It says that it releases parts, and refuses.
    ClaimsParts,
    /// A part is everything.
    ReleasesAll,
    /// Of a part the last path is left out.
    ReleasesLess,
    /// The mode of what is beside a part changes with it.
    ReachesFurther,
    /// What was released stays a change.
    NeverAdvances,
    /// What is left is forgotten with what was released.
    AdvancesTooFar,
    /// A second finish is an error.
    FinishesOnce,
    /// What was released is taken for another process's.
    FearsItself,
    /// Once something was released, nothing contradicts any more.
    TrustsEverybody,
    /// What was released stays in the original when it is taken back.
    UndoesNothing,
    /// What was released lies in the original under another name when it is taken back.
    UndoLeavesATrace,
    /// To drop a part discards what was to be released.
    DropDiscards,
    /// What was applied of a part that is given up stays.
    GivesUpInTheMiddle,
    /// A rollback takes the sandbox behind what was released.
    RollsBackTooFar,
    /// A rollback takes back what was released.
    RollbackIsAnUndo,
    /// What is staged is not said to be what it is.
    StagesUnseen,
}

const RELEASED: &str =
    "a part is all that is released, and the rest all that stays, or it says it cannot";
const FOLLOWED: &str = "a part is no conflict for what follows, and both are the whole";
const WORKED_ON: &str = "later changes of a released path are compared with the release";
const TAKEN_BACK: &str = "a part that is undone leaves no trace, and is the sandbox's again";
const GIVEN_UP: &str = "a part that is aborted, at whichever step, changes nothing";
const DISCARDED: &str = "after a part a rollback discards the rest and nothing else";
/// Every promise for which something is staged as a whole.
const STAGED: [&str; 4] = [
    "a commit releases what was written, as often as it is repeated",
    "a sandbox that stays after its commit shares nothing with the original",
    "an undo brings the original back, again and again, or says it cannot",
    "what is prepared has not touched the original, and can be dropped",
];
const STEADY: &str = "its name and its promises do not change";

const PARTS: [&str; 6] = [
    RELEASED, FOLLOWED, WORKED_ON, TAKEN_BACK, GIVEN_UP, DISCARDED,
];

/// Every mistake, and the promises that it breaks at least.
const LIES: &[(Lie, &[&str])] = &[
    (Lie::Wavers, &[STEADY]),
    (Lie::StagesUnseen, &STAGED),
    (Lie::ClaimsParts, &[RELEASED, FOLLOWED, WORKED_ON]),
    (Lie::ReleasesAll, &[RELEASED]),
    (Lie::ReleasesLess, &[RELEASED]),
    (Lie::ReachesFurther, &[RELEASED, GIVEN_UP]),
    (Lie::AdvancesTooFar, &[RELEASED]),
    (Lie::NeverAdvances, &[FOLLOWED, WORKED_ON]),
    (Lie::FinishesOnce, &[RELEASED]),
    (Lie::FearsItself, &[FOLLOWED]),
    (Lie::TrustsEverybody, &[WORKED_ON]),
    (Lie::UndoesNothing, &[TAKEN_BACK]),
    (Lie::UndoLeavesATrace, &[TAKEN_BACK]),
    (Lie::DropDiscards, &[GIVEN_UP]),
    (Lie::GivesUpInTheMiddle, &[GIVEN_UP]),
    (Lie::RollsBackTooFar, &[DISCARDED]),
    (Lie::RollbackIsAnUndo, &[DISCARDED]),
];

/// Those of a file, which has one change only: each promise once.
const LIES_OF_FILES: &[(Lie, &[&str])] = &[
    (Lie::ReleasesLess, &[RELEASED]),
    (Lie::NeverAdvances, &[FOLLOWED]),
    (Lie::TrustsEverybody, &[WORKED_ON]),
    (Lie::UndoesNothing, &[TAKEN_BACK]),
    (Lie::DropDiscards, &[GIVEN_UP]),
    (Lie::RollsBackTooFar, &[DISCARDED]),
];

/// What a wrong strategy remembers of a commit of a part.
struct Part {
    sandbox: SandboxRef,
    intent: Intent,
    paths: Vec<ResourcePath>,
    committed: bool,
    finished: usize,
    undone: bool,
}

/// A strategy with a mistake; shared with its sessions.
struct Core {
    inner: Arc<dyn Strategy>,
    lie: Lie,
    asked: AtomicUsize,
    parts: Mutex<BTreeMap<String, Part>>,
    /// By plan.
    originals: Mutex<BTreeMap<PlanId, PathBuf>>,
}

struct Wrong(Arc<Core>);

struct WrongSession {
    core: Arc<Core>,
    sandbox: SandboxRef,
    inner: Box<dyn Sandbox>,
}

/// Where a commit keeps what it replaced: what distinguishes it from others.
fn name_of(intent: &Intent) -> String {
    intent.0["area"].to_string()
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A check that panicked may have held it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// Does something with a commit, if it is one of a part.
    fn of<T>(&self, intent: &Intent, work: impl FnOnce(&mut Part) -> T) -> Option<T> {
        held(&self.parts).get_mut(&name_of(intent)).map(work)
    }

    fn original(&self, sandbox: &SandboxRef) -> PathBuf {
        held(&self.originals)[&sandbox.plan_id].clone()
    }
}

/// The same without some of its changes.
fn reduced(preview: &Preview, keep: impl Fn(usize) -> bool) -> Preview {
    let some = |number: &usize| keep(*number);
    let numbers = (0..preview.diff.changes.len()).filter(some);
    let changes = numbers.map(|at| preview.diff.changes[at].clone());
    Preview {
        diff: Arc::new(DiffView::new(changes.collect())),
        ..preview.clone()
    }
}

impl Strategy for Wrong {
    fn name(&self) -> &str {
        self.0.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        let mut promised = self.0.inner.capabilities();
        if self.0.lie == Lie::Wavers {
            // Only a caller that asks twice at once notices.
            promised.partial &= self.0.asked.fetch_add(1, Ordering::SeqCst) != 1;
        }
        promised
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        self.0.inner.probe(target, area)
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let original = request.target.path().expect("it is a path").to_owned();
        held(&self.0.originals).insert(request.plan_id, original);
        self.0.inner.create(request)
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        let parts = match self.0.lie {
            Lie::NeverAdvances => &[],
            _ => parts,
        };
        Ok(Box::new(WrongSession {
            core: Arc::clone(&self.0),
            sandbox: sandbox.clone(),
            inner: self.0.inner.open(sandbox, session, parts)?,
        }))
    }

    fn commit(&self, intent: &Intent, observer: &dyn Observer) -> Result<()> {
        let core = &self.0;
        let part = core.of(intent, |part| {
            part.committed = true;
            part.sandbox.clone()
        });
        core.inner.commit(intent, observer)?;
        if let Some(sandbox) = part.filter(|_| core.lie == Lie::ReachesFurther) {
            use std::os::unix::fs::PermissionsExt;
            let beside = core.original(&sandbox).join("empty");
            let mode = std::fs::Permissions::from_mode(0o751);
            std::fs::set_permissions(beside, mode).expect("it is there");
        }
        Ok(())
    }

    fn undo(&self, intent: &Intent, observer: &dyn Observer) -> Result<RollbackReport> {
        let core = &self.0;
        let part = core.of(intent, |part| {
            let over = part.finished > 0;
            part.undone |= over;
            (over, part.committed, part.sandbox.clone())
        });
        let Some((over, committed, sandbox)) = part else {
            return core.inner.undo(intent, observer);
        };
        match core.lie {
            Lie::UndoesNothing if over => Ok(RollbackReport::default()),
            Lie::GivesUpInTheMiddle if !over => Ok(RollbackReport::default()),
            Lie::DropDiscards if !committed => {
                let session = core.inner.open(&sandbox, Session::Exclusive, &[])?;
                session.rollback(observer)?;
                core.inner.undo(intent, observer)
            }
            Lie::UndoLeavesATrace if over => {
                let done = core.inner.undo(intent, observer)?;
                let trace = core.original(&sandbox).join("known.orig");
                std::fs::write(trace, "x").expect("there is room");
                Ok(done)
            }
            _ => core.inner.undo(intent, observer),
        }
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        self.0.inner.outcome(intent)
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        self.0.inner.check_undo(intent)
    }

    fn finish(&self, intent: Intent) -> Result<FinishedCommit> {
        let times = self.0.of(&intent, |part| {
            part.finished += 1;
            part.finished
        });
        match self.0.lie {
            Lie::FinishesOnce if times > Some(1) => Err(StrategyError::Damaged {
                what: "it is finished already".to_owned(),
            }),
            _ => self.0.inner.finish(intent),
        }
    }

    fn cleanup(&self, sandbox: &SandboxRef, target: &Target, area: Option<&Path>) -> Result<()> {
        self.0.inner.cleanup(sandbox, target, area)
    }
}

impl WrongSession {
    fn released(&self) -> Vec<ResourcePath> {
        let parts = held(&self.core.parts);
        let own = parts.values().filter(|part| part.sandbox == self.sandbox);
        own.filter(|part| part.finished > 0 && !part.undone)
            .flat_map(|part| part.paths.clone())
            .collect()
    }
}

impl Sandbox for WrongSession {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        self.inner.read(path)
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        self.inner.write(path, content)
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        match self.core.lie {
            Lie::AdvancesTooFar if !self.released().is_empty() => Ok(DiffView::default()),
            _ => self.inner.diff(from, to),
        }
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        self.inner.digests(changes)
    }

    fn rollback(&self, observer: &dyn Observer) -> Result<String> {
        let released = !self.released().is_empty();
        let done = self.inner.rollback(observer)?;
        match self.core.lie {
            Lie::RollsBackTooFar if released => {
                let mut bytes = Cursor::new(b"the original's own\n");
                self.inner.write(&at("known"), &mut bytes)?;
            }
            Lie::RollbackIsAnUndo if released => {
                let parts = held(&self.core.parts);
                let own = parts.values().filter(|part| part.sandbox == self.sandbox);
                for part in own {
                    self.core.inner.undo(&part.intent, observer)?;
                }
            }
            _ => {}
        }
        Ok(done)
    }

    fn checkpoint(&self, parent: Option<&Snapshot>, observer: &dyn Observer) -> Result<Snapshot> {
        self.inner.checkpoint(parent, observer)
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        self.inner.retain(keep)
    }

    fn preview(&self, options: &PreviewOptions) -> Result<Preview> {
        let mut preview = self.inner.preview(options)?;
        let released = self.released();
        match self.core.lie {
            Lie::FearsItself => preview.conflicts.extend(released.into_iter().map(|path| {
                let what = "another program changed it".to_owned();
                Conflict {
                    path,
                    what,
                    ours: None,
                    theirs: None,
                    choice: Choice::Either,
                }
            })),
            Lie::TrustsEverybody if !released.is_empty() => preview.conflicts.clear(),
            _ => {}
        }
        Ok(preview)
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let part = request.preview.part;
        let changes = request.preview.diff.changes.len();
        let preview = match self.core.lie {
            Lie::ClaimsParts if part => {
                let why = "it only said so";
                return Err(unsupported("wrong", "release only a part", why));
            }
            Lie::ReleasesAll if part => Preview {
                part: true,
                ..self.inner.preview(&PreviewOptions::default())?
            },
            Lie::ReleasesLess if part => reduced(request.preview, |at| at + 1 < changes),
            _ => request.preview.clone(),
        };
        let request = PrepareRequest {
            preview: &preview,
            ..*request
        };
        let mut staged = self.inner.prepare(&request)?;
        if self.core.lie == Lie::StagesUnseen {
            staged.digests.clear();
        }
        let intent = &staged.intent;
        if part {
            let changes = request.preview.diff.changes.iter();
            let part = Part {
                sandbox: self.sandbox.clone(),
                intent: intent.clone(),
                paths: changes.map(|change| change.path.clone()).collect(),
                committed: false,
                finished: 0,
                undone: false,
            };
            held(&self.core.parts).insert(name_of(intent), part);
        }
        Ok(staged)
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        self.inner.prepare_restore(request)
    }

    fn access(&self) -> Result<Access> {
        self.inner.access()
    }
}

/// The promises that are found broken, and how.
fn broken(strategy: &str, lie: Lie, fixture: &dyn Fixture) -> BTreeMap<&'static str, String> {
    let registry = Registry::builtin();
    let wrong = Wrong(Arc::new(Core {
        inner: Arc::clone(registry.get(strategy).expect("it is built in")),
        lie,
        asked: AtomicUsize::new(0),
        parts: Mutex::default(),
        originals: Mutex::default(),
    }));
    let checks = run(&wrong, fixture).checks.into_iter();
    checks
        .filter_map(|check| Some((check.name, check.problem?)))
        .collect()
}

/// Every lie is found by the checks it is listed with, and by none that asks for something else.
#[track_caller]
fn found(strategy: &str, lies: &[(Lie, &[&str])], fixture: &dyn Fixture) {
    let honest = broken(strategy, Lie::Nothing, fixture);
    assert!(honest.is_empty(), "{strategy}: {honest:#?}");
    for (lie, expected) in lies {
        let found = broken(strategy, *lie, fixture);
        let missed: Vec<_> = expected
            .iter()
            .filter(|one| !found.contains_key(*one))
            .collect();
        assert!(
            missed.is_empty(),
            "{strategy}: {lie:?}: {missed:?} of {found:#?}"
        );
        let about = |name: &&&str| !PARTS.contains(*name) && !expected.contains(*name);
        let strange: Vec<_> = found.keys().filter(about).collect();
        assert!(strange.is_empty(), "{strategy}: {lie:?}: {found:#?}");
        let panicked = found.values().any(|problem| problem == "it panicked");
        assert!(!panicked, "{strategy}: {lie:?}: {found:#?}");
    }
    let named: BTreeSet<&str> = lies
        .iter()
        .flat_map(|(_, expected)| *expected)
        .copied()
        .collect();
    assert!(PARTS.iter().all(|name| named.contains(name)), "{named:#?}");
}

/// In memory, where there is such a place: each lie takes many sandboxes.
fn world() -> World {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => World::under(memory),
        false => World::new(),
    }
}

// rule P1, T3
#[test]
fn whoever_breaks_a_promise_about_parts_of_a_copy_is_found() {
    let world = world();
    found(
        "filesystem_copy",
        LIES,
        &DirectoryFixture::new(world.path()),
    );
}

#[test]
fn whoever_breaks_a_promise_about_parts_of_layers_is_found() {
    let world = world();
    found("overlay", LIES, &DirectoryFixture::new(world.path()));
}

#[test]
fn whoever_breaks_a_promise_about_parts_of_a_file_is_found() {
    let world = world();
    found(
        "filesystem_copy",
        LIES_OF_FILES,
        &FileFixture::new(world.path()),
    );
}
