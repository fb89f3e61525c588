//! A strategy under another name, with options of its own: everything else is that of the other one.

use std::path::Path;
use std::sync::Arc;

use super::error::Result;
use super::{
    Capabilities, CreateRequest, Created, FinishedCommit, Intent, Outcome, Probe, RollbackReport,
    Sandbox, Session, Strategy, Target, UndoChoices, UndoPlan,
};
use crate::event::Observer;
use crate::model::{Conflict, SandboxRef};

/// Another name of a strategy.
pub(super) struct Alias {
    name: String,
    of: Arc<dyn Strategy>,
}

impl Alias {
    pub(super) fn new(name: &str, of: &Arc<dyn Strategy>) -> Self {
        Self {
            name: name.to_owned(),
            of: Arc::clone(of),
        }
    }

    /// A reference as the other one made it.
    fn inner(&self, sandbox: &SandboxRef) -> SandboxRef {
        SandboxRef {
            strategy_name: self.of.name().to_owned(),
            ..sandbox.clone()
        }
    }
}

impl Strategy for Alias {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.of.capabilities()
    }

    fn capabilities_of(&self, sandbox: &SandboxRef) -> Capabilities {
        self.of.capabilities_of(&self.inner(sandbox))
    }

    fn remarks(&self, sandbox: &SandboxRef) -> Vec<String> {
        self.of.remarks(&self.inner(sandbox))
    }

    fn gone(&self, sandbox: &SandboxRef) -> Option<String> {
        self.of.gone(&self.inner(sandbox))
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        self.of.probe(target, area)
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let from = request
            .from
            .map(|(sandbox, snapshot)| (self.inner(sandbox), snapshot));
        let mut created = self.of.create(&CreateRequest {
            from: from
                .as_ref()
                .map(|(sandbox, snapshot)| (sandbox, *snapshot)),
            ..*request
        })?;
        created.sandbox.strategy_name.clone_from(&self.name);
        Ok(created)
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        self.of.open(&self.inner(sandbox), session, parts)
    }

    fn promise(&self, intent: &Intent) -> Result<()> {
        self.of.promise(intent)
    }

    fn commit(&self, intent: &Intent, observer: &dyn Observer) -> Result<()> {
        self.of.commit(intent, observer)
    }

    fn undo(&self, intent: &Intent, observer: &dyn Observer) -> Result<RollbackReport> {
        self.of.undo(intent, observer)
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        self.of.outcome(intent)
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        self.of.check_undo(intent)
    }

    fn takes_in_later(&self, sandbox: &SandboxRef) -> bool {
        self.of.takes_in_later(sandbox)
    }

    fn plan_undo(&self, intent: &Intent, choices: &UndoChoices, record: bool) -> Result<UndoPlan> {
        self.of.plan_undo(intent, choices, record)
    }

    fn finish(&self, intent: Intent) -> Result<FinishedCommit> {
        self.of.finish(intent)
    }

    fn cleanup(&self, sandbox: &SandboxRef, target: &Target, area: Option<&Path>) -> Result<()> {
        self.of.cleanup(&self.inner(sandbox), target, area)
    }
}
