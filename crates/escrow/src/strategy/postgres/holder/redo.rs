//! Rows that are written again: when a prepared transaction had to be taken back, because another member of the commit failed, the
//! changes of rows it held are made once more in the next transaction. They count only if the comparison then shows
//! exactly what it showed before; otherwise nothing is written, and the changes are lost.

use super::super::super::sql::{Value, identifier};
use super::super::connect::{PgResult, literal};
use super::super::control::Changes;
use super::backend::{Backend, LIMIT, own_settings};
use super::changes;

/// How much text is sent at once.
const BATCH: usize = 256 * 1024;

/// How much is kept at most: more is not written again.
const MOST: usize = 64 * 1024 * 1024;

/// What was changed, and the statements that change it again.
#[derive(Default)]
pub(super) struct Redo {
    pub(super) changes: Changes,
    /// Each with the place of its table among those that refer to each other.
    deletes: Vec<(usize, String)>,
    updates: Vec<(usize, String)>,
    inserts: Vec<(usize, String)>,
    size: usize,
    /// Something was changed that no rows show, such as a definition.
    partial: bool,
}

/// A table of which rows are written again.
pub(super) struct RowWriter<'t> {
    /// Its place: a table comes after those it refers to.
    pub(super) rank: usize,
    /// Its name, as SQL takes it.
    pub(super) table: &'t str,
    pub(super) columns: &'t [String],
    /// Which of the columns tell rows apart.
    pub(super) key: &'t [usize],
    /// Which of them the server computes.
    pub(super) generated: &'t [bool],
}

fn sql_value(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(number) => format!("'{number}'"),
        Value::Text(text) => literal(&String::from_utf8_lossy(text)),
        // No value of PostgreSQL is read as one of these.
        Value::Real(_) | Value::Blob(_) => "NULL".to_owned(),
    }
}

impl Redo {
    /// Something cannot be written again.
    pub(super) fn give_up(&mut self) {
        self.partial = true;
        self.deletes.clear();
        self.updates.clear();
        self.inserts.clear();
    }

    /// Adds the change of a row.
    pub(super) fn row(&mut self, to: &RowWriter<'_>, old: Option<&[Value]>, new: Option<&[Value]>) {
        if self.partial {
            return;
        }
        let statement = match (old, new) {
            (None, Some(new)) => to.insert(new),
            (Some(old), None) => format!("DELETE FROM ONLY {} WHERE {}", to.table, to.finds(old)),
            (Some(old), Some(new)) => to.update(old, new),
            (None, None) => return,
        };
        self.size += statement.len();
        match (old, new) {
            (None, _) => self.inserts.push((to.rank, statement)),
            (_, None) => self.deletes.push((to.rank, statement)),
            _ => self.updates.push((to.rank, statement)),
        }
        if self.size > MOST {
            self.give_up();
        }
    }

    /// Makes the changes again, in a new transaction; `false`: that is not possible, and nothing is changed.
    pub(super) fn replay(&self, backend: &mut Backend) -> PgResult<bool> {
        if self.partial {
            return Ok(self.changes.changes.is_empty());
        }
        for deletes_first in [true, false] {
            if self.attempt(backend, deletes_first)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the changes were made, in this order; otherwise nothing is changed.
    fn attempt(&self, backend: &mut Backend, deletes_first: bool) -> PgResult<bool> {
        backend.apply(&own_settings())?;
        let begin = format!("SAVEPOINT escrow_redo; {LIMIT}");
        backend.connection.query(&begin)?;
        let same = self
            .write(backend, deletes_first)
            .and_then(|()| Ok(changes::changes(backend)?.changes.changes == self.changes.changes));
        let kept = matches!(same, Ok(true));
        let end = match kept {
            // What is set in a savepoint outlives its release.
            true => "RESET lock_timeout; RELEASE SAVEPOINT escrow_redo",
            false => "ROLLBACK TO SAVEPOINT escrow_redo; RELEASE SAVEPOINT escrow_redo",
        };
        match same {
            // Without words of the server the link is lost.
            Err(error) if error.code.is_none() => return Err(error),
            _ => backend.connection.query(end)?,
        };
        backend.applied = None;
        Ok(kept)
    }

    /// Writes, with every trigger and every check, as a client would: what is written again must hold as what was written
    /// first does. Whether triggers did more than is wanted, the comparison shows.
    fn write(&self, backend: &mut Backend, deletes_first: bool) -> PgResult<()> {
        let in_order = |statements: &[(usize, String)], reversed: bool| {
            let mut order: Vec<usize> = (0..statements.len()).collect();
            order.sort_by_key(|at| statements[*at].0);
            if reversed {
                order.reverse();
            }
            order
        };
        let mut all = [
            (&self.inserts, in_order(&self.inserts, false)),
            (&self.updates, in_order(&self.updates, false)),
            (&self.deletes, in_order(&self.deletes, true)),
        ];
        if deletes_first {
            all.reverse();
        }
        let mut sql = String::new();
        for (statements, order) in &all {
            for at in order {
                sql.push_str(&statements[*at].1);
                sql.push(';');
                if sql.len() > BATCH {
                    backend.connection.query(&sql)?;
                    sql.clear();
                }
            }
        }
        backend.connection.query(&sql).map(drop)
    }
}

impl RowWriter<'_> {
    fn name(&self, column: usize) -> String {
        identifier(&self.columns[column])
    }

    /// What finds one row as it was.
    fn finds(&self, old: &[Value]) -> String {
        let is = |column: usize, as_text: &str| {
            let (name, value) = (self.name(column), sql_value(&old[column]));
            format!("{name}{as_text} IS NOT DISTINCT FROM {value}")
        };
        match self.key.is_empty() {
            false => {
                let parts: Vec<String> = self.key.iter().map(|column| is(*column, "")).collect();
                parts.join(" AND ")
            }
            true => {
                let all = 0..self.columns.len();
                let parts: Vec<String> =
                    all.map(|column| is(column, "::pg_catalog.text")).collect();
                let all = parts.join(" AND ");
                format!(
                    "ctid = (SELECT ctid FROM ONLY {} WHERE {all} LIMIT 1)",
                    self.table
                )
            }
        }
    }

    fn insert(&self, new: &[Value]) -> String {
        let own: Vec<usize> = (0..self.columns.len())
            .filter(|column| !self.generated[*column])
            .collect();
        let names: Vec<String> = own.iter().map(|column| self.name(*column)).collect();
        let values: Vec<String> = own.iter().map(|column| sql_value(&new[*column])).collect();
        match own.is_empty() {
            true => format!("INSERT INTO {} DEFAULT VALUES", self.table),
            false => format!(
                "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})",
                self.table,
                names.join(", "),
                values.join(", ")
            ),
        }
    }

    fn update(&self, old: &[Value], new: &[Value]) -> String {
        let differs = |column: &usize| old[*column] != new[*column] && !self.generated[*column];
        let set: Vec<String> = (0..self.columns.len())
            .filter(differs)
            .map(|column| format!("{} = {}", self.name(column), sql_value(&new[column])))
            .collect();
        let finds = self.finds(old);
        match set.is_empty() {
            true => "SELECT".to_owned(),
            false => format!(
                "UPDATE ONLY {} SET {} WHERE {finds}",
                self.table,
                set.join(", ")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule S4
    #[test]
    fn names_and_values_are_quoted() {
        let columns = ["a\"b".to_owned(), "n".to_owned()];
        let table = "public.\"t\"\"x\"";
        let writer = RowWriter {
            rank: 0,
            table,
            columns: &columns,
            key: &[0],
            generated: &[false, false],
        };
        let row = |text: &str, number| {
            vec![
                Value::Text(text.as_bytes().to_vec()),
                Value::Integer(number),
            ]
        };
        let (old, new) = (row("it's; --\\", 1), row("it's; --\\", 2));
        assert_eq!(
            writer.update(&old, &new),
            "UPDATE ONLY public.\"t\"\"x\" SET \"n\" = '2' WHERE \"a\"\"b\" IS NOT DISTINCT FROM E'it''s; --\\\\'"
        );
        let loose = RowWriter { key: &[], ..writer };
        assert!(
            loose
                .finds(&old)
                .starts_with("ctid = (SELECT ctid FROM ONLY public.\"t\"\"x\" WHERE")
        );
    }
}
