//! A whole resource, as a strategy is given it: everything it may need to know, and nothing of the store.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::id::ResourceId;
use super::path::ResourcePath;
use super::text::Location;

/// Free keys, which mean something to a strategy alone.
pub type Options = serde_json::Map<String, serde_json::Value>;

/// Where a resource is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetLocation {
    /// At a path of the file system.
    Path(Location),
    /// At a URL.
    Url(String),
    /// Where only the strategy knows.
    Opaque(String),
}

/// A whole resource, as a strategy is given it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Its id.
    pub resource_id: ResourceId,
    /// Its name.
    pub name: String,
    /// The name of its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Where it is.
    pub location: TargetLocation,
    /// Free keys: `options` of the strategy in the configuration, and over them those of the resource.
    pub options: Options,
    /// Paths that belong to other resources and are not part of the sandbox.
    pub carved: Vec<ResourcePath>,
}

impl Target {
    /// A resource at a path, without options.
    pub fn at(resource_id: ResourceId, kind: &str, path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Self {
            resource_id,
            name: name.into_owned(),
            kind: kind.to_owned(),
            location: TargetLocation::Path(Location::from(path)),
            options: serde_json::Map::new(),
            carved: Vec::new(),
        }
    }

    /// Its path, if it has one.
    pub fn path(&self) -> Option<&Path> {
        match &self.location {
            TargetLocation::Path(path) => Some(path.as_path()),
            _ => None,
        }
    }
}
