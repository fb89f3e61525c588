//! A session with a sandbox of a SQLite database.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::apply::stage_tables;
use super::connect::{Database, Use, beside, is_beyond_use};
use super::diff::{Difference, table_digest};
use super::merge::{Merged, Versions, merge, moved};
use super::plan::{OpenPlan, TableSwap};
use super::schema::{KEPT, Schema, full_text_settings, setting};
use super::{
    BASE, CHECKPOINTS, DB, NEW_DB, RestoreIntent, SqliteMetadata, TAKEN, apply, check_names,
    content, copy_file, full_text, inside, mode_of, plan,
};
use crate::event::Observer;
use crate::fs::{Dir, remove};
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Change, Choice, Conflict, DiffView, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::{setting_item, table_item, version_digests};
use crate::strategy::{
    Access, Intent, Mount, OnConflict, PrepareRequest, Preview, PreviewNote, PreviewOptions,
    QueryResult, RestoreRequest, Sandbox, Snapshot, StagedCommit, tree,
};

pub(super) struct SqliteSession {
    sandbox: SqliteMetadata,
    /// What the last preview found.
    found: RefCell<Option<Found>>,
}

/// What a preview found in the sandbox, and what is brought over as a whole.
struct Found {
    difference: Difference,
    whole: WholeDigests,
}

/// The digests of what is brought over as a whole, by name, as the sandbox has it.
type WholeDigests = HashMap<String, Option<String>>;

fn whole(merged: &Merged) -> WholeDigests {
    let all = merged.plan.whole.iter();
    let digest = |swap: &TableSwap| swap.after.as_ref().map(|after| after.digest.clone());
    all.map(|swap| (swap.name.clone(), digest(swap))).collect()
}

/// What is stored of a snapshot by the caller.
#[derive(Serialize, Deserialize)]
struct SnapshotNumber {
    number: u32,
}

pub(super) fn number_of(snapshot: &Snapshot) -> Result<u32> {
    let SnapshotNumber { number } = tree::parse(&snapshot.0, "the snapshot")?;
    Ok(number)
}

/// The versions of a sandbox and its original, opened.
struct Open {
    base: Database,
    work: Database,
    original: Database,
}

impl Open {
    fn versions(&self) -> Versions<'_> {
        Versions {
            base: &self.base,
            work: &self.work,
            sandbox: &self.work,
            original: &self.original,
        }
    }
}

impl SqliteSession {
    pub(super) fn new(sandbox: SqliteMetadata) -> Self {
        Self {
            sandbox,
            found: RefCell::default(),
        }
    }

    fn version(&self, snapshot: Option<&Snapshot>, now: bool) -> Result<Database> {
        let at = match (snapshot, now) {
            (Some(snapshot), _) => self.sandbox.checkpoint(number_of(snapshot)?),
            (None, true) => return self.work(Use::Read),
            (None, false) => self.sandbox.base(),
        };
        Database::open(&at, Use::Read)
    }

    /// The sandbox itself.
    fn work(&self, purpose: Use) -> Result<Database> {
        let at = self.sandbox.work();
        match Dir::look(&at) {
            Ok(meta) if meta.is_file() => Database::open(&at, purpose),
            Ok(_) => Err(StrategyError::Damaged {
                what: "something else stands where its database was".to_owned(),
            }),
            Err(error) if error.is_absent() => Err(StrategyError::Damaged {
                what: "its database was deleted".to_owned(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    fn open(&self) -> Result<Open> {
        self.sandbox.check_original()?;
        check_names(self.sandbox.original.as_path())?;
        Ok(Open {
            base: Database::open(&self.sandbox.base(), Use::Read)?,
            work: self.work(Use::Read)?,
            original: Database::open(self.sandbox.original.as_path(), Use::Read)?,
        })
    }

    /// Merges what was found into the original as it is now. Where altered tables have to be written for that they are staged in an `area`.
    fn merge(
        &self,
        open: &Open,
        found: &Difference,
        left_out: &HashSet<ResourcePath>,
        area: Option<&Path>,
    ) -> Result<(Merged, WholeDigests)> {
        let all = || {
            let merged = merge(&open.versions(), found, left_out)?;
            let whole = whole(&merged);
            let merged = match merged.rebases.is_empty() {
                true => merged,
                false => self.rebase(open, merged, &whole, area, |versions| {
                    merge(versions, found, left_out)
                })?,
            };
            Ok((merged, whole))
        };
        let original = || open.original.transaction(false, all);
        let (mut merged, whole) = open.work.transaction(false, original)?;
        if !Schema::read(&open.work)?.full_text.is_empty() {
            // By a connection of its own: it takes the lock of a writer, under which nothing can be copied.
            let work = self.work(Use::Merge)?;
            match work.trial_at_once(|| full_text::check(&work, &mut merged)) {
                // Who works in the sandbox is not waited for. The index of the original is looked at when it is written.
                Err(StrategyError::Locked { .. }) => {}
                checked => checked?,
            }
        }
        Ok((merged, whole))
    }

    /// Brings what the original changed in altered tables into the sandbox, in a transaction that is given up, and merges that.
    fn rebase(
        &self,
        open: &Open,
        mut merged: Merged,
        whole: &WholeDigests,
        area: Option<&Path>,
        merge: impl Fn(&Versions<'_>) -> Result<Merged>,
    ) -> Result<Merged> {
        let work = self.work(Use::Merge)?;
        let again = || {
            let schema = Schema::read(&work)?;
            for (name, digest) in whole {
                if table_digest(&work, &schema, name)? != *digest {
                    return Err(changed_since(name));
                }
            }
            for one in &merged.rebases {
                one.apply(&work)?;
            }
            let again = merge(&Versions {
                work: &work,
                ..open.versions()
            })?;
            if let Some(area) = area {
                let new = again.plan.whole.iter();
                let new = new.filter_map(|swap| swap.after.as_ref());
                stage_tables(&work, &area.join(plan::NEW), new)?;
            }
            Ok(again)
        };
        let done = match area {
            Some(_) => work.trial(false, again),
            None => work.trial_at_once(again),
        };
        match done {
            Ok(again) => Ok(Merged {
                conflicts: merged.conflicts,
                ..again
            }),
            Err(StrategyError::Contradicted { path, what }) => {
                let what = format!(
                    "'{path}' of the original does not fit into the table as it was altered here: {what}"
                );
                let table = path.ancestors().last().unwrap_or(path);
                merged.broken.push(Conflict::of(table, &what));
                Ok(merged)
            }
            // Who works in the sandbox is waited for by a commit only, which finds what it would break.
            Err(StrategyError::Locked { .. }) if area.is_none() => Ok(merged),
            Err(error) => Err(error),
        }
    }

    /// What stays as it is in the original, though the sandbox has it otherwise.
    fn notes(&self, open: &Open) -> Result<Vec<PreviewNote>> {
        let mut notes = Vec::new();
        for name in KEPT {
            let (was, is) = (setting(&open.base, name)?, setting(&open.work, name)?);
            if was != is {
                notes.push(PreviewNote {
                    path: setting_item(name),
                    what: format!(
                        "{name} is {is} in the sandbox and stays {was} in the original: it cannot change without \
                         writing the whole file anew"
                    ),
                });
            }
        }
        let schema = Schema::read(&open.work)?;
        for name in schema.objects.values().filter(|one| one.is_table()) {
            let name = &name.name;
            if full_text_settings(&open.base, name) != full_text_settings(&open.work, name) {
                notes.push(PreviewNote {
                    path: table_item(name),
                    what: "the settings of the full-text table were changed in the sandbox and stay as they are in the original"
                        .to_owned(),
                });
            }
        }
        Ok(notes)
    }
}

impl SqliteSession {
    /// Writes what a commit needs into its area.
    fn stage(
        &self,
        request: &PrepareRequest<'_>,
        area: &Path,
        open: &Open,
    ) -> Result<StagedCommit> {
        let (found, seen) = match self.found.take() {
            Some(found) => (found.difference, Some(found.whole)),
            None => (Difference::between(&open.base, &open.work)?, None),
        };
        let released = request.preview.released(request.on_conflict);
        let kept: HashSet<&ResourcePath> = released.changes.iter().map(|one| &one.path).collect();
        let left_out: HashSet<ResourcePath> = found
            .changes()
            .into_iter()
            .map(|one| one.path)
            .filter(|path| !kept.contains(path))
            .collect();
        let (merged, whole) = self.merge(open, &found, &left_out, Some(area))?;
        let shown: HashSet<&ResourcePath> = request
            .preview
            .conflicts
            .iter()
            .map(|one| &one.path)
            .collect();
        let is_new = |one: &&Conflict| !shown.contains(&one.path);
        // What was not shown comes from another process, or from what is left out.
        if let Some(new) = merged.conflicts.iter().find(is_new) {
            return Err(StrategyError::Moved {
                path: new.path.clone(),
                what: new.what.clone(),
            });
        }
        if let Some(Conflict { path, what, .. }) = merged.broken.first() {
            let what = match left_out.is_empty() {
                true => what.clone(),
                false => {
                    format!("{what}; what it needs may be among the changes that are left out")
                }
            };
            let path = path.clone();
            return Err(StrategyError::Contradicted { path, what });
        }
        for (name, digest) in &whole {
            if seen
                .as_ref()
                .is_some_and(|seen| seen.get(name) != Some(digest))
            {
                return Err(changed_since(name));
            }
        }
        let schemas = (Schema::read(&open.original)?, Schema::read(&open.work)?);
        super::wording::check("snapshot", &merged.plan, (&schemas.0, &schemas.1))?;
        if merged.plan.stages_rows() {
            let (dir, shared) = (Dir::open(area)?, super::reflinks(self.sandbox.reflinks));
            for (from, name) in [(&open.work, plan::NEW), (&open.original, plan::OLD)] {
                // What the original changed too was brought into what is there.
                if dir.stat(name.as_bytes())?.is_none() {
                    from.copy_to(&dir, name, &shared)?;
                }
            }
        }
        let original = self.sandbox.original.as_path();
        Ok(StagedCommit {
            intent: plan::write(original, area, merged.plan, &merged.rows)?,
            digests: match request.digests {
                true => version_digests(&released.changes),
                false => VersionDigests::new(),
            },
        })
    }
}

/// Refuses to keep the original's version where that releases a half: one row of an update of a row without a key, or a
/// migration without one of its definitions.
fn keep_together(found: &Difference, preview: &mut Preview) {
    if preview.conflicts.is_empty() {
        return;
    }
    let (halves, definitions) = (found.halves(), found.definitions());
    let part = preview.left_out(OnConflict::Theirs).len() < preview.diff.changes.len();
    for one in &mut preview.conflicts {
        let why = if halves.contains(&one.path) {
            "the row has no key, so `original` would commit one half of a change to it"
        } else if part && definitions.contains(&one.path) {
            "`original` would commit the rest of a migration without this definition"
        } else {
            continue;
        };
        one.what = format!("{}; {why}", one.what);
        one.choice = one.choice.and(Choice::Ours);
    }
}

fn changed_since(name: &str) -> StrategyError {
    StrategyError::Moved {
        path: table_item(name),
        what: "it was changed in the sandbox after it was compared".to_owned(),
    }
}

/// Puts the content of a copy of ours into a database that others may have open. Where what stands there is no database any
/// more, the copy takes its place.
pub(super) fn put(from: &Location, to: &Location) -> Result<()> {
    let at = to.as_path();
    if is_beyond_use(at)? {
        return replace(from.as_path(), at);
    }
    let source = Database::open(from.as_path(), Use::Read)?;
    let mut work = Database::open(at, Use::Merge)?;
    let sizes = (setting(&source, "page_size")?, setting(&work, "page_size")?);
    if sizes.0 != sizes.1 {
        // Pages of another size cannot pass through a log; while others have it open SQLite refuses.
        work.run("end its log", "PRAGMA main.journal_mode = DELETE")?;
    }
    source.back_up(&mut work)
}

fn replace(from: &Path, at: &Path) -> Result<()> {
    let parts = |path: &Path| -> Result<(Dir, Vec<u8>)> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        let name = path.file_name().unwrap_or_default();
        Ok((Dir::open(parent)?, name.as_encoded_bytes().to_vec()))
    };
    let ((source, source_name), (dir, name)) = (parts(from)?, parts(at)?);
    for suffix in ["-wal", "-shm", "-journal"] {
        let (_, extra) = parts(&beside(at, suffix))?;
        remove::remove(&dir, &extra)?;
    }
    let new: &[u8] = b".restored";
    remove::remove(&dir, new)?;
    let looks = source.stat(&source_name)?;
    let mode = looks.as_ref().map_or(0o600, mode_of);
    let reflinks = crate::fs::content::Reflinks::wanted();
    copy_file((&source, &source_name), (&dir, new), mode, &reflinks)?;
    dir.sync_file_system()?;
    remove::remove(&dir, &name)?;
    dir.rename(new, &dir, &name)?;
    Ok(dir.sync()?)
}

impl Sandbox for SqliteSession {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        content::read(&self.work(Use::Read)?, path)
    }

    fn write(&self, path: &ResourcePath, bytes: &mut dyn Read) -> Result<Change> {
        content::write(&self.work(Use::Work)?, path, bytes)
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        self.sandbox.check_original()?;
        let (old, new) = (self.version(from, false)?, self.version(to, true)?);
        let found = new.transaction(false, || Difference::between(&old, &new))?;
        Ok(DiffView::new(found.into_changes()))
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        Ok(version_digests(changes))
    }

    fn rollback(&self, _observer: &dyn Observer) -> Result<String> {
        let (area, name) = (self.sandbox.area()?, self.sandbox.file_name());
        let anew = || -> Result<()> {
            remove::remove(&area, NEW_DB)?;
            area.make_dir(NEW_DB, 0o700)?;
            let new = area.subdir(NEW_DB)?;
            let mode = mode_of(&Dir::look(self.sandbox.original.as_path())?);
            let shared = super::reflinks(self.sandbox.reflinks);
            copy_file((&area, BASE), (&new, name), mode, &shared)?;
            Ok(area.sync_file_system()?)
        };
        let anew = || anew().map_err(|error| remove::half_made(&area, NEW_DB, error));
        match anew() {
            // What is discarded makes room for what takes its place. It was decided, and can be gone on with from here.
            Err(StrategyError::Fs(error)) if error.wants_room() => {
                remove::remove(&area, DB)?;
                anew()?;
            }
            done => done?,
        }
        // Both names are ours, and no command is inside.
        match area.exchange(NEW_DB, &area, DB) {
            Err(error) if error.is(Errno::NOENT) => area.rename(NEW_DB, &area, DB)?,
            done => done?,
        }
        area.sync()?;
        remove::remove(&area, NEW_DB)?;
        Ok("its changes were discarded".to_owned())
    }

    fn checkpoint(&self, _parent: Option<&Snapshot>, _observer: &dyn Observer) -> Result<Snapshot> {
        let area = self.sandbox.area()?;
        let all = area.subdir(CHECKPOINTS)?;
        let numbers = all.entries()?.into_iter().filter_map(|entry| {
            let name = std::str::from_utf8(&entry.name).ok()?;
            name.parse::<u32>().ok()
        });
        let number = numbers.max().map_or(0, |last| last + 1);
        remove::remove(&all, b"new")?;
        let shared = super::reflinks(self.sandbox.reflinks);
        let kept = || -> Result<()> {
            self.work(Use::Read)?.copy_to(&all, "new", &shared)?;
            Ok(area.sync_file_system()?)
        };
        kept().map_err(|error| remove::half_made(&all, b"new", error))?;
        all.rename(b"new", &all, number.to_string().as_bytes())?;
        all.sync()?;
        Ok(Snapshot(tree::stored(&SnapshotNumber { number })))
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        let all = self.sandbox.area()?.subdir(CHECKPOINTS)?;
        let kept = keep.iter().map(number_of);
        let kept: HashSet<u32> = kept.collect::<Result<_>>()?;
        for entry in all.entries()? {
            let number = std::str::from_utf8(&entry.name);
            let number = number.ok().and_then(|name| name.parse().ok());
            if number.is_none_or(|number| !kept.contains(&number)) {
                remove::remove(&all, &entry.name)?;
            }
        }
        Ok(keep.to_vec())
    }

    fn preview(&self, options: &PreviewOptions) -> Result<Preview> {
        let open = self.open()?;
        let compare = || Difference::between(&open.base, &open.work);
        let found = open.work.transaction(false, compare)?;
        let (merged, whole) = self.merge(&open, &found, &HashSet::new(), None)?;
        let (mut conflicts, mut notes) = (merged.conflicts, merged.notes);
        conflicts.extend(
            merged
                .broken
                .into_iter()
                .map(|one| one.choosing(Choice::Theirs)),
        );
        notes.extend(self.notes(&open)?);
        if options.strict {
            let known: HashSet<ResourcePath> =
                conflicts.iter().map(|one| one.path.clone()).collect();
            let more = open
                .original
                .transaction(false, || moved(&open.versions()))?;
            conflicts.extend(more.into_iter().filter(|one| !known.contains(&one.path)));
        }
        conflicts.sort_by(|a, b| a.path.cmp(&b.path));
        // Of one path everything is said at once.
        conflicts.dedup_by(|again, one| {
            let same = again.path == one.path;
            if same && again.what != one.what {
                one.what = format!("{}; {}", one.what, again.what);
            }
            if same {
                one.choice = one.choice.and(again.choice);
            }
            same
        });
        let mut preview = Preview {
            diff: DiffView::new(found.changes()).into(),
            conflicts,
            notes,
            ..Preview::default()
        };
        keep_together(&found, &mut preview);
        let difference = found;
        *self.found.borrow_mut() = Some(Found { difference, whole });
        Ok(preview)
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let area = tree::commit_area("snapshot", request.area)?;
        let open = self.open()?;
        // What is copied is what was compared.
        open.work
            .transaction(false, || self.stage(request, area, &open))
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let place = tree::commit_area("snapshot", request.area)?;
        let (area, all) = (Dir::open(place)?, self.sandbox.area()?.subdir(CHECKPOINTS)?);
        // Under names of their own, so that they outlive the checkpoints.
        for (name, snapshot) in [("from.db", request.from), ("to.db", request.to)] {
            let number = number_of(snapshot)?.to_string();
            area.link_to(name.as_bytes(), &all, number.as_bytes())?;
        }
        area.sync()?;
        Ok(Intent(tree::stored(&RestoreIntent {
            work: Location::from(self.sandbox.work()),
            from: Location::from(place.join("from.db")),
            to: Location::from(place.join("to.db")),
        })))
    }

    fn query(&self, statement: &str, read_only: bool) -> Result<QueryResult> {
        let work = self.work(Use::Work)?;
        work.refuse_writes(read_only)?;
        content::query(&work, statement)
    }

    fn take_in(&self, intent: &Intent) -> Result<()> {
        let area = self.sandbox.area()?;
        remove::remove(&area, TAKEN)?;
        area.make_dir(TAKEN, 0o700)?;
        let staged = area.subdir(TAKEN)?;
        if let Some(plan) = OpenPlan::elsewhere(intent, &self.sandbox.work(), staged.path())? {
            apply::commit(&plan)?;
        }
        Ok(remove::remove(&area, TAKEN)?)
    }

    fn access(&self) -> Result<Access> {
        let area = self.sandbox.area()?;
        let db = Mount {
            at: Location::from(inside(&area)),
            view: View::Directory(Location::from(area.path().join("db"))),
            area: Some(self.sandbox.area.clone()),
        };
        let link = Mount {
            at: self.sandbox.original.clone(),
            view: View::ReadOnly(Location::from(area.path().join("link"))),
            area: None,
        };
        Ok(Access {
            env: self.sandbox.variables(),
            mounts: vec![db, link],
            cwd: Some(Location::from(self.sandbox.work())),
            ..Access::default()
        })
    }
}
