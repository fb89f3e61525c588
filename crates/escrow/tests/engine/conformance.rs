//! The conformance suite is held to its own word: a strategy that breaks one promise about parts is found, by
//! the checks that ask for it and by no others.
//!
//! Each wrong strategy is a right one with one mistake that somebody could make.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use escrow::event::{Observer, Unobserved};
use escrow::internals::fs::Moves;
use escrow::model::digest::VersionDigests;
use escrow::model::{Change, ChangeKind, Conflict, DiffView, ResourcePath, SandboxRef};
use escrow::strategy::conformance::{DirectoryFixture, FileFixture, Fixture, run};
use escrow::strategy::{
    Access, Capabilities, CreateRequest, Created, Finished, Intent, Moment, PrepareRequest,
    Preview, PreviewRequest, Probe, Registry, Result, RolledBack, StagedCommit, Strategy,
    StrategyError,
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
    /// It says that it releases none, and does not refuse to.
    DeniesParts,
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
    /// A second advance takes the first one back.
    AdvanceIsASwitch,
    /// A second finish is an error.
    FinishesOnce,
    /// What was released is taken for somebody else's.
    FearsItself,
    /// Once something was released, nothing contradicts any more.
    TrustsEverybody,
    /// What was released is one file with the sandbox's own.
    SharesFiles,
    /// What was released stays in the original when it is taken back.
    UndoesNothing,
    /// What was released lies in the original under another name when it is taken back.
    UndoLeavesATrace,
    /// What was taken back stays released for the sandbox.
    NeverRetreats,
    /// A second retreat takes the first one back.
    RetreatIsASwitch,
    /// A part counts as released once it is staged.
    AdvancesEarly,
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
const WORKED_ON: &str = "what becomes of a released path later is judged from there";
const TAKEN_BACK: &str = "a part that is undone leaves no trace, and is the sandbox's again";
const GIVEN_UP: &str = "a part that is given up, at whichever step, changes nothing";
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
    (Lie::DeniesParts, &PARTS),
    (Lie::ClaimsParts, &[RELEASED, FOLLOWED, WORKED_ON]),
    (Lie::ReleasesAll, &[RELEASED]),
    (Lie::ReleasesLess, &[RELEASED]),
    (Lie::ReachesFurther, &[RELEASED, GIVEN_UP]),
    (Lie::AdvancesTooFar, &[RELEASED]),
    (Lie::NeverAdvances, &[FOLLOWED, WORKED_ON]),
    (Lie::AdvanceIsASwitch, &[FOLLOWED, WORKED_ON]),
    (Lie::FinishesOnce, &[RELEASED]),
    (Lie::FearsItself, &[FOLLOWED]),
    (Lie::TrustsEverybody, &[WORKED_ON]),
    (Lie::SharesFiles, &[WORKED_ON]),
    (Lie::UndoesNothing, &[TAKEN_BACK]),
    (Lie::UndoLeavesATrace, &[TAKEN_BACK]),
    (Lie::NeverRetreats, &[TAKEN_BACK]),
    (Lie::RetreatIsASwitch, &[TAKEN_BACK]),
    (Lie::AdvancesEarly, &[GIVEN_UP]),
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
    (Lie::NeverRetreats, &[TAKEN_BACK]),
    (Lie::AdvancesEarly, &[GIVEN_UP]),
    (Lie::RollsBackTooFar, &[DISCARDED]),
];

/// What a wrong strategy remembers of one sandbox.
#[derive(Default)]
struct Memory {
    /// The commits of parts that were staged, and how far each came.
    parts: BTreeMap<String, Part>,
    original: PathBuf,
}

#[derive(Default)]
struct Part {
    intent: Option<Intent>,
    paths: Vec<ResourcePath>,
    advanced: usize,
    finished: usize,
    retreated: usize,
}

struct Wrong {
    inner: Arc<dyn Strategy>,
    lie: Lie,
    asked: AtomicUsize,
    /// By sandbox.
    memory: Mutex<BTreeMap<String, Memory>>,
}

/// What a commit keeps when it is finished.
fn name_of(intent: &Intent) -> String {
    intent.0["area"].to_string()
}

fn known() -> ResourcePath {
    at("known")
}

impl Wrong {
    fn memory(&self) -> MutexGuard<'_, BTreeMap<String, Memory>> {
        // A check that panicked may have held it.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, sandbox: &SandboxRef, work: impl FnOnce(&mut Memory) -> T) -> T {
        work(
            self.memory()
                .entry(sandbox.plan_id.to_string())
                .or_default(),
        )
    }

    fn of<T>(&self, sandbox: &SandboxRef, intent: &Intent, work: impl FnOnce(&mut Part) -> T) -> T {
        self.with(sandbox, |memory| {
            work(memory.parts.entry(name_of(intent)).or_default())
        })
    }

    /// The paths that are released at present.
    fn released(&self, sandbox: &SandboxRef) -> Vec<ResourcePath> {
        self.with(sandbox, |memory| {
            let parts = memory.parts.values();
            let stands = parts.filter(|part| part.advanced > 0 && part.retreated == 0);
            stands.flat_map(|part| part.paths.clone()).collect()
        })
    }

    fn is_part(&self, sandbox: &SandboxRef, intent: &Intent) -> bool {
        self.of(sandbox, intent, |part| part.intent.is_some())
    }

    fn original(&self, sandbox: &SandboxRef) -> PathBuf {
        self.with(sandbox, |memory| memory.original.clone())
    }

    fn put(&self, sandbox: &SandboxRef, bytes: &[u8]) -> Result<()> {
        let known = known();
        self.inner
            .write(sandbox, &known, &mut Cursor::new(bytes))
            .map(drop)
    }
}

/// The same without some of its changes.
fn reduced(preview: &Preview, keep: impl Fn(usize) -> bool) -> Preview {
    let some = |number: &usize| keep(*number);
    let numbers: Vec<usize> = (0..preview.diff.changes.len()).filter(some).collect();
    let changes = numbers.iter().map(|at| preview.diff.changes[*at].clone());
    Preview {
        fixed: preview.fixed.clone(),
        diff: std::sync::Arc::new(DiffView::new(changes.collect())),
        seen: numbers.iter().map(|at| preview.seen[*at]).collect(),
        conflicts: preview.conflicts.clone(),
        notes: preview.notes.clone(),
        kept: preview.kept.clone(),
        bytes: preview.bytes,
        part: preview.part,
        // Nothing here has two names.
        moved: Moves::default(),
    }
}

impl Strategy for Wrong {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn probe(&self, original: &Path, area: &Path) -> Probe {
        self.inner.probe(original, area)
    }

    fn limit(&self, original: &Path, most: usize) -> Option<String> {
        self.inner.limit(original, most)
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let created = self.inner.create(request)?;
        self.with(&created.sandbox, |memory| {
            memory.original = request.original.to_owned();
        });
        Ok(created)
    }

    fn read(&self, sandbox: &SandboxRef, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        self.inner.read(sandbox, path)
    }

    fn write(
        &self,
        sandbox: &SandboxRef,
        path: &ResourcePath,
        content: &mut dyn Read,
    ) -> Result<ChangeKind> {
        self.inner.write(sandbox, path, content)
    }

    fn diff(&self, sandbox: &SandboxRef) -> Result<DiffView> {
        match self.lie {
            Lie::AdvancesTooFar if !self.released(sandbox).is_empty() => Ok(DiffView::default()),
            _ => self.inner.diff(sandbox),
        }
    }

    fn preview(&self, sandbox: &SandboxRef, request: &PreviewRequest<'_>) -> Result<Preview> {
        let mut preview = self.inner.preview(sandbox, request)?;
        let released = self.released(sandbox);
        match self.lie {
            Lie::FearsItself => preview.conflicts.extend(released.into_iter().map(|path| {
                let what = "somebody changed it".to_owned();
                Conflict {
                    path,
                    what,
                    ours: None,
                    theirs: None,
                }
            })),
            Lie::TrustsEverybody if !released.is_empty() => preview.conflicts.clear(),
            _ => {}
        }
        Ok(preview)
    }

    fn digests(&self, sandbox: &SandboxRef, changes: &[Change]) -> Result<VersionDigests> {
        self.inner.digests(sandbox, changes)
    }

    fn prepare(&self, sandbox: &SandboxRef, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let part = request.preview.part;
        let changes = request.preview.diff.changes.len();
        let looked = PreviewRequest {
            strict: false,
            moved: &request.preview.moved,
        };
        let preview = match self.lie {
            Lie::ReleasesAll if part => Preview {
                part: true,
                ..self.inner.preview(sandbox, &looked)?
            },
            Lie::ReleasesLess if part => reduced(request.preview, |at| at + 1 < changes),
            _ => reduced(request.preview, |_| true),
        };
        let request = PrepareRequest {
            preview: &preview,
            keeps: request.keeps && !(part && self.lie == Lie::SharesFiles),
            ..*request
        };
        let mut staged = self.inner.prepare(sandbox, &request)?;
        if self.lie == Lie::StagesUnseen {
            staged.digests.clear();
        }
        let intent = &staged.intent;
        if part {
            let changes = request.preview.diff.changes.iter();
            let paths = changes.map(|change| change.path.clone()).collect();
            self.of(sandbox, intent, |part| {
                part.intent = Some(intent.clone());
                part.paths = paths;
            });
            if self.lie == Lie::AdvancesEarly {
                self.inner.advance(sandbox, intent)?;
            }
        }
        Ok(staged)
    }

    fn drop_intent(&self, sandbox: &SandboxRef, intent: &Intent) -> Result<()> {
        if self.lie == Lie::DropDiscards && self.is_part(sandbox, intent) {
            self.inner.rollback(sandbox, None, &Unobserved)?;
        }
        self.inner.drop_intent(sandbox, intent)
    }

    fn commit(&self, sandbox: &SandboxRef, intent: &Intent, observer: &dyn Observer) -> Result<()> {
        self.inner.commit(sandbox, intent, observer)?;
        if self.lie == Lie::ReachesFurther && self.is_part(sandbox, intent) {
            use std::os::unix::fs::PermissionsExt;
            let beside = self.original(sandbox).join("empty");
            let mode = std::fs::Permissions::from_mode(0o751);
            std::fs::set_permissions(beside, mode).expect("it is there");
        }
        Ok(())
    }

    fn shares(&self, sandbox: &SandboxRef, intent: &Intent) -> Result<bool> {
        match self.lie {
            Lie::SharesFiles => Ok(false),
            _ => self.inner.shares(sandbox, intent),
        }
    }

    fn finish(&self, sandbox: &SandboxRef, intent: Intent) -> Result<Finished> {
        if self.is_part(sandbox, &intent) {
            let times = self.of(sandbox, &intent, |part| {
                part.finished += 1;
                part.finished
            });
            if self.lie == Lie::FinishesOnce && times > 1 {
                return Err(StrategyError::Damaged {
                    what: "it is finished already".to_owned(),
                });
            }
        }
        self.inner.finish(sandbox, intent)
    }

    fn parts(&self) -> bool {
        match self.lie {
            Lie::Wavers => {
                // Only who asks twice at once notices.
                let odd = self.asked.fetch_add(1, Ordering::SeqCst);
                odd != 1 && self.inner.parts()
            }
            Lie::DeniesParts => false,
            Lie::ClaimsParts => true,
            _ => self.inner.parts(),
        }
    }

    fn advance(&self, sandbox: &SandboxRef, intent: &Intent) -> Result<()> {
        let times = self.of(sandbox, intent, |part| {
            part.advanced += 1;
            part.advanced
        });
        match self.lie {
            Lie::NeverAdvances | Lie::DeniesParts => Ok(()),
            Lie::ClaimsParts => Err(self.cannot("release only a part")),
            Lie::AdvanceIsASwitch if times.is_multiple_of(2) => self.inner.retreat(sandbox, intent),
            _ => self.inner.advance(sandbox, intent),
        }
    }

    fn retreat(&self, sandbox: &SandboxRef, intent: &Intent) -> Result<()> {
        let times = self.of(sandbox, intent, |part| {
            part.retreated += 1;
            part.retreated
        });
        match self.lie {
            Lie::NeverRetreats => Ok(()),
            Lie::RetreatIsASwitch if times.is_multiple_of(2) => self.inner.advance(sandbox, intent),
            _ => self.inner.retreat(sandbox, intent),
        }
    }

    fn check_undo(
        &self,
        sandbox: &SandboxRef,
        intent: &Intent,
        moved: &Moves,
    ) -> Result<Vec<Conflict>> {
        self.inner.check_undo(sandbox, intent, moved)
    }

    fn rollback(
        &self,
        sandbox: &SandboxRef,
        intent: Option<&Intent>,
        observer: &dyn Observer,
    ) -> Result<RolledBack> {
        let Some(intent) = intent else {
            let done = self.inner.rollback(sandbox, None, observer)?;
            let released = !self.released(sandbox).is_empty();
            match self.lie {
                Lie::RollsBackTooFar if released => self.put(sandbox, b"the original's own\n")?,
                Lie::RollbackIsAnUndo if released => {
                    let all = self.with(sandbox, |memory| {
                        let parts = memory.parts.values();
                        parts
                            .filter_map(|part| part.intent.clone())
                            .collect::<Vec<_>>()
                    });
                    for intent in all {
                        self.inner.rollback(sandbox, Some(&intent), observer)?;
                    }
                }
                _ => {}
            }
            return Ok(done);
        };
        let part = self.is_part(sandbox, intent);
        let over = part && self.of(sandbox, intent, |part| part.advanced > 0);
        match self.lie {
            Lie::UndoesNothing if over => Ok(RolledBack::default()),
            Lie::GivesUpInTheMiddle if part && !over => Ok(RolledBack::default()),
            Lie::UndoLeavesATrace if over => {
                let original = self.original(sandbox);
                let done = self.inner.rollback(sandbox, Some(intent), observer)?;
                std::fs::write(original.join("known.orig"), "x").expect("there is room");
                Ok(done)
            }
            _ => self.inner.rollback(sandbox, Some(intent), observer),
        }
    }

    fn checkpoint(
        &self,
        sandbox: &SandboxRef,
        last: Option<&Moment>,
        observer: &dyn Observer,
    ) -> Result<Moment> {
        self.inner.checkpoint(sandbox, last, observer)
    }

    fn restore_checkpoint(
        &self,
        sandbox: &SandboxRef,
        intent: &Intent,
        observer: &dyn Observer,
    ) -> Result<()> {
        self.inner.restore_checkpoint(sandbox, intent, observer)
    }

    fn access(&self, sandbox: &SandboxRef) -> Result<Access> {
        self.inner.access(sandbox)
    }

    fn cleanup(&self, sandbox: &SandboxRef) -> Result<()> {
        self.inner.cleanup(sandbox)
    }
}

/// The promises that are found broken, and how.
fn broken(strategy: &str, lie: Lie, fixture: &dyn Fixture) -> BTreeMap<&'static str, String> {
    let registry = Registry::builtin();
    let wrong = Wrong {
        inner: Arc::clone(registry.get(strategy).expect("it is built in")),
        lie,
        asked: AtomicUsize::new(0),
        memory: Mutex::default(),
    };
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
