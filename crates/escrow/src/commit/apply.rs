//! What was decided is carried out, and then finished.

use super::{Engine, Member, abort, intent_of, lent};
use crate::error::{Error, Result, chain};
use crate::fs::{durable, remove};
use crate::model::{DiffView, Phase, SandboxState};
use crate::seeded;
use crate::store::{Journal, Plan};
use crate::strategy::{Intent, Note};

/// A commit that happens, whoever carries it out.
pub struct Decided<'a> {
    pub(super) engine: Engine<'a>,
    pub(super) plan: Plan,
    pub(super) journal: Journal,
    pub(super) members: Vec<Member>,
}

/// A commit whose originals all hold the new state.
pub struct Applied<'a> {
    pub(super) engine: Engine<'a>,
    pub(super) plan: Plan,
    pub(super) journal: Journal,
    pub(super) members: Vec<Member>,
}

/// A commit that is over.
#[derive(Debug)]
pub struct Committed {
    /// What changed in each resource; empty for a commit that was recovered.
    pub members: Vec<(String, DiffView, Vec<Note>)>,
    /// Sandboxes that could not be removed, and why. The originals are as they should be.
    pub left: Vec<(String, String)>,
}

impl<'a> Decided<'a> {
    /// Carries every member out, undoable ones first. A failure of any kind takes back what was
    /// done, last first (rules C4, C8).
    pub fn apply(self) -> Result<Applied<'a>> {
        let Self {
            engine,
            plan,
            mut journal,
            members,
        } = self;
        let mut from = Phase::Decided;
        if seeded::bug("no-decision") {
            from = Phase::Preparing;
        }
        if seeded::bug("applied-too-early") {
            engine.store.set_phase(journal.id, from, Phase::Applied)?;
            from = Phase::Applied;
        }
        for (position, member) in members.iter().enumerate() {
            let Err(cause) = apply_one(&engine, &mut journal, position, member) else {
                continue;
            };
            let cause = Error::Member {
                resource: member.name(),
                cause: Box::new(cause),
            };
            // All of them: whoever was here before us may have begun more.
            let failed = match abort::give_up(&engine, &journal, &members, from) {
                Ok(outcome) => outcome.into_error(&plan, cause),
                Err(error) => Error::Undecided {
                    plan: plan.name.clone(),
                    cause: Box::new(cause),
                    why: chain(&error),
                },
            };
            return Err(failed);
        }
        if seeded::bug("sandbox-removed-early") {
            members
                .iter()
                .try_for_each(|member| release(&engine, member))?;
        }
        let done = engine.store.set_phase(journal.id, from, Phase::Applied);
        done.map_err(|error| Error::Unrecorded {
            plan: plan.name.clone(),
            cause: Box::new(error.into()),
        })?;
        journal.phase = Phase::Applied;
        Ok(Applied {
            engine,
            plan,
            journal,
            members,
        })
    }
}

fn apply_one(
    engine: &Engine<'_>,
    journal: &mut Journal,
    position: usize,
    member: &Member,
) -> Result<()> {
    let intent = intent_of(journal, position)?.ok_or_else(|| Error::Panicked {
        resource: member.name(),
        what: "a commit was decided without what it needs".to_owned(),
    })?;
    if engine.observer.is_cancelled() {
        return Err(Error::Cancelled);
    }
    let capabilities = member.capabilities();
    // Without changes there is nothing to do; what cannot be undone is not done twice.
    let nothing = (capabilities.prepares || journal.part) && intent.0.is_null();
    if nothing || (!capabilities.undoes && journal.members[position].carried) {
        return Ok(());
    }
    let reference = &member.sandbox.reference;
    member.call(|strategy| strategy.commit(reference, &intent, engine.observer))?;
    if !capabilities.undoes {
        // What cannot be taken back must be known to have happened.
        engine.store.set_carried(journal.id, position)?;
        journal.members[position].carried = true;
    }
    Ok(())
}

impl Applied<'_> {
    /// Removes the sandboxes, unless they stay, notes what is left for undo, and ends the commit. From here on there
    /// is no way back but undo. A sandbox that cannot be removed is reported, and stops nothing (rule C7): what it
    /// shares with its original is copied there. Where that fails too, the commit is not over, and can be gone on with.
    pub fn finish(self) -> Result<Committed> {
        let Self {
            engine,
            plan,
            journal,
            members,
        } = self;
        let unrecorded = |error: Error| Error::Unrecorded {
            plan: plan.name.clone(),
            cause: Box::new(error),
        };
        let (mut left, mut states) = (Vec::new(), Vec::new());
        // Of a part nothing goes: the sandboxes are worked in further.
        let gone = members.iter().enumerate().filter(|_| !journal.part);
        for (position, member) in gone {
            let state = match stays(&engine, &journal, position, member) {
                true => SandboxState::Committed,
                false => match release(&engine, member) {
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
            match last_intent(&engine, &journal, position, member, &mut left) {
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
        durable::sync_file_systems(changed.map(|(member, _)| member.resource.root()))
            .map_err(|error| unrecorded(error.into()))?;
        let late = seeded::bug("part-recorded-late");
        if journal.part && !late {
            advance_all(&members, &intents).map_err(unrecorded)?;
        }
        engine
            .store
            .finish_commit(&journal, &intents, &states)
            .map_err(|error| unrecorded(error.into()))?;
        if journal.part && late {
            advance_all(&members, &intents).map_err(unrecorded)?;
        }
        // It is over; what can only be tidied up is no reason to say otherwise.
        let tidied = || -> Result<()> {
            if !journal.part {
                let resources = members.iter().map(|member| member.resource.id);
                engine.store.forget_unused(&resources.collect::<Vec<_>>())?;
                for member in &members {
                    lent::take_in(&engine, &lent::needs(&engine, &member.sandbox)?)?;
                }
            }
            Ok(engine.store.forget_moved()?)
        };
        if let Err(error) = tidied() {
            left.push(("the state".to_owned(), chain(&error)));
        }
        Ok(Committed {
            members: Vec::new(),
            left,
        })
    }
}

/// Tells the sandboxes, which stay, what of them is released. Repeated by whoever finds the commit not over yet.
fn advance_all(members: &[Member], intents: &[Option<String>]) -> Result<()> {
    for (member, intent) in members.iter().zip(intents) {
        if let Some(intent) = intent {
            let intent = super::read_intent(intent)?;
            let reference = &member.sandbox.reference;
            member.call(|strategy| strategy.advance(reference, &intent))?;
        }
    }
    Ok(())
}

/// The intent by which a member can be undone, if there is one.
fn last_intent(
    engine: &Engine<'_>,
    journal: &Journal,
    position: usize,
    member: &Member,
    left: &mut Vec<(String, String)>,
) -> Result<Option<String>> {
    let Some(intent) = intent_of(journal, position)?.filter(|intent| !intent.0.is_null()) else {
        return Ok(None);
    };
    if member.is_irreversible() {
        return Ok(None);
    }
    let reference = &member.sandbox.reference;
    let finished = member.call(|strategy| strategy.finish(reference, intent))?;
    engine.store.add_moved(member.device()?, &finished.moved)?;
    let note = |note: Note| (member.name(), format!("'{}': {}", note.path, note.what));
    left.extend(finished.notes.into_iter().map(note));
    let intent = finished.intent;
    Ok(Some(
        serde_json::to_string(&intent).expect("an intent is JSON"),
    ))
}

/// Whether a sandbox stays: it is wanted, and nothing of it became the original's. Whoever prepared the
/// commit may have wanted otherwise.
fn stays(engine: &Engine<'_>, journal: &Journal, position: usize, member: &Member) -> bool {
    let shares = |intent: Intent| {
        let reference = &member.sandbox.reference;
        member.call(|strategy| strategy.shares(reference, &intent))
    };
    let intent = intent_of(journal, position).map(|found| found.filter(|one| !one.0.is_null()));
    let shared = intent.and_then(|found| found.map_or(Ok(false), shares));
    engine.keeps && matches!(shared, Ok(false))
}

/// Removes a sandbox; if that succeeds, no inode is shared with the original.
fn release(engine: &Engine<'_>, member: &Member) -> Result<()> {
    let reference = &member.sandbox.reference;
    member.call(|strategy| strategy.cleanup(reference))?;
    let sandbox = &member.sandbox;
    if lent::is_needed(engine, &sandbox.area, sandbox.id)? {
        return Ok(());
    }
    let area = sandbox.area.as_path();
    if let (Some(parent), Some(name)) = (area.parent(), area.file_name()) {
        match crate::fs::Dir::open(parent) {
            Err(error) if error.is_absent() => {}
            parent => remove::remove(&parent?, name.as_encoded_bytes())?,
        }
    }
    Ok(())
}
