//! What SQL strategies share: values, rows, the items that name them in a diff, and how a row is written to a file.
//!
//! An item is a table (`orders`), or something of it: a row by its key (`orders/17`), an index (`orders/index:by_date`), a trigger.
//! Settings of the database are items of their own (`pragma:user_version`). Whatever the names hold, an item is a plain
//! path of the resource, and two things never have one item.

pub(super) mod differ;
pub(super) mod record;
mod sqlite;

pub(crate) use sqlite::is_database;
pub(super) use sqlite::{SqliteSnapshot, SqliteTransaction, hold};

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

use serde_json::value::RawValue;
use serde_json::{Map, Value as Json, json};

use super::error::{Result, StrategyError};
use super::{Target, unsupported};
use crate::model::digest::{VersionDigest, VersionDigests};
use crate::model::{Change, ChangeKind, Detail, ResourcePath, RowDetail};

/// What of a value is shown in a diff; a longer one is named by its length and its digest.
const SHOWN: usize = 1024;

/// The longest part of an item; a longer name or key is cut, and told apart by its digest.
const LONGEST: usize = 200;

/// The key of a change, of something that is no row, that says that it does not show everything that it releases.
pub(super) const UNREAD: &str = "$unread";

/// One value of a row. Two are equal when class and bytes are (rule Q4): 1 is not 1.0, and text is not a blob.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Value {
    /// No value.
    Null,
    /// A whole number.
    Integer(i64),
    /// A floating-point number, by its bits.
    Real(u64),
    /// Text; not every database makes sure that it is UTF-8.
    Text(Vec<u8>),
    /// Bytes.
    Blob(Vec<u8>),
}

/// The values of a row, in the order of the columns of its table.
pub(super) type Row = Vec<Value>;

impl Value {
    /// It as JSON: what has no JSON of its own is an object with one key, `$blob`, `$text` or `$real`.
    pub(super) fn json(&self) -> Json {
        match self {
            Self::Null => Json::Null,
            Self::Integer(number) => json!(number),
            Self::Real(bits) => {
                let number = f64::from_bits(*bits);
                match number.is_finite() {
                    true => json!(number),
                    false => json!({"$real": number.to_string()}),
                }
            }
            Self::Text(text) => match std::str::from_utf8(text) {
                Ok(text) => json!(text),
                Err(_) => json!({"$text": hex(text)}),
            },
            Self::Blob(bytes) => json!({"$blob": hex(bytes)}),
        }
    }

    /// The same for people: a long value is named by its length and its digest.
    fn shown(&self) -> Json {
        match self {
            Self::Text(bytes) | Self::Blob(bytes) if bytes.len() > SHOWN => {
                let digest = blake3::hash(bytes).to_hex();
                json!({"$bytes": bytes.len(), "$digest": digest.as_str()})
            }
            other => other.json(),
        }
    }

    /// Reads what [`json`](Self::json) wrote.
    pub(super) fn parse(json: &Json) -> Option<Self> {
        Some(match json {
            Json::Null => Self::Null,
            Json::Bool(yes) => Self::Integer(i64::from(*yes)),
            Json::Number(number) => match number.as_i64() {
                Some(number) => Self::Integer(number),
                None => Self::Real(number.as_f64()?.to_bits()),
            },
            Json::String(text) => Self::Text(text.as_bytes().to_vec()),
            Json::Object(object) if object.len() == 1 => {
                let (key, value) = object.iter().next()?;
                let value = value.as_str()?;
                match key.as_str() {
                    "$blob" => Self::Blob(unhex(value)?),
                    "$text" => Self::Text(unhex(value)?),
                    "$real" => Self::Real(value.parse::<f64>().ok()?.to_bits()),
                    _ => return None,
                }
            }
            _ => return None,
        })
    }

    /// It as part of an item: bare where that cannot be taken for anything else, else as SQL writes it.
    fn word(&self) -> Vec<u8> {
        match self {
            Self::Null => b"NULL".to_vec(),
            Self::Integer(number) => number.to_string().into_bytes(),
            Self::Real(bits) => format!("{:?}", f64::from_bits(*bits)).into_bytes(),
            Self::Blob(bytes) => format!("x'{}'", hex(bytes)).into_bytes(),
            Self::Text(text) => {
                let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.@".contains(byte);
                let bare = text.first().is_some_and(u8::is_ascii_alphabetic)
                    && text.iter().all(plain)
                    && !matches!(&text[..], b"NULL" | b"NaN" | b"inf");
                match bare {
                    true => text.clone(),
                    false => {
                        let double = |byte: &u8| match byte {
                            b'\'' => vec![b'\'', b'\''],
                            byte => vec![*byte],
                        };
                        let quoted: Vec<u8> = text.iter().flat_map(double).collect();
                        [b"'", &quoted[..], b"'"].concat()
                    }
                }
            }
        }
    }
}

/// A name as SQL takes it, whatever is in it (rule S4).
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A row that was given as a line of JSON: the columns it names, and its text.
pub(super) struct GivenRow {
    pub(super) columns: Map<String, Json>,
    pub(super) line: String,
}

impl GivenRow {
    /// The values as they were written: a number such as 1.50 is not what it becomes when it is read.
    pub(super) fn texts(&self) -> BTreeMap<String, &RawValue> {
        serde_json::from_str(&self.line).unwrap_or_default()
    }
}

/// The rows that were given.
pub(super) fn given_rows(path: &ResourcePath, bytes: &mut dyn Read) -> Result<Vec<GivenRow>> {
    let mut rows = Vec::new();
    for (number, line) in BufReader::new(bytes).lines().enumerate() {
        let line = line.map_err(|source| StrategyError::Input {
            path: path.clone(),
            source,
        })?;
        if line.trim().is_empty() {
            continue;
        }
        let columns = serde_json::from_str(&line).map_err(|error| StrategyError::Unreadable {
            path: path.clone(),
            why: format!("line {} is not a JSON object: {error}", number + 1),
        })?;
        rows.push(GivenRow { columns, line });
    }
    Ok(rows)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect()
}

/// A plain name of a path for any bytes: what cannot stand there is written `%XX`, and what is too long is cut.
fn part(bytes: &[u8], also: &[u8]) -> Vec<u8> {
    let mut name = Vec::new();
    for byte in bytes {
        match byte {
            0 | b'/' | b'%' => name.extend(format!("%{byte:02X}").into_bytes()),
            byte if also.contains(byte) => name.extend(format!("%{byte:02X}").into_bytes()),
            byte => name.push(*byte),
        }
    }
    match &name[..] {
        b"" => b"%".to_vec(),
        b"." | b".." => name.iter().flat_map(|_| *b"%2E").collect(),
        long if long.len() > LONGEST => {
            let digest = blake3::hash(bytes).to_hex();
            [&long[..LONGEST], b"%~", &digest.as_bytes()[..16]].concat()
        }
        _ => name,
    }
}

/// The item of a table or a view.
pub(super) fn table_item(table: &str) -> ResourcePath {
    ResourcePath::root().join(&part(table.as_bytes(), b":"))
}

/// The item of something that belongs to a table and has a name: an index, a trigger.
pub(super) fn part_item(table: &str, kind: &str, name: &str) -> ResourcePath {
    let name = [kind.as_bytes(), b":", name.as_bytes()].concat();
    table_item(table).join(&part(&name, b""))
}

/// The item of a row.
pub(super) fn row_item(table: &str, key: &RowKey) -> ResourcePath {
    let name = match key {
        RowKey::Values(values) => {
            let words: Vec<Vec<u8>> = values.iter().map(Value::word).collect();
            words.join(&b","[..])
        }
        RowKey::Copy(digest, number) => format!("#{digest}-{number}").into_bytes(),
    };
    table_item(table).join(&part(&name, b""))
}

/// The item of a setting of the database.
pub(super) fn setting_item(name: &str) -> ResourcePath {
    ResourcePath::root().join(format!("pragma:{name}").as_bytes())
}

/// What tells a row from the others of its table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RowKey {
    /// The values of its key.
    Values(Vec<Value>),
    /// There is no key: the digest of the whole row, and which of several equal ones it is.
    Copy(String, u32),
}

/// The change of a row: with these columns, from `old` to `new`, each of which may be missing.
pub(super) fn row_change(
    table: &str,
    columns: &[String],
    key: &RowKey,
    old: Option<&Row>,
    new: Option<&Row>,
) -> Change {
    let differs = |number: &usize| match (old, new) {
        (Some(old), Some(new)) => old.get(*number) != new.get(*number),
        _ => true,
    };
    let numbers: Vec<usize> = (0..columns.len()).filter(differs).collect();
    let values = |row: Option<&Row>| match row {
        None => Json::Null,
        Some(row) => {
            let value = |number: &usize| {
                let value = row.get(*number).unwrap_or(&Value::Null).shown();
                (columns[*number].clone(), value)
            };
            Json::Object(numbers.iter().map(value).collect())
        }
    };
    let key_values = match key {
        RowKey::Values(values) => values.iter().map(Value::shown).collect(),
        RowKey::Copy(..) => Json::Null,
    };
    let detail = RowDetail {
        table: table.to_owned(),
        key: key_values.into(),
        before: values(old).into(),
        after: values(new).into(),
    };
    Change {
        path: row_item(table, key),
        kind: match (old, new) {
            (None, _) => ChangeKind::Inserted,
            (_, None) => ChangeKind::Deleted,
            _ => ChangeKind::Updated,
        },
        detail: Detail::Row(Box::new(detail)),
    }
}

/// The change of something else: its text before and after.
pub(super) fn text_change(
    path: ResourcePath,
    what: &str,
    old: Option<&str>,
    new: Option<&str>,
) -> Change {
    let kind = match (old, new) {
        (None, _) => ChangeKind::Added,
        (_, None) => ChangeKind::Deleted,
        _ => ChangeKind::Modified,
    };
    let lines = |sign: &str, text: Option<&str>| {
        let lines = text.into_iter().flat_map(|text| text.split('\n'));
        let lines = lines.map(|line| format!("{sign} {line}"));
        lines.collect::<Vec<_>>()
    };
    let lines = [lines("-", old), lines("+", new)].concat();
    let detail = json!({"what": what, "before": old, "after": new, "lines": lines});
    Change::opaque(path, kind, detail)
}

/// The digest of what a change would release; none for a row that it removes, which the change itself says. Everything that
/// is released is in the change, long values by their digest.
fn version_digest(change: &Change) -> Option<VersionDigest> {
    let whole =
        !matches!(&change.detail, Detail::Opaque { detail, .. } if detail.get(UNREAD).is_some());
    let (word, after): (&[u8], Cow<'_, str>) = match (&change.detail, change.kind) {
        (Detail::Opaque { detail, .. }, ChangeKind::Deleted) => {
            (b"deleted", detail.to_string().into())
        }
        (Detail::Opaque { detail, .. }, _) => (b"", detail.to_string().into()),
        (_, ChangeKind::Deleted) | (Detail::File(_), _) => return None,
        (Detail::Row(row), _) => (b"", row.after.as_str().into()),
    };
    Some(VersionDigest::new(&[word, after.as_bytes()], whole))
}

/// The digests of what changes would release.
pub(super) fn version_digests(changes: &[Change]) -> VersionDigests {
    let digest = |one: &Change| Some((one.path.clone(), version_digest(one)?));
    changes.iter().filter_map(digest).collect()
}

/// The options that a database takes.
const OPTIONS: [&str; 2] = ["env", "max_age"];

/// The variable that the option `env` of the resource names. An option that means nothing is refused.
pub(super) fn env_name(strategy: &str, target: &Target) -> Result<Option<String>> {
    let unknown = target.options.keys();
    if let Some(key) = unknown
        .into_iter()
        .find(|key| !OPTIONS.contains(&key.as_str()))
    {
        let what = format!("take the option '{key}'");
        let why = format!("there are {}", OPTIONS.join(", "));
        return Err(unsupported(strategy, &what, &why));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match target.options.get("env") {
        None => Ok(None),
        Some(Json::String(name))
            if !name.is_empty()
                && name.bytes().all(plain)
                && !name.starts_with(|first: char| first.is_ascii_digit()) =>
        {
            Ok(Some(name.clone()))
        }
        Some(other) => Err(unsupported(
            strategy,
            &format!("set the variable {other}"),
            "the option `env` is the name of a variable: letters, digits and `_`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule Q4
    #[test]
    fn items_of_different_things_differ_and_are_plain_paths() {
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        let keys = [
            Value::Null,
            text("NULL"),
            Value::Integer(1),
            text("1"),
            Value::Real(1f64.to_bits()),
            Value::Blob(b"1".to_vec()),
            text(""),
            text(".."),
            text("a/b"),
            text("a%2Fb"),
            text("a,b"),
            text(&"x".repeat(300)),
            text(&"x".repeat(301)),
            text("index:a"),
        ];
        let mut items: Vec<ResourcePath> = keys
            .iter()
            .map(|key| row_item("t", &RowKey::Values(vec![key.clone()])))
            .collect();
        for (one, other) in [("a", "b"), ("1','2", "3"), ("1", "2','3")] {
            let key = RowKey::Values(vec![text(one), text(other)]);
            items.push(row_item("t", &key));
        }
        items.push(part_item("t", "index", "a"));
        items.extend(["..", ".", "a/b", "a%2Fb", "pragma:user_version", "'; DROP"].map(table_item));
        items.push(setting_item("user_version"));
        for item in &items {
            assert_eq!(ResourcePath::parse(item.as_bytes()).as_ref(), Ok(item));
        }
        let all = items.len();
        items.sort();
        items.dedup();
        assert_eq!(items.len(), all);
    }

    // rule Q4
    #[test]
    fn every_value_survives_json() {
        for value in [
            Value::Null,
            Value::Integer(i64::MIN),
            Value::Integer(i64::MAX),
            Value::Real(1f64.to_bits()),
            Value::Real((-0f64).to_bits()),
            Value::Real(f64::INFINITY.to_bits()),
            Value::Text(b"1".to_vec()),
            Value::Text(b"\xff\0".to_vec()),
            Value::Blob(b"\0\xff".to_vec()),
        ] {
            let text = value.json().to_string();
            let read = serde_json::from_str(&text).expect("it is JSON");
            assert_eq!(Value::parse(&read), Some(value), "{text}");
        }
    }
}
