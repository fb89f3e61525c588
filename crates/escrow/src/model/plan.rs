//! The state of a plan: a named set of sandboxes that are released together.

use std::ffi::OsStr;

use super::words::words;

words! {
    /// Where a plan stands.
    pub enum PlanState {
        /// Its sandboxes are being made, or the process that made them crashed. Nothing of it can be used.
        Creating = "creating",
        /// Its sandboxes can be worked in.
        Open = "open",
        /// Its changes are in the originals; they can still be taken back.
        Committed = "committed",
        /// Its commit was taken back.
        RolledBack = "rolled_back",
        /// It is being removed, or the process that removed it crashed. Nothing of it can be used any more.
        Removing = "removing",
        /// Everything it had on disk was removed; only the record is left.
        CleanedUp = "cleaned_up",
    }
    else |word| format!("no plan is ever '{word}'")
}

impl PlanState {
    /// Whether it is half made or half removed: all that is left to do is to remove it.
    pub fn is_half(self) -> bool {
        matches!(self, Self::Creating | Self::Removing)
    }
}

/// Whether a text can name a plan or a resource: a letter or digit first, then letters, digits,
/// `.`, `_` and `-`, at most 64 in all. So a name is never an option, a path or an escape code.
pub fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    text.len() <= 64
        && text.bytes().next().is_some_and(plain)
        && text
            .bytes()
            .all(|byte| plain(byte) || b"._-".contains(&byte))
}

/// A name made from the last part of a path.
pub fn name_from(last: &OsStr) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let name: String = last
        .as_encoded_bytes()
        .iter()
        .map(|byte| if plain(byte) { char::from(*byte) } else { '-' })
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(48)
        .collect();
    match name.is_empty() {
        true => "dir".to_owned(),
        false => name,
    }
}
