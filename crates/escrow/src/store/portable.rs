//! Stores paths below the home relative to it, so that a home can be moved or reached through another mount.
//!
//! A location in a column of its own is stored without the home in front: all others are absolute, so
//! a relative one is below the home. In JSON that a strategy made, a string that names something
//! below the home begins with a mark instead; escaped locations never contain it.

use std::path::Path;

use serde_json::Value;

use super::sqlite::Store;
use crate::model::text::{Location, escape};

/// What stands for the home in stored JSON; [`escape`] never writes it.
const MARK: &str = "\\home/";

impl Store {
    fn home(&self) -> &Path {
        self.path().parent().unwrap_or_else(|| self.path())
    }

    /// The bytes to store for a location.
    pub(super) fn stored_location<'a>(&self, location: &'a Location) -> &'a [u8] {
        let path = location.as_path();
        let below = path.strip_prefix(self.home()).unwrap_or(path);
        below.as_os_str().as_encoded_bytes()
    }

    /// The location that a stored one means; an empty one means none at all.
    pub(super) fn found_location(&self, stored: Location) -> Location {
        match stored.as_bytes().is_empty() {
            true => stored,
            // Joining an absolute path replaces the home.
            false => Location::from(self.home().join(stored.as_path())),
        }
    }

    /// JSON as it is stored.
    pub(super) fn stored_json(&self, mut value: Value) -> String {
        let home = self.home_prefix();
        replace(&mut value, &home, MARK);
        value.to_string()
    }

    /// The same for JSON that is text already; what is no JSON is stored as it is.
    pub(super) fn stored_text(&self, text: &str) -> String {
        match serde_json::from_str(text) {
            Ok(value) => self.stored_json(value),
            Err(_) => text.to_owned(),
        }
    }

    /// Stored JSON as the rest of the engine knows it.
    pub(super) fn found_json(&self, mut value: Value) -> Value {
        replace(&mut value, MARK, &self.home_prefix());
        value
    }

    /// The same for JSON that stays text.
    pub(super) fn found_text(&self, text: String) -> String {
        match text.contains("\\\\home/") {
            true => match serde_json::from_str(&text) {
                Ok(value) => self.found_json(value).to_string(),
                Err(_) => text,
            },
            false => text,
        }
    }

    fn home_prefix(&self) -> String {
        format!("{}/", escape(self.home().as_os_str().as_encoded_bytes()))
    }
}

/// Replaces what strings begin with, everywhere in a value.
fn replace(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) => {
            if let Some(rest) = text.strip_prefix(from) {
                *text = format!("{to}{rest}");
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| replace(value, from, to)),
        Value::Object(values) => values
            .values_mut()
            .for_each(|value| replace(value, from, to)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
