//! What a command sees at a path: a directory or file from elsewhere, or merged layers.

use serde::{Deserialize, Serialize};

use super::text::Location;

/// A layer over other layers and a directory: those are below, the layer takes every change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// What is below, topmost first; the directory is the last.
    pub below: Vec<Location>,
    /// What takes the changes.
    pub upper: Location,
    /// The kernel's own.
    pub work: Location,
}

/// What appears at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum View {
    /// A directory, or a file, that is elsewhere.
    Directory(Location),
    /// Layers as one.
    Layers(Layers),
    /// A directory that is elsewhere, and cannot be written.
    ReadOnly(Location),
}
