//! What a commit does to a database, in files: a plan, and the rows that change, one after the other, each value with its class and
//! its exact bytes. What was written is told by its digest, so that a file that was altered is never carried out.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::error::{Result as StrategyResult, StrategyError};
use super::{Row, Value};
use crate::fs::{Dir, atomic_file};
use crate::model::ResourcePath;
use crate::model::text::Location;

const PLAN: &[u8] = b"plan";
const ROWS: &[u8] = b"rows";

/// One row that a commit changes: where it is, what it is before, and what it is afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::strategy) struct RowSwap {
    /// The number of its table among those of the commit.
    pub(in crate::strategy) table: u32,
    /// Its number in the table, where the table has such numbers.
    pub(in crate::strategy) rowid: Option<i64>,
    /// What the original holds; none for a row that is new.
    pub(in crate::strategy) before: Option<Row>,
    /// What it will hold; none for a row that goes.
    pub(in crate::strategy) after: Option<Row>,
}

/// Writes swaps, and sums up what was written.
struct RowWriter<W: Write> {
    to: W,
    hash: blake3::Hasher,
}

impl<W: Write> RowWriter<W> {
    fn new(to: W) -> Self {
        Self {
            to,
            hash: blake3::Hasher::new(),
        }
    }

    fn write(&mut self, swap: &RowSwap) -> std::io::Result<()> {
        let mut bytes = swap.table.to_le_bytes().to_vec();
        match swap.rowid {
            None => bytes.push(0),
            Some(rowid) => {
                bytes.push(1);
                bytes.extend(rowid.to_le_bytes());
            }
        }
        for row in [&swap.before, &swap.after] {
            encode_row(row.as_ref(), &mut bytes);
        }
        self.hash.update(&bytes);
        self.to.write_all(&bytes)
    }

    /// The digest of everything.
    fn finish(mut self) -> std::io::Result<String> {
        self.to.flush()?;
        Ok(self.hash.finalize().to_hex().to_string())
    }
}

fn encode_row(row: Option<&Row>, bytes: &mut Vec<u8>) {
    let Some(row) = row else {
        bytes.extend(u32::MAX.to_le_bytes());
        return;
    };
    bytes.extend((row.len() as u32).to_le_bytes());
    row.iter().for_each(|value| encode(value, bytes));
}

/// A value as bytes that no other value has.
pub(in crate::strategy) fn encode(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Null => bytes.push(0),
        Value::Integer(number) => {
            bytes.push(1);
            bytes.extend(number.to_le_bytes());
        }
        Value::Real(bits) => {
            bytes.push(2);
            bytes.extend(bits.to_le_bytes());
        }
        Value::Text(text) => {
            bytes.push(3);
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text);
        }
        Value::Blob(blob) => {
            bytes.push(4);
            bytes.extend((blob.len() as u64).to_le_bytes());
            bytes.extend(blob);
        }
    }
}

/// Reads swaps.
struct RowReader<R: Read> {
    from: BufReader<R>,
}

impl<R: Read> RowReader<R> {
    fn new(from: R) -> Self {
        Self {
            from: BufReader::new(from),
        }
    }

    fn bytes<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn long(&mut self) -> std::io::Result<Vec<u8>> {
        let length = u64::from_le_bytes(self.bytes()?);
        let mut bytes = Vec::new();
        (&mut self.from).take(length).read_to_end(&mut bytes)?;
        match bytes.len() as u64 == length {
            true => Ok(bytes),
            false => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn value(&mut self) -> std::io::Result<Value> {
        Ok(match self.bytes::<1>()?[0] {
            0 => Value::Null,
            1 => Value::Integer(i64::from_le_bytes(self.bytes()?)),
            2 => Value::Real(u64::from_le_bytes(self.bytes()?)),
            3 => Value::Text(self.long()?),
            4 => Value::Blob(self.long()?),
            _ => return Err(std::io::ErrorKind::InvalidData.into()),
        })
    }

    fn row(&mut self) -> std::io::Result<Option<Row>> {
        match u32::from_le_bytes(self.bytes()?) {
            u32::MAX => Ok(None),
            count => (0..count)
                .map(|_| self.value())
                .collect::<Result<_, _>>()
                .map(Some),
        }
    }

    fn swap(&mut self) -> std::io::Result<RowSwap> {
        Ok(RowSwap {
            table: u32::from_le_bytes(self.bytes()?),
            rowid: match self.bytes::<1>()?[0] {
                0 => None,
                _ => Some(i64::from_le_bytes(self.bytes()?)),
            },
            before: self.row()?,
            after: self.row()?,
        })
    }
}

impl<R: Read> Iterator for RowReader<R> {
    type Item = std::io::Result<RowSwap>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.from.fill_buf() {
            Ok([]) => None,
            Ok(_) => Some(self.swap()),
            Err(error) => Some(Err(error)),
        }
    }
}

/// Writes the rows of a commit into its area. Returns their digest.
pub(in crate::strategy) fn write_rows(area: &Dir, rows: &[RowSwap]) -> StrategyResult<String> {
    let mut writer = RowWriter::new(BufWriter::new(area.create(ROWS, 0o600)?));
    let written = rows.iter().try_for_each(|swap| writer.write(swap));
    let digest = written.and_then(|()| writer.finish());
    Ok(digest.map_err(|error| area.io_error("write", ROWS, &error))?)
}

/// Writes the rest of it. Returns its digest.
pub(in crate::strategy) fn write_plan(area: &Dir, plan: &impl Serialize) -> StrategyResult<String> {
    let text = serde_json::to_vec(plan).expect("texts and numbers are JSON");
    atomic_file::create(area, PLAN, &text)?;
    Ok(blake3::hash(&text).to_hex().to_string())
}

/// Reads a plan back; `rows` says which digest its rows have.
pub(in crate::strategy) fn read_plan<T: DeserializeOwned>(
    area: &Dir,
    digest: &str,
    rows: impl FnOnce(&T) -> &str,
) -> StrategyResult<T> {
    let mut text = Vec::new();
    let read = area.file(PLAN)?.0.read_to_end(&mut text);
    read.map_err(|error| area.io_error("read", PLAN, &error))?;
    if blake3::hash(&text).to_hex().as_str() != digest {
        return Err(altered(area, PLAN));
    }
    let plan = serde_json::from_slice(&text).map_err(|_| altered(area, PLAN))?;
    let mut hash = blake3::Hasher::new();
    let hashed = hash.update_reader(area.file(ROWS)?.0);
    hashed.map_err(|error| area.io_error("read", ROWS, &error))?;
    match hash.finalize().to_hex().as_str() == rows(&plan) {
        true => Ok(plan),
        false => Err(altered(area, ROWS)),
    }
}

/// Its rows, one after the other.
pub(in crate::strategy) fn read_rows(
    area: &Dir,
) -> StrategyResult<impl Iterator<Item = StrategyResult<RowSwap>> + '_> {
    let failed = |error| StrategyError::from(area.io_error("read", ROWS, &error));
    Ok(RowReader::new(area.file(ROWS)?.0).map(move |one| one.map_err(failed)))
}

fn altered(area: &Dir, name: &[u8]) -> StrategyError {
    let path = area.locate(&ResourcePath::root().join(name));
    StrategyError::Altered {
        path: Location::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were() {
        let row = vec![
            Value::Null,
            Value::Integer(-1),
            Value::Real(1.5f64.to_bits()),
            Value::Text(b"a\0\xff".to_vec()),
            Value::Blob(Vec::new()),
        ];
        let swaps = [
            RowSwap {
                table: 0,
                rowid: Some(-7),
                before: None,
                after: Some(row.clone()),
            },
            RowSwap {
                table: 9,
                rowid: None,
                before: Some(row),
                after: Some(Vec::new()),
            },
        ];
        let mut bytes = Vec::new();
        let mut writer = RowWriter::new(&mut bytes);
        for swap in &swaps {
            writer.write(swap).expect("memory takes it");
        }
        let digest = writer.finish().expect("memory takes it");
        assert_eq!(digest, blake3::hash(&bytes).to_hex().to_string());
        let read: Vec<RowSwap> = RowReader::new(&bytes[..])
            .collect::<Result<_, _>>()
            .expect("it reads back");
        assert_eq!(read, swaps);
        assert!(RowReader::new(&bytes[..bytes.len() - 1]).any(|one| one.is_err()));
    }
}
