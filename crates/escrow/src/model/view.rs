//! What a command sees at a path: a directory that is elsewhere, or two layers as one.

use serde::{Deserialize, Serialize};

use super::text::Location;

/// A layer over a directory: the directory is below, the layer takes every change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// What is below.
    pub lower: Location,
    /// What takes the changes.
    pub upper: Location,
    /// The kernel's own.
    pub work: Location,
}

/// What appears at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum View {
    /// A directory that is elsewhere.
    Directory(Location),
    /// Two layers as one.
    Layers(Layers),
}
