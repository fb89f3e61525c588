//! `none`: no isolation. The sandbox is the original itself, only where the user says so by name.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use super::tree::{self, Original};
use super::{Access, Base, Capabilities, Checkpoints, CreateRequest, Created, Probe, Strategy};
use crate::event::Observer;
use crate::model::{ChangeKind, DiffView, ResourcePath, SandboxRef};

const NAME: &str = "none";

pub(super) struct NoIsolation;

#[derive(Serialize, Deserialize)]
struct Metadata {
    original: Original,
}

fn open(sandbox: &SandboxRef) -> Result<crate::fs::Dir> {
    tree::metadata::<Metadata>(sandbox)?.original.open()
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

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let (original, _) = Original::take(request.original)?;
        Ok(Created {
            sandbox: SandboxRef {
                plan_id: request.plan_id,
                resource_id: request.resource_id,
                strategy: NAME.to_owned(),
                metadata: tree::stored(&Metadata { original }),
            },
            message: "no isolation".to_owned(),
            warnings: vec!["every write changes the original at once".to_owned()],
        })
    }

    fn read(&self, sandbox: &SandboxRef, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        tree::read(&open(sandbox)?, path)
    }

    fn write(
        &self,
        sandbox: &SandboxRef,
        path: &ResourcePath,
        content: &mut dyn Read,
    ) -> Result<ChangeKind> {
        tree::write(&open(sandbox)?, None, path, content)
    }

    fn diff(&self, sandbox: &SandboxRef) -> Result<DiffView> {
        // Sandbox and original are one thing, so they never differ.
        open(sandbox).map(|_| DiffView::default())
    }

    fn rollback(&self, _sandbox: &SandboxRef, _observer: &dyn Observer) -> Result<String> {
        Err(StrategyError::Unsupported {
            strategy: NAME,
            what: "discard changes",
            why: "nothing was isolated, so what was written is already in the original".to_owned(),
        })
    }

    fn access(&self, sandbox: &SandboxRef) -> Result<Access> {
        Ok(Access::Directory(open(sandbox)?.path().to_owned()))
    }

    fn cleanup(&self, _sandbox: &SandboxRef) -> Result<()> {
        // It made nothing, so there is nothing to remove.
        Ok(())
    }
}
