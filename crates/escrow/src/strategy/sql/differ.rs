//! The row differ of every database: two versions of a table are read side by side, in an order that both have, so that of equal rows
//! one of each is in memory and the rest is what differs.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::record::encode;
use super::{RowKey, Value};

/// A pass over the rows of one version of a table, in the order of what tells them apart.
pub(in crate::strategy) trait RowCursor {
    type Error;
    /// A row that differs.
    type Found;

    /// Goes to the first row, then to the next one.
    fn step(&mut self) -> Result<(), Self::Error>;

    /// Whether there is no row any more.
    fn is_past(&self) -> bool;

    /// Which of two rows comes first; equal where they are two versions of one.
    fn order(&self, other: &Self) -> Ordering;

    /// Whether two rows have the same values.
    fn is_same(&self, other: &Self) -> Result<bool, Self::Error>;

    /// The row it is at.
    fn row(&self) -> Result<Self::Found, Self::Error>;
}

/// Calls with what is in one version only, and with both versions of what differs.
pub(in crate::strategy) fn compare<C: RowCursor>(
    old: &mut C,
    new: &mut C,
    mut found: impl FnMut(Option<C::Found>, Option<C::Found>),
) -> Result<(), C::Error> {
    old.step()?;
    new.step()?;
    loop {
        let order = match (old.is_past(), new.is_past()) {
            (true, true) => return Ok(()),
            (false, true) => Ordering::Less,
            (true, false) => Ordering::Greater,
            (false, false) => old.order(new),
        };
        match order {
            Ordering::Less => found(Some(old.row()?), None),
            Ordering::Greater => found(None, Some(new.row()?)),
            Ordering::Equal if old.is_same(new)? => {}
            Ordering::Equal => found(Some(old.row()?), Some(new.row()?)),
        }
        if order != Ordering::Greater {
            old.step()?;
        }
        if order != Ordering::Less {
            new.step()?;
        }
    }
}

/// The digest of a row.
pub(in crate::strategy) fn digest(row: &[Value]) -> [u8; 32] {
    let mut bytes = Vec::new();
    row.iter().for_each(|value| encode(value, &mut bytes));
    *blake3::hash(&bytes).as_bytes()
}

/// Tells rows without a key apart: by their values, and by how many equal ones came before.
#[derive(Default)]
pub(in crate::strategy) struct Copies(HashMap<[u8; 32], u32>);

impl Copies {
    pub(in crate::strategy) fn key(&mut self, row: &[Value]) -> RowKey {
        let digest = digest(row);
        let number = self.0.entry(digest).or_default();
        *number += 1;
        let text = blake3::Hash::from(digest).to_hex();
        RowKey::Copy(text[..16].to_owned(), *number)
    }
}
