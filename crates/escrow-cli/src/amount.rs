//! Amounts, in words for people.

use indicatif::HumanBytes;

/// A number of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// A number and what it counts.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    }
}
