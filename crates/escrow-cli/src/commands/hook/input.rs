//! The event that a coding agent hands to its hook.

use std::io::Read;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::error::Failure;

/// More than any tool call holds.
const LARGEST: u64 = 256 << 20;

/// An event as the agent wrote it.
pub(super) struct Input {
    all: Map<String, Value>,
    tool_input: Map<String, Value>,
}

impl Input {
    /// Reads one JSON value from stdin; does not wait for the end of the stream, which some agents leave open.
    pub(super) fn read() -> Result<Self, String> {
        let stdin = std::io::stdin().lock().take(LARGEST);
        let mut values = serde_json::Deserializer::from_reader(stdin).into_iter::<Value>();
        let mut all = match values.next() {
            Some(Ok(Value::Object(all))) => all,
            Some(Ok(_)) => return Err("the input is no JSON object".to_owned()),
            Some(Err(error)) => return Err(format!("the input is no JSON: {error}")),
            None => return Err("the input is empty".to_owned()),
        };
        let tool_input = match all.remove("tool_input") {
            Some(Value::Object(fields)) => fields,
            None => Map::new(),
            Some(_) => return Err("tool_input is no JSON object".to_owned()),
        };
        Ok(Self { all, tool_input })
    }

    /// A field of the event that is a text.
    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.all
            .get(field)?
            .as_str()
            .filter(|text| !text.is_empty())
    }

    fn needed(&self, field: &str) -> Result<&str, Failure> {
        let missing = || Failure::failed(format!("the input has no text '{field}'"));
        self.text(field).ok_or_else(missing)
    }

    pub(super) fn event(&self) -> &str {
        self.text("hook_event_name").unwrap_or_default()
    }

    pub(super) fn tool(&self) -> Result<&str, Failure> {
        self.needed("tool_name")
    }

    pub(super) fn session(&self) -> Result<&str, Failure> {
        self.needed("session_id")
    }

    /// The directory in which the agent works.
    pub(super) fn cwd(&self) -> Result<PathBuf, Failure> {
        let cwd = PathBuf::from(self.needed("cwd")?);
        match cwd.is_absolute() {
            true => Ok(cwd),
            false => Err(Failure::failed("the input's cwd is no absolute path")),
        }
    }

    pub(super) fn tool_input(&self) -> &Map<String, Value> {
        &self.tool_input
    }
}
