//! Definitions are released by running their SQL, of which SQLite keeps its own wording: `CREATE TABLE`, one space, from the name to the
//! last token. One that was edited in the schema itself (`PRAGMA writable_schema`) would be another text in the original than
//! was shown, so that no commit could find it again. It is refused before anything is decided.

use rusqlite::{Connection, OptionalExtension};

use super::plan::MergePlan;
use super::schema::{Object, Schema};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::unsupported;

/// Refuses a plan with a definition that SQLite would keep in other words, in the sandbox, where the commit takes it from, or in
/// the original, where an undo does.
pub(super) fn check(
    strategy: &str,
    plan: &MergePlan,
    (original, work): (&Schema, &Schema),
) -> Result<()> {
    let sides = [("original", original), ("sandbox", work)];
    for (number, (side, schema)) in sides.into_iter().enumerate() {
        let whole = plan.whole.iter().map(|swap| [&swap.before, &swap.after]);
        let whole = whole.filter_map(|both| both[number].as_ref());
        let single = plan.objects.iter().map(|swap| [&swap.before, &swap.after]);
        let single = single.filter_map(|both| both[number].as_ref());
        for object in whole.flat_map(|table| &table.objects).chain(single) {
            if !is_kept(schema, object) {
                return Err(refused(strategy, side, object));
            }
        }
    }
    Ok(())
}

fn refused(strategy: &str, side: &str, object: &Object) -> StrategyError {
    let (kind, name) = (&object.kind, &object.name);
    let then = match side {
        "original" => "commit again with `--on-conflict sandbox`",
        _ => "commit again",
    };
    unsupported(
        strategy,
        &format!("commit the {kind} '{name}'"),
        &format!(
            "in the {side} its SQL is not as SQLite itself writes it (it was edited with `PRAGMA writable_schema`), so SQLite \
             would not keep it as it is; make the {kind} there anew with the same SQL, then {then}"
        ),
    )
}

/// Whether SQLite keeps the SQL of an object as it is. What cannot be made on its own is not judged here.
fn is_kept(schema: &Schema, object: &Object) -> bool {
    let kept = || -> rusqlite::Result<Option<String>> {
        let scratch = Connection::open_in_memory()?;
        let owner = |one: &&Object| one.name == object.table && one.name != object.name;
        if let Some(owner) = schema.objects.values().find(owner) {
            scratch.execute_batch(&owner.sql)?;
        }
        scratch.execute_batch(&object.sql)?;
        let sql = "SELECT sql FROM sqlite_schema WHERE type = ?1 AND name = ?2";
        let found = scratch.query_row(sql, [&object.kind, &object.name], |row| row.get(0));
        found.optional()
    };
    match kept() {
        Ok(Some(kept)) => kept == object.sql,
        Ok(None) | Err(_) => true,
    }
}
