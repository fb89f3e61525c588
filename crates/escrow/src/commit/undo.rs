//! Undoes a finished commit: all of it or the part that was asked for, or, where the original changed since and nothing says
//! what to do about that, nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::step::Direction;
use super::{Execution, Member};
use crate::error::{Error, Result};
use crate::failpoints;
use crate::model::text::Location;
use crate::model::{
    Change, Choice, Conflict, EntryInfo, EntryKind, JournaledWork, Phase, ResourcePath,
};
use crate::policy::select::ReleaseSelection;
use crate::store::JournalEntry;
use crate::strategy::{
    Intent, OnConflict, PathSample, StrategyError, UndoChoices, UndoPlan, ignored_files,
};

/// How a commit is to be undone.
#[derive(Debug, Clone, Default)]
pub struct UndoRequest {
    /// What to do where the original changed since: its version from before the commit (`Ours`) or the one it has now (`Theirs`).
    pub on_conflict: OnConflict,
    /// Text files become the version from before the commit with what changed since, where that can be.
    pub merge: bool,
    /// What is undone; the rest of the commit stands.
    pub selection: ReleaseSelection,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// A commit that was undone, or would be.
#[derive(Debug, Default)]
pub struct UndoReport {
    /// The resources that are as they were before it.
    pub resources: Vec<String>,
    /// What another process wrote meanwhile: resource, path, and where it is kept now.
    pub kept: Vec<(String, ResourcePath, Location)>,
    /// What was kept for undo and could not be removed, and why.
    pub left: Vec<String>,
    /// What was taken back in each resource, as far as it is known.
    pub paths: Vec<(String, PathSample)>,
    /// What stays in the originals as it is, and why.
    pub stays: Vec<(String, ResourcePath, String)>,
    /// It was the commit of a part: what it had released is its plan's again.
    pub part: bool,
    /// It was a rollback.
    pub rollback: bool,
    /// How many earlier commits of the plan still stand.
    pub standing: usize,
    /// The plan is open again with what was undone; else why not.
    pub reopened: Option<std::result::Result<(), String>>,
    /// Resources whose changes the plan does not hold again.
    pub lost: Vec<String>,
    /// What was undone is in this plan: the sandboxes of its own cannot hold it.
    pub apart: Option<String>,
    /// The commit was taken back before, by a process that did not open the plan.
    pub again: bool,
}

/// What an undo does to each member, in the order of the journal.
struct Decided {
    choices: Vec<UndoChoices>,
    stays: Vec<(String, ResourcePath, String)>,
    /// A part that was not asked for can be undone later.
    stands: bool,
    /// Resources of which nothing was asked for.
    untouched: Vec<String>,
}

const IGNORED: &str = "changed since, and ignored by git";
const CHOSEN: &str = "changed since: it stays as it is in the original now";

impl Execution<'_> {
    /// Takes a commit back. Where the original moved on and nothing says what to do, nothing is done.
    pub(crate) fn undo(mut self, request: &UndoRequest) -> Result<UndoReport> {
        let decided = self.decide_undo(request)?;
        if request.dry_run {
            return Ok(UndoReport {
                resources: self.members.iter().map(Member::name).collect(),
                stays: decided.stays,
                part: self.journal.part,
                ..UndoReport::default()
            });
        }
        for (position, choices) in decided.choices.iter().enumerate() {
            if let Some(intent) = self.undoable(position)? {
                self.members[position].call(|one| one.plan_undo(&intent, choices, true))?;
            }
        }
        if decided.stands {
            self.engine.store.note_standing(self.journal.id)?;
            self.journal.stands = true;
        }
        if failpoints::bug("undo-not-recorded") {
            self.take_back();
        }
        // One that could not be recorded may be on disk all the same.
        let reverted = self.set_phase(Phase::Undoing).and_then(|()| self.go_back());
        let reverted = reverted.map_err(|error| self.undecided(Error::Undoing, &error))?;
        if !reverted.not_undone.is_empty() {
            return Err(reverted.into_error(&self.plan, self.journal.work, Error::Undoing));
        }
        let mut resources = reverted.undone;
        resources.retain(|name| !decided.untouched.contains(name));
        resources.reverse();
        let mut stays = decided.stays;
        let others = reverted.stays.into_iter();
        stays.extend(others.map(|(name, path)| (name, path, "not of the commit".to_owned())));
        Ok(UndoReport {
            resources,
            kept: reverted.kept,
            left: reverted.left,
            paths: reverted.paths,
            stays,
            part: self.journal.part,
            standing: self.standing(),
            ..UndoReport::default()
        })
    }

    /// The intent of a member that can be taken back.
    fn undoable(&self, position: usize) -> Result<Option<Intent>> {
        let direction = self.members[position].direction(JournaledWork::Commit);
        let intent = self.prepared(position)?;
        Ok(intent.filter(|_| direction != Direction::Irreversible))
    }

    /// Finds where the originals moved on since the commit, and what becomes of that.
    fn decide_undo(&self, request: &UndoRequest) -> Result<Decided> {
        let mut decided = Decided {
            choices: vec![UndoChoices::default(); self.members.len()],
            stays: Vec::new(),
            stands: false,
            untouched: Vec::new(),
        };
        if !request.selection.is_everything() {
            self.select_undo(&request.selection, &mut decided)?;
        }
        let mut refused = Vec::new();
        let again = self.opens_again()?;
        for (position, member) in self.members.iter().enumerate() {
            let Some(intent) = self.undoable(position)? else {
                continue;
            };
            let mut found = member.call(|strategy| strategy.check_undo(&intent))?;
            found.retain(|one| !decided.choices[position].leave.contains(&one.path));
            let settled = self.settle(member, &intent, (found, request))?;
            let (mut choices, stays, conflicts) = settled;
            if !again || !member.capabilities().reopens {
                // No sandbox takes the newer versions in: they are set aside and named.
                choices.take.clear();
            }
            decided.choices[position].leave.extend(choices.leave);
            decided.choices[position].merge.extend(choices.merge);
            decided.choices[position].take.extend(choices.take);
            let named = stays.into_iter();
            let named = named.map(|(path, why)| (member.name(), path, why.to_owned()));
            decided.stays.extend(named);
            refused.extend(conflicts.into_iter().map(|one| (member.name(), one)));
        }
        match refused.is_empty() {
            true => Ok(decided),
            false => Err(Error::Conflicts {
                undo: true,
                merge: false,
                plan: self.plan.name.clone(),
                conflicts: refused,
            }),
        }
    }

    /// Says of each conflict of a member what becomes of it; those that stay conflicts are returned.
    #[expect(
        clippy::type_complexity,
        reason = "three lists, named where they are taken apart"
    )]
    fn settle(
        &self,
        member: &Member,
        intent: &Intent,
        (found, request): (Vec<Conflict>, &UndoRequest),
    ) -> Result<(
        UndoChoices,
        Vec<(ResourcePath, &'static str)>,
        Vec<Conflict>,
    )> {
        let (mut choices, mut stays, mut refused) =
            (UndoChoices::default(), Vec::new(), Vec::new());
        let paths: Vec<&ResourcePath> = found.iter().map(|one| &one.path).collect();
        let ignored = match member.resource.root() {
            Some(root) if !paths.is_empty() => ignored_files(root, &paths),
            _ => BTreeSet::new(),
        };
        let mut chosen = BTreeMap::new();
        for one in found {
            let free = one.is_settled_by(OnConflict::Theirs);
            if !free && one.theirs.is_some() && ignored.contains(&one.path) {
                // What cannot stay is set aside and named.
                continue;
            }
            if free && ignored.contains(&one.path) {
                stays.push((one.path.clone(), IGNORED));
                choices.leave.insert(one.path);
                continue;
            }
            match request.on_conflict {
                _ if request.merge && one.choice == Choice::Either => {
                    choices.merge.insert(one.path.clone());
                    chosen.insert(one.path.clone(), one);
                }
                OnConflict::Theirs if free => {
                    stays.push((one.path.clone(), CHOSEN));
                    choices.leave.insert(one.path);
                }
                OnConflict::Ours if one.is_settled_by(OnConflict::Ours) => {
                    choices.take.insert(one.path.clone());
                    chosen.insert(one.path.clone(), one);
                }
                _ => refused.push(one),
            }
        }
        if choices.is_everything() {
            return Ok((choices, stays, refused));
        }
        match member.call(|strategy| strategy.plan_undo(intent, &choices, false)) {
            Ok(UndoPlan { unmerged, .. }) => {
                for (path, why) in unmerged {
                    choices.merge.remove(&path);
                    let mut one = chosen
                        .remove(&path)
                        .unwrap_or_else(|| Conflict::of(path, ""));
                    one.what = format!("{}; it cannot be merged: {why}", one.what);
                    refused.push(one);
                }
            }
            // Its changes go back together, so neither side can be taken of one of them.
            Err(Error::Strategy(StrategyError::Unsupported { why, .. })) => {
                let left = stays.drain(..).map(|(path, what)| Conflict::of(path, what));
                for one in left.chain(chosen.into_values()) {
                    let what = format!("{}; {why}", one.what);
                    refused.push(Conflict { what, ..one }.choosing(Choice::Neither));
                }
                choices = UndoChoices::default();
            }
            Err(error) => return Err(error),
        }
        Ok((choices, stays, refused))
    }

    /// Leaves what was not asked for.
    fn select_undo(&self, selection: &ReleaseSelection, decided: &mut Decided) -> Result<()> {
        let mut all = Vec::new();
        for (position, member) in self.members.iter().enumerate() {
            let everything = UndoChoices::default();
            let paths = match self.undoable(position)? {
                Some(intent) => {
                    let planned = member.call(|one| one.plan_undo(&intent, &everything, false))?;
                    // A member that goes back as a whole is asked for by any of its paths.
                    match planned.paths.is_empty() {
                        true => vec![ResourcePath::root()],
                        false => planned.paths,
                    }
                }
                None => Vec::new(),
            };
            all.push((member.name(), paths));
        }
        let known = EntryInfo {
            kind: EntryKind::File,
            size: 0,
            mode: 0,
            target: None,
        };
        let change = |path: &ResourcePath| Change::added(path.clone(), known.clone());
        let changes: Vec<(String, Vec<Change>)> = all
            .iter()
            .map(|(name, paths)| (name.clone(), paths.iter().map(change).collect()))
            .collect();
        let shown: Vec<(&str, &[Change])> = changes
            .iter()
            .map(|(name, changes)| (name.as_str(), &changes[..]))
            .collect();
        if let Some(unmatched) = selection.unmatched(&shown) {
            return Err(Error::Unmatched {
                plan: self.plan.name.clone(),
                pattern: unmatched.pattern,
                near: unmatched.near,
            });
        }
        let mut taken = false;
        for (position, (name, paths)) in all.into_iter().enumerate() {
            let (wanted, left): (Vec<_>, Vec<_>) = paths
                .into_iter()
                .partition(|path| selection.takes(&name, path));
            taken |= !wanted.is_empty();
            if wanted.is_empty() {
                decided.untouched.push(name.clone());
            }
            decided.stands |= !left.is_empty();
            let leave = &mut decided.choices[position].leave;
            leave.extend(left);
            // A new directory in which something stays, stays.
            let above: Vec<ResourcePath> = leave.iter().flat_map(ResourcePath::ancestors).collect();
            leave.extend(above.into_iter().filter(|path| wanted.contains(path)));
            if let Some(intent) = self.undoable(position)?.filter(|_| !leave.is_empty()) {
                let choices = decided.choices[position].clone();
                self.members[position].call(|one| one.plan_undo(&intent, &choices, false))?;
            }
        }
        match taken {
            true => Ok(()),
            false => Err(Error::NothingSelected {
                plan: self.plan.name.clone(),
            }),
        }
    }

    /// How many commits of the plan can still be undone. The undo is over; not to know is no failure of it.
    fn standing(&self) -> usize {
        let journals = self.engine.store.journals_of(self.plan.id);
        let stands = |one: &&JournalEntry| {
            one.phase == Phase::Committed && one.work == JournaledWork::Commit
        };
        journals.unwrap_or_default().iter().filter(stands).count()
    }
}
