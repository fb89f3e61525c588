//! An open session with the clone of a database.

use std::collections::BTreeSet;
use std::io::Read;

use super::super::super::error::{Result, StrategyError};
use super::super::super::sql::record::RowSwap;
use super::super::super::sql::{Row, RowKey, table_item, version_digests};
use super::super::super::{
    Access, Intent, PrepareRequest, Preview, PreviewNote, PreviewOptions, QueryResult,
    RestoreRequest, Sandbox, Snapshot, StagedCommit, tree, unsupported,
};
use super::super::connect::{Connection, PgError, PgResult};
use super::super::content::Texts;
use super::super::session::{HeldSession, check_room};
use super::super::{Host, end_holder, failed, worked_on};
use super::databases::{BASE, Databases, Original, WORK};
use super::plan::{self, OpenPlan, ReleaseIntent, ReleasePlan};
use super::programs::Programs;
use super::refused::{self, forbidden};
use super::release::{Release, misfit, theirs};
use super::rows::{self, COMPUTED, Changed, Compared, Rows, fit};
use super::schema::{Ddl, Schema, ddl, define};
use super::sequences::{MovedSequence, moved};
use super::unplanned;
use super::{
    CloneMetadata, MOST, NAME, ORIGIN, RELEASE, RestoreIntent, check_original, definitions_of,
    serve, serve_again,
};
use crate::event::Observer;
use crate::fs::{Dir, atomic_file, owned, remove};
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::{Change, Choice, Conflict, DiffView, PlanId, ResourceId, ResourcePath};

/// An empty clone, in which it is seen what the SQL of a commit makes of definitions.
pub(super) const SHAPE: &str = "shape";

/// Where the transaction is noted by which the sandbox takes in what an undone commit had released.
const TAKEN: &[u8] = b"taken";

pub(super) struct CloneSession {
    metadata: CloneMetadata,
    databases: Databases,
    client: HeldSession,
    plan: PlanId,
    resource: ResourceId,
}

/// What differs between two states.
struct Difference {
    from: Schema,
    to: Schema,
    rows: Rows,
    sequences: Vec<MovedSequence>,
}

impl Difference {
    fn changes(&self) -> Vec<Change> {
        let mut all = self.from.changes(&self.to, &self.rows.given);
        all.extend(self.rows.changed.iter().map(|one| self.rows.change(one)));
        all.extend(self.sequences.iter().map(MovedSequence::change));
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all
    }

    fn notes(&self) -> Vec<PreviewNote> {
        let moved = self.sequences.iter().map(|one| {
            let value = &one.value;
            let what = format!(
                "the sequence is at {value}: that of the original is moved on to it, never back, and no undo takes that back"
            );
            (one.shown.clone(), what)
        });
        let all = moved.chain(self.rows.unread.iter().cloned());
        let note = |(name, what): (String, String)| PreviewNote {
            path: table_item(&name),
            what,
        };
        let mut notes: Vec<PreviewNote> = all.map(note).collect();
        if let Some(named) = self.from.differing(&self.to).first() {
            notes.push(PreviewNote {
                path: named.item(),
                what: "definitions are changed, so this commit cannot be undone".to_owned(),
            });
        }
        notes
    }
}

/// The clone that a checkpoint is.
pub(super) fn part_of(snapshot: &Snapshot) -> Result<String> {
    tree::parse(&snapshot.0, "the snapshot")
}

fn compared(error: PgError) -> StrategyError {
    failed("compare", &error)
}

impl CloneSession {
    pub(super) fn new(
        metadata: CloneMetadata,
        databases: Databases,
        host: Host,
        (plan, resource): (PlanId, ResourceId),
    ) -> Self {
        let client = HeldSession {
            strategy: NAME,
            metadata: metadata.held.clone(),
            gid: String::new(),
            host,
        };
        Self {
            metadata,
            databases,
            client,
            plan,
            resource,
        }
    }

    /// A client of the sandbox, as any other is.
    fn inside(&self) -> Result<&HeldSession> {
        serve(&self.client.host, &self.databases, &self.metadata.held.area)?;
        Ok(&self.client)
    }

    fn programs(&self) -> Programs<'_> {
        Programs {
            original: &self.databases.original,
            version: self.metadata.version,
        }
    }

    fn kept_definitions(&self, part: &str) -> Result<Vec<u8>> {
        let path = self.metadata.held.area.as_path().join(definitions_of(part));
        Ok(owned::read_named(&path, MOST)?)
    }

    fn kept_schema(&self, part: &str) -> Result<Schema> {
        let text = self.kept_definitions(part)?;
        Ok(Schema::read(&String::from_utf8_lossy(&text)))
    }

    fn schema_of(&self, part: &str) -> Result<Schema> {
        match part {
            WORK => {
                let at = self.databases.at(WORK);
                Ok(Schema::read(&self.programs().definitions(&at)?))
            }
            part => self.kept_schema(part),
        }
    }

    /// What differs between two states.
    fn difference(&self, from: &str, to: &str) -> Result<Difference> {
        let (old, new) = (self.schema_of(from)?, self.schema_of(to)?);
        let mut before = self.databases.look(from)?;
        let mut after = self.databases.look(to)?;
        let sequences = moved(&mut before, &mut after).map_err(compared)?;
        Ok(Difference {
            from: old,
            to: new,
            rows: rows::compare(&mut before, &mut after).map_err(compared)?,
            sequences,
        })
    }

    /// The number of the next checkpoint.
    fn next_part(&self) -> Result<String> {
        let dir = Dir::open(self.metadata.held.area.as_path())?;
        let number = |name: &[u8]| -> Option<u64> {
            let name = std::str::from_utf8(name).ok()?;
            name.strip_prefix('c')?.strip_suffix(".sql")?.parse().ok()
        };
        let names = dir.names()?;
        let last = names.iter().filter_map(|name| number(name)).max();
        Ok(format!("c{}", last.unwrap_or(0) + 1))
    }

    /// What a commit would do, where that can be done at all.
    fn releasable(&self) -> Result<(Difference, Ddl)> {
        let mut before = self.databases.look(BASE)?;
        let mut after = self.databases.look(WORK)?;
        refused::check(&mut after, "the sandbox")?;
        let [old, new] = [&mut before, &mut after].map(extensions);
        let (old, new) = (old.map_err(compared)?, new.map_err(compared)?);
        if let Some((extension, what)) = old.symmetric_difference(&new).next() {
            let path = ResourcePath::root().join(format!("extension:{extension}").as_bytes());
            let has =
                |side: &BTreeSet<(String, String)>| side.iter().any(|(of, _)| of == extension);
            let (what, _) = what.rsplit_once(' ').unwrap_or_default();
            let why = match (has(&old), has(&new)) {
                (false, _) => "it is new".to_owned(),
                (_, false) => "it is gone".to_owned(),
                _ => format!("{what} is new, gone, or another one"),
            };
            return Err(forbidden(path, &why));
        }
        let found = self.difference(BASE, WORK)?;
        if let Some(table) = found.rows.unshaped.first() {
            let why = "its key, or more than new columns at its end, was altered";
            return Err(forbidden(table_item(table), why));
        }
        let derived = ddl((&found.from, &found.to), (&mut before, &mut after));
        let mut derived = match derived.map_err(compared)? {
            Ok(derived) => derived,
            Err((path, why)) => return Err(forbidden(path, &why)),
        };
        derived.expect(&self.kept_schema(ORIGIN)?);
        Ok((found, derived))
    }

    /// Whether the SQL of a commit makes of the definitions of the base what the sandbox has. What a dump says of an expression may
    /// differ from what it says once that was restored: then those of the sandbox are made anew too.
    fn check_shape(&self, ddl: &Ddl, work: &Schema) -> Result<()> {
        let base = String::from_utf8_lossy(&self.kept_definitions(BASE)?).into_owned();
        let sql: Vec<&String> = ddl.early.iter().chain(&ddl.late).collect();
        let empty: Vec<String> = ddl.relations().iter().map(unplanned::quoted).collect();
        let made = self.shape_of((BASE, &base), (&empty, &sql))?;
        if made.differing(work).is_empty() {
            return Ok(());
        }
        let again = self.programs().definitions(&self.databases.at(WORK))?;
        match made
            .differing(&self.shape_of((WORK, &again), (&[], &[]))?)
            .first()
        {
            None => Ok(()),
            Some(named) => {
                let why = "its new definition is more than what is derived of it";
                Err(forbidden(named.item(), why))
            }
        }
    }

    /// What an empty database has once the definitions of a dump were made in it, and then others. Where this role may not make them, what
    /// belongs to another one, the database of that dump is copied instead.
    fn shape_of(
        &self,
        (part, dump): (&str, &str),
        (empty, definitions): (&[String], &[&String]),
    ) -> Result<Schema> {
        let (databases, at) = (&self.databases, self.databases.at(SHAPE));
        let mut admin = databases.admin()?;
        databases.create_empty(&mut admin, SHAPE)?;
        let made = (|| {
            let mut connection = databases.original.open_at(&at)?;
            let mut made = connection.query(dump).map(drop);
            if made.as_ref().is_err_and(|error| error.is("42501")) {
                drop(connection);
                databases.copy(&mut admin, &databases.name(part), SHAPE)?;
                connection = databases.original.open_at(&at)?;
                for table in empty {
                    match connection.query(&format!("TRUNCATE {table} CASCADE")) {
                        // What is no table, or not of this role, is as it is.
                        Ok(_) | Err(_) => {}
                    }
                }
                made = Ok(());
            }
            let made = made.and_then(|()| {
                let mut all = definitions.iter();
                all.try_for_each(|sql| define(&mut connection, sql))
            });
            made.map_err(|error| forbidden(ResourcePath::root(), &error.to_string()))?;
            drop(connection);
            self.programs().definitions(&at)
        })();
        databases.drop(&mut admin, SHAPE)?;
        Ok(Schema::read(&made?))
    }

    /// What contradicts a commit, first what no choice between two versions settles, and how much that is; and what the original has
    /// of each row.
    fn look(
        &self,
        found: &Difference,
        ddl: &Ddl,
        strict: bool,
    ) -> Result<(Vec<Conflict>, usize, Vec<Seen>)> {
        let databases = &self.databases;
        let mut conflicts: Vec<Conflict> = self.moved_definitions(ddl)?;
        let mut original = databases.original.look(&databases.original.server)?;
        refused::check(&mut original, "the original")?;
        for one in &found.rows.frozen {
            let there = rows::found(&mut original, &one.table).map_err(compared)?;
            if there.as_ref() == Some(&one.columns)
                && !one.is_there(&mut original).map_err(compared)?
            {
                let what = "its rows were changed in the original too";
                conflicts.push(Conflict::of(table_item(&one.table.shown()), what));
            }
        }
        // No choice between rows settles what became of definitions.
        let definitions = std::mem::take(&mut conflicts).into_iter();
        conflicts.extend(definitions.map(|one| one.choosing(Choice::Neither)));
        let (settled, mut seen) = (conflicts.len(), Vec::new());
        for (number, of) in found.rows.tables.iter().enumerate() {
            let rows = found.rows.changed.iter();
            let rows: Vec<&Changed> = rows
                .filter(|one| one.swap.table as usize == number)
                .collect();
            if let Some(what) = misfit(&mut original, of).map_err(compared)? {
                let conflict = Conflict::of(table_item(&of.table.shown()), what);
                conflicts.push(conflict.choosing(Choice::Theirs));
                seen.extend(rows.iter().map(|_| Seen::Unclear));
                continue;
            }
            if of.is_new() {
                seen.extend(rows.iter().map(|_| Seen::AsBase));
                continue;
            }
            let wanted: Vec<(&RowKey, Option<&Row>)> = rows
                .iter()
                .map(|one| (&one.key, one.swap.before.as_ref()))
                .collect();
            let there = theirs(&mut original, of, &wanted).map_err(compared)?;
            for (one, there) in rows.into_iter().zip(there) {
                let before = one.swap.before.as_ref();
                // A row that is there gets in new columns what it had there before it was changed.
                let comparable = of.is_same() || before.is_some();
                let grown = before.map_or(&[][..], |row| &row[of.old.unwrap_or(0)..]);
                let there = there.map(|mut row| {
                    row.truncate(of.old.unwrap_or(0));
                    row.extend_from_slice(grown);
                    row
                });
                let merged = is_disjoint(of, &one.swap, there.as_ref());
                let what = match (&there, &one.swap.before, comparable) {
                    _ if merged => {
                        seen.push(Seen::Other(there));
                        continue;
                    }
                    _ if of.agree(there.as_ref(), one.swap.before.as_ref()) => {
                        seen.push(Seen::AsBase);
                        continue;
                    }
                    _ if comparable && there == one.swap.after => {
                        seen.push(Seen::AsOurs);
                        continue;
                    }
                    (None, ..) => "the row is gone in the original",
                    (_, None, _) => "the original has another row of this key",
                    _ => "the row was changed in the original too",
                };
                let conflict = Conflict::of(found.rows.change(one).path, what);
                let (choice, row) = match comparable {
                    true => (Choice::Either, Seen::Other(there)),
                    false => (Choice::Theirs, Seen::Unclear),
                };
                conflicts.push(conflict.choosing(choice));
                seen.push(row);
            }
        }
        if strict {
            let mut base = databases.look(BASE)?;
            let moved = rows::compare(&mut base, &mut original).map_err(compared)?;
            for one in &moved.changed {
                let path = moved.change(one).path;
                if !conflicts.iter().any(|known| known.path == path) {
                    conflicts.push(Conflict::of(path, "changed in the original"));
                }
            }
        }
        Ok((conflicts, settled, seen))
    }

    /// What others changed of definitions, where those of the sandbox concern it.
    fn moved_definitions(&self, ddl: &Ddl) -> Result<Vec<Conflict>> {
        if ddl.is_empty() {
            return Ok(Vec::new());
        }
        let now = self
            .programs()
            .definitions(&self.databases.original.server)?;
        let (known, now) = (self.kept_schema(ORIGIN)?, Schema::read(&now));
        let what = "its definition was changed in the original too";
        let moved = ddl.moved(Some(&known), &now).into_iter();
        Ok(moved.map(|path| Conflict::of(path, what)).collect())
    }

    /// The rows as they are written, of those that are shown: from what the original has.
    fn wanted(
        &self,
        (found, seen): (&Difference, Vec<Seen>),
        settled: &[Conflict],
        shown: &[Change],
    ) -> Result<Vec<RowSwap>> {
        let shown: BTreeSet<_> = shown.iter().map(|change| &change.path).collect();
        let definitions = found.from.changes(&found.to, &found.rows.given);
        let left_out = definitions.iter().map(|change| &change.path);
        let left_out = left_out.filter(|path| !shown.contains(path));
        if let Some(path) = left_out.chain(settled.iter().map(|one| &one.path)).next() {
            let why = "a choice between rows does not settle what became of definitions; make the change in a new plan";
            let (path, why) = (path.clone(), why.to_owned());
            return Err(StrategyError::Forbidden { path, why });
        }
        let mut wanted = Vec::new();
        for (one, seen) in found.rows.changed.iter().zip(seen) {
            let path = found.rows.change(one).path;
            let (before, after) = match seen {
                _ if !shown.contains(&path) => continue,
                Seen::AsOurs => continue,
                Seen::AsBase => (one.swap.before.clone(), one.swap.after.clone()),
                Seen::Other(row) => {
                    let after = laid_over(found.rows.of(one), &one.swap, row.as_ref());
                    (row, after)
                }
                Seen::Unclear => {
                    let why = "the table has other columns in the sandbox than in the original; make the change in a new plan"
                        .to_owned();
                    return Err(StrategyError::Forbidden { path, why });
                }
            };
            if before != after {
                wanted.push(RowSwap {
                    before,
                    after,
                    ..one.swap.clone()
                });
            }
        }
        Ok(wanted)
    }

    /// Stages a commit, once no client works in the sandbox.
    fn staged(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let (found, ddl) = self.releasable()?;
        if DiffView::new(found.changes()) != *request.preview.diff {
            return Err(worked_on());
        }
        let shown = request.preview.released(request.on_conflict);
        let (conflicts, settled, seen) = self.look(&found, &ddl, false)?;
        let known = &request.preview.conflicts;
        let is_new = |one: &&Conflict| !known.iter().any(|known| known.path == one.path);
        if let Some(one) = conflicts.iter().find(is_new) {
            return Err(StrategyError::Moved {
                path: one.path.clone(),
                what: one.what.clone(),
            });
        }
        if self.metadata.held.prepares {
            let needed = self.metadata.held.server.shared_by(request.promised);
            let room = check_room(&mut self.databases.original.open()?, needed);
            room.map_err(|error| failed("be committed", &error))?;
        }
        let wanted = self.wanted((&found, seen), &conflicts[..settled], &shown.changes)?;
        let digests = match request.digests {
            true => self.digests(&shown.changes)?,
            false => Vec::new(),
        };
        let CloneMetadata {
            held,
            original,
            version,
        } = &self.metadata;
        let plan = ReleasePlan {
            tables: found.rows.tables,
            ddl,
            frozen: found.rows.frozen,
            sequences: found.sequences,
            rows: String::new(),
        };
        let area = self.stage(request)?;
        let once = uuid::Uuid::now_v7().simple();
        let intent = ReleaseIntent {
            server: held.server.clone(),
            original: original.clone(),
            version: *version,
            of: (self.plan, self.resource),
            sandbox: held.area.clone(),
            gid: held
                .prepares
                .then(|| format!("escrow_{}_{}_{once}", self.plan, self.resource)),
            area: area.clone(),
            empty: shown.changes.is_empty(),
            plan: String::new(),
        };
        let intent = plan::write(area.as_path(), plan, &wanted, intent)?;
        Ok(StagedCommit { intent, digests })
    }

    /// Where a commit is staged: where nothing can be prepared there is no area for it, and it is not undone either.
    fn stage(&self, request: &PrepareRequest<'_>) -> Result<Location> {
        if let Some(area) = request.area {
            return Ok(Location::from(area));
        }
        let own = Dir::open(self.metadata.held.area.as_path())?;
        remove::remove(&own, RELEASE)?;
        own.make_dir(RELEASE, 0o700)?;
        Ok(Location::from(own.subdir(RELEASE)?.path()))
    }
}

/// Whether both sides changed a row, and no column of it in two ways (rule Q2). One that the server computes is changed by none.
fn is_disjoint(of: &Compared, ours: &RowSwap, theirs: Option<&Row>) -> bool {
    let (Some(base), Some(ours), Some(theirs)) = (&ours.before, &ours.after, theirs) else {
        return false;
    };
    let mut columns = base.iter().zip(ours).zip(theirs).enumerate();
    columns.all(|(column, ((base, ours), theirs))| {
        of.computes(column) || [base, theirs].contains(&ours) || base == theirs
    })
}

/// A row of the original with what the clone changed of it: columns that it did not touch are the original's (rule Q2).
fn laid_over(of: &Compared, ours: &RowSwap, theirs: Option<&Row>) -> Option<Row> {
    let (Some(base), Some(after), Some(theirs)) = (&ours.before, &ours.after, theirs) else {
        return ours.after.clone();
    };
    let columns = base.iter().zip(after).zip(theirs).enumerate();
    let merged = columns.map(
        |(column, ((base, ours), theirs))| match of.computes(column) {
            true => COMPUTED,
            false if base == ours => theirs.clone(),
            false => ours.clone(),
        },
    );
    let merged: Row = merged.collect();
    let mut sides = [after, theirs].into_iter();
    let is_one = |side: &&Row| fit(Some(side), Some(&merged), usize::MAX);
    Some(sides.find(is_one).cloned().unwrap_or(merged))
}

/// What the original has of a row that the clone changed.
enum Seen {
    /// What the clone began from.
    AsBase,
    /// What the clone has.
    AsOurs,
    /// Something else, or nothing.
    Other(Option<Row>),
    /// That cannot be said in the shape that the clone gave the table.
    Unclear,
}

/// The extensions of a database with their versions, and what belongs to each with the digest of its source: a dump says nothing of that, and
/// what was added to an extension is for a dump as if it were gone.
fn extensions(connection: &mut Connection) -> PgResult<BTreeSet<(String, String)>> {
    let sql = "SELECT extname, 'the extension ' || extversion FROM pg_catalog.pg_extension UNION ALL \
               SELECT e.extname, 'its member ' || i.type || ' ' || i.identity || ' ' || coalesce(pg_catalog.md5(\
               (to_jsonb(p) - 'proacl')::text), pg_catalog.md5(pg_catalog.pg_get_viewdef(c.oid)), '-') \
               FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid \
               CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, d.objsubid) i \
               LEFT JOIN pg_catalog.pg_proc p ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid = d.objid \
               LEFT JOIN pg_catalog.pg_class c ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = d.objid AND c.relkind IN ('v', 'm') \
               WHERE d.deptype = 'e' AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass";
    let rows = connection.query(sql)?;
    let pair = |row: Vec<Option<String>>| row.map_texts::<2>().into();
    Ok(rows.into_iter().map(pair).collect())
}

impl Sandbox for CloneSession {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        self.inside()?.read(path)
    }

    fn write(&self, path: &ResourcePath, bytes: &mut dyn Read) -> Result<Change> {
        self.inside()?.write(path, bytes)
    }

    fn query(&self, statement: &str, read_only: bool) -> Result<QueryResult> {
        self.inside()?.query(statement, read_only)
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        let from = from.map(part_of).transpose()?;
        let to = to.map(part_of).transpose()?;
        let (from, to) = (from.as_deref(), to.as_deref());
        // A clone can be compared where the original is gone, but not where another one has its name.
        let same = check_original(&self.databases.original, &self.metadata.original);
        if let Err(error @ StrategyError::Replaced { .. }) = same {
            return Err(error);
        }
        let found = self.difference(from.unwrap_or(BASE), to.unwrap_or(WORK))?;
        Ok(DiffView::new(found.changes()))
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        Ok(version_digests(changes))
    }

    fn rollback(&self, _observer: &dyn Observer) -> Result<String> {
        let (databases, mut admin) = (&self.databases, self.databases.admin()?);
        databases.copy(&mut admin, &databases.name(BASE), WORK)?;
        Ok("made the clone anew".to_owned())
    }

    fn checkpoint(&self, _parent: Option<&Snapshot>, _observer: &dyn Observer) -> Result<Snapshot> {
        let databases = &self.databases;
        let mut admin = databases.admin()?;
        // A restore that is to be finished may have removed it already.
        if !databases.has(&mut admin, WORK)? {
            let why = "its clone is not there: a return to a checkpoint was interrupted";
            return Err(unsupported(NAME, "be kept", why));
        }
        let part = self.next_part()?;
        let text = self.programs().definitions(&databases.at(WORK))?;
        let dir = Dir::open(self.metadata.held.area.as_path())?;
        // Its file takes the number, and says that there may be a clone.
        atomic_file::create(&dir, definitions_of(&part).as_bytes(), text.as_bytes())?;
        databases.copy(&mut admin, &databases.name(WORK), &part)?;
        Ok(Snapshot(tree::stored(&part)))
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        let mut parts = keep.iter().map(part_of).collect::<Result<Vec<_>>>()?;
        parts.extend([BASE, WORK, ORIGIN].map(str::to_owned));
        let (databases, mut admin) = (&self.databases, self.databases.admin()?);
        let names: Vec<String> = parts.iter().map(|part| databases.name(part)).collect();
        databases.drop_all_but(&mut admin, &names, &[])?;
        let dir = Dir::open(self.metadata.held.area.as_path())?;
        for name in dir.names()? {
            let text = String::from_utf8_lossy(&name);
            let part = text.strip_suffix(".sql");
            if part.is_some_and(|part| !parts.iter().any(|one| one == part)) {
                dir.unlink(&name)?;
            }
        }
        Ok(keep.to_vec())
    }

    fn preview(&self, options: &PreviewOptions) -> Result<Preview> {
        let (found, ddl) = self.releasable()?;
        if !ddl.is_empty() {
            self.check_shape(&ddl, &found.to)?;
        }
        let changes = found.changes();
        let conflicts = match changes.is_empty() {
            true => Vec::new(),
            false => self.look(&found, &ddl, options.strict)?.0,
        };
        Ok(Preview {
            diff: DiffView::new(changes).into(),
            conflicts,
            notes: found.notes(),
            lasting: !ddl.is_empty(),
            ..Preview::default()
        })
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        // No client is told that something is done which comes too late.
        end_holder(&self.metadata.held.area)?;
        self.staged(request).inspect_err(|_| {
            serve_again(&self.client.host, &self.databases, &self.metadata.held.area);
        })
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let (from, to) = (part_of(request.from)?, part_of(request.to)?);
        if !self.databases.has(&mut self.databases.admin()?, &to)? {
            return Err(StrategyError::Lost {
                path: ResourcePath::root(),
                what: "its clone is not on the server any more".to_owned(),
            });
        }
        Ok(Intent(tree::stored(&RestoreIntent {
            server: self.metadata.held.server.clone(),
            plan: self.plan,
            resource: self.resource,
            to,
            from,
        })))
    }

    fn take_in(&self, intent: &Intent) -> Result<()> {
        if intent.0.is_null() {
            return Ok(());
        }
        let area = Dir::open(self.metadata.held.area.as_path())?;
        remove::remove(&area, TAKEN)?;
        area.make_dir(TAKEN, 0o700)?;
        let plan = OpenPlan::elsewhere(intent, area.subdir(TAKEN)?)?;
        let clone = Original {
            server: self.databases.at(WORK),
            password: self.databases.original.password.clone(),
        };
        let forward = Release {
            plan: &plan,
            original: &clone,
            back: false,
        };
        forward.carry_out("COMMIT")?;
        Ok(remove::remove(&area, TAKEN)?)
    }

    fn access(&self) -> Result<Access> {
        self.inside()?.access()
    }
}
