//! How one resource is sandboxed: the contract that every strategy keeps.
//!
//! A strategy gives one resource a private version, shows how the two differ, and throws the
//! private one away. It keeps no state of its own between calls: everything it needs later is in
//! the [`SandboxRef`] it returned and in the sandbox's area, so that another process can go on
//! after a crash or a reboot (rule P3). It never touches the state store.
//!
//! Callers reach strategies through the [`registry`] only and ask [`Capabilities`] where they
//! differ; nothing matches on a concrete strategy (rule P1). What "a strategy" means in practice
//! is defined by [`conformance`], which runs against every one of them.
//!
//! A sandbox is released in steps, so that many can be released as one: `preview` looks, `prepare`
//! does everything that can fail and leaves an [`Intent`], `commit` carries the intent out and can
//! be repeated, `rollback` with the intent takes it back, also half way. The order of the steps
//! over several sandboxes is the business of [`crate::commit`].
//!
//! A sandbox can go back to a [`Moment`]: `checkpoint` keeps one, `prepare_restore` does everything of
//! the way back that can fail, `restore_checkpoint` goes, and can be repeated or taken back, so that
//! many sandboxes go back as one (also [`crate::commit`]).

mod closed;
mod closed_dirs;
pub mod conformance;
mod copy_on_write;
mod error;
mod filesystem_copy;
mod moments;
mod none;
pub mod overlay;
mod preview;
pub mod registry;
mod released;
mod tree;
mod tree_commit;
mod tree_copy;
mod tree_diff;
mod tree_digest;
mod tree_fork;
mod tree_moments;
mod tree_restore;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use closed_dirs::Opened;
pub use error::{Result, StrategyError};
pub use preview::{Note, OnConflict, Preview, PreviewRequest};
pub use registry::Registry;

use crate::event::Observer;
use crate::fs::{Dir, Moved, Moves};
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{
    Change, ChangeKind, Conflict, DiffView, PlanId, ResourceId, ResourcePath, SandboxRef,
};

/// What the original is while the sandbox lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// The sandbox holds the original as it was when it was made.
    Frozen,
    /// What the sandbox did not change is seen as it is now.
    Live,
}

/// How a strategy goes back to an earlier moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Checkpoints {
    /// It cannot.
    None,
    /// By copying what changed.
    Copy,
    /// At the same cost whatever changed.
    Constant,
}

/// What a strategy promises. Where two strategies differ, this says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// Writing in the sandbox leaves the original alone.
    pub isolates: bool,
    /// What is seen of the original.
    pub base: Base,
    /// It can promise a commit before doing it.
    pub prepares: bool,
    /// It can take a commit back.
    pub undoes: bool,
    /// How it goes back to an earlier moment.
    pub checkpoints: Checkpoints,
    /// Native tools can work in the sandbox through a path.
    pub gives_path: bool,
    /// How strong the isolation is; more is stronger.
    pub strength: u8,
}

/// Whether a strategy works here, and why or why not, in words for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// It works.
    pub works: bool,
    /// Why, or why not.
    pub reason: String,
    /// What would not work in a sandbox of this original, though the strategy works.
    pub limit: Option<String>,
}

impl Probe {
    /// It works, and this is why.
    pub fn yes(reason: impl Into<String>) -> Self {
        Self {
            works: true,
            reason: reason.into(),
            limit: None,
        }
    }

    /// It does not work, and this is why.
    pub fn no(reason: impl Into<String>) -> Self {
        Self {
            works: false,
            reason: reason.into(),
            limit: None,
        }
    }

    /// The answer in one line, as it is stored with a sandbox.
    pub fn summary(&self, name: &str) -> String {
        match (self.works, &self.limit) {
            (true, None) => format!("{name} works: {}", self.reason),
            (true, Some(limit)) => format!("{name} works with a limit: {limit}"),
            (false, _) => format!("{name} does not: {}", self.reason),
        }
    }
}

/// What a new sandbox is made from and where.
pub struct CreateRequest<'a> {
    /// The plan it will belong to.
    pub plan_id: PlanId,
    /// What it is a sandbox of.
    pub resource_id: ResourceId,
    /// The real thing.
    pub original: &'a Path,
    /// An existing, private directory for this sandbox alone.
    pub area: &'a Path,
    /// Paths that belong to other resources and are not part of the sandbox.
    pub carved: &'a [ResourcePath],
    /// Who watches.
    pub observer: &'a dyn Observer,
}

/// A sandbox that was just made.
#[derive(Debug)]
pub struct Created {
    /// What refers to it from now on.
    pub sandbox: SandboxRef,
    /// How it was made, in a few words.
    pub message: String,
    /// Everything that is not in it, or not as in the original; nothing is left out silently.
    pub warnings: Vec<String>,
}

/// How native tools reach a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// By working in this directory.
    Directory(PathBuf),
}

/// What a commit is prepared from and where.
pub struct PrepareRequest<'a> {
    /// What was found, and shown.
    pub preview: &'a Preview,
    /// What to do about its conflicts; never [`Abort`](OnConflict::Abort) where there are any.
    pub on_conflict: OnConflict,
    /// An existing, private, empty directory for this commit alone, on the file system of the
    /// original. It lives for as long as the commit can be undone.
    pub area: &'a Path,
    /// Whether the sandbox stays when the commit is over: then nothing of it may become the original's.
    pub keeps: bool,
    /// Whether the digest of each version that is staged is wanted.
    pub digests: bool,
    /// Who watches.
    pub observer: &'a dyn Observer,
}

/// What was staged for a commit.
#[derive(Debug, Default)]
pub struct StagedCommit {
    /// By which it is carried out, or taken back.
    pub intent: Intent,
    /// What the paths become: of what was staged, which nothing changes any more. Empty unless they were asked for.
    pub digests: VersionDigests,
}

/// Everything a strategy needs to carry a commit out, or to take it back. Stored by the caller;
/// means nothing to anyone but the strategy that made it. It is small: what grows with the change lies in the
/// request's area, and the intent refers to it in a way that tells when it was altered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Intent(pub serde_json::Value);

/// Whether a commit was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was, as a whole.
    Done,
    /// It was not, or calling again finishes it and does nothing twice.
    NotDone,
    /// That cannot be told.
    Unknown,
}

/// A moment of a sandbox, to which it can return. Stored by the caller; means nothing to anyone but the
/// strategy that made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub serde_json::Value);

/// A way back to a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Where the sandbox is, kept just now.
    pub from: Moment,
    /// Where it goes.
    pub to: Moment,
}

/// What a commit left.
#[derive(Debug)]
pub struct Finished {
    /// By which it can be undone.
    pub intent: Intent,
    /// What was moved and still has a name in the original.
    pub moved: Vec<Moved>,
    /// What somebody should know.
    pub notes: Vec<Note>,
}

/// What a rollback did.
#[derive(Debug, Default)]
pub struct RolledBack {
    /// In a few words.
    pub message: String,
    /// What was moved away and back: others must not take it for somebody's change.
    pub moved: Vec<Moved>,
    /// Versions that somebody else wrote into the original meanwhile, and where they are now.
    pub kept: Vec<(ResourcePath, Location)>,
    /// The paths of the original that are as before again, where a commit was taken back and they are known.
    pub paths: Paths,
}

/// Paths that something was done to: the first of them, and how many there are.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Paths {
    first: BTreeSet<ResourcePath>,
    count: u64,
}

impl Paths {
    /// How many are named.
    pub const NAMED: usize = 100;

    /// Adds one that is not among them.
    pub fn add(&mut self, path: &ResourcePath) {
        self.count += 1;
        let last = self
            .first
            .last()
            .filter(|_| self.first.len() >= Self::NAMED);
        if last.is_some_and(|last| last < path) {
            return;
        }
        self.first.insert(path.clone());
        if self.first.len() > Self::NAMED {
            self.first.pop_last();
        }
    }

    /// The first of them, in their order.
    pub fn first(&self) -> impl Iterator<Item = &ResourcePath> {
        self.first.iter()
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// What a checkpoint is taken for, if not for a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// Somebody asked for it, or it is taken by itself at a run, a failure or a commit.
    Kept,
    /// A fork or a validation begins with it.
    Begun,
}

/// Puts a file into a sandbox through a directory in which it can be seen as a whole.
pub fn write_through(
    root: &Dir,
    path: &ResourcePath,
    content: &mut dyn Read,
) -> Result<ChangeKind> {
    tree::write(root, None, path, content)
}

/// One way to sandbox a resource.
///
/// Every method may be called by any process at any time after [`create`](Self::create)
/// returned; the caller makes sure that only one call at a time works on one sandbox.
pub trait Strategy: Send + Sync {
    /// The name it is registered, stored and asked for by.
    fn name(&self) -> &'static str;

    /// What it promises.
    fn capabilities(&self) -> Capabilities;

    /// Whether it works for this original with its area in `area`, an existing directory.
    ///
    /// *Guarantees:* the original is untouched, nothing stays behind, and the reason can be shown
    /// to a person. *Errors:* none; what goes wrong is a reason.
    fn probe(&self, original: &Path, area: &Path) -> Probe;

    /// What commands could not do in a sandbox of this original although the strategy works, in words for people;
    /// `None` if nothing is known.
    ///
    /// *Guarantees:* at most about `most` entries are looked at, so that the cost does not grow with the original.
    /// Unlike [`probe`](Self::probe) this is about one original, so the answer is not kept for others. *Errors:* none;
    /// what cannot be looked at is not known.
    fn limit(&self, original: &Path, most: usize) -> Option<String>;

    /// Makes a sandbox.
    ///
    /// *Guarantees:* the original is untouched; what was made is durable once the caller has synced the file system
    /// of the area, which it does once for many sandboxes. *After a crash:* the area holds something half made; calling again begins anew.
    /// *Idempotent:* yes, for one area. *Errors:* the area may hold remains, for
    /// [`cleanup`](Self::cleanup) or the next call.
    fn create(&self, request: &CreateRequest<'_>) -> Result<Created>;

    /// Opens a file of the sandbox for reading.
    ///
    /// *Guarantees:* changes nothing, follows no link, waits for no pipe. *Errors:*
    /// [`NotThere`](StrategyError::NotThere), [`NotAFile`](StrategyError::NotAFile),
    /// [`Leaves`](StrategyError::Leaves).
    fn read(&self, sandbox: &SandboxRef, path: &ResourcePath) -> Result<Box<dyn Read + Send>>;

    /// Puts a file with this content at `path`, making the directories it needs.
    ///
    /// A file that was there keeps its mode, owner and attributes, but loses setuid, setgid and
    /// capabilities, as with any write. A further hard link to it keeps the old content.
    ///
    /// *Guarantees:* the original is untouched (where the strategy isolates); the new content is
    /// durable. *After a crash:* old or new content, never a mixture. *Idempotent:* yes. Returns
    /// whether the file was [`Added`](ChangeKind::Added) or [`Modified`](ChangeKind::Modified).
    fn write(
        &self,
        sandbox: &SandboxRef,
        path: &ResourcePath,
        content: &mut dyn Read,
    ) -> Result<ChangeKind>;

    /// Everything in which the sandbox differs from the original.
    ///
    /// *Guarantees:* changes nothing; lists every path that differs and no other: a read, a new
    /// time stamp or the same bytes written again are no difference (rules F6, F8).
    fn diff(&self, sandbox: &SandboxRef) -> Result<DiffView>;

    /// The digest of what each of these changes would release, read from the sandbox; none for what it removes, and for
    /// what a commit leaves out.
    ///
    /// *Guarantees:* changes nothing; each file is read once. What [`prepare`](Self::prepare) stages has the same digests,
    /// and so has the same change in a sandbox of any other strategy.
    fn digests(&self, sandbox: &SandboxRef, changes: &[Change]) -> Result<VersionDigests>;

    /// Opens what the sandbox's own user closed in it, as directories of mode 0, until the answer is dropped: what only looks,
    /// and is refused, may look again then. Nobody else works in the sandbox meanwhile, or looks at it.
    ///
    /// *Guarantees:* the sandbox is the same afterwards, and also looks the same meanwhile to all but programs. *After a crash:* whatever
    /// opens the sandbox next closes it. By default nothing is ever closed.
    fn unlock(&self, _sandbox: &SandboxRef) -> Result<Vec<Opened>> {
        Ok(Vec::new())
    }

    /// What a commit would do, and what contradicts it.
    ///
    /// *Guarantees:* changes nothing. By default the diff, without conflicts: for strategies that
    /// find them in [`prepare`](Self::prepare) or cannot have any.
    fn preview(&self, sandbox: &SandboxRef, _request: &PreviewRequest<'_>) -> Result<Preview> {
        Ok(Preview {
            diff: Arc::new(self.diff(sandbox)?),
            ..Preview::default()
        })
    }

    /// Does everything of a commit that can fail, short of touching the original.
    ///
    /// *Guarantees:* the original is untouched and the sandbox holds what it held; what the intent
    /// refers to is durable once the caller has synced the file system of the request's area, which it does once for
    /// many members. *After a crash:* remains lie in the request's area
    /// only, which the caller removes. *Errors:* nothing is promised. By default nothing is
    /// prepared, which [`Capabilities::prepares`] must say.
    fn prepare(&self, _: &SandboxRef, _: &PrepareRequest<'_>) -> Result<StagedCommit> {
        Ok(StagedCommit::default())
    }

    /// Checks that everything an intent refers to is there as it was written. Called for every member before anything is
    /// acted on that another process prepared.
    ///
    /// *Guarantees:* changes nothing. *Errors:* [`Altered`](StrategyError::Altered) where it is not. By default an intent
    /// refers to nothing.
    fn verify(&self, _sandbox: &SandboxRef, _intent: &Intent) -> Result<()> {
        Ok(())
    }

    /// Lets go of what was prepared and never decided. The original was not touched; what lies in
    /// the request's area is removed by the caller. By default there is nothing else.
    fn drop_intent(&self, _sandbox: &SandboxRef, _intent: &Intent) -> Result<()> {
        Ok(())
    }

    /// Carries a prepared commit out.
    ///
    /// *Guarantees:* when this returns the original holds the new state, durably. *After a crash:*
    /// some of it may be done; calling again finishes. *Idempotent:* yes, from the intent alone.
    /// *Errors:* some of it may be done; [`rollback`](Self::rollback) with the intent takes it
    /// back where [`Capabilities::undoes`] says so.
    fn commit(&self, sandbox: &SandboxRef, intent: &Intent, observer: &dyn Observer) -> Result<()>;

    /// Whether a commit that failed, or whose process crashed, was carried out. Asked where it cannot be taken back, and
    /// nowhere else.
    ///
    /// *Guarantees:* changes nothing; never a guess: what cannot be told is [`Unknown`](Outcome::Unknown), and waits for a
    /// person. *Errors:* count as unknown. By default what was prepared is carried out again, since
    /// [`commit`](Self::commit) can be repeated; of anything else nothing is known.
    fn outcome(&self, _sandbox: &SandboxRef, _intent: &Intent) -> Result<Outcome> {
        match self.capabilities().prepares {
            true => Ok(Outcome::NotDone),
            false => Ok(Outcome::Unknown),
        }
    }

    /// Whether what is committed is the sandbox's own, so that the sandbox must go when the commit is over.
    /// By default not.
    fn shares(&self, _sandbox: &SandboxRef, _intent: &Intent) -> Result<bool> {
        Ok(false)
    }

    /// Looks at the original once the commit is over and the sandbox gone, unless it stays, and returns the intent
    /// by which it can be undone later, and what is to be known. *Idempotent:* yes, from the intent that was committed.
    /// By default the same intent.
    fn finish(&self, _sandbox: &SandboxRef, intent: Intent) -> Result<Finished> {
        Ok(Finished {
            intent,
            moved: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// Whether a part of what the sandbox changed can be released while the rest stays: then it is previewed and
    /// prepared with [`Preview::part`] set, committed, finished, and the sandbox advances. Whoever can do that
    /// isolates and prepares. By default not.
    fn parts(&self) -> bool {
        false
    }

    /// After a commit of a part, which is over but for this: from now on the sandbox is one of the original
    /// as the commit left it, so that what was released is no change any more.
    ///
    /// *Guarantees:* what is seen in the sandbox is the same as before; durable when this returns.
    /// *Idempotent:* yes. By default it cannot.
    fn advance(&self, _sandbox: &SandboxRef, _intent: &Intent) -> Result<()> {
        Err(self.cannot("release only a part"))
    }

    /// After such a commit was taken back: what it had released are changes of the sandbox again.
    ///
    /// *Guarantees:* as of [`advance`](Self::advance). *Idempotent:* yes. By default there is nothing to do.
    fn retreat(&self, _sandbox: &SandboxRef, _intent: &Intent) -> Result<()> {
        Ok(())
    }

    /// Where the original moved on since the commit, so that an undo would lose something. `moved` is
    /// what we ourselves moved away and put back.
    ///
    /// *Guarantees:* changes nothing. By default nowhere.
    fn check_undo(
        &self,
        _sandbox: &SandboxRef,
        _intent: &Intent,
        _moved: &Moves,
    ) -> Result<Vec<Conflict>> {
        Ok(Vec::new())
    }

    /// Finds out, without changing anything, whether the changes in the sandbox can be discarded.
    ///
    /// *Errors:* [`Unsupported`](StrategyError::Unsupported) where nothing isolates, and what keeps
    /// [`rollback`](Self::rollback) from beginning. By default nothing does where the strategy isolates.
    fn check_discard(&self, _sandbox: &SandboxRef) -> Result<()> {
        match self.capabilities().isolates {
            true => Ok(()),
            false => Err(self.cannot("discard changes")),
        }
    }

    /// Without an intent: discards every change in the sandbox, which can then be worked in again. That is durable
    /// once the caller has synced the file system of the area.
    /// With one: takes the commit back, however much of it was carried out.
    ///
    /// *Guarantees:* without an intent the original is untouched, and afterwards the diff is empty;
    /// with it the original is as before, as far as nobody else changed it, and what somebody else
    /// wrote is kept and named. *After a crash:* some of it may be done; calling again finishes.
    /// *Idempotent:* yes. *Errors:* [`Unsupported`](StrategyError::Unsupported) where nothing
    /// isolates or nothing undoes: it never claims what it did not do.
    fn rollback(
        &self,
        sandbox: &SandboxRef,
        intent: Option<&Intent>,
        observer: &dyn Observer,
    ) -> Result<RolledBack>;

    /// Refuses a checkpoint that could be done without, where there is room only for those that a restore begins with.
    /// By default there is always room.
    fn has_room(&self, _sandbox: &SandboxRef, _occasion: Occasion) -> Result<()> {
        Ok(())
    }

    /// Keeps the sandbox as it is at this moment. `last` is the newest one that is kept.
    ///
    /// *Guarantees:* the original is untouched, the sandbox goes on as it was, and what was kept is
    /// durable. *After a crash:* something may be kept that nobody knows of, until
    /// [`drop_checkpoint`](Self::drop_checkpoint). *Errors:*
    /// [`Unsupported`](StrategyError::Unsupported) where no checkpoints are promised.
    fn checkpoint(
        &self,
        sandbox: &SandboxRef,
        last: Option<&Moment>,
        observer: &dyn Observer,
    ) -> Result<Moment>;

    /// Does everything of a return to a moment that can fail, short of changing the sandbox. `area`
    /// is an existing, private, empty directory for this alone, beside the sandbox. By default
    /// nothing is prepared, and the moment itself is handed on.
    fn prepare_restore(
        &self,
        _sandbox: &SandboxRef,
        way: &Way,
        _area: &Path,
        _observer: &dyn Observer,
    ) -> Result<Intent> {
        Ok(Intent(way.to.0.clone()))
    }

    /// Returns to the moment that was prepared.
    ///
    /// *Guarantees:* when this returns the sandbox is exactly as it was then, durably. *After a
    /// crash:* some of it may be done; calling again finishes. *Idempotent:* yes, from the intent
    /// alone.
    fn restore_checkpoint(
        &self,
        sandbox: &SandboxRef,
        intent: &Intent,
        observer: &dyn Observer,
    ) -> Result<()>;

    /// Takes a return back, however much of it was done; says what somebody wrote meanwhile, and where it
    /// is now. *Idempotent:* yes. By default it cannot.
    fn undo_restore(&self, _sandbox: &SandboxRef, _intent: &Intent) -> Result<RolledBack> {
        Err(self.cannot("take a restore back"))
    }

    /// [`checkpoint`](Self::checkpoint) while somebody works in the sandbox through what
    /// [`view`](Self::view) gives, and stands still. By default the same.
    fn checkpoint_in_use(
        &self,
        sandbox: &SandboxRef,
        last: Option<&Moment>,
        observer: &dyn Observer,
    ) -> Result<Moment> {
        self.checkpoint(sandbox, last, observer)
    }

    /// [`prepare_restore`](Self::prepare_restore) while somebody works in the sandbox. Should they be gone
    /// before it is over,
    /// [`restore_checkpoint`](Self::restore_checkpoint) and [`undo_restore`](Self::undo_restore) must
    /// do with what is prepared. By default the same.
    fn prepare_restore_in_use(
        &self,
        sandbox: &SandboxRef,
        way: &Way,
        area: &Path,
        observer: &dyn Observer,
    ) -> Result<Intent> {
        self.prepare_restore(sandbox, way, area, observer)
    }

    /// [`restore_checkpoint`](Self::restore_checkpoint) while somebody works in the sandbox, which is
    /// seen as a whole in `through`. By default the same.
    fn restore_in_use(
        &self,
        sandbox: &SandboxRef,
        intent: &Intent,
        _through: &Dir,
        observer: &dyn Observer,
    ) -> Result<()> {
        self.restore_checkpoint(sandbox, intent, observer)
    }

    /// [`undo_restore`](Self::undo_restore) in the same way.
    fn undo_restore_in_use(
        &self,
        sandbox: &SandboxRef,
        intent: &Intent,
        _through: &Dir,
    ) -> Result<RolledBack> {
        self.undo_restore(sandbox, intent)
    }

    /// Lets go of every moment but those that are `kept`. *Idempotent:* yes. By default there is
    /// nothing to let go of.
    fn drop_checkpoint(&self, _sandbox: &SandboxRef, _kept: &[Moment]) -> Result<()> {
        Ok(())
    }

    /// What changed in the sandbox between a moment and another one, or now. By default it cannot
    /// tell.
    fn since(
        &self,
        _sandbox: &SandboxRef,
        _moment: &Moment,
        _until: Option<&Moment>,
    ) -> Result<DiffView> {
        Err(self.cannot("compare with a checkpoint"))
    }

    /// Makes another sandbox of the same original that begins at a moment of this one.
    ///
    /// *Guarantees:* as of [`create`](Self::create); this sandbox is untouched. By default it cannot.
    fn fork(
        &self,
        _sandbox: &SandboxRef,
        _moment: &Moment,
        _request: &CreateRequest<'_>,
    ) -> Result<Created> {
        Err(self.cannot("be forked"))
    }

    /// The answer to what it does not promise.
    fn cannot(&self, what: &'static str) -> StrategyError {
        StrategyError::Unsupported {
            strategy: self.name(),
            what,
            why: "this strategy does not promise it".to_owned(),
        }
    }

    /// The areas of other sandboxes that this one cannot do without; by default none.
    fn needs(&self, _sandbox: &SandboxRef) -> Result<Vec<Location>> {
        Ok(Vec::new())
    }

    /// How native tools reach the sandbox.
    ///
    /// *Errors:* [`Unsupported`](StrategyError::Unsupported) where `gives_path` is not promised.
    fn access(&self, sandbox: &SandboxRef) -> Result<Access>;

    /// What appears at the path of the original while a command runs inside.
    ///
    /// *Errors:* [`Unsupported`](StrategyError::Unsupported) where it is no directory. By default
    /// what [`access`](Self::access) gives.
    fn view(&self, sandbox: &SandboxRef) -> Result<View> {
        let Access::Directory(path) = self.access(sandbox)?;
        Ok(View::Directory(Location::from(path)))
    }

    /// Removes everything the sandbox has on disk outside its area directory; the area itself is
    /// the caller's.
    ///
    /// *Guarantees:* the original is untouched. *Idempotent:* yes, from every state, also after a
    /// half-made [`create`](Self::create).
    fn cleanup(&self, sandbox: &SandboxRef) -> Result<()>;
}
