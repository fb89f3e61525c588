//! What a commit does to the original, as a value: written before it is decided, carried out and taken back from there.
//!
//! ```text
//! <commit area>/
//!   plan          everything but the rows
//!   rows          the rows that change, before and after
//!   number        the number of the transaction that carries it out, written before that transaction is prepared or ends
//!   undo-number   the same of the one that takes it back
//! ```

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::super::error::{Result, StrategyError};
use super::super::super::sql::differ::Copies;
use super::super::super::sql::record::{RowSwap, read_plan, read_rows, write_plan, write_rows};
use super::super::super::{Intent, tree};
use super::super::HeldIntent;
use super::super::location::Server;
use super::rows::{Changed, Compared, Frozen};
use super::schema::Ddl;
use super::sequences::MovedSequence;
use crate::fs::{Dir, atomic_file};
use crate::model::text::Location;
use crate::model::{PlanId, ResourceId, ResourcePath};

pub(super) const NUMBER: &[u8] = b"number";
pub(super) const UNDO_NUMBER: &[u8] = b"undo-number";

/// Everything that a commit does, but for the rows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReleasePlan {
    pub(super) tables: Vec<Compared>,
    pub(super) ddl: Ddl,
    pub(super) frozen: Vec<Frozen>,
    pub(super) sequences: Vec<MovedSequence>,
    /// The digest of the rows.
    pub(super) rows: String,
}

/// An intent as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ReleaseIntent {
    pub(super) server: Server,
    /// The number of the original on its server, which no other one gets.
    pub(super) original: String,
    pub(super) version: u32,
    /// Whose sandbox it is, and where that is.
    pub(super) of: (PlanId, ResourceId),
    pub(super) sandbox: Location,
    pub(super) area: Location,
    /// Under which name it is prepared; none where nothing can be.
    pub(super) gid: Option<String>,
    /// There is nothing to release, and so nothing to take back.
    #[serde(default)]
    pub(super) empty: bool,
    /// The digest of the plan.
    pub(super) plan: String,
}

/// A plan that was written, opened again.
pub(super) struct OpenPlan {
    pub(super) intent: ReleaseIntent,
    pub(super) plan: ReleasePlan,
    pub(super) rows: Vec<Changed>,
    area: Dir,
}

/// Writes a plan with its rows into the area of a commit. The caller syncs the file system.
pub(super) fn write(
    place: &Path,
    mut plan: ReleasePlan,
    rows: &[RowSwap],
    mut intent: ReleaseIntent,
) -> Result<Intent> {
    let area = Dir::open(place)?;
    plan.rows = write_rows(&area, rows)?;
    intent.plan = write_plan(&area, &plan)?;
    Ok(Intent(tree::stored(&intent)))
}

impl OpenPlan {
    pub(super) fn read(intent: &Intent) -> Result<Self> {
        let intent: ReleaseIntent = tree::parse(&intent.0, "the intent")?;
        let area = Dir::open(intent.area.as_path())?;
        let plan = read_plan(&area, &intent.plan, |plan: &ReleasePlan| &plan.rows)?;
        let (mut rows, mut copies) = (Vec::new(), Copies::default());
        for swap in read_rows(&area)? {
            let swap = swap?;
            let table = plan.tables.get(swap.table as usize);
            let table = table.ok_or_else(|| StrategyError::Damaged {
                what: "a row belongs to no table".to_owned(),
            })?;
            let key = table.key(&swap, &mut copies);
            rows.push(Changed { swap, key });
        }
        Ok(Self {
            intent,
            plan,
            rows,
            area,
        })
    }

    /// The plan of an undone commit, to be carried out on another database, with what its transaction notes in `area`.
    pub(super) fn elsewhere(intent: &Intent, area: Dir) -> Result<Self> {
        let mut staged = Self::read(intent)?;
        staged.intent.gid = None;
        Ok(Self { area, ..staged })
    }

    pub(super) fn of(&self, changed: &Changed) -> &Compared {
        &self.plan.tables[changed.swap.table as usize]
    }

    pub(super) fn path(&self, changed: &Changed) -> ResourcePath {
        self.of(changed).change(&changed.swap, &changed.key).path
    }

    /// The number of the transaction that may have been ended, or prepared.
    pub(super) fn number(&self, of: &[u8]) -> Result<Option<String>> {
        match self.area.stat(of)? {
            None => Ok(None),
            Some(_) => {
                let text = read_all(&self.area, of)?;
                Ok(Some(String::from_utf8_lossy(&text).into_owned()))
            }
        }
    }

    /// Keeps it, durably.
    pub(super) fn keep_number(&self, of: &[u8], number: &str) -> Result<()> {
        Ok(atomic_file::create(&self.area, of, number.as_bytes())?)
    }

    /// The transaction of that number, as what asks for its outcome has it.
    pub(super) fn held(&self, of: &[u8]) -> Result<HeldIntent> {
        Ok(HeldIntent {
            server: self.intent.server.clone(),
            area: self.intent.area.clone(),
            xid: self.number(of)?,
            gid: self.intent.gid.clone().filter(|_| of == NUMBER),
            turns: 0,
        })
    }
}

fn read_all(area: &Dir, name: &[u8]) -> Result<Vec<u8>> {
    let (mut file, _) = area.file(name)?;
    let mut bytes = Vec::new();
    let read = file.read_to_end(&mut bytes);
    read.map_err(|error| area.io_error("read", name, &error))?;
    Ok(bytes)
}
