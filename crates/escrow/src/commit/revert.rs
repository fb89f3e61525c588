//! Takes steps back, last first, and says what could not be: an abort before the point of no return, and an undo.

use super::step::{self, Direction};
use super::{Execution, chain};
use crate::error::{Error, Result};
use crate::failpoints;
use crate::fs::workspace::is_there;
use crate::model::text::Location;
use crate::model::{JournaledWork, Phase, ResourcePath, SandboxState};
use crate::store::Plan;
use crate::strategy::{Intent, PathSample, StrategyError};

/// What became of each member.
#[derive(Debug, Default)]
pub(super) struct Reverted {
    /// Members that are as they were.
    pub(super) undone: Vec<String>,
    /// Members that are not, and why.
    pub(super) not_undone: Vec<(String, String)>,
    /// Of these, those that never can be.
    irreversible: usize,
    /// What others wrote meanwhile, and where it is kept now.
    pub(super) kept: Vec<(String, ResourcePath, Location)>,
    /// What was staged and could not be removed, and why. No original is concerned (rule C7).
    pub(super) left: Vec<String>,
    /// Entries of others in directories that the commit had made, which stay.
    pub(super) stays: Vec<(String, ResourcePath)>,
    /// Work of sandboxes that went with what was taken back.
    pub(super) lost: Vec<String>,
    /// The paths that were taken back in each resource, as far as they are known.
    pub(super) paths: Vec<(String, PathSample)>,
}

/// What became of a commit that was never decided.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    /// What was staged and could not be removed, and why.
    pub(super) left: Vec<String>,
    /// Work of sandboxes that went with what was prepared.
    pub(super) lost: Vec<String>,
}

impl Reverted {
    /// Whether trying again may still help.
    fn is_open(&self) -> bool {
        self.not_undone.len() > self.irreversible
    }

    /// The one error of what failed (rule C5).
    pub(super) fn into_error(self, plan: &Plan, work: JournaledWork, cause: Error) -> Error {
        // A restore that was taken back as a whole is reported by its cause alone.
        if work == JournaledWork::Restore && self.not_undone.is_empty() && self.kept.is_empty() {
            return match self.left.is_empty() {
                true => cause,
                false => Error::LeftBehind {
                    first: Box::new(cause),
                    left: self.left.join("; "),
                },
            };
        }
        let open = self.is_open();
        Error::CommitFailed {
            work,
            plan: plan.name.clone(),
            undone: self.undone,
            not_undone: self.not_undone,
            kept: self.kept,
            left: self.left,
            lost: self.lost,
            undo: matches!(cause, Error::Undoing),
            cause: Box::new(cause),
            open,
        }
    }
}

impl Execution<'_> {
    /// Forgets what was never decided; no original was touched, and none is.
    pub(super) fn drop_prepared(&mut self) -> Result<Dropped> {
        let held = (0..self.members.len()).map(|position| self.held(position));
        let held: Vec<Option<Intent>> = held.collect::<Result<_>>()?;
        let mut dropped = Dropped::default();
        // The opposite of the decision, durably, before anything is removed: should the decision be on
        // disk after all, this finds nothing to forget, and nothing is touched.
        if held.iter().any(Option::is_some) {
            // What is kept elsewhere is known to the journal until it is released (rule Q8).
            self.set_phase(Phase::Aborting)?;
            let mut failed = None;
            for (position, intent) in held.iter().enumerate() {
                match self.release_held(position, intent.as_ref()) {
                    Ok(lost) => dropped.lost.extend(lost),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            failed.map_or(Ok(()), Err)?;
            self.engine.store.forget_commit(self.journal.id)?;
        } else if !self.engine.store.forget_undecided(self.journal.id)? {
            return Err(Error::Interrupted {
                why: "it is not known whether the decision was recorded".to_owned(),
            });
        }
        dropped.left = self.remove_areas();
        Ok(dropped)
    }

    /// What was prepared for a member and is kept elsewhere, as a prepared transaction. What can be undone and has an area is
    /// staged there and goes with it: its undo would look at the original, and nothing was done there.
    fn held(&self, position: usize) -> Result<Option<Intent>> {
        let can = self.members[position].capabilities();
        let elsewhere = can.only_forward() || can.prepares && !can.area;
        let held = self.journal.work == JournaledWork::Commit && elsewhere;
        Ok(self.prepared(position)?.filter(|_| held))
    }

    /// Releases that; returns what work was lost with it.
    fn release_held(&self, position: usize, intent: Option<&Intent>) -> Result<Vec<String>> {
        let member = &self.members[position];
        match intent {
            Some(intent) => Ok(step::revert(&self.engine, member, intent)?.lost),
            None => Ok(Vec::new()),
        }
    }

    /// Decides that it does not happen, and takes back what was done of it. Nothing is touched before that decision is
    /// durable; if it cannot be made, the error says so and recovery goes on. Once a step was carried out that cannot be
    /// taken back, the store refuses it.
    pub(super) fn give_up(&mut self) -> Result<Reverted> {
        self.set_phase(Phase::Aborting)?;
        if failpoints::bug("stage-removed-early") {
            self.remove_areas();
        }
        self.go_back()
    }

    /// Goes on with an abort, or with an undo; can be repeated. The journal stays until all members are as before, but
    /// for those that never can be.
    pub(super) fn go_back(&mut self) -> Result<Reverted> {
        let mut reverted = self.take_back();
        if reverted.is_open() {
            return Ok(reverted);
        }
        // What is set aside is not taken back again, so nothing would find these moves any more.
        self.engine.registry.remember()?;
        let undoing = self.journal.phase == Phase::Undoing;
        let again = undoing && self.opens_again()?;
        match again {
            false => self.set_aside(&mut reverted)?,
            true => self.set_apart(&mut reverted)?,
        }
        let store = self.engine.store;
        if undoing {
            store.finish_undo(&self.journal, again)?;
        } else {
            store.forget_commit(self.journal.id)?;
        }
        if again {
            // What the commit had released lies there until its plan is open again.
            return Ok(reverted);
        }
        reverted.left.extend(self.remove_areas());
        if undoing && let Err(error) = self.engine.forget() {
            reverted.left.push(chain(&error));
        }
        Ok(reverted)
    }

    /// Whether what an undo takes back still has to be put into sandboxes: those of a part are there, as a rule.
    pub(super) fn opens_again(&self) -> Result<bool> {
        let (mut missing, mut reopens) = (!self.journal.part, false);
        for member in &self.members {
            let sandbox = self.engine.store.sandbox(member.sandbox.id)?;
            let there = sandbox.is_some_and(|one| one.state != SandboxState::CleanedUp);
            missing |= !there;
            reopens |= there || member.capabilities().reopens;
        }
        Ok(missing && reopens)
    }

    /// Takes every member back, last first; one that fails does not stop the others (rules C4, C17).
    pub(super) fn take_back(&self) -> Reverted {
        let mut reverted = Reverted::default();
        if failpoints::bug("no-undo-on-failure") {
            return reverted;
        }
        for (position, member) in self.members.iter().enumerate().rev() {
            match self.take_one(position, &mut reverted) {
                Ok(true) => reverted.undone.push(member.name()),
                Ok(false) => {}
                Err(error) => {
                    // Only what never promised to be taken back is given up: the rest is tried again, and keeps what it needs.
                    let promised = member.direction(self.journal.work) == Direction::Reversible;
                    let cannot =
                        matches!(error, Error::Strategy(StrategyError::Unsupported { .. }));
                    reverted.irreversible += usize::from(cannot && !promised);
                    reverted.not_undone.push((member.name(), chain(&error)));
                }
            }
        }
        reverted
    }

    /// Whether there was anything to take back.
    fn take_one(&self, position: usize, reverted: &mut Reverted) -> Result<bool> {
        let (work, member) = (self.journal.work, &self.members[position]);
        let Some(intent) = self.intent(position)? else {
            return Ok(false);
        };
        let recorded = &self.journal.members[position];
        if member.direction(work) != Direction::Reversible && !recorded.carried {
            let held = self.held(position)?;
            let lost = self.release_held(position, held.as_ref())?;
            reverted.lost.extend(lost);
            return Ok(false);
        }
        let aside = self.aside(position);
        let there = |at: &Location| is_there(at.as_path());
        if !recorded.area.as_bytes().is_empty() && there(&aside) {
            // A process before this one moved it, and died before the journal knew.
            let path = ResourcePath::root();
            reverted.kept.push((member.name(), path, aside));
            if !there(&recorded.area) {
                return Ok(true);
            }
        }
        let undone = step::revert(&self.engine, member, &intent)?;
        let name = member.name();
        reverted.lost.extend(undone.lost);
        let stays = undone.stays.into_iter().map(|path| (name.clone(), path));
        reverted.stays.extend(stays);
        reverted.paths.push((name.clone(), undone.paths));
        let kept = undone.kept.into_iter();
        let named = kept.map(|(path, at)| (name.clone(), path, at));
        reverted.kept.extend(named);
        Ok(true)
    }

    /// Puts what others wrote out of the way of everything that removes, and says where it is now.
    fn set_aside(&self, reverted: &mut Reverted) -> Result<()> {
        for (position, member) in self.journal.members.iter().enumerate() {
            let area = member.area.as_path();
            let holds = |at: &Location| at.as_path().starts_with(area);
            if area.as_os_str().is_empty() || !reverted.kept.iter().any(|(_, _, at)| holds(at)) {
                continue;
            }
            let aside = self.aside(position);
            self.engine.areas.set_aside(area, aside.as_path())?;
            for (_, _, at) in &mut reverted.kept {
                if let Ok(below) = at.as_path().strip_prefix(area) {
                    *at = Location::from(aside.as_path().join(below));
                }
            }
        }
        Ok(())
    }

    /// The same of areas from which sandboxes take the rest.
    fn set_apart(&self, reverted: &mut Reverted) -> Result<()> {
        for (position, member) in self.journal.members.iter().enumerate() {
            let area = member.area.as_path();
            let aside = self.aside(position);
            for (_, _, at) in &mut reverted.kept {
                if !area.as_os_str().is_empty() && at.as_path().starts_with(area) {
                    *at = self
                        .engine
                        .areas
                        .set_one_aside(at.as_path(), aside.as_path())?;
                }
            }
        }
        Ok(())
    }

    /// Where the area of a member is put when it holds what others wrote.
    fn aside(&self, position: usize) -> Location {
        let mut name = self.journal.members[position].area.as_bytes().to_vec();
        name.extend_from_slice(format!(".kept-{}", self.journal.id).as_bytes());
        Location::from_bytes(&name)
    }
}
