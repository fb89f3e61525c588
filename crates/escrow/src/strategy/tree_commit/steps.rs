//! Which renames make the changes that were chosen.
//!
//! A directory that is new, gone or replaced is one step, with everything in it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::stat;
use crate::fs::{Dir, Meta};
use crate::model::{Change, ChangeKind, EntryKind, ResourcePath};
use crate::strategy::PrepareRequest;
use crate::strategy::error::Result;

/// One rename to be.
pub(super) struct Planned<'a> {
    pub(super) path: ResourcePath,
    /// What stands there now.
    pub(super) old: Option<Meta>,
    /// What lies in it, and goes with it.
    pub(super) old_below: Vec<(ResourcePath, Meta)>,
    /// What is staged under it: itself first, then what lies in it. Empty where it is taken away.
    /// A directory that is only made to hold others has no change of its own.
    pub(super) new: Vec<(ResourcePath, Option<&'a Change>)>,
}

/// What is to be done.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) steps: Vec<Planned<'a>>,
    /// Directories whose own looks change.
    pub(super) looks: Vec<(&'a Change, Meta)>,
    /// Directories in which a step is made.
    pub(super) parents: BTreeSet<ResourcePath>,
}

/// Chooses the changes to be made and groups them into steps.
pub(super) fn plan<'a>(original: &Dir, request: &PrepareRequest<'a>) -> Result<Plan<'a>> {
    let changes = &request.preview.diff.changes;
    let skipped = request.preview.left_out(request.on_conflict);
    let mut making = Making {
        original,
        plan: Plan::default(),
        whole: HashMap::new(),
        staged: HashSet::new(),
    };
    let all = changes.iter().zip(&request.preview.seen).enumerate();
    for (number, (change, seen)) in all {
        if skipped.contains(&number) {
            continue;
        }
        making.add(change, *seen)?;
    }
    Ok(making.plan)
}

struct Making<'a, 'd> {
    original: &'d Dir,
    plan: Plan<'a>,
    /// Paths that go or come with everything in them, with the number of their step.
    whole: HashMap<ResourcePath, usize>,
    /// Paths that are staged already.
    staged: HashSet<ResourcePath>,
}

impl<'a> Making<'a, '_> {
    fn add(&mut self, change: &'a Change, seen: Option<Meta>) -> Result<()> {
        let path = &change.path;
        let above = path
            .ancestors()
            .find_map(|path| self.whole.get(&path).copied());
        if let Some(step) = above {
            if let Some(seen) = seen {
                let old_below = &mut self.plan.steps[step].old_below;
                old_below.push((path.clone(), seen));
            }
            // What is gone goes with its directory; what is new comes with it.
            if change.new.is_some() && !self.plan.steps[step].new.is_empty() {
                self.within(step, change);
            }
            return Ok(());
        }
        let new_directory = change
            .new
            .as_ref()
            .is_some_and(|new| new.kind == EntryKind::Directory);
        match (&change.new, seen) {
            // Gone on both sides.
            (None, None) => return Ok(()),
            // Only its looks change, or two directories become one.
            (Some(_), Some(now)) if new_directory && now.is_dir() => {
                if change.kind == ChangeKind::ModeChanged {
                    self.plan.looks.push((change, now));
                }
                return Ok(());
            }
            _ => {}
        }
        if seen.is_none() && self.hole(change)? {
            return Ok(());
        }
        let new = match &change.new {
            Some(_) => vec![(path.clone(), Some(change))],
            None => Vec::new(),
        };
        self.step(path.clone(), seen, new);
        Ok(())
    }

    /// Makes the directories that the original no longer has for a change that is wanted all the
    /// same; `false` where they are all there.
    fn hole(&mut self, change: &'a Change) -> Result<bool> {
        let mut above: Vec<ResourcePath> = change.path.ancestors().collect();
        above.reverse();
        for path in above {
            let now = stat(self.original, &path)?;
            if now.is_some_and(|now| now.is_dir()) {
                continue;
            }
            let step = self.step(path.clone(), now, vec![(path, None)]);
            self.within(step, change);
            return Ok(true);
        }
        Ok(false)
    }

    /// Stages a change below the directory of a step, with the directories in between.
    fn within(&mut self, step: usize, change: &'a Change) {
        let mut missing: Vec<ResourcePath> = change
            .path
            .ancestors()
            .take_while(|path| !self.staged.contains(path))
            .collect();
        missing.reverse();
        self.staged.extend(missing.iter().cloned());
        self.staged.insert(change.path.clone());
        let new = &mut self.plan.steps[step].new;
        new.extend(missing.into_iter().map(|path| (path, None)));
        new.push((change.path.clone(), Some(change)));
    }

    fn step(
        &mut self,
        path: ResourcePath,
        old: Option<Meta>,
        new: Vec<(ResourcePath, Option<&'a Change>)>,
    ) -> usize {
        let number = self.plan.steps.len();
        if let Some((parent, _)) = path.split() {
            self.plan.parents.insert(parent);
        }
        self.whole.insert(path.clone(), number);
        self.staged.insert(path.clone());
        self.plan.steps.push(Planned {
            path,
            old,
            old_below: Vec::new(),
            new,
        });
        number
    }
}

/// The directories in which, or to which, something is done, deepest first.
pub(super) fn deepest_first<T>(directories: BTreeMap<ResourcePath, T>) -> Vec<(ResourcePath, T)> {
    let mut sorted: Vec<(ResourcePath, T)> = directories.into_iter().collect();
    sorted.sort_by_key(|(path, _)| std::cmp::Reverse(path.parts().count()));
    sorted
}
