//! `none`: no isolation. The sandbox is the original itself, only where the user says so by name.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use super::tree::{self, Original, STAGE};
use super::{
    Access, Base, Capabilities, Checkpoints, CreateRequest, Created, Intent, Moment, Outcome,
    Probe, RolledBack, Strategy,
};
use crate::event::Observer;
use crate::fs::{Dir, remove};
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Change, ChangeKind, DiffView, ResourcePath, SandboxRef};

const NAME: &str = "none";

pub(super) struct NoIsolation;

#[derive(Serialize, Deserialize)]
struct Metadata {
    original: Original,
    area: Location,
    #[serde(default)]
    carved: Vec<ResourcePath>,
}

fn open(sandbox: &SandboxRef) -> Result<Dir> {
    tree::metadata::<Metadata>(sandbox)?.original.open()
}

fn no_moments(what: &'static str) -> StrategyError {
    StrategyError::Unsupported {
        strategy: NAME,
        what,
        why: "nothing is isolated, so there is nothing of its own to keep".to_owned(),
    }
}

fn nothing_isolated(what: &'static str) -> StrategyError {
    StrategyError::Unsupported {
        strategy: NAME,
        what,
        why: "nothing was isolated, so what was written is already in the original".to_owned(),
    }
}

impl Strategy for NoIsolation {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolates: false,
            base: Base::Live,
            prepares: false,
            undoes: false,
            checkpoints: Checkpoints::None,
            gives_path: true,
            strength: 1,
        }
    }

    fn probe(&self, _original: &Path, _area: &Path) -> Probe {
        Probe::yes("nothing is needed, and nothing is protected: only when asked for by name")
    }

    fn limit(&self, _original: &Path, _most: usize) -> Option<String> {
        None
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let (original, _) = Original::take_any(request.original)?;
        let area = Dir::open(request.area)?;
        remove::remove(&area, STAGE)?;
        area.make_dir(STAGE, 0o700)?;
        let metadata = Metadata {
            original,
            area: Location::from(request.area),
            carved: request.carved.to_vec(),
        };
        Ok(Created {
            sandbox: SandboxRef {
                plan_id: request.plan_id,
                resource_id: request.resource_id,
                strategy: NAME.to_owned(),
                metadata: tree::stored(&metadata),
            },
            message: "no isolation".to_owned(),
            warnings: vec!["every write changes the original at once".to_owned()],
        })
    }

    fn read(&self, sandbox: &SandboxRef, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let metadata: Metadata = tree::metadata(sandbox)?;
        metadata.original.check(path)?;
        tree::check_carved(path, &metadata.carved)?;
        tree::read(&metadata.original.open()?, path)
    }

    fn write(
        &self,
        sandbox: &SandboxRef,
        path: &ResourcePath,
        content: &mut dyn Read,
    ) -> Result<ChangeKind> {
        let metadata: Metadata = tree::metadata(sandbox)?;
        metadata.original.check(path)?;
        tree::check_carved(path, &metadata.carved)?;
        let root = metadata.original.open()?;
        let stage = Dir::open(metadata.area.as_path())?.subdir(STAGE)?;
        // Only within one file system can a staged file be moved to its place.
        let near = stage.meta()?.dev == root.meta()?.dev;
        tree::write(&root, near.then_some(&stage), path, content)
    }

    fn diff(&self, sandbox: &SandboxRef) -> Result<DiffView> {
        // Sandbox and original are one thing, so they never differ.
        open(sandbox).map(|_| DiffView::default())
    }

    fn digests(&self, _sandbox: &SandboxRef, _changes: &[Change]) -> Result<VersionDigests> {
        Ok(Vec::new())
    }

    fn commit(
        &self,
        _sandbox: &SandboxRef,
        _intent: &Intent,
        _observer: &dyn Observer,
    ) -> Result<()> {
        // What was written is in the original already.
        Ok(())
    }

    fn outcome(&self, _sandbox: &SandboxRef, _intent: &Intent) -> Result<Outcome> {
        Ok(Outcome::Done)
    }

    fn check_discard(&self, _sandbox: &SandboxRef) -> Result<()> {
        Err(nothing_isolated("discard changes"))
    }

    fn rollback(
        &self,
        _sandbox: &SandboxRef,
        intent: Option<&Intent>,
        _observer: &dyn Observer,
    ) -> Result<RolledBack> {
        Err(nothing_isolated(match intent {
            Some(_) => "undo a commit",
            None => "discard changes",
        }))
    }

    fn checkpoint(
        &self,
        _sandbox: &SandboxRef,
        _last: Option<&Moment>,
        _observer: &dyn Observer,
    ) -> Result<Moment> {
        Err(no_moments("take a checkpoint"))
    }

    fn restore_checkpoint(
        &self,
        _sandbox: &SandboxRef,
        _intent: &Intent,
        _observer: &dyn Observer,
    ) -> Result<()> {
        Err(no_moments("return to a checkpoint"))
    }

    fn access(&self, sandbox: &SandboxRef) -> Result<Access> {
        Ok(Access::Directory(open(sandbox)?.path().to_owned()))
    }

    fn view(&self, sandbox: &SandboxRef) -> Result<View> {
        let original = tree::metadata::<Metadata>(sandbox)?.original;
        tree::view_of(NAME, &original, &original.open()?)
    }

    fn cleanup(&self, _sandbox: &SandboxRef) -> Result<()> {
        // Everything lies in the area.
        Ok(())
    }
}
