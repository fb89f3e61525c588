//! `none`: no isolation. The sandbox is the original itself; only when asked for by name.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use super::tree::{self, Original, STAGE};
use super::{
    Access, Capabilities, CreateRequest, Created, Exposes, Intent, Outcome, PrepareRequest,
    Preview, PreviewOptions, Probe, RestoreRequest, RollbackReport, Sandbox, Session, Snapshot,
    StagedCommit, Strategy, Target, unsupported,
};
use crate::event::Observer;
use crate::fs::{Dir, remove};
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::{Change, Conflict, DiffView, ResourcePath, SandboxRef};

pub(super) const NAME: &str = "none";

pub(super) struct NoIsolation;

#[derive(Serialize, Deserialize)]
struct NoneMetadata {
    original: Original,
    area: Location,
    #[serde(default)]
    carved: Vec<ResourcePath>,
}

pub(super) fn no_snapshots(what: &str) -> StrategyError {
    let why = "nothing is isolated, so there is nothing to save";
    unsupported(NAME, what, why)
}

pub(super) fn nothing_isolated(what: &str) -> StrategyError {
    let why = "nothing was isolated, so what was written is already in the original";
    unsupported(NAME, what, why)
}

impl Strategy for NoIsolation {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            survives: true,
            retryable: true,
            live: true,
            exposes: Exposes::Path,
            area: true,
            strength: 1,
            ..Capabilities::default()
        }
    }

    fn probe(&self, _target: &Target, _area: Option<&Path>) -> Probe {
        Probe::yes("nothing is needed, and nothing is protected: only when asked for by name")
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        if request.from.is_some() {
            return Err(no_snapshots("be forked"));
        }
        let (at, place) = tree::places(NAME, request)?;
        let (original, _) = Original::take_any(at)?;
        let area = Dir::open(place)?;
        remove::remove(&area, STAGE)?;
        area.make_dir(STAGE, 0o700)?;
        let metadata = NoneMetadata {
            original,
            area: Location::from(place),
            carved: request.target.carved.clone(),
        };
        let warnings = vec!["every write changes the original at once".to_owned()];
        let message = "no isolation";
        Ok(tree::created(NAME, request, &metadata, message, warnings))
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        _parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        let metadata: NoneMetadata = tree::metadata(sandbox)?;
        if session == Session::Exclusive {
            metadata.original.open()?;
        }
        Ok(Box::new(metadata))
    }

    fn commit(&self, _intent: &Intent, _observer: &dyn Observer) -> Result<()> {
        // What was written is in the original already.
        Ok(())
    }

    fn undo(&self, _intent: &Intent, _observer: &dyn Observer) -> Result<RollbackReport> {
        Err(nothing_isolated("undo a commit"))
    }

    fn outcome(&self, _intent: &Intent) -> Result<Outcome> {
        Ok(Outcome::Done)
    }

    fn check_undo(&self, _intent: &Intent) -> Result<Vec<Conflict>> {
        Ok(Vec::new())
    }

    fn cleanup(&self, _: &SandboxRef, _: &Target, _: Option<&Path>) -> Result<()> {
        // Everything lies in the area.
        Ok(())
    }
}

impl Sandbox for NoneMetadata {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        self.original.check(path)?;
        tree::check_carved(path, &self.carved)?;
        tree::read(&self.original.open()?, path)
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        self.original.check(path)?;
        tree::check_carved(path, &self.carved)?;
        let root = self.original.open()?;
        let stage = Dir::open(self.area.as_path())?.subdir(STAGE)?;
        // Only within one file system can a staged file be moved to its place.
        let near = stage.meta()?.dev == root.meta()?.dev;
        tree::write(&root, near.then_some(&stage), path, content)
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        if from.or(to).is_some() {
            return Err(no_snapshots("compare with a checkpoint"));
        }
        // Sandbox and original are one thing, so they never differ.
        self.original.open().map(|_| DiffView::default())
    }

    fn digests(&self, _changes: &[Change]) -> Result<VersionDigests> {
        Ok(Vec::new())
    }

    fn rollback(&self, _observer: &dyn Observer) -> Result<String> {
        Err(nothing_isolated("discard changes"))
    }

    fn checkpoint(&self, _parent: Option<&Snapshot>, _observer: &dyn Observer) -> Result<Snapshot> {
        Err(no_snapshots("take a checkpoint"))
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        Ok(keep.to_vec())
    }

    fn preview(&self, _options: &PreviewOptions) -> Result<Preview> {
        self.original.open()?;
        Ok(Preview::default())
    }

    fn prepare(&self, _request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let intent = Intent(tree::stored(self));
        Ok(StagedCommit {
            intent,
            ..StagedCommit::default()
        })
    }

    fn prepare_restore(&self, _request: &RestoreRequest<'_>) -> Result<Intent> {
        Err(no_snapshots("return to a checkpoint"))
    }

    fn access(&self) -> Result<Access> {
        let root = self.original.open()?;
        tree::access(&self.original, &root, None, None)
    }
}
