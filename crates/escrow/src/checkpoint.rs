//! How many sandboxes return to a checkpoint as one: all of them, or none (rules R3, R4).
//!
//! The same journal as for commits. Each member stages its way back; then one transaction decides;
//! then each goes. Killed before the decision, nothing happened; killed after it, whoever comes next
//! goes on. A member that cannot go takes the others back with it.
//!
//! While a command is inside, which the caller lets stand still, a member goes through what the command
//! sees. What was prepared serves all the same once the command is gone.

use crate::commit::recover::{Recovered, Side};
use crate::commit::{Engine, Member, intent_of, make_area, remove_areas};
use crate::error::{Error, Result, chain};
use crate::fs::Dir;
use crate::model::text::Location;
use crate::model::{CheckpointId, CommitId, Phase, ResourcePath, Work};
use crate::seeded;
use crate::store::{Journal, JournalMember, Plan};
use crate::strategy::Way;

/// A member that is to go back.
pub struct Return {
    /// Who goes.
    pub member: Member,
    /// From where, and where to.
    pub way: Way,
    /// Where it is seen as a whole, while a command is inside.
    pub through: Option<Dir>,
}

/// A member that goes, and where it is seen as a whole while a command is inside.
type Going<'a> = (&'a Member, Option<&'a Dir>);

/// Returns every member to its moment. Says what was staged for it and could not be removed.
pub fn restore(
    engine: &Engine<'_>,
    plan: &Plan,
    checkpoint: CheckpointId,
    ways: &[Return],
) -> Result<Vec<String>> {
    let id = CommitId::new(engine.origin);
    let area = |member: &Member| {
        let area = member.sandbox.area.as_path().join(format!("restore-{id}"));
        JournalMember {
            sandbox_id: member.sandbox.id,
            area: Location::from(area),
            intent: None,
            carried: false,
        }
    };
    let mut journal = Journal {
        id,
        plan_id: plan.id,
        work: Work::Restore,
        phase: Phase::Preparing,
        message: None,
        checkpoint: Some(checkpoint),
        part: false,
        created_at: engine.origin.now(),
        members: ways.iter().map(|way| area(&way.member)).collect(),
        damaged: None,
    };
    engine.store.begin_commit(&journal)?;
    let mut prepared = Ok(());
    for (position, way) in ways.iter().enumerate() {
        prepared = prepare_one(engine, &mut journal, position, way)
            .map_err(|cause| failed(&way.member, cause));
        if prepared.is_err() {
            break;
        }
    }
    let stored = || Ok(engine.store.put_intents(&journal)?);
    if let Err(cause) = prepared.and_then(|()| stored()) {
        return Err(match drop_all(engine, &journal) {
            Ok(left) => with_remains(cause, &left),
            Err(error) => cause.and_left(Err(error)),
        });
    }
    let (from, to) = (Phase::Preparing, Phase::Decided);
    let decided = match seeded::bug("restore-undecided") {
        true => Ok(()),
        false => engine.store.set_phase(id, from, to),
    };
    if let Err(error) = decided {
        return Err(not_decided(engine, plan, &journal, error.into()));
    }
    journal.phase = Phase::Decided;
    let going = ways.iter().map(|way| (&way.member, way.through.as_ref()));
    go(engine, plan, &journal, &going.collect::<Vec<_>>())
}

/// Gives a return up of which it may be on disk that it was decided: the opposite is said first, durably.
fn not_decided(engine: &Engine<'_>, plan: &Plan, journal: &Journal, cause: Error) -> Error {
    match engine.store.forget_commit(journal.id) {
        Ok(()) => with_remains(cause, &remove_areas(engine, journal)),
        Err(error) => Error::Undecided {
            plan: plan.name.clone(),
            cause: Box::new(cause),
            why: chain(&error),
        },
    }
}

/// A failure, and what it left.
fn with_remains(cause: Error, left: &[String]) -> Error {
    match left.is_empty() {
        true => cause,
        false => Error::LeftBehind {
            first: Box::new(cause),
            left: left.join("; "),
        },
    }
}

fn failed(member: &Member, cause: Error) -> Error {
    match cause {
        Error::Cancelled => cause,
        cause => Error::Moment {
            resource: member.name(),
            what: "return to the checkpoint",
            cause: Box::new(cause),
        },
    }
}

fn prepare_one(
    engine: &Engine<'_>,
    journal: &mut Journal,
    position: usize,
    going: &Return,
) -> Result<()> {
    let member = &going.member;
    let area = journal.members[position].area.clone();
    make_area(engine.home, &area)?.sync()?;
    let reference = &member.sandbox.reference;
    let (way, observer) = (&going.way, engine.observer);
    let intent = member.call(|strategy| match going.through {
        None => strategy.prepare_restore(reference, way, area.as_path(), observer),
        Some(_) => strategy.prepare_restore_in_use(reference, way, area.as_path(), observer),
    })?;
    let text = serde_json::to_string(&intent).expect("an intent is JSON");
    journal.members[position].intent = Some(text);
    Ok(())
}

/// Forgets a return that was never decided.
fn drop_all(engine: &Engine<'_>, journal: &Journal) -> Result<Vec<String>> {
    if !engine.store.forget_undecided(journal.id)? {
        return Err(Error::Interrupted {
            why: "whether it was decided could not be told",
        });
    }
    Ok(remove_areas(engine, journal))
}

/// Carries a return out that was decided; a failure takes back what was done, last first.
fn go(
    engine: &Engine<'_>,
    plan: &Plan,
    journal: &Journal,
    members: &[Going<'_>],
) -> Result<Vec<String>> {
    for (position, going) in members.iter().enumerate() {
        let Err(cause) = go_one(engine, journal, position, *going) else {
            continue;
        };
        let cause = failed(going.0, cause);
        let (from, to) = (Phase::Decided, Phase::Aborting);
        if let Err(error) = engine.store.set_phase(journal.id, from, to) {
            return Err(Error::Undecided {
                plan: plan.name.clone(),
                cause: Box::new(cause),
                why: chain(&error),
            });
        }
        return Err(match take_back(engine, journal, members) {
            Ok(left) => with_remains(cause, &left),
            Err(error) => Error::Undecided {
                plan: plan.name.clone(),
                cause: Box::new(cause),
                why: chain(&error),
            },
        });
    }
    let ended = engine.store.forget_commit(journal.id);
    ended.map_err(|error| Error::ReturnUnrecorded {
        plan: plan.name.clone(),
        cause: Box::new(error.into()),
    })?;
    Ok(remove_areas(engine, journal))
}

fn go_one(
    engine: &Engine<'_>,
    journal: &Journal,
    position: usize,
    (member, through): Going<'_>,
) -> Result<()> {
    let Some(intent) = intent_of(journal, position)? else {
        return Ok(());
    };
    let reference = &member.sandbox.reference;
    let observer = engine.observer;
    member.call(|strategy| match through {
        None => strategy.restore_checkpoint(reference, &intent, observer),
        Some(root) => strategy.restore_in_use(reference, &intent, root, observer),
    })
}

/// Takes every member back; one that fails does not stop the others. The journal stays until all are.
fn take_back(engine: &Engine<'_>, journal: &Journal, members: &[Going<'_>]) -> Result<Vec<String>> {
    let (mut first, mut kept) = (Ok(()), Vec::new());
    for (position, (member, through)) in members.iter().enumerate().rev() {
        let Some(intent) = intent_of(journal, position)? else {
            continue;
        };
        let reference = &member.sandbox.reference;
        let taken = member.call(|strategy| match through {
            None => strategy.undo_restore(reference, &intent),
            Some(root) => strategy.undo_restore_in_use(reference, &intent, root),
        });
        let taken = taken.map(|taken| {
            let told = |(path, at): (ResourcePath, Location)| {
                format!(
                    "{}:{path}, which somebody changed meanwhile, is kept in '{at}'",
                    member.name()
                )
            };
            kept.extend(taken.kept.into_iter().map(told));
        });
        first = first.and(taken);
    }
    first?;
    engine.store.forget_commit(journal.id)?;
    // What somebody wrote meanwhile lies where this was staged, which stays until the cleanup.
    if kept.is_empty() {
        kept = remove_areas(engine, journal);
    }
    Ok(kept)
}

/// Goes on with a return whose owner is dead; the caller holds the locks. Where a command is inside,
/// each member comes with where it is seen as a whole.
pub fn recover(
    engine: &Engine<'_>,
    plan: &Plan,
    journal: &Journal,
    members: &[(Member, Option<Dir>)],
) -> Result<Recovered> {
    let going = members.iter();
    let going = going.map(|(member, through)| (member, through.as_ref()));
    let members: Vec<Going<'_>> = going.collect();
    let mut because = None;
    let (side, left) = match journal.phase {
        Phase::Preparing => (Side::Old, drop_all(engine, journal)?),
        Phase::Decided => match go(engine, plan, journal, &members) {
            Ok(left) => (Side::New, left),
            // Impossible, but taken back everywhere: that is one side too.
            Err(error) if !engine.store.is_journaled(journal.id)? => {
                because = Some(chain(&error));
                (Side::Old, Vec::new())
            }
            Err(error) => return Err(error),
        },
        _ => (Side::Old, take_back(engine, journal, &members)?),
    };
    Ok(Recovered {
        because,
        left,
        ..Recovered::plain(plan, Work::Restore, journal.phase, side)
    })
}
