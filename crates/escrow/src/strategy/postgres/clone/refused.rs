//! What a clone does not release exactly, and which is therefore refused by name: when a sandbox is made, and, since either database may
//! have got it since, of the clone and of the original before every commit.

use super::super::super::error::{Result, StrategyError};
use super::super::super::sql::table_item;
use super::super::connect::{Connection, PgResult};
use super::super::failed;
use crate::model::ResourcePath;

/// Everything of a database that is refused: what it is, and its name.
const REFUSED: &str = "WITH RECURSIVE r AS (SELECT oid AS type, oid AS base, -1 AS mod FROM pg_catalog.pg_type UNION ALL \
    SELECT r.type, t.typbasetype, t.typtypmod FROM r JOIN pg_catalog.pg_type t ON t.oid = r.base AND t.typtype = 'd'), c AS (SELECT c.*, n.nspname || '.' || c.relname AS named FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid >= 16384 AND c.relpersistence <> 't' \
    AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema') \
    SELECT 'a partitioned table', named FROM c WHERE relkind IN ('p', 'I') UNION ALL \
    SELECT 'a table that inherits', named FROM c JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid WHERE relkind = 'r' UNION ALL \
    SELECT 'a foreign table', named FROM c WHERE relkind = 'f' UNION ALL \
    SELECT 'an unlogged table', named FROM c WHERE relkind = 'r' AND relpersistence = 'u' UNION ALL \
    SELECT 'a relation of another tablespace', named FROM c WHERE reltablespace <> 0 UNION ALL \
    SELECT 'a table of another access method', named FROM c WHERE relkind IN ('r', 'm') AND relam <> 2 UNION ALL \
    SELECT 'a table of which row security shows this role a part', named FROM c \
    WHERE relrowsecurity AND pg_catalog.row_security_active(oid) UNION ALL \
    SELECT 'a column whose cast to text is a function', named || '.' || a.attname FROM c \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
    JOIN r ON r.type = a.atttypid JOIN pg_catalog.pg_cast k ON k.castsource = r.base AND k.casttarget = 25 AND k.castmethod = 'f' AND k.oid >= 16384 \
    WHERE relkind IN ('r', 'm') UNION ALL \
    SELECT 'a column of type bpchar without a length', named || '.' || a.attname FROM c \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
    JOIN r ON r.type = a.atttypid WHERE relkind IN ('r', 'm') \
    AND r.base = 1042 AND CASE r.type WHEN 1042 THEN a.atttypmod ELSE r.mod END = -1 UNION ALL \
    SELECT 'a key of a composite type', named || '.' || a.attname FROM c JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisprimary \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) \
    JOIN r ON r.type = a.atttypid JOIN pg_catalog.pg_type t ON t.oid = r.base AND t.typtype = 'c' UNION ALL \
    SELECT 'a key of a type whose equality an extension brings', named || '.' || a.attname FROM c \
    JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisprimary \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) JOIN r ON r.type = a.atttypid \
    JOIN pg_catalog.pg_type t ON t.oid = r.base AND t.typtype = 'b' AND t.typcategory <> 'A' WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_operator o \
    LEFT JOIN pg_catalog.pg_cast k ON k.castsource = t.oid AND k.casttarget = o.oprleft AND k.castcontext = 'i' \
    WHERE o.oprname = '=' AND o.oprnamespace = 'pg_catalog'::pg_catalog.regnamespace AND o.oprleft = o.oprright AND (o.oprleft = t.oid OR k.oid IS NOT NULL)) UNION ALL \
    SELECT 'a rule', rulename || ' of ' || named FROM c JOIN pg_catalog.pg_rewrite r ON r.ev_class = c.oid AND rulename <> '_RETURN' UNION ALL \
    SELECT 'the encoding SQL_ASCII', 'database ' || datname FROM pg_catalog.pg_database \
    WHERE datname = pg_catalog.current_database() AND encoding = 0 UNION ALL \
    SELECT 'a foreign server', srvname FROM pg_catalog.pg_foreign_server UNION ALL \
    SELECT 'an event trigger', evtname FROM pg_catalog.pg_event_trigger UNION ALL \
    SELECT 'a subscription', subname FROM pg_catalog.pg_subscription s JOIN pg_catalog.pg_database d ON d.oid = s.subdbid \
    WHERE d.datname = pg_catalog.current_database() UNION ALL \
    (SELECT 'a large object', oid::text FROM pg_catalog.pg_largeobject_metadata LIMIT 1) ORDER BY 1, 2 LIMIT 1";

/// What a database holds of it, in words, with its name.
pub(super) fn found(connection: &mut Connection) -> PgResult<Option<(String, String)>> {
    let row = connection.query(REFUSED)?.into_iter().next();
    Ok(row.and_then(|row| match &row[..] {
        [Some(what), Some(name)] => Some((format!("has {what}, {name}"), name.clone())),
        _ => None,
    }))
}

/// Refuses a commit where the clone, or the original, holds something of it.
pub(super) fn check(connection: &mut Connection, whose: &str) -> Result<()> {
    match found(connection).map_err(|error| failed("be looked at", &error))? {
        None => Ok(()),
        Some((what, name)) => Err(forbidden(table_item(&name), &format!("{whose} {what}"))),
    }
}

/// Refuses a commit because of something that has a name.
pub(super) fn forbidden(path: ResourcePath, why: &str) -> StrategyError {
    StrategyError::Forbidden {
        path,
        why: format!(
            "{why}, which `snapshot` cannot commit; make that change in the original, or use the strategy transaction_rollback"
        ),
    }
}
