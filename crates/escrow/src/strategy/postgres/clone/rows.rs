//! The rows in which two databases of one server differ. A table whose rows have one sum in both is not read.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::super::sql::differ::{self, Copies, RowCursor};
use super::super::super::sql::record::RowSwap;
use super::super::super::sql::{Row, RowKey, Value, identifier, row_change};
use super::super::connect::{Connection, PgError, PgResult, literal, unexpected};
use super::super::holder::changes::{self, Columns, Table, columns, key_of, value};
use super::super::holder::redo::{RowWriter, sql_value};
use super::super::wire;
use crate::model::Change;

/// How many rows are looked up at once.
const BATCH: usize = 500;

/// A table that was compared, with the columns that it has in the second database.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Compared {
    pub(super) table: Table,
    pub(super) columns: Columns,
    /// How many of the columns, from the first, the first database has too; none where the table is new.
    pub(super) old: Option<usize>,
}

impl Compared {
    pub(super) fn is_new(&self) -> bool {
        self.old.is_none()
    }

    /// Whether the first database has all of its columns.
    pub(super) fn is_same(&self) -> bool {
        self.old == Some(self.columns.names.len())
    }

    /// Whether a row is the one that was wanted, in what both databases have.
    pub(super) fn agree(&self, found: Option<&Row>, wanted: Option<&Row>) -> bool {
        fit(found, wanted, self.old.unwrap_or(0))
    }

    /// Whether the server computes a column from others; what tells rows apart is a value all the same.
    pub(super) fn computes(&self, column: usize) -> bool {
        self.columns.generated[column] && !self.columns.key.contains(&column)
    }

    pub(super) fn writer<'t>(&'t self, quoted: &'t str) -> RowWriter<'t> {
        RowWriter {
            rank: self.table.rank,
            table: quoted,
            columns: &self.columns.names,
            key: &self.columns.key,
            generated: &self.columns.generated,
        }
    }

    /// The row that a swap is about, for people.
    pub(super) fn change(&self, swap: &RowSwap, key: &RowKey) -> Change {
        let (old, new) = (swap.before.as_ref(), swap.after.as_ref());
        row_change(&self.table.shown(), &self.columns.names, key, old, new)
    }

    /// What tells the row of a swap apart.
    pub(super) fn key(&self, swap: &RowSwap, copies: &mut Copies) -> RowKey {
        let row = swap.before.as_ref().or(swap.after.as_ref());
        key_of(
            row.map(Vec::as_slice).unwrap_or_default(),
            &self.columns,
            copies,
        )
    }
}

/// What a row should have in a column that the server computes from others, of which each side changed some: what that is only the server
/// can say. No value of PostgreSQL is read as this one.
pub(super) const COMPUTED: Value = Value::Blob(Vec::new());

/// Whether a row is the one that was wanted, in so many columns.
pub(super) fn fit(found: Option<&Row>, wanted: Option<&Row>, columns: usize) -> bool {
    match (found, wanted) {
        (Some(found), Some(wanted)) => {
            let mut both = found.iter().zip(wanted).take(columns);
            both.all(|(found, wanted)| found == wanted || *wanted == COMPUTED)
        }
        (found, wanted) => found == wanted,
    }
}

/// A row that differs.
pub(super) struct Changed {
    pub(super) swap: RowSwap,
    pub(super) key: RowKey,
}

/// What differs.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) tables: Vec<Compared>,
    pub(super) changed: Vec<Changed>,
    /// What differs and is not shown by rows: the table, and why.
    pub(super) unread: Vec<(String, String)>,
    /// The tables whose rows cannot be compared, since their columns or keys were changed: a commit is refused.
    pub(super) unshaped: Vec<String>,
    /// What goes with a table, so that the original may not have changed there.
    pub(super) frozen: Vec<Frozen>,
    /// What rows get in columns that came after them: the schema and the name of the table, and a column with its value.
    pub(super) given: Vec<((String, String), String)>,
}

/// The rows of a table as they are in the first database, by their sum.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Frozen {
    pub(super) table: Table,
    pub(super) columns: Columns,
    sum: Vec<Option<String>>,
}

impl Frozen {
    /// Whether the table still has those rows.
    pub(super) fn is_there(&self, connection: &mut Connection) -> PgResult<bool> {
        Ok(sum(connection, &self.table, &self.columns)? == self.sum)
    }
}

impl Rows {
    pub(super) fn of(&self, changed: &Changed) -> &Compared {
        &self.tables[changed.swap.table as usize]
    }

    pub(super) fn change(&self, changed: &Changed) -> Change {
        self.of(changed).change(&changed.swap, &changed.key)
    }
}

/// Compares every table; of one that only the second has, everything is new.
pub(super) fn compare(old: &mut Connection, new: &mut Connection) -> PgResult<Rows> {
    let mut before = tables(old)?;
    let mut found = Rows::default();
    for (name, (table, columns)) in tables(new)? {
        let there = before.remove(&name);
        if table.kind != "r" {
            // One that was never filled has no rows to be read.
            let differs = match &there {
                Some((known, same)) if table.kind == "m" && *same == columns => {
                    known.readable != table.readable
                        || table.readable
                            && sum(old, &table, &columns)? != sum(new, &table, &columns)?
                }
                _ => false,
            };
            if differs {
                let why = "its rows come from its query: REFRESH MATERIALIZED VIEW in the original, after the commit";
                found.unread.push((table.shown(), why.to_owned()));
            }
            continue;
        }
        let compared = Compared {
            old: there.as_ref().map(|(_, known)| known.names.len()),
            table,
            columns,
        };
        let old_list = match &there {
            None => None,
            Some((_, known)) if *known == compared.columns => {
                if sum(old, &compared.table, known)? == sum(new, &compared.table, known)? {
                    continue;
                }
                Some(list(known))
            }
            Some((_, known)) if known.grew_to(&compared.columns) => {
                let added = missing(new, &compared.table.oid)?;
                let mut all = vec![list(known)];
                let names = &compared.columns.names[known.names.len()..];
                for (value, column) in added[known.names.len()..].iter().zip(names) {
                    // The type may be new too.
                    let text = match value.starts_with("NULL::") {
                        true => None,
                        false => new.value(&format!("SELECT ({value})::pg_catalog.text"))?,
                    };
                    let text = text.map_or_else(|| "NULL".to_owned(), |text| literal(&text));
                    let given = format!("{} = {text}", identifier(column));
                    found.given.push((name.clone(), given));
                    all.push(format!("{text}::pg_catalog.text"));
                }
                Some(all.join(", "))
            }
            Some(_) => {
                found.unshaped.push(compared.table.shown());
                continue;
            }
        };
        let number = found.tables.len();
        let old = old_list.as_deref().map(|list| (&mut *old, list));
        found
            .changed
            .extend(differing(old, new, &compared, number)?);
        found.tables.push(compared);
    }
    for (table, columns) in before.into_values().filter(|(table, _)| table.kind == "r") {
        found.frozen.push(frozen(old, table, columns)?);
    }
    Ok(found)
}

impl Columns {
    /// Whether there are only more of them, at the end.
    fn grew_to(&self, other: &Self) -> bool {
        !self.names.is_empty()
            && other.names.starts_with(&self.names)
            && other.reads.starts_with(&self.reads)
            && other.generated.starts_with(&self.generated)
            && other.key == self.key
    }
}

/// What rows have in each column of a table that were there before it: the server keeps that value, if they were not written since, as the
/// one element of an array. That is quoted where it has to be, and has no braces of its own otherwise.
pub(super) fn missing(connection: &mut Connection, table: &str) -> PgResult<Vec<String>> {
    let sql = format!(
        "SELECT pg_catalog.quote_nullable(CASE WHEN t.typdelim = ',' OR a.attmissingval::pg_catalog.text ~ '^{{\"' THEN (a.attmissingval::pg_catalog.text::pg_catalog.text[])[1] \
         ELSE pg_catalog.btrim(a.attmissingval::pg_catalog.text, '{{}}') END) || '::' || \
         pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
         WHERE a.attrelid = {} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        literal(table)
    );
    let rows = connection.query(&sql)?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

/// Tables by their schemas and names.
type Known = BTreeMap<(String, String), (Table, Columns)>;

fn tables(connection: &mut Connection) -> PgResult<Known> {
    let mut found = BTreeMap::new();
    for table in changes::all(connection)? {
        let columns = columns(connection, &table.oid)?;
        if !table.readable && table.kind == "r" {
            let message = format!("the rows of {} cannot be read by this role", table.shown());
            return Err(PgError::link(message));
        }
        let name = (table.schema.clone(), table.name.clone());
        found.insert(name, (table, columns));
    }
    Ok(found)
}

/// The columns that a database has of a table, if it has it.
pub(super) fn found(connection: &mut Connection, table: &Table) -> PgResult<Option<Columns>> {
    let sql = format!(
        "SELECT oid FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass({}) AND relkind = 'r'",
        literal(&table.quoted())
    );
    let oid = connection.value(&sql)?;
    oid.map(|oid| columns(connection, &oid)).transpose()
}

/// A row, of its values as texts.
pub(super) fn row_of(texts: &[Option<&[u8]>], columns: &Columns) -> Row {
    let values = texts.iter().zip(&columns.reads);
    values.map(|(text, read)| value(*read, *text)).collect()
}

fn text_of(name: &str) -> String {
    format!("{}::pg_catalog.text", identifier(name))
}

/// The values of a row as texts.
pub(super) fn list(columns: &Columns) -> String {
    let all: Vec<String> = columns.names.iter().map(|name| text_of(name)).collect();
    all.join(", ")
}

pub(super) fn frozen(
    connection: &mut Connection,
    table: Table,
    columns: Columns,
) -> PgResult<Frozen> {
    let sum = sum(connection, &table, &columns)?;
    Ok(Frozen {
        table,
        columns,
        sum,
    })
}

/// How many rows a table has, and the sum of their digests.
fn sum(
    connection: &mut Connection,
    table: &Table,
    columns: &Columns,
) -> PgResult<Vec<Option<String>>> {
    let sql = format!(
        "SELECT count(*), sum(('x' || substr(encode(sha256(textsend(ROW({})::text)), 'hex'), 1, 15))::bit(60)::bigint) FROM ONLY {}",
        list(columns),
        table.quoted()
    );
    let rows = connection.query(&sql)?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

/// The values of one row as they came.
type Texts = Vec<Option<Vec<u8>>>;

/// The rows of a table in the order of their keys, or of all their values. The server sends no more than the link holds until they
/// are read.
struct Ordered<'c> {
    /// None when there is no row any more.
    connection: Option<&'c mut Connection>,
    columns: &'c Columns,
    at: Option<Texts>,
}

impl<'c> Ordered<'c> {
    /// A table that is not there has no rows.
    fn open(
        mut connection: Option<&'c mut Connection>,
        of: &'c Compared,
        list: &str,
    ) -> PgResult<Self> {
        let columns = &of.columns;
        // By their places: a column of the second database may be none of the first.
        let by: Vec<String> = ordering(columns)
            .map(|column| format!("textsend(c{column})"))
            .collect();
        let names: Vec<String> = (0..columns.names.len())
            .map(|column| format!("c{column}"))
            .collect();
        let table = of.table.quoted();
        let rows = match names.is_empty() {
            true => format!("SELECT FROM ONLY {table}"),
            false => format!(
                "SELECT * FROM (SELECT {list} FROM ONLY {table}) AS x ({}) ORDER BY {}",
                names.join(", "),
                by.join(", ")
            ),
        };
        if let Some(connection) = &mut connection {
            connection.ask(&rows)?;
        }
        Ok(Self {
            connection,
            columns,
            at: None,
        })
    }
}

/// The columns by which rows are ordered.
fn ordering(columns: &Columns) -> impl Iterator<Item = usize> {
    let all = 0..columns.names.len();
    let keyless = columns.key.is_empty().then_some(all);
    let key = columns.key.iter().copied();
    key.chain(keyless.into_iter().flatten())
}

impl RowCursor for Ordered<'_> {
    type Error = PgError;
    type Found = Row;

    fn step(&mut self) -> PgResult<()> {
        self.at = None;
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        match connection.next_row()? {
            None => self.connection = None,
            Some(frame) => {
                let row = wire::columns(&frame.body).ok_or_else(unexpected)?;
                self.at = Some(row.iter().map(|value| value.map(<[u8]>::to_vec)).collect());
            }
        }
        Ok(())
    }

    fn is_past(&self) -> bool {
        self.at.is_none()
    }

    fn order(&self, other: &Self) -> Ordering {
        let (Some(one), Some(other)) = (&self.at, &other.at) else {
            return Ordering::Equal;
        };
        // Nothing comes last, as the server has it.
        let order = |column: usize| {
            let (one, other) = (&one[column], &other[column]);
            (one.is_none(), one).cmp(&(other.is_none(), other))
        };
        let differs = |order: &Ordering| *order != Ordering::Equal;
        let first = ordering(self.columns).map(order).find(differs);
        first.unwrap_or(Ordering::Equal)
    }

    fn is_same(&self, other: &Self) -> PgResult<bool> {
        Ok(self.at == other.at)
    }

    fn row(&self) -> PgResult<Row> {
        let texts = self.at.iter().flatten();
        let values = texts.zip(&self.columns.reads);
        Ok(values
            .map(|(text, read)| value(*read, text.as_deref()))
            .collect())
    }
}

/// The rows of one table that differ; `old` with how its columns are read.
fn differing(
    old: Option<(&mut Connection, &str)>,
    new: &mut Connection,
    of: &Compared,
    number: usize,
) -> PgResult<Vec<Changed>> {
    let (old, old_list) = old.unzip();
    let mut old = Ordered::open(old, of, old_list.unwrap_or_default())?;
    let mut new = Ordered::open(Some(new), of, &list(&of.columns))?;
    let (mut found, mut copies) = (Vec::new(), Copies::default());
    differ::compare(&mut old, &mut new, |before, after| {
        let swap = RowSwap {
            table: number as u32,
            rowid: None,
            before,
            after,
        };
        let key = of.key(&swap, &mut copies);
        found.push(Changed { swap, key });
    })?;
    Ok(found)
}

/// What a table holds now of these rows, by their keys; with every column, or only with those that were there before.
pub(super) fn present<'k>(
    connection: &mut Connection,
    of: &Compared,
    keys: impl Iterator<Item = &'k RowKey>,
    every: bool,
) -> PgResult<BTreeMap<RowKey, Row>> {
    let (mut found, columns) = (BTreeMap::new(), &of.columns);
    let key = columns.key.iter().map(|column| &columns.names[*column]);
    let names: Vec<String> = key.map(|name| identifier(name)).collect();
    let list: Vec<String> = (columns.names.iter().enumerate())
        .map(|(number, name)| match every || Some(number) < of.old {
            true => text_of(name),
            false => "NULL".to_owned(),
        })
        .collect();
    let one = |key: &RowKey| match key {
        RowKey::Values(values) => {
            let values: Vec<String> = values.iter().map(sql_value).collect();
            Some(format!("({})", values.join(", ")))
        }
        RowKey::Copy(..) => None,
    };
    let wanted: Vec<String> = keys.filter_map(one).collect();
    for batch in wanted.chunks(BATCH) {
        let sql = format!(
            "SELECT {} FROM ONLY {} WHERE ({}) IN ({})",
            list.join(", "),
            of.table.quoted(),
            names.join(", "),
            batch.join(", ")
        );
        connection.each_row(&sql, |row| {
            let row = row_of(row, columns);
            found.insert(key_of(&row, columns, &mut Copies::default()), row);
            Ok(())
        })?;
    }
    Ok(found)
}

/// How often a table without a key holds a row, with every column, or only with those that were there before.
pub(super) fn copies(
    connection: &mut Connection,
    of: &Compared,
    row: &Row,
    every: bool,
) -> PgResult<u64> {
    let quoted = of.table.quoted();
    let some = if every {
        row.len()
    } else {
        of.old.unwrap_or(0)
    };
    let kept = of.columns.names.iter().zip(row).take(some);
    let is = |(name, value): (&String, &Value)| {
        format!(
            "{} IS NOT DISTINCT FROM {}",
            text_of(name),
            sql_value(value)
        )
    };
    let parts: Vec<String> = std::iter::once("true".to_owned())
        .chain(kept.map(is))
        .collect();
    let sql = format!(
        "SELECT count(*) FROM ONLY {quoted} WHERE {}",
        parts.join(" AND ")
    );
    let count = connection.value(&sql)?;
    Ok(count.and_then(|count| count.parse().ok()).unwrap_or(0))
}
