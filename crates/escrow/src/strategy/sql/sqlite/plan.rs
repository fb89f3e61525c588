//! What a commit does to a database, as a value: written before it is decided, carried out and taken back from the file.
//!
//! ```text
//! <commit area>/
//!   plan             everything but the rows
//!   rows             the rows that change, before and after
//!   new.db, old.db   both versions, where tables are brought over as a whole
//!   begun, undoing   marks: the transaction that carries it out, or takes it back, may have been committed
//!   done, undone     marks: it was
//! ```
//!
//! Everything in it has a version before and one after. A commit finds the version before and makes the one after;
//! an undo the other way round.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::connect::Database;
use super::full_text::{FullText, Written};
use super::schema::{Object, Schema, Table};
use super::{copy_file, reflinks};
use crate::fs::{Dir, atomic_file};
use crate::model::ResourcePath;
use crate::model::text::Location;
use crate::strategy::Intent;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::record::{RowSwap, read_plan, read_rows, write_plan, write_rows};
use crate::strategy::tree;

pub(super) const BEGUN: &[u8] = b"begun";
pub(super) const DONE: &[u8] = b"done";
pub(super) const UNDOING: &[u8] = b"undoing";
pub(super) const UNDONE: &[u8] = b"undone";
pub(super) const NEW: &str = "new.db";
pub(super) const OLD: &str = "old.db";

/// A table or view that is brought over as a whole, with what belongs to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TableSwap {
    pub(super) name: String,
    pub(super) before: Option<WholeTable>,
    pub(super) after: Option<WholeTable>,
}

/// One version of it: its digest, and the SQL of it and of what belongs to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WholeTable {
    pub(super) digest: String,
    /// None where it has no rows of its own.
    pub(super) table: Option<Table>,
    pub(super) objects: Vec<Object>,
    /// The last number that it gave out, where it counts them.
    pub(super) counter: Option<i64>,
}

impl WholeTable {
    /// The table or view itself.
    pub(super) fn owner(&self) -> Option<&Object> {
        self.objects.iter().find(|one| one.owns())
    }
}

/// An object of the schema that becomes another one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ObjectSwap {
    pub(super) before: Option<Object>,
    pub(super) after: Option<Object>,
}

impl ObjectSwap {
    pub(super) fn item(&self) -> ResourcePath {
        let one = self.after.as_ref().or(self.before.as_ref());
        one.expect("one of the versions is there").item()
    }
}

/// A setting in the header of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SettingSwap {
    pub(super) name: String,
    pub(super) before: String,
    pub(super) after: String,
}

/// Everything that a commit does.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct MergePlan {
    /// The tables of the rows, and of indexes and triggers.
    pub(super) tables: Vec<Table>,
    pub(super) whole: Vec<TableSwap>,
    pub(super) objects: Vec<ObjectSwap>,
    pub(super) settings: Vec<SettingSwap>,
    /// Counters, which only ever go forward.
    pub(super) counters: Vec<(String, i64)>,
    /// The marks of references that lead nowhere in the sandbox, or led nowhere in the original.
    #[serde(default)]
    pub(super) dangling: BTreeSet<String>,
    /// The digest of the rows.
    rows: String,
}

impl MergePlan {
    /// Whether a table is brought over as a whole.
    pub(super) fn is_whole(&self, name: &str) -> bool {
        let mut all = self.whole.iter();
        all.any(|one| one.name.eq_ignore_ascii_case(name))
    }

    /// Whether rows of whole tables are staged in databases of their own.
    pub(super) fn stages_rows(&self) -> bool {
        let sides = self.whole.iter().flat_map(|one| [&one.before, &one.after]);
        sides.flatten().any(|side| side.table.is_some())
    }
}

/// An intent as it is stored: where the original is, and what was written about it.
#[derive(Serialize, Deserialize)]
struct StoredIntent {
    original: Location,
    area: Location,
    plan: String,
}

/// A plan that was written, opened again.
pub(super) struct OpenPlan {
    pub(super) original: PathBuf,
    pub(super) plan: MergePlan,
    area: Dir,
}

/// Writes a plan with its rows into the area of a commit.
pub(super) fn write(
    original: &Path,
    place: &Path,
    mut plan: MergePlan,
    rows: &[RowSwap],
) -> Result<Intent> {
    let area = Dir::open(place)?;
    plan.rows = write_rows(&area, rows)?;
    Ok(Intent(tree::stored(&StoredIntent {
        original: Location::from(original),
        area: Location::from(place),
        plan: write_plan(&area, &plan)?,
    })))
}

impl OpenPlan {
    /// Reads what was written; none for the intent of a commit that changes nothing.
    pub(super) fn read(intent: &Intent) -> Result<Option<Self>> {
        if intent.0.is_null() {
            return Ok(None);
        }
        let stored: StoredIntent = tree::parse(&intent.0, "the intent")?;
        let area = Dir::open(stored.area.as_path())?;
        let plan = read_plan(&area, &stored.plan, |plan: &MergePlan| &plan.rows)?;
        Ok(Some(Self {
            original: stored.original.as_path().to_owned(),
            plan,
            area,
        }))
    }

    /// The plan of an undone commit, to be carried out on another database, with copies of what was staged in `place`.
    pub(super) fn elsewhere(
        intent: &Intent,
        database: &Path,
        place: &Path,
    ) -> Result<Option<Self>> {
        let Some(staged) = Self::read(intent)? else {
            return Ok(None);
        };
        let area = Dir::open(place)?;
        for name in ["plan", "rows", NEW, OLD] {
            let name = name.as_bytes();
            if staged.area.stat(name)?.is_some() {
                copy_file((&staged.area, name), (&area, name), 0o600, &reflinks(true))?;
            }
        }
        Ok(Some(Self {
            original: database.to_owned(),
            area,
            ..staged
        }))
    }

    /// The rows, one after the other.
    pub(super) fn rows(&self) -> Result<impl Iterator<Item = Result<RowSwap>> + '_> {
        read_rows(&self.area)
    }

    /// The full-text tables of a version that have to be rebuilt.
    pub(super) fn full_text<'s>(
        &self,
        of: &Database,
        schema: &'s Schema,
    ) -> Result<Vec<&'s FullText>> {
        if schema.full_text.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.rows()?.map(|swap| swap.map(|swap| swap.table));
        let written = Written::new(&self.plan, rows.collect::<Result<_>>()?);
        Ok(written.full_text(of, schema))
    }

    /// The table of a row.
    pub(super) fn table(&self, swap: &RowSwap) -> Result<&Table> {
        let found = self.plan.tables.get(swap.table as usize);
        found.ok_or_else(|| StrategyError::Damaged {
            what: "a row belongs to no table".to_owned(),
        })
    }

    /// Whether a mark was made.
    pub(super) fn is_marked(&self, mark: &[u8]) -> Result<bool> {
        Ok(self.area.stat(mark)?.is_some())
    }

    /// Makes a mark, durably, with what tells later whether its transaction was committed.
    pub(super) fn mark(&self, mark: &[u8], text: &[u8]) -> Result<()> {
        Ok(atomic_file::create(&self.area, mark, text)?)
    }

    /// What a mark says, if it was made.
    pub(super) fn mark_text(&self, mark: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.is_marked(mark)? {
            true => Ok(Some(self.area.read(mark)?)),
            false => Ok(None),
        }
    }

    /// Takes a mark away, durably.
    pub(super) fn unmark(&self, mark: &[u8]) -> Result<()> {
        self.area.unlink(mark)?;
        Ok(self.area.sync()?)
    }

    /// One of the versions that were staged.
    pub(super) fn version(&self, name: &str) -> PathBuf {
        self.area.path().join(name)
    }
}
