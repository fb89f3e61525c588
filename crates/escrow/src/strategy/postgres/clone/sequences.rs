//! Sequences that were moved on in a clone: they are shown, and moved on in the original, never back.

use serde::{Deserialize, Serialize};

use super::super::super::sql::{identifier, table_item, text_change};
use super::super::connect::{Connection, PgResult, literal};
use super::super::content::Texts;
use super::super::holder::changes::shown;
use crate::model::{Change, ResourcePath};

/// A sequence that moved on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MovedSequence {
    pub(super) shown: String,
    /// Its name, as SQL takes it.
    pub(super) quoted: String,
    pub(super) value: String,
    /// Whether the value was given, so that the next one is given next.
    pub(super) called: bool,
    /// Where it was, as it is shown, unless it is new.
    pub(super) before: Option<String>,
}

/// Where a sequence is: at the value that it gave last, or before the one that it gives next.
fn sequence_text(value: &str, called: bool) -> String {
    let next = if called { "" } else { " next" };
    format!("{value}{next}")
}

impl MovedSequence {
    pub(super) fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// How it is shown.
    pub(super) fn change(&self) -> Change {
        let (before, item) = (self.before.as_deref(), table_item(&self.shown));
        let path = [b"sequence_value:", item.as_bytes()].concat();
        let path = ResourcePath::root().join(&path);
        let after = sequence_text(&self.value, self.called);
        text_change(path, "sequence value", before, Some(&after))
    }

    /// Moves it on, never back.
    pub(super) fn move_on(&self, connection: &mut Connection) -> PgResult<()> {
        let Self {
            quoted,
            value,
            called,
            ..
        } = self;
        let name = literal(quoted);
        let sql = format!(
            "SELECT pg_catalog.setval({name}::pg_catalog.regclass, {value}, {called}) FROM {quoted} s, pg_catalog.pg_sequence p \
             WHERE p.seqrelid = {name}::pg_catalog.regclass AND (CASE WHEN p.seqincrement > 0 THEN s.last_value < {value} \
             ELSE s.last_value > {value} END OR (s.last_value = {value} AND {called} AND NOT s.is_called))"
        );
        connection.query(&sql).map(drop)
    }
}

/// The sequences of a database: schema, name, value, whether it was given, and whether it is the first one.
fn sequences(connection: &mut Connection) -> PgResult<Vec<[String; 5]>> {
    let sql = "SELECT n.nspname, c.relname, s.seqstart FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               JOIN pg_catalog.pg_sequence s ON s.seqrelid = c.oid WHERE c.relkind = 'S' AND c.relpersistence <> 't' AND n.nspname !~ '^pg_'";
    let one = |row: Vec<Option<String>>| {
        let [schema, name, start]: [String; 3] = row.map_texts();
        let from = format!("{}.{}", identifier(&schema), identifier(&name));
        let (schema, name) = (literal(&schema), literal(&name));
        format!(
            "SELECT {schema}, {name}, last_value::text, is_called::text, (last_value = {start} AND NOT is_called)::text FROM {from}"
        )
    };
    let all: Vec<String> = connection.query(sql)?.into_iter().map(one).collect();
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let rows = connection.query(&all.join(" UNION ALL "))?;
    Ok(rows.into_iter().map(Texts::map_texts).collect())
}

/// The sequences that are not where they were, or, of new ones, where they begin.
pub(super) fn moved(
    before: &mut Connection,
    after: &mut Connection,
) -> PgResult<Vec<MovedSequence>> {
    let (old, mut found) = (sequences(before)?, Vec::new());
    for [schema, name, value, called, first] in sequences(after)? {
        let known = old.iter().find(|one| one[..2] == [schema.as_str(), &name]);
        let stays = match known {
            Some([_, _, old, was, _]) => [old, was] == [&value, &called],
            None => first == "true",
        };
        if !stays {
            found.push(MovedSequence {
                quoted: format!("{}.{}", identifier(&schema), identifier(&name)),
                shown: shown(&schema, &name),
                value,
                called: called == "true",
                before: known.map(|[_, _, old, was, _]| sequence_text(old, was == "true")),
            });
        }
    }
    Ok(found)
}
