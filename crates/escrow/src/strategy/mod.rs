//! The strategy contract: how one resource is sandboxed.
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
//! [`Strategy`] is what exists without a session; [`Sandbox`] is an open session with one sandbox. A sandbox is released
//! in steps, so that many can be released as one: `preview` looks, `prepare` does everything that can fail and leaves an
//! [`Intent`], `commit` carries the intent out and can be repeated, `undo` takes it back, also half way. A return to a
//! [`Snapshot`] is an intent too, made by `prepare_restore`. The order of the steps over several sandboxes is the business
//! of [`crate::commit`].

mod alias;
pub mod conformance;
mod copy;
mod copy_on_write;
mod error;
mod filesystem_copy;
mod git;
mod holder;
mod live_restore;
mod moves;
mod none;
pub mod overlay;
pub mod plugin;
pub(crate) mod postgres;
mod preview;
mod probe;
mod registration;
pub mod registry;
mod snapshot_diff;
pub(crate) mod sql;
mod subvolume;
mod tree;
mod tree_commit;
mod tree_digest;
mod tree_strategy;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use error::{Result, StrategyError};
pub(crate) use git::{ignored_files, ignored_paths, tracked as git_tracked};
pub use holder::hold;
pub use plugin::ProgramContext;
pub use preview::{BothSides, OnConflict, PathSample, Preview, PreviewNote, PreviewOptions};
pub use probe::{Probe, Remember};
pub use registry::Registry;
pub use undo::{RollbackReport, UndoChoices, UndoPlan};

use crate::event::Observer;
use crate::fs::process::ProcessIdentity;
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{CarriedContents, Change, Conflict, DiffView, PlanId, ResourcePath, SandboxRef};
pub use crate::model::{Target, TargetLocation};

/// What the original is while the sandbox lives.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// The sandbox holds the original as it was when it was made.
    Frozen,
    /// What the sandbox did not change is seen as it is now.
    #[default]
    Live,
}

/// How a strategy keeps checkpoints.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checkpoints {
    /// It keeps none.
    #[default]
    None,
    /// Returning to one drops those after it.
    Linear,
    /// By copying what changed.
    Copy,
    /// At the same cost whatever changed.
    Constant,
}

/// How native tools reach a sandbox from outside.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exposes {
    /// Not at all: only inside `escrow run`.
    #[default]
    Nothing,
    /// Through a path.
    Path,
    /// Through a URL.
    Url,
}

/// What a strategy promises. Where two strategies differ, this says so. By default nothing is promised.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Writing in the sandbox leaves the original alone.
    pub isolates: bool,
    /// What is seen of the original.
    pub base: Base,
    /// It can promise a commit before doing it.
    pub prepares: bool,
    /// It can take a commit back.
    pub undoes: bool,
    /// What it prepared is kept elsewhere once it is [promised](Strategy::promise): its commit goes last, and only forward.
    #[serde(skip)]
    pub promises: bool,
    /// The sandbox outlives the process that made it.
    pub survives: bool,
    /// The work in the sandbox outlives a commit that failed.
    pub retryable: bool,
    /// A new sandbox can hold again what an undone commit had released ([`Sandbox::take_in`]).
    #[serde(default)]
    pub reopens: bool,
    /// How it keeps checkpoints.
    pub checkpoints: Checkpoints,
    /// It can release a part of the changes and keep the rest.
    pub partial: bool,
    /// It can be worked with while a command runs in the sandbox.
    pub live: bool,
    /// How native tools reach the sandbox from outside.
    pub exposes: Exposes,
    /// It needs an area: a private directory, of a resource with a path on the same file system.
    pub area: bool,
    /// How strong the isolation is; more is stronger.
    pub strength: u8,
}

impl Capabilities {
    /// What a version of its own promises that lies in an area: the common ground of the built-in strategies that isolate.
    const PRIVATE: Self = Self {
        isolates: true,
        base: Base::Frozen,
        prepares: true,
        undoes: true,
        promises: false,
        survives: true,
        retryable: true,
        reopens: true,
        checkpoints: Checkpoints::Copy,
        partial: false,
        live: true,
        exposes: Exposes::Path,
        area: true,
        strength: 0,
    };

    /// Whether a commit that was prepared goes forward alone, once every other one is carried out.
    pub(crate) fn only_forward(&self) -> bool {
        self.prepares && (self.promises || !self.undoes)
    }
}

/// What a new sandbox is made from and where.
pub struct CreateRequest<'a> {
    /// The plan it will belong to.
    pub plan_id: PlanId,
    /// What it is a sandbox of.
    pub target: &'a Target,
    /// An existing, private directory for this sandbox alone, if the strategy needs one.
    pub area: Option<&'a Path>,
    /// The sandbox of the same original, and the snapshot of it, at which this one begins; without one it begins as the
    /// original.
    pub from: Option<(&'a SandboxRef, &'a Snapshot)>,
    /// Who watches.
    pub observer: &'a dyn Observer,
}

/// A sandbox that was just made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// What refers to it from now on.
    pub sandbox: SandboxRef,
    /// How it was made, in a few words.
    pub message: String,
    /// Everything that is not in it, or not as in the original; nothing is left out silently.
    pub warnings: Vec<String>,
}

/// Something that appears at a path while a command runs inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where: the path of the original.
    pub at: Location,
    /// What.
    pub view: View,
    /// The area that holds it, if a command can write it: it is marked while a command may have it open.
    pub area: Option<Location>,
}

/// How a sandbox is reached: everything that a tool, or a command inside, needs to know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// What appears where while a command runs inside; nothing where there is nothing to be seen.
    pub mounts: Vec<Mount>,
    /// Environment variables for a command.
    pub env: BTreeMap<String, String>,
    /// Where native tools work from outside; of a sandbox of one file, the directory that holds it.
    pub cwd: Option<Location>,
    /// The URL that clients connect to.
    pub url: Option<String>,
}

/// How a sandbox is opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Session {
    /// To look, or to write one item, while others may look too. The original may be gone.
    Shared,
    /// To change it, while no other process looks or works in it; the original is there.
    Exclusive,
    /// The same while a command works in the sandbox, and is paused.
    Live(LiveView),
}

/// Where a running command sees the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveView {
    /// The root directory of the command, as it is reached from outside.
    pub root: Location,
    /// The path of the sandbox in it.
    pub path: Location,
    /// The first process inside; with it the view ends.
    pub process: ProcessIdentity,
}

/// What a commit is prepared from and where.
pub struct PrepareRequest<'a> {
    /// What was found, and shown.
    pub preview: &'a Preview,
    /// What to do about its conflicts; never [`Abort`](OnConflict::Abort) where there are any.
    pub on_conflict: OnConflict,
    /// What was said about the commit.
    pub message: Option<&'a str>,
    /// An existing, private, empty directory for this commit alone, on the file system of the original, if the strategy
    /// needs one and prepares. It lives for as long as the commit can be undone.
    pub area: Option<&'a Path>,
    /// Whether the sandbox stays when the commit is over: then nothing of it may become the original's.
    pub keeps: bool,
    /// Whether the digest of each version that is staged is wanted.
    pub digests: bool,
    /// The members of the commit that are [promised](Strategy::promise), this one included: each may need room elsewhere.
    pub promised: &'a [SandboxRef],
    /// Who watches.
    pub observer: &'a dyn Observer,
}

/// What was staged for a commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedCommit {
    /// By which it is carried out, or taken back.
    pub intent: Intent,
    /// What the paths become: of what was staged, which nothing changes any more. Empty unless they were asked for.
    pub digests: VersionDigests,
}

/// What a return to a snapshot is prepared from and where.
pub struct RestoreRequest<'a> {
    /// Where the sandbox is, kept just now.
    pub from: &'a Snapshot,
    /// Where it goes.
    pub to: &'a Snapshot,
    /// An existing, private, empty directory for this alone, beside the sandbox, if the strategy needs one.
    pub area: Option<&'a Path>,
    /// Who watches.
    pub observer: &'a dyn Observer,
}

/// Everything a strategy needs to carry a commit out, or to take it back. Stored by the caller;
/// means nothing to anyone but the strategy that made it. It is small: what grows with the change lies in the
/// request's area, and the intent refers to it in a way that tells when it was altered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Intent(pub serde_json::Value);

/// Whether an intent was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was, as a whole.
    Done,
    /// It was not, or calling again finishes it and does nothing twice.
    NotDone,
    /// That is not known.
    Unknown,
}

/// A state of a sandbox, to which it can return. Stored by the caller; means nothing to anyone but the strategy that made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Snapshot(pub serde_json::Value);

/// What a commit left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedCommit {
    /// By which it can be undone.
    pub intent: Intent,
    /// What the caller should know.
    pub notes: Vec<PreviewNote>,
}

/// What a statement gave.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryResult {
    /// The names of the columns; none where the statement gives no rows.
    pub columns: Vec<String>,
    /// The rows, as JSON: what has no JSON of its own is an object with one key, such as `$blob`.
    pub rows: Vec<Vec<serde_json::Value>>,
    /// How many rows were changed.
    pub changed: u64,
}

/// The answer to what a strategy does not promise.
pub fn unsupported(strategy: &str, what: &str, why: &str) -> StrategyError {
    let [strategy, what, why] = [strategy, what, why].map(str::to_owned);
    StrategyError::Unsupported {
        strategy,
        what,
        why,
    }
}

/// One way to sandbox a resource: what exists without a session.
///
/// Every method may be called by any process at any time after [`create`](Self::create)
/// returned; the caller makes sure that only one call at a time works on one sandbox.
pub trait Strategy: Send + Sync {
    /// The name it is registered, stored and asked for by.
    fn name(&self) -> &str;

    /// What it promises.
    fn capabilities(&self) -> Capabilities;

    /// What it promises for one sandbox: less, where what the sandbox is of cannot do everything.
    fn capabilities_of(&self, _sandbox: &SandboxRef) -> Capabilities {
        self.capabilities()
    }

    /// What a person should know of a sandbox now, such as what it keeps others from, or what of it is gone.
    ///
    /// *Guarantees:* changes nothing, and does not wait long.
    fn remarks(&self, _sandbox: &SandboxRef) -> Vec<String> {
        Vec::new()
    }

    /// Why nothing of a sandbox is left, where what kept it ended; `None` while it is there, and where that cannot be told.
    ///
    /// *Guarantees:* changes nothing, and does not wait long.
    fn gone(&self, _sandbox: &SandboxRef) -> Option<String> {
        None
    }

    /// Whether it works for this resource, with its area in `area`, an existing directory, if it needs one; and what would
    /// not work in a sandbox of it, found at a cost that does not grow with the resource. Without an area that it needs, a
    /// sandbox exists already: only what does not work in it is asked, with more patience.
    ///
    /// *Guarantees:* the original is untouched, nothing stays behind, and the reason can be shown
    /// to a person. *Errors:* none; what goes wrong is a reason.
    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe;

    /// Makes a sandbox, of the original or of a snapshot of another sandbox.
    ///
    /// *Guarantees:* the original, and the other sandbox, are untouched; what was made is durable once the caller has synced the file system
    /// of the area, which it does once for many sandboxes. *After a crash:* the area holds something half made; calling again begins anew.
    /// *Idempotent:* yes, for one area. *Errors:* the area may hold remains, for
    /// [`cleanup`](Self::cleanup) or the next call.
    fn create(&self, request: &CreateRequest<'_>) -> Result<Created>;

    /// Opens a session with a sandbox.
    ///
    /// *Guarantees:* changes nothing. *Errors:* the sandbox is gone or damaged; in a session that changes it, also
    /// [`Gone`](StrategyError::Gone) and [`Replaced`](StrategyError::Replaced) originals.
    ///
    /// `parts` are what [`finish`](Self::finish) returned for each partial commit of the sandbox that was not undone,
    /// oldest first: what they released is the original's, and no change of the sandbox any more.
    fn open(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>>;

    /// Promises that a commit can be carried out, where that is more than what [`prepare`](Sandbox::prepare) staged, such as a
    /// transaction that another server keeps. Called once every intent of the commit is stored, right before the decision.
    ///
    /// *Guarantees:* from here on [`commit`](Self::commit) succeeds, by any process. *After a crash:*
    /// [`undo`](Self::undo) of the intent releases it. *Errors:* nothing is promised.
    fn promise(&self, _intent: &Intent) -> Result<()> {
        Ok(())
    }

    /// Carries out what was prepared: a commit, or a return to a snapshot.
    ///
    /// *Guarantees:* when this returns the original, or the sandbox, holds the new state, durably. *After a crash:*
    /// some of it may be done; calling again finishes. *Idempotent:* yes, from the intent alone.
    /// *Errors:* some of it may be done; [`undo`](Self::undo) takes it back where [`Capabilities::undoes`] says so.
    fn commit(&self, intent: &Intent, observer: &dyn Observer) -> Result<()>;

    /// Takes back what was carried out of an intent, however much that is; of one that was never carried out,
    /// releases what was prepared. What lies in the request's area is removed by the caller.
    ///
    /// *Guarantees:* the original, or the sandbox, is as before, as far as no other process changed it; what another process
    /// wrote is kept and named. *After a crash:* some of it may be done; calling again finishes. *Idempotent:* yes.
    /// *Errors:* [`Unsupported`](StrategyError::Unsupported) where a commit was carried out and nothing undoes: it never
    /// claims what it did not do.
    fn undo(&self, intent: &Intent, observer: &dyn Observer) -> Result<RollbackReport>;

    /// Whether an intent was carried out. Asked before anything is done to what another process prepared.
    ///
    /// *Guarantees:* changes nothing; never a guess: what is not known is [`Unknown`](Outcome::Unknown), and waits for a
    /// person. *Errors:* [`Altered`](StrategyError::Altered) where what the intent refers to is not what was written.
    fn outcome(&self, intent: &Intent) -> Result<Outcome>;

    /// Where the original moved on since the commit, so that an undo would lose something.
    ///
    /// *Guarantees:* changes nothing.
    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>>;

    /// Whether a sandbox that was made while a commit stood can take in what that had released: one that holds the original
    /// as it was then knows that as no change.
    fn takes_in_later(&self, sandbox: &SandboxRef) -> bool {
        self.capabilities_of(sandbox).base == Base::Live
    }

    /// Says which changes of a commit its undo can leave, and with `record` makes that what the next [`undo`](Self::undo) does.
    ///
    /// *Guarantees:* the original is untouched; what was recorded is durable, and holds until it is recorded again.
    /// *Errors:* [`Unsupported`](StrategyError::Unsupported) where the changes go back together only.
    fn plan_undo(
        &self,
        _intent: &Intent,
        choices: &UndoChoices,
        _record: bool,
    ) -> Result<UndoPlan> {
        if choices.is_everything() {
            return Ok(UndoPlan::default());
        }
        let why = "its changes go back together, as they are in the original now";
        Err(unsupported(
            self.name(),
            "take a part of a commit back",
            why,
        ))
    }

    /// Ends a commit, once the sandbox is gone unless it stays: nothing of the sandbox is shared with the original any more.
    /// Returns the intent by which the commit can be undone later, and, of a part, by which
    /// [`open`](Self::open) learns what was released. *Idempotent:* yes, from the intent that was committed.
    ///
    /// Where nothing was shared, the intent stays as it is.
    fn finish(&self, intent: Intent) -> Result<FinishedCommit> {
        let notes = Vec::new();
        Ok(FinishedCommit { intent, notes })
    }

    /// Removes everything the sandbox has outside its area directory; the area itself is
    /// the caller's, and is gone where that was removed before.
    ///
    /// *Guarantees:* the original is untouched. *Idempotent:* yes, from every state, also after a
    /// half-made [`create`](Self::create), of which only plan and resource are known: then there is no metadata, and every
    /// strategy is asked that may have begun it.
    fn cleanup(&self, sandbox: &SandboxRef, target: &Target, area: Option<&Path>) -> Result<()>;
}

/// An open session with one sandbox.
pub trait Sandbox: Send {
    /// Opens a file, or another item, for reading.
    ///
    /// *Guarantees:* changes nothing, follows no link, waits for no pipe. *Errors:*
    /// [`NotThere`](StrategyError::NotThere), [`NotAFile`](StrategyError::NotAFile),
    /// [`Leaves`](StrategyError::Leaves).
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>>;

    /// Puts a file, or another item, with this content at `path`, making the directories it needs.
    ///
    /// A file that was there keeps its mode, owner and attributes, but loses setuid, setgid and
    /// capabilities, as with any write. A further hard link to it keeps the old content.
    ///
    /// *Guarantees:* the original is untouched (where the strategy isolates); the new content is
    /// durable. *After a crash:* old or new content, never a mixture. *Idempotent:* yes. Returns
    /// what the write changed: something [`Added`](crate::model::ChangeKind::Added) or
    /// [`Modified`](crate::model::ChangeKind::Modified).
    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change>;

    /// What changed between two states: from the original if `from` is none, to the present if `to` is none.
    ///
    /// *Guarantees:* changes nothing; lists every path that differs and no other: a read, a new
    /// time stamp or the same bytes written again are no difference (rules F6, F8).
    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView>;

    /// The digest of what each of these changes would release, read from the sandbox; none for what it removes, and for
    /// what a commit leaves out.
    ///
    /// *Guarantees:* changes nothing; each file is read once. What [`prepare`](Self::prepare) stages has the same digests,
    /// and so has the same change in a sandbox of any other strategy.
    fn digests(&self, changes: &[Change]) -> Result<VersionDigests>;

    /// The contents of the versions that a change carries and the files do not show, by their names; without very large ones.
    ///
    /// *Guarantees:* changes nothing.
    fn carried(&self, _change: &Change) -> Result<CarriedContents> {
        Ok(CarriedContents::new())
    }

    /// Keeps the versions of the original from which these changes of the sandbox began, so that a commit can merge text files
    /// that both sides changed. What the original has no longer is not kept.
    ///
    /// *Guarantees:* original and sandbox are untouched. *After a crash:* nothing half kept counts. *Idempotent:* yes.
    fn keep_bases(&self, _changes: &[Change]) -> Result<()> {
        Ok(())
    }

    /// The paths of these changes that the original changed too since the sandbox was made.
    ///
    /// *Guarantees:* changes nothing.
    fn both_sides(&self, _changes: &[Change]) -> Result<BothSides> {
        Ok(BothSides::new())
    }

    /// Discards every change in the sandbox, which can then be worked in again; says what was done. That is durable once
    /// the caller has synced the file system of the area.
    ///
    /// *Guarantees:* the original is untouched, and afterwards the diff is empty. *After a crash:* some of it may be done;
    /// calling again finishes. *Idempotent:* yes. *Errors:* [`Unsupported`](StrategyError::Unsupported) where nothing
    /// isolates.
    fn rollback(&self, observer: &dyn Observer) -> Result<String>;

    /// Keeps the sandbox as it is. `parent` is the newest snapshot that is kept.
    ///
    /// *Guarantees:* the original is untouched, the sandbox goes on as it was, and what was kept is
    /// durable. *After a crash:* something may be kept that the caller does not know, until
    /// [`retain`](Self::retain). *Errors:* [`Unsupported`](StrategyError::Unsupported) where no checkpoints are promised.
    fn checkpoint(&self, parent: Option<&Snapshot>, observer: &dyn Observer) -> Result<Snapshot>;

    /// Releases every snapshot but these, and returns these in their order. In an exclusive session it may make fewer
    /// things of what only they need, and return rewritten ones: the caller stores those, and calls again.
    ///
    /// *Guarantees:* the ones that were given stay valid until a call is given the ones that were returned. *After a
    /// crash:* calling again with either finishes. *Idempotent:* yes.
    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>>;

    /// What a commit would do, and what contradicts it.
    ///
    /// *Guarantees:* changes nothing.
    fn preview(&self, options: &PreviewOptions) -> Result<Preview>;

    /// Does everything of a commit that can fail, short of touching the original.
    ///
    /// *Guarantees:* the original is untouched and the sandbox holds what it held; what the intent
    /// refers to is durable once the caller has synced the file system of the request's area, which it does once for
    /// many members. *After a crash:* remains lie in the request's area
    /// only, which the caller removes. *Errors:* nothing is promised.
    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit>;

    /// Does everything of a return to a snapshot that can fail, short of changing the sandbox. Should the command of a live
    /// session be gone before it is over, [`commit`](Strategy::commit) and [`undo`](Strategy::undo) do with what is prepared.
    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent>;

    /// The same for a sandbox in which some paths become what the original has, and all else stays: [`RestoreRequest::to`] is where it
    /// is. What stays is possible without them. *Errors:* [`Unsupported`](StrategyError::Unsupported) where it only returns as a whole.
    fn prepare_discard(
        &self,
        _request: &RestoreRequest<'_>,
        _paths: &BTreeSet<ResourcePath>,
    ) -> Result<Intent> {
        let why = "without `--only` it is rolled back as a whole";
        Err(unsupported("the sandbox", "give some paths back", why))
    }

    /// Takes in what an undone commit had released, and its undo took back, at every path where the sandbox has no change of
    /// its own.
    ///
    /// *Guarantees:* the original is untouched, and so is what the intent refers to. *After a crash:* some of it may be there;
    /// calling again finishes. *Errors:* [`Unsupported`](StrategyError::Unsupported) without [`Capabilities::reopens`].
    fn take_in(&self, intent: &Intent) -> Result<()> {
        match intent.0.is_null() {
            true => Ok(()),
            false => {
                let why = "the strategy keeps no changes beside the sandbox";
                Err(unsupported("the sandbox", "hold undone changes again", why))
            }
        }
    }

    /// How the sandbox is reached.
    fn access(&self) -> Result<Access>;

    /// Runs one statement in the language of the sandbox, where it is a database; `read_only` changes nothing.
    ///
    /// *Guarantees:* the original is untouched. *Errors:* [`Unsupported`](StrategyError::Unsupported) where it is none.
    fn query(&self, _statement: &str, _read_only: bool) -> Result<QueryResult> {
        Err(unsupported(
            "the sandbox",
            "run SQL",
            "it is not a database",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EntryInfo, EntryKind};

    fn round_trip<T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
        one: T,
    ) {
        let text = serde_json::to_string(&one).expect("it can be written");
        assert_eq!(
            serde_json::from_str::<T>(&text).expect("it can be read"),
            one
        );
    }

    #[test]
    fn every_answer_of_the_contract_survives_the_wire() {
        let path = ResourcePath::parse(b"a/b\xff").expect("a path");
        let entry = EntryInfo {
            kind: EntryKind::File,
            size: 3,
            mode: 0o644,
            target: None,
        };
        let note = PreviewNote {
            path: path.clone(),
            what: "left out".to_owned(),
        };
        let diff = DiffView::new(vec![Change::added(path.clone(), entry.clone())]);
        round_trip(diff.clone());
        round_trip(Preview {
            diff: diff.into(),
            conflicts: vec![Conflict {
                theirs: Some(entry),
                ..Conflict::of(path.clone(), "changed")
            }],
            notes: vec![note.clone()],
            bytes: 3,
            part: true,
            live: false,
            merged: vec![path.clone()],
            in_hunks: vec![path.clone()],
            lasting: true,
        });
        let intent = Intent(serde_json::json!({"area": "x"}));
        let digest = crate::model::digest::VersionDigest::new(&[b"content"], true);
        round_trip(StagedCommit {
            intent: intent.clone(),
            digests: vec![(path.clone(), digest)],
        });
        round_trip(FinishedCommit {
            intent,
            notes: vec![note],
        });
        let mut paths = PathSample::default();
        paths.add(&path);
        round_trip(RollbackReport {
            kept: vec![(path, Location::from("/kept"))],
            paths,
            lost: vec!["its changes".to_owned()],
            stays: Vec::new(),
        });
        let ids = crate::model::SystemIdSource;
        round_trip(Created {
            sandbox: SandboxRef {
                plan_id: PlanId::new(&ids),
                resource_id: crate::model::ResourceId::new(&ids),
                strategy_name: "toy".to_owned(),
                metadata: serde_json::Value::Null,
            },
            message: "made".to_owned(),
            warnings: vec!["a socket is not copied".to_owned()],
        });
        round_trip(Access::default());
        round_trip(Capabilities::default());
        round_trip(Probe::yes("it works"));
        round_trip(PreviewOptions::default());
        round_trip(OnConflict::Ours);
    }
}
