//! What was carried out is brought to its end.

use super::shared_layers;
use super::{Execution, Member, scratch_name, written};
use crate::error::{Error, Result, chain};
use crate::fs::workspace;
use crate::model::{JournaledWork, SandboxState};
use crate::strategy::{Checkpoints, PreviewNote};

impl Execution<'_> {
    /// Ends what was carried out, in one transaction; returns what could not be removed.
    pub(super) fn finish(&self) -> Result<Vec<(String, String)>> {
        match self.journal.work {
            JournaledWork::Restore => {
                let mut members = self.members.iter();
                let linear =
                    members.any(|one| one.capabilities().checkpoints == Checkpoints::Linear);
                let ended = self.engine.store.finish_restore(&self.journal, linear);
                ended.map_err(|error| self.unrecorded(error.into()))?;
                let left = self.remove_areas().into_iter();
                Ok(left.map(|why| ("staging".to_owned(), why)).collect())
            }
            JournaledWork::Rollback => {
                let ended = self.finish_rollback();
                ended.map(|()| Vec::new()).map_err(|error| {
                    let what = "what was written beside the sandboxes, or the record of it";
                    let done = self.members.iter().map(Member::name).collect();
                    self.forward(done, vec![(what.to_owned(), chain(&error))], Vec::new())
                })
            }
            _ => self.finish_commit(),
        }
    }

    /// It happened, but that could not be recorded.
    pub(super) fn unrecorded(&self, error: Error) -> Error {
        Error::Unrecorded {
            work: self.journal.work,
            plan: self.plan.name.clone(),
            cause: Box::new(error),
        }
    }

    fn finish_rollback(&self) -> Result<()> {
        self.engine.areas.remove_own(&scratch_name(&self.plan))?;
        let areas = self.members.iter().map(|member| &member.sandbox.area);
        workspace::sync_file_systems(areas.map(|area| area.as_path()))?;
        let mut states = Vec::new();
        for member in &self.members {
            let next = member.sandbox.state.go(SandboxState::RolledBack)?;
            states.push((member.sandbox.id, next));
        }
        Ok(self.engine.store.finish_rollback(&self.journal, &states)?)
    }

    /// Removes the sandboxes, unless they stay, notes what is left for undo, and ends the commit. From here on there
    /// is no way back but undo. A sandbox that cannot be removed is reported, and stops nothing (rule C7): what it
    /// shares with its original is copied there. Where that fails too, the commit is not over, and can be continued.
    fn finish_commit(&self) -> Result<Vec<(String, String)>> {
        let Self {
            engine,
            plan,
            journal,
            members,
        } = self;
        let unrecorded = |error: Error| self.unrecorded(error);
        let (mut left, mut states) = (Vec::new(), Vec::new());
        // Of a part nothing goes: the sandboxes are worked in further.
        for member in members.iter().filter(|_| !journal.part) {
            let state = match engine.keeps {
                true => SandboxState::Committed,
                false => match self.release(member) {
                    Ok(()) => SandboxState::CleanedUp,
                    Err(error) => {
                        left.push((member.name(), chain(&error)));
                        SandboxState::Committed
                    }
                },
            };
            states.push((member.sandbox.id, state));
        }
        let (mut intents, mut failure) = (Vec::new(), None);
        for (position, member) in members.iter().enumerate() {
            match self.last_intent(position, &mut left) {
                Ok(intent) => intents.push(intent),
                // The others are finished all the same: what they share is as dangerous (rule C17).
                Err(cause) => failure = failure.or(Some((member.name(), cause))),
            }
        }
        if let Some((resource, cause)) = failure {
            return Err(Error::NotFinished {
                plan: plan.name.clone(),
                resource,
                cause: Box::new(cause),
            });
        }
        // What undo needs is on disk before it counts, and nothing of a sandbox that is gone may come back after a
        // power cut. The area of a commit lies on its original's file system.
        let changed = members
            .iter()
            .zip(&intents)
            .filter(|(_, last)| last.is_some());
        workspace::sync_file_systems(changed.filter_map(|(member, _)| member.resource.root()))
            .map_err(|error| unrecorded(error.into()))?;
        let remembered = engine.registry.remember();
        remembered.map_err(|error| unrecorded(error.into()))?;
        engine
            .store
            .finish_commit(journal, &intents, &states)
            .map_err(|error| unrecorded(error.into()))?;
        // It is over; what can only be tidied up is no reason to say otherwise.
        let tidied = || -> Result<()> {
            if !journal.part {
                let resources = members.iter().map(|member| member.resource.id);
                engine.store.forget_unused(&resources.collect::<Vec<_>>())?;
                for member in members {
                    shared_layers::reclaim(engine, &member.sandbox.reference.depends_on())?;
                }
            }
            engine.forget()
        };
        if let Err(error) = tidied() {
            left.push(("the state".to_owned(), chain(&error)));
        }
        Ok(left)
    }

    /// The intent by which a member can be undone, if there is one.
    fn last_intent(
        &self,
        position: usize,
        left: &mut Vec<(String, String)>,
    ) -> Result<Option<String>> {
        let member = &self.members[position];
        let Some(intent) = self.prepared(position)? else {
            return Ok(None);
        };
        let finished = member.call(|strategy| strategy.finish(intent))?;
        let note = |note: PreviewNote| (member.name(), format!("'{}': {}", note.path, note.what));
        left.extend(finished.notes.into_iter().map(note));
        Ok(Some(written(&finished.intent)))
    }

    /// Removes a sandbox; if that succeeds, no inode is shared with the original.
    pub(super) fn release(&self, member: &Member) -> Result<()> {
        let (reference, sandbox) = (&member.sandbox.reference, &member.sandbox);
        let area = Some(sandbox.area.as_path());
        member.call(|strategy| strategy.cleanup(reference, &member.target, area))?;
        match shared_layers::is_needed(&self.engine, &sandbox.area, sandbox.id)? {
            true => Ok(()),
            false => Ok(workspace::remove(sandbox.area.as_path())?),
        }
    }
}
