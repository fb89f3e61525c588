//! Detects conflicts: compares the original at each changed path with what the change was based on (rule C15).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use rustix::io::Errno;

use super::merge::{self, BaseText};
use super::{Released, TreePreview, VersionSource, plain_databases, privileges, sort};
use crate::fs::dir::DirEntry;
use crate::fs::state_dir;
use crate::fs::walk::look_at_all;
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, EntryHandle, Fingerprint, FsError, Meta, MovedEntries};
use crate::model::text::escape;
use crate::model::{
    Change, ChangeKind, ChangedField, Choice, Conflict, DiffView, EntryInfo, EntryKind,
    ResourcePath, sqlite_files,
};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::{Preview, PreviewNote, PreviewOptions, tree};

/// What a sandbox knows of the original it was made from. Where a partial commit tells more, that counts.
pub(in crate::strategy) trait OriginalBase: Sync {
    /// What partial commits of the sandbox left in the original.
    fn releases(&self) -> Option<Releases<'_>>;

    /// Whether the entry of the original is what it was when the sandbox was made.
    fn is_as_made(&self, path: &ResourcePath, at: Option<EntryAt<'_>>, now: &Meta) -> Result<bool>;

    /// Whether no names came or went in a directory of the original since the sandbox was made.
    fn is_still_as_made(&self, path: &ResourcePath, now: &Meta) -> bool;

    /// Whether something stood at the path of an added entry when the sandbox was made. What else is known of the original
    /// is not called added.
    fn had(&self, _path: &ResourcePath) -> Result<bool> {
        Ok(false)
    }

    /// Where the text is that a changed file had when the sandbox was made.
    fn base_text(&self, _path: &ResourcePath) -> BaseText<'_> {
        BaseText::Unknown
    }

    /// Everything in the original that is neither what it was nor what was released, by any process.
    fn everything_moved(&self, _carved: &[ResourcePath]) -> Result<Vec<Conflict>> {
        Ok(Vec::new())
    }

    /// Whether the entry of the original is what the sandbox was made from, or what was released. Of a directory
    /// its own looks count, not what is in it. `at` is `None` for the root.
    fn is_current(&self, path: &ResourcePath, at: Option<EntryAt<'_>>, now: &Meta) -> Result<bool> {
        let released = self.releases().map(|releases| {
            let place = at.unwrap_or((releases.original, b"."));
            releases.is_current(path, place, now)
        });
        match released.transpose()?.flatten() {
            Some(current) => Ok(current),
            None => self.is_as_made(path, at, now),
        }
    }

    /// Whether no names came or went in a directory of the original since, but by partial commits.
    fn is_still(&self, path: &ResourcePath, now: &Meta) -> bool {
        let released = self.releases();
        self.is_still_as_made(path, now)
            || released.is_some_and(|one| one.released.is_still(path, now))
    }

    /// Whether something stood at the path of an added entry when the sandbox was made, or was released there.
    fn was_there(&self, path: &ResourcePath) -> Result<bool> {
        let released = self.releases().map(|one| one.released.was_there(path));
        match released.flatten() {
            Some(was_there) => Ok(was_there),
            None => self.had(path),
        }
    }
}

/// The directory and the name of an entry.
pub(in crate::strategy) type EntryAt<'a> = (&'a Dir, &'a [u8]);

/// What partial commits left in an original, in which Escrow moved these entries.
#[derive(Clone, Copy)]
pub(in crate::strategy) struct Releases<'a> {
    pub(in crate::strategy) released: &'a Released,
    pub(in crate::strategy) original: &'a Dir,
    pub(in crate::strategy) moved: &'a MovedEntries,
}

impl Releases<'_> {
    /// Whether an entry of the original is the base of what is in the sandbox; `None` where no partial commit tells.
    pub(in crate::strategy) fn is_current(
        &self,
        path: &ResourcePath,
        at: EntryAt<'_>,
        now: &Meta,
    ) -> Result<Option<bool>> {
        self.released.is_current(path, at, now, self.moved)
    }
}

/// Looks at changes, on one thread.
struct ConflictCheck<'a, S> {
    original: Dir,
    sandbox: S,
    changes: &'a [Change],
    base: &'a dyn OriginalBase,
    carved: &'a [ResourcePath],
    options: &'a PreviewOptions,
    /// What contradicts the change that is looked at.
    conflicts: Vec<Conflict>,
    /// What both sides made of it, if it was merged.
    merged: Option<Vec<u8>>,
}

/// What is known of a change.
struct CheckedChange<'a> {
    change: &'a Change,
    /// What stands there in the original.
    now: Option<Meta>,
    version: NewVersion,
    conflicts: Vec<Conflict>,
    merged: Option<Vec<u8>>,
}

/// Compares the original, as it is now, with what the sandbox changed. `sandbox` opens, for one thread, what holds the new
/// versions. Text files that both sides changed are merged where that is asked for.
pub(in crate::strategy) fn look<S: VersionSource>(
    original: &Dir,
    sandbox: impl Fn() -> S + Sync + Send,
    diff: DiffView,
    kept: Vec<ResourcePath>,
    base: &dyn OriginalBase,
    carved: &[ResourcePath],
    options: &PreviewOptions,
) -> Result<TreePreview> {
    let changes = &diff.changes;
    let begin = || ConflictCheck {
        original: original.again().keeping(),
        sandbox: sandbox(),
        changes,
        base,
        carved,
        options,
        conflicts: Vec::new(),
        merged: None,
    };
    let sandbox = &sandbox();
    let mut known = LinkedFiles {
        sandbox,
        paths: &kept,
        known: None,
        met: HashSet::new(),
    };
    let (mut conflicts, mut merged, mut texts) = (Vec::new(), Vec::new(), BTreeMap::new());
    let (mut seen, mut notes, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut owners = LostOwners::default();
    let (mut fixed, mut in_hunks) = (BTreeSet::new(), Vec::new());
    let mut linked: BTreeMap<u64, (u64, Vec<&ResourcePath>)> = BTreeMap::new();
    look_at_all(begin, changes, ConflictCheck::look, |found| {
        let (change, now) = (found.change, found.now);
        if let (Some(now), Some(_)) = (&now, &change.new)
            && now.is_file()
            && now.nlink > 1
        {
            let file = linked
                .entry(now.ino)
                .or_insert((now.nlink.into(), Vec::new()));
            file.1.push(&change.path);
        }
        seen.push(now.as_ref().map(Fingerprint::from));
        conflicts.extend(found.conflicts);
        if change.new.as_ref().is_some_and(sqlite_files::is_stand_in) {
            let what = "this link stands in the place of a database inside, and leads nowhere outside: remove it there (a copy of the \
                        database is made by `sqlite3 FILE '.backup COPY'`)";
            conflicts.retain(|one| one.path != change.path);
            conflicts.push(Conflict::of(change.path.clone(), what).choosing(Choice::Theirs));
        }
        if let Some(text) = found.merged {
            merged.push(change.path.clone());
            texts.insert(change.path.clone(), text);
        }
        if let Some(chosen) = options.hunks.get(&change.path) {
            let text = merge::with_hunks(original, sandbox, change, chosen)?;
            texts.insert(change.path.clone(), text);
            in_hunks.push(change.path.clone());
        }
        if now.is_some_and(|now| now.fixed) {
            fixed.insert(change.path.clone());
        }
        let version = known.count(found.version)?;
        bytes += version.room;
        notes.extend(version.note);
        if let (Some(now), Some(new)) = (now, version.meta) {
            owners.compare(change, &now, &new);
        }
        Ok(())
    })?;
    notes.extend(owners.note());
    let split = linked.into_values();
    let split = split.filter(|(names, changed)| (changed.len() as u64) < *names);
    notes.extend(split.map(|(names, changed)| PreviewNote {
        path: changed[0].clone(),
        what: format!(
            "of the {names} names of this file, those not changed here keep the old content"
        ),
    }));
    let beside = beside_conflicts(changes, &conflicts);
    conflicts.extend(beside);
    if options.strict {
        conflicts.extend(base.everything_moved(carved)?);
    }
    sort(&mut conflicts);
    Ok(TreePreview {
        preview: Preview {
            diff: Arc::new(diff),
            conflicts,
            notes,
            bytes,
            part: false,
            live: false,
            merged,
            in_hunks,
            lasting: false,
        },
        seen,
        fixed,
        kept,
        texts,
    })
}

impl<'a, S: VersionSource> ConflictCheck<'a, S> {
    /// Looks at both sides of a change.
    fn look(&mut self, change: &'a Change) -> Result<CheckedChange<'a>> {
        let now = self.change(change)?;
        let version = match &change.new {
            Some(new) => self.version(change, new)?,
            None => NewVersion::default(),
        };
        Ok(CheckedChange {
            change,
            now,
            version,
            conflicts: std::mem::take(&mut self.conflicts),
            merged: self.merged.take(),
        })
    }

    /// The change at a path; they are in the order of their paths.
    fn changed(&self, path: &ResourcePath) -> Option<&Change> {
        let by_path = |change: &Change| change.path.cmp(path);
        let at = self.changes.binary_search_by(by_path).ok()?;
        self.changes.get(at)
    }

    fn conflict(
        &mut self,
        change: &Change,
        at: Option<(&Dir, &[u8])>,
        now: Option<&Meta>,
        what: &str,
    ) -> Result<()> {
        let both = at.zip(now).map(|(at, now)| self.settle(change, at, now));
        let settled = both.unwrap_or(Ok(Settled::No(NO_FILES)))?;
        let what = match settled {
            Settled::Same => return Ok(()),
            Settled::Merged(text) => {
                self.merged = Some(text);
                return Ok(());
            }
            Settled::No(why) if self.is_merged(change) => format!("{what}; {why}"),
            Settled::No(_) => what.to_owned(),
        };
        let theirs = match (now, at) {
            (Some(meta), Some((dir, name))) => Some(dir.facts(name, meta)?),
            (Some(meta), None) => Some(meta.facts()),
            (None, _) => None,
        };
        self.conflicts.push(Conflict {
            ours: change.new.clone(),
            ..Conflict::with(change.path.clone(), &what, theirs)
        });
        Ok(())
    }

    /// Whether there is nothing to choose between: both sides have the same there now, or what both changed can be merged.
    fn settle(&self, change: &Change, at: (&Dir, &[u8]), now: &Meta) -> Result<Settled> {
        let Some(new) = self.sandbox.meta(&change.path)? else {
            return Ok(Settled::No(NO_FILES));
        };
        let (dir, name) = self.sandbox.parent(&change.path)?;
        if new.kind != now.kind {
            return Ok(Settled::No(NO_FILES));
        }
        let (theirs, ours) = ((at.0, now), (&dir, &new));
        let same = || tree::same_content((&dir, name), at);
        let fields = tree::differences(name, theirs, ours, self.sandbox.visible(), same)?;
        let fields = tree::ownable(fields, now);
        if fields.is_empty() {
            return Ok(Settled::Same);
        }
        if !self.is_merged(change) || change.old.is_none() || !new.is_file() {
            return Ok(Settled::No(NO_FILES));
        }
        if fields != [ChangedField::Content] || new.nlink.max(now.nlink) > 1 {
            let why = "it is not merged: mode, owner or attributes differ, or it has several names";
            return Ok(Settled::No(why));
        }
        let merged = merge::merge(&change.path, self.base, (&dir, name), at)?;
        Ok(merged.map_or_else(Settled::No, Settled::Merged))
    }

    fn is_merged(&self, change: &Change) -> bool {
        self.options.merge && !self.options.settled.contains(&change.path)
    }

    /// What stands at the path of a change; notes what contradicts it.
    fn change(&mut self, change: &Change) -> Result<Option<Meta>> {
        let path = &change.path;
        if path.is_root() {
            let now = self.original.meta()?;
            if !self.base.is_current(path, None, &now)? {
                self.conflict(change, None, Some(&now), "changed there and here")?;
            }
            return Ok(Some(now));
        }
        let (dir, name) = match self.original.parent(path) {
            Ok(found) => found,
            Err(error) if is_gone(&error) => {
                self.without_directory(change)?;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let now = dir.stat(name)?;
        match &now {
            None => self.absent(change)?,
            Some(now) if dir.is_mount_point(now) => {
                return Err(StrategyError::Forbidden {
                    path: path.clone(),
                    why: "something is mounted there in the original".to_owned(),
                });
            }
            Some(now) => self.present(change, (&dir, name), now)?,
        }
        if change.kind != ChangeKind::ModeChanged {
            self.database(change, (&dir, name), now.as_ref())?;
        }
        Ok(now)
    }

    /// What lies there may belong to a database, which is damaged unless all of it is of one version.
    fn database(
        &mut self,
        change: &Change,
        (dir, name): EntryAt<'_>,
        now: Option<&Meta>,
    ) -> Result<()> {
        let forbids = plain_databases::forbids(
            dir,
            &change.path,
            (now, change.new.is_some()),
            |database| plain_databases::is_one_in(&self.sandbox, database),
            |path, name, now| match now {
                _ if self.changed(path).is_some() => Ok(false),
                Some(now) => Ok(!self.base.is_current(path, Some((dir, name)), now)?),
                None => Ok(true),
            },
        )?;
        if let Some(what) = forbids {
            let theirs = now.map(|now| dir.facts(name, now)).transpose()?;
            let conflict =
                Conflict::with(change.path.clone(), &what, theirs).choosing(Choice::Theirs);
            // In the place of what was found before: that could be overruled.
            self.conflicts.retain(|one| one.path != change.path);
            self.merged = None;
            self.conflicts.push(Conflict {
                ours: change.new.clone(),
                ..conflict
            });
        }
        Ok(())
    }

    /// The directory of the path is not in the original.
    fn without_directory(&mut self, change: &Change) -> Result<()> {
        // What lies in a directory that the sandbox made comes with it; what is to be deleted is
        // gone already.
        let new = |path: &ResourcePath| {
            self.changed(path).is_some_and(|change| {
                matches!(change.kind, ChangeKind::Added | ChangeKind::TypeChanged)
            })
        };
        if change.new.is_none() || change.path.ancestors().any(|path| new(&path)) {
            return Ok(());
        }
        self.conflict(change, None, None, "its directory was deleted there")
    }

    fn absent(&mut self, change: &Change) -> Result<()> {
        match change.kind {
            ChangeKind::Deleted => Ok(()),
            ChangeKind::Added if !self.base.was_there(&change.path)? => Ok(()),
            _ => self.conflict(change, None, None, "deleted there, changed here"),
        }
    }

    fn present(&mut self, change: &Change, at: (&Dir, &[u8]), now: &Meta) -> Result<()> {
        let path = &change.path;
        let Some(old) = &change.old else {
            let both = now.is_dir() && is_directory(change.new.as_ref());
            return match both {
                // Two directories become one.
                true => Ok(()),
                false => self.conflict(change, Some(at), Some(now), "added on both sides"),
            };
        };
        let goes = change.new.is_none() || change.kind == ChangeKind::TypeChanged;
        if old.kind != now.kind {
            let what = match goes && change.new.is_none() {
                true => "its type changed there, deleted here",
                false => "its type changed there, changed here",
            };
            return self.conflict(change, Some(at), Some(now), what);
        }
        if old.kind == EntryKind::Directory && goes {
            self.check_carved(change)?;
            if !self.base.is_current(path, Some(at), now)? {
                let what = "changed there, deleted here";
                self.conflict(change, Some(at), Some(now), what)?;
            }
            return self.unknown_below(change, at);
        }
        if !self.base.is_current(path, Some(at), now)? {
            let what = match change.new {
                None => "changed there, deleted here",
                Some(_) => "changed there and here",
            };
            self.conflict(change, Some(at), Some(now), what)?;
        }
        Ok(())
    }

    /// A directory cannot become something else while another resource lies in it.
    fn check_carved(&self, change: &Change) -> Result<()> {
        let holds = |carved: &ResourcePath| carved.ancestors().any(|path| path == change.path);
        match self.carved.iter().any(holds) {
            true => Err(StrategyError::Forbidden {
                path: change.path.clone(),
                why: "another resource lies in it, so it must stay a directory".to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// What lies in a directory that the sandbox removed, and that the sandbox never saw.
    fn unknown_below(&mut self, change: &Change, (dir, name): (&Dir, &[u8])) -> Result<()> {
        let dir = dir.subdir(name)?;
        for DirEntry { name, meta } in dir.entries()? {
            let path = change.path.join(&name);
            let ours = state_dir::is_area_beside(&name);
            if ours || self.changed(&path).is_some() || self.carved.contains(&path) {
                continue;
            }
            let theirs = Some(dir.facts(&name, &meta)?);
            let what = "added there, its directory deleted here";
            self.conflicts.push(Conflict::with(path, what, theirs));
        }
        Ok(())
    }

    /// What of a new version will not come across, and how much room it takes.
    fn version(&self, change: &Change, new: &EntryInfo) -> Result<NewVersion> {
        let path = change.path.clone();
        match new.kind {
            EntryKind::Device => Err(StrategyError::Forbidden {
                path,
                why: "a device node is never committed; remove it from the sandbox".to_owned(),
            }),
            EntryKind::Socket => {
                let what = "a socket is not committed".to_owned();
                Ok(NewVersion {
                    note: Some(PreviewNote { path, what }),
                    ..NewVersion::default()
                })
            }
            EntryKind::File => {
                let (dir, name) = self.sandbox.parent(&change.path)?;
                let Some(meta) = dir.stat(name)? else {
                    return Ok(NewVersion::default());
                };
                let names = self.names_of(&change.path)?;
                let dropped = introduced(change, meta.mode, &xattr::without_values(names.clone()));
                let dropped =
                    (!dropped.is_empty()).then(|| format!("{} dropped", dropped.join(" and ")));
                let what = [dropped, self.marks(names)].into_iter().flatten();
                let what = what.reduce(|one, other| format!("{one}; {other}"));
                Ok(NewVersion {
                    note: what.map(|what| PreviewNote { path, what }),
                    room: meta.blocks * 512,
                    meta: Some(meta),
                })
            }
            EntryKind::Directory | EntryKind::Symlink | EntryKind::Fifo => {
                let what = self.marks(self.names_of(&change.path)?);
                Ok(NewVersion {
                    note: what.map(|what| PreviewNote { path, what }),
                    ..NewVersion::default()
                })
            }
        }
    }

    /// The names of the attributes of a new version; none where it is gone.
    fn names_of(&self, path: &ResourcePath) -> Result<Vec<Vec<u8>>> {
        let (dir, names) = match path.is_root() {
            true => {
                let dir = self.sandbox.dir(path)?;
                let names = xattr::names(&EntryHandle::of(&dir));
                (dir, names)
            }
            false => {
                let (dir, name) = self.sandbox.parent(path)?;
                let names = xattr::names_at(&dir, name);
                (dir, names)
            }
        };
        match names {
            Err(Errno::NOENT) => Ok(Vec::new()),
            names => Ok(names.map_err(|errno| {
                dir.error("read the attributes of", path.as_bytes(), Cause::Os(errno))
            })?),
        }
    }

    /// Says which marks of an overlay, among these attributes of a new version, are left out.
    fn marks(&self, names: Vec<Vec<u8>>) -> Option<String> {
        let seen = self.sandbox.visible()(xattr::without_values(names));
        let mut marks = seen.iter().filter(|(name, _)| xattr::is_overlay_mark(name));
        let first = escape(&marks.next()?.0);
        let more = match marks.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "attribute {first}{more} left out: a mark of overlay file systems"
        ))
    }
}

/// The changes that are released only together with one that is contested.
fn beside_conflicts(changes: &[Change], conflicts: &[Conflict]) -> Vec<Conflict> {
    let mut found = Vec::new();
    for group in sqlite_files::together(changes) {
        let paths: Vec<&ResourcePath> = group.iter().map(|one| &changes[*one].path).collect();
        let Some(first) = conflicts.iter().find(|one| paths.contains(&&one.path)) else {
            continue;
        };
        let what = format!("it belongs to '{}', which is in conflict", first.path);
        let rest = group.iter().map(|one| &changes[*one]);
        found.extend(
            rest.filter(|one| one.path != first.path)
                .map(|one| Conflict {
                    ours: one.new.clone(),
                    choice: first.choice,
                    ..Conflict::of(one.path.clone(), &what)
                }),
        );
    }
    found
}

/// Why nothing is merged where there are not two files.
const NO_FILES: &str = "only a file that was changed on both sides can be merged";

/// How a path comes out that both sides changed.
enum Settled {
    /// Both have the same.
    Same,
    /// This is what both made of it.
    Merged(Vec<u8>),
    /// It is a conflict; why it cannot be merged.
    No(&'static str),
}

fn is_gone(error: &FsError) -> bool {
    error.is_absent() || error.leaves()
}

fn is_directory(facts: Option<&EntryInfo>) -> bool {
    facts.is_some_and(|facts| facts.kind == EntryKind::Directory)
}

/// A new version of a path.
#[derive(Default)]
struct NewVersion {
    /// What of it will not come across.
    note: Option<PreviewNote>,
    /// How much room it takes.
    room: u64,
    /// A file's metadata, if it is written anew.
    meta: Option<Meta>,
}

/// Files whose new versions do not have the owner or the group of the old ones, because the user can give files only to
/// groups of their own. One note for all of them: there may be as many as changes.
#[derive(Default)]
struct LostOwners {
    first: Option<PreviewNote>,
    more: usize,
}

impl LostOwners {
    fn compare(&mut self, change: &Change, now: &Meta, new: &Meta) {
        let same = (now.uid, now.gid) == (new.uid, new.gid);
        // What the sandbox changed itself is in the diff.
        if same || !now.is_file() || change.fields.contains(&ChangedField::Owner) {
            return;
        }
        if self.first.is_some() {
            self.more += 1;
            return;
        }
        let lost = match (now.uid != new.uid, now.gid != new.gid) {
            (true, true) => format!("owner {} and group {} are", now.uid, now.gid),
            (true, false) => format!("owner {} is", now.uid),
            (false, _) => format!("group {} is", now.gid),
        };
        self.first = Some(PreviewNote {
            path: change.path.clone(),
            what: format!(
                "its {lost} not kept: it will belong to user {} and group {}",
                new.uid, new.gid
            ),
        });
    }

    fn note(self) -> Option<PreviewNote> {
        let mut note = self.first?;
        if self.more > 0 {
            note.what = format!("{}; so will {} more files", note.what, self.more);
        }
        Some(note)
    }
}

/// Files of several names: those that stay as they are under one of them, and those met before.
struct LinkedFiles<'a> {
    sandbox: &'a dyn VersionSource,
    paths: &'a [ResourcePath],
    known: Option<HashSet<u64>>,
    met: HashSet<u64>,
}

impl LinkedFiles<'_> {
    /// A version, less what a file of several names does not take a second time.
    fn count(&mut self, version: NewVersion) -> Result<NewVersion> {
        let Some(meta) = version.meta.filter(|meta| meta.nlink > 1) else {
            return Ok(version);
        };
        if self.known.is_none() {
            let mut known = HashSet::new();
            for path in self.paths {
                known.extend(self.sandbox.meta(path)?.map(|meta| meta.ino));
            }
            self.known = Some(known);
        }
        let known = self.known.as_ref();
        if known.is_some_and(|known| known.contains(&meta.ino)) {
            // It stays as it is under another name.
            return Ok(NewVersion::default());
        }
        let first = self.met.insert(meta.ino);
        let room = if first { version.room } else { 0 };
        Ok(NewVersion { room, ..version })
    }
}

/// The privileges of a file that the original did not grant.
pub(in crate::strategy) fn introduced(
    change: &Change,
    mode: u16,
    attributes: &Xattrs,
) -> Vec<&'static str> {
    let mut found = privileges(mode, attributes);
    // Where only the looks changed, what the original granted stays granted, to the same owner.
    if let (ChangeKind::ModeChanged, Some(old)) = (change.kind, &change.old)
        && !change.fields.contains(&ChangedField::Owner)
    {
        let granted = privileges(old.mode, &Vec::new());
        let kept = !change.fields.contains(&ChangedField::Xattrs);
        found.retain(|word| !(granted.contains(word) || (kept && *word == "capabilities")));
    }
    found
}
