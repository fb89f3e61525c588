//! Takes back whatever was done, last first, and says what could not be.

use super::{Engine, Member, intent_of, remove_areas};
use crate::error::{Error, Result, chain};
use crate::fs::{Dir, times};
use crate::model::text::Location;
use crate::model::{Phase, ResourcePath};
use crate::seeded;
use crate::store::{Journal, Plan};
use crate::strategy::{Paths, StrategyError};

/// What became of each member.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Originals that are as they were.
    pub(super) undone: Vec<String>,
    /// Originals that are not, and why.
    pub(super) not_undone: Vec<(String, String)>,
    /// Of these, those that never can be.
    pub(super) irreversible: usize,
    /// What others wrote meanwhile, and where it is kept now.
    pub(super) kept: Vec<(String, ResourcePath, Location)>,
    /// What was staged and could not be removed, and why. No original is concerned (rule C7).
    pub(super) left: Vec<String>,
    /// The paths that were taken back in each resource, as far as they are known.
    pub(super) paths: Vec<(String, Paths)>,
}

impl Outcome {
    /// Whether trying again may still help.
    pub(super) fn is_open(&self) -> bool {
        self.not_undone.len() > self.irreversible
    }

    /// The one error of a failed commit (rule C5).
    pub(super) fn into_error(self, plan: &Plan, cause: Error) -> Error {
        let open = self.is_open();
        Error::CommitFailed {
            plan: plan.name.clone(),
            undone: self.undone,
            not_undone: self.not_undone,
            kept: self.kept,
            left: self.left,
            undo: matches!(cause, Error::Undoing),
            cause: Box::new(cause),
            open,
        }
    }
}

/// Forgets a commit that was never decided; no original was touched, and none is. Says what could
/// not be removed.
pub(super) fn drop_prepared(
    engine: &Engine<'_>,
    journal: &Journal,
    members: &[Member],
) -> Result<Vec<String>> {
    // The opposite of the decision, durably, before anything is removed: should the decision be on
    // disk after all, this finds nothing to forget, and nothing is touched.
    if !engine.store.forget_undecided(journal.id)? {
        return Err(Error::Interrupted {
            why: "whether it was decided could not be told",
        });
    }
    let mut left = Vec::new();
    for (position, member) in members.iter().enumerate() {
        let intent = intent_of(journal, position)?.filter(|intent| !intent.0.is_null());
        if let Some(intent) = intent {
            let reference = &member.sandbox.reference;
            if let Err(error) = member.call(|strategy| strategy.drop_intent(reference, &intent)) {
                left.push(chain(&error));
            }
        }
    }
    left.extend(remove_areas(engine, journal));
    Ok(left)
}

/// Decides that a commit does not happen, and takes back what was done of it. Nothing is touched
/// before that decision is durable; if it cannot be made, the error says so and recovery goes on.
pub(super) fn give_up(
    engine: &Engine<'_>,
    journal: &Journal,
    members: &[Member],
    from: Phase,
) -> Result<Outcome> {
    engine.store.set_phase(journal.id, from, Phase::Aborting)?;
    if seeded::bug("stage-removed-early") {
        remove_areas(engine, journal);
    }
    finish_abort(engine, journal, members)
}

/// Goes on with what was given up; can be repeated.
pub(super) fn finish_abort(
    engine: &Engine<'_>,
    journal: &Journal,
    members: &[Member],
) -> Result<Outcome> {
    let mut outcome = take_back(engine, journal, members);
    if !outcome.is_open() {
        set_aside(engine, journal, &mut outcome)?;
        engine.store.forget_commit(journal.id)?;
        outcome.left = remove_areas(engine, journal);
    }
    Ok(outcome)
}

/// Takes every member back, last first; one that fails does not stop the others (rules C4, C17).
pub(super) fn take_back(engine: &Engine<'_>, journal: &Journal, members: &[Member]) -> Outcome {
    let mut outcome = Outcome::default();
    if seeded::bug("no-undo-on-failure") {
        return outcome;
    }
    for (position, member) in members.iter().enumerate().rev() {
        let taken = take_one(engine, journal, position, member, &mut outcome);
        match taken {
            Ok(true) => outcome.undone.push(member.name()),
            Ok(false) => {}
            Err(error) => {
                let never = matches!(error, Error::Strategy(StrategyError::Unsupported { .. }));
                outcome.irreversible += usize::from(never);
                outcome.not_undone.push((member.name(), chain(&error)));
            }
        }
    }
    outcome
}

/// Whether there was anything to take back.
fn take_one(
    engine: &Engine<'_>,
    journal: &Journal,
    position: usize,
    member: &Member,
    outcome: &mut Outcome,
) -> Result<bool> {
    let Some(intent) = intent_of(journal, position)? else {
        return Ok(false);
    };
    let (capabilities, reference) = (member.capabilities(), &member.sandbox.reference);
    if (capabilities.prepares || journal.part) && intent.0.is_null() {
        return Ok(false);
    }
    if !capabilities.undoes && !journal.members[position].carried {
        // It never happened; what was prepared is let go of.
        member.call(|strategy| strategy.drop_intent(reference, &intent))?;
        return Ok(false);
    }
    let (area, aside) = (&journal.members[position].area, aside(journal, position));
    let there = |at: &Location| Dir::open(at.as_path()).is_ok();
    if !area.as_bytes().is_empty() && !there(area) && there(&aside) {
        // Whoever was here before us took it back, and died before the journal was told.
        outcome
            .kept
            .push((member.name(), ResourcePath::root(), aside));
        return Ok(true);
    }
    let undone =
        member.call(|strategy| strategy.rollback(reference, Some(&intent), engine.observer))?;
    engine.store.add_moved(member.device()?, &undone.moved)?;
    let name = member.name();
    outcome.paths.push((name.clone(), undone.paths));
    let kept = undone.kept.into_iter();
    outcome
        .kept
        .extend(kept.map(|(path, at)| (name.clone(), path, at)));
    Ok(true)
}

/// Where the area of a member is put when it holds what others wrote.
fn aside(journal: &Journal, position: usize) -> Location {
    let mut name = journal.members[position].area.as_bytes().to_vec();
    name.extend_from_slice(format!(".kept-{}", journal.id).as_bytes());
    Location::from_bytes(&name)
}

/// Puts what others wrote out of the way of everything that removes, and says where it is now.
pub(super) fn set_aside(
    engine: &Engine<'_>,
    journal: &Journal,
    outcome: &mut Outcome,
) -> Result<()> {
    for (position, member) in journal.members.iter().enumerate() {
        let area = member.area.as_path();
        let holds = |at: &Location| at.as_path().starts_with(area);
        if area.as_os_str().is_empty() || !outcome.kept.iter().any(|(_, _, at)| holds(at)) {
            continue;
        }
        let aside = aside(journal, position);
        let (Some(parent), Some(name), Some(to)) =
            (area.parent(), area.file_name(), aside.as_path().file_name())
        else {
            continue;
        };
        let parent = Dir::open(parent)?;
        let (name, to) = (name.as_encoded_bytes(), to.as_encoded_bytes());
        let rename = || parent.rename(name, &parent, to);
        times::traceless(engine.home, &parent, name, rename)?;
        parent.sync()?;
        for (_, _, at) in &mut outcome.kept {
            if let Ok(below) = at.as_path().strip_prefix(area) {
                *at = Location::from(aside.as_path().join(below));
            }
        }
    }
    Ok(())
}
