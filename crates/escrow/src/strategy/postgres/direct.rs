//! `none` for PostgreSQL: no isolation. Clients are passed on to the database itself; only when asked for by name.

use std::io::Read;
use std::path::Path;

use super::super::error::Result;
use super::super::none::{NAME, no_snapshots, nothing_isolated};
use super::super::{
    Access, Capabilities, CreateRequest, Created, Exposes, Intent, Outcome, PrepareRequest,
    Preview, PreviewOptions, Probe, QueryResult, RestoreRequest, RollbackReport, Sandbox, Session,
    Snapshot, StagedCommit, Strategy, Target, tree,
};
use super::control::HolderSpec;
use super::session::HeldSession;
use super::{HeldMetadata, HeldTransaction, SharedHost, end_holder, location, serve};
use crate::event::Observer;
use crate::model::digest::VersionDigests;
use crate::model::{Change, Conflict, DiffView, ResourcePath, SandboxRef};

/// The strategy.
pub(in crate::strategy) struct Direct {
    held: HeldTransaction,
}

impl Direct {
    pub(in crate::strategy) fn new(host: SharedHost) -> Self {
        Self {
            held: HeldTransaction::new(host),
        }
    }
}

impl Strategy for Direct {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            survives: true,
            retryable: true,
            live: true,
            exposes: Exposes::Url,
            area: true,
            strength: 1,
            ..Capabilities::default()
        }
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        // Nothing is prepared, so it does not matter whether the server lets that be.
        let limit = None;
        Probe {
            limit,
            ..self.held.probe(target, area)
        }
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        if request.from.is_some() {
            return Err(no_snapshots("be forked"));
        }
        let metadata = self.held.metadata(NAME, request)?;
        let warnings = vec!["every statement changes the original at once".to_owned()];
        let message = format!("no isolation of {}", metadata.server.describe());
        Ok(tree::created(NAME, request, &metadata, message, warnings))
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        _session: Session,
        _parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        Ok(Box::new(DirectSession(HeldSession {
            strategy: NAME,
            metadata: tree::metadata(sandbox)?,
            gid: String::new(),
            host: self.held.host(),
        })))
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

    fn cleanup(&self, sandbox: &SandboxRef, _: &Target, _: Option<&Path>) -> Result<()> {
        // What was only begun has started nothing.
        if sandbox.metadata.is_null() {
            return Ok(());
        }
        end_holder(&tree::metadata::<HeldMetadata>(sandbox)?.area)
    }
}

struct DirectSession(HeldSession);

impl DirectSession {
    /// A client of the database, as any other is.
    fn inside(&self) -> Result<&HeldSession> {
        let HeldMetadata { server, area, .. } = &self.0.metadata;
        let spec = HolderSpec {
            server: server.clone(),
            password: location::password(server, &self.0.host.variables),
            area: area.as_path().to_owned(),
            passes: Some(server.database.clone()),
        };
        serve(&self.0.host, &spec)?;
        Ok(&self.0)
    }
}

impl Sandbox for DirectSession {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        self.inside()?.read(path)
    }

    fn write(&self, path: &ResourcePath, bytes: &mut dyn Read) -> Result<Change> {
        self.inside()?.write(path, bytes)
    }

    fn query(&self, statement: &str, read_only: bool) -> Result<QueryResult> {
        self.inside()?.query(statement, read_only)
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        match from.or(to) {
            Some(_) => Err(no_snapshots("compare with a checkpoint")),
            // Sandbox and original are one thing, so they never differ.
            None => Ok(DiffView::default()),
        }
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
        Ok(Preview::default())
    }

    fn prepare(&self, _request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        Ok(StagedCommit {
            intent: Intent(tree::stored(&self.0.metadata)),
            ..StagedCommit::default()
        })
    }

    fn prepare_restore(&self, _request: &RestoreRequest<'_>) -> Result<Intent> {
        Err(no_snapshots("return to a checkpoint"))
    }

    fn access(&self) -> Result<Access> {
        self.inside()?.access()
    }
}
