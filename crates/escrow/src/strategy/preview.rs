//! The preview of one sandbox's commit: computed once, shown, and then prepared as it was shown.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::path_index::PathIndex;
use crate::model::{
    Change, ChangeKind, Choice, ChosenHunks, Conflict, Detail, DiffView, EntryKind, ResourcePath,
};

/// How closely the original is compared before a commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewOptions {
    /// Whatever moved in the original is a conflict, not only what the sandbox changed too.
    pub strict: bool,
    /// Text files that both sides changed are merged, where that can be done without a choice.
    #[serde(default)]
    pub merge: bool,
    /// Of these files only the hunks that were chosen are released.
    #[serde(skip)]
    pub hunks: BTreeMap<ResourcePath, ChosenHunks>,
    /// These files are not merged: the caller settles them.
    #[serde(skip)]
    pub settled: BTreeSet<ResourcePath>,
}

/// Paths that both sides changed, each with the text that both began from, where that is known.
pub type BothSides = BTreeMap<ResourcePath, Option<Vec<u8>>>;

/// Something that will not come across as it is in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewNote {
    /// Where.
    pub path: ResourcePath,
    /// What is left out or taken away, and why.
    pub what: String,
}

/// What a commit would do to one original: what `--dry-run` shows, and what
/// [`prepare`](super::Sandbox::prepare) is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preview {
    /// Everything that would change.
    #[serde(with = "shared")]
    pub diff: Arc<DiffView>,
    /// Where the original contradicts that.
    pub conflicts: Vec<Conflict>,
    /// What will not come across as it is.
    pub notes: Vec<PreviewNote>,
    /// Bytes in the files that the sandbox adds or changes.
    pub bytes: u64,
    /// Only a part of what the sandbox changed is in the diff; the rest stays there.
    pub part: bool,
    /// Commands that see the sandbox go on while it is released.
    #[serde(skip)]
    pub live: bool,
    /// What both sides changed, and is released as both made it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<ResourcePath>,
    /// Files of which only the hunks that were chosen are released. One that was asked for and is not among them is not released.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_hunks: Vec<ResourcePath>,
    /// This cannot be taken back once it is committed, though the strategy takes other commits back.
    #[serde(default)]
    pub lasting: bool,
}

/// A shared view, written as the view itself.
mod shared {
    use super::*;

    pub(super) fn serialize<S: serde::Serializer>(
        diff: &DiffView,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        diff.serialize(to)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<DiffView>, D::Error> {
        DiffView::deserialize(from).map(Arc::new)
    }
}

/// Which version counts where both sides changed a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Neither: nothing is committed.
    #[default]
    Abort,
    /// The sandbox's; the original's is kept for undo.
    Ours,
    /// The original's; the sandbox's is left out.
    Theirs,
}

impl Conflict {
    /// Whether it is clear with this what is released.
    pub fn is_settled_by(&self, on_conflict: OnConflict) -> bool {
        match on_conflict {
            OnConflict::Abort => false,
            OnConflict::Ours => matches!(self.choice, Choice::Either | Choice::Ours),
            OnConflict::Theirs => matches!(self.choice, Choice::Either | Choice::Theirs),
        }
    }
}

impl Preview {
    /// The numbers of the changes that a commit does not make: sockets, and what it leaves to the
    /// original where both sides changed it.
    pub(super) fn left_out(&self, on_conflict: OnConflict) -> HashSet<usize> {
        let changes = &self.diff.changes;
        let mut left = HashSet::new();
        for (number, change) in changes.iter().enumerate() {
            let kind = change.new.as_ref().map(|new| new.kind);
            if kind == Some(EntryKind::Socket) {
                left.insert(number);
            }
        }
        if on_conflict != OnConflict::Theirs {
            return left;
        }
        let contested: HashSet<&ResourcePath> =
            self.conflicts.iter().map(|one| &one.path).collect();
        let mut refused = contested.clone();
        let rows = changes
            .iter()
            .filter(|change| matches!(change.detail, Detail::Row(_)));
        let rows: HashSet<&ResourcePath> = rows.map(|change| &change.path).collect();
        // What they have stays, and so do the directories it lies in. A row of theirs lies in the sandbox's form of the table as well.
        let held = contested.iter().filter(|path| !rows.contains(*path));
        let standing: HashSet<ResourcePath> = held.flat_map(|path| path.ancestors()).collect();
        for change in changes {
            let removes = change.new.is_none() || change.kind == ChangeKind::TypeChanged;
            if removes && standing.contains(&change.path) {
                refused.insert(&change.path);
            }
        }
        // What the sandbox has below a version of theirs goes with its own version.
        let replaced: HashSet<&ResourcePath> = changes
            .iter()
            .filter(|change| refused.contains(&change.path))
            .filter(|change| {
                matches!(
                    change.kind,
                    ChangeKind::Added | ChangeKind::Modified | ChangeKind::TypeChanged
                )
            })
            .map(|change| &change.path)
            .collect();
        let theirs = replaced.iter().chain(&contested);
        let theirs: PathIndex<()> = theirs.map(|path| ((*path).clone(), ())).collect();
        for (number, change) in changes.iter().enumerate() {
            let below = || theirs.above(&change.path).is_some();
            if refused.contains(&change.path) || below() {
                left.insert(number);
            }
        }
        left
    }

    /// The sandbox stays, and goes on from what is released. Then what both sides changed is not merged: what the sandbox has
    /// would take back what the original brought.
    pub(crate) fn keep_sandbox(&mut self, live: bool) {
        (self.part, self.live) = (true, live);
        self.refuse_merged(
            "changed there and here; what stays in a sandbox is committed without merging",
        );
    }

    /// What would be merged is a conflict instead.
    pub(crate) fn refuse_merged(&mut self, what: &str) {
        for path in std::mem::take(&mut self.merged) {
            self.conflicts.push(Conflict::of(path, what));
        }
    }

    /// Keeps the changes that were chosen, with what belongs to them, and returns the others. What moved
    /// elsewhere in the original concerns the whole of it, if that `strict`ly counts.
    pub(crate) fn choose(&mut self, chosen: &[bool], strict: bool) -> DiffView {
        let changes = Arc::unwrap_or_clone(std::mem::take(&mut self.diff)).changes;
        let numbers: HashMap<&ResourcePath, bool> = changes
            .iter()
            .zip(chosen)
            .map(|(change, chosen)| (&change.path, *chosen))
            .collect();
        // What is no change itself, such as something new in a directory that goes, belongs to the
        // nearest one.
        let concerns = |path: &ResourcePath| {
            let above = std::iter::once(path.clone()).chain(path.ancestors());
            let nearest = above.filter_map(|path| numbers.get(&path).copied()).next();
            strict || nearest.unwrap_or(false)
        };
        self.conflicts.retain(|one| concerns(&one.path));
        self.merged.retain(|path| concerns(path));
        self.notes.retain(|one| concerns(&one.path));
        let (mut left, mut released) = (DiffView::default(), DiffView::default());
        for (change, chosen) in changes.into_iter().zip(chosen) {
            match chosen {
                true => released.changes.push(change),
                false => left.changes.push(change),
            }
        }
        // The other hunks stay.
        let rest = released.changes.iter();
        let rest = rest.filter(|one| self.in_hunks.contains(&one.path));
        left.changes.extend(rest.cloned());
        let left = DiffView::new(left.changes);
        self.diff = Arc::new(released);
        let sizes = self.diff.changes.iter().filter_map(|one| one.new.as_ref());
        self.bytes = self.bytes.min(sizes.map(|new| new.size).sum());
        left
    }

    /// Takes out what is released only by name, but for what is `named`, and says so of each; returns what was taken out.
    pub(crate) fn leave_unnamed(&mut self, named: impl Fn(&ResourcePath) -> bool) -> DiffView {
        if !self.diff.changes.iter().any(Change::is_by_name) {
            return DiffView::default();
        }
        let (mut left, mut kept) = (DiffView::default(), DiffView::default());
        for change in Arc::unwrap_or_clone(std::mem::take(&mut self.diff)).changes {
            match change.is_by_name() {
                false => kept.changes.push(change),
                true if named(&change.path) => kept.changes.push(change.named()),
                true => left.changes.push(change),
            }
        }
        for change in &left.changes {
            self.notes.push(PreviewNote {
                path: change.path.clone(),
                what: "it stays in the sandbox, unless it is named with `--only`".to_owned(),
            });
        }
        self.diff = Arc::new(kept);
        left
    }

    /// The changes that a commit makes.
    pub fn released(&self, on_conflict: OnConflict) -> Arc<DiffView> {
        let left = self.left_out(on_conflict);
        if left.is_empty() {
            return Arc::clone(&self.diff);
        }
        let made = |(number, change): (usize, &crate::model::Change)| {
            (!left.contains(&number)).then(|| change.clone())
        };
        let changes = self.diff.changes.iter().enumerate();
        Arc::new(DiffView {
            changes: changes.filter_map(made).collect(),
        })
    }
}

/// Paths that something was done to: the first of them, and how many there are.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathSample {
    first: BTreeSet<ResourcePath>,
    count: u64,
}

impl PathSample {
    /// How many are named.
    pub const NAMED: usize = 100;

    /// Adds one that is not among them.
    pub fn add(&mut self, path: &ResourcePath) {
        self.count += 1;
        let last = self
            .first
            .last()
            .filter(|_| self.first.len() >= Self::NAMED);
        if last.is_some_and(|last| last < path) {
            return;
        }
        self.first.insert(path.clone());
        if self.first.len() > Self::NAMED {
            self.first.pop_last();
        }
    }

    /// The first of them, in their order.
    pub fn first(&self) -> impl Iterator<Item = &ResourcePath> {
        self.first.iter()
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }
}
