//! Previews a commit. Writes nothing; what it finds is what will be prepared.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::step::Direction;
use super::{Batch, CommitEngine, Member, select};
use crate::error::{Error, Result};
use crate::failpoints;
use crate::fs::workspace;
use crate::model::text::Location;
use crate::model::{
    AutorunChange, Change, ChosenHunks, Conflict, DiffView, Expected, JournaledWork, PlanDigest,
    ResourcePath,
};
use crate::policy::select::{ReleasePattern, ReleaseSelection};
use crate::store::Plan;
use crate::strategy::{
    OnConflict, Preview, PreviewNote, PreviewOptions, Sandbox, Session, StrategyError, unsupported,
};

/// Under which terms a plan is committed.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommitTerms {
    /// Which version counts where both sides changed a path.
    pub on_conflict: OnConflict,
    /// Whatever moved in an original is a conflict.
    pub strict: bool,
    /// Text files that both sides changed are merged, where that can be done without a choice.
    pub merge: bool,
    /// More than one member may be irreversible.
    pub allow_partial: bool,
}

/// What would happen to one resource.
#[derive(Debug)]
pub struct MemberPreview {
    /// The resource.
    pub resource: String,
    /// Where it is.
    pub at: Location,
    /// What would change, on the terms of the commit.
    pub diff: Arc<DiffView>,
    /// What would stay in the sandbox, because it was not asked for.
    pub left: DiffView,
    /// What `diff.ignore` leaves out.
    pub ignored: DiffView,
    /// What contradicts it.
    pub conflicts: Vec<Conflict>,
    /// What both sides changed, and is released as both made it.
    pub merged: Vec<ResourcePath>,
    /// What will not come across as it is.
    pub notes: Vec<PreviewNote>,
    /// What will run later, outside of every sandbox.
    pub runs_later: Vec<AutorunChange>,
    /// Whether the commit of it can be taken back.
    pub undoable: bool,
}

/// What would happen, in the order in which it would.
#[derive(Debug)]
pub struct CommitPreview {
    /// Each resource.
    pub members: Vec<MemberPreview>,
    /// The digest of all of it, if that was asked for.
    pub digest: Option<PlanDigest>,
}

impl CommitPreview {
    /// Whether anything contradicts the commit that this does not settle.
    pub fn has_conflicts(&self, on_conflict: OnConflict) -> bool {
        let mut all = self.members.iter().flat_map(|member| &member.conflicts);
        all.any(|one| !one.is_settled_by(on_conflict))
    }

    /// How many changes stay in the sandboxes: with any, the plan stays open.
    pub fn left(&self) -> usize {
        let members = self.members.iter();
        members.map(|member| member.left.changes.len()).sum()
    }
}

/// A member, the session in which it was looked at, and what was found.
pub(super) type Looked = (Member, Box<dyn Sandbox>, Preview);

/// A commit that was looked at.
pub(crate) struct Previewed<'a> {
    pub(super) engine: CommitEngine<'a>,
    pub(super) plan: Plan,
    pub(super) members: Vec<Looked>,
    /// What stays in each sandbox.
    pub(super) left: Vec<DiffView>,
    /// What of each is released only by name, and was not named.
    unnamed: Vec<DiffView>,
    /// What of each `diff.ignore` leaves out.
    ignored: Vec<DiffView>,
    /// The sandboxes are worked in further, also where nothing is left in them.
    open: bool,
    pub(super) terms: CommitTerms,
}

impl<'a> Batch<'a> {
    /// Compares every member with its original, and checks what can be known before. Of some files only some hunks are wanted.
    pub(crate) fn preview(
        self,
        terms: CommitTerms,
        session: &Session,
        hunks: &BTreeMap<String, BTreeMap<ResourcePath, ChosenHunks>>,
    ) -> Result<Previewed<'a>> {
        let irreversible: Vec<String> = self
            .members
            .iter()
            .filter(|member| member.direction(JournaledWork::Commit) == Direction::Irreversible)
            .map(Member::name)
            .collect();
        if irreversible.len() > 1 && !terms.allow_partial {
            return Err(Error::Irreversible {
                plan: self.plan.name.clone(),
                members: irreversible,
            });
        }
        let mut members = Vec::new();
        for member in self.members {
            let options = PreviewOptions {
                strict: terms.strict,
                merge: terms.merge,
                hunks: hunks
                    .get(&member.resource.name)
                    .cloned()
                    .unwrap_or_default(),
                ..PreviewOptions::default()
            };
            let session = member.open(self.engine.store, session.clone())?;
            let preview = member.session(&*session, |session| session.preview(&options));
            let preview = preview.map_err(|cause| match &cause {
                // The others can be committed without it.
                Error::Strategy(StrategyError::HolderGone { .. }) => Error::Member {
                    resource: member.name(),
                    cause: Box::new(cause),
                },
                _ => cause,
            })?;
            members.push((member, session, preview));
        }
        Ok(Previewed {
            engine: self.engine,
            plan: self.plan,
            left: members.iter().map(|_| DiffView::default()).collect(),
            unnamed: Vec::new(),
            ignored: Vec::new(),
            open: false,
            members,
            terms,
        })
    }
}

impl<'a> Previewed<'a> {
    /// Takes of what was found only what was asked for, and leaves the rest in the sandboxes; what is to be ignored goes with
    /// them.
    pub(crate) fn select(
        mut self,
        selection: &ReleaseSelection,
        ignore: &[ReleasePattern],
    ) -> Result<Self> {
        for (member, _, preview) in &mut self.members {
            let ignored = match !ignore.is_empty() && member.capabilities().partial {
                false => DiffView::default(),
                true => {
                    let name = &member.resource.name;
                    let chosen = select::is_released(ignore, name, &preview.diff.changes);
                    let ignored = preview.choose(&chosen, self.terms.strict);
                    Arc::make_mut(&mut preview.diff).leave_out(&ignored);
                    ignored
                }
            };
            self.ignored.push(ignored);
        }
        for (member, _, preview) in &mut self.members {
            let resource = &member.resource.name;
            let named = |path: &ResourcePath| selection.names(resource, path);
            self.unnamed.push(preview.leave_unnamed(named));
        }
        if selection.is_everything() {
            return Ok(self);
        }
        let plan = || self.plan.name.clone();
        let shown: Vec<(&str, &[Change])> = self
            .members
            .iter()
            .map(|(member, _, preview)| (member.resource.name.as_str(), &preview.diff.changes[..]))
            .collect();
        if let Some(unmatched) = selection.unmatched(&shown) {
            return Err(Error::Unmatched {
                plan: plan(),
                pattern: unmatched.pattern,
                near: unmatched.near,
            });
        }
        let chosen: Vec<Vec<bool>> = shown
            .iter()
            .map(|(name, changes)| select::choose(selection, name, changes))
            .collect();
        if !chosen.iter().flatten().any(|chosen| *chosen) {
            return Err(Error::NothingSelected { plan: plan() });
        }
        let part = chosen.iter().flatten().any(|chosen| !chosen) || !selection.hunks.is_empty();
        for ((member, _, preview), chosen) in self.members.iter().zip(&chosen) {
            let asked = selection.hunks.get(&member.resource.name);
            let mut asked = asked.into_iter().flat_map(BTreeMap::keys);
            if let Some(path) = asked.find(|path| !preview.in_hunks.contains(path)) {
                let what = format!("commit some hunks of '{path}'");
                let why = "it commits files as a whole";
                return Err(unsupported(member.strategy.name(), &what, why).into());
            }
            let some = chosen.iter().any(|chosen| *chosen);
            if part && some && !member.capabilities().partial && !preview.diff.is_empty() {
                return Err(Error::Member {
                    resource: member.name(),
                    cause: Box::new(
                        unsupported(
                            member.strategy.name(),
                            "commit only a part",
                            "it commits its changes as a whole: choose all of them, or none",
                        )
                        .into(),
                    ),
                });
            }
        }
        self.left.clear();
        for ((_, _, preview), chosen) in self.members.iter_mut().zip(&chosen) {
            self.left.push(preview.choose(chosen, self.terms.strict));
            if part {
                preview.keep_sandbox(false);
            }
        }
        Ok(self)
    }

    /// Merges nothing.
    pub(crate) fn refuse_merged(mut self, what: &str) -> Self {
        for (_, _, preview) in &mut self.members {
            preview.refuse_merged(what);
        }
        self
    }

    /// Takes everything as a part, after which the sandboxes are worked in further.
    pub(crate) fn keep_open(mut self) -> Result<Self> {
        for (member, _, preview) in &mut self.members {
            let can = member.capabilities();
            let able = can.partial && can.live;
            if !able && !preview.diff.is_empty() {
                let why = "its strategy commits only as a whole, when nothing runs inside";
                let name = member.strategy.name();
                return Err(Error::Member {
                    resource: member.name(),
                    cause: Box::new(unsupported(name, "be committed with --live", why).into()),
                });
            }
            preview.keep_sandbox(true);
        }
        self.open = true;
        Ok(self)
    }

    /// Whether something stays in the sandboxes.
    pub(super) fn is_part(&self) -> bool {
        self.open || self.left.iter().any(|left| !left.is_empty())
    }
}

impl Previewed<'_> {
    /// What was found, to be shown.
    pub(crate) fn show(&self) -> CommitPreview {
        let one = |((looked, left), (unnamed, ignored)): (
            (&Looked, &DiffView),
            (&DiffView, &DiffView),
        )| {
            let (member, _, preview) = looked;
            let diff = preview.released(self.terms.on_conflict);
            let mut runs_later = member.resource.runs_later(&diff);
            runs_later.extend(member.resource.runs_later(unnamed));
            MemberPreview {
                resource: member.name(),
                at: member.resource.at.clone(),
                runs_later,
                diff,
                left: left.clone(),
                ignored: ignored.clone(),
                conflicts: preview.conflicts.clone(),
                merged: preview.merged.clone(),
                notes: preview.notes.clone(),
                undoable: member.capabilities().undoes && !preview.lasting,
            }
        };
        CommitPreview {
            members: self
                .members
                .iter()
                .zip(&self.left)
                .zip(self.unnamed.iter().zip(&self.ignored))
                .map(one)
                .collect(),
            digest: None,
        }
    }

    /// The digest of what would be released, read from the sandboxes.
    pub(crate) fn digest(&self) -> Result<PlanDigest> {
        let mut all = PlanDigest::default();
        for (member, session, preview) in &self.members {
            let changes = &preview.released(self.terms.on_conflict).changes;
            let digests = member.session(&**session, |session| session.digests(changes))?;
            all.add(&member.resource.name, changes, digests);
        }
        Ok(all)
    }

    /// Refuses where conflicts are not resolved, or where there is no room (rules C12, C15).
    pub(crate) fn check(&self) -> Result<()> {
        let conflicts: Vec<(String, Conflict)> = self
            .members
            .iter()
            .flat_map(|(member, _, preview)| {
                let name = member.name();
                preview
                    .conflicts
                    .iter()
                    .map(move |conflict| (name.clone(), conflict.clone()))
            })
            .collect();
        let on_conflict = self.terms.on_conflict;
        if !conflicts
            .iter()
            .all(|(_, one)| one.is_settled_by(on_conflict))
        {
            return Err(Error::Conflicts {
                undo: false,
                merge: self.terms.merge,
                plan: self.plan.name.clone(),
                conflicts,
            });
        }
        for (member, _, preview) in &self.members {
            check_room(member, preview)?;
        }
        Ok(())
    }
}

/// Refuses what is not what was expected. No choice between two versions settles that.
pub fn check_expected(plan: &Plan, expected: &Expected, found: &PlanDigest) -> Result<()> {
    let (same, differs) = match expected {
        Expected::Digest(text) => (found.text().as_ref() == Some(text), Vec::new()),
        Expected::Shown(shown) => (shown == found, shown.differences(found)),
    };
    match same || failpoints::bug("expected-not-compared") {
        true => Ok(()),
        false => Err(Error::Unexpected {
            plan: plan.name.clone(),
            found: found.text(),
            differs,
        }),
    }
}

/// Staging copies nothing within one file system; into another it needs room for all of it.
fn check_room(member: &Member, preview: &Preview) -> Result<()> {
    let Some(at) = member.resource.root() else {
        return Ok(());
    };
    match workspace::free_for_copies(member.sandbox.area.as_path(), at)? {
        Some(free) if preview.bytes > free => Err(Error::NoSpace {
            at: member.resource.at.clone(),
            needed: preview.bytes,
            free,
        }),
        _ => Ok(()),
    }
}
