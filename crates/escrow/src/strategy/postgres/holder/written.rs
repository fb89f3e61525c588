//! What definitions say, for people: the columns of tables, the source of functions, the SQL of views, indexes, triggers, policies and constraints.
//!
//! What was there before is read from catalogs alone: the server's own functions lock what they write about, and what the transaction
//! altered is locked for every other connection. So of a view or an index that was replaced only the new version is written.

use std::collections::{BTreeMap, BTreeSet};

use super::super::connect::{Connection, PgResult};
use super::changes::texts;

/// What can be read of tables and composite types, functions and enumerated types by anybody at any time. Of a computed column only that it is one.
const PLAIN: &str = "
pg_class | (SELECT pg_catalog.string_agg(pg_catalog.format('%I %s', a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)) \
    || CASE WHEN a.attgenerated <> '' THEN ' GENERATED ALWAYS' WHEN a.attidentity <> '' THEN ' GENERATED AS IDENTITY' \
    ELSE coalesce(' DEFAULT ' || pg_catalog.pg_get_expr(d.adbin, 0), '') END \
    || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END, E'\\n' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a \
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
    WHERE a.attrelid = x.oid AND a.attnum > 0 AND NOT a.attisdropped) | x.relkind IN ('r', 'p', 'f', 'c')
pg_proc | pg_catalog.format(E'RETURNS %s LANGUAGE %s%s%s AS\\n%s', pg_catalog.format_type(x.prorettype, NULL), \
    (SELECT l.lanname FROM pg_catalog.pg_language l WHERE l.oid = x.prolang), CASE WHEN x.prosecdef THEN ' SECURITY DEFINER' ELSE '' END, \
    coalesce(' SET ' || pg_catalog.array_to_string(x.proconfig, ', '), ''), x.prosrc) | true
pg_type | (SELECT pg_catalog.string_agg(pg_catalog.quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder) \
    FROM pg_catalog.pg_enum e WHERE e.enumtypid = x.oid) | x.typtype = 'e'";

/// What the server writes of the new version.
const WRITTEN: &str = "
pg_class | CASE WHEN x.relkind IN ('v', 'm') THEN pg_catalog.pg_get_viewdef(x.oid) ELSE pg_catalog.pg_get_indexdef(x.oid) END | x.relkind IN ('v', 'm', 'i', 'I')
pg_trigger | pg_catalog.pg_get_triggerdef(x.oid) || CASE x.tgenabled WHEN 'O' THEN '' ELSE pg_catalog.format(' -- enabled: %s', x.tgenabled) END | NOT x.tgisinternal
pg_policy | pg_catalog.format('%s FOR %s TO %s USING (%s) WITH CHECK (%s)', CASE WHEN x.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END, \
    CASE x.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE' ELSE 'ALL' END, \
    (SELECT pg_catalog.string_agg(CASE r WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(r) END, ', ') FROM pg_catalog.unnest(x.polroles) r), \
    pg_catalog.pg_get_expr(x.polqual, x.polrelid), pg_catalog.pg_get_expr(x.polwithcheck, x.polrelid)) | true
pg_rewrite | pg_catalog.pg_get_ruledef(x.oid) | x.rulename <> '_RETURN'
pg_namespace | 'OWNER ' || pg_catalog.pg_get_userbyid(x.nspowner) | true";

/// Which side of a difference is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Before,
    After,
}

/// What the things of a catalog say, by their numbers.
pub(super) fn written(
    connection: &mut Connection,
    class: &str,
    numbers: &[&str],
    side: Side,
) -> PgResult<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let lists = match side {
        Side::Before => &[PLAIN][..],
        Side::After => &[PLAIN, WRITTEN],
    };
    for line in lists.iter().flat_map(|list| list.lines()) {
        let mut parts = line.split(" | ").map(str::trim);
        let (Some(of), Some(text), Some(condition)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if of != class {
            continue;
        }
        let sql = format!(
            "SELECT x.oid, {text} FROM pg_catalog.{class} x WHERE {condition} AND x.oid IN ({})",
            numbers.join(",")
        );
        for row in connection.query(&sql)? {
            let [number, text] = texts(row).try_into().unwrap_or_default();
            found.insert(number, text);
        }
    }
    Ok(found)
}

/// The constraints of tables that are new, with what they say, and those that are gone, by name: each with the number of its table.
pub(super) fn constraints(
    base: &mut Connection,
    now: &mut Connection,
    tables: &[&str],
) -> PgResult<[Vec<(String, String)>; 2]> {
    if tables.is_empty() {
        return Ok([Vec::new(), Vec::new()]);
    }
    let read = |connection: &mut Connection, says: &str| -> PgResult<Vec<[String; 3]>> {
        let sql = format!(
            "SELECT oid, conrelid, pg_catalog.format('CONSTRAINT %I', conname){says} FROM pg_catalog.pg_constraint \
             WHERE conrelid IN ({}) ORDER BY conname",
            tables.join(",")
        );
        let rows = connection.query(&sql)?;
        let one = |row| texts(row).try_into().unwrap_or_default();
        Ok(rows.into_iter().map(one).collect())
    };
    let old = read(base, "")?;
    let new = read(now, " || ' ' || pg_catalog.pg_get_constraintdef(oid)")?;
    let not_in = |one: &[[String; 3]], other: &[[String; 3]]| {
        let known: BTreeSet<&String> = other.iter().map(|[number, ..]| number).collect();
        let rest = one.iter().filter(|[number, ..]| !known.contains(number));
        rest.map(|[_, table, text]| (table.clone(), text.clone()))
            .collect()
    };
    Ok([not_in(&new, &old), not_in(&old, &new)])
}
