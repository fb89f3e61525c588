//! The tables in which virtual tables keep their content.
//!
//! SQLite calls a table a shadow by its name alone: `notes_content` is one as soon as there is a full-text table `notes`, also where that
//! only takes its text from it. Which tables a module makes depends on its options. So the virtual table is made once more, in memory:
//! what comes with it is a part of it, and anything else is a table of the user's.

use std::collections::{BTreeMap, HashSet};

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;

use super::connect::Database;
use super::full_text::{FullText, squeezed};
use super::references::column_names;
use super::schema::{Object, quoted};
use crate::strategy::error::Result;
use crate::strategy::unsupported;

/// What was to be done when SQLite failed.
const WHAT: &str = "tell the parts of a virtual table";

/// Those of some tables that virtual tables made. `named` are all that SQLite takes for that by their names.
pub(super) fn owned(
    of: &Database,
    objects: &[Object],
    named: &[String],
) -> Result<HashSet<String>> {
    let mut parts: BTreeMap<String, Vec<&Object>> = BTreeMap::new();
    let tables = objects.iter().filter(|one| one.is_table());
    for table in tables.clone().filter(|one| named.contains(&one.name)) {
        let owner = table.name.rsplit_once('_').map_or("", |(owner, _)| owner);
        let owner = owner.to_ascii_lowercase();
        parts.entry(owner).or_default().push(table);
    }
    let mut all = HashSet::new();
    for (owner, parts) in parts {
        let is = |one: &&Object| one.name.eq_ignore_ascii_case(&owner);
        match tables.clone().find(is) {
            Some(owner) => all.extend(made_by(of, objects, owner, &parts)?),
            None => all.extend(parts.iter().map(|one| one.name.clone())),
        }
    }
    Ok(all)
}

/// Those of some tables that a virtual table made.
fn made_by(
    of: &Database,
    objects: &[Object],
    owner: &Object,
    parts: &[&Object],
) -> Result<Vec<String>> {
    let name = |one: &&Object| one.name.clone();
    // Where it cannot be made for lack of its source, it cannot be used either: only names are known.
    let Some((memory, source)) = made_again(of, objects, owner)? else {
        return Ok(parts.iter().map(name).collect());
    };
    let is_there = |part: &Object| {
        let found = memory.table_exists(None, part.name.as_str());
        found.map_err(of.failed(WHAT))
    };
    let run = |sql: &str| memory.execute(sql, []).map(drop).map_err(of.failed(WHAT));
    let (mut made, mut others) = (Vec::new(), Vec::new());
    for part in parts {
        let is_source = source.is_some_and(|one| one.name == part.name);
        match !is_source && is_there(part)? {
            true => made.push(name(part)),
            false => others.push(part),
        }
    }
    // FTS3 and FTS4 drop every table with such a name, whatever they made.
    for part in &others {
        run(&format!(
            "CREATE TABLE IF NOT EXISTS {} (a)",
            quoted(&part.name)
        ))?;
    }
    run(&format!("DROP TABLE {}", quoted(&owner.name)))?;
    for part in others {
        match is_there(part)? {
            true => {}
            // FTS3 makes this one later, with `automerge`.
            false if is_statistics(part) => made.push(name(part)),
            false => {
                let what = format!("work with the table '{}'", part.name);
                let why = format!(
                    "SQLite takes it for a part of the virtual table '{}' and would drop it with that: give one of them another name",
                    owner.name
                );
                return Err(unsupported("snapshot", &what, &why));
            }
        }
    }
    Ok(made)
}

fn is_statistics(table: &Object) -> bool {
    let name = table.name.to_ascii_lowercase();
    name.ends_with("_stat") && squeezed(&table.sql).ends_with("(idintegerprimarykey,valueblob)")
}

/// A database in memory with nothing but a virtual table, and with a stand-in for what it takes its text from, where it needs that. None
/// where it cannot be made.
fn made_again<'o>(
    of: &Database,
    objects: &'o [Object],
    owner: &Object,
) -> Result<Option<(Connection, Option<&'o Object>)>> {
    let open = || -> rusqlite::Result<Connection> {
        let memory = Connection::open_in_memory()?;
        memory.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        memory.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
        Ok(memory)
    };
    let memory = open().map_err(of.failed(WHAT))?;
    if memory.execute(&owner.sql, []).is_ok() {
        return Ok(Some((memory, None)));
    }
    // FTS4 can take the names of its columns from there.
    let Some(text) = FullText::read(of, owner)? else {
        return Ok(None);
    };
    let Some(source) = objects.iter().find(|one| text.is_of(one)) else {
        return Ok(None);
    };
    let columns = column_names(of, &source.name)?;
    let columns: Vec<String> = columns.iter().map(|one| quoted(one)).collect();
    let stand_in = format!(
        "CREATE TABLE {} ({})",
        quoted(&source.name),
        columns.join(", ")
    );
    let memory = open().map_err(of.failed(WHAT))?;
    let made = memory
        .execute(&stand_in, [])
        .and_then(|_| memory.execute(&owner.sql, []));
    Ok(made.is_ok().then_some((memory, Some(source))))
}
