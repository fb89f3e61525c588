//! What a held transaction changed of definitions: of tables, functions, types, roles, comments, and everything else that is
//! a row of a catalog.
//!
//! Every catalog of the server is compared, whatever its name: rows that the transaction wrote, and rows that are gone. A row belongs to
//! something that has a name, such as a column to its table, and that is what is shown, with what its definition says. What belongs to nothing that is known here
//! is shown by the name of its catalog. So nothing is passed over because it is not on a list; two catalogs are left out, which
//! hold what `ANALYZE` counted.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::super::sql::{UNREAD, identifier, part_item, table_item, text_change};
use super::super::connect::{Connection, PgResult, literal};
use super::backend::Backend;
use super::changes::{digest_of, drop_present, readable, shown, texts};
use super::written::{Side, constraints, written};
use crate::model::{Change, Detail, ResourcePath};

/// What `ANALYZE` counted, which the server does by itself.
const COUNTED: &str = "'pg_statistic', 'pg_statistic_ext_data'";

/// Written with everything else. What only these say, members of extensions and who owns a sequence, belongs to what depends.
const DEPENDENCIES: [&str; 2] = ["pg_depend", "pg_shdepend"];

/// What of a row in `pg_class` is no definition.
const VOLATILE: &str = "{relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid,relhasindex,relhasrules,\
                        relhastriggers,relhassubclass,relchecks,relnatts,relfilenode,relrewrite}";

/// The catalogs whose rows belong to something in another one: what is joined, the catalog, the number there.
const OWNERS: &str = "
pg_class                | LEFT JOIN pg_catalog.pg_class o ON o.reltoastrelid = x.oid AND x.relkind = 't' | 'pg_class' | coalesce(o.oid, x.oid)
pg_attribute            |  | 'pg_class' | x.attrelid
pg_attrdef              |  | 'pg_class' | x.adrelid
pg_index                |  | 'pg_class' | x.indexrelid
pg_inherits             |  | 'pg_class' | x.inhrelid
pg_sequence             |  | 'pg_class' | x.seqrelid
pg_partitioned_table    |  | 'pg_class' | x.partrelid
pg_foreign_table        |  | 'pg_class' | x.ftrelid
pg_enum                 |  | 'pg_type' | x.enumtypid
pg_range                |  | 'pg_type' | x.rngtypid
pg_aggregate            |  | 'pg_proc' | x.aggfnoid::pg_catalog.oid
pg_publication_rel      |  | 'pg_publication' | x.prpubid
pg_ts_config_map        |  | 'pg_ts_config' | x.mapcfg
pg_largeobject          |  | 'pg_largeobject_metadata' | x.loid
pg_description          | LEFT JOIN pg_catalog.pg_class o ON o.oid = x.classoid | o.relname::pg_catalog.text | x.objoid
pg_seclabel             | LEFT JOIN pg_catalog.pg_class o ON o.oid = x.classoid | o.relname::pg_catalog.text | x.objoid
pg_init_privs           | LEFT JOIN pg_catalog.pg_class o ON o.oid = x.classoid | o.relname::pg_catalog.text | x.objoid
pg_depend               | LEFT JOIN pg_catalog.pg_class o ON o.oid = x.classid AND (x.deptype IN ('e', 'x') OR x.deptype = 'a' \
    AND EXISTS (SELECT FROM pg_catalog.pg_sequence s WHERE s.seqrelid = x.objid)) \
    | coalesce(o.relname::pg_catalog.text, 'pg_depend') | CASE WHEN o.oid IS NULL THEN 0 ELSE x.objid END
pg_constraint           |  | CASE WHEN x.conrelid <> 0 THEN 'pg_class' WHEN x.contypid <> 0 THEN 'pg_type' ELSE 'pg_constraint' END \
    | coalesce(nullif(x.conrelid, 0), nullif(x.contypid, 0), x.oid)
pg_rewrite              |  | CASE WHEN x.rulename = '_RETURN' THEN 'pg_class' ELSE 'pg_rewrite' END \
    | CASE WHEN x.rulename = '_RETURN' THEN x.ev_class ELSE x.oid END
pg_trigger              | LEFT JOIN pg_catalog.pg_constraint o ON o.oid = x.tgconstraint \
    | CASE WHEN x.tgisinternal THEN 'pg_class' ELSE 'pg_trigger' END \
    | CASE WHEN x.tgisinternal THEN coalesce(nullif(o.conrelid, 0), x.tgrelid) ELSE x.oid END
pg_type                 | LEFT JOIN pg_catalog.pg_type e ON e.oid = x.typelem AND x.typcategory = 'A' \
    | CASE WHEN coalesce(nullif(x.typrelid, 0), e.typrelid, 0) <> 0 THEN 'pg_class' ELSE 'pg_type' END \
    | coalesce(nullif(x.typrelid, 0), nullif(e.typrelid, 0), e.oid, x.oid)";

/// What is known of a catalog's owner: what is joined, the catalog, the number there.
fn owner(catalog: &str) -> Option<[&'static str; 3]> {
    OWNERS.lines().find_map(|line| {
        let mut parts = line.split('|').map(str::trim);
        (parts.next() == Some(catalog)).then_some(())?;
        Some([parts.next()?, parts.next()?, parts.next()?])
    })
}

/// The catalogs of which the server says what each row is called.
const IDENTIFIED: &str = "pg_am pg_cast pg_collation pg_constraint pg_conversion pg_default_acl pg_event_trigger pg_extension \
    pg_foreign_data_wrapper pg_foreign_server pg_language pg_namespace pg_opclass pg_operator pg_opfamily pg_publication pg_rewrite \
    pg_statistic_ext pg_transform pg_ts_config pg_ts_dict pg_ts_parser pg_ts_template";

/// What has a definition, by its catalog and its number there; the number 0 is the catalog itself.
type Key = (String, String);

/// Its name and its kind, where its rows are, and the table that it belongs to.
#[derive(Clone, PartialEq, Eq)]
struct Object {
    schema: String,
    name: String,
    kind: String,
    file: String,
    table: String,
    /// What its definition says, as far as that is written.
    sql: String,
}

impl Object {
    /// The name that people use.
    fn shown(&self) -> String {
        match self.table.as_str() {
            "" => shown(&self.schema, &self.name),
            table => format!("{}/{}", shown(&self.schema, table), self.name),
        }
    }
}

/// A catalog of the server.
struct Catalog {
    name: String,
    /// Its rows have numbers.
    numbered: bool,
    readable: bool,
    /// The transaction has a writing lock on it.
    locked: bool,
    /// Its columns that are functions, by their numbers: the names of several can be the same.
    functions: String,
}

/// What was found.
pub(super) struct Definitions {
    pub(super) changes: Vec<Change>,
    /// The numbers of relations that are new.
    pub(super) new: Vec<String>,
    /// The numbers of types that were changed.
    pub(super) types: Vec<String>,
}

/// Everything that was changed of definitions; `own` is the condition of a row that the transaction wrote.
pub(super) fn definitions(backend: &mut Backend, own: &str) -> PgResult<Definitions> {
    let catalogs = catalogs(&mut backend.connection)?;
    // A superuser can make more of them.
    let catalogs_before = self::catalogs(&mut backend.base)?;
    let own = own.replace("(xmin)", "(x.xmin)");
    let now = rows(&mut backend.connection, &catalogs, &own)?;
    let mut before = rows(
        &mut backend.base,
        &catalogs_before,
        "x.xmax <> '0'::pg_catalog.xid",
    )?;
    for (catalog, rows) in &mut before {
        let quoted = format!("pg_catalog.{}", identifier(catalog));
        drop_present(&mut backend.connection, &quoted, rows)?;
    }
    let (said, said_before) = (by_key(&now), by_key(&before));
    let mut differing = differing(&said, &said_before);
    let (only, rest): (Vec<Key>, Vec<Key>) = differing
        .drain(..)
        .partition(|(catalog, _)| DEPENDENCIES.contains(&catalog.as_str()));
    let mut keys = if rest.is_empty() { only } else { rest };
    let unread = catalogs.iter().filter(|one| !one.readable && one.locked);
    keys.extend(unread.map(|one| (one.name.clone(), "0".to_owned())));
    let mut now = objects(&mut backend.connection, &keys, Side::After)?;
    let mut before = objects(&mut backend.base, &keys, Side::Before)?;
    let tables = keys.iter().filter(|(class, _)| class == "pg_class");
    let tables = tables.filter(is_number);
    let tables: Vec<&str> = tables.map(|(_, number)| number.as_str()).collect();
    let [made, gone] = constraints(&mut backend.base, &mut backend.connection, &tables)?;
    for (objects, lines) in [(&mut now, made), (&mut before, gone)] {
        for (table, line) in lines {
            if let Some(object) = objects.get_mut(&("pg_class".to_owned(), table)) {
                object.sql.push('\n');
                object.sql.push_str(&line);
            }
        }
    }
    let mut found = Definitions {
        changes: Vec::new(),
        new: Vec::new(),
        types: keys
            .iter()
            .filter(|(class, _)| class == "pg_type")
            .filter(is_number)
            .map(|(_, number)| number.clone())
            .collect(),
    };
    let mut by_path: BTreeMap<ResourcePath, PathChange> = BTreeMap::new();
    for key in &keys {
        let (old, new) = (before.get(key), now.get(key));
        if key.0 == "pg_class" && old.is_none() {
            found.new.push(key.1.clone());
        }
        // Of what the server keeps for itself there is no change that is not one of the thing it is kept for.
        let mut known = old.into_iter().chain(new).peekable();
        let kept = |one: &Object| one.schema == "pg_toast" && one.kind != "table";
        if known.peek().is_some() && known.all(kept) {
            continue;
        }
        let mut kept = said.get(key).cloned().unwrap_or_default();
        let mut uncounted = false;
        // What a sequence counts that is new, or was begun anew, is part of the transaction.
        if let Some(new) = new.filter(|new| new.kind == "sequence")
            && old.is_none_or(|old| old.file != new.file)
        {
            let counted = counted(&mut backend.connection, &key.1)?;
            uncounted = counted.is_none();
            kept.extend(counted.map(|value| ("value".to_owned(), value)));
        }
        let gone = said_before.get(key).cloned().unwrap_or_default();
        let path = path_of(&key.0, new.or(old));
        let unread = catalogs
            .iter()
            .any(|one| one.name == key.0 && !one.readable);
        let change = by_path.entry(path).or_default();
        change.add(&key.0, (old, new), (kept, gone));
        change.unread |= unread || uncounted;
    }
    let changes = by_path.into_iter().map(|(path, one)| one.into_change(path));
    found.changes.extend(changes);
    Ok(found)
}

/// How far a sequence has counted, if this role may read it.
fn counted(connection: &mut Connection, number: &str) -> PgResult<Option<String>> {
    let Some(name) = readable(connection, &[number])?.remove(number) else {
        return Ok(None);
    };
    connection.value(&format!(
        "SELECT pg_catalog.concat_ws(' ', last_value, is_called) FROM {name}"
    ))
}

/// What was changed under one path: usually one thing, or one that was dropped and another one that has its name now.
#[derive(Default)]
struct PathChange {
    kind: String,
    before: Vec<String>,
    after: Vec<String>,
    /// What its rows say, and what those said that are gone.
    content: Vec<(Said, Said)>,
    /// This role may not read what its rows say.
    unread: bool,
}

impl PathChange {
    fn add(
        &mut self,
        catalog: &str,
        (old, new): (Option<&Object>, Option<&Object>),
        content: (Said, Said),
    ) {
        if old.or(new).is_none() {
            self.kind = "catalog".to_owned();
            self.before = vec![format!("rows of {catalog}")];
            self.after = vec![format!("rows of {catalog}: changed")];
        }
        let named = |one: &Object| format!("{} {}", one.kind, one.shown());
        let sql = |one: &Object| match one.sql.trim() {
            "" => String::new(),
            sql => format!("\n{sql}"),
        };
        if let Some(one) = new.or(old) {
            self.kind.clone_from(&one.kind);
        }
        self.before
            .extend(old.map(|old| format!("{}{}", named(old), sql(old))));
        self.after
            .extend(new.map(|new| format!("{}: {}{}", named(new), how(old, new), sql(new))));
        self.content.push(content);
    }

    fn into_change(self, path: ResourcePath) -> Change {
        let text = |parts: &[String]| (!parts.is_empty()).then(|| parts.join("\n"));
        let (before, after) = (text(&self.before), text(&self.after));
        let mut change = text_change(path, &self.kind, before.as_deref(), after.as_deref());
        if let Detail::Opaque { detail, .. } = &mut change.detail {
            let content = json!(self.content).to_string();
            if self.unread {
                detail[UNREAD] = true.into();
            }
            detail["digest"] = blake3::hash(content.as_bytes()).to_hex().as_str().into();
        }
        change
    }
}

fn catalogs(connection: &mut Connection) -> PgResult<Vec<Catalog>> {
    let sql = format!(
        "SELECT c.relname, EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'oid')::text, \
         pg_catalog.has_table_privilege(c.oid, 'SELECT')::text, \
         EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE l.pid = pg_catalog.pg_backend_pid() AND l.relation = c.oid \
         AND l.mode NOT IN ('AccessShareLock', 'RowShareLock'))::text, \
         (SELECT pg_catalog.string_agg(pg_catalog.format(', x.%I::pg_catalog.oid', a.attname), '' ORDER BY a.attnum) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.atttypid = 24) \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'pg_catalog' AND c.relkind = 'r' AND c.relname NOT IN ({COUNTED}) ORDER BY 1"
    );
    let rows = connection.query(&sql)?;
    let one = |row| {
        let [name, numbered, readable, locked, functions] =
            texts(row).try_into().unwrap_or_default();
        Catalog {
            name,
            numbered: numbered == "true",
            readable: readable == "true",
            locked: locked == "true",
            functions,
        }
    };
    Ok(rows.into_iter().map(one).collect())
}

/// Rows of catalogs: the place of each, and to what it belongs with the digest of what it says.
type Rows = BTreeMap<String, Vec<(String, (Key, String))>>;

fn rows(connection: &mut Connection, catalogs: &[Catalog], condition: &str) -> PgResult<Rows> {
    let select = |catalog: &Catalog| {
        let (name, quoted) = (literal(&catalog.name), identifier(&catalog.name));
        let (join, class, number) = match owner(&catalog.name) {
            Some(known) => known,
            None if catalog.numbered => ["", name.as_str(), "x.oid"],
            None => ["", name.as_str(), "0"],
        }
        .into();
        let said = match catalog.name.as_str() {
            "pg_class" => format!(
                "pg_catalog.to_jsonb(x) - '{VOLATILE}'::pg_catalog.text[], \
                 CASE WHEN x.relkind IN ('r', 'm', 'S') THEN x.relfilenode ELSE 0 END"
            ),
            _ => format!("x.*{}", catalog.functions),
        };
        format!(
            "SELECT {name}, x.ctid, coalesce({class}, {name}), pg_catalog.format('%s', {number}), \
             {} FROM pg_catalog.{quoted} x {join} WHERE {condition}",
            digest_of(&said)
        )
    };
    let readable = catalogs.iter().filter(|one| one.readable);
    let selects: Vec<String> = readable.map(select).collect();
    let mut found = Rows::new();
    for row in connection.query(&selects.join(" UNION ALL "))? {
        let [catalog, place, class, number, digest] = texts(row).try_into().unwrap_or_default();
        let rows = found.entry(catalog).or_default();
        rows.push((place, ((class, number), digest)));
    }
    Ok(found)
}

/// What the rows of one thing say: of each its catalog and its digest, in order.
type Said = Vec<(String, String)>;

fn by_key(rows: &Rows) -> BTreeMap<Key, Said> {
    let mut found: BTreeMap<Key, Said> = BTreeMap::new();
    for (catalog, rows) in rows {
        for (_, (key, digest)) in rows {
            let said = (catalog.clone(), digest.clone());
            found.entry(key.clone()).or_default().push(said);
        }
    }
    found.values_mut().for_each(|said| said.sort());
    found
}

/// What says something else than before.
fn differing(now: &BTreeMap<Key, Said>, before: &BTreeMap<Key, Said>) -> Vec<Key> {
    let mut keys: Vec<&Key> = now.keys().chain(before.keys()).collect();
    keys.sort();
    keys.dedup();
    let differs = |key: &&&Key| now.get(**key) != before.get(**key);
    keys.iter()
        .filter(differs)
        .map(|key| (*key).clone())
        .collect()
}

/// Whether what has a definition has a number of its own.
fn is_number((_, number): &&Key) -> bool {
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// What there is of these, with names.
fn objects(
    connection: &mut Connection,
    keys: &[Key],
    side: Side,
) -> PgResult<BTreeMap<Key, Object>> {
    let mut by_class: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (class, number) in keys.iter().filter(is_number) {
        by_class.entry(class).or_default().push(number);
    }
    let mut found = BTreeMap::new();
    for (class, numbers) in by_class {
        let Some(sql) = names(class) else {
            continue;
        };
        let sql = format!("{sql} ({})", numbers.join(","));
        let mut said = written(connection, class, &numbers, side)?;
        for row in connection.query(&sql)? {
            let [number, schema, name, kind, file, table] =
                texts(row).try_into().unwrap_or_default();
            let object = Object {
                sql: said.remove(&number).unwrap_or_default(),
                schema,
                name,
                kind,
                file,
                table,
            };
            found.insert((class.to_owned(), number), object);
        }
    }
    Ok(found)
}

/// How rows of a catalog are called, up to the list of their numbers; nothing where that is not known.
fn names(class: &str) -> Option<String> {
    let of_table = |table: &str, name: &str, of: &str, kind: &str| {
        format!(
            "SELECT x.oid, n.nspname, x.{name}, '{kind}', '', c.relname FROM pg_catalog.{table} x \
             JOIN pg_catalog.pg_class c ON c.oid = x.{of} JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE x.oid IN"
        )
    };
    Some(match class {
        "pg_class" => "SELECT x.oid, n.nspname, x.relname, CASE x.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'table' \
             WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'S' THEN 'sequence' WHEN 'i' THEN 'index' \
             WHEN 'I' THEN 'index' WHEN 'f' THEN 'foreign table' WHEN 't' THEN 'toast' ELSE 'composite type' END, x.relfilenode, coalesce(o.relname, '') \
             FROM pg_catalog.pg_class x JOIN pg_catalog.pg_namespace n ON n.oid = x.relnamespace \
             LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = x.oid LEFT JOIN pg_catalog.pg_class o ON o.oid = i.indrelid WHERE x.oid IN"
            .to_owned(),
        "pg_proc" => "SELECT x.oid, n.nspname, x.proname || '(' || pg_catalog.pg_get_function_identity_arguments(x.oid) || ')', \
             'function', '', '' FROM pg_catalog.pg_proc x JOIN pg_catalog.pg_namespace n ON n.oid = x.pronamespace WHERE x.oid IN"
            .to_owned(),
        "pg_type" => "SELECT x.oid, n.nspname, x.typname, 'type', '', '' FROM pg_catalog.pg_type x \
             JOIN pg_catalog.pg_namespace n ON n.oid = x.typnamespace WHERE x.oid IN"
            .to_owned(),
        "pg_authid" => "SELECT x.oid, '', x.rolname, 'role', '', '' FROM pg_catalog.pg_roles x WHERE x.oid IN".to_owned(),
        "pg_largeobject_metadata" => "SELECT x.oid, '', x.oid, 'large object', '', '' \
             FROM pg_catalog.pg_largeobject_metadata x WHERE x.oid IN".to_owned(),
        "pg_trigger" => of_table("pg_trigger", "tgname", "tgrelid", "trigger"),
        "pg_policy" => of_table("pg_policy", "polname", "polrelid", "policy"),
        class if IDENTIFIED.split(' ').any(|one| one == class) => format!(
            "SELECT x.oid, '', i.identity, i.type, '', '' FROM pg_catalog.{class} x, \
             LATERAL pg_catalog.pg_identify_object('pg_catalog.{class}'::pg_catalog.regclass, x.oid, 0) i WHERE x.oid IN"
        ),
        _ => return None,
    })
}

/// What became of something.
fn how(old: Option<&Object>, new: &Object) -> &'static str {
    let rows = matches!(new.kind.as_str(), "table" | "materialized view");
    let Some(old) = old else {
        return "created";
    };
    let renamed = (&old.schema, &old.name) != (&new.schema, &new.name);
    match (renamed, rows, old.file != new.file) {
        (false, false, _) => "altered",
        (true, false, _) => "renamed",
        (false, true, false) => "altered; its rows are not compared",
        (true, true, false) => "renamed; its rows are not compared",
        (false, true, true) => "emptied or written anew; its rows are not compared",
        (true, true, true) => "renamed, and emptied or written anew; its rows are not compared",
    }
}

/// Where something is shown; what has no name, by its catalog.
fn path_of(catalog: &str, object: Option<&Object>) -> ResourcePath {
    let Some(object) = object else {
        return ResourcePath::root().join(format!("catalog:{catalog}").as_bytes());
    };
    if !object.table.is_empty() {
        let table = shown(&object.schema, &object.table);
        return part_item(&table, &object.kind, &object.name);
    }
    let item = table_item(&shown(&object.schema, &object.name));
    match object.kind.as_str() {
        "table" | "view" | "materialized view" | "foreign table" => item,
        kind => {
            let word = kind.replace(' ', "_");
            let name = [word.as_bytes(), b":", item.as_bytes()].concat();
            ResourcePath::root().join(&name)
        }
    }
}
