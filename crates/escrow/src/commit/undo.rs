//! Takes a finished commit back: all of it, or, where the original moved on, nothing.

use super::{Engine, Member, abort, intent_of};
use crate::error::{Error, Result};
use crate::model::text::Location;
use crate::model::{Conflict, Phase, ResourcePath, SandboxState};
use crate::seeded;
use crate::store::{Journal, Plan};
use crate::strategy::Paths;

/// A commit that was taken back.
#[derive(Debug)]
pub struct Undone {
    /// The resources that are as they were before it.
    pub resources: Vec<String>,
    /// What somebody else wrote meanwhile: resource, path, and where it is kept now.
    pub kept: Vec<(String, ResourcePath, Location)>,
    /// What was kept for undo and could not be removed, and why.
    pub left: Vec<String>,
    /// What was taken back in each resource, as far as it is known.
    pub paths: Vec<(String, Paths)>,
    /// It was the commit of a part: what it had released is its plan's again.
    pub part: bool,
    /// How many earlier commits of the plan still stand.
    pub standing: usize,
}

/// Takes a commit back; the caller holds the locks. An original that moved on is a conflict, and
/// then nothing is done.
pub fn undo(
    engine: Engine<'_>,
    plan: &Plan,
    mut journal: Journal,
    members: &[Member],
) -> Result<Undone> {
    let mut conflicts: Vec<(String, Conflict)> = Vec::new();
    for (position, member) in members.iter().enumerate() {
        let Some(intent) = intent_of(&journal, position)?.filter(|intent| !intent.0.is_null())
        else {
            continue;
        };
        if member.is_irreversible() {
            continue;
        }
        let reference = &member.sandbox.reference;
        let moved = engine.store.moved(member.device()?)?;
        let found = member.call(|strategy| strategy.check_undo(reference, &intent, &moved))?;
        conflicts.extend(found.into_iter().map(|one| (member.name(), one)));
    }
    if !conflicts.is_empty() {
        return Err(Error::Conflicts {
            undo: true,
            plan: plan.name.clone(),
            conflicts,
        });
    }
    if seeded::bug("undo-not-recorded") {
        abort::take_back(&engine, &journal, members);
    }
    // One that could not be recorded may be on disk all the same.
    engine
        .store
        .set_phase(journal.id, Phase::Committed, Phase::Undoing)
        .map_err(|error| unsettled(plan, error.into()))?;
    journal.phase = Phase::Undoing;
    go_on(&engine, plan, &journal, members)
}

/// Goes on with an undo that was decided; can be repeated.
pub(super) fn go_on(
    engine: &Engine<'_>,
    plan: &Plan,
    journal: &Journal,
    members: &[Member],
) -> Result<Undone> {
    let mut outcome = abort::take_back(engine, journal, members);
    if outcome.is_open() {
        return Err(outcome.into_error(plan, Error::Undoing));
    }
    abort::set_aside(engine, journal, &mut outcome).map_err(|error| unsettled(plan, error))?;
    let late = seeded::bug("part-returned-late");
    if journal.part && !late {
        retreat(journal, members).map_err(|error| unsettled(plan, error))?;
    }
    engine
        .store
        .finish_undo(journal)
        .map_err(|error| unsettled(plan, error.into()))?;
    if journal.part && late {
        retreat(journal, members).map_err(|error| unsettled(plan, error))?;
    }
    outcome.left = super::remove_areas(engine, journal);
    if let Err(error) = engine.store.forget_moved() {
        outcome.left.push(crate::error::chain(&error));
    }
    if !outcome.not_undone.is_empty() {
        return Err(outcome.into_error(plan, Error::Undoing));
    }
    let mut resources = outcome.undone;
    resources.reverse();
    Ok(Undone {
        resources,
        kept: outcome.kept,
        left: outcome.left,
        paths: outcome.paths,
        part: journal.part,
        standing: standing(engine, plan),
    })
}

/// How many commits of a plan can still be undone. The undo is over; not to know is no failure of it.
fn standing(engine: &Engine<'_>, plan: &Plan) -> usize {
    let journals = engine.store.journals_of(plan.id).unwrap_or_default();
    let stands = |one: &&Journal| one.phase == Phase::Committed;
    journals.iter().filter(stands).count()
}

/// Tells the sandboxes that are still there that what was released is theirs again.
fn retreat(journal: &Journal, members: &[Member]) -> Result<()> {
    for (position, member) in members.iter().enumerate() {
        let gone = member.sandbox.state == SandboxState::CleanedUp;
        let intent = intent_of(journal, position)?.filter(|one| !one.0.is_null() && !gone);
        if let Some(intent) = intent {
            let reference = &member.sandbox.reference;
            member.call(|strategy| strategy.retreat(reference, &intent))?;
        }
    }
    Ok(())
}

/// Whether it was undone cannot be told; recovery will.
fn unsettled(plan: &Plan, cause: Error) -> Error {
    Error::Undecided {
        plan: plan.name.clone(),
        cause: Box::new(Error::Undoing),
        why: crate::error::chain(&cause),
    }
}
