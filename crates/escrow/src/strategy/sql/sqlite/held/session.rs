//! A session with the sandbox of a held transaction: everything is asked of its holder.

use std::io::{Cursor, Read};
use std::path::PathBuf;

use super::super::check_names;
use super::wire::{Answer, Request, all_of};
use super::{HeldIntent, HeldMetadata, NAME, RestoreIntent, ask, end, start, worked_on};
use crate::event::Observer;
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Change, DiffView, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::holder::{no_checkpoint, unexpected};
use crate::strategy::sql::version_digests;
use crate::strategy::{
    Access, Intent, Mount, PrepareRequest, Preview, PreviewOptions, QueryResult, RestoreRequest,
    Sandbox, Snapshot, StagedCommit, tree, unsupported,
};

pub(super) struct HeldSession {
    pub(super) sandbox: HeldMetadata,
    pub(super) helper: PathBuf,
}

fn name_of(snapshot: &Snapshot) -> Result<String> {
    tree::parse(&snapshot.0, "the snapshot")
}

impl HeldSession {
    fn ask(&self, request: &Request) -> Result<Answer> {
        let of = &self.sandbox.of;
        ask(&of.area, &of.original, request)
    }
}

impl Sandbox for HeldSession {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        match self.ask(&Request::Read(path.clone()))? {
            Answer::Text(text) => Ok(Box::new(Cursor::new(text.into_bytes()))),
            _ => Err(unexpected()),
        }
    }

    fn write(&self, path: &ResourcePath, bytes: &mut dyn Read) -> Result<Change> {
        match self.ask(&Request::Write(path.clone(), all_of(path, bytes)?))? {
            Answer::Written(change) => Ok(change),
            _ => Err(unexpected()),
        }
    }

    fn query(&self, statement: &str, read_only: bool) -> Result<QueryResult> {
        let request = Request::Query {
            statement: statement.to_owned(),
            read_only,
        };
        match self.ask(&request)? {
            Answer::Rows(rows) => Ok(rows),
            _ => Err(unexpected()),
        }
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        if from.or(to).is_some() {
            let why = "a held transaction shows no earlier state beside the present one";
            return Err(unsupported(NAME, "compare with a checkpoint", why));
        }
        let preview = self.preview(&PreviewOptions::default())?;
        Ok((*preview.diff).clone())
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        Ok(version_digests(changes))
    }

    fn rollback(&self, _observer: &dyn Observer) -> Result<String> {
        match self.ask(&Request::Rollback) {
            Ok(_) => Ok("its changes were discarded".to_owned()),
            Err(StrategyError::HolderGone { .. }) => {
                let of = &self.sandbox.of;
                end(&of.area, &of.original)?;
                start(&self.helper, of)?;
                Ok("the transaction was gone; began another one".to_owned())
            }
            Err(error) => Err(error),
        }
    }

    fn checkpoint(&self, _parent: Option<&Snapshot>, _observer: &dyn Observer) -> Result<Snapshot> {
        match self.ask(&Request::Checkpoint)? {
            Answer::Kept(name) => Ok(Snapshot(tree::stored(&name))),
            _ => Err(unexpected()),
        }
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        let names = keep.iter().map(name_of).collect::<Result<_>>()?;
        match self.ask(&Request::Retain(names)) {
            // They went with the transaction.
            Ok(_) | Err(StrategyError::HolderGone { .. }) => Ok(keep.to_vec()),
            Err(error) => Err(error),
        }
    }

    fn preview(&self, _options: &PreviewOptions) -> Result<Preview> {
        self.sandbox.of.check_original()?;
        check_names(self.sandbox.of.original.as_path())?;
        match self.ask(&Request::Preview)? {
            Answer::Preview(preview) => Ok(*preview),
            _ => Err(unexpected()),
        }
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let area = tree::commit_area(NAME, request.area)?;
        let Answer::Prepared {
            plan,
            changes,
            state,
        } = self.ask(&Request::Prepare(Location::from(area)))?
        else {
            return Err(unexpected());
        };
        let shown = request.preview.released(request.on_conflict);
        if DiffView::new(changes) != *shown {
            return Err(worked_on());
        }
        let of = &self.sandbox.of;
        Ok(StagedCommit {
            intent: Intent(tree::stored(&HeldIntent {
                plan,
                area: of.area.clone(),
                original: of.original.clone(),
                state,
            })),
            digests: match request.digests {
                true => version_digests(&shown.changes),
                false => VersionDigests::new(),
            },
        })
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let (savepoint, of) = (name_of(request.to)?, &self.sandbox.of);
        match self.ask(&Request::Knows(savepoint.clone()))? {
            Answer::Done => Ok(Intent(tree::stored(&RestoreIntent {
                area: of.area.clone(),
                original: of.original.clone(),
                savepoint,
            }))),
            _ => Err(no_checkpoint()),
        }
    }

    fn access(&self) -> Result<Access> {
        let of = &self.sandbox.of;
        Ok(Access {
            // The rows as they were, which cannot be written; also where a layer of another sandbox lies around it.
            mounts: vec![Mount {
                at: of.original.clone(),
                view: View::ReadOnly(of.original.clone()),
                area: None,
            }],
            env: of.variables(),
            ..Access::default()
        })
    }
}
