//! Rows that are written again: when a prepared transaction had to be taken back, because another member of the commit failed, the
//! changes of rows it held are made once more in the next transaction. They count only if the comparison then shows
//! exactly what it showed before; otherwise nothing is written, and the changes are lost.

use std::collections::BTreeSet;

use super::super::super::sql::{Value, identifier};
use super::super::connect::{Connection, PgResult, literal};
use super::super::control::Changes;
use super::super::triggers::Triggers;
use super::backend::{Backend, LIMIT};
use super::changes;
use super::requests::AS_BEGUN;

/// How much text is sent at once.
const BATCH: usize = 256 * 1024;

/// How much one statement for many rows may be: rows that refer to each other are written by one.
const LONGEST: usize = 16 * 1024 * 1024;

/// The orders in which rows are written, one after the other until the server takes them: a value that has to be unique may pass from a
/// row that goes to one that comes, and from one that is changed to the next, either way round.
pub(in crate::strategy::postgres) const ORDERS: [WriteOrder; 3] = [
    WriteOrder::new(true, false),
    WriteOrder::new(false, false),
    WriteOrder::new(true, true),
];

/// An order in which rows are written.
#[derive(Debug, Clone, Copy)]
pub(in crate::strategy::postgres) struct WriteOrder {
    deletes_first: bool,
    /// The last one first, of those that are changed.
    backwards: bool,
}

impl WriteOrder {
    const fn new(deletes_first: bool, backwards: bool) -> Self {
        Self {
            deletes_first,
            backwards,
        }
    }
}

/// How much is kept at most while a transaction is held: more is not written again.
const MOST: usize = 64 * 1024 * 1024;

/// What was changed, and the statements that change it again.
#[derive(Default)]
pub(in crate::strategy::postgres) struct Redo {
    pub(super) changes: Changes,
    deletes: Vec<Statement>,
    updates: Vec<Statement>,
    inserts: Vec<Statement>,
    /// The tables of these rows, as SQL takes their names.
    tables: BTreeSet<String>,
    size: usize,
    /// However much it is, it is kept.
    whole: bool,
    /// Something was changed that no rows show, such as a definition.
    partial: bool,
}

/// The statement for one row.
struct Statement {
    /// The place of its table among those that refer to each other.
    rank: usize,
    /// What it has in common with those for other rows of the table, with which it can be one: rows that refer to each other come and
    /// go together then. Empty where each is one of its own.
    head: String,
    row: String,
}

/// A table of which rows are written again.
pub(in crate::strategy::postgres) struct RowWriter<'t> {
    /// Its place: a table comes after those it refers to.
    pub(in crate::strategy::postgres) rank: usize,
    /// Its name, as SQL takes it.
    pub(in crate::strategy::postgres) table: &'t str,
    pub(in crate::strategy::postgres) columns: &'t [String],
    /// Which of the columns tell rows apart.
    pub(in crate::strategy::postgres) key: &'t [usize],
    /// Which of them the server computes.
    pub(in crate::strategy::postgres) generated: &'t [bool],
}

pub(in crate::strategy::postgres) fn sql_value(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(number) => format!("'{number}'"),
        Value::Text(text) => literal(&String::from_utf8_lossy(text)),
        // No value of PostgreSQL is read as one of these.
        Value::Real(_) | Value::Blob(_) => "NULL".to_owned(),
    }
}

impl Redo {
    /// One that keeps everything.
    pub(in crate::strategy::postgres) fn whole() -> Self {
        Self {
            whole: true,
            ..Self::default()
        }
    }

    /// Something cannot be written again.
    pub(super) fn give_up(&mut self) {
        self.partial = true;
        self.deletes.clear();
        self.updates.clear();
        self.inserts.clear();
    }

    /// Adds the change of a row.
    pub(in crate::strategy::postgres) fn row(
        &mut self,
        to: &RowWriter<'_>,
        old: Option<&[Value]>,
        new: Option<&[Value]>,
    ) {
        if self.partial {
            return;
        }
        let (list, (head, row)) = match (old, new) {
            (None, Some(new)) => (&mut self.inserts, to.insert(new)),
            (Some(old), None) => (&mut self.deletes, to.delete(old)),
            (Some(old), Some(new)) => (&mut self.updates, (String::new(), to.update(old, new))),
            (None, None) => return,
        };
        if !self.tables.contains(to.table) {
            self.tables.insert(to.table.to_owned());
        }
        self.size += head.len() + row.len();
        let rank = to.rank;
        list.push(Statement { rank, head, row });
        if self.size > MOST && !self.whole {
            self.give_up();
        }
    }

    /// Makes the changes again, in a new transaction; `false`: that is not possible, and nothing is changed.
    pub(super) fn replay(&self, backend: &mut Backend) -> PgResult<bool> {
        if self.partial {
            return Ok(self.changes.changes.is_empty());
        }
        for order in ORDERS {
            if self.attempt(backend, order, None)? {
                return Ok(true);
            }
        }
        // What triggers write once more, the time of a change or a line in a journal, is among the rows.
        backend.apply_own()?;
        let triggers = Triggers::of(&mut backend.connection, &self.tables, &BTreeSet::new())?;
        for order in ORDERS {
            if !triggers.is_empty() && self.attempt(backend, order, Some(&triggers))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the changes were made, in this order, with these triggers turned off; otherwise nothing is changed.
    fn attempt(
        &self,
        backend: &mut Backend,
        order: WriteOrder,
        off: Option<&Triggers>,
    ) -> PgResult<bool> {
        backend.apply_own()?;
        let begin = format!("SAVEPOINT escrow_redo; {LIMIT}");
        backend.connection.query(&begin)?;
        let written = (|| {
            let connection = &mut backend.connection;
            off.map_or(Ok(()), |off| off.turn_off(connection))?;
            self.write(connection, order)?;
            // What waits for the end of the transaction ran before, and has its say now.
            connection.query("SET CONSTRAINTS ALL IMMEDIATE")?;
            off.map_or(Ok(()), |off| off.turn_on(connection))?;
            connection.query(AS_BEGUN).map(drop)
        })();
        let same = written
            .and_then(|()| Ok(changes::changes(backend)?.changes.changes == self.changes.changes));
        backend.applied = None;
        match same {
            // Without words of the server the link is lost.
            Err(error) if error.code.is_none() => Err(error),
            Ok(true) => {
                // What is set in a savepoint outlives its release.
                let end = "RESET lock_timeout; RELEASE SAVEPOINT escrow_redo";
                backend.connection.query(end).map(|_| true)
            }
            _ => backend.connection.take_back("escrow_redo").map(|()| false),
        }
    }

    /// Writes, with every check, as a client would: what is written again must hold as what was written first does. Whether triggers
    /// did more than is wanted, the comparison shows.
    pub(in crate::strategy::postgres) fn write(
        &self,
        connection: &mut Connection,
        order: WriteOrder,
    ) -> PgResult<()> {
        let in_order = |statements: &[Statement], reversed: bool| {
            let mut order: Vec<usize> = (0..statements.len()).collect();
            order.sort_by_key(|at| statements[*at].rank);
            if reversed {
                order.reverse();
            }
            order
        };
        let mut all = [
            (&self.inserts, in_order(&self.inserts, false), ", "),
            (&self.updates, in_order(&self.updates, order.backwards), ""),
            (&self.deletes, in_order(&self.deletes, true), " OR "),
        ];
        if order.deletes_first {
            all.reverse();
        }
        let (mut sql, mut last) = (String::new(), "");
        for (statements, order, and) in &all {
            for Statement { head, row, .. } in order.iter().map(|at| &statements[*at]) {
                let same = !head.is_empty() && head == last;
                if sql.len() > if same { LONGEST } else { BATCH } {
                    connection.query(&sql)?;
                    sql.clear();
                }
                match same && !sql.is_empty() {
                    true => sql.push_str(and),
                    false => sql.extend([";", head]),
                }
                sql.push_str(row);
                last = head;
            }
        }
        connection.query(&sql).map(drop)
    }
}

impl RowWriter<'_> {
    fn name(&self, column: usize) -> String {
        identifier(&self.columns[column])
    }

    /// What finds one row as it was.
    pub(in crate::strategy::postgres) fn finds(&self, old: &[Value]) -> String {
        let is = |column: usize| {
            let (name, value) = (self.name(column), sql_value(&old[column]));
            format!("{name} = {value}")
        };
        match self.key.is_empty() {
            false => {
                let parts: Vec<String> = self.key.iter().map(|column| is(*column)).collect();
                parts.join(" AND ")
            }
            true => {
                let all = self.is_whole(old);
                format!(
                    "ctid = (SELECT ctid FROM ONLY {} WHERE {all} LIMIT 1)",
                    self.table
                )
            }
        }
    }

    /// What tells whether a row has these values.
    pub(in crate::strategy::postgres) fn is_whole(&self, row: &[Value]) -> String {
        let is = |column: usize| {
            let (name, value) = (self.name(column), sql_value(&row[column]));
            format!(
                "({name}::pg_catalog.text IS NOT DISTINCT FROM {value} OR {name} IS DISTINCT FROM NULL AND pg_catalog.format('%s', {name}) = {value})"
            )
        };
        let parts: Vec<String> = (0..self.columns.len()).map(is).collect();
        match parts.is_empty() {
            true => "true".to_owned(),
            false => parts.join(" AND "),
        }
    }

    fn insert(&self, new: &[Value]) -> (String, String) {
        let own: Vec<usize> = (0..self.columns.len())
            .filter(|column| !self.generated[*column])
            .collect();
        let names: Vec<String> = own.iter().map(|column| self.name(*column)).collect();
        let values: Vec<String> = own.iter().map(|column| sql_value(&new[*column])).collect();
        if own.is_empty() {
            let one = format!("INSERT INTO {} DEFAULT VALUES", self.table);
            return (String::new(), one);
        }
        let head = format!(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ",
            self.table,
            names.join(", ")
        );
        (head, format!("({})", values.join(", ")))
    }

    fn delete(&self, old: &[Value]) -> (String, String) {
        let head = format!("DELETE FROM ONLY {} WHERE ", self.table);
        let row = self.finds(old);
        match self.key.is_empty() {
            // Each of equal rows is found by itself.
            true => (String::new(), head + &row),
            false => (head, format!("({row})")),
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
            "UPDATE ONLY public.\"t\"\"x\" SET \"n\" = '2' WHERE \"a\"\"b\" = E'it''s; --\\\\'"
        );
        let loose = RowWriter { key: &[], ..writer };
        assert!(
            loose
                .finds(&old)
                .starts_with("ctid = (SELECT ctid FROM ONLY public.\"t\"\"x\" WHERE")
        );
    }
}
