//! What travels in messages, and how it becomes what the engine works with.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::error::StrategyError;
use super::super::{PreviewNote, Target, TargetLocation, unsupported};
use super::channel::WireError;
use super::error::{PluginFault, shown};
use super::program::Program;
use crate::fs::{Cause, FsError};
use crate::model::text::{Location, escape};
use crate::model::{
    Change, ChangeKind, Conflict, Detail, EntryInfo, EntryKind, FileDetail, ResourcePath,
    SandboxRef,
};

/// The metadata of a sandbox, as it is stored: the program's own, and its area.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct StoredMetadata {
    pub(super) plugin: Value,
    pub(super) area: Option<Location>,
    /// The path of the original, if it has one.
    #[serde(default)]
    pub(super) at: Option<Location>,
}

/// The reference to a sandbox, as a program sees it, and what else is stored with it.
pub(super) fn reference(sandbox: &SandboxRef) -> Result<(Value, StoredMetadata), StrategyError> {
    // One that was never finished has none.
    let mut stored = match sandbox.metadata.is_null() {
        true => StoredMetadata::default(),
        false => parse(&sandbox.metadata)?,
    };
    let reference = json!({
        "plan_id": sandbox.plan_id,
        "resource_id": sandbox.resource_id,
        "strategy_name": sandbox.strategy_name,
        "metadata": stored.plugin.take(),
    });
    Ok((reference, stored))
}

/// Reads what was once stored.
pub(super) fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, StrategyError> {
    serde_json::from_value(value.clone()).map_err(|error| StrategyError::Damaged {
        what: format!("what the program of the strategy noted cannot be read ({error})"),
    })
}

/// A whole resource.
pub(super) fn resource(target: &Target) -> Value {
    let location = match &target.location {
        TargetLocation::Path(path) => json!({"kind": "path", "value": path}),
        TargetLocation::Url(url) => json!({"kind": "url", "value": url}),
        TargetLocation::Opaque(text) => json!({"kind": "opaque", "value": text}),
    };
    json!({
        "id": target.resource_id,
        "name": target.name,
        "type": target.kind,
        "location": location,
        "options": target.options,
        "carved": target.carved,
    })
}

/// One version of an item, of which a program need not know everything.
#[derive(Deserialize)]
struct WireEntry {
    #[serde(rename = "type", default = "file")]
    kind: EntryKind,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    mode: u16,
    target: Option<Box<Location>>,
}

fn file() -> EntryKind {
    EntryKind::File
}

/// A change, as a program lists it.
#[derive(Deserialize)]
pub(super) struct WireChange {
    path: ResourcePath,
    kind: ChangeKind,
    old: Option<WireEntry>,
    new: Option<WireEntry>,
    #[serde(default)]
    detail: Value,
}

impl From<WireChange> for Change {
    fn from(wire: WireChange) -> Self {
        let entry = |one: WireEntry| EntryInfo {
            kind: one.kind,
            size: one.size,
            mode: one.mode & 0o7777,
            target: one.target,
        };
        let detail = match wire.old.is_some() || wire.new.is_some() {
            true => Detail::File(FileDetail {
                fields: Vec::new().into(),
                old: wire.old.map(entry),
                new: wire.new.map(entry),
            }),
            false => Detail::Opaque {
                detail: wire.detail,
                carried: Vec::new(),
            },
        };
        Self {
            path: wire.path,
            kind: wire.kind,
            detail,
        }
    }
}

/// A conflict, or a note: where, and what.
#[derive(Deserialize)]
pub(super) struct WireRemark {
    path: ResourcePath,
    what: String,
}

impl From<WireRemark> for Conflict {
    fn from(wire: WireRemark) -> Self {
        Self::of(wire.path, &escape(wire.what.as_bytes()))
    }
}

impl From<WireRemark> for PreviewNote {
    fn from(wire: WireRemark) -> Self {
        Self {
            path: wire.path,
            what: escape(wire.what.as_bytes()),
        }
    }
}

impl WireError {
    /// JSON-RPC: there is no such method.
    const NO_METHOD: i64 = -32601;

    fn kind(&self) -> Option<&str> {
        match self.data.get("kind").and_then(Value::as_str) {
            None if self.code == Self::NO_METHOD => Some("unsupported"),
            kind => kind,
        }
    }
}

/// An error that a program answered with, as the engine knows it.
pub(super) fn error(
    program: &Program,
    verb: &str,
    about: Option<&ResourcePath>,
    answered: &WireError,
) -> StrategyError {
    let text = |key: &str| answered.data.get(key).and_then(Value::as_str);
    let named = text("path").and_then(|path| ResourcePath::parse(path.as_bytes()).ok());
    let path = named.or_else(|| about.cloned()).unwrap_or_default();
    let message = shown(answered.message.as_bytes());
    let original = Location::from_bytes(text("original").unwrap_or_default().as_bytes());
    match answered.kind() {
        Some("not_there") => StrategyError::NotThere { path },
        Some("not_a_file") => StrategyError::NotAFile {
            path,
            kind: text("what").map_or("thing".to_owned(), |what| shown(what.as_bytes())),
        },
        Some("outside") => StrategyError::Leaves {
            source: FsError {
                action: "reach",
                path: Location::from_bytes(path.as_bytes()),
                cause: Cause::Link,
            },
            path,
        },
        Some("conflict") => StrategyError::Moved {
            path,
            what: message,
        },
        Some("gone") => StrategyError::Gone { original },
        Some("replaced") => StrategyError::Replaced { original },
        Some("damaged") => StrategyError::Damaged { what: message },
        Some("unsupported") => unsupported(&program.spec.name, verb, &message),
        _ => StrategyError::Plugin(Box::new(program.error(
            verb,
            PluginFault::Answered(message),
            Vec::new(),
        ))),
    }
}
