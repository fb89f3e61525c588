//! Plans the renames that make the selected changes.
//!
//! A directory that is new, gone or replaced is one step, with everything in it. Changes are taken in the order of the
//! tree, in which everything below a directory follows it, so steps come one after the other and only one is held.
//!
//! One that cannot be moved, in a lower layer of an overlay file system, goes by a step for each entry: first what lies in
//! it, then the empty directory, of which a copy is kept.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};

use super::{StageRequest, TreePreview, check_loose, stat};
use crate::fs::{Dir, Fingerprint};
use crate::model::{Change, ChangeKind, EntryKind, ResourcePath};
use crate::strategy::error::Result;

/// One rename to be.
pub(super) struct PlannedStep<'a> {
    pub(super) path: ResourcePath,
    /// What stands there now.
    pub(super) old: Option<Fingerprint>,
    /// That is a directory which cannot be moved.
    pub(super) stuck: bool,
    /// Whether something is put there; else it is taken away.
    pub(super) puts: bool,
    /// What is put there, and what lies in it before and after, in the order of the tree.
    pub(super) items: Vec<StepItem<'a>>,
}

/// One path of a step.
pub(super) struct StepItem<'a> {
    pub(super) path: Cow<'a, ResourcePath>,
    /// What lies there before. Of the step's own path the step says it.
    pub(super) old: Option<Fingerprint>,
    pub(super) new: StagedContent<'a>,
}

/// What is staged at a path.
#[derive(Clone, Copy)]
pub(super) enum StagedContent<'a> {
    /// Nothing.
    Nothing,
    /// A directory that is no change itself, only made to hold others.
    Holder,
    /// What the sandbox has there.
    Changed(&'a Change),
}

/// What is to be done beside the steps.
#[derive(Default)]
pub(super) struct AffectedDirs<'a> {
    /// Directories whose own looks change.
    pub(super) looks: Vec<(&'a Change, Fingerprint)>,
    /// Directories in which a step is made.
    pub(super) parents: BTreeSet<ResourcePath>,
}

/// Chooses the changes to be made and groups them into steps; `make` is given one after the other.
pub(super) fn plan<'a>(
    original: &Dir,
    request: &StageRequest<'a>,
    is_stuck: &dyn Fn(&ResourcePath) -> Result<bool>,
    make: &mut dyn FnMut(PlannedStep<'a>) -> Result<()>,
) -> Result<AffectedDirs<'a>> {
    let found = request.preview;
    let skipped = found.preview.left_out(request.on_conflict);
    let mut making = StepPlanner {
        original,
        is_stuck,
        around: AffectedDirs::default(),
        step: None,
        staged: Vec::new(),
        emptied: Vec::new(),
        done: Vec::new(),
    };
    for number in in_tree_order(found, &skipped) {
        let (change, seen) = (&found.preview.diff.changes[number], found.seen[number]);
        making.add(change, seen)?;
        making.done.drain(..).try_for_each(&mut *make)?;
    }
    making.end();
    making.done.drain(..).try_for_each(make)?;
    Ok(making.around)
}

/// The numbers of the changes that are made. A diff is in the order of bytes, where what has a name like `a-b` comes
/// between the directory `a` and what lies in it.
fn in_tree_order(found: &TreePreview, skipped: &HashSet<usize>) -> Vec<usize> {
    let changes = &found.preview.diff.changes;
    let count = changes.len().min(found.seen.len());
    let mut numbers: Vec<usize> = (0..count).filter(|one| !skipped.contains(one)).collect();
    numbers.sort_by(|a, b| tree_order(&changes[*a].path, &changes[*b].path));
    numbers
}

/// By one name after the other.
pub(super) fn tree_order(a: &ResourcePath, b: &ResourcePath) -> Ordering {
    let slash_first = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
    let (a, b) = (a.as_bytes().iter(), b.as_bytes().iter());
    a.map(slash_first).cmp(b.map(slash_first))
}

struct StepPlanner<'a, 'd> {
    original: &'d Dir,
    is_stuck: &'d dyn Fn(&ResourcePath) -> Result<bool>,
    around: AffectedDirs<'a>,
    /// The step that is being put together.
    step: Option<PlannedStep<'a>>,
    /// The directories staged for it that the last change lies in, from the top down.
    staged: Vec<ResourcePath>,
    /// Directories in one that cannot be moved, of which not everything was met yet, from the top down.
    emptied: Vec<PlannedStep<'a>>,
    /// Steps that are complete.
    done: Vec<PlannedStep<'a>>,
}

impl<'a> StepPlanner<'a, '_> {
    /// Adds a change.
    fn add(&mut self, change: &'a Change, seen: Option<Fingerprint>) -> Result<()> {
        let path = &change.path;
        let within = |step: &&mut PlannedStep<'a>| path.lies_in(&step.path);
        if let Some(step) = self.step.as_mut().filter(within) {
            if step.stuck {
                self.empty(path, seen);
                return Ok(());
            }
            // What is gone goes with its directory; what is new comes with it.
            let new = change.new.as_ref().filter(|_| step.puts);
            if new.is_some() || seen.is_some() {
                self.within(change, seen);
            }
            return Ok(());
        }
        let new_directory = is_directory(change);
        match (&change.new, seen) {
            // Gone on both sides.
            (None, None) => return Ok(()),
            // Only its looks change, or two directories become one.
            (Some(_), Some(now)) if new_directory && now.kind == EntryKind::Directory => {
                if change.kind == ChangeKind::ModeChanged {
                    self.around.looks.push((change, now));
                }
                return Ok(());
            }
            _ => {}
        }
        if seen.is_none()
            && let Some((missing, now)) = self.hole(change)?
        {
            self.begin(missing, now, true, Some(StagedContent::Holder))?;
            self.within(change, None);
            return Ok(());
        }
        let new = change
            .new
            .is_some()
            .then_some(StagedContent::Changed(change));
        self.begin(path.clone(), seen, change.new.is_some(), new)
    }

    /// Takes what lies in a directory that cannot be moved: a directory after everything in it.
    fn empty(&mut self, path: &ResourcePath, seen: Option<Fingerprint>) {
        let above = |last: &mut PlannedStep<'a>| !path.lies_in(&last.path);
        while let Some(empty) = self.emptied.pop_if(above) {
            self.done.push(empty);
        }
        // Gone on both sides.
        let Some(old) = seen else { return };
        let step = PlannedStep {
            path: path.clone(),
            old: seen,
            stuck: old.kind == EntryKind::Directory,
            puts: false,
            items: Vec::new(),
        };
        match step.stuck {
            true => self.emptied.push(step),
            false => self.done.push(step),
        }
    }

    /// Ends the step that is being put together.
    fn end(&mut self) {
        self.done.extend(self.emptied.drain(..).rev());
        self.done.extend(self.step.take());
    }

    /// The topmost directory that the original no longer has for a change that is wanted all the same, and what is there
    /// instead; `None` where they are all there.
    fn hole(&self, change: &Change) -> Result<Option<(ResourcePath, Option<Fingerprint>)>> {
        let Some((parent, _)) = change.path.split() else {
            return Ok(None);
        };
        // Mostly it is there, or another step was made in it already.
        if self.around.parents.contains(&parent) {
            return Ok(None);
        }
        let mut above: Vec<ResourcePath> = change.path.ancestors().collect();
        above.reverse();
        for path in above {
            let now = stat(self.original, &path)?;
            if !now.is_some_and(|now| now.is_dir()) {
                check_loose(&path, now.is_some_and(|now| now.fixed))?;
                return Ok(Some((path, now.as_ref().map(Fingerprint::from))));
            }
        }
        Ok(None)
    }

    /// Adds a change below the directory of the step, with the directories in between.
    fn within(&mut self, change: &'a Change, seen: Option<Fingerprint>) {
        let Some(step) = &mut self.step else { return };
        let path = &change.path;
        let new = match &change.new {
            Some(_) if step.puts => StagedContent::Changed(change),
            _ => StagedContent::Nothing,
        };
        if let StagedContent::Changed(_) = new {
            while self.staged.last().is_some_and(|last| !path.lies_in(last)) {
                self.staged.pop();
            }
            let known = self.staged.last().unwrap_or(&step.path);
            let mut missing: Vec<ResourcePath> = path
                .ancestors()
                .take_while(|above| above != known)
                .collect();
            missing.reverse();
            for holder in missing {
                self.staged.push(holder.clone());
                step.items.push(StepItem {
                    path: Cow::Owned(holder),
                    old: None,
                    new: StagedContent::Holder,
                });
            }
            if is_directory(change) {
                self.staged.push(path.clone());
            }
        }
        step.items.push(StepItem {
            path: Cow::Borrowed(path),
            old: seen,
            new,
        });
    }

    /// Begins a step.
    fn begin(
        &mut self,
        path: ResourcePath,
        old: Option<Fingerprint>,
        puts: bool,
        new: Option<StagedContent<'a>>,
    ) -> Result<()> {
        self.end();
        if let Some((parent, _)) = path.split()
            && !self.around.parents.contains(&parent)
        {
            self.around.parents.insert(parent);
        }
        self.staged.clear();
        let items = new.map(|new| StepItem {
            path: match new {
                StagedContent::Changed(change) => Cow::Borrowed(&change.path),
                _ => Cow::Owned(path.clone()),
            },
            old: None,
            new,
        });
        let is_dir = old.is_some_and(|old| old.kind == EntryKind::Directory);
        self.step = Some(PlannedStep {
            stuck: is_dir && (self.is_stuck)(&path)?,
            path,
            old,
            puts,
            items: items.into_iter().collect(),
        });
        Ok(())
    }
}

fn is_directory(change: &Change) -> bool {
    let new = change.new.as_ref();
    new.is_some_and(|new| new.kind == EntryKind::Directory)
}
