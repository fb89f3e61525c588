//! What the directory strategies do alike: they open sessions, and carry out, take back, check and finish intents.

use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::error::Result;
use super::moves::MoveLog;
use super::tree_commit::LastPreview;
use super::{
    Capabilities, CreateRequest, Created, FinishedCommit, Intent, LiveView, Outcome, Probe,
    RollbackReport, Sandbox, Session, Strategy, Target, UndoChoices, UndoPlan, tree, tree_commit,
};
use crate::event::Observer;
use crate::fs::{Dir, MovedEntries};
use crate::model::{Conflict, SandboxRef};

/// In what directory strategies differ, beside their [`TreeSession`].
pub(super) trait TreeKind: Send + Sync + 'static {
    /// How a sandbox returns to a snapshot.
    type Switch: RestoreSwitch;

    fn name(&self) -> &str;
    fn capabilities(&self) -> Capabilities;
    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe;
    fn create(&self, request: &CreateRequest<'_>) -> Result<Created>;

    /// Refuses a session with a sandbox that is damaged, or whose original is gone and needed.
    fn check(sandbox: &SandboxRef, session: &Session) -> Result<()>;
}

/// A return to a snapshot that is one switch, instead of a commit of the differences. Its intent has the key `switch`.
pub(super) trait RestoreSwitch: DeserializeOwned {
    /// Goes there, or back.
    fn go(self, back: bool) -> Result<()>;
}

/// A directory strategy.
pub(super) struct TreeStrategy<K> {
    kind: K,
    moves: Arc<MoveLog>,
}

/// A session with the sandbox of one.
pub(super) struct TreeSession<K> {
    pub(super) reference: SandboxRef,
    pub(super) session: Session,
    /// The partial commits that stand.
    pub(super) parts: Vec<Intent>,
    /// What the last preview found.
    pub(super) found: LastPreview,
    moves: Arc<MoveLog>,
    kind: PhantomData<K>,
}

impl<K: TreeKind + Default> TreeStrategy<K> {
    pub(super) fn new(moves: &Arc<MoveLog>) -> Self {
        Self {
            kind: K::default(),
            moves: Arc::clone(moves),
        }
    }
}

/// The switch that an intent is, if it is one.
fn switch<K: TreeKind>(intent: &Intent) -> Result<Option<K::Switch>> {
    match intent.0.get("switch") {
        Some(_) => tree::parse(&intent.0, "the restore intent").map(Some),
        None => Ok(None),
    }
}

impl<K: TreeKind> Strategy for TreeStrategy<K>
where
    TreeSession<K>: Sandbox,
{
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.kind.capabilities()
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        self.kind.probe(target, area)
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        self.kind.create(request)
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        K::check(sandbox, &session)?;
        Ok(Box::new(TreeSession::<K> {
            reference: sandbox.clone(),
            session,
            parts: parts.to_vec(),
            found: LastPreview::default(),
            moves: Arc::clone(&self.moves),
            kind: PhantomData,
        }))
    }

    fn commit(&self, intent: &Intent, observer: &dyn Observer) -> Result<()> {
        match switch::<K>(intent)? {
            Some(switch) => switch.go(false),
            None => tree_commit::apply(intent, observer),
        }
    }

    fn undo(&self, intent: &Intent, _observer: &dyn Observer) -> Result<RollbackReport> {
        if let Some(switch) = switch::<K>(intent)? {
            return switch.go(true).map(|()| RollbackReport::default());
        }
        let (done, moved) = tree_commit::undo(intent)?;
        // What was moved in a sandbox's own tree is of no original.
        if tree_commit::own_area(intent)?.is_none() {
            self.moves.add(tree_commit::device(intent)?, &moved);
        }
        Ok(done)
    }

    /// Checks that everything is there as it was written. It can be carried out again whatever was done of it.
    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        if switch::<K>(intent)?.is_none() {
            tree_commit::verify(intent)?;
        }
        Ok(Outcome::NotDone)
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        let moved = self.moves.read(tree_commit::device(intent)?)?;
        tree_commit::check(intent, &moved)
    }

    fn plan_undo(&self, intent: &Intent, choices: &UndoChoices, record: bool) -> Result<UndoPlan> {
        tree_commit::plan_undo(intent, choices, record)
    }

    fn finish(&self, intent: Intent) -> Result<FinishedCommit> {
        let (finished, moved) = tree_commit::finish(intent)?;
        let device = tree_commit::device(&finished.intent)?;
        self.moves.add(device, &moved);
        Ok(finished)
    }

    fn cleanup(&self, _: &SandboxRef, _: &Target, _: Option<&Path>) -> Result<()> {
        // Everything lies in the area, with which its subvolumes go, and nothing was ever mounted.
        Ok(())
    }
}

impl<K> TreeSession<K> {
    /// What Escrow moved on the file system of the original.
    pub(super) fn moves(&self, original: &Dir) -> Result<MovedEntries> {
        self.moves.read(original.meta()?.dev)
    }

    /// Where a command sees the sandbox, if one is inside.
    pub(super) fn live(&self) -> Option<&LiveView> {
        match &self.session {
            Session::Live(view) => Some(view),
            _ => None,
        }
    }
}
