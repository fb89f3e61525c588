//! The rows in which two databases of one server differ: both are read in the order of their keys, side by side, so that memory grows
//! with what differs and not with a table. A table whose rows have one sum in both is not read.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::super::super::sql::record::RowSwap;
use super::super::super::sql::{Row, RowKey, identifier, row_change};
use super::super::connect::{Connection, PgError, PgResult, literal};
use super::super::holder::changes::{self, Columns, Table, columns, key_of, value};
use super::super::holder::redo::{RowWriter, sql_value};
use crate::model::Change;

/// How many rows are fetched at once.
const FETCHED: usize = 1000;

/// A table that was compared, with the columns that it has in the second database.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Compared {
    pub(super) table: Table,
    pub(super) columns: Columns,
    /// Which of the columns the first database has too; none of them where the table is new.
    pub(super) kept: Vec<bool>,
}

impl Compared {
    pub(super) fn is_new(&self) -> bool {
        !self.kept.contains(&true)
    }

    /// Whether the first database has all of its columns.
    pub(super) fn is_same(&self) -> bool {
        !self.kept.contains(&false)
    }

    /// Whether two rows are the same in what both databases have.
    pub(super) fn agree(&self, one: Option<&Row>, other: Option<&Row>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => {
                let mut all = one.iter().zip(other).zip(&self.kept);
                all.all(|((one, other), kept)| !kept || one == other)
            }
            (one, other) => one.is_none() && other.is_none(),
        }
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
    pub(super) fn key(&self, swap: &RowSwap, copies: &mut BTreeMap<String, u32>) -> RowKey {
        let row = swap.before.as_ref().or(swap.after.as_ref());
        key_of(
            row.map(Vec::as_slice).unwrap_or_default(),
            &self.columns,
            copies,
        )
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
    /// The tables whose rows cannot be compared, and why: a commit is refused.
    pub(super) unshaped: Vec<(String, String)>,
    /// What goes with a table or with a column of it, so that the original may not have changed there.
    pub(super) frozen: Vec<Frozen>,
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
            let differs = table.kind == "m"
                && matches!(&there, Some((_, known)) if *known == columns)
                && sum(old, &table, &columns)? != sum(new, &table, &columns)?;
            if differs {
                let why = "its rows come from its query: REFRESH MATERIALIZED VIEW in the original, after the commit";
                found.unread.push((table.shown(), why.to_owned()));
            }
            continue;
        }
        let has = |name: &String| matches!(&there, Some((_, known)) if known.names.contains(name));
        let compared = Compared {
            kept: columns.names.iter().map(has).collect(),
            table,
            columns,
        };
        match there {
            Some((table, known)) if known != compared.columns => {
                if known.names.iter().any(|name| !compared.has(name)) {
                    found.frozen.push(frozen(old, table, known.clone())?);
                }
                if let Err(why) = compared.is_comparable(&known) {
                    found.unshaped.push((compared.table.shown(), why));
                    continue;
                }
                let list = old_list(new, &compared)?;
                for side in [&mut *old, &mut *new] {
                    side.query("SAVEPOINT escrow_shape")?;
                }
                match differing(Some((old, &list)), new, &compared, found.tables.len()) {
                    Ok(changed) => found.changed.extend(changed),
                    // Such as a default that asks a function which the first one has not.
                    Err(error) if error.code.is_some() => {
                        for side in [&mut *old, &mut *new] {
                            side.query("ROLLBACK TO SAVEPOINT escrow_shape")?;
                        }
                        let shown = compared.table.shown();
                        found.unshaped.push((shown, error.to_string()));
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            Some((table, known)) => {
                if sum(old, &table, &known)? == sum(new, &compared.table, &known)? {
                    continue;
                }
                let (list, number) = (list(&known), found.tables.len());
                let changed = differing(Some((old, &list)), new, &compared, number)?;
                found.changed.extend(changed);
            }
            None => {
                let changed = differing(None, new, &compared, found.tables.len())?;
                found.changed.extend(changed);
            }
        }
        found.tables.push(compared);
    }
    for (table, columns) in before.into_values().filter(|(table, _)| table.kind == "r") {
        found.frozen.push(frozen(old, table, columns)?);
    }
    Ok(found)
}

impl Compared {
    fn has(&self, name: &String) -> bool {
        self.columns.names.contains(name)
    }

    /// Whether rows of another shape can be told apart as these are.
    fn is_comparable(&self, known: &Columns) -> Result<(), String> {
        let named = |of: &Columns| -> Vec<String> {
            let names = of.key.iter().map(|column| of.names[*column].clone());
            names.collect()
        };
        match () {
            () if self.is_new() => Err("none of its columns is as it was".to_owned()),
            () if named(known) != named(&self.columns) => Err("its key was changed".to_owned()),
            () => Ok(()),
        }
    }
}

/// The columns of the second database as the first one would have them, had they been added there.
fn old_list(new: &mut Connection, of: &Compared) -> PgResult<String> {
    let sql = format!(
        "SELECT a.attname, pg_catalog.pg_get_expr(d.adbin, d.adrelid), pg_catalog.format_type(a.atttypid, a.atttypmod) \
         FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
         WHERE a.attrelid = {} AND a.attgenerated = ''",
        of.table.oid
    );
    let mut defaults = BTreeMap::new();
    for row in new.query(&sql)? {
        if let [Some(name), Some(value), Some(kind)] = &row[..] {
            defaults.insert(
                name.clone(),
                format!("(({value})::{kind})::pg_catalog.text"),
            );
        }
    }
    let one = |(name, kept): (&String, &bool)| match (kept, defaults.get(name)) {
        (true, _) => text_of(name),
        (false, Some(default)) => default.clone(),
        (false, None) => "NULL::pg_catalog.text".to_owned(),
    };
    let all: Vec<String> = of.columns.names.iter().zip(&of.kept).map(one).collect();
    Ok(all.join(", "))
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
        "SELECT pg_catalog.to_regclass({})::oid",
        literal(&table.quoted())
    );
    let oid = connection.value(&sql)?;
    oid.map(|oid| columns(connection, &oid)).transpose()
}

fn text_of(name: &str) -> String {
    format!("{}::pg_catalog.text", identifier(name))
}

/// The values of a row as texts.
fn list(columns: &Columns) -> String {
    let all: Vec<String> = columns.names.iter().map(|name| text_of(name)).collect();
    all.join(", ")
}

fn frozen(connection: &mut Connection, table: Table, columns: Columns) -> PgResult<Frozen> {
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

/// The rows of a table in their order, some at a time.
struct Ordered<'c> {
    connection: &'c mut Connection,
    waiting: VecDeque<Texts>,
    ended: bool,
}

impl<'c> Ordered<'c> {
    fn open(
        connection: &'c mut Connection,
        of: &Compared,
        list: &str,
        by: &[usize],
    ) -> PgResult<Self> {
        // By their places: a column of the second database may be none of the first.
        let by: Vec<String> = by
            .iter()
            .map(|column| format!("textsend(c{column})"))
            .collect();
        let names: Vec<String> = (0..of.kept.len())
            .map(|column| format!("c{column}"))
            .collect();
        let order = match by.is_empty() {
            true => String::new(),
            false => format!(" ORDER BY {}", by.join(", ")),
        };
        let rows = match names.is_empty() {
            true => format!("SELECT FROM ONLY {}", of.table.quoted()),
            false => format!(
                "SELECT * FROM (SELECT {list} FROM ONLY {}) AS x ({}){order}",
                of.table.quoted(),
                names.join(", ")
            ),
        };
        let declare = format!("DECLARE escrow_rows NO SCROLL CURSOR FOR {rows}");
        connection.query(&declare)?;
        Ok(Self {
            connection,
            waiting: VecDeque::new(),
            ended: false,
        })
    }

    fn next(&mut self) -> PgResult<Option<Texts>> {
        if self.waiting.is_empty() && !self.ended {
            let waiting = &mut self.waiting;
            let fetch = format!("FETCH {FETCHED} FROM escrow_rows");
            self.connection.each_row(&fetch, |row| {
                waiting.push_back(row.iter().map(|value| value.map(<[u8]>::to_vec)).collect());
                Ok(())
            })?;
            self.ended = self.waiting.len() < FETCHED;
            if self.ended {
                self.connection.query("CLOSE escrow_rows")?;
            }
        }
        Ok(self.waiting.pop_front())
    }
}

/// The rows of one table that differ; `old` with how its columns are read.
fn differing(
    old: Option<(&mut Connection, &str)>,
    new: &mut Connection,
    of: &Compared,
    number: usize,
) -> PgResult<Vec<Changed>> {
    let columns = &of.columns;
    let by: Vec<usize> = match columns.key.is_empty() {
        true => (0..columns.names.len()).collect(),
        false => columns.key.clone(),
    };
    // Nothing comes last, as the server has it.
    let order = |one: &Texts, other: &Texts| {
        let mut all = by.iter().map(|column| (&one[*column], &other[*column]));
        let differs = |(one, other): (&Option<Vec<u8>>, &Option<Vec<u8>>)| {
            let order = (one.is_none(), one).cmp(&(other.is_none(), other));
            (order != Ordering::Equal).then_some(order)
        };
        all.find_map(differs).unwrap_or(Ordering::Equal)
    };
    let read = |row: Texts| -> Row {
        let values = row.iter().zip(&columns.reads);
        let values = values.map(|(text, read)| value(*read, text.as_deref()));
        values.collect()
    };
    let old = old.map(|(old, list)| Ordered::open(old, of, list, &by));
    let (mut old, all) = (old.transpose()?, list(columns));
    let mut new = Ordered::open(new, of, &all, &by)?;
    let mut left = next(&mut old)?;
    let mut right = new.next()?;
    let (mut found, mut copies) = (Vec::new(), BTreeMap::new());
    loop {
        let which = match (&left, &right) {
            (None, None) => return Ok(found),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => order(left, right),
        };
        let (mut before, mut after) = (None, None);
        if which != Ordering::Greater {
            before = left.take();
            left = next(&mut old)?;
        }
        if which != Ordering::Less {
            after = right.take();
            right = new.next()?;
        }
        if before != after {
            let swap = RowSwap {
                table: number as u32,
                rowid: None,
                before: before.map(read),
                after: after.map(read),
            };
            let key = of.key(&swap, &mut copies);
            found.push(Changed { swap, key });
        }
    }
}

fn next(rows: &mut Option<Ordered<'_>>) -> PgResult<Option<Texts>> {
    rows.as_mut().map_or(Ok(None), Ordered::next)
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
    let list: Vec<String> = (columns.names.iter().zip(&of.kept))
        .map(|(name, kept)| match every || *kept {
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
    for batch in wanted.chunks(FETCHED / 2) {
        let sql = format!(
            "SELECT {} FROM ONLY {} WHERE ({}) IN ({})",
            list.join(", "),
            of.table.quoted(),
            names.join(", "),
            batch.join(", ")
        );
        connection.each_row(&sql, |row| {
            let values = row.iter().zip(&columns.reads);
            let row: Row = values.map(|(text, read)| value(*read, *text)).collect();
            found.insert(key_of(&row, columns, &mut BTreeMap::new()), row);
            Ok(())
        })?;
    }
    Ok(found)
}

/// How often a table without a key holds a row, as far as the first database has its columns.
pub(super) fn copies(connection: &mut Connection, of: &Compared, row: &Row) -> PgResult<u64> {
    let quoted = of.table.quoted();
    let all = of.columns.names.iter().zip(row).zip(&of.kept);
    let kept = all.filter(|(_, kept)| **kept).map(|(column, _)| column);
    let is = |(name, value): (&String, &crate::strategy::sql::Value)| {
        format!(
            "{} IS NOT DISTINCT FROM {}",
            text_of(name),
            sql_value(value)
        )
    };
    let parts: Vec<String> = kept.map(is).collect();
    let sql = format!(
        "SELECT count(*) FROM ONLY {quoted} WHERE {}",
        parts.join(" AND ")
    );
    let count = connection.value(&sql)?;
    Ok(count.and_then(|count| count.parse().ok()).unwrap_or(0))
}
