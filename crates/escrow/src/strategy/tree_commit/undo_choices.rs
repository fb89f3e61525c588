//! Which changes of a tree commit an undo leaves in the original, and which it merges with what changed there since.
//!
//! The choices are a file in the commit's area, durable before the undo is decided. A merge needs the text that the commit
//! brought: it is kept in the area when the commit is staged, for text files that it changed.
//!
//! ```text
//! <commit area>/
//!   texts/0, 1, …    the text that the commit brought, by the number of the step
//!   stage/0-merged   the merged text that an undo puts in place; afterwards the original's version from before that
//!   choices          what the next undo leaves and merges
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::intent::{IntentRecords, RenameStep};
use super::merge::{merge_lines, text};
use super::undo::{MADE, read_found};
use super::{TreeIntent, stat};
use crate::fs::{Dir, Fingerprint, atomic_file, remove};
use crate::model::hunks::LARGEST_TEXT;
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::{Intent, UndoChoices, UndoPlan, tree, unsupported};

const CHOICES: &[u8] = b"choices";
const TEXTS: &[u8] = b"texts";
/// What the name of a merged text ends with, in the stage.
pub(super) const MERGED: &[u8] = b"-merged";
/// So many bytes of texts are kept with a commit.
const MOST_KEPT: u64 = 16 << 20;

/// What was chosen for the next undo.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Recorded {
    /// Steps that an earlier undo took back.
    #[serde(default)]
    pub(super) done: HashSet<u32>,
    pub(super) leave: HashSet<ResourcePath>,
    /// Paths whose newer versions go into the plan.
    #[serde(default)]
    pub(super) take: HashSet<ResourcePath>,
    /// Steps whose merged text is staged, and that file.
    pub(super) merged: HashMap<u32, Fingerprint>,
}

impl Recorded {
    pub(super) fn read(area: &Dir) -> Result<Self> {
        match area.read(CHOICES) {
            Err(error) if error.is_absent() => Ok(Self::default()),
            text => serde_json::from_slice(&text?).map_err(|error| {
                crate::strategy::StrategyError::Damaged {
                    what: format!("the choices of an undo cannot be read ({error})"),
                }
            }),
        }
    }

    /// Whether an undo leaves a step as a whole. Of a new directory it may leave a part.
    pub(super) fn leaves(&self, records: &IntentRecords, step: &RenameStep) -> bool {
        let is_dir = step
            .top
            .new
            .is_some_and(|new| new.kind == EntryKind::Directory);
        let apart = step.top.old.is_none() && is_dir;
        let mut below = records.below(step);
        self.leave.contains(&step.top.path)
            && (!apart || below.all(|entry| self.leave.contains(&entry.path)))
    }

    fn write(&self, area: &Dir) -> Result<()> {
        let text = serde_json::to_vec(self).expect("paths and numbers are JSON");
        Ok(atomic_file::replace(area, area, CHOICES, &text)?)
    }
}

/// Whether two versions at the place of a step are files, so that their texts can be merged.
fn replaces_file(step: &RenameStep) -> bool {
    let is_file = |one: &Option<Fingerprint>| {
        one.is_some_and(|one| one.kind == EntryKind::File && one.size <= LARGEST_TEXT)
    };
    step.is_leaf() && is_file(&step.top.old) && is_file(&step.top.new)
}

/// Keeps the texts that a commit brings, as far as there is room: without one, its file cannot be merged by an undo.
pub(super) struct TextKeeper<'a> {
    area: &'a Dir,
    stage: &'a Dir,
    room: Option<Dir>,
    left: u64,
}

impl<'a> TextKeeper<'a> {
    pub(super) fn new(area: &'a Dir, stage: &'a Dir) -> Self {
        Self {
            area,
            stage,
            room: None,
            left: MOST_KEPT,
        }
    }

    /// Keeps the text that is staged for a step, if it takes the place of a file.
    pub(super) fn keep(&mut self, slot: u32, old: Option<Fingerprint>) -> Result<()> {
        let name = slot.to_string().into_bytes();
        let is_file = |size: u64| size <= LARGEST_TEXT.min(self.left);
        if !old.is_some_and(|old| old.kind == EntryKind::File && is_file(old.size)) {
            return Ok(());
        }
        let staged = self.stage.stat(&name)?;
        let Some(meta) = staged.filter(|meta| meta.is_file() && is_file(meta.size)) else {
            return Ok(());
        };
        let Some(text) = text((self.stage, &name))? else {
            return Ok(());
        };
        // A full disk does not stop a commit: the file is then one that cannot be merged.
        if self.write(&name, &text).is_err() {
            self.left = 0;
            return Ok(remove::remove(self.area, TEXTS)?);
        }
        self.left -= meta.size.min(self.left);
        Ok(())
    }

    fn write(&mut self, name: &[u8], text: &[u8]) -> Result<()> {
        let room = match &mut self.room {
            Some(room) => room,
            none => {
                self.area.make_dir(TEXTS, 0o700)?;
                none.insert(self.area.subdir(TEXTS)?)
            }
        };
        let mut file = room.create(name, 0o600)?;
        let written = file.write_all(text);
        Ok(written.map_err(|error| room.io_error("write", name, &error))?)
    }
}

/// Says what an undo can leave and merge, and records the choices if they are for the next one.
pub(in crate::strategy) fn plan(
    intent: &Intent,
    choices: &UndoChoices,
    record: bool,
) -> Result<UndoPlan> {
    if intent.0.get("file").is_none() {
        return Ok(UndoPlan::default());
    }
    let place = super::area_of(intent)?;
    let area = Dir::open(place.as_path())?;
    let done = taken_back(&area)?;
    let take = choices.take.iter().cloned().collect();
    if record && choices.leave.is_empty() && choices.merge.is_empty() {
        let recorded = Recorded {
            done,
            take,
            ..Recorded::default()
        };
        begin(&area, &recorded)?;
        return Ok(UndoPlan::default());
    }
    let commit = TreeIntent::read(intent)?;
    let mut plan = UndoPlan {
        paths: paths(&commit.records, &done),
        unmerged: Vec::new(),
    };
    check_left(&commit.records, &choices.leave)?;
    let mut recorded = Recorded {
        done,
        leave: choices.leave.iter().cloned().collect(),
        take,
        merged: HashMap::new(),
    };
    for path in &choices.merge {
        match merge(&commit, &area, path, record)? {
            Ok(staged) => recorded.merged.extend(staged),
            Err(why) => plan.unmerged.push((path.clone(), why.to_owned())),
        }
    }
    if record {
        begin(&area, &recorded)?;
    }
    Ok(plan)
}

/// The steps that earlier undos took back as a whole.
pub(super) fn taken_back(area: &Dir) -> Result<HashSet<u32>> {
    let mut done = Recorded::read(area)?.done;
    if let Some(found) = read_found(area)? {
        done.extend(found.made.difference(&found.apart));
    }
    Ok(done)
}

/// Makes these choices those of the next undo, durably; what an undo before it found counts no more.
fn begin(area: &Dir, choices: &Recorded) -> Result<()> {
    let known = area.stat(CHOICES)?.is_some() || area.stat(MADE)?.is_some();
    let none = choices.leave.is_empty() && choices.merged.is_empty();
    if !known && none && choices.done.is_empty() && choices.take.is_empty() {
        return Ok(());
    }
    choices.write(area)?;
    if area.stat(MADE)?.is_some() {
        area.unlink(MADE)?;
        area.sync()?;
    }
    Ok(())
}

/// Every path that a commit changed and that was not taken back, each once.
fn paths(records: &IntentRecords, done: &HashSet<u32>) -> Vec<ResourcePath> {
    let mut all: BTreeSet<ResourcePath> = records.links().map(|link| link.path).collect();
    for step in records.steps().filter(|step| !done.contains(&step.slot)) {
        all.extend(records.below(&step).map(|entry| entry.path));
        all.insert(step.top.path);
    }
    for update in records.directories() {
        let (before, after) = (&update.before, &update.after);
        let looks = (before.mode, before.owner) != (after.mode, after.owner);
        if update.seen.is_some() && !update.is_file() && (looks || before.xattrs != after.xattrs) {
            all.insert(update.path);
        }
    }
    all.into_iter().collect()
}

/// Refuses to leave a part of a directory that the commit replaced or removed: it goes back as a whole.
fn check_left(records: &IntentRecords, leave: &BTreeSet<ResourcePath>) -> Result<()> {
    for step in records.steps().filter(|step| step.top.old.is_some()) {
        let below = records
            .below(&step)
            .any(|entry| leave.contains(&entry.path));
        if below && !leave.contains(&step.top.path) {
            let what = format!("take a part of '{}' back", step.top.path);
            let why =
                "the commit removed or replaced that directory as a whole: name the directory";
            return Err(unsupported("an undo", &what, why));
        }
    }
    Ok(())
}

/// Merges the version from before the commit with what changed since, and stages the text if it is to be `staged`. Returns the
/// number of the step with that file, or why it cannot be merged.
fn merge(
    commit: &TreeIntent,
    area: &Dir,
    path: &ResourcePath,
    staged: bool,
) -> Result<std::result::Result<Option<(u32, Fingerprint)>, &'static str>> {
    let mut steps = commit.records.steps();
    let Some(step) = steps.find(|step| step.top.path == *path && replaces_file(step)) else {
        return Ok(Err("only text files that the commit changed are merged"));
    };
    let original = commit.original.open()?;
    let stage = commit.stage()?;
    let kept = match area.stat(TEXTS)? {
        Some(_) => text((&area.subdir(TEXTS)?, &step.slot()))?,
        None => None,
    };
    let Some(committed) = kept else {
        return Ok(Err("the text that the commit brought was not kept"));
    };
    if stat(&original, path)?.is_none_or(|now| now.kind != EntryKind::File) {
        return Ok(Err("it is no file in the original any more"));
    }
    let (dir, name) = original.parent(path)?;
    let (Some(before), Some(now)) = (text((&stage, &step.kept()))?, text((&dir, name))?) else {
        return Ok(Err("it is no text, or too large to be merged"));
    };
    let Some(merged) = merge_lines(&committed, &before, &now) else {
        return Ok(Err("both changed the same lines"));
    };
    if !staged {
        return Ok(Ok(None));
    }
    let to = [&step.slot()[..], MERGED].concat();
    remove::remove(&stage, &to)?;
    let meta = dir.stat(name)?.ok_or_else(|| dir.absent("merge", name))?;
    let looks = Some((meta, tree::xattrs(&dir, name)?));
    tree::put(&stage, &stage, path, &to, looks, &mut &merged[..])?;
    let file = stage.stat(&to)?.map(|meta| Fingerprint::from(&meta));
    Ok(Ok(file.map(|file| (step.slot, file))))
}
