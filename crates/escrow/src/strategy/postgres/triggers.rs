//! Triggers that are off while rows are written for which they ran already: what they did is among the rows.

use std::collections::BTreeSet;

use super::super::sql::identifier;
use super::connect::{Connection, PgResult, literal};

/// Those that would run, each with its table, its name, and how it is turned on.
pub(super) struct Triggers(Vec<(String, String, &'static str)>);

impl Triggers {
    /// Those of the tables that are written, and those for each statement of the tables that follow them, which run also where no row
    /// follows.
    pub(super) fn of(
        connection: &mut Connection,
        written: &BTreeSet<String>,
        following: &BTreeSet<String>,
    ) -> PgResult<Self> {
        let mut found = Vec::new();
        for table in written.union(following) {
            let kinds = match written.contains(table) {
                true => "",
                false => "AND tgtype & 1 = 0",
            };
            let sql = format!(
                "SELECT tgname, tgenabled FROM pg_catalog.pg_trigger WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') \
                 AND tgrelid = pg_catalog.to_regclass({}) {kinds}",
                literal(table)
            );
            for row in connection.query(&sql)? {
                if let [Some(name), Some(when)] = &row[..] {
                    let when = if when == "A" { " ALWAYS" } else { "" };
                    found.push((table.clone(), identifier(name), when));
                }
            }
        }
        Ok(Self(found))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Only the owner of a table may.
    pub(super) fn turn_off(&self, connection: &mut Connection) -> PgResult<()> {
        self.0.iter().try_for_each(|(table, name, _)| {
            let sql = format!("ALTER TABLE {table} DISABLE TRIGGER {name}");
            connection.query(&sql).map(drop)
        })
    }

    pub(super) fn turn_on(&self, connection: &mut Connection) -> PgResult<()> {
        self.0.iter().try_for_each(|(table, name, when)| {
            let sql = format!("ALTER TABLE {table} ENABLE{when} TRIGGER {name}");
            connection.query(&sql).map(drop)
        })
    }
}
